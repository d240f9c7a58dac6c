"""Settings of the standard library and of the process that one function reads and another writes, and a watchdog."""

from __future__ import annotations

import faulthandler
import gc
import locale
import multiprocessing
import os
import resource
import signal
import socket
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any


def umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


_LIMITS = tuple(getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_"))


def _limits() -> list[tuple[int, tuple[int, int]]]:
    return [(kind, resource.getrlimit(kind)) for kind in _LIMITS]


def _affinity() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def stack_size() -> int:
    size = threading.stack_size()  # which sets it to the default
    threading.stack_size(size)
    return size


def _set_limits(limits: list[tuple[int, tuple[int, int]]]) -> None:
    for kind, limit in limits:
        resource.setrlimit(kind, limit)


class Settings:
    """What is read by one function and written by another."""

    what = "settings of the standard library"
    TABLE: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
        "umask": (umask, os.umask),
        "locale": (lambda: locale.setlocale(locale.LC_ALL), lambda clean: locale.setlocale(locale.LC_ALL, clean)),
        "longest integer as text": (sys.get_int_max_str_digits, sys.set_int_max_str_digits),
        "recursion limit": (sys.getrecursionlimit, sys.setrecursionlimit),
        "switch interval": (sys.getswitchinterval, sys.setswitchinterval),
        "tracing of threads": (threading.gettrace, threading.settrace),
        "profiling of threads": (threading.getprofile, threading.setprofile),
        "stack size of threads": (stack_size, threading.stack_size),
        "socket timeout": (socket.getdefaulttimeout, socket.setdefaulttimeout),
        "garbage collection": (gc.isenabled, lambda clean: gc.enable() if clean else gc.disable()),
        "garbage collection's thresholds": (gc.get_threshold, lambda clean: gc.set_threshold(*clean)),
        "garbage collection's debugging": (gc.get_debug, gc.set_debug),
        "multiprocessing's start method": (
            lambda: multiprocessing.get_start_method(allow_none=True),
            lambda clean: multiprocessing.set_start_method(clean, force=True),
        ),
        "tracemalloc": (tracemalloc.is_tracing, lambda clean: tracemalloc.start() if clean else tracemalloc.stop()),
        "faulthandler": (
            faulthandler.is_enabled,
            lambda clean: faulthandler.enable(2) if clean else faulthandler.disable(),
        ),
        "priority": (
            lambda: os.getpriority(os.PRIO_PROCESS, 0),
            lambda clean: os.setpriority(os.PRIO_PROCESS, 0, clean),
        ),
        "limits": (_limits, _set_limits),
        "CPU affinity": (_affinity, lambda clean: os.sched_setaffinity(0, clean)),
        "timer": (lambda: signal.getitimer(signal.ITIMER_REAL)[0] > 0, lambda clean: signal.setitimer(signal.ITIMER_REAL, 0)),
    }

    def __init__(self) -> None:
        self._clean = {name: read() for name, (read, _) in self.TABLE.items()}

    def restore(self) -> Iterator[str]:
        for name, (read, write) in self.TABLE.items():
            if read() != self._clean[name]:
                write(self._clean[name])
                yield name


class Watchdog:
    """`faulthandler.dump_traceback_later`, which may end the process. Nobody can tell whether it is set, so it always goes."""

    what = "faulthandler's watchdog"

    def restore(self) -> Iterator[str]:
        faulthandler.cancel_dump_traceback_later()
        return iter(())


LASTING = (Settings, Watchdog)
