"""What is new for a tracker: a `Batch` of `Changes`, one for each run, whatever the tracker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SWEEP = None  # the key of the sweep's own run among trial numbers


@dataclass(frozen=True, slots=True)
class Point:
    """One value of one metric. `value` is a number or NaN, never an infinity."""

    key: str
    value: float
    at_ms: int
    step: int


@dataclass
class Changes:
    """What is new for one run.

    Args:
        name: Set when the run is new.
        started_ms: When it started, if it is new.
        status: `RUNNING`, `FINISHED`, `FAILED` or `KILLED`, or None for no change.
        ended_ms: When it ended, unless it is running.
        files: Name -> text, or a file to copy if it is there.
    """

    name: str | None = None
    started_ms: int = 0
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)
    status: str | None = None
    ended_ms: int | None = None
    files: dict[str, str | Path] = field(default_factory=dict)


@dataclass
class Batch:
    """Changes by trial number, the sweep's own under `SWEEP` and first, and the last event that they cover."""

    seq: int
    runs: dict[int | None, Changes]

    def parts(self, size: int) -> Iterator[Batch]:
        """The same in batches of at most `size` runs. Only the last covers the events; the others cover none."""
        left = list(self.runs.items())
        for start in range(0, len(left), size):
            is_last = start + size >= len(left)
            yield Batch(self.seq if is_last else 0, dict(left[start : start + size]))
