"""Tune's seams, bound to the conductor: a search algorithm that hands out attempts, a scheduler that passes on decisions.

A Tune trial is one attempt. Neither adapter ever raises, because Tune would mark the trial as failed and lose the reason: the
error is kept, the sweep stopped, and the error raised when Tune has returned.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray.tune
from ray.tune import CheckpointConfig
from ray.tune.experiment import Trial as TuneTrial
from ray.tune.progress_reporter import TrialProgressCallback
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import SearchAlgorithm

from tunelab.core.failures import Failure
from tunelab.engine.conductor import Conductor, Launch
from tunelab.engine.ray.actor import RAY_SETTINGS, TrialActor
from tunelab.engine.ray.explain import explain
from tunelab.engine.ray.messages import Blueprint, Heartbeat, Message, Reports
from tunelab.engine.ray.slots import Slot, Slots
from tunelab.engine.ray.trainers import Shape
from tunelab.errors import ResourcesError

TUNE_SETTINGS = {
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000000",
    "TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S": "1000000000",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
}
GRACE_S = 3.0  # how long a sweep that is stopping waits for a trial's next report before it is interrupted


class Binding:
    """What the two adapters share.

    Args:
        conductor: Decides everything.
        slots: Where attempts run.
        shape_of: What a launch will occupy.
        static_shape: What every launch occupies, or None when that depends on the configuration.
        each_round: Called in each round of Tune's loop.
    """

    def __init__(
        self,
        conductor: Conductor,
        slots: Slots,
        shape_of: Callable[[Launch], Shape],
        static_shape: Shape | None,
        each_round: Callable[[], None] = lambda: None,
    ) -> None:
        self.conductor, self.slots = conductor, slots
        self.error: BaseException | None = None
        self.hurry = False  # a second Ctrl-C: do not wait for reports
        self.each_round = each_round
        self._shape_of, self._static_shape = shape_of, static_shape
        self._running: dict[str, tuple[Launch, Slot]] = {}  # by Tune's trial id
        self._told: dict[str, float] = {}
        self._waiting: tuple[Launch, Shape] | None = None  # journalled as started, has no slot yet
        self._stopping_since: float | None = None

    def next_placed(self) -> tuple[str, Launch, Slot] | None:
        """The next attempt and the slot that it runs in, or None while there is none or no room for it."""
        if self.finished or self._waiting is None and self.conductor.exhausted:
            return None
        limit = self.conductor.budget.concurrent
        if limit is not None and len(self._running) >= limit:
            return None
        if self._waiting is None and not self.slots.may_have_room(self._static_shape):
            return None
        waiting = self._waiting or self._next_shaped()
        if waiting is None:
            return None
        launch, shape = waiting
        slot = self.slots.take(shape)
        self._waiting = waiting if slot is None else None
        if slot is None:
            return None
        name = f"{launch.trial:04d}_{launch.attempt}"
        self._running[name] = (launch, slot)
        return name, launch, slot

    def _next_shaped(self) -> tuple[Launch, Shape] | None:
        """The next attempt and what it will occupy. One that the user's trainer function refuses fails at once."""
        launch = self.conductor.next_launch()
        while launch is not None:
            try:
                return launch, self._shape_of(launch)
            except ResourcesError as error:
                self.conductor.failed(launch.trial, Failure.INFEASIBLE, str(error))
            except Exception as error:
                ended = explain(error)
                self.conductor.failed(launch.trial, ended.failure or Failure.USER_ERROR, ended.message, ended.details)
            launch = self.conductor.next_launch()
        return None

    @property
    def finished(self) -> bool:
        """Whether nothing will be launched any more. A running trial may still fail and be launched again."""
        if self.error is not None:
            return True
        idle = self.conductor.exhausted and not self._running and self._waiting is None
        return idle or self.conductor.stopping

    def take_message(self, name: str, message: Message) -> bool:
        """Pass a trial's message to the conductor and return whether the trial goes on."""
        launch, _ = self._running[name]
        if isinstance(message, Reports):
            with self.conductor.together():
                goes_on = all(self.conductor.reported(launch.trial, r.metrics, r.checkpoint) for r in message.entries)
            if goes_on and self.conductor.stopping:  # asked for by whoever was told of these reports
                self.conductor.interrupt(launch.trial)
                return False
            return goes_on
        if isinstance(message, Heartbeat):
            if self._out_of_patience():
                self.conductor.interrupt(launch.trial)
            return self.conductor.heartbeat(launch.trial)
        if message.failure is None:
            self.conductor.completed(launch.trial)
        else:
            self.conductor.failed(launch.trial, message.failure, message.message, message.details)
        return False

    def news_of_until(self, name: str) -> float | None:
        """The step at which the scheduler next has something to say of a trial, if that has changed; infinity for never."""
        launch, _ = self._running[name]
        until = self.conductor.until.get(launch.trial, math.inf)
        if self._told.get(name) == until:
            return None
        self._told[name] = until
        return until

    def _out_of_patience(self) -> bool:
        if not self.conductor.stopping and self.error is None:
            return False
        if self._stopping_since is None:
            self._stopping_since = time.monotonic()
        return self.hurry or self.error is not None or time.monotonic() - self._stopping_since >= GRACE_S

    def died(self, name: str, details: str) -> None:
        """The trial's process ended, or could not be started."""
        if name in self._running:
            lines = [line.strip() for line in details.splitlines() if line.strip()]
            why = f": {lines[-1]}" if lines else ""
            self.conductor.failed(self._running[name][0].trial, Failure.LOST, f"the trial's process died{why}", details)

    def gone(self, name: str, *, dead: bool) -> None:
        """The trial is over for Tune."""
        self._told.pop(name, None)
        launch, slot = self._running.pop(name, (None, None))
        if launch is None or slot is None:
            return
        self.slots.release(slot, dead=dead)
        self.conductor.interrupt(launch.trial)  # does nothing unless it was stopped before it began

    @contextmanager
    def keeping_errors(self) -> Iterator[None]:
        """Keep the first error and end the sweep: whatever is raised in Tune's loop is lost in a traceback text."""
        try:
            yield
        except Exception as error:
            if self.error is None:
                self.error = error
                self.conductor.stop("aborted", f"{type(error).__name__}: {error}")


class TuneSearch(SearchAlgorithm):
    """Hands Tune the attempts that the conductor launches, one for each free slot."""

    def __init__(self, binding: Binding) -> None:
        self._binding, self._spec = binding, None

    def add_configurations(self, experiments: Any) -> None:
        self._spec = experiments[0].spec

    def next_trial(self) -> TuneTrial | None:
        with self._binding.keeping_errors():
            placed = self._binding.next_placed()
            if placed is not None:
                name, launch, slot = placed
                assert self._spec is not None
                return TuneTrial(
                    self._spec["run"],
                    config={"launch": launch},
                    trial_id=name,
                    storage=self._spec["storage"],
                    placement_group_factory=slot.request,
                    checkpoint_config=self._spec["checkpoint_config"],
                    trial_dirname_creator=lambda trial: trial.trial_id,
                )
        return None

    def is_finished(self) -> bool:
        return self._finished or self._binding.finished

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        with self._binding.keeping_errors():
            self._binding.gone(trial_id, dead=error)


class TuneScheduler(FIFOScheduler):
    """Passes each result to the conductor and its decision back."""

    def __init__(self, binding: Binding) -> None:
        super().__init__()
        self._binding = binding

    def on_trial_add(self, tune_controller: Any, trial: TuneTrial) -> None:
        self._binding.slots.keep_actors(tune_controller._tune_controller._actor_cache)

    def on_trial_result(self, tune_controller: Any, trial: TuneTrial, result: dict[str, Any]) -> str:
        goes_on = False
        with self._binding.keeping_errors():
            for note in result["notes"]:
                self._binding.conductor.say(note)
            goes_on = self._binding.take_message(trial.trial_id, result["message"])
        if goes_on:
            until = self._binding.news_of_until(trial.trial_id)
            if until is not None:
                trial.temporary_state.ray_actor.expect.remote(until)  # arrives before the answer
            return TrialScheduler.CONTINUE
        trial.temporary_state.ray_actor.release.remote()  # unwinds the train loop now, not when the next trial comes
        return TrialScheduler.STOP

    def on_trial_error(self, tune_controller: Any, trial: TuneTrial) -> None:
        with self._binding.keeping_errors():
            file = trial.error_file
            self._binding.died(trial.trial_id, Path(file).read_text() if file and Path(file).is_file() else "")

    def choose_trial_to_run(self, tune_controller: Any) -> TuneTrial | None:
        """Called in each of Tune's rounds. Tune starts pending trials by itself; a stopping sweep takes them back instead."""
        self._binding.each_round()
        if self._binding.conductor.stopping:
            for trial in list(tune_controller.get_live_trials()):
                if trial.status == TuneTrial.PENDING:
                    tune_controller.stop_trial(trial)
        return None


class Quiet(TrialProgressCallback):
    """Stands where Tune would put a callback that prints a line for each trial that ends."""

    def log_result(self, trial: Any, result: Any, error: bool = False) -> None:
        pass

    def on_trial_complete(self, *args: Any, **kwargs: Any) -> None:
        pass


def run(binding: Binding, blueprint: Blueprint) -> None:
    """Run the sweep on the connected cluster until the conductor has nothing left to do.

    Raises:
        Exception: The first error of the conductor, its searcher or its scheduler, as it was raised.
    """
    folder = tempfile.mkdtemp(prefix="tunelab-tune-")
    logging.getLogger("ray.tune.tune").setLevel(logging.CRITICAL)  # it counts attempts that failed and were retried as errors
    with _settings({**TUNE_SETTINGS, **RAY_SETTINGS, "TUNE_MAX_PENDING_TRIALS_PG": "1000"}):
        try:
            ray.tune.run(
                ray.tune.with_parameters(TrialActor, blueprint=blueprint),
                name="sweep",
                storage_path=folder,
                search_alg=TuneSearch(binding),
                scheduler=TuneScheduler(binding),
                callbacks=[Quiet()],
                checkpoint_config=CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
                reuse_actors=True,
                raise_on_failed_trial=False,
                verbose=0,
            )
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    if binding.error is not None:
        raise binding.error


@contextmanager
def _settings(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables that Tune reads while it runs."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
