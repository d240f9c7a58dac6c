"""A worker process: it outlives its trials, and its reports wait for the decision.

The controller polls; a poll carries the answer to the report before it and returns as soon as there is something to tell. So a
report costs one round trip, and nothing polls in vain.
"""

from __future__ import annotations

import numbers
import os
import queue
import random
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ray.train.v2._internal.execution.train_fn_utils import DistributedTrainFnUtils, set_train_fn_utils
from ray.train.v2._internal.execution.worker_group.poll import WorkerStatus
from ray.train.v2._internal.execution.worker_group.worker import RayTrainWorker, get_train_context

from tunelab import frameworks
from tunelab.engine.context import CurrentTrial, set_current_trial
from tunelab.engine.hygiene import CleanState, Cleanup
from tunelab.engine.ray.messages import TrialStopped

POLL_S = 1.0  # longest that a poll waits for something to tell


class LockstepReport(DistributedTrainFnUtils):
    """`ray.train.report` that returns with the decision, or unwinds a stopped train loop."""

    def report(self, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        context = get_train_context()
        inbox, reports = context.tunelab_inbox, context.execution_context.result_queue
        super().report(plain_metrics(metrics), *args, **kwargs)
        with reports.not_empty:
            inbox.waits = True
            reports.not_empty.notify_all()
        goes_on = inbox.answers.get()
        inbox.waits = False
        if not goes_on:
            inbox.answers.put(False)  # a loop that swallows the exception and reports again is stopped again
            raise TrialStopped()


class Inbox:
    """Answers on their way to the train loop, and what the loop is doing: it waits for one, or has returned."""

    def __init__(self) -> None:
        self.answers: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self.waits = self.ended = False


class WarmWorker(RayTrainWorker):
    """Ray Train's worker, for trial after trial."""

    def __init__(self, root: str) -> None:
        super().__init__()
        self._clean: CleanState | None = None
        if root not in sys.path:
            sys.path.insert(0, root)

    def init_train_context(self, *args: Any, **kwargs: Any) -> None:
        super().init_train_context(*args, **kwargs)
        context = get_train_context()
        # Ray keeps these two on the class: shared by all contexts of a process, and the pool is shut down after one run.
        context.checkpoint_upload_threadpool = ThreadPoolExecutor(1)
        context.report_order_condition = threading.Condition()
        context.tunelab_inbox = Inbox()
        set_train_fn_utils(LockstepReport())

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

    def poll_status(self, goes_on: bool | None = None) -> WorkerStatus:
        """Deliver the answer to the last report, if there is one, then wait for news for at most `POLL_S`."""
        context = get_train_context()
        inbox, reports = context.tunelab_inbox, context.execution_context.result_queue
        runner = context.execution_context.training_thread_runner
        if goes_on is not None:
            inbox.answers.put(goes_on)
        until = time.monotonic() + POLL_S
        with reports.not_empty:  # the queue's own condition: notified by each report and, by `TrainLoop`, at the end
            # A rank that waits for its answer has no news, and must not hold up the ranks that are still to report.
            reports.not_empty.wait_for(lambda: reports._qsize() or inbox.waits or inbox.ended, POLL_S)
        while inbox.ended and reports.empty() and runner.is_running() and time.monotonic() < until:
            time.sleep(0.001)  # the loop has returned and its thread is about to end, or still uploads
        return super().poll_status()


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
    """

    loop: Callable[[], Any]
    trial: CurrentTrial
    work_dir: str

    def __call__(self) -> Any:
        context = get_train_context()
        begin_trial(self.trial, Path(self.work_dir, f"rank{context.get_world_rank()}"))
        try:
            return self.loop()
        except TrialStopped:
            return None
        finally:
            set_current_trial(None)
            context.tunelab_inbox.ended = True
            reports = context.execution_context.result_queue
            with reports.not_empty:
                reports.not_empty.notify_all()


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
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


def plain_metrics(metrics: dict[str, Any]) -> dict[str, Any]:
    """The metrics as plain numbers and strings.

    Raises:
        TypeError: A metric is neither; all of them are named.
    """
    plain, bad = {}, []
    for name, value in metrics.items():
        if hasattr(value, "item") and getattr(value, "size", 1) == 1 and not callable(getattr(value, "size", None)):
            value = value.item()  # a NumPy scalar
        elif hasattr(value, "numel") and value.numel() == 1:
            value = value.item()  # a tensor
        if isinstance(value, (bool, str, int, float)) or value is None:
            plain[name] = value
        elif isinstance(value, numbers.Real):
            plain[name] = float(value)
        else:
            bad.append(f"{name} is a {type(value).__name__}")
    if bad:
        raise TypeError(f"Metrics are numbers or short strings, but {', '.join(bad)}. Leave them out or make them numbers.")
    return plain
