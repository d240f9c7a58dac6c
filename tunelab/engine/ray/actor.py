"""The trial actor: one slot of the sweep, trial after trial through the same processes."""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from typing import Any

import ray.cloudpickle
import ray.tune

from tunelab.core.failures import Failure
from tunelab.engine.ray.messages import Ended, Heartbeat

# Ray reads these when it sets a trial up. Working directories are ours, and nothing here needs its log files or metrics.
RAY_SETTINGS = {
    "RAY_TRAIN_V2_ENABLED": "1",
    "PL_DISABLE_FORK": "1",  # as Tune has it
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_CONTROLLER_STRUCTURED_LOGGING": "0",
    "RAY_TRAIN_ENABLE_WORKER_STRUCTURED_LOGGING": "0",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
}
GONE_S = 10.0  # how long an attempt may take to notice that a node of it is gone, before it is ended
HEARTBEAT_S = 1.0  # longest that a step waits, so that a stop reaches a trial that does not report


class TrialActor(ray.tune.Trainable):
    """Runs one attempt after another. `step` passes on one message; asking for the next step means: go on.

    `step` never raises, since Tune throws an actor away that does. It waits for `HEARTBEAT_S` at most, save for the seconds
    that it takes to end an attempt that hangs.
    """

    def setup(self, config: dict[str, Any], blueprint: Any = None) -> None:
        self._blueprint = blueprint
        self._attempt: Any = None
        self._cut_off_at: float | None = None  # when it became known that a node of it is gone
        self._slot: Any = None  # stays None when the project or the libraries cannot be loaded here
        self._trainer: Any = None
        self._at_once = False
        try:
            os.environ.update(RAY_SETTINGS)
            if blueprint.root not in sys.path:
                sys.path.insert(0, blueprint.root)
            from tunelab.engine.ray.crew import Post, Slot

            preload = blueprint.trainer if blueprint.preload else None
            self._slot = Slot(blueprint.root, preload, blueprint.warm, blueprint.recycle_after, blueprint.max_growth_mb)
            shape = config["shape"]
            self._in_actor = shape.in_actor
            if not shape.in_actor:  # first of all: they take longest
                self._slot.hire(Post.of(len(shape.bundles), dict(shape.bundles[0]), blueprint.worker_env))
        except Exception as error:
            self._unfit = error
        self._begin(config["launch"])

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.release()
        self._begin(new_config["launch"])
        return True

    def step(self) -> dict[str, Any]:
        message = self._attempt.next(HEARTBEAT_S)
        timeout_s = self._blueprint.report_timeout_s
        if timeout_s is not None and isinstance(message, Heartbeat) and self._attempt.hangs(timeout_s):
            message = self._hung(timeout_s)
        if self._cut_off_at is not None and isinstance(message, Heartbeat) and time.monotonic() - self._cut_off_at > GONE_S:
            self._attempt.stop(self._interrupt)
            message = Ended(Failure.LOST, "a worker is gone with its node, and the others wait for it")
        notes = self._slot.notes if self._slot is not None else []
        if notes:
            self._slot.notes = []
        return {"message": message, "notes": notes}

    def expect(self, until: float) -> None:
        """The scheduler next has something to say at step `until`. Told before the answer to the report that decided it."""
        self._attempt.pace.until = until

    def preempted(self, leaving: dict[str, int]) -> None:
        """Nodes of this trial are about to be taken away: id -> when, in milliseconds since the epoch, or 0. Tells the loop."""
        from tunelab.engine.ray.crew import preemption

        if self._slot is not None and not self._in_actor:
            self._slot.preempted(leaving)
        elif self._attempt is not None:
            self._attempt.preemption = preemption(leaving, {node: [0] for node in leaving})

    def cut_off(self) -> None:
        """A node of this trial is gone. It will notice, unless it waits for what was to be started there."""
        self._cut_off_at = time.monotonic()

    def release(self, at_once: bool = False) -> None:
        """End the attempt: at the report at which it waits, or now. `at_once` leaves the loop no time to clean up."""
        self._at_once = at_once
        if self._attempt is not None and not self._attempt.stop(self._interrupt):
            os._exit(1)  # a train loop that cannot be interrupted, in this very process
        self._attempt = None

    def cleanup(self) -> None:
        self.release()
        if self._slot is not None:
            self._slot.close()

    def _begin(self, launch: Any) -> None:
        from tunelab.engine.ray import attempt
        from tunelab.engine.ray.pace import Pace

        self._cut_off_at = None
        pace = Pace(self._blueprint.reports, self._blueprint.step)
        self._attempt = attempt.Attempt(partial(self._work, launch=launch), storage=self._blueprint.storage, pace=pace)

    def _work(self, running: Any, launch: Any) -> Any:
        """What the attempt's thread does."""
        from tunelab.engine.ray import attempt, trainers

        if self._slot is None:
            raise self._unfit
        if self._trainer is None:
            self._trainer = ray.cloudpickle.loads(self._blueprint.trainer)
        trainer = trainers.resolve(self._trainer, launch.config, launch.seed)
        if trainers.is_trainer(trainer):
            return attempt.run_group(running, launch, trainer, self._blueprint, self._slot)
        return attempt.run_function(running, launch, trainer, self._blueprint)

    def _hung(self, timeout_s: float) -> Ended:
        """End an attempt of which nothing has been heard for too long, and say where it was."""
        from tunelab.engine.ray.worker import stacks_of

        busy = self._slot.busy if self._slot is not None else None
        stacks = busy.stacks() if busy is not None else stacks_of(self._attempt.thread)
        self._attempt.stop(self._interrupt)
        return Ended(Failure.HUNG, f"no report for {timeout_s:g} s; its stacks are with the attempt's details", stacks)

    def _interrupt(self, thread: Any) -> None:
        """End what the attempt does: its workers, or the function that runs in this process."""
        from tunelab.engine.ray.worker import raise_stopped

        if self._slot is not None and self._slot.busy is not None:
            self._slot.interrupt(at_once=self._at_once)
        else:
            raise_stopped(thread)
