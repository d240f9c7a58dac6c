"""`tunelab resume`: go on with a sweep that was interrupted, ran out of time, or whose driver was killed."""

from __future__ import annotations

import difflib
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tunelab.cli import common, running
from tunelab.errors import BadInputError, SweepLockedError
from tunelab.journal.home import Home, SweepFolder
from tunelab.journal.state import SweepState

SNAPSHOT = "experiment.py"


@click.command
@common.sweep_argument
@running.budget_options
@running.place_options
@click.option("--code", type=click.Choice(["current", "snapshot"]), help="Which code, when the file has changed since.")
@common.home_option
@common.json_option
@click.pass_context
def command(
    ctx: click.Context,
    sweep: str,
    trials: int | None,
    time_s: float | None,
    concurrent: int | None,
    address: str,
    tracking: str | None,
    code: str | None,
    home: Path,
    as_json: bool,
) -> None:
    """Go on with SWEEP. Finished trials stay, unfinished ones continue from their latest checkpoint.

    --trials and --time are totals: --trials 64 means 64 in all.
    """
    running.check_address(address)
    folder = Home(home).find(sweep)
    if common.is_running(folder):
        raise SweepLockedError(
            f"{folder.path.name} is being run by another driver. Watch it with: tunelab show {folder.path.name}"
        )
    state = folder.load()
    changes = running.overrides(trials=trials, time_s=time_s, concurrent=concurrent)
    budget = {**state.budget, **changes}
    if _nothing_to_do(state, budget):
        click.echo(
            f"{state.sweep} is finished: {common.ended(state)} of {budget['trials']} trials have ended. More: --trials N",
            err=True,
        )
        return
    used = state.elapsed_s
    if budget["time_s"] is not None and used >= budget["time_s"]:
        raise BadInputError(
            f"{state.sweep} has used up its time budget ({used:.0f} s of {budget['time_s']:g} s in all). "
            "Give more with: --time SECONDS"
        )
    from tunelab.cli.watch import make_watcher
    from tunelab.core.experiment import Budget
    from tunelab.engine.sweeping import Plan
    from tunelab.engine.sweeping import resume as go_on

    source = _code(folder, state, code)
    experiment = replace(source.pop("experiment"), budget=Budget(**budget))
    chosen = running.tracking_for(tracking, home, source["root"]) if tracking else _same_tracking(state, home, source["root"])
    with make_watcher() as watcher:
        watcher.say(f"Ray: {address}. Tracking: {chosen.describe()}.")
        watcher.say(running.goes_on(state))
        done = go_on(
            Plan(
                experiment=experiment,
                home=Home(home),
                tracking=chosen,
                address=address,
                storage=state.facts.get("storage"),
                watcher=watcher,
                **source,
            ),
            folder,
        )
    ctx.exit(running.tell(done, as_json))


def _nothing_to_do(state: SweepState, budget: dict[str, Any]) -> bool:
    finished = state.sessions and state.sessions[-1].outcome == "finished"
    return bool(finished) and not state.unfinished() and state.counted() >= budget["trials"]


def _same_tracking(state: SweepState, home: Path, root: Path) -> Any:
    from tunelab.trackers.tracking import Tracking

    before = state.sessions[-1].tracking if state.sessions else None
    if before is None or before["kind"] == "local":  # the folder may have been moved
        return running.tracking_for("local" if before else None, home, root)
    return Tracking.from_json(before)


def _code(folder: SweepFolder, state: SweepState, choice: str | None) -> dict[str, Any]:
    """The experiment and the parts of a `Plan` that say where it came from: the project's file, or the sweep's copy of it.

    Raises:
        BadInputError: The file has changed and it was not said which to use, or it changes what the sweep stands on.
    """
    from tunelab.engine.loading import apply_overrides, describe, difference, load_experiment, load_snapshot_experiment

    facts = state.facts
    kept = folder.path / SNAPSHOT
    if not kept.is_file():
        raise BadInputError(
            f"{state.sweep} keeps no copy of its experiment: it was started in Python. Go on with Sweep.resume()."
        )
    root = Path(facts["root"])
    current = root / facts["file"]
    if choice is None and current.is_file() and current.read_text() != kept.read_text():
        shown = list(
            difflib.unified_diff(
                kept.read_text().splitlines(), current.read_text().splitlines(), "as it was", facts["file"], lineterm="", n=1
            )
        )
        more = f"\n... and {len(shown) - 40} more lines" if len(shown) > 40 else ""
        raise BadInputError(
            "\n".join(shown[:40])
            + more
            + f"\n{facts['file']} has changed since {state.sweep} was started. Say which to go on with:  --code current   or   "
            "--code snapshot"
        )
    common_parts = {"file": facts["file"], "variable": facts["variable"], "overrides": facts["overrides"]}
    if choice != "snapshot" and current.is_file():
        loaded = load_experiment(f"{current}:{facts['variable']}")
        experiment = apply_overrides(loaded.experiment, **facts["overrides"])
        if changed := difference(state.experiment, describe(experiment)):
            raise BadInputError(
                f"{state.sweep} cannot go on with a different experiment:\n"
                + "\n".join(f"  - {line}" for line in changed)
                + "\nStart another sweep with: tunelab sweep --new, or go on with the code as it was: --code snapshot"
            )
        return {"experiment": experiment, "root": loaded.root, "module": loaded.module, "text": loaded.text, **common_parts}
    if not root.is_dir():
        root = folder.path
    experiment = load_snapshot_experiment(folder, state)
    return {"experiment": experiment, "root": root, "module": _module_of(experiment), "text": None, **common_parts}


def _module_of(experiment: Any) -> Any:
    """The module that a copy of an experiment was run as."""
    import sys

    loop = getattr(experiment.trainer, "train_loop_per_worker", experiment.trainer)
    module = sys.modules.get(getattr(loop, "__module__", ""))
    return module if module is not None and module.__name__.startswith("tunelab_experiment_") else None
