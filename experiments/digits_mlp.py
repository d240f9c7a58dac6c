"""Tunes a two-worker Torch MLP on scikit-learn's digits:

    tunelab sweep experiments/digits_mlp.py

An epoch takes well under a tenth of a second, so this is the experiment to try tunelab itself with.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import ray.train
import torch
from ray.train.torch import TorchTrainer, get_device, prepare_data_loader, prepare_model
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from tunelab import ASHA, TPE, Budget, Choice, Experiment, Export, Float, Int, Objective


def split():
    """x_train, x_val, y_train, y_val: 1,347 and 450 images, the same ones in every trial and whatever its seed."""
    x, y = load_digits(return_X_y=True)
    return train_test_split(torch.tensor(x / 16).float(), torch.tensor(y), test_size=0.25, random_state=0)


def build(config):
    return nn.Sequential(nn.Linear(64, config["width"]), nn.ReLU(), nn.Linear(config["width"], 10))


def train(config):
    """A stock Ray Train loop. It knows nothing of tunelab, which has seeded every rank before it starts."""
    context, device = ray.train.get_context(), get_device()
    x_train, x_val, y_train, y_val = split()
    x_val, y_val = x_val.to(device), y_val.to(device)

    # The order of the rows follows from (seed, epoch) alone, with one worker too, so that a restarted trial
    # sees the batches that the unbroken one would have seen. `batch_size` is each worker's.
    rows = TensorDataset(x_train, y_train)
    sampler = DistributedSampler(rows, context.get_world_size(), context.get_world_rank(), seed=config["seed"])
    loader = prepare_data_loader(DataLoader(rows, config["batch_size"], sampler=sampler))

    net = build(config)
    model = prepare_model(net)  # on the worker's device, in DDP when there are several workers; `net` stays bare
    optimizer = torch.optim.AdamW(net.parameters(), lr=config["lr"])

    done = 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder, "state.pt"), map_location="cpu", weights_only=True)
        net.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["epoch"]

    for epoch in range(done + 1, config["epochs"] + 1):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

        with torch.no_grad():
            logits = net(x_val)
        metrics = {
            "epoch": epoch,
            "accuracy": (logits.argmax(1) == y_val).float().mean().item(),
            "loss": nn.functional.cross_entropy(logits, y_val).item(),
        }
        # Every rank reports, since a report is where they wait for each other; rank 0 brings the checkpoint.
        if context.get_world_rank() > 0:
            ray.train.report(metrics)
            continue
        with TemporaryDirectory() as folder:
            state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save(state, Path(folder, "state.pt"))
            ray.train.report(metrics, checkpoint=ray.train.Checkpoint(folder))


experiment = Experiment(
    name="digits-mlp",
    seed=0,
    trainer=TorchTrainer(
        train,
        train_loop_config={"epochs": 20},
        scaling_config=ray.train.ScalingConfig(num_workers=2),
    ),
    space={
        "lr": Float(1e-4, 1e-1, log=True),
        "width": Int(16, 256, log=True),
        "batch_size": Choice([16, 32, 64]),
    },
    baseline={"lr": 1e-3, "width": 64, "batch_size": 32},
    objective=Objective("accuracy", mode="max", step="epoch", last_step="epochs"),
    searcher=TPE(),
    scheduler=ASHA(first_rung=2, reduction=3),
    budget=Budget(trials=32, time_s=600),
    export=Export(
        build=build,
        weights=("state.pt", "model"),
        example=lambda: split()[1][:8].numpy(),
        predict=lambda net, x: net(x).argmax(1),
    ),
)
