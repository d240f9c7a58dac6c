"""The experiments that the chaos tests kill: milliseconds an epoch, curves that cross, a checkpoint of two ranks at each epoch.

Each executed epoch leaves a line in a file beside the sweep's folder, which no kill takes back. The score is summed up in the
checkpoint, so a restart from a wrong one, or from none, gives other scores.
"""

import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import ray.train
import torch
from ray.train.torch import TorchTrainer

from tunelab import ASHA, TPE, Budget, Experiment, Float, Objective, current_trial

EPOCHS, TRIALS = 9, 24


def gain(config: dict, epoch: int) -> float:
    """What an epoch adds to the score: some trials start fast and others last."""
    return config["start"] * 0.5**epoch + (1 - abs(config["last"] - 0.3)) * 0.05 * epoch**0.5


def mark(epoch: int, rank: int) -> None:
    trial, home = current_trial(), Path.cwd().parents[3]  # the working directory is HOME/SWEEP/trials/TRIAL/rankN
    with open(home / "executed.txt", "a") as file:
        file.write(f"{trial.id.rpartition('/')[2]} {epoch} {rank} {trial.attempt} {os.getpid()}\n")


def train(config: dict) -> None:
    rank, score, done = ray.train.get_context().get_world_rank(), 0.0, 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder, f"rank{rank}.pt"), weights_only=True)
        score, done = state["score"], state["epoch"]
    for epoch in range(done + 1, config["epochs"] + 1):
        mark(epoch, rank)
        time.sleep(config["pause"])
        score += gain(config, epoch)
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(torch.ones(1))  # so that no rank outlives another
        with TemporaryDirectory() as folder:
            torch.save({"score": score, "epoch": epoch, "weights": torch.ones(20_000)}, Path(folder, f"rank{rank}.pt"))
            ray.train.report({"epoch": epoch, "score": score}, checkpoint=ray.train.Checkpoint(folder))


def make(name: str, workers: int, concurrent: int) -> Experiment:
    return Experiment(
        name=name,
        trainer=TorchTrainer(
            train,
            train_loop_config={"epochs": EPOCHS, "pause": 0.03},
            scaling_config=ray.train.ScalingConfig(num_workers=workers),
        ),
        space={"start": Float(0.0, 1.0), "last": Float(0.0, 1.0)},
        objective=Objective("score", mode="max", step="epoch", last_step="epochs"),
        searcher=TPE(),
        scheduler=ASHA(first_rung=1, reduction=3),
        budget=Budget(trials=TRIALS, concurrent=concurrent),
        seed=7,
    )


one = make("one", workers=2, concurrent=1)  # the order of everything is defined
pairs = make("pairs", workers=1, concurrent=2)
