"""Trials that are to be tried again, in order; and how one of them comes to run alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class Lineup:
    """Which trial goes on next. O(1) in the number of trials.

    Args:
        alone_wait_s: How long nothing starts, at most, for the sake of a trial that is to run alone.
        clock: Seconds.
    """

    def __init__(self, alone_wait_s: float, clock: Callable[[], float]) -> None:
        self._wait_s, self._clock = alone_wait_s, clock
        self._next: deque[int] = deque()
        self._next_alone: deque[int] = deque()
        self._held_since: float | None = None
        self._running: set[int] = set()
        self.alone: int | None = None  # the trial that runs alone

    def __bool__(self) -> bool:
        return bool(self._next or self._next_alone)

    def add(self, number: int, *, alone: bool) -> int:
        """A trial is to go on. Returns how many others run, for which it has to wait if it is to be alone."""
        (self._next_alone if alone else self._next).append(number)
        return len(self._running - {number}) if alone else 0

    def holds(self) -> bool:
        """Whether nothing may start now, because a trial runs alone or waits for the others' end so that it can.

        Asked whenever something could start. One that has waited for too long starts beside the others.
        """
        if self.alone is not None:
            return True
        if not (self._next_alone and self._running):
            return False
        if self._held_since is None:
            self._held_since = self._clock()
        return self._clock() - self._held_since < self._wait_s

    def take(self) -> int | None:
        """The trial to go on with, if there is one: what is to run alone comes first. Not while it `holds`."""
        if self._next_alone:
            self._held_since = None
            number = self._next_alone.popleft()
            self.alone = None if self._running else number
            return number
        return self._next.popleft() if self._next else None

    def started(self, number: int) -> None:
        """An attempt of a trial was launched."""
        self._running.add(number)

    def ended(self, number: int) -> None:
        """An attempt of a trial is over."""
        self._running.discard(number)
        if self.alone == number:
            self.alone = None
