"""What kinds of failure there are, and what follows from each: one table, read by the engine and by nobody else.

There is one retry layer. Ray Tune's and Ray Train's own are switched off, and the user's `FailureConfig(max_failures=...)`
feeds this table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from tunelab.core.trial import Attempt, Status


class Failure(str, Enum):
    """Why an attempt failed."""

    USER_ERROR = "user error"  # an exception in the train loop
    INFEASIBLE = "infeasible"  # the train loop raised tunelab.Infeasible
    DIVERGED = "diverged"  # NaN in a metric, or an infinite objective
    OUT_OF_MEMORY = "out of memory"
    LOST = "lost"  # a worker, the trial's process or a node died
    RESTART_IGNORED = "restart ignored"  # a checkpoint was given and the loop began anew
    NO_REPORT = "no report"  # the loop returned without reporting the objective
    BAD_REPORT = "bad report"  # the objective or its step is no number, or the step did not increase


@dataclass(frozen=True)
class Rule:
    """What follows from a failure.

    Args:
        retries: Most retries for this class alone; None means the user's `max_failures`.
        ends_as: The trial's status once there are no retries left.
    """

    retries: int | None
    ends_as: Status = Status.FAILED


RULES = {
    Failure.USER_ERROR: Rule(retries=None),
    Failure.INFEASIBLE: Rule(retries=0, ends_as=Status.INFEASIBLE),
    Failure.DIVERGED: Rule(retries=0),
    Failure.OUT_OF_MEMORY: Rule(retries=1),
    Failure.LOST: Rule(retries=5),  # not the trial's fault, so not counted against max_failures
    Failure.RESTART_IGNORED: Rule(retries=0),
    Failure.NO_REPORT: Rule(retries=0),
    Failure.BAD_REPORT: Rule(retries=0),
}


def may_retry(failure: Failure, attempts: Sequence[Attempt], max_failures: int) -> bool:
    """Whether a trial may be tried again after `attempts`, the last of which failed with `failure`.

    Args:
        failure: The class of the latest failure.
        attempts: All attempts so far.
        max_failures: The user's `FailureConfig(max_failures=...)`; -1 means without limit.
    """
    limit = RULES[failure].retries
    if limit is None:
        limit = max_failures
    return limit < 0 or sum(attempt.failure == failure for attempt in attempts) <= limit
