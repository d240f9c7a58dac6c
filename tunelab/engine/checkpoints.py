"""Removing checkpoints from a sweep's storage. Which ones is said by `core/retain.py` and journalled by the conductor."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from tunelab.journal import SweepState


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
        if trial.status.ended and not trial.deleted and not trial.superseded and len(trial.attempts) < 2:
            continue  # nothing can have been left
        kept = {report.checkpoint for report in trial.kept()}
        for folder in Path(storage, trial.id).glob("checkpoint_*"):
            if f"{trial.id}/{folder.name}" not in kept:
                shutil.rmtree(folder, ignore_errors=True)
