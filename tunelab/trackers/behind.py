"""What a tracking store still lacks of a sweep: a small file beside the journal for as long as it lacks anything.

The journal holds every point in order, so nothing else has to be kept. `tracker.behind` appears when a tracker starts and goes
when everything is recorded. Where it is found without a driver and without a tracker, the store was down or everybody was
killed, and the next `tunelab` command has the rest recorded.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tunelab.errors import JournalError
from tunelab.journal.locks import held
from tunelab.journal.store import FILE_NAME as JOURNAL
from tunelab.journal.store import read_events
from tunelab.trackers.tracking import Tracking

FILE_NAME, LOCK, LOG = "tracker.behind", "tracker.lock", "tracker.log"
_DRIVER_LOCK = "driver.lock"


@dataclass(frozen=True, kw_only=True)
class Behind:
    """How far a tracker has come.

    Args:
        tracking: Where to.
        recorded: Position in the journal up to which everything is recorded.
        parts: How many writes the store has taken from the tracker that wrote this: it grows while there is progress.
        why: What the store said when it last refused, or empty while it answers.
    """

    tracking: Tracking
    recorded: int = 0
    parts: int = 0
    why: str = ""


def mark(folder: Path, behind: Behind) -> None:
    """Write the file, whole or not at all. A folder that cannot be written is no reason to fail."""
    partial = folder / f"{FILE_NAME}.{os.getpid()}.partial"
    data: dict[str, Any] = {"tracking": behind.tracking.to_json(), "home": str(folder.absolute().parent)}
    data |= {"recorded": behind.recorded, "parts": behind.parts, "why": behind.why}
    try:
        partial.write_text(json.dumps(data), encoding="utf-8")
        partial.replace(folder / FILE_NAME)
    except OSError:
        partial.unlink(missing_ok=True)


def begin(folder: Path, tracking: Tracking) -> Behind:
    """Write that a tracker starts on this sweep, and return what was written."""
    before = read(folder)
    recorded = before.recorded if before is not None and before.tracking == tracking else 0
    mark(folder, found := Behind(tracking=tracking, recorded=recorded))
    return found


def read(folder: Path) -> Behind | None:
    """What the file says, or None when there is none. A local store is looked for beside a sweep whose folder was moved."""
    try:
        data = json.loads((folder / FILE_NAME).read_text(encoding="utf-8"))
        tracking = Tracking.from_json(data["tracking"]).moved(Path(data["home"]), folder.absolute().parent)
        return Behind(tracking=tracking, recorded=data["recorded"], parts=data["parts"], why=data["why"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # a machine that crashed may have left it empty
        journalled = _journalled(folder)
        return None if journalled is None else Behind(tracking=journalled)


def journal_grew(folder: Path) -> None:
    """Note that somebody wrote to the journal without a tracker, as `gc` does: the next `tunelab` command has it recorded."""
    tracking = _journalled(folder)
    if tracking is not None and read(folder) is None:
        mark(folder, Behind(tracking=tracking))


def _journalled(folder: Path) -> Tracking | None:
    """Where the sweep's latest session tracked to, or None when it did to nowhere."""
    latest: Mapping[str, Any] = {}
    try:
        for event in read_events(folder / JOURNAL):
            if event.kind == "session_started":
                latest = event.data
    except JournalError:
        return None
    if not latest.get("tracking") or latest["tracking"].get("kind") == "none":
        return None
    now = folder.absolute().parent
    return Tracking.from_json(latest["tracking"]).moved(Path(latest.get("code", {}).get("home", now)), now)


def clear(folder: Path) -> None:
    """Everything is recorded."""
    try:
        (folder / FILE_NAME).unlink(missing_ok=True)
    except OSError:
        pass


def is_behind(folder: Path) -> bool:
    """Whether the sweep's tracking lags and nobody is at it: no driver runs the sweep and no tracker records it."""
    return (folder / FILE_NAME).is_file() and not held(folder / _DRIVER_LOCK) and not held(folder / LOCK)


def missing(folder: Path) -> int:
    """How many of the journal's events are not recorded yet."""
    found = read(folder)
    return 0 if found is None else sum(1 for _ in read_events(folder / JOURNAL, found.recorded))


class Progress:
    """Keeps the file up to date for one tracker."""

    def __init__(self, folder: Path, tracking: Tracking) -> None:
        self._folder, self._behind = folder, begin(folder, tracking)

    def recorded(self, seq: int) -> None:
        """The store took something; 0 when the journal's position has not moved."""
        now = self._behind
        self._say(replace(now, recorded=max(seq, now.recorded), parts=now.parts + 1, why=""))

    def refused(self, why: str) -> None:
        """The store does not answer."""
        self._say(replace(self._behind, why=why))

    def _say(self, behind: Behind) -> None:
        self._behind = behind
        mark(self._folder, behind)


def silence_of(tracking: Tracking, timeout_s: float = 5.0) -> str | None:
    """Why the server does not answer, found out without MLflow; None when it does, or when the store is no web server.

    Args:
        tracking: Whose server.
        timeout_s: Longest wait. A server that accepts and says nothing is as silent as one that is down.
    """
    if not tracking.tracking_uri.startswith(("http://", "https://")):
        return None
    import urllib.error  # here: a reading verb that only looks whether a sweep lags does without
    import urllib.request

    try:
        urllib.request.urlopen(f"{tracking.tracking_uri.rstrip('/')}/health", timeout=timeout_s).close()
    except urllib.error.HTTPError as error:
        return None if error.code < 500 else f"it says {error.code} {error.reason}"
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", None) or error)
    return None
