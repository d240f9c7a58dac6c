"""Another session of a sweep: totals, trials that are tried again, and experiments that have changed."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy
import pytest

from tests.unit import histories as h
from tests.unit.test_conductor import BUDGET, Clock, Rig, experiment, outcome, run_all
from tunelab import ASHA, FIFO, TPE, Budget, Float, Objective, Retention
from tunelab.core.failures import Failure
from tunelab.core.trial import Status
from tunelab.engine.code import amendment
from tunelab.engine.conductor import Conductor
from tunelab.engine.description import describe, harmless_difference
from tunelab.engine.going_on import Wish, more, plan, refuse_time_alone, refuse_total, to_retry
from tunelab.errors import BadInputError, UnknownNameError
from tunelab.journal import Journal, events, read_events, replay


class Next(Rig):
    """The next session on a rig's journal, with what a changed or retried sweep begins with."""

    def __init__(self, rig, made=None, *, amendment=None, reopen=()):
        rig.journal.close()
        self.path, self.experiment, self.max_failures = rig.path, made or rig.experiment, rig.max_failures
        self.clock, self.deleted, self.said = rig.clock, [], []
        self.journal = Journal(self.path, self.clock)
        self.conductor = Conductor(
            self.experiment, self.journal, budget=self.experiment.budget, max_failures=self.max_failures,
            delete=self.deleted.append, say=self.said.append, clock=self.clock,
        )  # fmt: skip
        session = events.session_started(pid=2, host="here", resources={}, budget=BUDGET, tracking=None)
        self.conductor.begin(session, amendment=amendment, reopen=reopen)

    def state(self):
        return replay(read_events(self.path))


def die_after(journal, count):
    """Let the driver die when it writes one event more than `count`."""
    append, left = journal.append, iter(range(count))

    def append_or_die(event):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return append(event)

    journal.append = append_or_die


class Described(Rig):
    """A rig whose journal describes its experiment."""

    def __init__(self, path, made, **others):
        if not path.exists():
            Journal.create(path, events.sweep_created(sweep="toy.1", experiment=describe(made), facts={})).close()
        super().__init__(path, made, **others)


class TestTotals:
    @pytest.mark.parametrize(
        ("present", "text", "total"), [(64, "+20", 84), (64, "84", 84), (64, "+1", 65), (600.0, "+0.5", 600.5), (8, " +2 ", 10)]
    )
    def test_a_plus_adds_to_the_total_and_a_number_is_one(self, present, text, total):
        assert more(present, text, "trials" if float(text).is_integer() else "time") == total

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("20", "does not extend the sweep: its total is 64 already"),
            ("64", "does not extend the sweep"),
            ("+0", "needs a number above 0"),
            ("-3", "needs a number above 0"),
            ("many", "got 'many'"),
            ("+1.5", "needs a number above 0"),
            ("inf", "needs a number above 0"),
            ("nan", "needs a number above 0"),
        ],
    )
    def test_what_extends_nothing_is_refused(self, text, told):
        with pytest.raises(BadInputError, match=told.replace("+", r"\+")):
            more(64, text, "trials")

    def test_what_has_no_limit_cannot_be_extended(self):
        with pytest.raises(BadInputError, match="no limit of time"):
            more(None, "+600", "time")

    def test_a_total_below_what_has_run_is_refused_and_infeasible_trials_do_not_count(self):
        state = h.state([*h.created(), *h.trial(0, [0.1]), *h.trial(1, [0.2]), *h.trial(2, [], end="infeasible")])
        refuse_total(state, 2)
        with pytest.raises(BadInputError, match="2 trials exist already; a total of 1 is fewer"):
            refuse_total(state, 1)


class TestWhatIsTriedAgain:
    def state(self):
        told = [*h.created(), *h.trial(0, [0.1]), *h.trial(1, [0.1], end="failed"), *h.trial(2, [], end="infeasible")]
        return h.state([*told, *h.trial(3, [0.1], end="stopped"), *h.trial(4, [0.2], end=None), *h.trial(5, [], end="failed")])

    def test_all_that_failed_or_those_that_are_named(self):
        assert to_retry(self.state(), []) == [1, 5]
        assert to_retry(self.state(), [2]) == [2]
        assert to_retry(self.state(), [5, 1, 5]) == [1, 5]

    def test_all_others_are_refused_at_once(self):
        with pytest.raises(BadInputError) as error:
            to_retry(self.state(), [0, 1, 3, 4])
        text = str(error.value)
        assert "0000 has completed" in text and "0003 was stopped by the scheduler" in text and "0004 has not ended" in text
        assert "0001" not in text

    def test_unknown_ones(self):
        with pytest.raises(UnknownNameError, match="no trial 0009, 0017. It has 0000 to 0005"):
            to_retry(self.state(), [9, 1, 17])

    def test_nothing_has_failed(self):
        told = [*h.created(), *h.trial(0, [0.1]), *h.trial(2, [], end="infeasible")]
        with pytest.raises(BadInputError, match="No trial of digits-mlp.1 has failed. Infeasible ones .* named: 0002"):
            to_retry(h.state(told), [])


class TestReopened:
    def failed(self, tmp_path, max_failures=1, **parts):
        rig = Rig(tmp_path / "journal.sqlite", experiment(**parts), max_failures)
        for _ in range(max_failures + 1):
            rig.conductor.next_launch()
            rig.report(0, 1 + len(rig.trial().reports), 0.5)
            rig.conductor.failed(0, Failure.USER_ERROR, "ValueError: no")
        assert rig.trial().status is Status.FAILED
        return rig

    def test_a_failed_trial_goes_on_from_its_latest_checkpoint_as_the_same_trial(self, tmp_path):
        rig = self.failed(tmp_path)
        config, seed = rig.trial().config, rig.trial().seed
        again = Next(rig, reopen=[0])
        assert ("reopened", 0) in again.kinds()
        launch = again.conductor.next_launch()
        assert (launch.trial, launch.attempt, launch.from_step) == (0, 3, 2)
        assert (launch.config, launch.seed) == (config, seed)
        assert again.report(0, 3, 0.6)
        again.conductor.completed(0)
        assert again.trial().status is Status.COMPLETED and again.trial().curve() == [(1, 0.5), (2, 0.5), (3, 0.6)]

    def test_its_retries_are_counted_anew(self, tmp_path):
        again = Next(self.failed(tmp_path), reopen=[0])
        for _ in range(2):
            again.conductor.next_launch()
            assert again.trial().status is Status.RUNNING
            again.conductor.failed(0, Failure.USER_ERROR, "ValueError: no")
        assert again.trial().status is Status.FAILED and again.trial().attempt == 4

    @pytest.mark.parametrize("launched", [False, True])
    def test_one_that_was_reopened_before_the_driver_was_killed_still_goes_on(self, tmp_path, launched):
        again = Next(self.failed(tmp_path), reopen=[0])
        if launched:
            again.conductor.next_launch()
        after = Next(again)
        assert after.trial().status is Status.INTERRUPTED
        assert after.conductor.next_launch().trial == 0

    def test_a_diverged_trial_goes_on_from_before_it_diverged(self, tmp_path):
        rig = Rig(tmp_path / "journal.sqlite", experiment(scheduler=ASHA(first_rung=1, reduction=2)))
        rig.conductor.next_launch()
        rig.report(0, 1, 0.4)
        rig.report(0, 2, math.nan)
        assert rig.trial().status is Status.FAILED
        again = Next(rig, reopen=[0])
        assert again.trial().curve() == [(1, 0.4)]
        assert "0000/checkpoint_1_2" in again.deleted
        again.conductor.next_launch()
        killed = Next(again)  # the judge's verdict on the NaN must not end it
        launch = killed.conductor.next_launch()
        assert (launch.trial, launch.attempt, launch.from_step) == (0, 3, 1)
        assert killed.report(0, 2, 0.5)

    def test_an_infeasible_one_counts_against_the_budget_again(self, tmp_path):
        rig = Rig(tmp_path / "journal.sqlite")
        rig.conductor.next_launch()
        rig.conductor.failed(0, Failure.INFEASIBLE, "too wide")
        assert rig.conductor.state.counted() == 0
        again = Next(rig, reopen=[0])
        assert again.conductor.state.counted() == 1
        assert again.conductor.next_launch().trial == 0

    def test_scheduler_and_searcher_come_to_the_same_upon_replay(self, tmp_path):
        """A sweep with a failed trial, retried and cut anywhere, ends as the one that was not cut."""
        made = experiment(scheduler=ASHA(first_rung=1, reduction=2), searcher=TPE(startup=2), budget=Budget(trials=6))

        def begin(path):
            rig = Rig(path, made)
            for number in range(3):
                launch = rig.conductor.next_launch()
                rig.report(number, 1, launch.config["x"])
                if rig.trial(number).status is Status.RUNNING:
                    rig.conductor.failed(number, Failure.USER_ERROR, f"ValueError: {number}")
            return rig

        def curve(x, epoch):
            return x * epoch

        unbroken = Next(begin(tmp_path / "unbroken.sqlite"), reopen=[0])
        run_all(unbroken, curve)
        length = len(unbroken.kinds())
        for cut in range(1, length):
            rig = begin(tmp_path / f"cut{cut}.sqlite")
            broken = Next(rig, reopen=[0])
            die_after(broken.journal, cut)
            try:
                run_all(broken, curve)
            except KeyboardInterrupt:
                broken = Next(broken)
                run_all(broken, curve)
            assert outcome(broken) == outcome(unbroken), cut


class TestAmendment:
    made = experiment(searcher=TPE(startup=1), space={"x": Float(0.0, 1.0), "y": Float(0.0, 1.0)})

    def state(self, made=None, told=()):
        first = events.sweep_created(sweep="toy.1", experiment=describe(made or self.made), facts={})
        return replay(h.stored([first, h.session(), *told]))

    @pytest.mark.parametrize(
        ("change", "told"),
        [
            ({"budget": Budget(trials=9, concurrent=1)}, ["budget: trials was 4, is 9", "budget: concurrent was null, is 1"]),
            ({"retention": Retention(best_of_trial=2)}, ["retention: best_of_trial was 1, is 2"]),
            ({"isolation": "fresh", "recycle_after": 5}, ["isolation was warm, is fresh", "recycle_after was null, is 5"]),
        ],
    )
    def test_what_only_concerns_the_future_is_accepted_and_told(self, change, told):
        event = amendment(self.state(), replace(self.made, **change), amend=False)
        assert event.data["changes"] == told and event.data["forced"] is False

    @pytest.mark.parametrize(
        ("change", "told"),
        [
            ({"seed": 1}, "seed was 0, is 1"),
            ({"space": {"x": Float(0.0, 2.0), "y": Float(0.0, 1.0)}}, "space: x was 0..1, is 0..2"),
            ({"objective": Objective("loss", mode="min", step="epoch", last_step=4)}, "objective: metric was score, is loss"),
            ({"searcher": TPE(startup=3)}, "searcher: startup was 1, is 3"),
            ({"scheduler": ASHA()}, "scheduler was fifo, is asha"),
            ({"baseline": {"x": 0.5, "y": 0.5}}, "baseline was null, is"),
        ],
    )
    def test_what_proposals_and_decisions_follow_from_needs_amend(self, change, told):
        other = replace(self.made, **change)
        with pytest.raises(BadInputError) as error:
            amendment(self.state(), other, amend=False)
        assert told in str(error.value) and "--amend" in str(error.value)
        event = amendment(self.state(), other, amend=True)
        assert event.data["forced"] is True and any(told in line for line in event.data["changes"])

    def test_nothing_changed(self):
        assert amendment(self.state(), self.made, amend=False) is None
        assert amendment(self.state(), self.made, amend=True) is None

    def test_later_sessions_compare_with_the_amended_experiment(self):
        other = replace(self.made, seed=1)
        state = self.state(told=[amendment(self.state(), other, amend=True), h.session()])
        assert amendment(state, other, amend=False) is None
        with pytest.raises(BadInputError, match="seed was 1, is 0"):
            amendment(state, self.made, amend=False)

    def test_another_axis_is_refused_even_so_and_so_is_a_metric_that_was_not_reported(self):
        told = [*h.trial(0, [0.5], settings={"x": 0.1, "y": 0.1})]
        for objective, why in [
            (Objective("score", step="round", last_step=4), "step was epoch, is round"),
            (Objective("f1", step="epoch", last_step=4), "metric is f1, which 1 of 1 recorded reports do not hold"),
        ]:
            with pytest.raises(BadInputError, match=why):
                amendment(self.state(told=told), replace(self.made, objective=objective), amend=True)

    def test_a_function_in_a_part_is_not_a_change_each_time(self):
        made = replace(self.made, searcher=replace(TPE(), startup=1))
        assert harmless_difference(describe(made), describe(made)) == []

    def test_proposed_trials_stay_and_the_searcher_hears_only_of_those_inside(self, tmp_path):
        rig = Described(tmp_path / "journal.sqlite", self.made)
        for number in range(2):
            rig.conductor.next_launch()
            rig.report(number, 4, 1.0)
            rig.conductor.completed(number)
        first, second = (rig.trial(number).config["x"] for number in range(2))
        middle = (first + second) / 2
        half = Float(0.0, middle) if first < second else Float(middle, 1.0)  # holds trial 0 alone
        heard = []

        class Spy:
            name = "tpe"

            def propose(self, number, *, space, objective, history, seed):
                heard.append([trial.number for trial in history])
                return space.sample(numpy.random.default_rng(number))

        other = replace(self.made, space={"x": half, "y": Float(0.0, 1.0)}, searcher=Spy())
        event = amendment(rig.conductor.state, other, amend=True)
        again = Next(rig, other, amendment=event)
        assert again.conductor.next_launch().trial == 2
        assert heard == [[0]]
        assert again.trial(1).status is Status.COMPLETED
        later = Next(again, other)
        later.conductor.next_launch()
        assert later.conductor.next_launch().trial == 3 and heard[-1] == [0, 2]
        assert later.state().amendments[0].trials == 2

    def test_another_metric_is_read_from_what_was_reported(self, tmp_path):
        made = experiment(scheduler=ASHA(first_rung=1, reduction=2), budget=Budget(trials=6))
        rig = Described(tmp_path / "journal.sqlite", made)
        for number in range(2):
            rig.conductor.next_launch()
            rig.conductor.reported(number, {"epoch": 1, "score": 0.5, "loss": 3.0 - number}, None)
        other = replace(made, objective=Objective("loss", mode="min", step="epoch", last_step=4))
        event = amendment(rig.conductor.state, other, amend=True)
        again = Next(rig, other, amendment=event)
        assert [again.trial(number).last.value for number in range(2)] == [3.0, 2.0]
        assert again.conductor.state.mode == "min"
        assert again.conductor._judge.rungs()[1] == {0: 3.0, 1: 2.0}
        assert [trial.last.value for trial in again.state().trials.values()] == [3.0, 2.0]

    def test_a_new_scheduler_judges_what_was_reported_before(self, tmp_path):
        made = experiment(scheduler=FIFO(), budget=Budget(trials=6))
        rig = Described(tmp_path / "journal.sqlite", made)
        for number, score in enumerate([0.9, 0.1]):
            rig.conductor.next_launch()
            rig.report(number, 1, score)
        other = replace(made, scheduler=ASHA(first_rung=1, reduction=2))
        again = Next(rig, other, amendment=amendment(rig.conductor.state, other, amend=True))
        assert again.trial(0).status is Status.INTERRUPTED and again.trial(1).status is Status.STOPPED
        assert Next(again, other).conductor._judge.rungs() == again.conductor._judge.rungs()


class TestPlan:
    """Sweeps that were started in Python, so that there is no file."""

    def folder(self, tmp_path, made, told, outcome="finished"):
        facts = {"root": str(tmp_path), "file": None, "overrides": {}, "storage": None}
        first = events.sweep_created(sweep="toy.1", experiment=describe(made), facts=facts)
        budget = describe(made)["budget"]
        session = events.session_started(
            pid=1, host="here", resources={}, budget=budget, tracking={"kind": "none", "name": "none"}
        )
        end = events.session_ended(outcome=outcome, reason="")
        return h.write(tmp_path / "runs", [first, session, *told, end], "toy.1")

    def plan(self, tmp_path, wish, made=None, before=None, **others):
        before = before or experiment(budget=Budget(trials=1))
        folder = self.folder(tmp_path, before, h.trial(0, [0.5], settings={"x": 0.5}), **others)
        return plan(folder, folder.load(), wish, experiment=made or before, environ={})

    def test_a_finished_sweep_has_nothing_to_do_until_it_is_extended(self, tmp_path):
        assert self.plan(tmp_path, Wish()) is None
        assert self.plan(tmp_path / "b", Wish(trials=3)).experiment.budget == Budget(trials=3)

    def test_a_larger_budget_in_the_experiment_counts_and_one_that_was_there_before_does_not_undo_an_extension(self, tmp_path):
        before = experiment(budget=Budget(trials=1))
        changed = self.plan(tmp_path, Wish(), made=replace(before, budget=Budget(trials=5)), before=before)
        assert changed.experiment.budget.trials == 5 and changed.amendment.data["changes"] == ["budget: trials was 1, is 5"]
        told = [*h.trial(0, [0.5], settings={"x": 0.5})]
        folder = self.folder(tmp_path / "b", before, told)
        journal = Journal(folder.journal)
        journal.append(h.session(trials=9))
        journal.append(events.session_ended(outcome="interrupted", reason="Ctrl-C"))
        journal.close()
        assert plan(folder, folder.load(), Wish(), experiment=before, environ={}).experiment.budget.trials == 9

    def test_a_budget_in_the_experiment_that_is_too_small_by_now_is_refused(self, tmp_path):
        made = experiment(budget=Budget(trials=4))
        told = [*h.trial(0, [0.5]), *h.trial(1, [0.5])]
        folder = self.folder(tmp_path, made, told, outcome="interrupted")
        with pytest.raises(BadInputError, match="2 trials exist already; a total of 1 is fewer"):
            plan(folder, folder.load(), Wish(), experiment=replace(made, budget=Budget(trials=1)), environ={})

    def test_an_infeasible_trial_that_was_tried_again_may_exceed_the_total(self, tmp_path):
        made = experiment(budget=Budget(trials=1))
        told = [*h.trial(0, [], end="infeasible", settings={"x": 0.5}), *h.trial(1, [0.5], settings={"x": 0.5})]
        folder = self.folder(tmp_path, made, [*told, events.reopened(0, upto=None, reason="")], outcome="interrupted")
        state = folder.load()
        assert state.counted() == 2
        assert plan(folder, state, Wish(), experiment=made, environ={}).experiment.budget.trials == 1
        with pytest.raises(BadInputError, match="2 trials exist already; a total of 1 is fewer"):
            plan(folder, state, Wish(trials=1), experiment=made, environ={})

    @pytest.mark.parametrize(("wish", "told"), [(Wish(time_s=-5), "time_s > 0"), (Wish(concurrent=0), "concurrent >= 1")])
    def test_a_budget_that_is_none_is_refused_as_that(self, tmp_path, wish, told):
        with pytest.raises(BadInputError, match=told):
            self.plan(tmp_path, wish, outcome="out of time")

    def test_time_alone_is_nothing_for_a_sweep_that_is_finished(self, tmp_path):
        made = experiment(budget=Budget(trials=1, time_s=600.0))
        folder = self.folder(tmp_path, made, h.trial(0, [0.5], settings={"x": 0.5}))
        with pytest.raises(BadInputError, match="more time changes nothing and was not recorded.*: more trials"):
            refuse_time_alone(folder.load(), Wish(time_s=700.0), "more trials")
        refuse_time_alone(folder.load(), Wish(time_s=700.0, trials=2), "")
        refuse_time_alone(folder.load(), Wish(time_s=700.0, reopen=[0]), "")

    @pytest.mark.parametrize(
        ("wish", "told"),
        [(Wish(), r"\.resume\(\)"), (Wish(trials=3), r"\.resume\(trials=3\)"), (Wish(reopen=[0]), r"\.retry\(0\)")],
    )
    def test_without_a_file_it_says_what_does_the_same_in_python(self, tmp_path, wish, told):
        made = experiment(budget=Budget(trials=2))
        folder = self.folder(tmp_path, made, h.trial(0, [0.5], settings={"x": 0.5}), outcome="interrupted")
        with pytest.raises(BadInputError, match=rf"tunelab.open\('toy.1', experiment\){told}"):
            plan(folder, folder.load(), wish, environ={})

    def test_trials_to_try_again_make_a_finished_sweep_go_on(self, tmp_path):
        assert self.plan(tmp_path, Wish(reopen=[0])).reopen == (0,)


def test_what_happens_between_two_sessions_does_not_count_as_their_time(tmp_path):
    clock = Clock()
    rig = Described(tmp_path / "journal.sqlite", experiment(), clock=clock)
    rig.conductor.next_launch()
    rig.report(0, 1, 0.5)
    clock.now += 10
    rig.report(0, 2, 0.5)
    rig.journal.close()  # killed
    clock.now += 10_000
    journal = Journal(rig.path, clock)
    journal.append(events.checkpoint_deleted(0, checkpoint="0000/checkpoint_1_1", by="gc"))
    journal.append(events.amended(experiment=describe(experiment(seed=1)), changes=["seed was 0, is 1"], forced=True))
    journal.close()
    assert replay(read_events(rig.path)).elapsed_s == 10
    assert Rig(rig.path, clock=clock).conductor.state.elapsed_s == 10
