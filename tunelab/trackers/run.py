"""The tracker process, off the driver's interpreter.

    python -m tunelab.trackers --journal runs/digits-mlp.1/journal.sqlite --tracking '{"kind": "local", ...}'
    python -m tunelab.trackers --behind runs/digits-mlp.1 runs/bert-glue.2

The first follows a journal until stdin ends, which is how it learns that the driver is done or dead; with `< /dev/null` it
catches up once. The second catches up with sweeps that were left behind, one after the other, for as long as their stores
answer; whatever is busy or does not answer is left for next time.

Exit status: 0 all recorded; 2 wrong arguments; 3 the store did not answer, or another process records this sweep: the rest
follows at the next `tunelab` command.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from tunelab import trackers
from tunelab.journal.store import FILE_NAME as JOURNAL
from tunelab.journal.store import read_events
from tunelab.trackers import behind
from tunelab.trackers.follow import Follower, GaveUp, Inbox, Replaced
from tunelab.trackers.tracking import Tracking

log = logging.getLogger("tunelab.tracker")
REST = "The rest follows at the next `tunelab` command."
INCOMPLETE = 3
_BACKGROUND_DRAIN_S = 60.0
_HELD_S = 15.0  # longest that nothing is recorded because nothing was reported
_LOOKED_AT_S = 0.5  # that whoever looks at a lock may hold it


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tracker process. Returns its exit status."""
    given = list(sys.argv[1:] if argv is None else argv)
    args = _parser().parse_args(given)
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # an outage is told once, by us
    log.setLevel(logging.INFO)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver, which then closes our stdin
    os.nice(19)  # below the workers, which Ray starts at 15
    try:
        if args.behind:
            return _catch_up_all(args.behind)
        _log_to(None)
        inbox = Inbox(0, args.parent)
        signal.signal(signal.SIGTERM, inbox.end)
        tracking = Tracking.from_json(json.loads(args.tracking))
        _let_training_begin(args.journal, inbox)
        return _record(args.journal, tracking, inbox, args.drain_timeout, args.interval, settle=args.settle)
    except Replaced as reason:
        log.warning("beginning again in a new process: %s", reason)
        os.execv(sys.executable, [sys.executable, "-m", "tunelab.trackers", *given])


def _let_training_begin(journal: Path, inbox: Inbox) -> None:
    """Wait for the first report: loading MLflow takes two seconds of a core, which the first trial's start has more use for."""
    until, seq = time.monotonic() + _HELD_S, 0
    while not inbox.ended and (left := until - time.monotonic()) > 0:
        for event in read_events(journal, seq):
            if event.kind == "reported":
                return
            seq = event.seq
        inbox.wait(left)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tunelab.trackers", description="Record sweeps' journals in a tracking store.")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--journal", type=Path, help="a sweep's journal.sqlite, followed until stdin ends")
    which.add_argument("--behind", type=Path, nargs="+", metavar="FOLDER", help="sweeps that were left behind")
    parser.add_argument("--tracking", default="{}", help="where to, as Tracking.to_json() says it")
    parser.add_argument("--drain-timeout", type=float, default=60, metavar="S", help="how long to insist after stdin has ended")
    parser.add_argument("--interval", type=float, default=0.5, metavar="S", help="least time between two batches")
    parser.add_argument("--parent", type=int, default=None, metavar="PID", help="end when this is no longer the parent process")
    parser.add_argument("--settle", action="store_true", help="compare how runs stand at the end")
    return parser


def _record(
    journal: Path,
    tracking: Tracking,
    inbox: Inbox,
    drain_timeout_s: float,
    interval_s: float = 0.0,
    *,
    settle: bool = False,
    lock_timeout_s: float | None = None,
) -> int:
    """Carry one journal over, and keep written down how far that has come."""
    folder = journal.parent
    try:
        with FileLock(folder / behind.LOCK).acquire(timeout=drain_timeout_s if lock_timeout_s is None else lock_timeout_s):
            progress = behind.Progress(folder, tracking)
            tracker = trackers.load(tracking.tracker)(tracking)
            follower = Follower(
                journal, tracker, inbox, drain_timeout_s, interval_s,
                recorded=progress.recorded, refused=progress.refused, settle=settle,
            )  # fmt: skip
            follower.run()
            behind.clear(folder)
    except Timeout:
        log.error("Another process records this sweep. %s", REST)
        return INCOMPLETE
    except OSError as error:
        log.error("Cannot work in %s: %s. %s", folder, error, REST)
        return INCOMPLETE
    except GaveUp as reason:
        log.error("Gave up on %s: %s. %s", tracking.describe(), reason, REST)
        return INCOMPLETE
    log.info("all recorded in %s", tracking.describe())
    return 0


def _catch_up_all(folders: Sequence[Path]) -> int:
    silent: set[str] = set()
    status = 0
    for folder in folders:
        found = behind.read(folder)
        if found is None or not behind.is_behind(folder):
            continue  # somebody else was faster
        uri = found.tracking.tracking_uri
        if uri in silent or behind.silence_of(found.tracking) is not None:
            silent.add(uri)
            status = INCOMPLETE
            continue
        _log_to(folder / behind.LOG)
        inbox = Inbox(os.open(os.devnull, os.O_RDONLY))
        inbox.end()
        done = _record(folder / JOURNAL, found.tracking, inbox, _BACKGROUND_DRAIN_S, settle=True, lock_timeout_s=_LOOKED_AT_S)
        status = max(status, done)
    return status


def _log_to(file: Path | None) -> None:
    handler = logging.StreamHandler() if file is None else logging.FileHandler(file, delay=True)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s", handlers=[handler], force=True)
