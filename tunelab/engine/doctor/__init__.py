"""Finds what killed drivers, dead servers and crashed machines leave behind, and puts it right when it is told to.

    examine(folder, ...) -> Finding ...     what is wrong with one sweep that no driver runs; changes nothing
    treat(folder, ...)   -> (Finding, bool) the same under the driver's lock, each repaired that can be

files.py       half-written files, checkpoints that nobody refers to, checkpoints that are gone
tracking.py    what MLflow lacks, and runs that it shows as running
processes.py   processes and temporary folders of dead drivers

A sweep whose driver lives is left alone, and so is whatever lies outside of the home, of a sweep's own storage, and of the
temporary folders that tunelab made.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import filelock

from tunelab.engine.doctor import files, processes
from tunelab.engine.doctor.finding import Finding
from tunelab.engine.doctor.tracking import Stores
from tunelab.errors import JournalError
from tunelab.journal import SweepState
from tunelab.journal.home import SWEEP_ID, Home, SweepFolder

__all__ = ["Doctor", "Finding", "folders_of", "outside_of_sweeps", "repair"]


class Doctor:
    """Looks after the sweeps of one home.

    Args:
        environ: The environment.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._stores = Stores(environ)
        self._processes = processes.snapshot()

    def examine(self, folder: SweepFolder) -> list[Finding]:
        """What is wrong with a sweep. Changes nothing, and looks at nothing while a driver runs it."""
        if folder.is_running():
            return []
        return list(self._examine(folder))

    def treat(self, folder: SweepFolder) -> list[tuple[Finding, bool]]:
        """Repair what can be, with the driver's lock held; says of each finding whether it is out of the way now."""
        try:
            with filelock.FileLock(folder.lock).acquire(timeout=1):
                return [(finding, _repaired(finding)) for finding in self._examine(folder)]
        except filelock.Timeout:
            return []
        except OSError as error:
            return [(Finding("folder", folder.path.name, f"it cannot be written: {error.strerror or error}"), False)]

    def _examine(self, folder: SweepFolder) -> Iterator[Finding]:
        """A folder that cannot be read, or not all of it, does not keep the doctor from the others."""
        try:
            yield from self._look(folder)
        except OSError as error:
            yield files.unreadable(folder.path.name, error)

    def _look(self, folder: SweepFolder) -> Iterator[Finding]:
        if folder.path.is_symlink():
            yield Finding("folder", folder.path.name, "it is a link: what it leads to is left alone", counts=False)
            return
        try:
            state = folder.load()
        except JournalError as error:
            yield Finding("journal", folder.path.name, str(error))
            return
        yield from processes.left_of(folder, state, self._processes)
        yield from files.examine(folder, state)
        yield from self._stores.examine(folder, state)
        yield from _unfinished(folder, state)


def _repaired(finding: Finding) -> bool:
    if finding.repair is None:
        return not finding.counts
    try:
        return finding.repair()
    except (OSError, JournalError):
        return False


def _unfinished(folder: SweepFolder, state: SweepState) -> Iterator[Finding]:
    """A sweep that was cut short is in order, so it does not count: this only says that it can go on."""
    if not state.cut_short:
        return
    ended = sum(trial.status.ended for trial in state.trials.values())
    how = "its driver was killed" if state.outcome is None else f"it was {state.outcome}"
    what = f"unfinished, {how}: {ended} of {state.budget['trials']} trials have ended"
    yield Finding("unfinished", folder.path.name, what, counts=False)


def outside_of_sweeps(home: Home) -> list[Finding]:
    """Folders of sweeps that did not come into being, and temporary folders of dead drivers."""
    found = list(processes.temporary_folders())
    for path in sorted(home.path.iterdir()) if home.path.is_dir() else ():
        if SWEEP_ID.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            found += files.never_began(SweepFolder(path))
    return found


def repair(findings: list[Finding]) -> list[tuple[Finding, bool]]:
    """Repair findings that belong to no sweep."""
    return [(finding, _repaired(finding)) for finding in findings]


def folders_of(home: Home, names: tuple[str, ...]) -> list[SweepFolder]:
    """The sweeps called `names`, or all of the home."""
    return [home.find(name) for name in names] if names else list(home.sweeps())
