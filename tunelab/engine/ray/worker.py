"""A worker process: it outlives its trials, and its reports wait for the decision.

The controller polls; a poll carries the answer to the report before it and returns as soon as there is something to tell. So a
report costs one round trip, and nothing polls in vain.
"""

from __future__ import annotations

import ctypes
import numbers
import os
import pickle
import queue
import random
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ray.train import Checkpoint, CheckpointUploadMode
from ray.train.v2._internal.execution.train_fn_utils import DistributedTrainFnUtils, set_train_fn_utils
from ray.train.v2._internal.execution.worker_group.poll import WorkerStatus
from ray.train.v2._internal.execution.worker_group.worker import RayTrainWorker, get_train_context

from tunelab import frameworks
from tunelab.engine.context import CurrentTrial, current_trial, set_current_trial
from tunelab.engine.hygiene import CleanState, Cleanup
from tunelab.engine.ray import rendezvous
from tunelab.engine.ray.actor import RAY_SETTINGS
from tunelab.engine.ray.messages import Answer, TrialStopped
from tunelab.engine.reports import LARGEST
from tunelab.errors import WorldSizeError

POLL_S = 1.0  # longest that a poll waits for something to tell
TOGETHER_S = 0.02  # how long reports that do not wait are gathered


class WorkerReport(DistributedTrainFnUtils):
    """`ray.train.report` that returns with the decision, or unwinds a stopped train loop.

    With `CheckpointUploadMode.ASYNC` it returns while the checkpoint is being uploaded, and the next report (or the loop's
    end) waits for the decision on this one: there is one upload at a time, and a stop takes effect one report later.

    A loop that reports fast is told to make several reports before it waits again (`Pace`). All ranks are told the same number
    and count, so they wait at the same report. What is reported in between is kept by rank 0 and fetched by the polls.
    """

    def report(
        self,
        metrics: dict[str, Any],
        checkpoint: Checkpoint | None = None,
        checkpoint_dir_name: str | None = None,
        checkpoint_upload_mode: CheckpointUploadMode = CheckpointUploadMode.SYNC,
        **options: Any,
    ) -> None:
        context = get_train_context()
        inbox, metrics = context.tunelab_inbox, plain_metrics(metrics)
        inbox.make_sure_all_joined(context.get_world_size())
        reports = context.execution_context.result_queue
        if inbox.owed:
            self._heed(inbox, inbox.ask(reports))
        inbox.left -= 1
        if inbox.left > 0 and checkpoint_upload_mode is CheckpointUploadMode.SYNC:
            self._report_early(context, metrics, checkpoint, checkpoint_dir_name, options)
            return
        super().report(metrics, checkpoint, checkpoint_dir_name, checkpoint_upload_mode, **options)
        inbox.owed = True
        if checkpoint_upload_mode is not CheckpointUploadMode.ASYNC:
            self._heed(inbox, inbox.ask(reports))

    @staticmethod
    def _heed(inbox: Inbox, answer: Answer) -> None:
        if not answer.goes_on:
            inbox.owed = True
            inbox.answers.put(answer)  # a loop that swallows the exception and reports again is stopped again
            raise TrialStopped()

    @staticmethod
    def _report_early(
        context: Any, metrics: dict[str, Any], checkpoint: Checkpoint | None, name: str | None, options: dict[str, Any]
    ) -> None:
        context.report_call_index += 1
        context.tunelab_inbox.unasked += 1
        if checkpoint is not None:
            # Ray Train agrees on a name by a round trip. Ranks count alike, so the count is one.
            name = name or f"checkpoint_{current_trial().attempt:02d}_{context.report_call_index:06d}"  # type: ignore[union-attr]
            stored = context._upload_checkpoint(
                name,
                metrics,
                checkpoint,
                options.get("delete_local_checkpoint_after_upload") or False,
                options.get("checkpoint_upload_fn"),
            )
            checkpoint = context.checkpoint = stored.checkpoint
        with context.report_order_condition:
            context.current_report_index += 1
        if context.get_world_rank() == 0 or context.tunelab_inbox.all_ranks:
            context.tunelab_inbox.keep(metrics, checkpoint, context.execution_context.result_queue)


class Inbox:
    """Between the train loop's thread and the polls.

    Attributes:
        answers: To reports, on their way to the loop.
        left: Reports up to and including the next that waits for an answer.
        unasked: Reports since the last that waited.
        early: What was reported without waiting, in order. Only rank 0's counts unless `all_ranks`.
        all_ranks: Whether metrics are merged over the ranks.
        framework: Which framework the trainer runs; asked at the first report how many processes it trains with.
        owed: Whether there is a report whose answer the loop has not taken yet.
        waits: Whether the loop waits for an answer.
        ended: Whether the loop has returned.
    """

    def __init__(self) -> None:
        self.answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self.left, self.unasked = 1, 0
        self.early: deque[tuple[dict[str, Any], Checkpoint | None]] = deque()
        self.all_ranks = self.owed = self.waits = self.ended = False
        self.framework: str | None = None

    def make_sure_all_joined(self, workers: int) -> None:
        """At the first report: the framework trains with as many processes as there are workers.

        Raises:
            WorldSizeError: It does not.
        """
        framework, self.framework = self.framework, None
        joined = frameworks.joined(framework) if framework is not None else None
        if framework is not None and joined is not None and joined != workers:
            raise WorldSizeError(framework, joined, workers)

    def ask(self, reports: queue.Queue[Any]) -> Answer:
        """Wait for the answer to the latest report."""
        with reports.not_empty:
            self.waits = True
            reports.not_empty.notify_all()
        answer = self.answers.get()
        self.owed = self.waits = False
        self.left, self.unasked = answer.batch, 0
        return answer

    def keep(self, metrics: dict[str, Any], checkpoint: Checkpoint | None, reports: queue.Queue[Any]) -> None:
        """Keep a report until a poll fetches it."""
        with reports.not_empty:
            self.early.append((metrics, checkpoint))
            if len(self.early) == 1:
                reports.not_empty.notify_all()

    def fetch(self, *, all_ranks_are_here: bool) -> list[tuple[dict[str, Any], Checkpoint | None]]:
        """What may be passed on: a checkpoint, and what comes after it, only once all ranks have written their part of it."""
        found = []
        while self.early and (all_ranks_are_here or self.early[0][1] is None):
            found.append(self.early.popleft())
        return found


@dataclass
class News(WorkerStatus):
    """What a poll brings back: Ray Train's status, and what was reported without waiting."""

    early: tuple[tuple[dict[str, Any], Any], ...] = ()


class WarmWorker(RayTrainWorker):
    """Ray Train's worker, for trial after trial.

    Args:
        root: The project's root, for `sys.path`.
        preload: The pickled trainer, unpickled at once for the sake of its imports, or None.
    """

    def __init__(self, root: str, preload: bytes | None) -> None:
        os.environ.update(RAY_SETTINGS)
        super().__init__()
        self._clean: CleanState | None = None
        if root not in sys.path:
            sys.path.insert(0, root)
        if preload is not None:
            with suppress(Exception):  # the trial will say what is wrong
                pickle.loads(preload)

    def init_train_context(self, *args: Any, **kwargs: Any) -> None:
        super().init_train_context(*args, **kwargs)
        context = get_train_context()
        # Ray keeps these two on the class: shared by all contexts of a process, and the pool is shut down after one run.
        context.checkpoint_upload_threadpool = ThreadPoolExecutor(1)
        context.report_order_condition = threading.Condition()
        context.tunelab_inbox = Inbox()
        set_train_fn_utils(WorkerReport())

    def execute(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run something in this process, as Ray Train's backends ask."""
        if getattr(fn, "__name__", "") == "_setup_torch_process_group" and kwargs.get("init_method") == "env://":
            kwargs["init_method"] = rendezvous.address()
        return super().execute(fn, *args, **kwargs)

    def run_train_fn(self, train_fn_ref: Any) -> None:
        """Start the train loop; before the first one, note what the process looks like without any trial."""
        train_fn = train_fn_ref.get()  # imports what the loop needs
        if self._clean is None:
            frameworks.remember_clean()
            self._clean = CleanState.take()
        super().run_train_fn(_Loaded(train_fn))

    def shutdown(self) -> Cleanup:
        """After a trial that ended well: put the process back as it was, and say whether it is fit for another."""
        super().shutdown()
        assert self._clean is not None, "a trial has run"
        reasons = frameworks.reset_loaded()
        cleanup = self._clean.restore()
        return replace(cleanup, fit=cleanup.fit and not reasons, reason="; ".join([*reasons, cleanup.reason]).strip("; "))

    def interrupt(self, grace_s: float) -> None:
        """Unwind the train loop, at its next bytecode or, if it waits there, at its report. Waits for that for `grace_s`."""
        context = get_train_context()
        thread = context.execution_context.training_thread_runner._thread
        if thread is None:
            return
        if context.tunelab_inbox.waits:
            context.tunelab_inbox.answers.put(Answer(False))
        else:
            raise_stopped(thread)
        thread.join(grace_s)

    def stacks(self) -> str:
        """Where each thread of this process is, the train loop's first."""
        runner = get_train_context().execution_context.training_thread_runner
        return stacks_of(runner._thread)

    def poll_status(self, answer: Answer | None = None) -> WorkerStatus:
        """Deliver the answer to the last report, if there is one, then wait for news for at most `POLL_S`."""
        context = get_train_context()
        inbox, reports = context.tunelab_inbox, context.execution_context.result_queue
        runner = context.execution_context.training_thread_runner
        if answer is not None:
            inbox.answers.put(answer)
        until = time.monotonic() + POLL_S
        with reports.not_empty:  # the queue's own condition: notified by each report and, by `TrainLoop`, at the end
            # A rank that waits for its answer has no news, and must not hold up the ranks that are still to report.
            reports.not_empty.wait_for(lambda: reports._qsize() or inbox.early or inbox.waits or inbox.ended, POLL_S)
            if inbox.early and not reports._qsize():  # a fast loop: let some more come together
                reports.not_empty.wait_for(lambda: reports._qsize() or inbox.ended, TOGETHER_S)
        while inbox.ended and reports.empty() and runner.is_running() and time.monotonic() < until:
            time.sleep(0.001)  # the loop has returned and its thread is about to end, or still uploads
        # A report that waits has passed the barrier of all ranks, and so has the end of the loop.
        arrived = inbox.ended or not reports.empty() or context.get_world_size() == 1
        early = inbox.fetch(all_ranks_are_here=arrived)
        return News(**vars(super().poll_status()), early=tuple(early))


@dataclass(frozen=True)
class _Loaded:
    """Stands where Ray Train passes a reference to the train function."""

    train_fn: Callable[[], Any]

    def get(self) -> Callable[[], Any]:
        return self.train_fn


@dataclass(frozen=True)
class TrainLoop:
    """The user's train loop for one trial, as a worker runs it: seeded, in its own folder, and stoppable.

    Args:
        loop: The loop with its configuration bound.
        trial: What `tunelab.current_trial()` answers.
        work_dir: Folder under which this rank gets its working directory.
        all_ranks: Whether metrics are merged over the ranks.
        framework: Which framework the trainer runs.
    """

    loop: Callable[[], Any]
    trial: CurrentTrial
    work_dir: str
    all_ranks: bool = False
    framework: str = "function"

    def __call__(self) -> Any:
        context = get_train_context()
        reports = context.execution_context.result_queue
        context.tunelab_inbox.all_ranks, context.tunelab_inbox.framework = self.all_ranks, self.framework
        begin_trial(self.trial, Path(self.work_dir, f"rank{context.get_world_rank()}"))
        try:
            result = self.loop()
            if context.tunelab_inbox.owed:
                context.tunelab_inbox.ask(reports)
            if context.tunelab_inbox.unasked and context.get_world_size() > 1:
                WorkerReport().barrier()  # the last reports count once every rank has made them
            return result
        except TrialStopped:
            return None
        except Exception as error:
            travels = _that_travels(error)
            if travels is error:
                raise
            raise travels.with_traceback(error.__traceback__) from None
        finally:
            set_current_trial(None)
            context.tunelab_inbox.ended = True
            with reports.not_empty:
                reports.not_empty.notify_all()


def _that_travels(error: Exception) -> Exception:
    """The error itself, or, where it cannot be pickled, one that says the same."""
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


def raise_stopped(thread: threading.Thread) -> None:
    """Interrupt a train loop at its next bytecode."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(TrialStopped))


def stacks_of(first: threading.Thread | None) -> str:
    """The stacks of this process's threads as text, that of `first` first."""
    frames, named = sys._current_frames(), {thread.ident: thread.name for thread in threading.enumerate()}
    order = sorted(frames, key=lambda ident: first is None or ident != first.ident)
    return "\n".join(
        f"thread {named.get(ident, ident)}\n{''.join(traceback.format_stack(frames[ident]))}"
        for ident in order
        if ident in named
    )


def begin_trial(trial: CurrentTrial, work_dir: Path) -> None:
    """Give the train loop its working directory, its seeds and its identity. All ranks get the same seed, as DDP expects."""
    work_dir.mkdir(parents=True, exist_ok=True)
    os.chdir(work_dir)
    seed_everything(trial.seed)
    set_current_trial(trial)


def seed_everything(seed: int) -> None:
    """Seed the generators of Python, NumPy and whichever of the frameworks is loaded.

    A plain function that imports its framework inside seeds it itself, with `config["seed"]`.
    """
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
    frameworks.seed_loaded(seed)


def plain_metrics(metrics: Any) -> dict[str, Any]:
    """The metrics as plain numbers and strings.

    Raises:
        TypeError: They are no dictionary, or a key or value is not what it has to be; all of them are named.
    """
    if not isinstance(metrics, Mapping):
        raise TypeError(f"ray.train.report takes a dictionary of metrics, got a {type(metrics).__name__}.")
    plain, bad = {}, []
    for name, value in metrics.items():
        if hasattr(value, "item") and getattr(value, "size", 1) == 1 and not callable(getattr(value, "size", None)):
            value = value.item()  # a NumPy scalar
        elif hasattr(value, "numel") and value.numel() == 1:
            value = value.item()  # a tensor
        elif isinstance(value, numbers.Real) and not isinstance(value, (int, float)):
            value = float(value)
        if not isinstance(name, str):
            bad.append(f"the key {name!r} is a {type(name).__name__}")
        elif isinstance(value, int) and abs(value) >= LARGEST:
            bad.append(f"{name} is an integer of {value.bit_length()} bits")
        elif isinstance(value, (bool, str, int, float)) or value is None:
            plain[name] = value
        else:
            bad.append(f"{name} is a {type(value).__name__}")
    if bad:
        raise TypeError(
            f"Metrics are numbers or short strings under names, but {', '.join(bad)}. Leave them out or make them numbers."
        )
    return plain
