"""Which checkpoints may be deleted. Nobody else may delete one."""

from __future__ import annotations

import bisect
from collections.abc import Collection

from tunelab.core.experiment import Retention
from tunelab.core.select import best_report
from tunelab.core.trial import Status, Trial, rank_key


class Retainer:
    """Follows a sweep and says, after each change of a trial, which checkpoints nothing can need any more.

    A change costs time in the number of that trial's kept checkpoints, not in the number of trials.

    Args:
        retention: The three counts.
        mode: `"max"` or `"min"`.
    """

    def __init__(self, retention: Retention, mode: str) -> None:
        self._retention, self._mode = retention, mode
        self._top: list[tuple[float, int]] = []  # (rank key, trial number) of the best trials, the best first
        self._trials: dict[int, Trial] = {}

    def to_delete(self, trial: Trial) -> list[tuple[int, str]]:
        """(trial number, checkpoint) of what may be deleted now that `trial` has changed."""
        self._trials[trial.number] = trial
        return [pair for number in self.rank(trial) for pair in self.surplus(self._trials[number])]

    def rank(self, trial: Trial) -> list[int]:
        """Rank the trial anew and return the trials whose checkpoints have to be looked at."""
        before = {number for _, number in self._top}
        self._top = [entry for entry in self._top if entry[1] != trial.number]
        # Only a trial that has ended well displaces others: a running one may still diverge.
        report = best_report(trial, self._mode) if trial.status in (Status.COMPLETED, Status.STOPPED) else None
        if report is not None:
            bisect.insort(self._top, (rank_key(report.value, self._mode), trial.number))
        del self._top[self._retention.best_of_sweep :]
        dropped = before - {number for _, number in self._top} - {trial.number}
        return [trial.number, *dropped]

    def surplus(self, trial: Trial) -> list[tuple[int, str]]:
        """What may be deleted of one trial, by what was ranked so far."""
        kept = trial.kept()
        finite = [report for report in kept if rank_key(report.value, self._mode) != float("inf")]
        by_value = sorted(finite, key=lambda report: rank_key(report.value, self._mode))
        best_count, latest_count = self._retention.best_of_trial, self._retention.latest_of_trial
        if not trial.status.ended:  # it may become the best, and a restart continues from the latest
            best_count, latest_count = max(best_count, 1), max(latest_count, 1)
        elif any(number == trial.number for _, number in self._top):
            best_count = max(best_count, 1)
        needed = {report.checkpoint for report in by_value[:best_count]}
        needed |= {report.checkpoint for report in kept[len(kept) - latest_count :]}
        if not trial.status.ended and finite:  # one that has diverged is tried again from before that
            needed.add(finite[-1].checkpoint)
        surplus = [report.checkpoint for report in kept if report.checkpoint not in needed]
        surplus += sorted(trial.superseded - trial.deleted - needed)
        return [(trial.number, checkpoint) for checkpoint in surplus if checkpoint is not None]


def surplus(trials: Collection[Trial], retention: Retention, mode: str) -> list[tuple[int, str]]:
    """(trial number, checkpoint) of everything that nothing can need, in a sweep that stands still.

    Args:
        trials: All of the sweep's.
        retention: The three counts; they may be others than those that it ran with.
        mode: `"max"` or `"min"`.
    """
    retainer = Retainer(retention, mode)
    for trial in trials:  # all are ranked before the first is judged
        retainer.rank(trial)
    return [pair for trial in trials for pair in retainer.surplus(trial)]
