"""Schedulers decide whether a trial is worth going on with. A new one is a file here, a line in `TABLE` and an example.

Nothing is imported before it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tunelab.errors import UnknownNameError

TABLE = {
    "fifo": "tunelab.schedulers.fifo:FIFO",
    "asha": "tunelab.schedulers.asha:ASHA",
}


def names() -> list[str]:
    """The names of all schedulers."""
    return list(TABLE)


def load(name: str) -> Any:
    """The scheduler's class.

    Raises:
        UnknownNameError: There is no scheduler of that name; suggests the nearest.
    """
    if name not in TABLE:
        raise UnknownNameError.among("scheduler", name, TABLE)
    module, _, attribute = TABLE[name].partition(":")
    return getattr(import_module(module), attribute)
