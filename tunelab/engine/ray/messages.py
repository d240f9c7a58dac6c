"""What travels between the driver, the trial actor and the workers. Plain data, so that it pickles anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tunelab.core.failures import Failure


class TrialStopped(BaseException):
    """Raised inside `ray.train.report` on every rank of a trial that is to end there. Not an error, so not an Exception."""


@dataclass(frozen=True)
class Blueprint:
    """What every attempt of a sweep has in common; sent to each trial actor once.

    Args:
        sweep: The sweep's id.
        root: The project's root, put on `sys.path` of every process that trains.
        storage: Path or URI under which each trial has a folder.
        trainer: The user's trainer, pickled by value.
        warm: Whether workers outlive a trial.
        recycle_after: Trials after which workers are replaced, or None.
        max_growth_mb: Growth of a worker's memory after which it is replaced, or None.
        reports: `"auto"`, `"lockstep"` or `"coalesced"`; see `Pace`.
        step: Key of the step in the reported metrics, or None when reports are counted.
        work_dir: Local folder under which each rank of each trial gets a working directory.
        worker_env: `RunConfig.worker_runtime_env` of the trainer, where all trials have the same.
        preload: Whether workers may import what the trainer needs before its backend has prepared them.
        reduce: Metric -> how it is made of all ranks' values.
        report_timeout_s: A trial that says nothing for so long hangs, or None.
    """

    sweep: str
    root: str
    storage: str
    trainer: bytes
    work_dir: str
    warm: bool = True
    recycle_after: int | None = None
    max_growth_mb: float | None = None
    reports: str = "auto"
    step: str | None = None
    worker_env: Any = None
    preload: bool = True
    reduce: Mapping[str, str] = field(default_factory=dict)
    report_timeout_s: float | None = None


@dataclass(frozen=True)
class Report:
    """A report of the trial: its metrics, rank 0's unless `reduce` says otherwise, and the checkpoint's folder relative to the
    sweep's storage.

    `asks` says whether the train loop waits for an answer to it, on every rank.
    """

    metrics: dict[str, Any]
    checkpoint: str | None = None
    asks: bool = True


@dataclass(frozen=True)
class Answer:
    """What a train loop is told at a report: whether it goes on, and how many reports it makes until it asks again."""

    goes_on: bool
    batch: int = 1


@dataclass(frozen=True)
class Reports:
    """Reports in order; only the last of them may ask."""

    entries: tuple[Report, ...]


@dataclass(frozen=True)
class Ended:
    """The attempt is over by itself: completed when `failure` is None."""

    failure: Failure | None = None
    message: str = ""
    details: str = ""


@dataclass(frozen=True)
class Heartbeat:
    """The attempt lives and has nothing to say."""


Message = Reports | Ended | Heartbeat
