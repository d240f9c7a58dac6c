"""The trial actor: one slot of the sweep, trial after trial through the same processes."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Any

import ray.cloudpickle
import ray.tune

# Ray reads these when it sets a trial up. Working directories are ours, and nothing here needs its log files or metrics.
RAY_SETTINGS = {
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_CONTROLLER_STRUCTURED_LOGGING": "0",
    "RAY_TRAIN_ENABLE_WORKER_STRUCTURED_LOGGING": "0",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
}
HEARTBEAT_S = 0.5  # longest that a step waits, so that a stop reaches a trial that does not report


class TrialActor(ray.tune.Trainable):
    """Runs one attempt after another. `step` passes on one message; asking for the next step means: go on.

    `step` never raises, and never waits longer than `HEARTBEAT_S`: Tune throws an actor away that does either.
    """

    def setup(self, config: dict[str, Any], blueprint: Any = None) -> None:
        os.environ.update(RAY_SETTINGS)
        if blueprint.root not in sys.path:
            sys.path.insert(0, blueprint.root)
        from tunelab.engine.ray.group import Slot

        self._blueprint = blueprint
        self._trainer = ray.cloudpickle.loads(blueprint.trainer)
        self._slot = Slot(blueprint.root, warm=blueprint.isolation == "warm")
        self._attempt: Any = None
        self._begin(config["launch"])

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.release()
        self._begin(new_config["launch"])
        return True

    def step(self) -> dict[str, Any]:
        return {"message": self._attempt.next(HEARTBEAT_S), "launch": self._launch.trial}

    def release(self) -> None:
        """End the attempt, if it has not ended: at the report at which it waits, or at once."""
        if self._attempt is not None and not self._attempt.stop(self._interrupt):
            os._exit(1)  # a train loop that cannot be interrupted, in this very process
        self._attempt = None

    def cleanup(self) -> None:
        self.release()
        self._slot.close()

    def _begin(self, launch: Any) -> None:
        from tunelab.engine.ray import attempt, trainers

        self._launch = launch
        trainer = trainers.resolve(self._trainer, launch.config, launch.seed)
        if trainers.is_trainer(trainer):
            self._interrupt = lambda thread: self._slot.interrupt()
            work = partial(attempt.run_group, launch=launch, trainer=trainer, blueprint=self._blueprint, slot=self._slot)
        else:
            self._interrupt = attempt.raise_stopped
            work = partial(attempt.run_function, launch=launch, function=trainer, blueprint=self._blueprint)
        self._attempt = attempt.Attempt(work, storage=self._blueprint.storage)
