"""What a process holds, memory and open files: measured after each trial, and too much of it makes the process unfit."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import sys

from tunelab.engine.hygiene.cleanup import Found

MANY_FILES = 64  # open files that a trial may leave before it is mentioned
BLOATED_MB = 1024  # growth since the first trial beyond which the process is replaced, if it has also doubled


class Memory:
    """Compared with what was open before the first trial, and with the memory that was held after it."""

    def __init__(self) -> None:
        self._open_files = open_files()
        self._rss_mb: float | None = None  # after the first trial: imports and pools are paid for by then

    def measure(self, found: Found) -> None:
        """Give freed memory back to the system, then compare."""
        _return_free_memory()
        rss, files = rss_mb(), open_files()
        if files > self._open_files + MANY_FILES:
            found.leftovers.append(f"{files - self._open_files} more files and sockets are open than before")
            self._open_files = files  # say it once
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if most != resource.RLIM_INFINITY and files > 0.8 * most:
            found.reasons.append(f"{files} of at most {most} files are open")
        if self._rss_mb is None:
            self._rss_mb = rss
        if rss > max(2 * self._rss_mb, self._rss_mb + BLOATED_MB):
            found.reasons.append(f"it has grown from {self._rss_mb:.0f} to {rss:.0f} MB since its first trial")


def open_files() -> int:
    try:
        return len(os.listdir("/proc/self/fd" if sys.platform == "linux" else "/dev/fd"))
    except OSError as error:
        if error.errno == errno.EMFILE:
            return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return 0


def rss_mb() -> float:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize() / 2**20
    except OSError:  # not Linux: the most that it ever was
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def _return_free_memory() -> None:
    """glibc keeps what is freed. Without this, memory would seem to grow with the largest trial so far."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
