"""Stopping a sweep before it is done: by a signal, or by a request from another process.

A request is a file in the sweep's folder that the driver's loop looks at.

    tunelab stop --> stop.request: {"session": 3, "now": false} --> the driver of session 3 --> as after Ctrl-C

A request names the session that it is meant for, by its number in the journal. Every start of a driver is another session, so a
request that nobody took can never stop a later one.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunelab.errors import BadInputError
from tunelab.journal import SweepState, read_events
from tunelab.journal.home import SweepFolder

if TYPE_CHECKING:
    from tunelab.engine.conductor import Conductor
    from tunelab.engine.ray.tune import Binding

FILE_NAME = "stop.request"
GRACE_S = 10.0  # how long a sweep that is stopping waits for a trial's next report before it interrupts it
LOOKS_EVERY_S = 0.2
APPEARS_WITHIN_S = 10.0  # a driver that has locked the sweep starts its session; a verb that is no driver never does


@dataclass(frozen=True)
class Request:
    """What is asked for.

    Args:
        session: Number of the session that is to end, from 1.
        now: Whether not to wait for trials' next reports, as after a second Ctrl-C.
    """

    session: int
    now: bool = False


class Requests:
    """The driver's side: what has been asked of its session.

    Args:
        folder: The sweep's folder.
        session: The number of the session that this driver runs.
        clock: Seconds that only go forward.
    """

    def __init__(self, folder: Path, session: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._file, self._session, self._clock = folder / FILE_NAME, session, clock
        self._looks_at = clock()
        self._heard: Request | None = None

    def news(self) -> Request | None:
        """A request that was not told before. Looks at the file at most every 0.2 s, so it may be called at any rate."""
        now = self._clock()
        if now < self._looks_at:
            return None
        self._looks_at = now + LOOKS_EVERY_S
        found = _read(self._file)
        if found is None or found.session != self._session or found == self._heard:
            return None
        self._heard = found
        return found

    def close(self) -> None:
        """The session is over: what was asked of it, or of an earlier one, is settled."""
        found = _read(self._file)
        if found is not None and found.session <= self._session:
            self._file.unlink(missing_ok=True)


class Interruptions:
    """Ctrl-C, SIGTERM or `tunelab stop` stop at the next report or after `GRACE_S`, a second one at once.

    Only the main thread can be signalled.

    The handler may run anywhere, so it only takes a note; `each_round`, called in the sweep's loop, tells the user.

    Args:
        conductor: Is told to stop.
        say: Shows a sentence to the user.
        requests: What is asked for by a file.
    """

    def __init__(self, conductor: Conductor, say: Callable[[str], None], requests: Requests) -> None:
        self._conductor, self._say, self._requests = conductor, say, requests
        self._before: dict[int, Any] = {}
        self._unsaid = ""
        self.binding: Binding | None = None

    def __enter__(self) -> Interruptions:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._requests.close()

    def _handle(self, number: int, frame: Any) -> None:
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        if self._conductor.stop("interrupted", name):
            self._unsaid = f"{name}: stopping at the next report, or in {GRACE_S:g} s; again to stop now"
        elif self.binding is not None:
            self.binding.hurry = True

    def each_round(self) -> None:
        """Take what has been asked for by a file, and say what that or a signal brought about."""
        request = self._requests.news()
        if request is not None:
            if self._conductor.stop("interrupted", "tunelab stop"):
                self._unsaid = f"tunelab stop: stopping {'now' if request.now else 'at the next report'}"
            if request.now and self.binding is not None:
                self.binding.hurry = True
        if self._unsaid:
            self._unsaid, text = "", self._unsaid
            self._say(text)


def ask(folder: Path, request: Request) -> None:
    """Leave a request, whole or not at all."""
    partial = folder / f"{FILE_NAME}.{os.getpid()}.partial"
    partial.write_text(json.dumps(asdict(request)))
    partial.replace(folder / FILE_NAME)


def stop(
    folder: SweepFolder,
    *,
    now: bool = False,
    told: Callable[[Request], None] = lambda request: None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> SweepState:
    """Ask the sweep's driver to stop as Ctrl-C does, wait until it has ended, and return what it left.

    Args:
        folder: The sweep's.
        now: Whether not to wait for trials' next reports.
        told: Called once the request is there.
        sleep: Waits so many seconds.
        clock: Seconds that only go forward.

    Raises:
        BadInputError: No driver runs the sweep, or what holds it is none.
    """
    state, until = SweepState(), clock() + APPEARS_WITHIN_S
    asked = None
    try:
        while folder.is_running() and not _read_on(folder, state, asked):
            count = len(state.sessions)
            at_work = count > 0 and state.sessions[-1].ended_at is None
            # A driver that has locked the sweep and started no session yet will start the next one. A later session is asked
            # only after one that shows no end: its driver had been killed before.
            if asked is None or (at_work and count > asked.session):
                asked = Request(count + (not at_work), now)
                ask(folder.path, asked)
                told(asked)
            elif count < asked.session and clock() >= until:
                break
            sleep(0.1)
    finally:
        if asked is not None:
            Requests(folder.path, asked.session).close()
    if asked is None:
        raise BadInputError(f"No driver runs {folder.path.name}, so there is nothing to stop.")
    _read_on(folder, state, asked)
    if len(state.sessions) < asked.session:
        raise BadInputError(
            f"No session of {folder.path.name} is at work and none has begun since, so there is nothing to stop. What holds "
            "the sweep is another verb (gc, doctor), or a driver that is only starting or ending: then try again in a moment."
        )
    return state


def _read_on(folder: SweepFolder, state: SweepState, asked: Request | None) -> bool:
    """Take in what the journal says. Once the session that was asked has ended, no later one: returns whether there is one."""
    for event in read_events(folder.journal, state.seq):
        if event.kind == "session_started" and asked is not None and len(state.sessions) == asked.session:
            if state.sessions[-1].outcome is not None:
                return True
        state.apply(event)
    return False


def _read(file: Path) -> Request | None:
    try:
        data = json.loads(file.read_text())
        return Request(int(data["session"]), bool(data["now"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
