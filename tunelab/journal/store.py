"""The journal's file: SQLite in WAL mode, one row an event, appended by one driver, read by anybody at any time."""

from __future__ import annotations

import json
import os
import shlex
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path

from tunelab.errors import DiskFullError, JournalError
from tunelab.journal.events import Event

SCHEMA_VERSION = 1
FILE_NAME = "journal.sqlite"
_ROWS_AT_ONCE = 500  # that a reader decodes together

_SCHEMA = (
    "CREATE TABLE events (seq INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL, trial INTEGER, data TEXT NOT NULL)"
)


class Journal:
    """Appends events to a sweep's journal. `append` returns once the event is on disk.

    Once a write has failed, all later ones do: what happened since is known to memory alone, so the file must end there, as if
    the driver had been killed.

    Args:
        path: The file; created if there is none.
        clock: Seconds since the epoch, for the events' times.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path, self._clock = Path(path), clock
        self._together = False
        self._broken: JournalError | None = None
        self._connection = _connect(self.path, create=True)
        with self._errors(), self._connection as connection:
            if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
                connection.execute(_SCHEMA)
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        _check_version(self._connection, self.path)

    @classmethod
    def create(cls, path: Path, first: Event, clock: Callable[[], float] = time.time) -> Journal:
        """A new journal that holds `first`. The file appears with it, so that no reader finds a sweep without a beginning."""
        partial = Path(path).with_name(f"{Path(path).name}.partial")
        try:
            journal = cls(partial, clock)
            journal.append(first)
            journal.close()
        except DiskFullError as error:
            for left in partial.parent.glob(f"{partial.name}*"):
                left.unlink()
            raise DiskFullError(
                f"Cannot write {path}: the disk is full. Nothing was started; free some space first."
            ) from error
        partial.rename(path)
        return cls(path, clock)

    def append(self, event: Event) -> Event:
        """Make `event` durable and return it with its position and time."""
        at = self._clock()
        data = json.dumps(event.data, separators=(",", ":"))
        if not self.path.exists():  # SQLite would go on writing to the deleted file
            raise JournalError(f"The journal {self.path} has been removed: what happens from now on would be lost.")
        self._refuse_broken()
        with self._errors():
            cursor = self._connection.execute(
                "INSERT INTO events (at, kind, trial, data) VALUES (?, ?, ?, ?)", (at, event.kind, event.trial, data)
            )
            if not self._together:
                self._connection.commit()
        # What readers get back, so that the driver's state and a replayed one hold the same values.
        return Event(event.kind, event.trial, json.loads(data), cursor.lastrowid or 0, at)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Make all events appended inside durable at once, at the end: all of them, or none if the process dies before."""
        self._together = True
        try:
            yield
        finally:
            self._together = False
            self._refuse_broken()
            with self._errors():
                self._connection.commit()

    def _refuse_broken(self) -> None:
        if self._broken is not None:
            raise self._broken

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
            what = "the disk is full" if full else str(error)
            then = "Free some space, then go" if full else "Once that is cured, go"
            self._broken = (DiskFullError if full else JournalError)(
                f"Cannot write to {self.path}: {what}. Nothing that was recorded is lost.\n"
                f"{then} on with: tunelab resume {shlex.quote(str(self.path.parent))}"
            )
            self._connection.rollback()
            raise self._broken from error

    def events(self) -> Iterator[Event]:
        """All events so far, in order."""
        return _select(self._connection, self.path, 0)

    def close(self) -> None:
        self._connection.close()


def read_events(path: Path, after: int = 0) -> Iterator[Event]:
    """Events with a position greater than `after`, in order. Works while a driver appends.

    Raises:
        JournalError: There is no such file, or it is not a journal that this version can read.
    """
    if not Path(path).is_file():
        raise JournalError(f"There is no journal at {path}.")
    connection = _connect(Path(path), create=False)
    try:
        _check_version(connection, Path(path))
        yield from _select(connection, Path(path), after)
    except sqlite3.Error as error:
        raise JournalError(f"Cannot read {path}: {error}.") from error
    finally:
        connection.close()


def _connect(path: Path, *, create: bool) -> sqlite3.Connection:
    try:
        if create:
            path.parent.mkdir(parents=True, exist_ok=True)
        address = f"{path.resolve().as_uri()}?mode={_mode(path.resolve(), create=create)}"
        connection = sqlite3.connect(address, uri=True, timeout=30, check_same_thread=False)
        if create:
            connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
    except (OSError, sqlite3.Error) as error:
        raise JournalError(f"Cannot open {path}: {error}.") from error
    return connection


def _mode(path: Path, *, create: bool) -> str:
    """How SQLite opens the file. Readers of a WAL file may have to recover it, and make files beside it, so they may write.

    Where that is forbidden and nothing waits in the WAL, the file alone is read.
    """
    if create:
        return "rwc"
    if os.access(path.parent, os.W_OK):
        return "rw"
    wal = path.with_name(f"{path.name}-wal")
    return "rw" if wal.exists() and wal.stat().st_size else "ro&immutable=1"


def _check_version(connection: sqlite3.Connection, path: Path) -> None:
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
    except sqlite3.Error as error:
        raise JournalError(f"{path} is not a journal: {error}.") from error
    if version != SCHEMA_VERSION:
        raise JournalError(f"{path} has schema version {version}; this tunelab reads version {SCHEMA_VERSION}.")


def _select(connection: sqlite3.Connection, path: Path, after: int) -> Iterator[Event]:
    rows = connection.execute("SELECT kind, trial, data, seq, at FROM events WHERE seq > ? ORDER BY seq", (after,))
    return chain.from_iterable(map(partial(_decode, path), iter(lambda: rows.fetchmany(_ROWS_AT_ONCE), [])))


def _decode(path: Path, rows: Sequence[tuple[str, int | None, str, int, float]]) -> Iterator[Event]:
    kinds, trials, texts, seqs, times = zip(*rows, strict=True)
    try:
        data = json.loads(f"[{','.join(texts)}]")  # all at once: half the time of one after the other
    except (ValueError, TypeError) as error:
        where = f"between events {seqs[0]} and {seqs[-1]}"
        raise JournalError(f"{path} was written by a newer tunelab, or is damaged: {where}, {error}.") from error
    return map(Event, kinds, trials, data, seqs, times)
