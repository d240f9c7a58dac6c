"""One attempt inside the trial actor: a thread that trains, and the conversation with the driver.

The thread says a message and waits for the answer; the trial actor's `step` passes messages on and answers back.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import queue
import shutil
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.fs
from ray.train import Checkpoint
from ray.train.v2._internal.execution.failure_handling import create_failure_policy
from ray.train.v2._internal.execution.scaling_policy import create_scaling_policy
from ray.train.v2._internal.execution.train_fn_utils import LocalTrainFnUtils, set_train_fn_utils
from ray.train.v2._internal.util import ObjectRefWrapper

from tunelab.engine.conductor import Launch
from tunelab.engine.context import CurrentTrial, set_current_trial
from tunelab.engine.ray import trainers
from tunelab.engine.ray.explain import explain
from tunelab.engine.ray.group import Conversation, Slot, WarmController
from tunelab.engine.ray.messages import Blueprint, Ended, Heartbeat, Message, Report, TrialStopped
from tunelab.engine.ray.worker import TrainLoop, begin_trial, plain_metrics
from tunelab.errors import BadInputError

UNWIND_S = 5.0  # how long a stopped train loop may take to clean up before its process is ended


class Attempt:
    """Runs `work` in a thread and passes its messages on.

    Args:
        work: Trains; gets this attempt and returns how it ended.
        storage: The sweep's storage, for relative checkpoint paths.
    """

    def __init__(self, work: Callable[[Attempt], Ended], *, storage: str) -> None:
        self._storage = filesystem_of(storage)[1]
        self._outbox: queue.Queue[Message] = queue.Queue()
        self._answers: queue.Queue[bool] = queue.Queue()
        self._asked = False
        self.stopped = False
        self._thread = threading.Thread(target=self._run, args=(work,), name="tunelab-attempt", daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[Attempt], Ended]) -> None:
        try:
            ended = work(self)
        except BaseException as error:  # nothing may be lost between this thread and the driver
            ended = explain(error)
        self._outbox.put(ended)

    def converse(self, message: Report) -> bool:
        """Say something and wait for whether to go on. Called by the thread that trains."""
        if self.stopped:
            return False
        self._outbox.put(message)
        return self._answers.get()

    def next(self, timeout_s: float) -> Message:
        """The next message, or a heartbeat after `timeout_s`. Asking for it answers the one before: go on."""
        if self._asked:
            self._asked = False
            self._answers.put(True)
        try:
            message = self._outbox.get(timeout=timeout_s)
        except queue.Empty:
            return Heartbeat()
        self._asked = isinstance(message, Report)
        return message

    def stop(self, interrupt: Callable[[threading.Thread], object]) -> bool:
        """End the attempt: at the report it waits at, else through `interrupt`. Returns whether it has ended."""
        self.stopped = True
        waits_at_report, self._asked = self._asked, False
        self._answers.put(False)
        if waits_at_report:
            self._thread.join(UNWIND_S)
        if self._thread.is_alive():
            interrupt(self._thread)
            self._thread.join(UNWIND_S)
        return not self._thread.is_alive()

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
    loop = TrainLoop(trainer._get_train_func(), identity, f"{blueprint.work_dir}/{trial_id}")
    controller = WarmController(
        slot=slot,
        conversation=Conversation(attempt),
        checkpoint=open_checkpoint(blueprint.storage, launch.checkpoint),
        train_fn_ref=ObjectRefWrapper(loop),
        train_run_context=trainer.train_run_context,
        scaling_policy=create_scaling_policy(trainer.scaling_config),
        failure_policy=create_failure_policy(trainer.run_config.failure_config),
        callbacks=_callbacks(trainer),
    )
    asyncio.run(controller.run())
    error = controller.get_result().error
    return explain(error, slot.tracebacks) if error is not None else Ended()


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


def raise_stopped(thread: threading.Thread) -> None:
    """Interrupts a plain function at its next bytecode."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(TrialStopped))


class FunctionReport(LocalTrainFnUtils):
    """`ray.train.report` for a plain function: copies the checkpoint into storage, then waits for the decision."""

    def __init__(self, attempt: Attempt, trial_id: str, storage: str, checkpoint: Checkpoint | None) -> None:
        super().__init__(experiment_name=trial_id)
        self._attempt, self._trial_id, self._storage, self._count = attempt, trial_id, storage, 0
        self._last_checkpoint = checkpoint

    def report(self, metrics: dict[str, Any], checkpoint: Checkpoint | None = None, *args: Any, **kwargs: Any) -> None:
        metrics = plain_metrics(metrics)
        stored = self._persist(checkpoint) if checkpoint is not None else None
        self._last_checkpoint = stored or self._last_checkpoint
        if not self._attempt.converse(Report(metrics, self._attempt.relative(stored))):
            raise TrialStopped()

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
