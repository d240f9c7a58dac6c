"""`tunelab ui`: MLflow's pages on what the sweeps recorded."""

from __future__ import annotations

import os
from pathlib import Path

import click

from tunelab.cli import common
from tunelab.journal.home import Home
from tunelab.trackers.tracking import resolve_tracking


@click.command
@click.argument("sweep", metavar="[SWEEP]", required=False)
@click.option("--port", type=click.IntRange(0, 65535), default=5000, show_default=True, help="Of a local server; 0: any free.")
@click.option(
    "--tracking", metavar="NAME|FILE", help="Whose pages: local, server or a file. Default: what the sweep tracked to."
)
@common.home_option
def command(sweep: str | None, port: int, tracking: str | None, home: Path) -> None:
    """Open the MLflow pages that SWEEP is tracked to, or the project's. Ctrl-C ends a server that this started."""
    if sweep is not None:
        from tunelab.engine.code import tracking_of

        folder = Home(home).find(sweep)
        chosen = tracking_of(folder.load(), tracking, folder.path.absolute().parent, Path.cwd(), os.environ)
    else:
        chosen = resolve_tracking(tracking, home=home, project_root=Path.cwd(), environ=os.environ)
    from tunelab.trackers.ui import serve_ui

    common.record_what_is_missing(home)  # now: this ends only with Ctrl-C
    serve_ui(chosen, port=port)
