"""What a report says: whether it counts, at which step, with which value."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tunelab.core.experiment import Objective
from tunelab.core.failures import Failure
from tunelab.core.trial import Report, Trial, nan_metric

LARGEST = 2**1000  # an integer beyond this is no float


@dataclass(frozen=True)
class Wrong:
    """Why a report ends its trial."""

    failure: Failure
    message: str


@dataclass(frozen=True)
class Said:
    """What a report says that counts. `value` is NaN if any metric is."""

    step: float
    value: float


class Reader:
    """Reads the reports of a sweep's trials.

    Args:
        objective: Names the metric and the step that count.
        say: Shows a sentence to the user.
    """

    def __init__(self, objective: Objective, say: Callable[[str], None]) -> None:
        self._objective, self._say = objective, say
        self._wanted = [name for name in (objective.metric, objective.step) if name is not None]
        self._keys: dict[int, set[str]] = {}  # keys reported by trials that have not reported the objective yet

    def read(self, trial: Trial, metrics: Mapping[str, Any]) -> Said | Wrong | None:
        """What a trial's report says, or None if it lacks the objective or its step: then there is nothing to decide on."""
        missing = [name for name in self._wanted if metrics.get(name) is None]
        if missing:
            self._note_keys(trial, metrics, missing)
            return None
        said = {name: metrics[name] for name in self._wanted}
        bad = [f"{name} is {value!r}" for name, value in said.items() if not _is_usable(value, name == self._objective.step)]
        if bad:
            return Wrong(Failure.BAD_REPORT, f"{' and '.join(bad)}: the objective is a number, its step a finite one")
        step = self._step(trial, metrics)
        value = math.nan if nan_metric(metrics) else float(metrics[self._objective.metric])
        return self._wrong_order(trial, step) or Said(step, value)

    def not_reported(self, number: int) -> str:
        """`reporting 'msee'. Did you mean 'mse'? It reported epoch, mse`: of a trial without a report that counts."""
        keys = sorted(self._keys.get(number, ()))
        missing = [name for name in self._wanted if name not in keys]
        others = [key for key in keys if key not in self._wanted]
        close = [match for name in missing for match in difflib.get_close_matches(name, others, n=1)]
        what = "reporting" if missing else "a report with a value of"
        hint = f" Did you mean {' and '.join(map(repr, close))}?" if close else ""
        return f"{what} {' and '.join(map(repr, missing or self._wanted))}.{hint} It reported {', '.join(keys) or 'nothing'}"

    def _note_keys(self, trial: Trial, metrics: Mapping[str, Any], missing: list[str]) -> None:
        known = self._keys.setdefault(trial.number, set())
        if not known:
            self._say(
                f"{trial.id} reported {', '.join(sorted(metrics)) or 'nothing'} without {' and '.join(missing)}: "
                "such reports are not recorded"
            )
        known.update(metrics)

    def _step(self, trial: Trial, metrics: Mapping[str, Any]) -> float:
        """The declared step; without one, the trial's reports are counted, going on from the checkpoint's."""
        axis = self._objective.step
        if axis is not None:
            step = float(metrics[axis])
            return int(step) if step.is_integer() else step
        if _has_reported(trial):
            return trial.reports[-1].step + 1
        return (trial.attempts[-1].from_step or 0) + 1

    def _wrong_order(self, trial: Trial, step: float) -> Wrong | None:
        """What is wrong with a step that does not come after the attempt's start and its reports so far."""
        attempt, axis = trial.attempts[-1], self._objective.step or "step"
        if _has_reported(trial):
            last = trial.reports[-1].step
            if step <= last:
                return Wrong(Failure.BAD_REPORT, f"{axis} {step:g} was reported after {axis} {last:g}: it has to increase")
        elif attempt.from_step is not None and step <= attempt.from_step:
            return Wrong(
                Failure.RESTART_IGNORED,
                f"attempt {attempt.number} was given {axis} {attempt.from_step:g}'s checkpoint and reported {axis} {step:g}: "
                "the loop has to continue from ray.train.get_checkpoint()",
            )
        return None


def diverged(report: Report) -> str | None:
    """What makes a report diverge: a NaN metric, or an infinite objective; None otherwise."""
    if name := nan_metric(report.metrics):
        return f"{name} is NaN"
    return None if math.isfinite(report.value) else f"the objective is {report.value}"


def has_diverged(trial: Trial, patience: int) -> str | None:
    """What has made a trial diverge: more diverged reports in a row, up to its latest, than are put up with."""
    found = [diverged(report) for report in trial.reports[-patience - 1 :]]
    return found[-1] if all(found) and len(found) > patience else None


def goes_on_from(trial: Trial, patience: int) -> Report | None:
    """The report whose checkpoint the next attempt gets: the latest, but none of those with which the trial diverged."""
    if not has_diverged(trial, patience):
        return trial.latest_checkpoint()
    return next((report for report in reversed(trial.kept()) if diverged(report) is None), None)


def last_sound(trial: Trial) -> Report | None:
    """The latest report that has not diverged: where a trial stands that is to be tried again."""
    return next((report for report in reversed(trial.reports) if diverged(report) is None), None)


def _has_reported(trial: Trial) -> bool:
    """Whether the trial's latest attempt has made a report that counts."""
    return bool(trial.reports) and trial.reports[-1].attempt == trial.attempt


def _is_usable(value: Any, is_step: bool) -> bool:
    """Whether a reported value can be the objective, which may be NaN or infinite, or its step, which may not."""
    if isinstance(value, float):
        return math.isfinite(value) or not is_step
    return isinstance(value, int) and abs(value) < LARGEST
