"""Searchers choose the next configuration to try. A new one is a file here, a line in `TABLE` and an example.

Nothing is imported before it is asked for: `import tunelab.searchers` loads no Optuna.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tunelab.errors import UnknownNameError

TABLE = {
    "random": "tunelab.searchers.random:Random",
    "grid": "tunelab.searchers.grid:Grid",
    "tpe": "tunelab.searchers.optuna:TPE",
}


def names() -> list[str]:
    """The names of all searchers."""
    return list(TABLE)


def load(name: str) -> Any:
    """The searcher's class.

    Raises:
        UnknownNameError: There is no searcher of that name; suggests the nearest.
    """
    if name not in TABLE:
        raise UnknownNameError.among("searcher", name, TABLE)
    module, _, attribute = TABLE[name].partition(":")
    return getattr(import_module(module), attribute)
