"""What `sweep`, `resume` and `check` share: their flags, and how a session's end is told."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tunelab.cli import common
from tunelab.core.select import best
from tunelab.core.trial import Status, Trial
from tunelab.errors import BadInputError, SweepLockedError
from tunelab.journal.home import Home, SweepFolder
from tunelab.journal.state import SweepState

if TYPE_CHECKING:
    from tunelab.engine.going_on import Wish
    from tunelab.engine.sweeping import Outcome
    from tunelab.trackers.tracking import Tracking

# Status -> how a summary calls it; the completed come first and are always told.
_KINDS = {
    "stopped": "stopped early",
    "failed": "failed",
    "infeasible": "infeasible",
    "interrupted": "interrupted",
    "running": "running",
    "retrying": "to be tried again",
    "proposed": "not started",
}
_BUDGET = [
    click.option("--trials", type=int, help="Most trials in all."),
    click.option("--time", "time_s", type=float, metavar="SECONDS", help="Wall-clock budget in all."),
    click.option("--concurrent", type=int, help="Most trials at a time."),
]
_CHANGES = [
    click.option("--max-steps", type=int, help="The step at which a trial is complete."),
    click.option("--seed", type=int, help="The sweep's seed."),
    click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="Pin a parameter, or change train_loop_config."),
]
_PLACE = [
    click.option("--address", default="local", show_default=True, help="Ray cluster: local, auto or HOST:PORT."),
    click.option("--tracking", metavar="NAME|FILE", help="Where MLflow tracks to: local, server, none, or a TOML file."),
]


_CODE = [
    click.option("--code", type=click.Choice(["current", "snapshot"]), help="Which code, when the file has changed since."),
    click.option("--amend", is_flag=True, help="Go on although space, objective, seed, searcher or scheduler have changed."),
]


def budget_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--trials --time --concurrent`."""
    return _all(_BUDGET, function)


def change_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--max-steps --seed --set`."""
    return _all(_CHANGES, function)


def place_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--address --tracking`."""
    return _all(_PLACE, function)


def _all(options: list[Any], function: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(options):
        function = option(function)
    return function


def overrides(**flags: Any) -> dict[str, Any]:
    """The flags that were given, as `apply_overrides` takes them and the journal keeps them."""
    given = {name: value for name, value in flags.items() if value is not None and value != ()}
    if "sets" in given:
        given["sets"] = list(given["sets"])
    return given


def check_address(address: str) -> None:
    """Refuse what cannot be an address, before anything is imported."""
    if address.startswith("ray://"):
        raise BadInputError(
            "Ray client addresses (ray://) are not supported: a sweep's driver has to run on the cluster. Run it there with:\n"
            "  ray job submit --address http://HOST:8265 --working-dir . -- tunelab sweep FILE --address auto"
        )


def session_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--concurrent --address --tracking --code --amend`: of another session of a sweep that exists."""
    return _all([_BUDGET[2], *_PLACE, *_CODE], function)


def idle(home: Path, name: str) -> tuple[SweepFolder, SweepState]:
    """The sweep called `name`, which no driver may be running.

    Raises:
        SweepLockedError: One does.
    """
    folder = Home(home).find(name)
    if folder.is_running():
        raise SweepLockedError(
            f"{folder.path.name} is being run by another driver. Watch it with: {common.suggest('show', folder)}"
        )
    return folder, folder.load()


def go_on(folder: SweepFolder, state: SweepState, wish: Wish, as_json: bool) -> int:
    """Run another session of a sweep as it is wished for, and return the exit status."""
    from tunelab.cli.watch import make_watcher
    from tunelab.core.failures import Failure, rules
    from tunelab.engine.going_on import catch_up, plan
    from tunelab.engine.sweeping import resume

    check_address(wish.address)
    made = plan(folder, state, wish)
    if made is None:
        done = f"{common.ended(state)} of {state.budget['trials']} trials have ended"
        click.echo(f"{state.sweep} is finished: {done}. More: {common.suggest('extend', folder, '--trials +N')}", err=True)
        if where := catch_up(folder, state, wish.tracking):
            click.echo(f"All of it is tracked: {where}", err=True)
        return 0
    with make_watcher() as watcher:
        watcher.say(f"Ray: {wish.address}. Tracking: {made.tracking.describe()}.")
        if made.amendment is not None:
            how = "Amended" if made.amendment.data["forced"] else "Changed since the session before"
            watcher.say(f"{how}: {'; '.join(made.amendment.data['changes'])}")
        patience = rules(made.experiment.on_failure, 0)[Failure.DIVERGED].patience
        watcher.say(goes_on(state, made.experiment.budget.trials, wish.reopen, patience))
        return tell(resume(replace(made, watcher=watcher), folder), as_json)


def tracking_for(flag: str | None, home: Path, root: Path | None) -> Tracking:
    """Where to track to; see `trackers/tracking.py` for the order of precedence."""
    from tunelab.trackers.tracking import resolve_tracking

    return resolve_tracking(flag, home=home, project_root=root, environ=os.environ)


def tell(done: Outcome, as_json: bool) -> int:
    """Say how the session ended, and return the exit status."""
    state, name = done.state, done.state.sweep
    counts = common.counts(state)
    if as_json:
        common.emit_json(
            {
                "sweep": name,
                "outcome": done.outcome,
                "reason": done.reason,
                "tracked": done.tracked,
                "counts": counts,
                **_best(state),
            }
        )
    else:
        _tell(done, state, name, counts)
    if done.outcome == "interrupted":
        return 130
    return 0 if done.outcome != "aborted" and counts.get("completed") else 1


def _tell(done: Outcome, state: SweepState, name: str, counts: dict[str, int]) -> None:
    from tunelab.analysis import compare as comparison
    from tunelab.analysis import text

    folder = done.folder
    if done.outcome in ("interrupted", "out of time"):
        again = common.suggest("resume", folder, "" if done.outcome == "interrupted" else "--time SECONDS")
        click.echo(f"{done.outcome}: {done.reason}.{left(state)} Go on:  {again}", err=True)
    elif done.outcome == "aborted":
        click.echo(f"{name} was aborted: {done.reason}", err=True)
    elif state.counted() < state.budget["trials"]:
        click.echo(f"{name} ended before its budget of {state.budget['trials']} trials: {done.reason}", err=True)
    count = len(state.trials)
    kinds = [f"{counts.get('completed', 0)} completed"]
    kinds += [f"{counts[kind]} {words}" for kind, words in _KINDS.items() if kind in counts]
    click.echo(f"{count} trial{'s'[: count != 1]} in {text.span_text(state.elapsed_s)}: {', '.join(kinds)}", err=True)
    found = best(state.trials.values(), state.mode)
    if found is None:
        return
    gain = comparison.gain(state, found.report.value, comparison.baseline(state))
    over = f"; {text.gain_text(gain)} over the baseline" if gain is not None and found.trial.origin != "baseline" else ""
    saved = "checkpoint kept" if found.exportable else "no checkpoint"
    where = f"{text.axis(state)} {text.step_text(found.report.step)}"
    value = text.metric_text(found.report.value)
    click.echo(f"best {name}/{found.trial.id}: {text.metric(state)} {value} at {where}, {saved}{over}")
    if done.outcome == "finished":
        click.echo(f"Next:  {common.suggest('compare', folder, short=True)}", err=True)
        if found.exportable:
            click.echo(f"       {common.suggest('export', folder, '--to model/', short=True)}", err=True)


def left(state: SweepState) -> str:
    """` 2 interrupted (0013 at epoch 9; 0014 at epoch 4).`, or nothing: which trials can go on, and from where."""
    unfinished = state.unfinished()
    if not unfinished:
        return ""
    how = "interrupted" if all(trial.status is Status.INTERRUPTED for trial in unfinished) else "unfinished"
    return f" {len(unfinished)} {how} ({'; '.join(_on_hand(state, trial) for trial in unfinished)})."


def _on_hand(state: SweepState, trial: Trial) -> str:
    """`0004 at epoch 3, checkpoint of epoch 2`: how far a trial came, and what a resume can start from."""
    from tunelab.analysis import text

    axis, last, kept = text.axis(state), trial.last, trial.latest_checkpoint()
    if last is None:
        return f"{trial.id} before the first {axis}"
    at = f"{trial.id} at {axis} {text.step_text(last.step)}"
    if kept is None:
        return f"{at}, no checkpoint"
    return at if kept.step == last.step else f"{at}, checkpoint of {axis} {text.step_text(kept.step)}"


def _best(state: SweepState) -> dict[str, Any]:
    found = best(state.trials.values(), state.mode)
    if found is None:
        return {"best": None}
    report = found.report
    return {
        "best": {
            "trial": f"{state.sweep}/{found.trial.id}",
            "value": report.value,
            "step": report.step,
            "config": found.trial.config,
        }
    }


def goes_on(state: SweepState, trials: int, reopen: Sequence[int] = (), patience: int = 0) -> str:
    """`13 ended stay; 0013 goes on from epoch 9; 17 to come`: what a resume with so many trials in all will do.

    Args:
        state: The sweep's.
        trials: So many in all.
        reopen: Numbers of those to try again.
        patience: So many diverged reports in a row are put up with.
    """
    from tunelab.analysis import text
    from tunelab.engine.reports import goes_on_from, last_sound

    ended = sum(trial.status.ended and trial.number not in reopen for trial in state.trials.values())
    parts = [f"{ended} ended stay"]
    for trial in state.trials.values():
        if trial.status.ended and trial.number not in reopen:
            continue
        if trial.number in reopen:
            stands = last_sound(trial)
            sound = [report for report in trial.reports if stands is not None and report.step <= stands.step]
            trial = replace(trial, reports=sound)
        kept = goes_on_from(trial, patience)
        start = f"goes on from {text.axis(state)} {text.step_text(kept.step)}" if kept else "starts from the beginning"
        parts.append(f"{trial.id} {start}")
    parts.append(f"{max(0, trials - state.counted())} to come")
    return f"{state.sweep}: {'; '.join(parts)}."
