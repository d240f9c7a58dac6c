"""Best means the best kept checkpoint, and retention deletes no checkpoint that anything can still need."""

from __future__ import annotations

import math
import random

import pytest

from tests.unit import histories as h
from tunelab.core.experiment import Retention
from tunelab.core.retain import Retainer
from tunelab.core.select import best, best_report, ranked, shown_report
from tunelab.core.trial import Attempt, Report, Status, Trial, rank_key
from tunelab.journal import Event, SweepState, events


def make(
    number: int = 0, curve: list[float] = (), *, status: Status = Status.COMPLETED, without: set[int] = frozenset()
) -> Trial:
    """A trial with a report and a checkpoint at steps 1, 2, ...; those in `without` had none."""
    reports = [
        Report(number, 1, step, value, {}, None if step in without else f"{number:04d}/c{step}")
        for step, value in enumerate(curve, start=1)
    ]
    return Trial(number, {}, 0, status=status, attempts=[Attempt(1)], reports=reports)


class TestBest:
    def test_it_is_the_best_kept_checkpoint_and_not_the_best_or_the_last_value(self):
        trial = make(curve=[0.5, 0.9, 0.7, 0.6], without={2})
        assert best_report(trial, "max").step == 3
        trial.deleted.add("0000/c3")
        assert (best_report(trial, "max").step, best_report(trial, "max").checkpoint) == (4, "0000/c4")

    def test_without_any_checkpoint_its_best_value_is_shown_and_is_not_exportable(self):
        trial = make(curve=[0.5, 0.9, 0.7], without={1, 2, 3})
        assert best_report(trial, "max") is None
        assert shown_report(trial, "max").step == 2
        assert not best([trial], "max").exportable

    def test_a_trial_with_a_checkpoint_comes_before_a_better_one_without(self):
        order = ranked([make(0, [0.9], without={1}), make(1, [0.2])], "max")
        assert [entry.trial.number for entry in order] == [1, 0]
        assert [entry.exportable for entry in order] == [True, False]

    @pytest.mark.parametrize("mode", ["max", "min"])
    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    def test_values_that_are_not_finite_are_never_best(self, mode, bad):
        assert best([make(0, [bad, 0.1]), make(1, [0.1])], mode).report.value == 0.1
        assert best_report(make(curve=[0.3, bad, 0.2]), mode).value == (0.3 if mode == "max" else 0.2)
        assert best([make(0, [bad])], mode) is None
        assert rank_key(bad, mode) == math.inf
        assert rank_key(bad, mode) > rank_key(1e300, mode)
        assert rank_key(bad, mode) > rank_key(-1e300, mode)
        assert rank_key(bad, mode) == rank_key(math.nan, mode)

    def test_ties_go_to_the_earlier_step_and_the_lower_number(self):
        assert best_report(make(curve=[0.1, 0.5, 0.5]), "max").step == 2
        assert best([make(3, [0.5]), make(1, [0.5]), make(2, [0.5])], "max").trial.number == 1

    @pytest.mark.parametrize("status", [Status.FAILED, Status.INFEASIBLE])
    def test_failed_and_infeasible_trials_are_never_best(self, status):
        assert ranked([make(0, [0.9], status=status)], "max") == []

    @pytest.mark.parametrize("status", [Status.RUNNING, Status.INTERRUPTED, Status.STOPPED, Status.RETRYING])
    def test_trials_that_have_not_completed_may_be_best(self, status):
        assert best([make(0, [0.9], status=status), make(1, [0.5])], "max").trial.number == 0

    def test_less_is_better_in_mode_min(self):
        order = ranked([make(0, [0.3]), make(1, [0.1, 0.4]), make(2, [0.2])], "min")
        assert [entry.trial.number for entry in order] == [1, 2, 0]
        assert order[0].report.step == 1

    def test_no_trial_no_best(self):
        assert best([], "max") is None
        assert best([make(0, [])], "max") is None


def needed(trials: dict[int, Trial], retention: Retention, mode: str) -> set[str]:
    """What has to stay, by the definition of `Retention` and at whatever cost: the slow twin of `Retainer`."""
    order = sorted(
        (rank_key(report.value, mode), trial.number)
        for trial in trials.values()
        if trial.status in (Status.COMPLETED, Status.STOPPED) and (report := best_report(trial, mode)) is not None
    )
    top = {number for _, number in order[: retention.best_of_sweep]}
    stay: set[str] = set()
    for trial in trials.values():
        finite = sorted((r for r in trial.kept() if math.isfinite(r.value)), key=lambda r: rank_key(r.value, mode))
        best_count = max(retention.best_of_trial, trial.number in top or not trial.status.ended)
        latest_count = max(retention.latest_of_trial, not trial.status.ended)
        stay |= {str(r.checkpoint) for r in finite[:best_count]}
        stay |= {str(r.checkpoint) for r in trial.kept()[len(trial.kept()) - latest_count :]}
        sound = [r for r in trial.kept() if math.isfinite(r.value)]
        if sound and not trial.status.ended:  # where a trial that diverges goes on from, if it is tried again
            stay.add(str(sound[-1].checkpoint))
    return stay


def existing(trials: dict[int, Trial]) -> set[str]:
    """Checkpoints that are on disk."""
    made = {str(r.checkpoint) for trial in trials.values() for r in trial.reports if r.checkpoint}
    return (made | set().union(*(t.superseded for t in trials.values()))) - set().union(*(t.deleted for t in trials.values()))


class TestRetainer:
    def test_best_and_latest_of_a_trial_stay(self):
        trial = make(curve=[0.1, 0.9, 0.3, 0.4])
        assert Retainer(Retention(), "max").to_delete(trial) == [(0, "0000/c1"), (0, "0000/c3")]

    def test_a_trial_that_can_go_on_keeps_its_latest_whatever_the_counts(self):
        nothing = Retention(best_of_sweep=1, best_of_trial=0, latest_of_trial=0)
        for status in Status:
            trial = make(curve=[0.9, 0.1], status=status)
            kept = {"0000/c1", "0000/c2"} - {checkpoint for _, checkpoint in Retainer(nothing, "max").to_delete(trial)}
            assert ("0000/c2" in kept) == (not status.ended)
            assert ("0000/c1" in kept) == (status not in (Status.FAILED, Status.INFEASIBLE))

    def test_the_best_of_the_sweep_stays_until_a_better_one_is_there(self):
        retainer = Retainer(Retention(best_of_sweep=1, best_of_trial=0, latest_of_trial=0), "max")
        first, second, third = make(0, [0.5]), make(1, [0.4]), make(2, [0.6])
        assert retainer.to_delete(first) == []
        assert retainer.to_delete(second) == [(1, "0001/c1")]
        second.deleted.add("0001/c1")
        assert retainer.to_delete(third) == [(0, "0000/c1")]

    def test_a_trial_that_has_diverged_and_may_be_tried_again_keeps_the_one_before(self):
        trial = make(curve=[0.9, 0.5, 0.4, math.nan], status=Status.RUNNING)
        deleted = {checkpoint for _, checkpoint in Retainer(Retention(), "max").to_delete(trial)}
        assert deleted == {trial.reports[1].checkpoint}

    def test_a_latest_checkpoint_that_diverged_is_still_what_a_restart_continues_from(self):
        trial = make(curve=[0.5, math.nan], status=Status.RUNNING)
        assert Retainer(Retention(), "max").to_delete(trial) == []

    def test_superseded_checkpoints_go(self):
        trial = make(curve=[0.5, 0.6], status=Status.RUNNING)
        trial.superseded.add("0000/old")
        assert (0, "0000/old") in Retainer(Retention(), "max").to_delete(trial)

    @pytest.mark.parametrize("seed", range(60))
    def test_random_sweeps_agree_with_the_definition_after_every_event(self, seed):
        """Whatever happens in whatever order, nothing that the definition asks for is deleted, and nothing else stays.

        One exception, on the safe side: after one of the best trials failed, another's checkpoint may stay for longer.
        """
        rng, may_fail = random.Random(seed), seed % 2 == 0
        retention = Retention(
            best_of_sweep=rng.choice([1, 1, 2, 3]), best_of_trial=rng.choice([0, 1, 2]), latest_of_trial=rng.choice([0, 1, 2])
        )
        mode = rng.choice(["max", "min"])
        state, retainer = SweepState(), Retainer(retention, mode)
        seq = 0

        def happen(event: Event) -> None:
            nonlocal seq
            seq += 1
            state.apply(Event(event.kind, event.trial, event.data, seq, float(seq)))

        for event in h.created(mode=mode):
            happen(event)
        for fresh in range(rng.randrange(10, 120)):
            for trial in _something_happens(rng, state, happen, fresh, may_fail):
                for number, checkpoint in retainer.to_delete(trial):
                    assert checkpoint in existing({number: state.trials[number]})
                    assert checkpoint not in needed(state.trials, retention, mode)
                    happen(events.checkpoint_deleted(number, checkpoint=checkpoint))
            top = best(state.trials.values(), mode)
            could_be = [t for t in state.trials.values() if t.status not in (Status.FAILED, Status.INFEASIBLE)]
            assert any(best_report(trial, mode) for trial in could_be) == (top is not None and top.exportable)
            for trial in state.trials.values():
                reported = [r for r in trial.reports if r.checkpoint]
                if not trial.status.ended and reported:
                    assert trial.latest_checkpoint() is reported[-1]
            assert needed(state.trials, retention, mode) <= existing(state.trials)
            assert may_fail or existing(state.trials) == needed(state.trials, retention, mode)


def _something_happens(rng: random.Random, state: SweepState, happen, fresh: int, may_fail: bool) -> list[Trial]:
    """One random step of a sweep; the trials that it changed."""
    running = [trial for trial in state.trials.values() if trial.status is Status.RUNNING]
    waiting = [trial for trial in state.trials.values() if trial.status in (Status.RETRYING, Status.INTERRUPTED)]
    what = rng.choice(["new", "report", "report", "report", "report", "end", "fail", "again", "kill"])
    if what == "report" and running:
        trial = rng.choice(running)
        at = trial.latest_checkpoint()
        began = any(report.attempt == trial.attempt for report in trial.reports)
        step = (trial.reports[-1].step if began else at.step if at else 0) + 1
        value = rng.choice([math.nan, math.inf, -math.inf]) if rng.random() < 0.1 else rng.choice([0.1, 0.2, 0.3, 0.4, 0.5])
        where = f"{trial.id}/c{fresh}" if rng.random() < 0.8 else None
        happen(events.reported(trial.number, attempt=trial.attempt, step=step, value=value, metrics={}, checkpoint=where))
        return [trial]
    if what in ("end", "fail") and running:
        trial = rng.choice(running)
        if what == "end":
            status = rng.choice(["completed", "stopped", *(["failed", "infeasible"] if may_fail else [])])
            happen(events.attempt_ended(trial.number, attempt=trial.attempt, outcome=status))
            happen(events.finished(trial.number, status=status, reason=""))
        else:
            happen(events.attempt_ended(trial.number, attempt=trial.attempt, outcome="failed", failure="lost"))
        return [trial]
    if what == "again" and waiting:
        trial = rng.choice(waiting)
        happen(events.started(trial.number, attempt=trial.attempt + 1, checkpoint=None, from_step=None))
        return [trial]
    if what == "kill" and rng.random() < 0.3:
        happen(h.session())
        return list(state.trials.values())
    number = len(state.trials)
    happen(events.proposed(number, config={}, seed=0, origin="random"))
    happen(events.started(number, attempt=1, checkpoint=None, from_step=None))
    return [state.trials[number]]
