"""Tune's seams, bound to the conductor: a search algorithm that hands out attempts, a scheduler that passes on decisions.

A Tune trial is one attempt. Neither adapter ever raises, because Tune would mark the trial as failed and lose the reason: the
error is kept, the sweep stopped, and the error raised when Tune has returned.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray.tune
from ray.tune import CheckpointConfig
from ray.tune.experiment import Trial as TuneTrial
from ray.tune.progress_reporter import TrialProgressCallback
from ray.tune.registry import get_trainable_cls
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import SearchAlgorithm

from tunelab.core.failures import Failure
from tunelab.engine.conductor import Conductor, Launch
from tunelab.engine.memory import kernel_kills, killed_since
from tunelab.engine.ray.actor import RAY_SETTINGS, TrialActor
from tunelab.engine.ray.explain import explain, explain_death
from tunelab.engine.ray.lean import LeanTrial, use_started_processes, without_counting_callbacks
from tunelab.engine.ray.messages import Blueprint, Heartbeat, Message, Reports
from tunelab.engine.ray.nodes import Nodes
from tunelab.engine.ray.slots import Slot, Slots
from tunelab.engine.ray.trainers import Shape
from tunelab.engine.stopping import GRACE_S
from tunelab.errors import ResourcesError
from tunelab.journal.locks import scratch

TUNE_SETTINGS = {
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000000",
    "TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S": "1000000000",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
}


class Binding:
    """What the two adapters share.

    Args:
        conductor: Decides everything.
        slots: Where attempts run.
        nodes: The cluster's.
        shape_of: What a launch will occupy.
        static_shape: What every launch occupies, or None when that depends on the configuration.
        each_round: Called in each round of Tune's loop.
    """

    def __init__(
        self,
        conductor: Conductor,
        slots: Slots,
        nodes: Nodes,
        shape_of: Callable[[Launch], Shape],
        static_shape: Shape | None,
        each_round: Callable[[], None] = lambda: None,
    ) -> None:
        self.conductor, self.slots, self.nodes = conductor, slots, nodes
        self.error: BaseException | None = None
        self.hurry = False  # a second Ctrl-C: do not wait for reports
        self.each_round = each_round
        self._shape_of, self._static_shape = shape_of, static_shape
        self._running: dict[str, tuple[Launch, Slot]] = {}  # by Tune's trial id
        self._told: dict[str, float] = {}
        self._waiting: tuple[Launch, Shape] | None = None  # journalled as started, has no slot yet
        self._stopping_since: float | None = None
        self._kills_before: dict[str, int | None] = {}  # processes that the kernel had killed when the trial began
        self._leaving: dict[str, dict[str, int]] = {}  # trial -> nodes of it that are about to be taken away: when
        self._untold: list[str] = []  # of them, the trials that do not know yet
        self._cut_off: set[str] = set()  # trials of which a node is gone

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
        if launch.alone:  # idle workers hold memory, too
            self.slots.close_idle()
        name = f"{launch.trial:04d}_{launch.attempt}"
        self._running[name] = (launch, slot)
        self._kills_before[name] = kernel_kills()
        return name, launch, slot

    def _next_shaped(self) -> tuple[Launch, Shape] | None:
        """The next attempt and what it will occupy. One that the user's trainer function refuses fails at once."""
        launch = self._next_launch()
        while launch is not None:
            try:
                return launch, self._shape_of(launch)
            except ResourcesError as error:
                self.conductor.failed(launch.trial, Failure.INFEASIBLE, str(error))
            except Exception as error:
                ended = explain(error)
                self.conductor.failed(launch.trial, ended.failure or Failure.USER_ERROR, ended.message, ended.details)
            launch = self._next_launch()
        return None

    def _next_launch(self) -> Launch | None:
        with self.conductor.together():
            return self.conductor.next_launch()

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
        if message.failure in (Failure.LOST, Failure.PREEMPTED):
            self.look_at_nodes(now=True)
        if message.failure is None:
            with self.conductor.together():
                self.conductor.completed(launch.trial)
        else:
            with self.conductor.together():
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
            self.look_at_nodes(now=True)
            here = len(self.nodes.alive) == 1  # else it may have been on another machine, of whose kernel nothing is known
            ended = explain_death(details, killed=here and killed_since(self._kills_before[name]))
            self.conductor.failed(self._running[name][0].trial, ended.failure or Failure.LOST, ended.message, details)

    def gone(self, name: str, *, dead: bool) -> None:
        """The trial is over for Tune."""
        for known in (self._told, self._kills_before, self._leaving):
            known.pop(name, None)
        self._cut_off.discard(name)
        launch, slot = self._running.pop(name, (None, None))
        if launch is None or slot is None:
            return
        self.slots.release(slot, dead=dead)
        self.conductor.interrupt(launch.trial)  # does nothing unless it was stopped before it began

    def look_at_nodes(self, *, now: bool = False) -> None:
        """Follow the cluster's nodes: slots on those that are gone, or about to go, take no trial any more."""
        had, announced = len(self.nodes.alive), self.nodes.draining
        if not self.nodes.look(now=now):
            return
        alive, leaving = self.nodes.alive.keys(), self.nodes.draining
        if len(alive) != had:
            self.conductor.say(f"The cluster has {len(alive)} node{'s'[: len(alive) != 1]} now, it had {had}")
        if new := len(leaving.keys() - announced.keys()):
            self.conductor.say(f"{new} of the cluster's nodes {'are' if new > 1 else 'is'} about to be taken away")
        if self._static_shape is not None and not self.slots.may_ever_have_room(self._static_shape):
            self.conductor.say("What is left of the cluster has no room for a trial: the sweep waits until it has")
        nodes_of = self.nodes.of_groups()
        self.slots.mark_broken(nodes_of, alive - leaving.keys())
        for name, (launch, slot) in self._running.items():
            mine = {node: leaving[node] for node in nodes_of.get(slot.name, ()) if node in leaving}
            if mine and mine != self._leaving.get(name):
                self._leaving[name] = mine
                self._untold.append(name)
                self.conductor.preempted(launch.trial)
            if not nodes_of.get(slot.name, set()).issubset(alive) and name not in self._cut_off:
                self._cut_off.add(name)
                self._untold.append(name)

    def warnings(self) -> list[tuple[str, dict[str, int] | None]]:
        """Trials that are to be told something of their nodes: those that are about to be taken away, and when, in ms since the
        epoch or 0; or None when one is gone already.
        """
        self._untold = [name for name in self._untold if name in self._running]
        return [(name, None if name in self._cut_off else self._leaving[name]) for name in self._untold]

    def told(self, name: str) -> None:
        """A trial has been told."""
        self._untold.remove(name)

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
        self._binding = binding
        self._spec: Any = None
        self._trainable: Any = None

    def add_configurations(self, experiments: Any) -> None:
        self._spec = experiments[0].spec
        self._trainable = get_trainable_cls(self._spec["run"])

    def next_trial(self) -> TuneTrial | None:
        with self._binding.keeping_errors():
            self._binding.each_round()  # while nothing runs, Tune asks for trials and does nothing else
            self._binding.look_at_nodes()
            placed = self._binding.next_placed()
            if placed is not None:
                name, launch, slot = placed
                return LeanTrial(
                    self._spec["run"],
                    self._trainable,
                    config={"launch": launch, "shape": slot.shape},
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
        controller = tune_controller._tune_controller
        self._binding.slots.keep_actors(controller._actor_cache)
        use_started_processes(controller._class_cache, trial.get_trainable_cls())

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
        # Unwind the train loop now, not when the next trial comes.
        trial.temporary_state.ray_actor.release.remote(self._binding.hurry)
        return TrialScheduler.STOP

    def on_trial_error(self, tune_controller: Any, trial: TuneTrial) -> None:
        with self._binding.keeping_errors():
            file = trial.error_file
            self._binding.died(trial.trial_id, Path(file).read_text() if file and Path(file).is_file() else "")

    def choose_trial_to_run(self, tune_controller: Any) -> TuneTrial | None:
        """Called in each of Tune's rounds. Tune starts pending trials by itself; a stopping sweep takes them back instead."""
        self._binding.each_round()
        with self._binding.keeping_errors():
            self._binding.look_at_nodes()
            for name, leaving in self._binding.warnings():
                trial = next((trial for trial in tune_controller.get_live_trials() if trial.trial_id == name), None)
                actor = None if trial is None else trial.temporary_state.ray_actor
                if actor is None:
                    continue  # it is starting
                self._binding.told(name)
                if leaving is None:
                    actor.cut_off.remote()
                else:
                    actor.preempted.remote(leaving)
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
    logging.getLogger("ray.tune.tune").setLevel(logging.CRITICAL)  # it counts attempts that failed and were retried as errors
    settings = {**TUNE_SETTINGS, **RAY_SETTINGS, "TUNE_MAX_PENDING_TRIALS_PG": "1000"}
    with scratch("tunelab-tune-") as folder, _settings(settings), without_counting_callbacks():
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
