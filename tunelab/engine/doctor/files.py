"""What lies in a sweep's folder and should not, and what should and does not."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath

import filelock

from tunelab.engine import checkpoints
from tunelab.engine.doctor.finding import Finding
from tunelab.journal import Journal, SweepState, events
from tunelab.journal.home import SweepFolder
from tunelab.trackers import behind

_TRIAL = re.compile(r"[0-9]{4,6}")
_SHOWN = 3
_BEGINNINGS = re.compile(r"driver\.lock|tracker\.lock|tracker\.log|experiment\.py|.*\.partial.*|trials")


def examine(folder: SweepFolder, state: SweepState) -> Iterator[Finding]:
    """What is wrong with a sweep's files. Nothing that a link leads to is looked at."""
    name = folder.path.name
    yield from _half_written(folder)
    storage = state.facts.get("storage")
    if storage is not None and "://" in storage:
        return
    root = Path(folder.storage(state))
    if storage and not Path(storage).is_dir():
        yield Finding("checkpoint", name, f"its checkpoints are in {storage}, which is not there. Is it mounted?")
        return
    if root.is_symlink():
        yield Finding("folder", name, f"{root} is a link: what it leads to is left alone", counts=False)
        return
    owner = checkpoints.owned_elsewhere(str(root), folder.path)
    if owner is None:
        yield from _unreferenced(name, root, state)
    else:
        what = f"its checkpoints in {root} belong to {owner}: what this sweep does not refer to is left alone"
        yield Finding("checkpoint", name, what, counts=False)
    yield from _lost(folder, root, state)


def never_began(folder: SweepFolder) -> Iterator[Finding]:
    """A folder whose driver died before the sweep's first event: there is no journal, and nothing else that is worth it."""
    try:
        found = not folder.is_running() and _is_beginning(folder)
    except OSError as error:
        yield unreadable(str(folder.path), error)
        return
    if found:
        what, path = "a sweep that did not come into being: it has no journal", str(folder.path)
        yield Finding("half-written", path, what, "removes it", (path,), partial(_remove_beginning, folder))


def _is_beginning(folder: SweepFolder) -> bool:
    if folder.journal.exists():
        return False
    inside = list(folder.path.iterdir())
    return all(_BEGINNINGS.fullmatch(path.name) and not path.is_symlink() for path in inside) and not _any_file(folder.trials)


def _remove_beginning(folder: SweepFolder) -> bool:
    """Remove it, unless a driver has begun there since it was looked at."""
    if not folder.path.is_dir():
        return True
    try:
        with filelock.FileLock(folder.lock).acquire(timeout=0):
            return _is_beginning(folder) and remove([folder.path])
    except filelock.Timeout:
        return False


def unreadable(where: str, error: OSError) -> Finding:
    """What is told of a folder that this user may not read, or that is being removed."""
    why = error.strerror or error
    return Finding("folder", where, f"it cannot be read: {why}" + (f" ({error.filename})" if error.filename else ""))


def _any_file(folder: Path) -> bool:
    return any(names for _, _, names in os.walk(folder))


def _half_written(folder: SweepFolder) -> Iterator[Finding]:
    found = [path for path in folder.path.glob("*.partial*") if path.is_file() and not path.is_symlink()]
    if found:
        yield _to_remove("half-written", folder.path.name, _counted(found, "half-written file", folder.path), found)


def _unreferenced(name: str, root: Path, state: SweepState) -> Iterator[Finding]:
    """Checkpoints that the journal does not know or has struck off: a killed process wrote them, or was to delete them."""
    needed = {report.checkpoint for trial in state.trials.values() for report in trial.kept()}
    needed |= {trial.attempts[-1].checkpoint for trial in state.unfinished() if trial.attempts}
    found = [path for path in _checkpoints(root) if f"{path.parent.name}/{path.name}" not in needed]
    if found:
        megabytes = sum(_bytes(path) for path in found) / 1e6
        what = f"{_counted(found, 'checkpoint', root)} that nobody refers to, {megabytes:,.1f} MB"
        yield _to_remove("checkpoint", name, what, found)


def _lost(folder: SweepFolder, root: Path, state: SweepState) -> Iterator[Finding]:
    """Checkpoints that the journal refers to and that are gone, or have lost a part."""
    lost, strange, unseen = [], [], []
    for trial in state.trials.values():
        for report in trial.kept():
            relative = report.checkpoint
            assert relative is not None
            if not _is_within(root, relative):
                strange.append(relative)
                continue
            found = checkpoints.size(str(root), relative)
            if found is None and not checkpoints.is_gone(str(root), relative):
                unseen.append(relative)
            elif found is None or found[0] == 0 or (report.size is not None and _is_less(found, report.size)):
                lost.append((trial.number, relative))
    if strange:
        what = f"the journal refers to {_names(strange)}, which is outside of the sweep or behind a link: left alone"
        yield Finding("checkpoint", folder.path.name, what, items=tuple(strange))
    if unseen:
        what = f"{_names(unseen)}, which the journal refers to, cannot be read: not taken for gone"
        yield Finding("checkpoint", folder.path.name, what, items=tuple(unseen))
    if lost:
        names = [relative for _, relative in lost]
        number = f"{len(lost)} checkpoint{'s'[: len(lost) != 1]}"
        what = f"{number} that the journal refers to {'is' if len(lost) == 1 else 'are'} gone or torn: {_names(names)}"
        remedy = "strikes off what is gone, so that the one before counts"
        yield Finding("checkpoint", folder.path.name, what, remedy, tuple(names), partial(_strike_off, folder.journal, lost))


def _is_less(found: tuple[int, int], size: Iterable[int]) -> bool:
    files, n_bytes = size
    return found[0] < files or found[1] < n_bytes


def _strike_off(journal: Path, lost: list[tuple[int, str]]) -> bool:
    opened = Journal(journal)
    try:
        with opened.together():
            for number, relative in lost:
                opened.append(events.checkpoint_deleted(number, checkpoint=relative, by="gc"))
    finally:
        opened.close()
    behind.journal_grew(journal.parent)
    return True


def _checkpoints(root: Path) -> Iterator[Path]:
    """The folders of checkpoints under a sweep's storage, half-written ones included, as Ray Train and tunelab name them."""
    for trial in sorted(_folders(root, _TRIAL.fullmatch)):
        yield from sorted(_folders(trial, re.compile(r"checkpoint_.+").fullmatch))


def _folders(root: Path, wanted: Callable[[str], object]) -> list[Path]:
    try:
        with os.scandir(root) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False) and wanted(entry.name)]
    except OSError:
        return []


def _is_within(root: Path, relative: str) -> bool:
    """Whether a path relative to `root` stays in it, on the way there as well."""
    parts = PurePosixPath(relative).parts
    if not parts or PurePosixPath(relative).is_absolute() or ".." in parts:
        return False
    return not any(root.joinpath(*parts[: count + 1]).is_symlink() for count in range(len(parts)))


def _bytes(folder: Path) -> int:
    total = 0
    for where, _, names in os.walk(folder):
        total += sum(os.lstat(os.path.join(where, name)).st_size for name in names)
    return total


def _to_remove(kind: str, where: str, what: str, paths: list[Path]) -> Finding:
    remedy = "removes it" if len(paths) == 1 else "removes them"
    return Finding(kind, where, what, remedy, tuple(map(str, paths)), partial(remove, paths))


def remove(paths: list[Path]) -> bool:
    """Remove files and folders, not what links in them lead to. Returns whether all are gone."""
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return not any(os.path.lexists(path) for path in paths)


def _counted(paths: list[Path], noun: str, root: Path) -> str:
    return f"{len(paths)} {noun}{'s'[: len(paths) != 1]} ({_names([str(path.relative_to(root)) for path in paths])})"


def _names(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
