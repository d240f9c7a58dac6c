"""What another session of an existing sweep is to be: for `resume`, `extend` and `retry`, at the shell and in Python."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from tunelab.core.experiment import Budget, Experiment
from tunelab.core.trial import Status, Trial
from tunelab.engine.code import SNAPSHOT, Code, amendment, code_of, tracking_of
from tunelab.engine.sweeping import Plan
from tunelab.errors import BadInputError, UnknownNameError
from tunelab.journal import SweepState
from tunelab.journal.home import Home, SweepFolder

_MAY_BE_REOPENED = (Status.FAILED, Status.INFEASIBLE)


@dataclass(frozen=True, kw_only=True)
class Wish:
    """How to go on. What is None stays as it was.

    Args:
        trials: Most trials in all.
        time_s: Wall-clock budget in seconds over all sessions.
        concurrent: Most trials at a time.
        code: For a sweep whose file has changed since: `current` or `snapshot`.
        amend: Whether the experiment may differ in what proposals and decisions follow from; takes the current code.
        reopen: Numbers of failed or infeasible trials to try again.
        address: Ray cluster: `local`, `auto` or `HOST:PORT`.
        tracking: As `--tracking` takes it.
    """

    trials: int | None = None
    time_s: float | None = None
    concurrent: int | None = None
    code: Literal["current", "snapshot"] | None = None
    amend: bool = False
    reopen: Sequence[int] = ()
    address: str = "local"
    tracking: str | None = None


def plan(
    folder: SweepFolder,
    state: SweepState,
    wish: Wish,
    *,
    experiment: Experiment | None = None,
    root: Path | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Plan | None:
    """The session that is wished for, or None when there is nothing left to do.

    Args:
        folder: The sweep's.
        state: The sweep's.
        wish: How to go on.
        experiment: What it runs, for a sweep that was started in Python.
        root: The project's root, for a sweep that was started in Python.
        environ: The environment.

    Raises:
        BadInputError: It cannot go on like this; nothing has been started.
    """
    refuse_total(state, wish.trials)
    if problems := Budget(**{**state.budget, **_said(wish)}).problems():
        raise BadInputError("\n".join(problems))
    if experiment is None and wish.code is None and not wish.amend:  # then the budget is known without running the file
        budget = {**state.budget, **_said(wish)}
        if _is_done(state, wish, budget):
            return None
        _refuse_time(state, budget)
    if experiment is None or (folder.path / SNAPSHOT).is_file():
        found = code_of(folder, state, "current" if wish.amend and wish.code is None else wish.code, _method(wish))
    else:
        found = Code(experiment, (root or Path.cwd()).resolve(), None, None, None, None, {})
    change = amendment(state, found.experiment, amend=wish.amend)
    budget = {**state.budget, **_changed_budget(state, found.experiment), **_said(wish)}
    if budget["trials"] != state.budget["trials"]:  # an infeasible trial that was tried again may exceed the present total
        refuse_total(state, budget["trials"])
    if _is_done(state, wish, budget):
        return None
    _refuse_time(state, budget)
    home = folder.path.absolute().parent
    return Plan(
        **{**vars(found), "experiment": replace(found.experiment, budget=Budget(**budget))},
        home=Home(home),
        tracking=tracking_of(state, wish.tracking, home, found.root, environ),
        address=wish.address,
        storage=state.facts.get("storage"),
        amendment=change,
        reopen=tuple(wish.reopen),
    )


def catch_up(folder: SweepFolder, state: SweepState, tracking: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """Record what a tracker that was cut off had not recorded yet, and return where; nothing when it could not be done.

    Args:
        folder: The sweep's.
        state: The sweep's.
        tracking: As `--tracking` takes it.
        environ: The environment.
    """
    from tunelab.trackers.process import catch_up as record

    chosen = tracking_of(state, tracking, folder.path.absolute().parent, Path(state.facts["root"]), environ)
    done = chosen.kind != "none" and record(folder.journal, chosen, folder.path / "tracker.log")
    return chosen.describe() if done else ""


def _is_done(state: SweepState, wish: Wish, budget: Mapping[str, Any]) -> bool:
    """Whether the sweep has finished and nothing is wished for that would make it go on."""
    finished = state.outcome == "finished" and not state.unfinished() and not wish.reopen
    return finished and state.counted() >= budget["trials"]


def refuse_total(state: SweepState, trials: int | None) -> None:
    """Refuse a total number of trials that is below what there is already.

    Raises:
        BadInputError: Says so.
    """
    exist = state.counted()
    if trials is not None and trials < exist:
        there = f"{exist} trial{'s exist' if exist > 1 else ' exists'} already"
        raise BadInputError(f"{there}; a total of {trials} is fewer. Say {exist} or more.")


def refuse_time_alone(state: SweepState, wish: Wish, how: str) -> None:
    """Refuse to give a finished sweep more time: without more trials nothing would become of it.

    Args:
        state: The sweep's.
        wish: How to go on.
        how: What gives it more trials.

    Raises:
        BadInputError: Says so.
    """
    if wish.time_s is not None and _is_done(state, wish, {**state.budget, **_said(wish)}):
        raise BadInputError(
            f"{state.sweep} is finished: more time changes nothing and was not recorded. Give it more trials with: {how}"
        )


def more(present: float | None, text: str, what: str) -> float:
    """The total that `text` asks for: `+20` adds to the present one, `84` is one, which has to be larger.

    >>> more(64, "+20", "trials"), more(64, "84", "trials")
    (84.0, 84.0)

    Raises:
        BadInputError: It is no number, or does not extend anything.
    """
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    example = f"--{what} +20, or a total such as --{what} 84"
    if not 0 < number < float("inf") or (what == "trials" and not number.is_integer()):
        raise BadInputError(f"--{what} needs a number above 0: {example}; got '{text}'.")
    if present is None:
        raise BadInputError(f"The sweep has no limit of {what}, so there is nothing to extend.")
    total = present + number if text.strip().startswith("+") else number
    if total <= present:
        raise BadInputError(f"--{what} {text} does not extend the sweep: its total is {present:g} already. Say: {example}")
    return total


def to_retry(state: SweepState, numbers: Sequence[int]) -> list[int]:
    """The trials to try again: those named, or all that have failed.

    Raises:
        UnknownNameError: The sweep has no such trials.
        BadInputError: None has failed, or one that was named has not.
    """
    if not numbers:
        failed = [trial.number for trial in state.trials.values() if trial.status is Status.FAILED]
        if failed:
            return failed
        infeasible = [trial.id for trial in state.trials.values() if trial.status is Status.INFEASIBLE]
        hint = f" Infeasible ones are tried again when they are named: {', '.join(infeasible)}." if infeasible else ""
        raise BadInputError(f"No trial of {state.sweep} has failed.{hint}")
    if unknown := [number for number in numbers if number not in state.trials]:
        known = f"0000 to {max(state.trials):04d}" if state.trials else "none yet"
        raise UnknownNameError(f"{state.sweep} has no trial {', '.join(f'{n:04d}' for n in unknown)}. It has {known}.")
    problems = [_why_not_again(trial) for number in numbers if (trial := state.trials[number]).status not in _MAY_BE_REOPENED]
    if problems:
        raise BadInputError("Only failed and infeasible trials can be tried again:\n" + "\n".join(problems))
    return sorted(set(numbers))


def _why_not_again(trial: Trial) -> str:
    if trial.status.ended:
        return f"  - {trial.id} {'has completed' if trial.status is Status.COMPLETED else 'was stopped by the scheduler'}"
    return f"  - {trial.id} has not ended: `tunelab resume` goes on with it"


def _method(wish: Wish) -> str:
    """What does the same in Python: `retry(3)`, `resume(trials=84)`."""
    said = [f"{name}={value!r}" for name, value in _said(wish).items()]
    if wish.reopen:
        return f"retry({', '.join([*map(str, wish.reopen), *said])})"
    return f"resume({', '.join(said)})"


def _said(wish: Wish) -> dict[str, Any]:
    said = {"trials": wish.trials, "time_s": wish.time_s, "concurrent": wish.concurrent}
    return {name: value for name, value in said.items() if value is not None}


def _changed_budget(state: SweepState, experiment: Experiment) -> dict[str, Any]:
    """What the experiment's own budget says now and did not say before."""
    before = state.experiment.get("budget") or {}
    return {name: value for name, value in asdict(experiment.budget).items() if name in before and before[name] != value}


def _refuse_time(state: SweepState, budget: Mapping[str, Any]) -> None:
    used, limit = state.elapsed_s, budget["time_s"]
    if limit is not None and used >= limit:
        raise BadInputError(
            f"{state.sweep} has used up its time budget ({used:.0f} s of {limit:g} s in all). Give more with: --time SECONDS"
        )
