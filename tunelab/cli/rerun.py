"""`tunelab rerun`: run a trial once more, with its own seed or with others, and compare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from tunelab.analysis import text
from tunelab.cli import common, running
from tunelab.core.trial import Status
from tunelab.journal.home import Home, load_trial

if TYPE_CHECKING:
    from tunelab.engine.rerunning import Rerun, Spread, Steps


@click.command
@click.argument("name", metavar="SWEEP/TRIAL")
@click.option("--seeds", type=click.IntRange(1), metavar="N", help="Run it with N other seeds instead of its own.")
@click.option("--code", type=click.Choice(["current", "snapshot"]), help="Which code, when the file has changed since.")
@running.place_options
@common.home_option
@common.json_option
@click.pass_context
def command(
    ctx: click.Context,
    name: str,
    seeds: int | None,
    code: Literal["current", "snapshot"] | None,
    address: str,
    tracking: str | None,
    home: Path,
    as_json: bool,
) -> None:
    """Run a trial (digits-mlp.1/0007) once more in a sweep of its own, without early stopping, and compare.

    With the trial's own seed the objective is compared step by step. With --seeds it is shown how much the seed alone changes,
    and whether the trial's value is a typical one. Neither counts in the budget of the trial's sweep, nor can it be its best.
    """
    running.check_address(address)
    folder, number = Home(home).find_trial(name)
    state, number = load_trial(folder, number)
    from tunelab.cli.watch import make_watcher
    from tunelab.engine import rerunning

    with make_watcher() as watcher:
        made = rerunning.plan(
            folder, state, number, seeds=seeds, code=code, address=address, tracking=tracking, watcher=watcher
        )  # fmt: skip
        watcher.say(f"Ray: {address}. Tracking: {made.tracking.describe()}.")
        done, rerun = rerunning.run(made, state.trials[number])
    if done.outcome != "finished":
        ctx.exit(running.tell(done, as_json))
    if as_json:
        common.emit_json(_as_json(rerun))
    else:
        click.echo("\n".join(lines(rerun)))
    ctx.exit(0 if any(trial.status is Status.COMPLETED for trial in rerun.state.trials.values()) else 1)


def lines(rerun: Rerun) -> list[str]:
    """What is said of a rerun that has ended."""
    state, original = rerun.state, rerun.original
    found = [
        f"{state.sweep}/{trial.id} {trial.status.value}: {trial.reason.partition(chr(10))[0]}"
        for trial in state.trials.values()
        if trial.status in (Status.FAILED, Status.INFEASIBLE)
    ]
    if rerun.steps is not None:
        found.append(_steps(rerun, rerun.steps))
    if rerun.spread is not None:
        found += _spread(rerun, rerun.spread)
    starts = [attempt.from_step for attempt in original.attempts if attempt.from_step is not None]
    if rerun.steps is not None and starts and not rerun.steps.equal:
        at = f"{text.axis(state)} {text.step_text(starts[-1])}"
        found.append(f"{rerun.of} had been restarted from a checkpoint (the last time at {at}), the rerun was not")
    return found


def _steps(rerun: Rerun, steps: Steps) -> str:
    state = rerun.state
    word, metric = text.axis(state), text.metric(state)
    if not steps.common or steps.last is None:
        return f"{state.sweep} and {rerun.of} have no {word} in common"
    count = f"{steps.common} {word}{'s'[: steps.common != 1]}"
    if steps.worst is None:
        how = "all " if steps.common > 1 else ""
        return f"{state.sweep} equals {rerun.of} to the bit: {metric} at {how}{count} that both reported"
    step, then, now = steps.worst
    equal = f"equal up to {word} {text.step_text(steps.equal_until)}, then " if steps.equal_until is not None else ""
    difference = text.metric_text(abs(now - then))
    return (
        f"{state.sweep} differs from {rerun.of}: {equal}{metric} differs by at most {difference}, at {word} "
        f"{text.step_text(step)} (then {text.metric_text(then)}, now {text.metric_text(now)}); {count} compared"
    )


def _spread(rerun: Rerun, spread: Spread) -> list[str]:
    state, number = rerun.state, rerun.of.rpartition("/")[2]
    until = "" if spread.until is None else f" up to {text.axis(state)} {text.step_text(spread.until)}"
    each = [f"{key:04d} {text.metric_text(value) or 'none'}" for key, value in spread.values.items()]
    head = f"{state.sweep}: {rerun.of} with {len(each)} other seed{'s'[: len(each) != 1]}, best {text.metric(state)}{until}"
    line = "  ".join(each)
    if spread.mean is None or spread.sd is None:
        return [head, f"{line}   (two or more values are needed to tell what is typical)"]
    line += f"   mean {text.metric_text(spread.mean)}, sd {text.metric_text(spread.sd)}"
    if spread.typical is not None and spread.interval is not None:
        low, high = map(text.metric_text, spread.interval)
        verdict = "is typical" if spread.typical else "is not typical"
        line += f": {number}'s {text.metric_text(spread.value)} {verdict} (95 % of further seeds: {low} to {high})"
    return [head, line]


def _as_json(rerun: Rerun) -> dict[str, Any]:
    data: dict[str, Any] = {"sweep": rerun.state.sweep, "rerun_of": rerun.of, "outcome": rerun.outcome}
    if rerun.steps is not None:
        steps, worst = rerun.steps, rerun.steps.worst
        data |= {"common_steps": steps.common, "equal": steps.equal, "equal_until": steps.equal_until}
        data["worst"] = None if worst is None else dict(zip(("step", "then", "now"), worst, strict=True))
    if rerun.spread is not None:
        spread = rerun.spread
        values = {f"{number:04d}": value for number, value in spread.values.items()}
        data |= {"until": spread.until, "value": spread.value, "values": values, "mean": spread.mean, "sd": spread.sd}
        data |= {"interval": spread.interval, "typical": spread.typical}
    return data
