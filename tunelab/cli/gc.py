"""`tunelab gc`: delete the checkpoints that other retention counts do not keep."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from tunelab.analysis import text
from tunelab.cli import common, running


@click.command
@common.sweep_argument
@click.option(
    "--keep",
    "keeps",
    multiple=True,
    metavar="COUNT=N,...",
    help="best_of_sweep=1,best_of_trial=0,latest_of_trial=0, or some of them. Default: as the experiment says.",
)
@click.option("--dry-run", is_flag=True, help="Show what would go, and change nothing.")
@common.home_option
@common.json_option
def command(sweep: str, keeps: tuple[str, ...], dry_run: bool, home: Path, as_json: bool) -> int:
    """Delete checkpoints of SWEEP, which must not be running, by other counts than those of its Retention.

    Kept is what any of the three counts keeps: the best of so many trials of the sweep, so many best and so many latest of each
    trial. What a trial that has not ended needs to go on is kept whatever the counts. Exported models hold copies of their own.

    Exit status: 1 when some could not be deleted.
    """
    from tunelab.engine.collecting import Surplus, collect, parse_keep, retention_of, total_bytes

    folder, state = running.idle(home, sweep)
    keep = parse_keep(keeps, retention_of(state))
    before = total_bytes(folder, state)
    left: list[Surplus] = []
    found = collect(folder, keep, dry_run=dry_run, say=lambda sentence: click.echo(sentence, err=True), left=left.append)
    status = int(bool(left))
    if left:
        click.echo(f"{len(left)} checkpoint{'s'[: len(left) != 1]} could not be deleted.", err=True)
    freed = None if before is None else sum(entry.n_bytes or 0 for entry in found)
    if as_json:
        gone = [asdict(entry) for entry in found]
        common.emit_json({"sweep": state.sweep, "dry_run": dry_run, "keep": asdict(keep), "bytes": freed, "checkpoints": gone})
        return status
    if found:
        rows = [
            [
                f"{entry.trial:04d}",
                "" if entry.step is None else text.step_text(entry.step),
                text.metric_text(entry.value),
                "" if entry.n_bytes is None else size_text(entry.n_bytes),
                entry.checkpoint.rpartition("/")[2],
            ]
            for entry in found
        ]
        common.show_table(["trial", text.axis(state), text.metric(state), "size", "checkpoint"], rows)
    trials, count = len({entry.trial for entry in found}), len(found)
    what = f"{count} checkpoint{'s'[: count != 1]} of {trials} trial{'s'[: trials != 1]}"
    sizes = "" if freed is None or before is None else f", {size_text(freed)} of {size_text(before)}"
    counts = ", ".join(f"{name}={number}" for name, number in asdict(keep).items())
    click.echo(f"{what}{sizes} {'would go' if dry_run else 'deleted'}. Kept: {counts}", err=True)
    return status


def size_text(n_bytes: int) -> str:
    """`812 B`, `52.1 kB`, `1.4 GB`: 1 kB is 1000 bytes."""
    size, units = float(n_bytes), ["B", "kB", "MB", "GB", "TB"]
    while size >= 999.95 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{n_bytes} B" if units[0] == "B" else f"{size:.1f} {units[0]}"
