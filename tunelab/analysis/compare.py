"""Which trial is best, by how much, and whether the difference means anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from tunelab.analysis import text
from tunelab.core.select import Best, ranked, shown_report
from tunelab.core.trial import Report, Trial
from tunelab.journal.state import SweepState

SETTLED_OVER = 5  # of the best trial's last changes, so many are looked at to judge how much its metric moves by itself


@dataclass(frozen=True)
class Row:
    """One trial in the comparison.

    Attributes:
        trial: The trial.
        report: The report it is judged by: its best one that has a kept checkpoint, or its best when it kept none.
        gain: How much better than the baseline; positive is better under both modes. None without a baseline to compare with.
        exportable: Whether the report's checkpoint is kept.
    """

    trial: Trial
    report: Report
    gain: float | None
    exportable: bool

    @property
    def note(self) -> str:
        """What is special about it: `baseline`, `running`, `no checkpoint`."""
        notes = ["baseline"] if self.trial.origin == "baseline" else []
        notes += [] if self.trial.status.ended else [self.trial.status.value]
        notes += [] if self.exportable else ["no checkpoint"]
        return ", ".join(notes)


def baseline(state: SweepState) -> Report | None:
    """The report by which the baseline is judged, or None when there is none."""
    trial = state.trials.get(0)
    return shown_report(trial, state.mode) if trial is not None and trial.origin == "baseline" else None


def gain(state: SweepState, value: float, over: Report | None) -> float | None:
    """How much better `value` is than the baseline's."""
    if over is None:
        return None
    return value - over.value if state.mode == "max" else over.value - value


def rows(state: SweepState, top: int | None = None) -> list[Row]:
    """The trials that can be best, the best first; the baseline is added at the end when it is not among the first `top`."""
    order = ranked(state.trials.values(), state.mode)
    shown = order[:top]
    shown += [entry for entry in order[len(shown) :] if entry.trial.origin == "baseline"]
    over = baseline(state)
    return [_row(state, entry, over) for entry in shown]


def _row(state: SweepState, entry: Best, over: Report | None) -> Row:
    difference = None if entry.trial.origin == "baseline" else gain(state, entry.report.value, over)
    return Row(entry.trial, entry.report, difference, entry.exportable)


def not_settled(state: SweepState, best: Sequence[Row]) -> str | None:
    """A sentence when the best two differ by no more than the best one's metric moves from step to step, else None.

    That is only a hint: how much the metric varies with the seed is not known from one run each.
    """
    if len(best) < 2:
        return None
    first, second = best[0], best[1]
    difference = abs(first.report.value - second.report.value)
    last = [report.value for report in first.trial.reports[-SETTLED_OVER - 1 :]]
    moves = [abs(b - a) for a, b in pairwise(last)]
    if len(moves) < 2 or difference > (wobble := median(moves)):
        return None
    return (
        f"not settled: {first.trial.id} and {second.trial.id} differ by {text.metric_text(difference)}, no more than "
        f"{first.trial.id}'s {text.metric(state)} moves from one {text.axis(state)} to the next ({text.metric_text(wobble)})"
    )
