"""Why an attempt failed: an error sorted into its failure class, with one line for people and the traceback."""

from __future__ import annotations

import traceback
from collections.abc import Collection, Iterator, Mapping

from ray.exceptions import RayActorError, WorkerCrashedError
from ray.train.v2._internal.exceptions import (
    WorkerGroupStartupFailedError,
    WorkerGroupStartupTimeoutError,
    WorkerHealthCheckFailedError,
    WorkerHealthCheckTimeoutError,
)
from ray.train.v2.api.exceptions import PreemptionError

from tunelab import frameworks
from tunelab.core.failures import Failure, is_disk_full, is_out_of_memory
from tunelab.engine.ray.messages import Ended
from tunelab.errors import Infeasible

# Several ranks fail when one does. What explains most comes first: a rank that lost its peer raises too.
_PRECEDENCE = [
    Failure.INFEASIBLE, Failure.UNSUPPORTED, Failure.PREEMPTED, Failure.OUT_OF_MEMORY, Failure.DISK_FULL, Failure.LOST,
    Failure.USER_ERROR,
]  # fmt: skip
_GONE = (RayActorError, WorkerCrashedError)
_OUT_OF_REACH = (
    WorkerGroupStartupFailedError,
    WorkerGroupStartupTimeoutError,
    WorkerHealthCheckFailedError,
    WorkerHealthCheckTimeoutError,
)
_FOR_MEMORY = "was killed by the kernel for want of memory"


def explain(error: BaseException, tracebacks: Mapping[int, str] | None = None, short_of_memory: Collection[int] = ()) -> Ended:
    """How an attempt ended that ended with `error`.

    Args:
        error: Raised by a train loop or by Ray Train's controller.
        tracebacks: What Ray Train noted of each rank's exception, by rank.
        short_of_memory: Ranks on a machine whose kernel has killed a process for want of memory meanwhile. If one of them has
            died, that was it.
    """
    by_rank = getattr(error, "worker_failures", None)
    if not by_rank:
        return _explain(error, None, None, killed=False)
    found = [_explain(cause, rank, (tracebacks or {}).get(rank), rank in short_of_memory) for rank, cause in by_rank.items()]
    return min(found, key=lambda ended: _PRECEDENCE.index(ended.failure or Failure.USER_ERROR))


def explain_death(details: str, *, killed: bool) -> Ended:
    """How an attempt ended whose own process died, by what Tune wrote down about it.

    Args:
        details: Tune's text.
        killed: Whether the kernel of its machine has killed a process for want of memory meanwhile.
    """
    lines = [line.strip() for line in details.splitlines() if line.strip()]
    if "OutOfMemoryError" in details:
        return Ended(Failure.OUT_OF_MEMORY, "the trial's process was killed by Ray's memory monitor", details)
    if _with_node(details):
        return Ended(Failure.LOST, "the trial's process is gone with its node", details)
    if killed:
        return Ended(Failure.OUT_OF_MEMORY, f"the trial's process {_FOR_MEMORY}", details)
    if "ActorUnavailableError" in details or "actor is temporarily unavailable" in details:
        return Ended(Failure.LOST, "the trial's process cannot be reached: it is gone, or its node", details)
    return Ended(Failure.LOST, f"the trial's process died{f': {lines[-1]}' if lines else ''}", details)


def _explain(error: BaseException, rank: int | None, details: str | None, killed: bool) -> Ended:
    details = details or "".join(traceback.format_exception(error))
    who = "a worker" if rank is None else f"worker {rank}"
    chain = list(_chain(error))
    for cause in chain:
        if isinstance(cause, Infeasible):
            return Ended(Failure.INFEASIBLE, str(cause) or "the train loop says so", details)
        if (said := frameworks.explain(cause)) is not None:
            return Ended(Failure.UNSUPPORTED, said, details)
        if isinstance(cause, PreemptionError) or (isinstance(cause, RayActorError) and cause.preempted):
            return Ended(Failure.PREEMPTED, "its node was taken away before it had made another checkpoint", details)
        if is_out_of_memory(cause):
            return Ended(Failure.OUT_OF_MEMORY, _one_line(cause), details)
        if is_disk_full(cause):
            return Ended(Failure.DISK_FULL, _one_line(cause), details)
    for cause in chain:
        if isinstance(cause, _GONE):
            if _with_node(str(cause)):
                return Ended(Failure.LOST, f"{who} is gone with its node", details)
            if killed:
                return Ended(Failure.OUT_OF_MEMORY, f"{who} {_FOR_MEMORY}", details)
            return Ended(Failure.LOST, f"{who} died: its process was killed, or crashed", details)
    for cause in chain:
        if isinstance(cause, _OUT_OF_REACH):
            return Ended(Failure.LOST, _one_line(cause), details)
    return Ended(Failure.USER_ERROR, _one_line(chain[-1] if hasattr(error, "controller_failure") else error), details)


def _with_node(text: str) -> bool:
    return "node has died" in text or "node was terminated" in text or "NodeDiedError" in text


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it was caused by, under the names that Ray keeps it."""
    seen: list[BaseException] = []
    waiting: list[object] = [error]
    while waiting:
        cause = waiting.pop(0)
        if isinstance(cause, BaseException) and cause not in seen:
            seen.append(cause)
            yield cause
            names = ("health_check_failure", "controller_failure", "cause", "__cause__")
            waiting += [getattr(cause, name, None) for name in names]


def _one_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1]}" if lines else type(error).__name__
