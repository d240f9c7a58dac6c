"""`tunelab extend`: more trials or more time for a sweep, also for one that has finished."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tunelab.cli import common, running
from tunelab.errors import BadInputError


@click.command
@common.sweep_argument
@click.option("--trials", metavar="+N|N", help="So many more trials, or a larger total.")
@click.option("--time", "time_s", metavar="+SECONDS|SECONDS", help="So much more time, or a larger total.")
@running.session_options
@common.home_option
@common.json_option
@click.pass_context
def command(
    ctx: click.Context,
    sweep: str,
    trials: str | None,
    time_s: str | None,
    home: Path,
    as_json: bool,
    **session: Any,
) -> None:
    """Give SWEEP a larger budget and go on with it: --trials +20 for 20 more, --trials 84 for 84 in all.

    The searcher knows everything that was tried before.
    """
    running.check_address(session["address"])
    if trials is None and time_s is None:
        raise BadInputError("Say by how much: --trials +20, --time +600, or both.")
    folder, state = running.idle(home, sweep)
    from tunelab.engine.going_on import Wish, more, refuse_time_alone

    wish = Wish(
        trials=None if trials is None else int(more(state.budget["trials"], trials, "trials")),
        time_s=None if time_s is None else more(state.budget["time_s"], time_s, "time"),
        **session,
    )
    refuse_time_alone(state, wish, common.suggest("extend", folder, "--trials +N"))
    ctx.exit(running.go_on(folder, state, wish, as_json))
