"""Search spaces for fine-tuning text models."""

from tunelab import Choice, Float, Int, Space


def bert_finetune(layers: int = 6) -> Space:
    """Fine-tuning a pretrained BERT-family encoder of `layers` layers for classification.

    The ranges lie around Devlin et al. 2019, appendix A.3 (Adam at 2e-5 to 5e-5, batches of 16 or 32, warm-up over 10 %,
    weight decay 0.01). For a larger encoder give its number of layers, and narrow: `bert_finetune(12) | {"lr": ...}`.
    """
    return Space(
        {
            # BERT-base wants 2e-5 to 5e-5; an encoder a fifth of its size stands, and often wants, ten times that.
            "lr": Float(1e-5, 3e-4, log=True),
            # A share of all optimizer steps. None at all is a fair contender in short runs with many frozen layers.
            "warmup_ratio": Float(0.0, 0.2, step=0.05),
            # Two decades around the usual 0.01; below, it does nothing in a few epochs.
            "weight_decay": Float(1e-4, 0.1, log=True),
            # Sentences per forward pass over all workers, and forward passes per optimizer step.
            "batch_size": Choice([8, 16, 32]),
            "accumulate": Choice([1, 2]),
            # What keeps its pretrained weights: nothing; the embeddings (half of a small encoder's parameters);
            # or these and the lowest layers too, which is cheaper and forgets less on little data.
            "freeze": Choice(["none", "embeddings", "layers"]),
            "frozen_layers": Int(1, layers - 1, when={"freeze": "layers"}, otherwise=0),
        },
        # More than 32 sentences per optimizer step leaves too few steps on a small data set.
        require=["batch_size * accumulate <= 32"],
    )
