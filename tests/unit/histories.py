"""Journals written by hand, for tests of what reads them: no engine, no Ray, and a clock that ticks by itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from tunelab.journal import Event, Journal, SweepState, events, replay
from tunelab.journal.home import SweepFolder

SPACE = {
    "parameters": [
        {"name": "lr", "type": "float", "low": 1e-4, "high": 1e-1, "log": True},
        {"name": "width", "type": "int", "low": 16, "high": 256, "log": True},
        {"name": "batch_size", "type": "choice", "options": [16, 32, 64]},
    ],
    "require": [],
}


def experiment(*, mode: str = "max", metric: str = "accuracy", trials: int = 32, **others: Any) -> dict[str, Any]:
    """An experiment as the journal describes it."""
    return {
        "name": "digits-mlp",
        "space": SPACE,
        "objective": {"metric": metric, "mode": mode, "step": "epoch", "last_step": "epochs"},
        "searcher": {"name": "tpe"},
        "scheduler": {"name": "asha"},
        "budget": {"trials": trials, "time_s": None, "concurrent": None},
        "seed": 0,
        "loop": {"epochs": 20},
        **others,
    }


def config(number: int) -> dict[str, Any]:
    """A configuration that differs from trial to trial."""
    return {
        "lr": 10 ** (-4 + 3 * ((number * 37) % 101) / 101),
        "width": 16 + (number * 53) % 200,
        "batch_size": (16, 32, 64)[number % 3],
    }


def created(sweep: str = "digits-mlp.1", **description: Any) -> list[Event]:
    """A sweep with its first session."""
    return [events.sweep_created(sweep=sweep, experiment=experiment(**description), facts={"git": {}}), session(**description)]


def session(**description: Any) -> Event:
    budget = experiment(**description)["budget"]
    return events.session_started(pid=1, host="here", resources={"CPU": 4.0}, budget=budget, tracking=None)


def report(trial: int, step: float, value: float, *, attempt: int = 1, checkpoint: bool = True, **metrics: Any) -> Event:
    """A report at `step`; its checkpoint is named after attempt and step."""
    where = f"{trial:04d}/checkpoint_{attempt}_{step:g}" if checkpoint else None
    told = {"epoch": step, "accuracy": value, **metrics}
    return events.reported(trial, attempt=attempt, step=step, value=value, metrics=told, checkpoint=where)


def trial(
    number: int,
    curve: Iterable[float] = (),
    *,
    end: str | None = "completed",
    reason: str = "",
    origin: str = "tpe",
    checkpoint: bool = True,
    settings: dict[str, Any] | None = None,
) -> list[Event]:
    """A trial with one report an epoch from epoch 1. `end=None` leaves it running."""
    told = [
        events.proposed(number, config=settings or config(number), seed=number, origin=origin, note="from 9 ended trials"),
        events.started(number, attempt=1, checkpoint=None, from_step=None),
        *(report(number, step, value, checkpoint=checkpoint) for step, value in enumerate(curve, start=1)),
    ]
    if end is not None:
        told.append(events.attempt_ended(number, attempt=1, outcome=end, message=reason))
        told.append(events.finished(number, status=end, reason=reason))
    return told


def stored(told: Iterable[Event]) -> Iterator[Event]:
    """The events as a journal would give them back: numbered, a second apart."""
    for seq, event in zip(count(1), told, strict=False):
        yield Event(event.kind, event.trial, event.data, seq, 1_000.0 + seq)


def state(told: Iterable[Event]) -> SweepState:
    """What the events add up to."""
    return replay(stored(told))


def write(home: Path, told: Iterable[Event], sweep: str = "digits-mlp.1") -> SweepFolder:
    """A sweep's folder with these events in its journal."""
    folder = SweepFolder(home / sweep)
    ticks = count(1_001)
    journal = Journal(folder.journal, clock=lambda: float(next(ticks)))
    for event in told:
        journal.append(event)
    journal.close()
    return folder
