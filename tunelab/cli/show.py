"""`tunelab show`: a sweep with its trials, or one trial with its curve."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from tunelab.analysis import text
from tunelab.analysis.why import why
from tunelab.cli import common
from tunelab.core.failures import Failure
from tunelab.core.select import shown_report
from tunelab.core.trial import Attempt, Status, Trial
from tunelab.journal import read_events
from tunelab.journal.home import Home, SweepFolder, load_trial
from tunelab.journal.state import SweepState


@click.command
@click.argument("name", metavar="SWEEP[/TRIAL]")
@click.option("--all", "show_all", is_flag=True, help="All trials, not only the latest 50.")
@common.home_option
@common.json_option
def command(name: str, show_all: bool, home: Path, as_json: bool) -> None:
    """Show a sweep's trials, with what became of the failed ones; or a single trial (digits-mlp.2/0007) with its curve.

    SWEEP is an id (digits-mlp.2), an experiment's name (its latest sweep), or a path to a sweep's folder.
    """
    if "/" in name and name.rpartition("/")[2].isdigit():
        folder, number = Home(home).find_trial(name)
        state, number = load_trial(folder, number)
        _show_trial(folder, state, state.trials[number], as_json)
    else:
        folder = Home(home).find(name)
        _show_sweep(folder, common.load(folder), None if show_all else 50, as_json)


def headline(state: SweepState) -> str:
    """`sweep digits-mlp.1: 32 trials, tpe, asha, seed 0, git 4f2c1e9`: what the sweep is made of."""
    experiment = state.experiment
    count = state.budget["trials"]
    parts = [f"{count} trial{'s'[: count != 1]}"]
    if state.budget.get("time_s"):
        parts.append(f"at most {text.span_text(state.budget['time_s'])}")
    parts += [experiment["searcher"]["name"], experiment["scheduler"]["name"], f"seed {experiment['seed']}"]
    git = state.facts.get("git") or {}
    if git.get("commit"):
        parts.append(f"git {git['commit'][:7]} {'with changes' if git.get('dirty') else 'clean'}")
    return f"sweep {state.sweep}: {', '.join(parts)}"


def trial_row(state: SweepState, trial: Trial, names: dict[str, bool]) -> list[str]:
    """A trial's line in a table: id, state, step of how many, latest value, best value, configuration, remark."""
    last, best, limit = trial.last, shown_report(trial, state.mode), text.last_step(state, trial)
    step = "" if last is None else text.step_text(last.step) + (f"/{text.step_text(limit)}" if limit else "")
    at_best = "" if best is None else f"{text.metric_text(best.value)}@{text.step_text(best.step)}"
    status = "done" if trial.status is Status.COMPLETED else trial.status.value
    value = "" if last is None else text.metric_text(last.value)
    return [trial.id, status, step, value, at_best, *text.settings(trial.config, names), remark(trial)]


def remark(trial: Trial) -> str:
    """What is to be said of a trial in half a line."""
    own = "baseline" if trial.origin == "baseline" else ""
    return ", ".join(part for part in (own, _retried(trial), trial.reason.partition("\n")[0]) if part)


def _retried(trial: Trial) -> str:
    """`tried again after lost and hung`: the failures that were not the trial's end."""
    survived = trial.attempts if trial.status is Status.RETRYING else trial.attempts[:-1]
    failures = [attempt.failure for attempt in survived if attempt.failure]
    return f"tried again after {' and '.join(failures)}" if failures else ""


def _show_sweep(folder: SweepFolder, state: SweepState, latest: int | None, as_json: bool) -> None:
    trials = list(state.trials.values())
    if as_json:
        data: dict[str, Any] = {"sweep": state.sweep, "state": common.sweep_status(folder, state), "folder": str(folder.path)}
        data |= {"experiment": state.experiment, "facts": state.facts, "budget": state.budget}
        data["amendments"] = [asdict(amendment) for amendment in state.amendments]
        common.emit_json(data | {"elapsed_s": state.elapsed_s, "trials": [_trial_json(state, trial) for trial in trials]})
        return
    click.echo(headline(state))
    if "rerun_of" in state.facts:
        click.echo(f"a rerun of {state.facts['rerun_of']}")
    for amendment in state.amendments:
        click.echo(f"{text.amendment_text(amendment)}: {'; '.join(amendment.changes)}")
    numbers = ", ".join(f"{number} {status}" for status, number in common.counts(state).items())
    click.echo(f"{common.sweep_status(folder, state)} after {text.span_text(state.elapsed_s)}: {numbers or 'no trials yet'}")
    if state.sessions and state.sessions[-1].reason:
        click.echo(f"why it ended: {state.sessions[-1].reason}")
    shown = trials if latest is None else trials[-latest:]
    if len(shown) < len(trials):
        click.echo(f"(the latest {len(shown)} of {len(trials)} trials; --all shows the others)")
    names = text.varied(state)
    if shown:
        columns = ["trial", "state", text.axis(state), text.metric(state), "best@", *names, ""]
        common.show_table(columns, [trial_row(state, trial, names) for trial in shown])
    for trial in shown:
        failure = trial.attempts[-1].failure if trial.attempts else None
        if trial.status in (Status.FAILED, Status.INFEASIBLE) and failure not in (None, Failure.INFEASIBLE):
            _show_failure(trial)


def _show_failure(trial: Trial) -> None:
    attempt = trial.attempts[-1]
    click.echo(f"\n{trial.id} {trial.status.value} in attempt {attempt.number}: {trial.reason or attempt.message}")
    for line in attempt.details.rstrip().splitlines()[-4:]:
        click.echo(f"  {line}")


def _show_trial(folder: SweepFolder, state: SweepState, trial: Trial, as_json: bool) -> None:
    if as_json:
        data = _trial_json(state, trial)
        data["reports"] = [
            {"step": r.step, "attempt": r.attempt, "value": r.value, "metrics": dict(r.metrics), "checkpoint": r.checkpoint}
            for r in trial.reports
        ]
        common.emit_json(data | {"seed": trial.seed, "why": why(read_events(folder.journal), trial.number)})
        return
    click.echo(f"{state.sweep}/{trial.id}")
    click.echo("\n".join(why(read_events(folder.journal), trial.number)))
    if not trial.reports:
        return
    names = [key for key in trial.reports[-1].metrics if key != state.experiment["objective"].get("step")]
    names.sort(key=lambda key: key != text.metric(state))
    rows = []
    for report in trial.reports:
        values = [_cell(report.metrics.get(key)) for key in names]
        kept = "" if report.checkpoint is None else "deleted" if report.checkpoint in trial.deleted else report.checkpoint
        rows.append([text.step_text(report.step), *values, str(report.attempt), kept])
    click.echo()
    common.show_table([text.axis(state), *names, "attempt", "checkpoint"], rows)


def _cell(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "" if value is None else str(value)
    return str(value) if isinstance(value, int) else text.metric_text(value)


def _trial_json(state: SweepState, trial: Trial) -> dict[str, Any]:
    best = shown_report(trial, state.mode)
    return {
        "trial": trial.id,
        "state": trial.status.value,
        "reason": trial.reason,
        "origin": trial.origin,
        "attempts": trial.attempt,
        "config": trial.config,
        "step": trial.last.step if trial.last else None,
        "value": trial.last.value if trial.last else None,
        "best": None if best is None else {"value": best.value, "step": best.step, "checkpoint": best.checkpoint},
        "failure": trial.attempts[-1].failure if trial.attempts else None,
        "failures": [
            {"attempt": attempt.number, "failure": attempt.failure, "message": attempt.message, "then": _then(trial, attempt)}
            for attempt in trial.attempts
            if attempt.failure
        ],
    }


def _then(trial: Trial, attempt: Attempt) -> str:
    """What followed from a failure: `retry`, or the trial's end."""
    return trial.status.value if attempt is trial.attempts[-1] and trial.status.ended else "retry"
