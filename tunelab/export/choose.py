"""Which checkpoint is exported, and bringing it here."""

from __future__ import annotations

import shutil
from pathlib import Path

from tunelab.core.select import Best, best_report, ranked
from tunelab.core.trial import Status
from tunelab.errors import NoCheckpointError
from tunelab.journal import SweepState
from tunelab.journal.home import SweepFolder


def choose(folder: SweepFolder, state: SweepState, trial: int | None) -> Best:
    """What to export: `core.select`'s best, or the best kept checkpoint of one trial.

    Raises:
        NoCheckpointError: There is none; says what there is.
    """
    order = [best for best in ranked(state.trials.values(), state.mode) if best.exportable]
    if trial is not None:
        record_ = state.trials[trial]
        report = best_report(record_, state.mode)
        if report is None:
            saved = sum(r.checkpoint is not None for r in record_.reports)
            why = f"{saved} were saved and deleted since" if saved else f"it made {len(record_.reports)} reports, none with one"
            raise NoCheckpointError(
                f"{state.sweep}/{record_.id} ({record_.status.value}) has no checkpoint with a finite objective: "
                f"{why}.{_instead(order, state)}"
            )
        chosen = Best(record_, report)
    else:
        done = [t for t in state.trials.values() if t.status in (Status.COMPLETED, Status.STOPPED)]
        if not done:
            raise NoCheckpointError(f"{state.sweep} has no trial that completed or was stopped: {_census(state)}.")
        if not order:
            raise NoCheckpointError(
                f"No trial of {state.sweep} has a kept checkpoint: {_census(state)}. Does the loop pass checkpoint= to "
                "ray.train.report?"
            )
        chosen = order[0]
    place = folder.checkpoint(state, path_of(chosen))
    if not exists(place):
        rest = [b for b in order if b.trial.number != chosen.trial.number and exists(folder.checkpoint(state, path_of(b)))]
        raise NoCheckpointError(
            f"The checkpoint of {state.sweep}/{chosen.trial.id} is gone: {place} does not exist.{_instead(rest, state)}"
        )
    return chosen


def exists(place: str) -> bool:
    """Whether there is a folder at a path or URI."""
    if "://" not in place:
        return Path(place).is_dir()
    import pyarrow.fs

    filesystem, path = pyarrow.fs.FileSystem.from_uri(place)
    return filesystem.get_file_info(path).type == pyarrow.fs.FileType.Directory


def fetch(place: str, target: Path) -> None:
    """Copy the folder at a path or URI to `target`."""
    if "://" not in place:
        shutil.copytree(place, target)
        return
    import pyarrow.fs

    filesystem, path = pyarrow.fs.FileSystem.from_uri(place)
    target.mkdir()
    pyarrow.fs.copy_files(path, str(target), source_filesystem=filesystem, destination_filesystem=pyarrow.fs.LocalFileSystem())


def path_of(best: Best) -> str:
    """The checkpoint's path relative to the sweep's storage."""
    assert best.report.checkpoint is not None
    return best.report.checkpoint


def _census(state: SweepState) -> str:
    """`2 failed, 1 running`"""
    counts: dict[str, int] = {}
    for trial in state.trials.values():
        counts[trial.status.value] = counts.get(trial.status.value, 0) + 1
    return ", ".join(f"{count} {status}" for status, count in counts.items()) or "it has no trials"


def _instead(order: list[Best], state: SweepState) -> str:
    """What could be exported instead, as a sentence."""
    if not order:
        return " No other trial has a kept checkpoint."
    objective, best = state.experiment["objective"], order[0]
    return (
        f" Next best: {best.trial.id}, {objective['metric']} {best.report.value:.4g} at {objective.get('step') or 'step'} "
        f"{best.report.step:g}. Run: tunelab export {state.sweep} --trial {best.trial.number} --to ..."
    )
