"""Experiments with known answers, for tests of the engine. Loops write what they did where `marks` says, one line an epoch."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import ray.train
from ray.train.torch import TorchTrainer

from tunelab import ASHA, FIFO, Budget, Experiment, Float, Infeasible, Objective, Random, current_trial


def mark(config, text):
    """Append a line that a test can count; survives the process."""
    if config.get("marks"):
        with open(Path(config["marks"], f"{os.getpid()}.txt"), "a") as file:
            file.write(text + "\n")


def marks(folder):
    return sorted(line for path in Path(folder).glob("*.txt") for line in path.read_text().splitlines())


def resumed_epoch():
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as folder:
        return json.loads(Path(folder, "state.json").read_text())


def report(metrics, epoch, rank=0):
    with TemporaryDirectory() as folder:
        Path(folder, "state.json").write_text(json.dumps(epoch))
        ray.train.report(metrics, checkpoint=ray.train.Checkpoint(folder) if rank == 0 else None)


def climb(config):
    """Scores `x * epoch`. Misbehaves as its configuration says."""
    rank, trial = ray.train.get_context().get_world_rank(), current_trial()
    number = trial.id.rpartition("/")[2]
    start = resumed_epoch()
    if config.get("forgets"):
        start = 0
    for epoch in range(start + 1, config["epochs"] + 1):
        mark(config, f"{number} rank{rank} epoch{epoch}")
        if config.get("sleep"):
            time.sleep(config["sleep"])
        if config.get("kill") and (trial.attempt, epoch, rank) == (1, config["kill"], 1):
            os.kill(os.getpid(), 9)
        if config.get("raise_at") and epoch == config["raise_at"] and trial.attempt <= config.get("raises", 99):
            raise RuntimeError(f"no luck at epoch {epoch}")
        if config.get("infeasible") and number in config["infeasible"]:
            raise Infeasible("too wide")
        score = float("nan") if config.get("nan_at") == epoch and number == "0001" else config["x"] * epoch
        metrics = {"epoch": epoch, "score": score}
        if config.get("misnamed"):
            metrics = {"epoch": epoch, "accuracy": score}
        try:
            report(metrics, epoch, rank)
        except BaseException:  # stopped
            time.sleep(config.get("lingers", 0))
            raise


def torch_trainer(workers=2, failures=0, **config):
    return TorchTrainer(
        climb,
        train_loop_config={"epochs": 6, **config},
        scaling_config=ray.train.ScalingConfig(num_workers=workers),
        run_config=ray.train.RunConfig(failure_config=ray.train.FailureConfig(max_failures=failures)),
    )


def fast(config):
    """Reports round after round, as boosting does; a checkpoint every so often."""
    rank = ray.train.get_context().get_world_rank()
    for number in range(1, config["rounds"] + 1):
        metrics = {"epoch": number, "score": number / 1000}
        if config["checkpoint_every"] and number % config["checkpoint_every"] == 0:
            report(metrics, number, rank)
        else:
            ray.train.report(metrics)


def fast_trainer(workers=1, rounds=100, checkpoint_every=0):
    return TorchTrainer(
        fast,
        train_loop_config={"rounds": rounds, "checkpoint_every": checkpoint_every},
        scaling_config=ray.train.ScalingConfig(num_workers=workers),
    )


def experiment(trainer=None, *, name="climb", trials=4, scheduler=None, concurrent=None, time_s=None, last_step=6, **parts):
    return Experiment(
        name=name,
        trainer=trainer or torch_trainer(),
        space={"x": Float(0.0, 1.0)},
        objective=Objective("score", mode="max", step="epoch", last_step=last_step),
        searcher=Random(),
        scheduler=scheduler or ASHA(first_rung=1, reduction=2),
        budget=Budget(trials=trials, concurrent=concurrent, time_s=time_s),
        **parts,
    )


__all__ = ["ASHA", "FIFO", "experiment", "marks", "torch_trainer"]
