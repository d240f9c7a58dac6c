"""`tunelab resume`: go on with a sweep that was interrupted, ran out of time, or whose driver was killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tunelab.cli import common, running


@click.command
@common.sweep_argument
@click.option("--trials", type=int, help="Most trials in all.")
@click.option("--time", "time_s", type=float, metavar="SECONDS", help="Wall-clock budget in all.")
@running.session_options
@common.home_option
@common.json_option
@click.pass_context
def command(
    ctx: click.Context,
    sweep: str,
    trials: int | None,
    time_s: float | None,
    home: Path,
    as_json: bool,
    **session: Any,
) -> None:
    """Go on with SWEEP. Finished trials stay, unfinished ones continue from their latest checkpoint.

    --trials and --time are totals: --trials 64 means 64 in all. Budget, concurrency, resources, retention and other settings
    may have changed in the experiment; what proposals and decisions follow from may not, unless --amend records the change.
    """
    running.check_address(session["address"])
    folder, state = running.idle(home, sweep)
    from tunelab.engine.going_on import Wish

    ctx.exit(running.go_on(folder, state, Wish(trials=trials, time_s=time_s, **session), as_json))
