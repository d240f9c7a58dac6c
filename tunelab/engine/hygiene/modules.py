"""Modules that a trial has imported from folders of its own."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tunelab.engine.hygiene.ownership import file_of, is_library


class Modules:
    """Modules from folders that only the trial had on its path: the next one may mean others by the same names."""

    what = "modules"

    def __init__(self) -> None:
        self._path = set(sys.path)
        self._known = set(sys.modules)

    def restore(self) -> Iterator[str]:
        """Runs before the path itself is put back."""
        with suppress(FileNotFoundError):
            foreign = {os.path.abspath(folder) for folder in sys.path if not folder or folder not in self._path} - self._path
            new = sys.modules.keys() - self._known
            forgotten = sorted(name for name in new if _root_of(name) in foreign)
            for name in forgotten:
                del sys.modules[name]
            self._known.update(new.difference(forgotten))
            if forgotten:
                importlib.invalidate_caches()
                yield f"modules {', '.join(forgotten)}"


def _root_of(name: str) -> str | None:
    """The folder on the path from which a module of the user's comes."""
    file = file_of(sys.modules.get(name))
    if file is None or not file.endswith(".py") or is_library(file):
        return None
    folder = Path(os.path.abspath(file)).parent
    levels = name.count(".") + (Path(file).name == "__init__.py")
    return str(folder.parents[levels - 1] if levels else folder)


LASTING = (Modules,)
