"""Processes and temporary folders that a dead driver left on this machine.

A process belongs to a sweep when its command line names the Ray session that the sweep's driver started, whose name ends with
that driver's process id and begins with the time; or when it is a process of Ray's that works in a trial's own folder. Both
count only once the driver that the journal names is dead.
"""

from __future__ import annotations

import datetime
import os
import re
import socket
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from tunelab.engine.doctor.files import remove
from tunelab.engine.doctor.finding import Finding
from tunelab.journal import SweepState
from tunelab.journal.home import SweepFolder
from tunelab.journal.locks import abandoned
from tunelab.journal.state import Session

_RAY_SESSION = re.compile(r"session_(\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d)_\d+_(\d+)")
_RAY_VARIABLES = ("RAY_RAYLET_PID", "RAY_JOB_ID")
_BEFORE_S, _AFTER_S = 600.0, 60.0  # a driver connects to Ray before it journals its session
_GRACE_S = 5.0
_SHOWN = 3


@dataclass(frozen=True)
class Seen:
    """A process of this user's, as it was when it was looked at."""

    process: psutil.Process
    command: str
    folder: str
    started_at: float

    def is_of_ray(self) -> bool:
        """Whether Ray started it, or a process that Ray started."""
        if self.command.startswith("ray::"):
            return True
        try:
            environ = self.process.environ()
        except (psutil.Error, OSError):
            return False
        return any(name in environ for name in _RAY_VARIABLES)


def snapshot() -> list[Seen]:
    """The user's processes on this machine, but for this one and those that it was started by."""
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    found = []
    for process in psutil.process_iter():
        try:
            with process.oneshot():
                if process.pid in own or process.uids().real != os.getuid() or process.status() == psutil.STATUS_ZOMBIE:
                    continue
                command = " ".join(process.cmdline())
                found.append(Seen(process, command, process.cwd(), process.create_time()))
        except (psutil.Error, OSError):
            continue  # it has just ended, or may not be looked at
    return found


def left_of(folder: SweepFolder, state: SweepState, seen: Iterable[Seen]) -> Iterator[Finding]:
    """Processes of the sweep's dead drivers."""
    dead = [session for session in state.sessions if session.host == socket.gethostname() and is_dead(session)]
    if not dead or dead[-1] is not state.sessions[-1]:
        return
    trials = str(folder.trials.resolve())
    found = [one for one in seen if any(_started_by(one, session) for session in dead) or _works_in(one, trials, dead)]
    if found:
        names = [f"{one.process.pid} {_short(one.command)}" for one in found]
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        count = f"{len(found)} process{'es'[: 2 * (len(found) != 1)]}"
        what = f"{count} of its dead driver {dead[-1].pid}: {'; '.join(names[:_SHOWN])}{more}"
        yield Finding(
            "process", folder.path.name, what, "ends them", tuple(names), partial(end, [one.process for one in found])
        )


def is_dead(session: Session) -> bool:
    """Whether a session's driver is gone; another process may have its id by now."""
    try:
        process = psutil.Process(session.pid)
        return process.status() == psutil.STATUS_ZOMBIE or process.create_time() > session.started_at + 1.0
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:
        return False


def _started_by(one: Seen, session: Session) -> bool:
    for stamp, pid in _RAY_SESSION.findall(one.command):
        began = datetime.datetime.strptime(stamp, "%Y-%m-%d_%H-%M-%S").timestamp()
        if int(pid) == session.pid and -_BEFORE_S <= began - session.started_at <= _AFTER_S:
            return True
    return False


def _works_in(one: Seen, trials: str, dead: list[Session]) -> bool:
    inside = one.folder.startswith(f"{trials}/")
    return inside and one.started_at >= min(session.started_at for session in dead) - _BEFORE_S and one.is_of_ray()


def _short(command: str) -> str:
    """`ray::TrialActor.step`, `raylet`: the program without its path and arguments."""
    return os.path.basename(command.split(" ", 1)[0]) or "?"


def end(processes: list[psutil.Process]) -> bool:
    """End processes, politely and then not. Returns whether all are gone. A process id that was used again is left alone."""
    for act in (psutil.Process.terminate, psutil.Process.kill):
        for process in processes:
            try:
                act(process)
            except psutil.Error:
                pass
        _, processes = psutil.wait_procs(processes, timeout=_GRACE_S)
    return not processes


def temporary_folders() -> Iterator[Finding]:
    """Temporary folders that killed processes of tunelab's left, of this user."""
    for folder in sorted(Path(tempfile.gettempdir()).glob("tunelab-*-*")):
        try:
            mine = folder.lstat().st_uid == os.getuid()
        except OSError:
            continue
        if mine and abandoned(folder):
            what = "a temporary folder whose owner is dead"
            yield Finding("temporary", str(folder), what, "removes it", (str(folder),), partial(remove, [folder]))
