"""`tunelab compare`: a sweep's trials, the best first, and which parameters mattered."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tunelab.analysis import compare as comparison
from tunelab.analysis import text
from tunelab.analysis.importance import importance, line
from tunelab.cli import common
from tunelab.journal.home import Home


@click.command
@common.sweep_argument
@click.option("--top", type=click.IntRange(min=1), default=20, show_default=True, help="How many trials.")
@common.home_option
@common.json_option
def command(sweep: str, top: int, home: Path, as_json: bool) -> None:
    """Rank a sweep's trials by the metric of the checkpoint that each of them kept.

    SWEEP is an id (digits-mlp.2), an experiment's name (its latest sweep), or a path to a sweep's folder. Works while it runs.
    """
    state = common.load(Home(home).find(sweep))
    rows = comparison.rows(state, top)
    if as_json:
        found, reason = importance(state)
        common.emit_json(
            {
                "sweep": state.sweep,
                "metric": text.metric(state),
                "mode": state.mode,
                "trials": [
                    {
                        "trial": row.trial.id,
                        "value": row.report.value,
                        "step": row.report.step,
                        "gain": row.gain,
                        "state": row.trial.status.value,
                        "origin": row.trial.origin,
                        "checkpoint": row.report.checkpoint if row.exportable else None,
                        "config": row.trial.config,
                    }
                    for row in rows
                ],
                "importance": None if found is None else {"shares": found.shares, "trials": found.trials, "step": found.step},
                "no_importance": reason or None,
                "not_settled": comparison.not_settled(state, rows),
            }
        )
        return
    if not rows:
        click.echo(f"{state.sweep} has no trial with a finite {text.metric(state)} yet.", err=True)
        return
    names = text.varied(state) or text.parameters(state)
    has_gain = any(row.gain is not None for row in rows)
    columns = ["trial", text.metric(state), *(["gain"] if has_gain else []), text.axis(state), *names, ""]
    lines = []
    for row in rows:
        gain = [text.gain_text(row.gain)] if has_gain else []
        step = text.step_text(row.report.step)
        settings = text.settings(row.trial.config, names)
        lines.append([row.trial.id, text.metric_text(row.report.value), *gain, step, *settings, row.note])
    common.show_table(columns, lines)
    sys.stdout.flush()  # the importance takes a moment longer
    click.echo(line(state))
    if sentence := comparison.not_settled(state, rows):
        click.echo(sentence)
