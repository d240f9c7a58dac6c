"""What kinds of failure there are, and what follows from each: one table, read by the engine and by nobody else.

There is one retry layer. Ray Tune's and Ray Train's own are switched off; the user's `FailureConfig(max_failures=...)` and
`Experiment(on_failure=...)` feed this table.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal, get_args

from tunelab.core.trial import Attempt, Status, Trial
from tunelab.errors import UnknownNameError

Then = Literal["failed", "infeasible", "stop sweep"]

SAME_ERROR_LIMIT = 3  # the first so many trials fail alike: so will all others
INFEASIBLE_LIMIT = 100  # so many infeasible trials in a row, and a feasible one is not to be expected


class Failure(str, Enum):
    """Why an attempt failed."""

    USER_ERROR = "user error"  # an exception in the train loop
    INFEASIBLE = "infeasible"  # the train loop raised tunelab.Infeasible
    UNSUPPORTED = "unsupported"  # the train loop asked its framework for what it cannot do here
    DIVERGED = "diverged"  # NaN in a metric, or an infinite objective
    OUT_OF_MEMORY = "out of memory"
    DISK_FULL = "disk full"  # where the checkpoint, or something else of the trial, was to be written
    LOST = "lost"  # a worker, the trial's process or a node died
    PREEMPTED = "preempted"  # its node is about to be taken away, or has been
    HUNG = "hung"  # no report for `report_timeout_s`
    RESTART_IGNORED = "restart ignored"  # a checkpoint was given and the loop began anew
    NO_REPORT = "no report"  # the loop returned without reporting the objective
    BAD_REPORT = "bad report"  # the objective or its step is no number, or the step did not increase


@dataclass(frozen=True)
class Rule:
    """What follows from a failure.

    Args:
        retries: Most retries for this class alone, -1 for no limit; None means the user's `max_failures`.
        then: What becomes of the trial once there are no retries left. `"stop sweep"` fails it and ends the sweep.
        alone: Whether its retries wait until no other trial of the sweep runs.
        patience: Diverged reports in a row that are put up with.
    """

    retries: int | None
    then: Then = "failed"
    alone: bool = False
    patience: int = 0

    @property
    def ends_as(self) -> Status:
        """The trial's status once there are no retries left."""
        return Status.INFEASIBLE if self.then == "infeasible" else Status.FAILED


RULES = {
    Failure.USER_ERROR: Rule(retries=None),
    Failure.INFEASIBLE: Rule(retries=0, then="infeasible"),
    Failure.UNSUPPORTED: Rule(retries=0),
    Failure.DIVERGED: Rule(retries=0),
    Failure.OUT_OF_MEMORY: Rule(retries=1, then="infeasible", alone=True),
    Failure.DISK_FULL: Rule(retries=-1),  # not in this session: the sweep stops, and its resume goes on
    Failure.LOST: Rule(retries=5),  # not the trial's fault, so not counted against max_failures
    Failure.PREEMPTED: Rule(retries=100),
    Failure.HUNG: Rule(retries=1),
    Failure.RESTART_IGNORED: Rule(retries=0),
    Failure.NO_REPORT: Rule(retries=0),
    Failure.BAD_REPORT: Rule(retries=0),
}
FIXED = {Failure.DISK_FULL: "a full disk always interrupts the sweep, and its resume goes on"}


@dataclass(frozen=True, kw_only=True)
class OnFailure:
    """What follows from one class of failure, where that is to differ from docs/failures.md's table.

    Args:
        retries: Most retries of a trial for this class, -1 for no limit. None leaves it as in the table.
        then: What becomes of the trial after that: `"failed"`; `"infeasible"`, which is not counted against the budget and is
            replaced; `"stop sweep"`, which fails it and ends the sweep. None leaves it as in the table.
        patience: For `"diverged"` alone: so many diverged reports in a row are put up with before it counts.
    """

    retries: int | None = None
    then: Then | None = None
    patience: int = 0

    def problems(self, name: str) -> list[str]:
        """What is wrong with it as the rule for the class called `name`."""
        found = []
        if self.retries is not None and (not _is_int(self.retries) or self.retries < -1):
            found.append(f"on_failure[{name!r}] needs retries >= 0, -1 for no limit, or None, got {self.retries!r}.")
        if self.then is not None and self.then not in get_args(Then):
            choices = ", ".join(map(repr, get_args(Then)))
            found.append(f"on_failure[{name!r}] needs then to be one of {choices}, or None, got {self.then!r}.")
        if not _is_int(self.patience) or self.patience < 0:
            found.append(f"on_failure[{name!r}] needs patience >= 0 (reports in a row), got {self.patience!r}.")
        elif self.patience and name != Failure.DIVERGED.value:
            found.append(f"on_failure[{name!r}] takes no patience: only {Failure.DIVERGED.value!r} does.")
        return found


def problems(on_failure: object) -> list[str]:
    """What is wrong with an experiment's `on_failure`, a sentence each."""
    if not isinstance(on_failure, Mapping):
        return [f'on_failure needs a dictionary such as {{"lost": OnFailure(retries=10)}}, got {on_failure!r}.']
    names = [failure.value for failure in Failure if failure not in FIXED]
    fixed = {failure.value: why for failure, why in FIXED.items()}
    found = []
    for name, change in on_failure.items():
        if name in fixed:
            found.append(f"on_failure cannot change {name!r}: {fixed[name]}.")
        elif name not in names:
            found.append(f"on_failure: {UnknownNameError.among('failure class', str(name), names)}")
        elif not isinstance(change, OnFailure):
            found.append(f"on_failure[{name!r}] needs OnFailure(...), got {change!r}.")
        else:
            found += change.problems(name)
    return found


def rules(on_failure: Mapping[str, OnFailure] | None = None, max_failures: int = 0) -> dict[Failure, Rule]:
    """The table as it stands for one sweep.

    Args:
        on_failure: The experiment's changes to it, by class.
        max_failures: The user's `FailureConfig(max_failures=...)`; -1 means without limit.
    """
    table = {
        failure: replace(rule, retries=max_failures if rule.retries is None else rule.retries)
        for failure, rule in RULES.items()
    }
    for name, change in (on_failure or {}).items():
        rule = table[Failure(name)]
        table[Failure(name)] = replace(
            rule,
            retries=rule.retries if change.retries is None else change.retries,
            then=change.then or rule.then,
            patience=change.patience,
        )
    return table


def may_retry(failure: Failure, attempts: Sequence[Attempt], rule: Rule) -> bool:
    """Whether a trial may be tried again after `attempts`, the last of which failed with `failure`."""
    limit = rule.retries or 0
    return limit < 0 or sum(attempt.failure == failure for attempt in attempts) <= limit


def has_to_be_alone(attempts: Iterable[Attempt], table: Mapping[Failure, Rule]) -> bool:
    """Whether what has happened to a trial in `attempts` lets its next one wait until no other trial runs."""
    return any(attempt.failure is not None and table[Failure(attempt.failure)].alone for attempt in attempts)


# ---- what an error is ------------------------------------------------------------------------------------------------


def is_disk_full(error: BaseException) -> bool:
    """Whether an error says that a disk is full, or somebody's share of it.

    Torch's writer keeps no error number: it finds that less has been written than it wrote.
    """
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    text = str(error)
    if os.strerror(errno.ENOSPC) in text or "database or disk is full" in text:  # the latter is SQLite's
        return True
    return "inline_container" in text and "unexpected pos" in text


_NO_MEMORY_NAMES = {"OutOfMemoryError", "ResourceExhaustedError"}  # Torch's and Ray's; TensorFlow's
_NO_MEMORY_TEXTS = (
    "CUDA out of memory",
    "DefaultCPUAllocator: can't allocate memory",  # Torch's, a RuntimeError
    "RESOURCE_EXHAUSTED: Out of memory",  # XLA's
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_ALLOC_FAILED",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there is no memory left, on the host or on an accelerator. Frameworks go by name here."""
    if isinstance(error, MemoryError) or type(error).__name__ in _NO_MEMORY_NAMES:
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _NO_MEMORY_TEXTS)


# ---- failures that every later trial would share ---------------------------------------------------------------------

_FRAME = re.compile(r'^ *File "(.+)", line (\d+), in (.+)$', re.M)
_VARIABLE = re.compile(r"0x[0-9a-fA-F]+|[0-9a-fA-F]*\d[0-9a-fA-F]*")  # also within a name: checkpoint_3, 7f3a-...
_RAISED = (Failure.USER_ERROR, Failure.UNSUPPORTED, Failure.OUT_OF_MEMORY)  # their details are a traceback
FRAMES = 3


def signature(attempt: Attempt) -> tuple[object, ...]:
    """What two attempts that failed alike have in common: the class, the innermost frames of the traceback, and the message
    without its numbers, which may be a trial's, a process's or a size.
    """
    frames = _FRAME.findall(attempt.details)[-FRAMES:] if attempt.failure in _RAISED else []
    return attempt.failure, *frames, _VARIABLE.sub("#", attempt.message)


class Breaker:
    """Notices that a sweep cannot come to anything: its first trials have all failed alike, or nothing is feasible."""

    def __init__(self) -> None:
        self._first: tuple[object, ...] | None = None
        self._alike = 0  # trials that ended with it
        self._differs = False  # whether a trial has ended otherwise
        self._barren = 0  # infeasible trials in a row

    def ended(self, trial: Trial) -> str | None:
        """Take in that a trial has ended, and say why the sweep should be stopped, if it should."""
        attempt = trial.attempts[-1] if trial.attempts else None
        failure = attempt.failure if attempt is not None else None
        self._barren = self._barren + 1 if trial.status is Status.INFEASIBLE else 0
        if attempt is None or failure is None:
            self._differs = True
        elif failure not in (Failure.INFEASIBLE, Failure.DIVERGED):  # those two are about the one configuration
            found = signature(attempt)
            self._first = self._first or found
            self._alike += 1
            self._differs = self._differs or found != self._first
            if self._alike >= SAME_ERROR_LIMIT and not self._differs:
                return f"the first {self._alike} trials failed with the same error: {attempt.message}"
        if self._barren >= INFEASIBLE_LIMIT and attempt is not None:
            return (
                f"{self._barren} trials in a row were infeasible, the last one because of this: {attempt.message}. "
                "Narrow the space, or say in its require=[...] what can work"
            )
        return None

    def reopened(self) -> None:
        """Failed trials are to be tried again: what they failed with counts no more."""
        self._first, self._alike, self._barren = None, 0, 0


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
