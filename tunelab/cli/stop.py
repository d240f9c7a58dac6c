"""`tunelab stop`: have a running sweep stop as Ctrl-C does, from another terminal."""

from __future__ import annotations

from pathlib import Path

import click

from tunelab.cli import common, running
from tunelab.journal.home import Home


@click.command
@common.sweep_argument
@click.option("--now", is_flag=True, help="Do not wait for trials' next reports, like a second Ctrl-C.")
@common.home_option
@common.json_option
def command(sweep: str, now: bool, home: Path, as_json: bool) -> None:
    """Stop SWEEP, which another process runs: trials end at their next report and can go on later. Waits until it has ended."""
    from tunelab.engine.stopping import stop

    folder = Home(home).find(sweep)
    how = "now" if now else "at the next report"
    state = stop(folder, now=now, told=lambda _: click.echo(f"{folder.path.name} has been asked to stop {how}", err=True))
    session = state.sessions[-1] if state.sessions else None
    outcome, reason = (session.outcome or "killed", session.reason) if session else ("killed", "")
    if as_json:
        left = [trial.id for trial in state.unfinished()]
        common.emit_json({"sweep": state.sweep, "outcome": outcome, "reason": reason, "unfinished": left})
        return
    click.echo(f"{outcome}: {reason or 'its driver was killed'}.{running.left(state)}")
    if outcome not in ("finished", "aborted"):
        click.echo(f"Go on:  {common.suggest('resume', folder)}", err=True)
