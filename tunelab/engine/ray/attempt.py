"""One attempt inside the trial actor: a thread that trains, and the conversation with the driver.

The thread says a message and waits for the answer; the trial actor's `step` passes messages on and answers back.
"""

from __future__ import annotations

import asyncio
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.fs
from ray.train import Checkpoint
from ray.train.v2._internal.execution.failure_handling import create_failure_policy
from ray.train.v2._internal.execution.train_fn_utils import LocalTrainFnUtils, set_train_fn_utils
from ray.train.v2._internal.util import ObjectRefWrapper

from tunelab import frameworks
from tunelab.engine.conductor import Launch
from tunelab.engine.context import CurrentTrial, set_current_trial
from tunelab.engine.memory import kernel_kills, killed_since
from tunelab.engine.ray import trainers
from tunelab.engine.ray.crew import Slot
from tunelab.engine.ray.explain import explain
from tunelab.engine.ray.group import Conversation, PlacedScalingPolicy, WarmController
from tunelab.engine.ray.messages import Answer, Blueprint, Ended, Heartbeat, Message, Report, Reports, TrialStopped
from tunelab.engine.ray.pace import Pace
from tunelab.engine.ray.worker import TrainLoop, begin_trial, plain_metrics
from tunelab.errors import BadInputError

LAST_WORDS_S = 3.0  # how long a loop that is stopped at a report may take to clean up before it is interrupted
START_S = 300.0  # least that a trial may take until its train loops run
LINGER_S = 0.02  # how long reports that do not ask wait for others, to travel together


class Attempt:
    """Runs `work` in a thread and passes its messages on.

    Args:
        work: Trains; gets this attempt and returns how it ended.
        storage: The sweep's storage, for relative checkpoint paths.
        pace: Says how often the train loop waits for an answer.
    """

    def __init__(self, work: Callable[[Attempt], Ended], *, storage: str, pace: Pace) -> None:
        self._storage, self.pace = filesystem_of(storage)[1], pace
        self._outbox: queue.Queue[Report | Ended] = queue.Queue()
        self._ended: Ended | None = None  # taken out of the outbox together with reports
        self._answers: queue.Queue[Answer] = queue.Queue()
        self._asked = False
        self._heard_at = time.monotonic()  # when it was last heard of, or answered
        self._begun = False
        self.stopped = False
        self.preemption: Any = None  # of a plain function, once it is known that its node is about to be taken away
        self.thread = threading.Thread(target=self._run, args=(work,), name="tunelab-attempt", daemon=True)
        self.thread.start()

    def _run(self, work: Callable[[Attempt], Ended]) -> None:
        try:
            ended = work(self)
        except BaseException as error:  # nothing may be lost between this thread and the driver
            ended = explain(error)
        self._outbox.put(ended)

    def converse(self, report: Report) -> Answer:
        """Pass a report on and wait for the answer. Called by the thread that trains."""
        if self.stopped:
            return Answer(False)
        self.pace.saw(report.metrics)
        self._outbox.put(report)
        return self._answers.get()

    def tell(self, report: Report) -> None:
        """Pass a report on that does not ask."""
        self.pace.saw(report.metrics)
        self._outbox.put(report)

    def next(self, timeout_s: float) -> Message:
        """The next message, or a heartbeat after `timeout_s`. Asking for it answers the one before: go on."""
        message = self._next(timeout_s)
        if not isinstance(message, Heartbeat):
            self._heard_at = time.monotonic()
        return message

    def begun(self) -> None:
        """The train loops are running."""
        self._begun, self._heard_at = True, time.monotonic()

    def hangs(self, timeout_s: float) -> bool:
        """Whether nothing has been heard of it for longer than `timeout_s`, not counting the time that an answer took.

        Starting processes may take longer than a report ever does, so a time of its own goes for that.
        """
        limit_s = timeout_s if self._begun else max(timeout_s, START_S)
        return time.monotonic() - self._heard_at > limit_s

    def _next(self, timeout_s: float) -> Message:
        if self._asked:
            self._asked = False
            self._heard_at = time.monotonic()
            self._answers.put(Answer(True, self.pace.batch()))
        if self._ended is not None:
            return self._ended
        entries: list[Report] = []
        wait_s = timeout_s
        while not (entries and entries[-1].asks):
            try:
                message = self._outbox.get(timeout=wait_s)
            except queue.Empty:
                break
            if isinstance(message, Ended):
                self._ended = message
                break
            entries.append(message)
            wait_s = LINGER_S
        if not entries:
            return self._ended or Heartbeat()
        self._asked = entries[-1].asks
        return Reports(tuple(entries))

    def stop(self, interrupt: Callable[[threading.Thread], object]) -> bool:
        """End the attempt: at the report it waits at, or soon will, else through `interrupt`. Returns whether it has ended."""
        self.stopped = True
        waits_at_report, self._asked = self._asked, False
        self._answers.put(Answer(False))
        if waits_at_report or self.pace.soon:
            self.thread.join(LAST_WORDS_S)
        if self.thread.is_alive():
            interrupt(self.thread)
            self.thread.join(LAST_WORDS_S)
        return not self.thread.is_alive()

    def relative(self, checkpoint: Checkpoint | None) -> str | None:
        """The checkpoint's folder relative to the sweep's storage."""
        return None if checkpoint is None else os.path.relpath(checkpoint.path, self._storage)


def filesystem_of(storage: str) -> tuple[pyarrow.fs.FileSystem, str]:
    """The file system of a path or URI, and the path within it."""
    if "://" in storage:
        return pyarrow.fs.FileSystem.from_uri(storage)
    return pyarrow.fs.LocalFileSystem(), storage


def open_checkpoint(storage: str, relative: str | None) -> Checkpoint | None:
    """The checkpoint that a trial goes on from."""
    if relative is None:
        return None
    filesystem, path = filesystem_of(storage)
    return Checkpoint(f"{path}/{relative}", filesystem=filesystem)


def run_group(attempt: Attempt, launch: Launch, trainer: Any, blueprint: Blueprint, slot: Slot) -> Ended:
    """Train on the slot's worker group."""
    trial_id = f"{launch.trial:04d}"
    trainer = trainers.for_trial(trainer, config=launch.config, seed=launch.seed, name=trial_id, storage=blueprint.storage)
    identity = CurrentTrial(f"{blueprint.sweep}/{trial_id}", launch.attempt, launch.seed, blueprint.root, launch.config)
    work_dir, framework = f"{blueprint.work_dir}/{trial_id}", frameworks.recognise(trainer)
    trainer = frameworks.load(framework)().prepare(trainer)
    loop = TrainLoop(trainer._get_train_func(), identity, work_dir, bool(blueprint.reduce), framework)
    controller = WarmController(
        slot=slot,
        conversation=Conversation(attempt, blueprint.reduce),
        checkpoint=open_checkpoint(blueprint.storage, launch.checkpoint),
        train_fn_ref=ObjectRefWrapper(loop),
        train_run_context=trainer.train_run_context,
        scaling_policy=PlacedScalingPolicy(trainer.scaling_config),
        failure_policy=create_failure_policy(trainer.run_config.failure_config),
        callbacks=_callbacks(trainer),
    )
    kills_before = kernel_kills()
    asyncio.run(controller.run())
    error = controller.get_result().error
    if error is None:
        return Ended()
    return explain(error, slot.tracebacks, slot.ranks_here() if killed_since(kills_before) else ())


def _callbacks(trainer: Any) -> list[Any]:
    """Ray Train's own, less the cleaner of its placement group, which is the trial's here, and a data manager without data."""
    unwanted = {"PlacementGroupCleanerCallback"} | ({"DatasetsCallback"} if not trainer.datasets else set())
    return [callback for callback in trainer._create_default_callbacks() if type(callback).__name__ not in unwanted]


def run_function(attempt: Attempt, launch: Launch, function: Callable[..., Any], blueprint: Blueprint) -> Ended:
    """Run a plain function that reports, in this process."""
    trial_id = f"{launch.trial:04d}"
    identity = CurrentTrial(f"{blueprint.sweep}/{trial_id}", launch.attempt, launch.seed, blueprint.root, launch.config)
    set_train_fn_utils(
        FunctionReport(attempt, trial_id, blueprint.storage, open_checkpoint(blueprint.storage, launch.checkpoint))
    )
    begin_trial(identity, Path(blueprint.work_dir, trial_id, "rank0"))
    attempt.begun()
    try:
        made = function(trainers.loop_config(function, launch.config, launch.seed))
        if trainers.is_trainer(made):
            raise BadInputError(
                f"{function.__name__} returned a {type(made).__name__} and was taken for a train loop. Annotate it: "
                f"def {function.__name__}(config) -> {type(made).__name__}"
            )
    except TrialStopped:
        pass
    finally:
        set_current_trial(None)
        set_train_fn_utils(None)
    return Ended()


class FunctionReport(LocalTrainFnUtils):
    """`ray.train.report` for a plain function: copies the checkpoint into storage, and waits for the decision when due."""

    def __init__(self, attempt: Attempt, trial_id: str, storage: str, checkpoint: Checkpoint | None) -> None:
        super().__init__(experiment_name=trial_id)
        self._attempt, self._trial_id, self._storage, self._count = attempt, trial_id, storage, 0
        self._last_checkpoint = checkpoint
        self._left = 1  # reports up to and including the next that asks

    def report(self, metrics: dict[str, Any], checkpoint: Checkpoint | None = None, *args: Any, **kwargs: Any) -> None:
        metrics = plain_metrics(metrics)
        stored = self._persist(checkpoint) if checkpoint is not None else None
        self._last_checkpoint = stored or self._last_checkpoint
        self._left -= 1
        report = Report(metrics, self._attempt.relative(stored), asks=self._left <= 0)
        if not report.asks:
            self._attempt.tell(report)
            return
        answer = self._attempt.converse(report)
        self._left = answer.batch
        if not answer.goes_on:
            raise TrialStopped()

    def get_preemption_info(self) -> Any:
        return self._attempt.preemption

    def _persist(self, checkpoint: Checkpoint) -> Checkpoint:
        name = f"checkpoint_{self._attempt_name()}"
        target = open_checkpoint(self._storage, f"{self._trial_id}/{name}")
        assert target is not None
        if isinstance(target.filesystem, pyarrow.fs.LocalFileSystem) and isinstance(
            checkpoint.filesystem, pyarrow.fs.LocalFileSystem
        ):
            partial = f"{target.path}.partial"
            shutil.copytree(checkpoint.path, partial)
            Path(partial).rename(target.path)
        else:
            target.filesystem.create_dir(target.path)
            pyarrow.fs.copy_files(checkpoint.path, target.path, checkpoint.filesystem, target.filesystem)
        return target

    def _attempt_name(self) -> str:
        self._count += 1
        return f"{datetime.now():%Y-%m-%d_%H-%M-%S.%f}_{self._count:06d}"
