"""`tunelab predict MODEL --input FILE`: predictions of an exported model, one JSON object a row."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--input", "file", type=click.Path(path_type=Path), required=True, help="Rows: .csv with a header, or .jsonl.")
@click.option("--batch-size", type=click.IntRange(min=1), default=256, show_default=True, help="Rows in memory at a time.")
def command(model: Path, file: Path, batch_size: int) -> None:
    """Predict the rows of a file with MODEL, a folder that `tunelab export` wrote.

    A model that carries code of its own runs it: predict only with models whose origin you trust. The model's card says
    whether it does.
    """
    from tunelab.export import card
    from tunelab.export.predict import predict_file

    if card.read(model)["runs_code"]:
        click.echo(f"{model} carries code, which runs now. Use it only if you trust where it comes from.", err=True)
    for row in predict_file(model, file, batch_size=batch_size):
        click.echo(json.dumps(row, ensure_ascii=False))
