"""`tunelab why`: one trial's story."""

from __future__ import annotations

from pathlib import Path

import click

from tunelab.analysis.why import why
from tunelab.cli import common
from tunelab.journal import read_events
from tunelab.journal.home import Home


@click.command
@click.argument("trial", metavar="SWEEP/TRIAL")
@common.home_option
@common.json_option
def command(trial: str, home: Path, as_json: bool) -> None:
    """Tell why a trial was proposed, what its attempts did, what was decided at each rung and why it ended.

    SWEEP/TRIAL is such as digits-mlp.2/0007, or digits-mlp/7 for the experiment's latest sweep.
    """
    folder, number = Home(home).find_trial(trial)
    lines = why(read_events(folder.journal), number)
    if as_json:
        common.emit_json({"trial": trial, "why": lines})
    else:
        click.echo("\n".join(lines))
