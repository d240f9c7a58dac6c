"""Child processes that a trial has started, and theirs: found through /proc, reported and ended."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

from tunelab.engine.hygiene.cleanup import Found

END_S = 1.0  # how long child processes may take to end by themselves


class Children:
    """Those from before the first trial are known and left alone."""

    def __init__(self) -> None:
        self._known = {child.pid for child in descendants()}

    def end(self, found: Found) -> None:
        """End the processes that a trial has left. Where a pool still holds on to them, this one is unfit."""
        _stop_fork_server()
        spared = self._known | trackers()
        pooled = {process.pid for process in multiprocessing.active_children()}
        new = [child for child in descendants() if child.pid not in spared]
        alive = [child for child in new if not child.ended]
        found.leftovers += [f"child process {child.pid} ({child.command}) still ran and was ended" for child in alive]
        if pooled & {child.pid for child in alive}:
            # Whoever started them still holds on to them, and would fail or hang when the next trial used it.
            found.reasons.append("a multiprocessing pool or process of the trial's was still in use")
            _stop_pools()
        for _ in range(3):  # one may have started another in the meantime
            _end(new)
            new = [child for child in descendants() if child.pid not in spared and _is_alive(child)]
        if new:
            found.reasons.append(f"{len(new)} child processes cannot be ended or come back")


@dataclass(frozen=True)
class Child:
    """A descendant. Its start tells it from a later process of the same number."""

    pid: int
    started: str
    command: str
    ended: bool  # and only waits to be asked how


def descendants(of: int | None = None) -> list[Child]:
    """All descendants, parents before children. Linux alone tells; elsewhere none are found."""
    found = []
    for pid in _child_pids("self" if of is None else str(of)):
        if (child := look(pid)) is not None:
            found += [child, *descendants(pid)]
    return found


def _child_pids(of: str) -> list[int]:
    pids: list[int] = []
    with suppress(OSError):  # no /proc, or the process has just ended
        for thread in os.listdir(f"/proc/{of}/task"):
            with suppress(OSError), open(f"/proc/{of}/task/{thread}/children") as file:
                pids += map(int, file.read().split())
    return pids


def look(pid: int) -> Child | None:
    try:
        with open(f"/proc/{pid}/stat") as file:
            name, _, fields = file.read().partition("(")[2].rpartition(") ")
        with open(f"/proc/{pid}/cmdline") as file:
            command = " ".join(file.read().replace("\0", " ").split())
    except OSError:
        return None
    state, started = fields.split()[0], fields.split()[19]
    return Child(pid, started, short(command or name), ended=state in "ZX")


def short(text: str, length: int = 60) -> str:
    return text if len(text) <= length else f"{text[: length - 3]}..."


def _end(children: list[Child]) -> None:
    """Ask them to end; after `END_S`, kill them. Waits until they are gone, for as long again at most."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for child in children:
            if _is_alive(child):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(child.pid, number)
        until = time.monotonic() + END_S
        while sum(map(_is_alive, children)):  # not `any`, so that all are reaped
            if time.monotonic() > until:
                break
            time.sleep(0.005)
        else:
            return


def _is_alive(child: Child) -> bool:
    """Reaps it if it has ended and is this process's own."""
    now = look(child.pid)
    if now is None or now.started != child.started:
        return False
    if now.ended:
        with suppress(ChildProcessError):
            os.waitpid(child.pid, os.WNOHANG)
        return False
    return True


def trackers() -> set[int]:
    """multiprocessing's resource tracker: started once, holds nothing of a trial's, and is missed when it is gone."""
    tracker = sys.modules.get("multiprocessing.resource_tracker")
    pid = getattr(getattr(tracker, "_resource_tracker", None), "_pid", None)
    return set() if pid is None else {pid}


def _stop_fork_server() -> None:
    """It hands the environment of the trial that started it to all processes that it forks. It starts again when needed."""
    server = getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", None)
    if server is not None and server._forkserver_pid is not None:
        server._stop()


def _stop_pools() -> None:
    """Keep pools from starting new processes in place of those that are ended."""
    pools = sys.modules.get("multiprocessing.pool")
    for thread in threading.enumerate():
        if pools is not None and getattr(thread, "_target", None) == pools.Pool._handle_workers:
            setattr(thread, "_state", pools.TERMINATE)  # noqa: B010


def adopt_orphans() -> None:
    """Make the kernel hand the children of dead children to this process instead of to init."""
    if sys.platform == "linux":
        PR_SET_CHILD_SUBREAPER = 36
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
