"""`tunelab check`: prove an experiment's contract on two short attempts, before money is spent."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tunelab.cli import running
from tunelab.core.trial import Status
from tunelab.engine.conductor import FAR_ENOUGH
from tunelab.errors import TunelabError
from tunelab.journal.locks import scratch
from tunelab.journal.state import SweepState


class CheckFailedError(TunelabError):
    """The experiment does not keep its contract; the message says which part."""


@click.command
@click.argument("file", metavar="FILE[:NAME]")
@running.change_options
@click.option("--address", default="local", show_default=True, help="Ray cluster: local, auto or HOST:PORT.")
@click.option("--no-export", is_flag=True, help="Do not try the export.")
def command(file: str, max_steps: int | None, seed: int | None, sets: tuple[str, ...], address: str, no_export: bool) -> None:
    """Load the experiment in FILE, run one configuration to its first report, continue it from its checkpoint in a second
    attempt, and export it. Nothing is kept and nothing is tracked.
    """
    from tunelab.engine.loading import apply_overrides, load_experiment

    running.check_address(address)
    began = time.monotonic()
    loaded = load_experiment(file)
    experiment = apply_overrides(loaded.experiment, **running.overrides(max_steps=max_steps, seed=seed, sets=sets))
    overlap = sorted(experiment.loop_defaults().keys() & experiment.space.parameters.keys())
    if overlap:
        click.echo(f"the space overrides train_loop_config's {', '.join(overlap)}", err=True)

    from tunelab.engine.ray.cluster import connected
    from tunelab.engine.sweeping import Plan, resume, start
    from tunelab.journal.home import Home
    from tunelab.schedulers.fifo import FIFO
    from tunelab.trackers.tracking import Tracking

    with scratch("tunelab-check-") as folder, connected(address, str(loaded.root)):
        plan = Plan(
            experiment=replace(
                experiment, scheduler=FIFO(), budget=replace(experiment.budget, trials=1, concurrent=1, time_s=None)
            ),
            root=loaded.root,
            home=Home(Path(folder)),
            tracking=Tracking(kind="none", name="none"),
            address=address,
            module=loaded.module,
            file=str(loaded.file),
            variable=loaded.variable,
            text=loaded.text,
            until=_reported_in(1),
        )
        first = start(plan)
        _refuse_interrupted(first)
        step = _first_attempt(first.state)
        axis = experiment.objective.step or "step"
        count = len(experiment.space.parameters)
        loads = f"ok  loads; {count} parameter{'s'[: count != 1]}"
        told = f"{loads}; reports {experiment.objective.metric} at {axis} {step:g}"
        if first.state.trials[0].latest_checkpoint() is None:
            if not no_export and experiment.export is not None:
                raise CheckFailedError(
                    f"{experiment.objective.metric} was reported without a checkpoint: nothing could be resumed or exported. "
                    "Pass checkpoint= to ray.train.report on rank 0."
                )
            click.echo(told)
            click.echo("--  no checkpoint: nothing could be resumed or exported (pass checkpoint= to ray.train.report)")
            return
        told += " with a checkpoint"
        if first.state.trials[0].status is Status.COMPLETED:
            click.echo(f"{told}; the trial ends there, so a restart is not tried")
        else:
            second = resume(replace(plan, until=_reported_in(2)), first.folder)
            _refuse_interrupted(second)
            click.echo(f"{told}; {_second_attempt(second.state, axis, step)}")
        if no_export:
            return
        if experiment.export is None:
            click.echo("--  Experiment(export=...) is not given: nothing to export")
            return
        from tunelab.export.deliver import export_trial

        exported = export_trial(
            folder=first.folder, state=first.folder.load(), experiment=experiment, trial=0, to=Path(folder, "model")
        )
        taken = f"{time.monotonic() - began:.0f} s"
        click.echo(f"ok  exports from that checkpoint, {exported.rows} rows predicted in a clean process      {taken}")


def _refuse_interrupted(done: Any) -> None:
    """Ctrl-C ends the check; being stopped once it has seen enough does not."""
    if done.outcome == "interrupted" and done.reason != FAR_ENOUGH:
        raise KeyboardInterrupt


def _reported_in(attempt: int) -> Any:
    """Whether the trial has reported in its attempt of this number."""

    def reported(state: SweepState) -> bool:
        trial = state.trials.get(0)
        return trial is not None and trial.last is not None and trial.last.attempt >= attempt

    return reported


def _first_attempt(state: SweepState) -> float:
    trial = state.trials[0]
    if trial.status in (Status.FAILED, Status.INFEASIBLE) or trial.last is None:
        attempt = trial.attempts[-1]
        raise CheckFailedError(f"the first attempt failed: {trial.reason or attempt.message}\n{attempt.details}".rstrip())
    return (trial.latest_checkpoint() or trial.last).step


def _second_attempt(state: SweepState, axis: str, step: float) -> str:
    trial = state.trials[0]
    if trial.status in (Status.FAILED, Status.INFEASIBLE):
        raise CheckFailedError(
            f"a restart from {axis} {step:g}'s checkpoint fails: {trial.reason}\n{trial.attempts[-1].details}".rstrip()
        )
    if trial.last is None or trial.last.attempt < 2:
        return f"a restart from it has nothing left to do after {axis} {step:g}"
    return f"a restart from it goes on at {axis} {trial.last.step:g}"
