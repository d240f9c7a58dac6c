"""Which parameters mattered: fANOVA (Hutter et al. 2014) on values that are fair to stopped trials.

A stopped trial has no final value, and leaving it out would leave out exactly what the scheduler learned. So all trials
are compared at one step that nearly all of them reached.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from tunelab.analysis import text
from tunelab.core.trial import Status, Trial
from tunelab.journal.state import SweepState

AT_LEAST = 8  # trials; with fewer the figures are noise
AT_MOST = 200  # trials that the forest is grown on, drawn at random: more take longer and move the shares by little
REACHED_BY = 0.9  # of the trials
SLACK = 1e-6  # relative: epoch 2 may be reported as 1.9999999


@dataclass(frozen=True)
class Importance:
    """How much of the objective's variance each parameter explains by itself.

    Attributes:
        shares: Parameter -> share, the largest first; they add up to 1.
        trials: How many trials that rests on.
        step: Where they were compared.
    """

    shares: dict[str, float]
    trials: int
    step: float


def importance(state: SweepState) -> tuple[Importance | None, str]:
    """The importance of each parameter that varied, or None and the reason."""
    trials = [trial for trial in state.trials.values() if trial.reports and trial.status is not Status.INFEASIBLE]
    step, values = common_step(trials)
    if len(values) < AT_LEAST:
        return (
            None,
            f"importance needs {AT_LEAST} trials with a finite value at a common {text.axis(state)}, there are {len(values)}",
        )
    numbers = sorted(values)
    if len(numbers) > AT_MOST:
        numbers = sorted(random.Random(0).sample(numbers, AT_MOST))
    columns = _columns(state, [state.trials[number] for number in numbers])
    if not columns:
        return None, "importance needs a parameter that differs between trials"
    if len({values[number] for number in numbers}) < 2:
        return None, f"all trials have the same value at {text.axis(state)} {text.step_text(step)}"
    from tunelab.analysis import fanova  # here: `tunelab compare --help` needs no numpy

    shares = fanova.shares(columns, [values[number] for number in numbers])
    return Importance(dict(sorted(shares.items(), key=lambda item: -item[1])), len(numbers), step), ""


def line(state: SweepState) -> str:
    """`importance: lr 0.71, width 0.20 (fANOVA on 32 trials, at their highest common step: epoch 2)`, or why there is none."""
    found, reason = importance(state)
    if found is None:
        return f"no importance: {reason}"
    shares = ", ".join(f"{name} {share:.2f}" for name, share in found.shares.items())
    where = f"{text.axis(state)} {text.step_text(found.step)}"
    return f"importance: {shares} (fANOVA on {found.trials} trials, at their highest common step: {where})"


def common_step(trials: Sequence[Trial]) -> tuple[float, dict[int, float]]:
    """The highest step that nine tenths of the trials reached, and each such trial's value there.

    Where a trial did not report at exactly that step, its latest report before it counts. Values that are not finite are
    left out: fANOVA has no place for them.
    """
    reached = sorted((trial.reports[-1].step for trial in trials), reverse=True)
    if not reached:
        return 0.0, {}
    step = reached[math.ceil(REACHED_BY * len(reached)) - 1]
    values = {}
    for trial in trials:
        if trial.reports[-1].step >= step * (1 - SLACK):
            there = [report.value for report in trial.reports if report.step <= step * (1 + SLACK)]
            if there and math.isfinite(there[-1]):
                values[trial.number] = there[-1]
    return step, values


def _columns(state: SweepState, trials: Sequence[Trial]) -> dict[str, tuple[list[float], int | None]]:
    """Parameter -> (a number for each trial, how many options there are or None), for those that vary.

    A parameter that is off counts with the median of where it is on, so that only its own variation is ascribed to it.
    """
    columns: dict[str, tuple[list[float], int | None]] = {}
    for name, log in text.varied(state).items():
        given = [trial.config.get(name) for trial in trials]
        numbers = [value for value in given if isinstance(value, (int, float)) and not isinstance(value, bool)]
        entry = next(entry for entry in state.experiment["space"]["parameters"] if entry["name"] == name)
        if entry["type"] != "choice" and numbers:
            middle = median(numbers)
            column = [value if isinstance(value, (int, float)) else middle for value in given]
            if log and min(numbers) > 0:
                column = [math.log(value) for value in column]
            options = None
        else:
            known = sorted({repr(value) for value in given})
            column = [float(known.index(repr(value))) for value in given]
            options = len(known)
        if len(set(column)) > 1:
            columns[name] = (column, options)
    return columns
