"""Which code a resumed sweep runs: the project's file as it is now, or the copy that the sweep keeps of it."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from tunelab.core.experiment import Experiment
from tunelab.engine.description import describe, difference
from tunelab.engine.loading import load_experiment, load_snapshot_experiment
from tunelab.engine.overrides import apply_overrides
from tunelab.errors import BadInputError
from tunelab.journal import SweepState
from tunelab.journal.home import SweepFolder
from tunelab.trackers.tracking import Tracking, resolve_tracking

SNAPSHOT = "experiment.py"
_SHOWN_LINES = 40


@dataclass(frozen=True)
class Code:
    """An experiment and where it came from; the fields are those of `sweeping.Plan`."""

    experiment: Experiment
    root: Path
    module: ModuleType | None
    file: str | None
    variable: str | None
    text: str | None
    overrides: Mapping[str, Any]


def code_of(folder: SweepFolder, state: SweepState, choice: Literal["current", "snapshot"] | None) -> Code:
    """The code to go on with.

    Args:
        folder: The sweep's.
        state: The sweep's.
        choice: `current` or `snapshot`; None takes the file if it is unchanged, or the copy if the file is gone.

    Raises:
        BadInputError: The file has changed and it was not said which to use; or what the sweep stands on has changed; or the
            sweep keeps no copy because it was started in Python.
    """
    facts, kept = state.facts, folder.path / SNAPSHOT
    if not kept.is_file():
        raise BadInputError(
            f"{state.sweep} keeps no copy of its experiment: it was started in Python. Go on with it there: "
            f"tunelab.open({state.sweep!r}, experiment).resume()"
        )
    root = Path(facts["root"])
    current = root / facts["file"]
    if choice is None and current.is_file() and current.read_text() != kept.read_text():
        raise BadInputError(
            f"{_diff(kept, current, facts['file'])}\n{facts['file']} has changed since {state.sweep} was started. "
            "Say which to go on with:  --code current   or   --code snapshot"
        )
    module: ModuleType | None
    if choice != "snapshot" and current.is_file():
        loaded = load_experiment(f"{current}:{facts['variable']}")
        experiment = apply_overrides(loaded.experiment, **facts["overrides"])
        root, module, text = loaded.root, loaded.module, loaded.text
    else:
        experiment = load_snapshot_experiment(folder, state)
        root, module, text = (root if root.is_dir() else folder.path), _module_of(experiment), None
    refuse_difference(state, experiment)
    return Code(experiment, root, module, facts["file"], facts["variable"], text, facts["overrides"])


def refuse_difference(state: SweepState, experiment: Experiment) -> None:
    """Refuse an experiment whose space, objective, searcher, scheduler, seed or baseline is not the sweep's.

    Raises:
        BadInputError: Says what has changed.
    """
    if changed := difference(state.experiment, describe(experiment)):
        raise BadInputError(
            f"{state.sweep} cannot go on with a different experiment:\n"
            + "\n".join(f"  - {line}" for line in changed)
            + "\nStart another sweep with: tunelab sweep --new, or undo the change."
        )


def tracking_of(state: SweepState, flag: str | None, home: Path, root: Path, environ: Mapping[str, str]) -> Tracking:
    """Where a resumed sweep tracks to: where it did, unless a flag says otherwise.

    A local store is looked for beside the sweep, since its folder may have been moved.
    """
    before = state.sessions[-1].tracking if state.sessions else None
    if flag is not None or before is None:
        return resolve_tracking(flag, home=home, project_root=root, environ=environ)
    if before["kind"] == "local":
        return resolve_tracking("local", home=home, project_root=root, environ=environ)
    return Tracking.from_json(before)


def _diff(kept: Path, current: Path, name: str) -> str:
    before, after = kept.read_text().splitlines(), current.read_text().splitlines()
    lines = list(difflib.unified_diff(before, after, "as it was", name, lineterm="", n=1))
    more = [f"... and {len(lines) - _SHOWN_LINES} more lines"] if len(lines) > _SHOWN_LINES else []
    return "\n".join([*lines[:_SHOWN_LINES], *more])


def _module_of(experiment: Any) -> ModuleType | None:
    """The module that the copy was run as: it exists in this process alone, so it is pickled by value."""
    loop = getattr(experiment.trainer, "train_loop_per_worker", experiment.trainer)
    module = sys.modules.get(getattr(loop, "__module__", ""))
    return module if module is not None and module.__name__.startswith("tunelab_experiment_") else None
