"""Why an attempt failed: an error sorted into its failure class, with one line for people and the traceback."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping

from ray.exceptions import OutOfMemoryError, RayActorError, WorkerCrashedError
from ray.train.v2._internal.exceptions import (
    WorkerGroupStartupFailedError,
    WorkerGroupStartupTimeoutError,
    WorkerHealthCheckFailedError,
    WorkerHealthCheckTimeoutError,
)

from tunelab.core.failures import Failure
from tunelab.engine.ray.messages import Ended
from tunelab.errors import Infeasible

# Several ranks fail when one does. What explains most comes first: a rank that lost its peer raises too.
_PRECEDENCE = [Failure.INFEASIBLE, Failure.OUT_OF_MEMORY, Failure.LOST, Failure.USER_ERROR]
_GONE = (RayActorError, WorkerCrashedError)
_OUT_OF_REACH = (
    WorkerGroupStartupFailedError,
    WorkerGroupStartupTimeoutError,
    WorkerHealthCheckFailedError,
    WorkerHealthCheckTimeoutError,
)


def explain(error: BaseException, tracebacks: Mapping[int, str] | None = None) -> Ended:
    """How an attempt ended that ended with `error`.

    Args:
        error: Raised by a train loop or by Ray Train's controller.
        tracebacks: What Ray Train noted of each rank's exception, by rank.
    """
    by_rank = getattr(error, "worker_failures", None) or {0: error}
    found = [_explain(cause, (tracebacks or {}).get(rank)) for rank, cause in by_rank.items()]
    return min(found, key=lambda ended: _PRECEDENCE.index(ended.failure or Failure.USER_ERROR))


def _explain(error: BaseException, details: str | None) -> Ended:
    details = details or "".join(traceback.format_exception(error))
    chain = list(_chain(error))
    for cause in chain:
        if isinstance(cause, Infeasible):
            return Ended(Failure.INFEASIBLE, str(cause) or "the train loop says so", details)
        if isinstance(cause, (MemoryError, OutOfMemoryError)) or type(cause).__name__ == "OutOfMemoryError":
            return Ended(Failure.OUT_OF_MEMORY, _one_line(cause), details)
    for cause in chain:
        if isinstance(cause, _GONE):
            killed = "SIGKILL" in str(cause) or "signal 9" in str(cause)
            return Ended(Failure.LOST, "a worker was killed (signal 9)" if killed else "a worker process died", details)
    for cause in chain:
        if isinstance(cause, _OUT_OF_REACH):
            return Ended(Failure.LOST, _one_line(cause), details)
    return Ended(Failure.USER_ERROR, _one_line(chain[-1] if hasattr(error, "controller_failure") else error), details)


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
