"""A sweep's checkpoints as files: how large they are, whether they are whole, and their removal.

Which ones are removed is said by `core/retain.py` and journalled by the conductor. What makes a checkpoint count is told in
`docs/decisions/checkpoints.md`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from tunelab.core.trial import Status
from tunelab.errors import BadInputError
from tunelab.journal import SweepState


def size(storage: str, checkpoint: str) -> tuple[int, int] | None:
    """Number of files and bytes of a checkpoint; None where this machine does not see it, as in an object store.

    Args:
        storage: Path or URI of the sweep's storage.
        checkpoint: Relative to it.
    """
    if "://" in storage:
        return None
    try:
        sizes = list(_file_sizes(f"{storage}/{checkpoint}"))
    except OSError:
        return None
    return len(sizes), sum(sizes)


def _file_sizes(folder: str) -> Iterator[int]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _file_sizes(entry.path)
            else:
                yield entry.stat().st_size


def torn(storage: str, state: SweepState) -> Iterator[tuple[int, str, str]]:
    """(trial, checkpoint, what is wrong) of each checkpoint that has lost something since the journal first spoke of it.

    A killed process cannot bring that about, a machine that crashed can: the journal is forced to disk, and the files of a
    checkpoint are not. More than was there is fine. What the driver could not see then is not judged now.
    """
    for trial in state.trials.values():
        for report in trial.kept():
            if report.size is None or report.checkpoint is None:
                continue
            files, n_bytes = report.size
            found = size(storage, report.checkpoint)
            if found is None:
                yield trial.number, report.checkpoint, "it is gone"
            elif found[0] < files:
                yield trial.number, report.checkpoint, f"{found[0]} of {files} files are there"
            elif found[1] < n_bytes:
                yield trial.number, report.checkpoint, f"{found[1]:,} of {n_bytes:,} bytes are there"


def refuse_absent(storage: str | None, state: SweepState) -> None:
    """Refuse to go on without the sweep's own storage: what is not mounted is not lost.

    Args:
        storage: The path or URI that the sweep was started with, or None when checkpoints lie in its folder.
        state: The sweep's.

    Raises:
        BadInputError: It is a folder that is not there, and the journal refers to checkpoints in it.
    """
    if storage is None or "://" in storage or Path(storage).is_dir():
        return
    if any(report.size for trial in state.trials.values() for report in trial.kept()):
        raise BadInputError(f"The checkpoints of {state.sweep} are in {storage}, which is not there. Is it mounted?")


def delete(storage: str, checkpoint: str, say: Callable[[str], None]) -> None:
    """Remove a checkpoint's folder. One that is gone already is fine; one that cannot be removed is told and left.

    Args:
        storage: Path or URI of the sweep's storage.
        checkpoint: Relative to it.
        say: Takes a sentence for the user.
    """
    try:
        if "://" not in storage:
            if Path(storage, checkpoint).exists():
                shutil.rmtree(Path(storage, checkpoint))
        else:
            import pyarrow.fs

            filesystem, path = pyarrow.fs.FileSystem.from_uri(f"{storage}/{checkpoint}")
            filesystem.delete_dir(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        say(f"Cannot delete checkpoint {checkpoint}: {error}")


def sweep_up(storage: str, state: SweepState) -> None:
    """Remove what a killed process left: checkpoints half-written or never journalled, and ones journalled as deleted.

    Looks only at folders that Ray Train or tunelab named (`checkpoint_...`), in a storage on this machine.
    """
    if "://" in storage:
        return
    for trial in state.trials.values():
        untouched = not trial.deleted and not trial.superseded and len(trial.attempts) < 2
        if trial.status is Status.COMPLETED and untouched:
            continue  # nothing can have been left
        kept = {report.checkpoint for report in trial.kept()}
        for folder in Path(storage, trial.id).glob("checkpoint_*"):
            if f"{trial.id}/{folder.name}" not in kept:
                shutil.rmtree(folder, ignore_errors=True)
