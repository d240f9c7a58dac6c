"""ASHA, asynchronous successive halving (Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning").

This is the stopping variant with one bracket: a trial runs on from rung to rung and is stopped at the first one where it is not
in the top 1/reduction of what has been reported there. Nothing waits, so the first trials to arrive at a rung go on whatever
their values, as long as fewer than `reduction` have arrived; that is how the asynchronous algorithm works, and the price of
never idling.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import ClassVar

from tunelab.core.experiment import Objective
from tunelab.core.trial import Continue, Decision, Report, Stop, rank_key
from tunelab.core.values import is_number

SLACK = 1e-6  # relative: Hugging Face reports epoch 2 as 1.9999999


@dataclass(frozen=True)
class ASHA:
    """Stops a trial at a rung where it is not among the best.

    Args:
        first_rung: The step of the first judgement, in the objective's steps. Above 0.
        reduction: One in so many goes on from a rung, and each rung lies so many times further than the one before. Above 1.

    Rungs are first_rung * reduction**k below the last step. A trial is judged with its first report at or past a rung; one that
    skips rungs is judged at each it passed. At a rung with n results, its own included, a trial goes on if fewer than
    floor(n / reduction) others are strictly better: a value equal to the one needed goes on. NaN and infinities rank
    worst and are always stopped.
    """

    first_rung: float = 1
    reduction: float = 3

    name: ClassVar[str] = "asha"

    def problems(self) -> list[str]:
        found = []
        if not is_number(self.first_rung) or self.first_rung <= 0:
            found.append(f"ASHA needs first_rung > 0 (a step), got first_rung={self.first_rung!r}.")
        if not is_number(self.reduction) or self.reduction <= 1:
            found.append(f"ASHA needs reduction > 1, got reduction={self.reduction!r}.")
        return found

    def milestones(self, last_step: float | None) -> list[float]:
        """The rungs below `last_step`; without a last step there is no end to them, and none is listed.

        >>> ASHA(first_rung=2, reduction=3).milestones(20)
        [2, 6, 18]
        """
        rungs: list[float] = []
        while last_step is not None and (rung := self.milestone(len(rungs))) < last_step * (1 - SLACK):
            rungs.append(rung)
        return rungs

    def milestone(self, k: int) -> float:
        """The k-th rung, from 0."""
        return self.first_rung * self.reduction**k

    def judge(self, objective: Objective, last_step: float | None) -> ASHAJudge:
        return ASHAJudge(self, objective.mode, last_step)


class ASHAJudge:
    """ASHA at work on one sweep. O(log n) comparisons a decision."""

    def __init__(self, asha: ASHA, mode: str, last_step: float | None) -> None:
        self._asha, self._mode, self._last_step = asha, mode, last_step
        self._rungs = [_Rung(milestone) for milestone in asha.milestones(last_step)]
        self._next: dict[int, int] = {}  # trial -> index of the first rung that it has not passed

    def decide(self, report: Report) -> list[Decision]:
        """Stop at the first rung where the trial is not among the best, else Continue until the next rung."""
        reached = report.step * (1 + SLACK)
        index = self._next.get(report.trial, 0)
        reasons: list[str] = []
        while (rung := self._rung(index)) is not None and rung.step <= reached:
            index = self._next[report.trial] = index + 1
            good, reason = rung.judge(report, self._mode, self._asha.reduction)
            if not good and not self._is_complete(reached):
                return [Stop(report.trial, reason)]
            reasons.append(reason)
        return [Continue(report.trial, "; ".join(reasons), None if rung is None else rung.step)]

    def rungs(self) -> dict[float, dict[int, float]]:
        """Milestone -> {trial: objective there}, in order of arrival; a copy."""
        return {rung.step: dict(rung.values) for rung in self._rungs}

    def _rung(self, index: int) -> _Rung | None:
        if index == len(self._rungs) and self._last_step is None:
            self._rungs.append(_Rung(self._asha.milestone(index)))
        return self._rungs[index] if index < len(self._rungs) else None

    def _is_complete(self, reached: float) -> bool:
        return self._last_step is not None and reached >= self._last_step


class _Rung:
    """The results at one milestone."""

    def __init__(self, step: float) -> None:
        self.step = step
        self.values: dict[int, float] = {}
        self._keys: list[float] = []  # rank keys, best first

    def judge(self, report: Report, mode: str, reduction: float) -> tuple[bool, str]:
        """Takes in the trial's value; whether the trial goes on, and why."""
        key = rank_key(report.value, mode)
        better = bisect_left(self._keys, key)
        others = len(self._keys)
        where = f"{ordinal(better + 1)} of {others + 1} at rung {self.step:g}"
        going_on = math.floor((others + 1) / reduction)
        needed = self._keys[going_on - 1] if going_on else None  # of the others, before this value joins them
        insort(self._keys, key)
        self.values[report.trial] = report.value
        if not math.isfinite(report.value):
            return False, f"{where}, {report.value} is not a finite number"
        if needed is None:
            return True, f"{where}, too few to stop any"
        top = f"top 1/{reduction:g}"
        if math.isinf(needed):
            return True, f"{where}, needed any finite number ({top})"
        return better < going_on, f"{where}, needed {value_text(-needed if mode == 'max' else needed)} ({top})"


def ordinal(n: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th, 21st."""
    suffix = "th" if 10 <= n % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{suffix}"


def value_text(value: float) -> str:
    """Four decimals, or four digits where those would not tell values apart."""
    return f"{value:.4f}" if value == 0 or 1e-2 <= abs(value) < 1e6 else f"{value:.3e}"
