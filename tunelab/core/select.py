"""Which trial, which step, which checkpoint. The only place that says what "best" means.

Best is the best step that has a kept checkpoint, so the metric shown is the metric of what is exported.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tunelab.core.trial import Report, Status, Trial, rank_key

_NEVER_BEST = (Status.FAILED, Status.INFEASIBLE)


@dataclass(frozen=True)
class Best:
    """A trial and its best report. `report.checkpoint` is None only where no report of the trial has a kept checkpoint."""

    trial: Trial
    report: Report

    @property
    def exportable(self) -> bool:
        return self.report.checkpoint is not None and self.report.checkpoint not in self.trial.deleted


def best_report(trial: Trial, mode: str) -> Report | None:
    """The trial's best report that has a kept checkpoint; ties go to the earlier step. NaN and infinities never win."""
    return _best(trial.kept(), mode)


def shown_report(trial: Trial, mode: str) -> Report | None:
    """What to show for a trial: its best report with a kept checkpoint, else its best report, else None."""
    return best_report(trial, mode) or _best(trial.reports, mode)


def ranked(trials: Iterable[Trial], mode: str) -> list[Best]:
    """Trials that can be best, the best first: those with a kept checkpoint before those without, ties by number.

    Failed and infeasible trials are left out, and so are trials without a finite report.
    """
    return sorted(_candidates(trials, mode), key=lambda found: _place(found, mode))


def best(trials: Iterable[Trial], mode: str) -> Best | None:
    """The sweep's best trial, or None while no trial has a finite report."""
    return min(_candidates(trials, mode), key=lambda found: _place(found, mode), default=None)


def _candidates(trials: Iterable[Trial], mode: str) -> Iterator[Best]:
    for trial in trials:
        report = None if trial.status in _NEVER_BEST else shown_report(trial, mode)
        if report is not None:
            yield Best(trial, report)


def _place(found: Best, mode: str) -> tuple[bool, float, int]:
    return not found.exportable, rank_key(found.report.value, mode), found.trial.number


def _best(reports: Iterable[Report], mode: str) -> Report | None:
    found, key = None, math.inf
    for report in reports:
        if (own := rank_key(report.value, mode)) < key:
            found, key = report, own
    return found
