"""`tunelab ui`: MLflow's pages on what the sweeps recorded."""

from __future__ import annotations

import os
from pathlib import Path

import click

from tunelab.cli import common
from tunelab.journal.home import Home
from tunelab.trackers.tracking import Tracking, resolve_tracking


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
        state = Home(home).find(sweep).load()
        journalled = state.sessions[-1].tracking if state.sessions else None
    else:
        journalled = None
    if journalled is not None and tracking is None:
        chosen = Tracking.from_json(journalled)
    else:
        chosen = resolve_tracking(tracking, home=home, project_root=Path.cwd(), environ=os.environ)
    from tunelab.trackers.ui import serve_ui

    serve_ui(chosen, port=port)
