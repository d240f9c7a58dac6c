"""`tunelab best`: the best trial's configuration, and where its checkpoint lies."""

from __future__ import annotations

import json
from pathlib import Path

import click

from tunelab.analysis import compare as comparison
from tunelab.analysis import text
from tunelab.cli import common
from tunelab.core.select import best
from tunelab.errors import NoCheckpointError
from tunelab.journal.home import Home


@click.command
@common.sweep_argument
@common.home_option
@common.json_option
def command(sweep: str, home: Path, as_json: bool) -> None:
    """Print the best trial's configuration in full, its metric and the checkpoint that has this metric.

    SWEEP is an id (digits-mlp.2), an experiment's name (its latest sweep), or a path to a sweep's folder.
    """
    folder = Home(home).find(sweep)
    state = common.load(folder)
    found = best(state.trials.values(), state.mode)
    if found is None:
        raise NoCheckpointError(f"{state.sweep} has no trial with a finite {text.metric(state)} yet.")
    gain = comparison.gain(state, found.report.value, comparison.baseline(state))
    checkpoint = folder.checkpoint(state, str(found.report.checkpoint)) if found.exportable else None
    if as_json:
        data = {"trial": f"{state.sweep}/{found.trial.id}", "metric": text.metric(state), "value": found.report.value}
        data |= {"step": found.report.step, "gain": gain, "config": found.trial.config, "seed": found.trial.seed}
        common.emit_json(data | {"checkpoint": checkpoint})
        return
    over = f"  {text.gain_text(gain)} over the baseline" if gain is not None and found.trial.origin != "baseline" else ""
    rows = [("trial", f"{state.sweep}/{found.trial.id}")]
    rows += [
        (
            text.metric(state),
            f"{text.metric_text(found.report.value)} at {text.axis(state)} {text.step_text(found.report.step)}{over}",
        )
    ]
    rows += [(name, json.dumps(value)) for name, value in found.trial.config.items()]
    rows += [("seed", str(found.trial.seed)), ("checkpoint", checkpoint or "none kept")]
    click.echo("\n".join(common.aligned(rows)))
