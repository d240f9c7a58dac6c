"""The driver's side of tracking: starts the tracker process, wakes it, and lets no trouble of its own reach the training."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import tunelab.trackers
from tunelab.errors import JournalError, MissingDependencyError
from tunelab.trackers import behind
from tunelab.trackers.tracking import Tracking

_RESTART_AFTER_S = 10.0  # a tracker that dies at once is not started again at once
_SAID_AFTER_S = 3.0  # how long the user is left to wonder what the end waits for
_LOOK_S = 0.25


class TrackerProcess:
    """Records a journal in MLflow while the sweep runs, from a process of its own. Used by one thread.

        tracker = TrackerProcess(folder.journal, tracking, folder.path / "tracker.log")
        tracker.start()
        journal.append(event); tracker.poke()     # any number of times
        if not tracker.close(): ...               # the points follow at the next `tunelab` command

    The process is in a session of its own, so a Ctrl-C in the terminal does not reach it, and of low priority. It ends by
    itself when the driver does, however that ends. If it dies, it is started again a few times; then the sweep goes on
    without it.

    Args:
        journal: The sweep's journal.
        tracking: Where to. With kind `none` nothing is started and everything succeeds.
        log_path: Where the process writes what it has to say.
        restarts: How often to start it again.
        drain_timeout_s: How long it insists on a store that does not answer once it is closed.
        patience_s: How long `close` waits for a store that takes nothing and has not said why. MLflow takes seconds to start.
        outage_patience_s: How long it waits for a store that is known not to answer.
        settle: Whether the process compares at its end how runs stand with the journal.
        warn: Called with one line when tracking is in trouble, and when `close` waits.
    """

    def __init__(
        self,
        journal: Path,
        tracking: Tracking,
        log_path: Path,
        *,
        restarts: int = 3,
        drain_timeout_s: float = 60,
        patience_s: float = 30,
        outage_patience_s: float = 5,
        settle: bool = False,
        warn: Callable[[str], None] = lambda line: print(line, file=sys.stderr),
    ) -> None:
        self._journal, self._tracking, self._log_path = Path(journal).absolute(), tracking, Path(log_path)
        self._restarts, self._drain_timeout_s, self._warn = restarts, drain_timeout_s, warn
        self._patience_s, self._outage_patience_s, self._settle = patience_s, outage_patience_s, settle
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._warned = self._failed = False

    @property
    def pid(self) -> int | None:
        """The tracker's process id, or None before `start` and with kind `none`."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the process; returns at once, while it still imports MLflow.

        Raises:
            MissingDependencyError: MLflow is not installed.
        """
        if self._tracking.kind == "none":
            return
        if importlib.util.find_spec("mlflow") is None:
            raise MissingDependencyError("Tracking needs MLflow. Run: pip install mlflow   or track nowhere: --tracking none")
        behind.begin(self._journal.parent, self._tracking)
        try:
            self._launch()
        except OSError as error:
            self._failed = True
            self._trouble(f"Cannot start the tracker ({error}). The sweep goes on without it.")

    def poke(self) -> None:
        """Say that the journal has grown. Never waits, never raises."""
        if self._process is None:
            return
        try:
            if self._process.stdin is not None and not self._process.stdin.closed:
                os.write(self._process.stdin.fileno(), b".")
        except BlockingIOError:
            pass  # thousands of pokes lie unread in the pipe: one more says nothing new
        except OSError:
            self._revive()

    def close(self, timeout_s: float | None = None) -> bool:
        """Say that the driver is done, wait for the rest to be recorded, and return whether it was.

        It waits for as long as the store takes something, and not for one that takes nothing. Ctrl-C ends the waiting and
        nothing else. A tracker that is not done in time is left to finish on its own: it ends after `drain_timeout_s` at the
        latest, and whatever it does not manage is recorded by the next `tunelab` command.

        Args:
            timeout_s: Longest wait, or None for as long as there is progress.
        """
        if self._process is None:
            return not self._failed
        if self._process.poll() is not None:  # died since the last poke: have the rest caught up with
            self._revive(at_once=True)
        self._close_pipe()
        try:
            status = self._wait(timeout_s)
        except KeyboardInterrupt:
            status = None
        if status != 0:
            self._warned = False  # this is what counts in the end
            self._trouble(self._what_is_missing(status))
        return status == 0

    def _wait(self, timeout_s: float | None) -> int | None:
        """The process's exit status, or None when it has not ended and is not waited for any longer."""
        assert self._process is not None
        began = moved = time.monotonic()
        folder, seen, said = self._journal.parent, None, False
        while True:
            try:
                return self._process.wait(_LOOK_S)
            except subprocess.TimeoutExpired:
                pass
            now, found = time.monotonic(), behind.read(folder)
            if found is not None and (found.recorded, found.parts) != seen:
                seen, moved = (found.recorded, found.parts), now
            patience_s = self._outage_patience_s if found is not None and found.why else self._patience_s
            if now - moved >= patience_s or (timeout_s is not None and now - began >= timeout_s):
                return None
            if not said and now - began >= _SAID_AFTER_S:
                said = True
                self._warn(f"Waiting for {self._tracking.describe()} to take the last points. Ctrl-C: not to wait.")

    def _what_is_missing(self, status: int | None) -> str:
        """`MLflow (server (http://...)) has not got the last 12 events: ConnectionError ...`"""
        found, folder = behind.read(self._journal.parent), self._journal.parent
        try:
            number = behind.missing(folder)
        except JournalError:
            number = 0
        what = f"the last {number} events" if number else "everything yet"
        why = f" ({found.why})" if found is not None and found.why else ""
        ended = "" if status is None else f", status {status}"
        return f"{self._tracking.describe()} has not got {what}{why}; see {self._log_path}{ended}."

    def _launch(self) -> None:
        command = [sys.executable, "-m", "tunelab.trackers", "--journal", str(self._journal)]
        command += ["--tracking", json.dumps(self._tracking.to_json()), "--parent", str(os.getpid())]
        command += ["--drain-timeout", str(self._drain_timeout_s), *(["--settle"] if self._settle else [])]
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._log_path, "ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                bufsize=0,
                cwd=self._journal.parent,  # not the user's folder, where a file called mlflow.py would be imported
                env=_environment(),
                start_new_session=True,
            )
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        self._started_at = time.monotonic()

    def _revive(self, at_once: bool = False) -> None:
        """Start the process again if that is due; the new one finds in the store how far the old one came."""
        assert self._process is not None
        if not at_once and time.monotonic() - self._started_at < _RESTART_AFTER_S:
            return
        status = self._process.poll()
        if self._restarts <= 0:
            self._close_pipe()
            behind.begin(self._journal.parent, self._tracking)
            self._trouble(f"The tracker has ended (status {status}, see {self._log_path}). The sweep goes on without it.")
            return
        self._restarts -= 1
        self._close_pipe()
        try:
            self._launch()
        except OSError as error:
            self._trouble(f"Cannot start the tracker again ({error}). The sweep goes on without it.")

    def _close_pipe(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            try:
                self._process.stdin.close()
            except OSError:
                pass

    def _trouble(self, what: str) -> None:
        if not self._warned:
            self._warned = True
            self._warn(f"{what} Nothing is lost: the rest follows at the next tunelab command.")


def catch_up(
    journal: Path,
    tracking: Tracking,
    log_path: Path,
    drain_timeout_s: float = 60,
    *,
    settle: bool = False,
    warn: Callable[[str], None] = lambda line: print(line, file=sys.stderr),
) -> bool:
    """Record whatever of a journal is not in the store yet, and wait for it. For a sweep that no driver runs.

    Returns whether all of it is there now.
    """
    process = TrackerProcess(journal, tracking, log_path, restarts=0, drain_timeout_s=drain_timeout_s, settle=settle, warn=warn)
    process.start()
    return process.close()


def catch_up_later(folders: Sequence[Path]) -> int | None:
    """Start a process that records what is missing of these sweeps, and do not wait for it. Never raises.

    Takes a millisecond or two, and nothing at all where no sweep lags or somebody is at it.

    Args:
        folders: Sweeps' folders, any number.

    Returns:
        Its process id, or None when there was nothing to start.
    """
    try:
        late = [folder.absolute() for folder in folders if behind.is_behind(folder) and os.access(folder, os.W_OK)]
        if not late:
            return None
        command = [sys.executable, "-m", "tunelab.trackers", "--behind", *map(str, late)]
        with open(late[0] / behind.LOG, "ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,  # not ours: whoever reads us through a pipe would wait for its end
                stderr=log,
                cwd=late[0],
                env=_environment(),
                start_new_session=True,
            )
    except OSError:
        return None
    process.returncode = 0  # nobody will ask: keeps the interpreter from warning that it still runs
    return process.pid


def _environment() -> dict[str, str]:
    """Ours, with this very tunelab importable also when it runs from a source folder."""
    root = Path(tunelab.trackers.__file__).parents[2]
    if root.name in ("site-packages", "dist-packages"):
        return dict(os.environ)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])}
