"""What a trial says, what is decided about it, and the record that is kept of it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

Config = dict[str, Any]


class Status(str, Enum):
    """Where a trial is in its life. Only `INTERRUPTED` and earlier ones can go on."""

    PROPOSED = "proposed"  # configuration chosen, not started yet
    RUNNING = "running"
    RETRYING = "retrying"  # an attempt failed; the next one is due
    INTERRUPTED = "interrupted"  # Ctrl-C, time budget or a killed driver; resumable
    COMPLETED = "completed"
    STOPPED = "stopped"  # by the scheduler
    FAILED = "failed"
    INFEASIBLE = "infeasible"  # the configuration cannot work

    @property
    def ended(self) -> bool:
        """Whether the trial will never run again."""
        return self in (Status.COMPLETED, Status.STOPPED, Status.FAILED, Status.INFEASIBLE)


class Report(NamedTuple):
    """What a trial says at a step. A tuple, because a large sweep has many of them and they are made three times as fast.

    Args:
        trial: Number of the trial within its sweep, from 0.
        attempt: Which start of the trial said it, from 1.
        step: Position on the objective's declared axis (`epoch`, `round`). Increases within an attempt.
        value: The objective as reported, or NaN where any metric is NaN; NaN and infinities rank worst.
        metrics: Everything that was reported (`Experiment.reduce` says of which ranks), numbers and short strings.
        checkpoint: Folder of the checkpoint relative to the sweep's storage, or None if the report had none.
        at: When, in seconds since the epoch.
        size: Number of files and bytes of the checkpoint when it was reported, where the driver could see it.
    """

    trial: int
    attempt: int
    step: float
    value: float
    metrics: Mapping[str, Any] = {}
    checkpoint: str | None = None
    at: float = 0.0
    size: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class Continue:
    """Go on. `until` is the step at which the scheduler next has something to say, or None if never."""

    trial: int
    reason: str = ""
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """End the trial at this report: nothing is computed past it."""

    trial: int
    reason: str


Decision = Continue | Stop


@dataclass(slots=True)
class Attempt:
    """One start of a trial.

    Args:
        number: From 1.
        checkpoint: The checkpoint it started from, relative to the sweep's storage, or None for a start from nothing.
        from_step: The step of that checkpoint, or None.
        outcome: None while it runs, else `completed`, `stopped`, `interrupted`, `failed`, `infeasible`.
        failure: The failure class (`core/failures.py`) when the outcome is `failed` or `infeasible`.
        message: One line on how it ended.
        details: The traceback, when there is one.
    """

    number: int
    checkpoint: str | None = None
    from_step: float | None = None
    started_at: float = 0.0
    ended_at: float | None = None
    outcome: str | None = None
    failure: str | None = None
    message: str = ""
    details: str = ""


@dataclass(slots=True)
class Decided:
    """A decision as the journal keeps it."""

    step: float
    action: str  # "continue" or "stop"
    reason: str
    at: float = 0.0


@dataclass(slots=True)
class Trial:
    """The record of one configuration within a sweep. Built by replaying the journal and by nothing else.

    `reports` holds the trial's curve in order, each step once: when a retry recomputes steps after its checkpoint, the
    recomputed ones replace the lost ones.
    """

    number: int
    config: Config
    seed: int
    origin: str = ""  # "baseline", "random", "tpe", ...
    note: str = ""  # how the searcher came to it: "from 9 ended trials"
    status: Status = Status.PROPOSED
    reason: str = ""  # why it ended, or why it waits
    proposed_at: float = 0.0
    ended_at: float | None = None
    attempts: list[Attempt] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    decisions: list[Decided] = field(default_factory=list)
    deleted: set[str] = field(default_factory=set)  # checkpoints that retention removed
    superseded: set[str] = field(default_factory=set)  # checkpoints of reports that a retry recomputed
    reopened: list[int] = field(default_factory=list)  # after which attempts it was reopened, though it had failed

    @property
    def id(self) -> str:
        """The trial's short id, `0007`."""
        return f"{self.number:04d}"

    @property
    def attempt(self) -> int:
        """Number of the latest attempt; 0 before the first."""
        return len(self.attempts)

    @property
    def counted_attempts(self) -> list[Attempt]:
        """The attempts that count against the limits of retries: those since it was last reopened."""
        return self.attempts[self.reopened[-1] :] if self.reopened else self.attempts

    @property
    def last(self) -> Report | None:
        """The latest report, or None before the first."""
        return self.reports[-1] if self.reports else None

    def kept(self) -> list[Report]:
        """Reports whose checkpoint exists, in order of steps."""
        return [r for r in self.reports if r.checkpoint is not None and r.checkpoint not in self.deleted]

    def latest_checkpoint(self) -> Report | None:
        """The report whose checkpoint a restart continues from, or None."""
        return next((r for r in reversed(self.reports) if r.checkpoint and r.checkpoint not in self.deleted), None)

    def curve(self) -> list[tuple[float, float]]:
        """(step, objective) of each report."""
        return [(r.step, r.value) for r in self.reports]


def derive_seed(*parts: int | str) -> int:
    """A seed in [0, 2**31) that depends on all of `parts` and on nothing else (SHA-256 of their text).

    >>> derive_seed(0, "trial", 7) == derive_seed(0, "trial", 7) != derive_seed(0, "trial", 8)
    True
    """
    digest = hashlib.sha256("/".join(str(part) for part in parts).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def measured(metrics: Mapping[str, Any], name: str, otherwise: float) -> float:
    """What was reported as `name`, or `otherwise` where it is missing or no number."""
    value = metrics.get(name)
    try:
        return float(value) if isinstance(value, (int, float)) else otherwise
    except OverflowError:
        return otherwise


def nan_metric(metrics: Mapping[str, Any]) -> str | None:
    """A metric that is NaN: the trial has diverged, whatever its objective says, for accuracy alone would hide it."""
    return next((name for name, value in metrics.items() if isinstance(value, float) and math.isnan(value)), None)


def rank_key(value: float, mode: str) -> float:
    """A sort key that puts the best objective first and NaN and infinities last, all equal.

    A loss of -inf is as diverged as one of +inf, so neither can be best.
    """
    if not math.isfinite(value):
        return math.inf
    return -value if mode == "max" else value
