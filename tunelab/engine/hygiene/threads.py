"""Threads that a trial has started. None can be killed, so one that still runs may cost the process."""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import thread as pool_threads

from tunelab.engine.hygiene.cleanup import Found
from tunelab.engine.hygiene.ownership import SITE, in_folder, is_library

END_S = 1.0  # how long threads may take to end by themselves
MANY = 32  # background threads that libraries may leave in all; more are a leak

_THREADED = (*SITE, "multiprocessing", "concurrent", "asyncio")  # the standard library's that do their work in threads


class Threads:
    """Those from before the first trial are known and left alone."""

    def __init__(self) -> None:
        self._known = set(threading.enumerate())

    def end(self, found: Found) -> None:
        """Wait for threads to end. Those that run the user's code, or that would keep the process alive, make it unfit."""
        until = time.monotonic() + END_S
        while disturbing := [thread for thread in self._new() if _disturbs(thread)]:
            if time.monotonic() > until:
                names = ", ".join(sorted(thread.name for thread in disturbing))
                runs = "thread still runs" if len(disturbing) == 1 else "threads still run"
                found.leftovers.append(f"{len(disturbing)} {runs}: {names}")
                found.reasons.append(found.leftovers[-1])
                return
            time.sleep(0.002)
        background = len(self._new())
        if background > MANY:
            found.reasons.append(f"libraries have left {background} threads in the background")

    def _new(self) -> list[threading.Thread]:
        here = threading.current_thread()
        return [thread for thread in threading.enumerate() if thread not in self._known and thread is not here]


def _disturbs(thread: threading.Thread) -> bool:
    """Whether a thread keeps the process from being as good as new.

    A library's thread in the background, such as a progress bar's, does not, nor a pool's that has nothing to do. All others
    do: they run the user's code, or would hold up the end of the process, or nobody can tell whose they are. Threads that a
    trial starts are daemons, because its own thread is one, so that alone says nothing.
    """
    frame = sys._current_frames().get(thread.ident or 0)
    if frame is None:
        return False  # it has ended
    if thread in pool_threads._threads_queues:
        waits = frame.f_code is pool_threads._worker.__code__ and frame.f_locals.get("work_item") is None
        return not (waits and pool_threads._threads_queues[thread].empty())
    target = getattr(thread, "_target", None) or getattr(thread, "function", None)  # of Thread, of Timer
    code = getattr(target, "__code__", None)
    files = [] if code is None else [code.co_filename]
    while frame is not None:
        files.append(frame.f_code.co_filename)
        frame = frame.f_back
    return not (thread.daemon and all(map(is_library, files)) and any(in_folder(file, _THREADED) for file in files))
