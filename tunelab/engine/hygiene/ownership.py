"""Whose code it is: the user's, or a library's, the interpreter's or tunelab's."""

from __future__ import annotations

import os
import sysconfig
from functools import cache
from pathlib import Path
from typing import Any

SITE = ("site-packages", "dist-packages")


def is_library(file: str | None) -> bool:
    """Whether code is installed, built in, or tunelab's, and so not the user's."""
    return file is None or file.startswith(("<frozen", *installed())) or in_folder(file, SITE)


def in_folder(file: str, names: tuple[str, ...]) -> bool:
    return any(f"{os.sep}{name}{os.sep}" in file for name in names)


@cache
def installed() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = [paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [os.path.dirname(os.__file__), os.path.dirname(os.path.realpath(os.__file__))]
    return tuple(f"{folder}{os.sep}" for folder in [*folders, str(Path(__file__).parents[2])])


def file_of(module: Any) -> str | None:
    file = getattr(module, "__file__", None)
    return file if isinstance(file, str) else None
