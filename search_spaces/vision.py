"""Search spaces for image models."""

from tunelab import Choice, Float, Int, Space


def small_conv_net() -> Space:
    """A small convolutional network trained from scratch with AdamW, on images of some ten pixels a side."""
    return Space(
        {
            # AdamW's usual 1e-3 lies in the middle. Few epochs on few images want more; above 3e-2 batch norm only just holds.
            "lr": Float(1e-4, 3e-2, log=True),
            # Below 1e-4 it does nothing in a few epochs, above 0.1 it shrinks weights faster than they learn.
            "weight_decay": Float(1e-4, 0.1, log=True),
            # Channels of the first layer; the second has twice as many. Beyond 32 time grows and accuracy does not.
            "channels": Int(4, 32, log=True),
            # Of the features before the classifier. More than half leaves a small network too little.
            "dropout": Float(0.0, 0.5, step=0.1),
            # Images of each worker. Smaller ones take more steps an epoch than their noise is worth.
            "batch_size": Choice([16, 32, 64]),
        }
    )
