"""`tunelab ls`: all sweeps, one line each."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from tunelab.analysis import text
from tunelab.cli import common
from tunelab.core.select import best
from tunelab.errors import JournalError
from tunelab.journal.home import Home, SweepFolder
from tunelab.journal.state import SweepState


@click.command
@common.home_option
@common.json_option
def command(home: Path, as_json: bool) -> None:
    """List all sweeps: state, trials ended of the budget, best value, when last active."""
    found = []
    for folder in Home(home).sweeps():
        try:
            found.append(_summary(folder, common.load(folder)))
        except JournalError as error:  # one unreadable journal does not hide the others
            click.echo(str(error), err=True)
    if as_json:
        common.emit_json(found)
    elif not found:
        click.echo(f"No sweeps in {home}/. Start one: tunelab sweep FILE{common.home_flag(home)}", err=True)
    else:
        common.show_table(("sweep", "state", "trials", "best", "last active"), [_row(entry) for entry in found])


def _summary(folder: SweepFolder, state: SweepState) -> dict[str, Any]:
    found = best(state.trials.values(), state.mode)
    return {
        "sweep": folder.path.name,
        "state": common.sweep_status(folder, state),
        "ended": common.ended(state),
        "budget": state.budget["trials"],
        "metric": text.metric(state),
        "best": None if found is None else found.report.value,
        "best_trial": None if found is None else found.trial.id,
        "created_at": state.created_at,
        "last_at": state.last_at,
    }


def _row(entry: dict[str, Any]) -> tuple[str, ...]:
    value = "" if entry["best"] is None else f"{entry['metric']} {text.metric_text(entry['best'])} ({entry['best_trial']})"
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry["last_at"]))
    return entry["sweep"], entry["state"], f"{entry['ended']} of {entry['budget']}", value, when
