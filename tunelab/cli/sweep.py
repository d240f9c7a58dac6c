"""`tunelab sweep`: an experiment file in, a tuned, tracked, resumable sweep out."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from tunelab.cli import common, running
from tunelab.errors import BadInputError, ExperimentFileError, UnfinishedSweepError, UnknownNameError
from tunelab.journal.home import Home, SweepFolder
from tunelab.journal.state import SweepState

# What another sweep is needed for -> its flag.
_FIXED = {"max_steps": "--max-steps", "seed": "--seed", "sets": "--set"}


@click.command
@click.argument("file", metavar="FILE[:NAME]")
@running.budget_options
@running.change_options
@running.place_options
@click.option("--storage", metavar="PATH|URI", help="Where checkpoints go. Default: the sweep's own folder.")
@click.option("--resume", "choice", flag_value="resume", help="Go on with the experiment's unfinished sweep.")
@click.option("--new", "choice", flag_value="new", help="Start another sweep even if the latest is unfinished.")
@common.home_option
@common.json_option
@click.pass_context
def command(
    ctx: click.Context,
    file: str,
    trials: int | None,
    time_s: float | None,
    concurrent: int | None,
    max_steps: int | None,
    seed: int | None,
    sets: tuple[str, ...],
    address: str,
    tracking: str | None,
    storage: str | None,
    choice: str | None,
    home: Path,
    as_json: bool,
) -> None:
    """Run the sweep of the experiment in FILE. NAME chooses one where the file holds several.

    When the experiment's latest sweep is unfinished, this asks on a terminal whether to go on with it; elsewhere say
    --resume or --new.
    """
    from tunelab.engine.loading import apply_overrides, load_experiment

    running.check_address(address)
    changes = running.overrides(trials=trials, time_s=time_s, concurrent=concurrent, max_steps=max_steps, seed=seed, sets=sets)
    store = Home(home)
    try:
        loaded = load_experiment(file)
    except ExperimentFileError as error:
        raise _with_hint(error, file, store) from error
    experiment = apply_overrides(loaded.experiment, **changes)
    latest = store.latest(experiment.name)
    if latest is not None and choice != "new" and _decide(latest, choice, changes) == "resume":
        from tunelab.cli import resume as resume_verb

        ctx.invoke(
            resume_verb.command, sweep=latest.path.name, trials=trials, time_s=time_s, concurrent=concurrent,
            address=address, tracking=tracking, code=None, home=home, as_json=as_json,
        )  # fmt: skip
        return
    from tunelab.cli.watch import make_watcher
    from tunelab.engine.ray.trainers import storage_of
    from tunelab.engine.sweeping import Plan, start

    chosen = running.tracking_for(tracking, home, loaded.root)
    settings = common.project_settings()
    with make_watcher() as watcher:
        watcher.say(f"Ray: {address}. Tracking: {chosen.describe()}. Sweeps: {home}/")
        plan = Plan(
            experiment=experiment,
            root=loaded.root,
            home=store,
            tracking=chosen,
            address=address,
            storage=storage or settings.get("storage") or storage_of(experiment.trainer),
            module=loaded.module,
            file=_relative(loaded.file, loaded.root),
            variable=loaded.variable,
            text=loaded.text,
            overrides=changes,
            watcher=watcher,
        )
        done = start(plan)
    ctx.exit(running.tell(done, as_json))


def _with_hint(error: ExperimentFileError, file: str, store: Home) -> ExperimentFileError:
    """The error, and what to type when a sweep was named instead of a file."""
    try:
        folder = store.find(file)
    except UnknownNameError:
        return error
    hint = common.suggest("resume", folder, short=file != folder.path.name)
    return ExperimentFileError(f"{error}\nA sweep of this name exists: {hint}")


def _decide(latest: SweepFolder, choice: str | None, changes: Mapping[str, Any]) -> str:
    """`resume` or `new`, asking when the latest sweep is unfinished.

    Args:
        latest: The experiment's latest sweep.
        choice: What was said: `resume`, `new` or nothing.
        changes: The flags of this run. A sweep keeps those that it was started with, so others take another sweep.
    """
    state = latest.load()
    others = ", ".join(_other_flags(state, changes))
    running_now = common.is_running(latest)
    if running_now and choice is None:
        raise UnfinishedSweepError(
            f"{latest.path.name} of this experiment is running now. Watch it with: {common.suggest('show', latest)}\n"
            "To run another beside it, say --new."
        )
    if not state.cut_short and choice is None and not running_now:
        return "new"
    if choice == "resume" and others:
        raise BadInputError(
            f"{latest.path.name} was started with other flags ({others}), which a sweep keeps. Leave them out to go on with "
            "it, or say --new to start another sweep."
        )
    if choice is not None:
        return choice
    told = f"{latest.path.name} of this experiment is unfinished ({_progress(state)})"
    if others:
        told += f" and was started with other flags ({others})."
        again = f"To go on with it:  {common.suggest('resume', latest)}"
        if not sys.stdin.isatty():
            raise UnfinishedSweepError(f"{told} {again}   To start another: --new")
        if click.confirm(f"{told} Start another?", default=False, err=True):
            return "new"
        raise UnfinishedSweepError(f"Nothing was started. {again}")
    told += "."
    if not sys.stdin.isatty():
        raise UnfinishedSweepError(f"{told} Say which:  --resume   or   --new  (starts another sweep)")
    return "resume" if click.confirm(f"{told} Go on with it?", default=True, err=True) else "new"


def _other_flags(state: SweepState, changes: Mapping[str, Any]) -> list[str]:
    """The flags that were given and that the sweep was not started with."""
    before = {"seed": state.experiment["seed"], **state.facts.get("overrides", {})}
    return [flag for name, flag in _FIXED.items() if name in changes and changes[name] != before.get(name)]


def _progress(state: SweepState) -> str:
    return f"{common.ended(state)} of {state.budget['trials']}"


def _relative(file: Path, root: Path) -> str:
    return str(file.relative_to(root)) if file.is_relative_to(root) else str(file)
