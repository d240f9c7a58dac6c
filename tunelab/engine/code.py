"""Which code a resumed sweep runs: the project's file as it is now, or the copy that the sweep keeps of it."""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from tunelab.core.experiment import Experiment
from tunelab.core.trial import measured
from tunelab.engine.description import describe, difference, harmless_difference
from tunelab.engine.loading import load_experiment, load_snapshot_experiment
from tunelab.engine.overrides import apply_overrides
from tunelab.errors import BadInputError
from tunelab.journal import Event, SweepState, events
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


def code_of(
    folder: SweepFolder, state: SweepState, choice: Literal["current", "snapshot"] | None, method: str = "resume()"
) -> Code:
    """The code to go on with.

    Args:
        folder: The sweep's.
        state: The sweep's.
        choice: `current` or `snapshot`; None takes the file if it is unchanged, or the copy if the file is gone.
        method: What does the same in Python.

    Raises:
        BadInputError: The file has changed and it was not said which to use; or the sweep keeps no copy because it was started
            in Python.
    """
    facts, kept = state.facts, folder.path / SNAPSHOT
    if not kept.is_file():
        raise BadInputError(
            f"{state.sweep} keeps no copy of its experiment: it was started in Python. Go on with it there: "
            f"tunelab.open({state.sweep!r}, experiment).{method}"
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
    return Code(experiment, root, module, facts["file"], facts["variable"], text, facts["overrides"])


def amendment(state: SweepState, experiment: Experiment, *, amend: bool) -> Event | None:
    """What is to be journalled of how `experiment` differs from the sweep's, or None where it does not.

    Args:
        state: The sweep's.
        experiment: What is to be run from now on.
        amend: Whether it may differ in what proposals and decisions follow from; see docs/decisions/amend.md.

    Raises:
        BadInputError: Says what has changed, and what can be done about it.
    """
    new = describe(experiment)
    fixed, harmless = difference(state.experiment, new), harmless_difference(state.experiment, new)
    if fixed and not amend:
        raise BadInputError(
            f"{state.sweep} cannot go on with a different experiment:\n"
            + "\n".join(f"  - {line}" for line in fixed)
            + "\nUndo the change, record it with --amend, or start another sweep with: tunelab sweep --new"
        )
    if problems := _not_amendable(state, new):
        raise BadInputError(
            f"{state.sweep} cannot be amended like this:\n"
            + "\n".join(f"  - {problem}" for problem in problems)
            + "\nUndo the change, or start another sweep with: tunelab sweep --new"
        )
    if not fixed and not harmless:
        return None
    return events.amended(experiment=new, changes=[*fixed, *harmless], forced=bool(fixed))


def _not_amendable(state: SweepState, new: Mapping[str, Any]) -> list[str]:
    """Changes that what is recorded already cannot be read with."""
    before, after = state.experiment["objective"], new["objective"]
    reports = [report for trial in state.trials.values() for report in trial.reports]
    found = []
    if reports and before.get("step") != after.get("step"):
        axes = f"step was {before.get('step')}, is {after.get('step')}"
        found.append(f"objective: {axes}: reports, rungs and checkpoints are recorded by it")
    metric = after["metric"]
    lacking = sum(math.isnan(measured(report.metrics, metric, math.nan)) for report in reports)
    if metric != before["metric"] and lacking:
        found.append(f"objective: metric is {metric}, which {lacking} of {len(reports)} recorded reports do not hold")
    return found


def tracking_of(state: SweepState, flag: str | None, home: Path, root: Path, environ: Mapping[str, str]) -> Tracking:
    """Where a resumed sweep tracks to: where it did, unless a flag says otherwise.

    A local store is looked for beside the sweep, since its folder may have been moved or copied.
    """
    last = state.sessions[-1] if state.sessions else None
    if flag is not None or last is None or last.tracking is None:
        return resolve_tracking(flag, home=home, project_root=root, environ=environ)
    before = Tracking.from_json(last.tracking)
    if "home" in last.code:
        return before.moved(Path(last.code["home"]), home.absolute())
    if before.kind == "local":
        return resolve_tracking("local", home=home, project_root=root, environ=environ)
    return before


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
