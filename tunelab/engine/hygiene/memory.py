"""What a process holds: memory, measured after each trial, and open files, too many of which make the process unfit."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import sys

from tunelab.engine.hygiene.cleanup import Found

MANY_FILES = 64  # open files that a trial may leave before it is mentioned


class Memory:
    """Open files are compared with those before the first trial. How much memory is too much is the experiment's to say."""

    def __init__(self) -> None:
        self._open_files = open_files()

    def measure(self, found: Found) -> None:
        """Give freed memory back to the system, then compare."""
        _return_free_memory()
        files = open_files()
        if files > self._open_files + MANY_FILES:
            found.leftovers.append(f"{files - self._open_files} more files and sockets are open than before")
            self._open_files = files  # say it once
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if most != resource.RLIM_INFINITY and files > 0.8 * most:
            found.reasons.append(f"{files} of at most {most} files are open")


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
