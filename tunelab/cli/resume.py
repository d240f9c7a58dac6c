"""`tunelab resume`: go on with a sweep that was interrupted, ran out of time, or whose driver was killed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import click

from tunelab.cli import common, running
from tunelab.errors import BadInputError, SweepLockedError
from tunelab.journal.home import Home, SweepFolder
from tunelab.journal.state import SweepState


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
    code: Literal["current", "snapshot"] | None,
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
            f"{folder.path.name} is being run by another driver. Watch it with: {common.suggest('show', folder)}"
        )
    state = folder.load()
    if trials is not None and trials < (exist := state.counted()):
        raise BadInputError(f"{exist} trial{'s exist' if exist > 1 else ' exists'} already; --trials {trials} is fewer")
    changes = running.overrides(trials=trials, time_s=time_s, concurrent=concurrent)
    budget = {**state.budget, **changes}
    if _nothing_to_do(state, budget):
        ended = f"{common.ended(state)} of {budget['trials']} trials have ended"
        click.echo(f"{state.sweep} is finished: {ended}. More: --trials N", err=True)
        _catch_up(folder, state, tracking, home)
        return
    used = state.elapsed_s
    if budget["time_s"] is not None and used >= budget["time_s"]:
        raise BadInputError(
            f"{state.sweep} has used up its time budget ({used:.0f} s of {budget['time_s']:g} s in all). "
            "Give more with: --time SECONDS"
        )
    from tunelab.cli.watch import make_watcher
    from tunelab.core.experiment import Budget
    from tunelab.engine.code import code_of, tracking_of
    from tunelab.engine.sweeping import Plan
    from tunelab.engine.sweeping import resume as go_on

    found = code_of(folder, state, code)
    chosen = tracking_of(state, tracking, home, found.root, os.environ)
    plan = Plan(home=Home(home), tracking=chosen, address=address, storage=state.facts.get("storage"), **vars(found))
    with make_watcher() as watcher:
        watcher.say(f"Ray: {address}. Tracking: {chosen.describe()}.")
        watcher.say(running.goes_on(state, budget))
        done = go_on(replace(plan, experiment=replace(found.experiment, budget=Budget(**budget)), watcher=watcher), folder)
    ctx.exit(running.tell(done, as_json))


def _nothing_to_do(state: SweepState, budget: dict[str, Any]) -> bool:
    finished = state.sessions and state.sessions[-1].outcome == "finished"
    return bool(finished) and not state.unfinished() and state.counted() >= budget["trials"]


def _catch_up(folder: SweepFolder, state: SweepState, tracking: str | None, home: Path) -> None:
    """Record what a tracker that was cut off had not recorded yet."""
    from tunelab.engine.code import tracking_of
    from tunelab.trackers.process import catch_up

    chosen = tracking_of(state, tracking, home, Path(state.facts["root"]), os.environ)
    if chosen.kind != "none" and catch_up(folder.journal, chosen, folder.path / "tracker.log"):
        click.echo(f"All of it is tracked: {chosen.describe()}", err=True)
