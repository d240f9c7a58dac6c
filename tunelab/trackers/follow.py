"""The tracker's loop: follows a journal until its driver is gone, and leaves no run open.

Bytes on the inbox mean "something new"; what is new is read from the journal, all of it in one go. The end of the inbox means
that the driver is done or dead: what is left is recorded, open runs are closed, and the loop ends.

A store that does not answer is asked again, less and less often, for as long as the driver lives; the reading position stays
where it is, so nothing is lost or reordered and memory does not grow. The process around it is `run.py`.
"""

from __future__ import annotations

import itertools
import logging
import os
import select
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, TypeVar

from tunelab.core.failures import is_disk_full
from tunelab.journal.events import Event
from tunelab.journal.store import read_events
from tunelab.trackers.changes import Batch
from tunelab.trackers.projection import End, Projection

log = logging.getLogger("tunelab.tracker")
Result = TypeVar("Result")

EVENTS_A_BATCH = 2000
RUNS_AT_ONCE = 10  # written between two signs of progress
_LOOK_S = 5.0  # how often to look for a dead driver whose pipe somebody else still holds open
_BRIEF = 120
_BACKOFF_S = (0.5, 1, 2, 4, 8, 15)


class StartOver(Exception):
    """The store lost what it had of this sweep (somebody deleted it): record it from the beginning."""


class Replaced(Exception):
    """The store itself was deleted or replaced: only a new process can forget the old one."""


class GaveUp(Exception):
    """The driver is gone and the store did not answer in time."""


class Tracker(Protocol):
    """Writes changes to one store. A call that raised may be repeated."""

    def open(self, uid: str, experiment: str) -> int:
        """Find what the store has of sweep `uid`; returns the position up to which its journal is recorded, 0 for nothing."""
        ...

    def record(self, batch: Batch) -> None:
        """Write `batch`, then that the journal is recorded up to `batch.seq`, if that is more than before. Takes out of
        `batch` what is written.
        """
        ...

    def audit(self, uid: str, experiment: str, ends: Mapping[int | None, End], seq: int) -> list[str]:
        """What `settle` and recording would put right, a line each. Writes nothing; `tunelab doctor` asks."""
        ...

    def settle(self, ends: Mapping[int | None, End]) -> list[str]:
        """Put right what calls left that were given up and carried out later: runs that are there twice, and ends that are
        not those of the journal. Returns what was put right, a line each.

        Args:
            ends: How each run stands, by trial number; the sweep's own under `SWEEP`.
        """
        ...


class Inbox:
    """The pipe from the driver.

    Args:
        fd: Its reading end.
        parent: Process id of the driver, to notice its death also if the pipe stays open; None if it is not ours.
    """

    def __init__(self, fd: int = 0, parent: int | None = None) -> None:
        self._fd, self._parent = fd, parent
        self.ended = False

    def wait(self, timeout_s: float) -> bool:
        """Wait for news; returns whether there are any. Sets `ended` when the driver is done or dead."""
        if self.ended:
            return False
        if self._parent is not None and os.getppid() != self._parent:
            self.ended = True
            return True
        try:
            readable, _, _ = select.select([self._fd], [], [], max(0.0, timeout_s))
            self.ended = bool(readable) and os.read(self._fd, 65536) == b""
        except OSError:
            readable, self.ended = [], True
        return bool(readable) or self.ended

    def end(self, *_: object) -> None:
        """Take it that the driver is gone (SIGTERM)."""
        self.ended = True


class Follower:
    """Carries one sweep's journal over to a tracker.

    Args:
        journal: The journal's file.
        tracker: Where to.
        inbox: Says when there is news and when the driver is gone.
        drain_timeout_s: How long a store that does not answer is asked again once the driver is gone.
        interval_s: Least time between two batches, so that many small reports cost few calls.
        recorded: Called whenever the store has taken something, with the position up to which the journal is recorded.
        refused: Called with what the store said, or did not say, when a call failed.
        settle: Whether to compare how runs stand at the end also when no call has failed.
    """

    def __init__(
        self,
        journal: Path,
        tracker: Tracker,
        inbox: Inbox,
        drain_timeout_s: float = 60,
        interval_s: float = 0.5,
        *,
        recorded: Callable[[int], None] = lambda seq: None,
        refused: Callable[[str], None] = lambda why: None,
        settle: bool = False,
    ) -> None:
        self._journal, self._tracker, self._inbox = journal, tracker, inbox
        self._drain_timeout_s, self._interval_s = drain_timeout_s, interval_s
        self._recorded, self._refused, self._settle = recorded, refused, settle

    def run(self) -> None:
        """Return once the driver is gone and everything is recorded.

        Raises:
            GaveUp: The store did not answer.
            Replaced: The store is another one now.
        """
        while True:
            try:
                return self._follow()
            except StartOver as reason:
                log.warning("recording from the beginning: %s", reason)

    def _follow(self) -> None:
        projection = Projection(self._journal.parent)
        cursor: int | None = None
        while True:
            ended, began = self._inbox.ended, time.monotonic()  # asked before reading: what the driver said last is read, too
            events = self._insist(lambda: self._read(projection.state.seq))
            for event in events:
                projection.apply(event)
                if cursor is None:
                    cursor = self._insist(lambda: self._tracker.open(projection.uid, projection.experiment))
                    self._recorded(cursor)
                if event.seq <= cursor:
                    projection.take()  # is recorded already
            self._record(projection.take())
            if len(events) == EVENTS_A_BATCH:
                continue
            if ended:
                break
            if cursor and projection.state.seq >= cursor:
                self._record(projection.reopen())
                cursor = 0  # once
            self._inbox.wait(0)
            if not events:
                self._inbox.wait(_LOOK_S)
            while not self._inbox.ended and (left := began + self._interval_s - time.monotonic()) > 0:
                self._inbox.wait(left)
        if projection.uid:
            self._record(projection.close_open())
            if self._settle:
                for line in self._insist(lambda: self._tracker.settle(projection.ends())):
                    log.info("%s", line)

    def _read(self, after: int) -> list[Event]:
        return list(itertools.islice(read_events(self._journal, after), EVENTS_A_BATCH))

    def _record(self, batch: Batch) -> None:
        for part in batch.parts(RUNS_AT_ONCE):
            self._record_part(part)

    def _record_part(self, part: Batch) -> None:
        self._insist(lambda: self._tracker.record(part))
        self._recorded(part.seq)

    def _insist(self, call: Callable[[], Result]) -> Result:
        """The result of `call`, however often it has to be made."""
        deadline: float | None = None
        for tries in itertools.count():
            try:
                result = call()
            except (StartOver, Replaced):
                raise
            except Exception as error:
                now = time.monotonic()
                self._settle = True  # what timed out here may still be carried out there, at any time
                self._refused(brief(error))
                if self._inbox.ended:
                    deadline = deadline or now + self._drain_timeout_s
                    if now >= deadline or is_disk_full(error):  # the user is told to free some space: no use in waiting
                        raise GaveUp(f"{type(error).__name__}: {error}") from error
                pause_s = _BACKOFF_S[min(tries, len(_BACKOFF_S) - 1)]
                log.log(logging.WARNING if tries == 0 else logging.DEBUG, "not recorded yet, trying again: %r", error)
                self._pause(pause_s if deadline is None else min(pause_s, 2.0, deadline - now))
            else:
                if tries:
                    log.info("recorded at try %d", tries + 1)
                return result
        raise AssertionError("unreachable")

    def _pause(self, seconds: float) -> None:
        """Wait, but no longer than until the driver is gone."""
        until, ended = time.monotonic() + seconds, self._inbox.ended
        while (left := until - time.monotonic()) > 0 and self._inbox.ended == ended:
            if not ended:
                self._inbox.wait(min(left, _LOOK_S))
            else:
                time.sleep(left)


def brief(error: Exception) -> str:
    """An error in half a line. MLflow's hold the address, the page that was asked for and the reason, in nested words."""
    line = f"{type(error).__name__}: {error}".partition("\n")[0]
    return line if len(line) <= _BRIEF else f"{line[:_BRIEF].rstrip()} ..."
