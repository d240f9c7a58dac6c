"""The driver's side of tracking: starts the tracker process, wakes it, and lets no trouble of its own reach the training."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import tunelab.trackers
from tunelab.errors import MissingDependencyError
from tunelab.trackers.tracking import Tracking

_RESTART_AFTER_S = 10.0  # a tracker that dies at once is not started again at once


class TrackerProcess:
    """Records a journal in MLflow while the sweep runs, from a process of its own. Used by one thread.

        tracker = TrackerProcess(folder.journal, tracking, folder.path / "tracker.log")
        tracker.start()
        journal.append(event); tracker.poke()     # any number of times
        if not tracker.close(): ...               # the points follow at the next resume

    The process is in a session of its own, so a Ctrl-C in the terminal does not reach it, and of low priority. It ends by
    itself when the driver does, however that ends. If it dies, it is started again a few times; then the sweep goes on
    without it.

    Args:
        journal: The sweep's journal.
        tracking: Where to. With kind `none` nothing is started and everything succeeds.
        log_path: Where the process writes what it has to say.
        restarts: How often to start it again.
        drain_timeout_s: How long it insists on a store that does not answer once it is closed.
        warn: Called once with one line when tracking is in trouble.
    """

    def __init__(
        self,
        journal: Path,
        tracking: Tracking,
        log_path: Path,
        *,
        restarts: int = 3,
        drain_timeout_s: float = 60,
        warn: Callable[[str], None] = lambda line: print(line, file=sys.stderr),
    ) -> None:
        self._journal, self._tracking, self._log_path = Path(journal).absolute(), tracking, Path(log_path)
        self._restarts, self._drain_timeout_s, self._warn = restarts, drain_timeout_s, warn
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._warned = False

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
        self._launch()

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

        A tracker that is not done in time is left to finish on its own: it ends after `drain_timeout_s` at the latest.

        Args:
            timeout_s: Longest wait, or None to wait until the tracker ends by itself.
        """
        if self._process is None:
            return True
        if self._process.poll() is not None:  # died since the last poke: have the rest caught up with
            self._revive(at_once=True)
        self._close_pipe()
        try:
            status = self._process.wait(self._drain_timeout_s * 2 + 60 if timeout_s is None else timeout_s)
        except subprocess.TimeoutExpired:
            return False
        if status != 0:
            self._trouble(f"Tracking is incomplete (status {status}, see {self._log_path}).")
        return status == 0

    def _launch(self) -> None:
        command = [sys.executable, "-m", "tunelab.trackers.mlflow", "--journal", str(self._journal)]
        command += ["--tracking", json.dumps(self._tracking.to_json()), "--parent", str(os.getpid())]
        command += ["--drain-timeout", str(self._drain_timeout_s)]
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        log: IO[bytes]
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
            self._warn(f"{what} Nothing is lost: the points follow at the next `tunelab resume`.")


def catch_up(journal: Path, tracking: Tracking, log_path: Path, drain_timeout_s: float = 60) -> bool:
    """Record whatever of a journal is not in the store yet; `tunelab resume` does it for a finished sweep.

    Returns whether all of it is there now.
    """
    process = TrackerProcess(journal, tracking, log_path, restarts=0, drain_timeout_s=drain_timeout_s)
    process.start()
    return process.close()


def _environment() -> dict[str, str]:
    """Ours, with this very tunelab importable also when it runs from a source folder."""
    root = Path(tunelab.trackers.__file__).parents[2]
    if root.name in ("site-packages", "dist-packages"):
        return dict(os.environ)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])}
