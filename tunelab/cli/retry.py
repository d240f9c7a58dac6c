"""`tunelab retry`: try failed trials again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tunelab.cli import common, running
from tunelab.errors import BadInputError
from tunelab.journal.home import Home


@click.command
@click.argument("names", metavar="SWEEP | SWEEP/TRIAL...", nargs=-1, required=True)
@click.option("--failed", is_flag=True, help="All trials of SWEEP that have failed.")
@click.option("--time", "time_s", type=float, metavar="SECONDS", help="Wall-clock budget in all.")
@running.session_options
@common.home_option
@common.json_option
@click.pass_context
def command(
    ctx: click.Context,
    names: tuple[str, ...],
    failed: bool,
    time_s: float | None,
    home: Path,
    as_json: bool,
    **session: Any,
) -> None:
    """Try failed trials again: all of SWEEP (--failed), or those named (digits-mlp.1/0007). Then the sweep goes on.

    A trial keeps its number, configuration and seed and continues from its latest checkpoint; its retries are counted anew.
    Infeasible trials are tried again only when they are named.
    """
    running.check_address(session["address"])
    sweep, numbers = _sweep_and_trials(names, failed, home)
    folder, state = running.idle(home, sweep)
    from tunelab.engine.going_on import Wish, to_retry

    wish = Wish(time_s=time_s, reopen=to_retry(state, numbers), **session)
    ctx.exit(running.go_on(folder, state, wish, as_json))


def _sweep_and_trials(names: tuple[str, ...], failed: bool, home: Path) -> tuple[str, list[int]]:
    """The sweep that is meant, and the trials of it that are named: none means all that have failed."""
    if failed:
        if len(names) > 1:
            raise BadInputError(f"--failed takes one sweep, got {len(names)} names: {', '.join(names)}.")
        return names[0], []
    found, numbers = {}, []
    for name in names:
        if not name.rpartition("/")[2].isdigit():
            raise BadInputError(f"Say which trials of {name}: --failed for all that have failed, or {name}/0007.")
        folder, number = Home(home).find_trial(name)
        found[str(folder.path)] = name.rpartition("/")[0]
        numbers.append(number)
    if len(found) > 1:
        raise BadInputError(f"The trials are of {len(found)} sweeps ({', '.join(found.values())}): retry one sweep at a time.")
    return next(iter(found.values())), numbers
