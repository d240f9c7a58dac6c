"""The interpreter: environment variables, working directory, import paths, hooks, warnings and signal handlers."""

from __future__ import annotations

import builtins
import logging
import os
import signal
import ssl
import sys
import tempfile
import threading
import time
import urllib.request
import warnings
from collections.abc import Iterator


class Environment:
    what = "environment variables"

    def __init__(self) -> None:
        self._clean = dict(os.environ)

    def restore(self) -> Iterator[str]:
        now = dict(os.environ)
        if now == self._clean:
            return
        for name in sorted(now.keys() | self._clean.keys()):
            if now.get(name) != self._clean.get(name):
                if name in self._clean:
                    os.environ[name] = self._clean[name]
                else:
                    del os.environ[name]
                yield f"environment variable {name}"
        if now.get("TZ") != self._clean.get("TZ"):
            time.tzset()


class Folder:
    what = "working directory"

    def __init__(self) -> None:
        try:
            self._clean = os.getcwd()
        except FileNotFoundError:  # it was deleted
            self._clean = tempfile.gettempdir()

    def restore(self) -> Iterator[str]:
        try:
            changed = os.getcwd() != self._clean
        except FileNotFoundError:
            changed = True
        if changed:
            os.chdir(self._clean)
            yield self.what


class Lists:
    """Lists and dictionaries are put back in place: others hold the same objects."""

    what = "import paths"
    NAMES = ("path", "argv", "meta_path", "path_hooks", "warnoptions")

    def __init__(self) -> None:
        self._clean = {name: list(getattr(sys, name)) for name in self.NAMES}
        self._objects = {name: getattr(sys, name) for name in self.NAMES}

    def restore(self) -> Iterator[str]:
        for name in self.NAMES:
            if getattr(sys, name) is not self._objects[name] or self._objects[name] != self._clean[name]:
                self._objects[name][:] = self._clean[name]
                setattr(sys, name, self._objects[name])
                yield f"sys.{name}"


class Attributes:
    """Attributes of modules that hold for the whole process."""

    what = "attributes of the standard library"
    NAMES = (
        (builtins, "print"), (sys, "breakpointhook"), (sys, "excepthook"), (sys, "unraisablehook"), (sys, "displayhook"),
        (sys, "stdin"), (sys, "stdout"), (sys, "stderr"), (sys, "dont_write_bytecode"), (sys, "pycache_prefix"),
        (threading, "excepthook"), (tempfile, "tempdir"), (warnings, "formatwarning"), (logging, "raiseExceptions"),
        (logging, "lastResort"), (ssl, "_create_default_https_context"), (urllib.request, "_opener"),
    )  # fmt: skip

    def __init__(self) -> None:
        self._clean = [getattr(module, name) for module, name in self.NAMES]

    def restore(self) -> Iterator[str]:
        for (module, name), clean in zip(self.NAMES, self._clean, strict=True):
            if getattr(module, name) is not clean:
                setattr(module, name, clean)
                yield f"{module.__name__}.{name}"


class Warnings:
    what = "warnings"

    def __init__(self) -> None:
        self._enter()

    def _enter(self) -> None:
        """Leaving the context puts filters and `showwarning` back, whatever happened in between."""
        self._context = warnings.catch_warnings()
        self._context.__enter__()
        self._clean = (list(warnings.filters), warnings.showwarning)

    def restore(self) -> Iterator[str]:
        if (list(warnings.filters), warnings.showwarning) != self._clean:
            if warnings.showwarning is not self._clean[1]:
                logging.captureWarnings(False)  # it keeps books of its own
            self._context.__exit__(None, None, None)
            self._enter()
            yield self.what


class Signals:
    """Handlers. Python lets only the main thread set them, so a trial can change them only through a callback."""

    what = "signal handlers"

    def __init__(self) -> None:
        self._clean = {number: signal.getsignal(number) for number in signal.valid_signals()}

    def restore(self) -> Iterator[str]:
        for number, clean in self._clean.items():
            if signal.getsignal(number) is not clean and signal.getsignal(number) != clean:
                if clean is None:
                    raise RuntimeError(f"{signal.Signals(number).name} was handled outside of Python")
                signal.signal(number, clean)
                yield f"handler of {signal.Signals(number).name}"


LASTING = (Environment, Folder, Lists, Attributes, Warnings, Signals)
