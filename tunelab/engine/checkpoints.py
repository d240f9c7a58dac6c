"""A sweep's checkpoints as files: how large they are, whether they are whole, and their removal.

Which ones are removed is said by `core/retain.py` and journalled by the conductor. What makes a checkpoint count is told in
`docs/decisions/checkpoints.md`.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from tunelab.core.trial import Status
from tunelab.errors import BadInputError
from tunelab.journal import SweepState
from tunelab.journal.store import FILE_NAME

OWNER = "owner.json"  # in a storage of its own: which sweep's folder it belongs to


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
                yield (entry.stat(follow_symlinks=False) if entry.is_symlink() else entry.stat()).st_size


def is_gone(storage: str, checkpoint: str) -> bool:
    """Whether a checkpoint's folder is certainly not there. One that cannot be looked at may be there."""
    try:
        os.stat(f"{storage}/{checkpoint}")
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        pass
    return False


def torn(storage: str, state: SweepState) -> Iterator[tuple[int, str, str]]:
    """(trial, checkpoint, what is wrong) of each checkpoint that has lost something since the journal first spoke of it.

    A killed process cannot bring that about, a machine that crashed can: the journal is forced to disk, and the files of a
    checkpoint are not. More than was there is fine. What the driver could not see then, or cannot see now, is not judged.
    """
    for trial in state.trials.values():
        for report in trial.kept():
            if report.size is None or report.checkpoint is None:
                continue
            files, n_bytes = report.size
            found = size(storage, report.checkpoint)
            if found is None and not is_gone(storage, report.checkpoint):
                continue
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


def claim(storage: str, folder: Path, *, new: bool = False) -> None:
    """Write down that a storage, which lies outside of the sweep's folder, belongs to this sweep. Not in an object store.

    Args:
        storage: Path or URI of the sweep's storage.
        folder: The sweep's.
        new: Whether nothing may be there yet.

    Raises:
        FileExistsError: Something is there, and the sweep is new.
        BadInputError: It belongs to another sweep folder that is still there: this one is a copy.
    """
    if "://" in storage:
        if new and _holds_something(storage):
            raise FileExistsError(storage)
        return
    if not new and (other := owned_elsewhere(storage, folder)):
        raise BadInputError(
            f"The checkpoints in {storage} belong to {other}, of which this is a copy. Go on there, or remove that folder."
        )
    Path(storage).mkdir(parents=True, exist_ok=not new)
    partial = Path(storage, f"{OWNER}.partial")
    partial.write_text(json.dumps({"folder": str(folder.resolve())}))
    partial.replace(Path(storage, OWNER))


def owned_elsewhere(storage: str, folder: Path) -> Path | None:
    """The other sweep folder that a storage belongs to and that is still there; None where it is this one's."""
    try:
        other = Path(json.loads(Path(storage, OWNER).read_text())["folder"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    try:
        return other if other != folder.resolve() and (other / FILE_NAME).is_file() else None
    except OSError:  # there is something that may not be looked at
        return other


def _holds_something(uri: str) -> bool:
    import pyarrow.fs

    filesystem, path = pyarrow.fs.FileSystem.from_uri(uri)
    return bool(filesystem.get_file_info(pyarrow.fs.FileSelector(path, allow_not_found=True)))


def delete(storage: str, checkpoint: str, say: Callable[[str], None]) -> bool:
    """Remove a checkpoint's folder and return whether it is gone. One that cannot be removed is told and left.

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
        return False
    return True


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
