"""Deleting checkpoints of a sweep that stands still, by other retention counts than those that it ran with.

What may go is said by `core/retain.py`, as while the sweep runs. Each deletion is journalled before it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tunelab.core.experiment import Retention
from tunelab.core.retain import surplus
from tunelab.engine import checkpoints
from tunelab.engine.sweeping import locked
from tunelab.errors import BadInputError, InvalidExperimentError, SweepLockedError, UnknownNameError
from tunelab.journal import Journal, SweepState, events
from tunelab.journal.home import SweepFolder
from tunelab.trackers import behind


@dataclass(frozen=True)
class Surplus:
    """A checkpoint that the counts do not keep.

    Args:
        trial: Its trial's number.
        checkpoint: Relative to the sweep's storage.
        step: The step that it was reported at, or None when a restarted trial has computed that step again since.
        value: The objective there, or None.
        n_bytes: Its size, or None where that cannot be seen.
    """

    trial: int
    checkpoint: str
    step: float | None
    value: float | None
    n_bytes: int | None


def retention_of(state: SweepState) -> Retention:
    """The counts that the sweep runs with."""
    return Retention(**state.experiment.get("retention", {}))


def parse_keep(texts: tuple[str, ...], base: Retention) -> Retention:
    """`base` with the counts in `NAME=N,...` replaced.

    >>> parse_keep(("best_of_trial=0,latest_of_trial=0",), Retention())
    Retention(best_of_sweep=1, best_of_trial=0, latest_of_trial=0)

    Raises:
        UnknownNameError: A name is not one of the three counts.
        InvalidExperimentError: A number is none, or too small.
    """
    counts, problems = dict(vars(base)), []
    for pair in (part.strip() for text in texts for part in text.split(",")):
        name, equals, number = (part.strip() for part in pair.partition("="))
        if name not in counts:
            problems.append(str(UnknownNameError.among("retention count", name, counts)))
        elif not equals or not (number.isascii() and number.isdecimal()):
            problems.append(f"{name} needs a number >= 0, such as {name}=1, got '{pair}'.")
        else:
            counts[name] = int(number)
    problems += Retention(**counts).problems()
    if problems:
        raise InvalidExperimentError("--keep", problems)
    return Retention(**counts)


def find_surplus(folder: SweepFolder, state: SweepState, keep: Retention) -> list[Surplus]:
    """What `keep` does not keep, in the order of trials and steps."""
    return list(_described(folder, state, surplus(state.trials.values(), keep, state.mode)))


def collect(
    folder: SweepFolder,
    keep: Retention,
    *,
    dry_run: bool = False,
    say: Callable[[str], None] = lambda text: None,
    left: Callable[[Surplus], None] = lambda entry: None,
) -> list[Surplus]:
    """Delete what `keep` does not keep, and return what is gone.

    Args:
        folder: The sweep's.
        keep: The counts.
        dry_run: Whether to change nothing.
        say: Takes a sentence about what could not be deleted.
        left: Takes each that could not be deleted.

    Raises:
        SweepLockedError: A driver runs the sweep.
        BadInputError: Its storage is not there, or belongs to another sweep, of which this one is a copy.
    """
    if dry_run:
        if folder.is_running():
            raise SweepLockedError(f"{folder.path.name} is being run by a driver, which deletes what it does not need itself.")
        state = folder.load()
        _refuse_foreign(folder, state)
        return find_surplus(folder, state, keep)
    gone: list[Surplus] = []
    with locked(folder):
        state = folder.load()
        storage = folder.storage(state)
        _refuse_foreign(folder, state)
        found = find_surplus(folder, state, keep)
        if found and "://" not in storage and not Path(storage).is_dir():
            raise BadInputError(f"The checkpoints of {state.sweep} are in {storage}, which is not there. Is it mounted?")
        checkpoints.sweep_up(storage, state)  # first of all: the journal needs room, and this may make some
        journal, before = Journal(folder.journal), state.seq
        try:
            for entry in found:
                state.apply(journal.append(events.checkpoint_deleted(entry.trial, checkpoint=entry.checkpoint, by="gc")))
                if checkpoints.delete(storage, entry.checkpoint, say):
                    gone.append(entry)
                else:
                    left(entry)
        finally:
            journal.close()
            if state.seq > before:
                behind.journal_grew(folder.path)
        checkpoints.sweep_up(storage, state)  # what an earlier one journalled and was killed before it had deleted it
    return gone


def _refuse_foreign(folder: SweepFolder, state: SweepState) -> None:
    """Refuse to delete what another sweep's journal refers to."""
    storage = folder.storage(state)
    owner = checkpoints.owned_elsewhere(storage, folder.path)
    if owner is not None:
        raise BadInputError(f"The checkpoints in {storage} belong to {owner}, of which {folder.path} is a copy.")


def total_bytes(folder: SweepFolder, state: SweepState) -> int | None:
    """Bytes of all checkpoints that the sweep has, or None where they cannot be seen."""
    storage = folder.storage(state)
    kept = [report.checkpoint for trial in state.trials.values() for report in trial.kept()]
    lost = [name for trial in state.trials.values() for name in trial.superseded - trial.deleted]
    sizes = [checkpoints.size(storage, name) for name in [*kept, *lost] if name is not None]
    return None if "://" in storage else sum(size[1] for size in sizes if size is not None)


def _described(folder: SweepFolder, state: SweepState, found: list[tuple[int, str]]) -> Iterator[Surplus]:
    storage = folder.storage(state)
    for number, checkpoint in found:
        report = next((report for report in state.trials[number].reports if report.checkpoint == checkpoint), None)
        size = checkpoints.size(storage, checkpoint)
        step, value = (report.step, report.value) if report else (None, None)
        yield Surplus(number, checkpoint, step, value, size[1] if size else None)
