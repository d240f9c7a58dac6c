"""What `sweep`, `resume` and `check` share: their flags, and how a session's end is told."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tunelab.cli import common
from tunelab.core.select import best
from tunelab.errors import BadInputError

if TYPE_CHECKING:
    from tunelab.engine.sweeping import Outcome
    from tunelab.journal.state import SweepState
    from tunelab.trackers.tracking import Tracking

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


def tracking_for(flag: str | None, home: Path, root: Path | None) -> Tracking:
    """Where to track to; see `trackers/tracking.py` for the order of precedence."""
    from tunelab.trackers.tracking import resolve_tracking

    return resolve_tracking(flag, home=home, project_root=root, environ=os.environ)


def tell(done: Outcome, as_json: bool) -> int:
    """Say how the session ended, and return the exit status."""
    state, name = done.state, done.state.sweep
    counts = common.counts(state)
    if as_json:
        common.emit_json({"sweep": name, "outcome": done.outcome, "reason": done.reason, "counts": counts, **_best(state)})
    else:
        _tell(done, state, name, counts)
    if done.outcome == "interrupted":
        return 130
    return 0 if done.outcome != "aborted" and counts.get("completed") else 1


def _tell(done: Outcome, state: SweepState, name: str, counts: dict[str, int]) -> None:
    from tunelab.analysis import compare as comparison
    from tunelab.analysis import text

    if not done.tracked:
        click.echo(f"Not everything is tracked yet, see {done.folder.path / 'tracker.log'}: tunelab resume {name}", err=True)
    unfinished = state.unfinished()
    if done.outcome in ("interrupted", "out of time"):
        on_hand = [
            f"{trial.id} at {text.axis(state)} {text.step_text(kept.step)}" if (kept := trial.latest_checkpoint()) else trial.id
            for trial in unfinished
        ]
        rest = f" {len(unfinished)} interrupted ({', '.join(on_hand)})." if on_hand else ""
        more = "" if done.outcome == "interrupted" else " --time SECONDS"
        click.echo(f"{done.outcome}: {done.reason}.{rest} Go on:  tunelab resume {name}{more}", err=True)
    elif done.outcome == "aborted":
        click.echo(f"{name} was aborted: {done.reason}", err=True)
    numbers = (
        f"{counts.get('completed', 0)} completed, {counts.get('stopped', 0)} stopped early, {counts.get('failed', 0)} failed"
    )
    infeasible = f", {counts['infeasible']} infeasible" if "infeasible" in counts else ""
    click.echo(f"{state.counted()} trials in {text.span_text(state.elapsed_s)}: {numbers}{infeasible}", err=True)
    found = best(state.trials.values(), state.mode)
    if found is None:
        return
    gain = comparison.gain(state, found.report.value, comparison.baseline(state))
    over = f"; {text.gain_text(gain)} over the baseline" if gain is not None and found.trial.origin != "baseline" else ""
    saved = "checkpoint kept" if found.exportable else "no checkpoint"
    where = f"{text.axis(state)} {text.step_text(found.report.step)}"
    value = text.metric_text(found.report.value)
    click.echo(f"best {name}/{found.trial.id}: {text.metric(state)} {value} at {where}, {saved}{over}")


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


def goes_on(state: SweepState) -> str:
    """`13 ended stay; 0013 goes on from epoch 9; 17 to come`: what a resume will do."""
    from tunelab.analysis import text

    ended = sum(trial.status.ended for trial in state.trials.values())
    parts = [f"{ended} ended stay"]
    for trial in state.unfinished():
        kept = trial.latest_checkpoint()
        start = f"goes on from {text.axis(state)} {text.step_text(kept.step)}" if kept else "starts from the beginning"
        parts.append(f"{trial.id} {start}")
    parts.append(f"{max(0, state.budget['trials'] - state.counted())} to come")
    return f"{state.sweep}: {'; '.join(parts)}."
