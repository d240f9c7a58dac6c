"""A family of interchangeable parts, found by name and imported only when one is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from tunelab.errors import UnknownNameError


@dataclass(frozen=True)
class Family:
    """Searchers, schedulers, frameworks, trackers.

    Args:
        kind: What one of them is called in messages: `searcher`.
        table: Name -> `module:Class`, in the order in which they are listed.
    """

    kind: str
    table: dict[str, str]

    def names(self) -> list[str]:
        """The names of all members."""
        return list(self.table)

    def load(self, name: str) -> Any:
        """The member's class.

        Raises:
            UnknownNameError: There is none of that name; suggests the nearest.
        """
        if name not in self.table:
            raise UnknownNameError.among(self.kind, name, self.table)
        module, _, attribute = self.table[name].partition(":")
        return getattr(import_module(module), attribute)
