"""Runs a small sweep through the real command, kills processes with SIGKILL, resumes, and looks at what is left.

The journal is watched from outside, so nothing in the sweep knows that it is being killed.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tunelab.journal import Event, SweepState, read_events
from tunelab.journal.home import SweepFolder

ROOT = Path(__file__).parents[2]
FILE = "tests/chaos/toy.py"
PATIENCE_S = 240.0  # longest that anything is waited for
GONE_S = 60.0  # longest that processes of a killed driver take to notice; workers that are starting try for half a minute


@dataclass(frozen=True)
class Kill:
    """When to kill the driver, counted from where it starts.

    Args:
        kind: `event`: after `at` more events in the journal; `moment`: `at` seconds after its start; `drain`: `at` seconds
            after it has journalled that its session has ended, while the tracker catches up.
        at: See `kind`.
        at_once: Whether the next driver starts without waiting for the killed one's processes to go.
    """

    kind: str
    at: float
    at_once: bool = False


@dataclass
class Done:
    """What became of the kills: (kind, kind of the journal's latest event or what there was instead)."""

    landed: list[tuple[str, str]] = field(default_factory=list)
    missed: int = 0  # the driver had ended before
    alone_after_s: float = 0.0  # longest that its processes took to go

    def __str__(self) -> str:
        return f"{len(self.landed)} kills {self.landed}, {self.missed} too late; alone after {self.alone_after_s:.1f} s"


class Run:
    """One sweep in a home of its own.

    Args:
        home: An empty folder.
        experiment: Its variable in `toy.py`.
        trials: How many.
        address: Ray cluster.
        storage: Where checkpoints go, or None for the sweep's own folder.
    """

    def __init__(
        self, home: Path, experiment: str = "one", *, trials: int = 24, address: str = "local", storage: Path | None = None
    ) -> None:
        self.home, self.experiment, self.trials, self.address, self.storage = home, experiment, trials, address, storage
        self.logs = home  # of what the drivers print
        self._reader: sqlite3.Connection | None = None  # of the journal, kept open so that a look takes microseconds
        self.process: subprocess.Popen[str] | None = None
        self.drivers: list[int] = []
        self.done = Done()
        self.outputs: list[str] = []
        home.mkdir(parents=True, exist_ok=True)

    # ---- the command

    @property
    def folder(self) -> SweepFolder | None:
        """The sweep's folder once it has a journal."""
        found = [path for path in self.home.glob(f"{self.experiment}.*") if (path / "journal.sqlite").is_file()]
        assert len(found) < 2, f"a second sweep was started: {found}"
        return SweepFolder(found[0]) if found else None

    def start(self) -> None:
        """Start the sweep, or go on with it."""
        place = ["--home", str(self.home), "--address", self.address]
        if self.folder is None:
            command = ["sweep", f"{FILE}:{self.experiment}", "--trials", str(self.trials), *place]
            command += ["--storage", str(self.storage)] if self.storage else []
        else:
            command = ["resume", self.folder.path.name, *place]
        out = open(self.logs / f"driver{len(self.drivers)}.txt", "w+")  # noqa: SIM115  closed by `wait`
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tunelab", *command],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL, stdout=out, stderr=out, text=True,
            start_new_session=True,
        )  # fmt: skip
        self._out = out
        self.drivers.append(self.process.pid)

    def wait(self) -> int:
        """Wait for the driver's end and return its exit status."""
        assert self.process is not None
        status = self.process.wait(PATIENCE_S)
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        self._out.seek(0)
        self.outputs.append(self._out.read())
        self._out.close()
        return status

    def finish(self) -> str:
        """Run to the end, which has to be a good one, and return what was printed."""
        self.start()
        status = self.wait()
        assert status == 0, f"exit status {status}:\n{self.outputs[-1]}"
        return self.outputs[-1]

    # ---- killing the driver

    def killed(self, kill: Kill) -> bool:
        """Start and kill; whether the driver still lived then."""
        before = self.last_seq()
        self.start()
        assert self.process is not None
        began = time.monotonic()
        deadline = began + PATIENCE_S
        due = {
            "event": lambda: self.last_seq() >= before + kill.at,
            "moment": lambda: time.monotonic() - began >= kill.at,
            "drain": lambda: self.last_kind(before) == "session_ended",
        }[kill.kind]
        while not due():
            if self.process.poll() is not None:
                break
            assert time.monotonic() < deadline, f"{kill} never came"
            time.sleep(0.0001 if self._reader else 0.005)  # events that follow from each other are a millisecond apart
        if kill.kind == "drain":
            time.sleep(kill.at)
        lived = self.process.poll() is None
        self.process.send_signal(signal.SIGKILL)
        status = self.wait()
        if not lived:
            assert status == 0, f"exit status {status}:\n{self.outputs[-1]}"
            self.done.missed += 1
            return False
        where = "before the journal" if self.folder is None else self.last_kind(before) or "before its session"
        self.done.landed.append((kill.kind, where))
        if not kill.at_once:
            self.wait_until_alone()
        return True

    def survive(self, kills: list[Kill]) -> None:
        """Go through all these kills, then to the end."""
        for kill in kills:
            self.killed(kill)
        self.finish()

    def advance(self, events: int) -> bool:
        """Wait for so many more events; whether the driver still lives."""
        assert self.process is not None
        goal, deadline = self.last_seq() + events, time.monotonic() + PATIENCE_S
        while self.process.poll() is None and self.last_seq() < goal:
            assert time.monotonic() < deadline, f"event {goal} never came"
            time.sleep(0.002)
        return self.process.poll() is None

    # ---- what the journal says

    def last_seq(self) -> int:
        found = self._ask("SELECT max(seq) FROM events")
        return found[0][0] or 0 if found else 0

    def last_kind(self, after: int) -> str | None:
        """The kind of the latest event, if it came after this position."""
        found = self._ask(f"SELECT kind FROM events WHERE seq > {after} ORDER BY seq DESC LIMIT 1")
        return found[0][0] if found else None

    def _ask(self, question: str) -> list[Any]:
        if self._reader is None:
            folder = self.folder
            if folder is None:
                return []
            self._reader = sqlite3.connect(f"{folder.journal.resolve().as_uri()}?mode=ro", uri=True, timeout=30)
        return self._reader.execute(question).fetchall()

    def events(self) -> list[Event]:
        assert self.folder is not None
        return list(read_events(self.folder.journal))

    def state(self) -> SweepState:
        assert self.folder is not None
        return self.folder.load()

    def executed(self) -> Counter[tuple[int, int, int]]:
        """(trial, epoch, rank) -> how often it was computed."""
        lines = [line.split() for line in (self.home / "executed.txt").read_text().splitlines()]
        return Counter((int(trial), int(epoch), int(rank)) for trial, epoch, rank, _, _ in lines)

    # ---- processes

    def processes(self) -> list[psutil.Process]:
        """All processes of this sweep's drivers: the drivers, their Ray's, their trackers and whatever those started."""
        marks, found = [str(self.home), *(folder.name for folder in self._sessions())], []
        for process in psutil.process_iter():
            try:
                # Ray's workers write over their command line; what they print goes to their session's folder.
                said = [*process.cmdline(), *(os.readlink(f"/proc/{process.pid}/fd/{number}") for number in (1, 2))]
                if process.status() != psutil.STATUS_ZOMBIE and any(mark in text for mark in marks for text in said):
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return found

    def _sessions(self) -> list[Path]:
        """The folders of the Rays that the drivers started: Ray names them after the process."""
        if self.address != "local":
            return []
        return [folder for driver in self.drivers for folder in Path("/tmp/ray").glob(f"session_*_{driver}")]

    def wait_until_alone(self) -> None:
        """Wait for all processes of the sweep to end by themselves."""
        began = time.monotonic()
        while left := self.processes():
            assert time.monotonic() - began < GONE_S, f"still there: {[(one.pid, one.cmdline()[:6]) for one in left]}"
            time.sleep(0.1)
        self.done.alone_after_s = max(self.done.alone_after_s, time.monotonic() - began)

    def clean(self) -> None:
        """End what a failed test has left, and remove Ray's session folders of killed drivers."""
        for process in self.processes():
            process.kill()
        for folder in self._sessions():
            shutil.rmtree(folder, ignore_errors=True)


# ---- seeds -------------------------------------------------------------------------------------------------------------


def plan(seed: int, kills: int, *, trials: int = 24) -> list[Kill]:
    """Kills for one sweep: half at events, half at moments; the last of five or more while the tracker drains."""
    rng = random.Random(seed)
    stride = max(2, trials * 10 // (kills + 1))  # an ASHA sweep writes about ten events a trial
    found = []
    for index in range(kills):
        if kills >= 5 and index == kills - 1:
            found.append(Kill("drain", rng.choice([0.0, rng.uniform(0.0, 1.0)]), rng.random() < 0.5))
        elif index % 2 == seed % 2:
            found.append(Kill("event", rng.randint(1, stride), rng.random() < 0.5))
        else:
            found.append(Kill("moment", rng.uniform(0.2, 14.0), rng.random() < 0.5))
    return found


def until(condition: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    """The condition's value once it is true."""
    deadline = time.monotonic() + patience_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.005)
    return value
