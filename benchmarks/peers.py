"""Stock Ray 2.60, as its documentation says to use it: what tunelab is measured against."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray.train
import ray.tune
from ray.train.torch import TorchTrainer

# The fastest that Tune can be made: no CSV, JSON or TensorBoard files, no snapshots of the experiment's state.
LEAN = {"TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1", "TUNE_GLOBAL_CHECKPOINT_S": "1000000000"}
QUIET = {"RAY_AIR_NEW_OUTPUT": "0"}


class Clock(ray.tune.Callback):
    """Notes when trials start, report and end, as the driver learns of it."""

    def __init__(self) -> None:
        self.started: list[float] = []
        self.reported: list[float] = []
        self.ended: list[float] = []

    def on_trial_start(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        self.started.append(time.time())

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
        self.reported.append(time.time())

    def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        self.ended.append(time.time())


def torch_trials(loop: Callable[..., Any], config: dict[str, Any], *, trials: int, folder: Path) -> Clock:
    """Trials of a two-worker Torch loop, one at a time: Tuner, function trainable, TorchTrainer, TuneReportCallback."""
    storage = str(folder)

    def trial(config: dict[str, Any]) -> None:
        from ray.tune.integration.ray_train import TuneReportCallback

        TorchTrainer(
            loop,
            train_loop_config=config,
            scaling_config=ray.train.ScalingConfig(num_workers=2),
            run_config=ray.train.RunConfig(
                name=f"train-{ray.tune.get_context().get_trial_id()}", storage_path=storage, callbacks=[TuneReportCallback()]
            ),
        ).fit()

    clock = Clock()
    tuner = ray.tune.Tuner(
        trial,
        param_space={**config, "x": ray.tune.uniform(0.0, 1.0)},
        tune_config=ray.tune.TuneConfig(num_samples=trials, max_concurrent_trials=1),
        run_config=ray.tune.RunConfig(name="tune", storage_path=storage, callbacks=[clock], verbose=0),
    )
    with _settings(QUIET):
        failed = [result.error for result in tuner.fit() if result.error is not None]
    assert not failed, failed[0]
    return clock


def class_trials(body: Callable[[], dict[str, Any]], *, trials: int, folder: Path) -> tuple[float, list[dict[str, Any]]]:
    """Trials of one report each in a class trainable whose actor is reused. Returns seconds of `fit` and the reports."""

    class Body(ray.tune.Trainable):
        def setup(self, config: dict[str, Any]) -> None:
            pass

        def step(self) -> dict[str, Any]:
            return {**body(), "done": True}

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            return True

        def save_checkpoint(self, checkpoint_dir: str) -> None:  # Tune saves at a trial's end, and fails without this
            pass

    with _settings({**LEAN, **QUIET}):
        tuner = ray.tune.Tuner(
            Body,
            param_space={"x": ray.tune.uniform(0.0, 1.0)},
            tune_config=ray.tune.TuneConfig(num_samples=trials, reuse_actors=True),
            run_config=ray.tune.RunConfig(name="tune", storage_path=str(folder), verbose=0),
        )
        began = time.perf_counter()
        results = tuner.fit()
        took_s = time.perf_counter() - began
    assert results.num_errors == 0, results.errors[0]
    return took_s, [result.metrics or {} for result in results]


@contextmanager
def _settings(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
