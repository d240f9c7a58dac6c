"""What a train loop may ask about itself. Imports nothing heavy: it is used inside every worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class CurrentTrial:
    """The trial that this process is running.

    Attributes:
        id: `digits-mlp.1/0007`.
        attempt: Which start of the trial this is, from 1.
        seed: The trial's seed, in [0, 2**31).
        config: The space's parameters as proposed for this trial.
        root: The project's root folder.
    """

    id: str
    attempt: int
    seed: int
    root: str
    config: Mapping[str, Any] = field(default_factory=dict)


_current: CurrentTrial | None = None


def current_trial() -> CurrentTrial | None:
    """The trial that this process is running, or None outside a sweep, so that a loop also runs under plain Ray Train."""
    return _current


def set_current_trial(trial: CurrentTrial | None) -> None:
    """Called by the engine before and after a train loop."""
    global _current
    _current = trial


def project_path(relative: str | Path) -> Path:
    """The absolute path of a file of the project, from wherever it is asked: each rank works in a folder of its own.

    Outside a trial it is relative to the current folder.
    """
    return Path(_current.root if _current is not None else Path.cwd(), relative)
