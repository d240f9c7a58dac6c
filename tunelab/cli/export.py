"""`tunelab export SWEEP --to DIR`: the best checkpoint, or one trial's, as a proved MLflow model."""

from __future__ import annotations

import json
from pathlib import Path

import click

from tunelab.cli.common import home_option, json_option


@click.command
@click.argument("sweep")
@click.option("--to", type=click.Path(path_type=Path), required=True, help="Folder to write; must not exist, or be empty.")
@click.option("--trial", type=click.IntRange(min=0), help="Export this trial instead of the best.")
@home_option
@json_option
def command(sweep: str, to: Path, trial: int | None, home: Path, as_json: bool) -> None:
    """Export the best checkpoint of SWEEP as an MLflow model, and prove that it predicts the same in a clean process.

    SWEEP is a sweep (digits-mlp.1), an experiment (its latest sweep), or a trial (digits-mlp.1/0021).
    """
    from tunelab.errors import BadInputError
    from tunelab.journal.home import Home, load_trial

    _, slash, number = sweep.rpartition("/")
    if slash and number.isdigit():
        if trial is not None and trial != int(number):
            raise BadInputError(f"'{sweep}' names trial {int(number):04d} and --trial says {trial:04d}. Say one of them.")
        folder, trial = Home(home).find_trial(sweep)
    else:
        folder = Home(home).find(sweep)
    state = folder.load() if trial is None else load_trial(folder, trial)[0]

    from tunelab.engine.loading import load_snapshot_experiment
    from tunelab.export.choose import choose
    from tunelab.export.deliver import check_target, export_trial

    check_target(to)  # these two take no time; loading the experiment imports its framework
    choose(folder, state, trial)
    exported = export_trial(folder=folder, state=state, experiment=load_snapshot_experiment(folder, state), trial=trial, to=to)
    if exported.note:
        click.echo(exported.note, err=True)
    click.echo(json.dumps(exported.as_json()) if as_json else exported.line())
