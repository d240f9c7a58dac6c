"""`tunelab doctor`: what killed drivers and dead servers left behind, and putting it right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tunelab.cli import common
from tunelab.journal.home import Home, SweepFolder

if TYPE_CHECKING:
    from tunelab.engine.doctor import Finding


@click.command
@click.argument("sweeps", metavar="[SWEEP]...", nargs=-1)
@click.option("--fix", is_flag=True, help="Repair what can be; without it, only tell.")
@click.option("--address", metavar="ADDRESS", help="Also look at a running Ray cluster: auto or HOST:PORT.")
@common.plain_home_option
@common.json_option
def command(sweeps: tuple[str, ...], fix: bool, address: str | None, home: Path, as_json: bool) -> int:
    """Look for what killed drivers, dead servers and crashed machines left behind in SWEEPs, or in all of the home's.

    A line a finding: what, where, and what --fix does about it. A sweep whose driver lives is left alone.

    Exit status: 0 when nothing was found, or all of it was repaired; 1 when something is left. A sweep that can be resumed is
    told and is no fault.
    """
    from tunelab.engine.doctor import Doctor, folders_of, outside_of_sweeps, repair

    store = Home(home)
    folders = folders_of(store, sweeps)
    groups: list[Finding] = []
    if address is not None:  # before anything is repaired: the address may be wrong
        from tunelab.engine.ray.leftovers import placement_groups

        groups = placement_groups(address)
    doctor = Doctor()
    told: list[tuple[Finding, bool | None]] = []
    for folder in folders:
        if folder.is_running() and sweeps:
            click.echo(f"{folder.path.name} is running: left alone", err=True)
        found = doctor.treat(folder) if fix and not folder.is_running() else [(one, None) for one in doctor.examine(folder)]
        told += [(_with_command(one, folder), done) for one, done in found]
    others = [*([] if sweeps else outside_of_sweeps(store)), *groups]
    told += repair(others) if fix else [(one, None) for one in others]
    if as_json:
        common.emit_json([_json(one, done) for one, done in told])
    else:
        for one, done in told:
            click.echo(_line(one, done))
        if not told:
            click.echo(f"Nothing found in {len(folders)} sweep{'s'[: len(folders) != 1]}.", err=True)
        elif not fix and any(one.repair is not None for one, _ in told):
            click.echo("To repair what can be:  tunelab doctor --fix" + common.home_flag(home), err=True)
    return int(any(one.counts and not done for one, done in told))


def _with_command(finding: Finding, folder: SweepFolder) -> Finding:
    """What is to be typed where `--fix` is not what helps."""
    if finding.kind != "unfinished":
        return finding
    return replace(finding, remedy=common.suggest("resume", folder))


def _line(finding: Finding, done: bool | None) -> str:
    text = f"{finding.where}: {finding.what}"
    if finding.repair is None:
        return f"{text}.  {finding.remedy}".rstrip() if finding.remedy else text
    if done is None:
        return f"{text}.  --fix {finding.remedy}"
    return f"{text}.  {'repaired' if done else 'NOT REPAIRED'} ({finding.remedy})"


def _json(finding: Finding, done: bool | None) -> dict[str, object]:
    return {
        "kind": finding.kind,
        "where": finding.where,
        "what": finding.what,
        "remedy": finding.remedy,
        "items": list(finding.items),
        "repairable": finding.repair is not None,
        "repaired": done if finding.repair is not None else None,
        "counts": finding.counts,
    }
