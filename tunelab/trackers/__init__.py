"""Trackers record a sweep somewhere people look: a process that reads the journal, off the driver's interpreter.

    driver: journal.append --> TrackerProcess.poke            (process.py: never blocks, never raises)
    tracker process: read_events --> Projection --> Tracker    (follow.py, projection.py, mlflow.py)

To add one: a file with a class that has the methods of `follow.Tracker`, and a line in `TRACKERS`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tunelab.errors import UnknownNameError

TRACKERS = {"mlflow": "tunelab.trackers.mlflow:MlflowTracker"}


def names() -> list[str]:
    """The known trackers."""
    return list(TRACKERS)


def load(name: str) -> Any:
    """The class of the tracker called `name`; importing it may import its library.

    Raises:
        UnknownNameError: There is none of that name.
    """
    if name not in TRACKERS:
        raise UnknownNameError.among("tracker", name, TRACKERS)
    module, _, attribute = TRACKERS[name].partition(":")
    return getattr(import_module(module), attribute)
