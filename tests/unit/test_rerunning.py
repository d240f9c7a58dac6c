"""Reruns: the experiment that runs one trial once more, and how the outcome is compared."""

from __future__ import annotations

import json
import math

import numpy
import pytest

from tests.unit import histories as h
from tests.unit.test_conductor import experiment
from tunelab import ASHA, TPE, Budget, Choice, Float, Int
from tunelab.cli.rerun import lines
from tunelab.core.trial import Report, derive_seed
from tunelab.engine.description import describe
from tunelab.engine.overrides import apply_overrides
from tunelab.engine.rerunning import Rerun, Spread, best_until, derive, described, judge, step_by_step
from tunelab.errors import BadInputError
from tunelab.journal import events, replay
from tunelab.journal.home import Home, SweepFolder

ORIGINAL = experiment(
    name="digits-mlp",
    space={
        "lr": Float(1e-4, 1e-1, log=True),
        "width": Int(16, 256),
        "batch_size": Choice([16, 32, 64]),
        "momentum": Float(0.0, 1.0, when={"batch_size": 16}),
    },
    searcher=TPE(),
    scheduler=ASHA(first_rung=1, reduction=2),
    baseline={"lr": 1e-3, "width": 64, "batch_size": 32},
    budget=Budget(trials=64, time_s=100.0, concurrent=3),
)


def spec(seeds=None, number=7):
    return described(h.state([*h.created(), *h.trial(number, [0.5, 0.6])]), number, seeds)


class TestDerived:
    def test_it_is_the_same_configuration_and_seed_and_is_never_stopped(self):
        rerun = spec()
        made = derive(ORIGINAL, rerun)
        assert made.budget == Budget(trials=1, concurrent=3)
        assert [made.trial_seed(number) for number in range(2)] == [7, 7]
        config = h.config(7)
        proposed = made.searcher.propose(0, space=made.space, objective=made.objective, history=[], seed=made.seed)
        assert proposed == config and made.space.contains(proposed) and made.full_baseline() is None
        assert made.scheduler.name == "fifo" and made.objective == ORIGINAL.objective
        assert made.space.sample(numpy.random.default_rng(0)) == config

    def test_other_seeds_are_other_and_always_the_same(self):
        made = derive(ORIGINAL, spec(seeds=3))
        seeds = [made.trial_seed(number) for number in range(3)]
        assert len({7, *seeds}) == 4 and seeds == [derive(ORIGINAL, spec(seeds=3)).trial_seed(n) for n in range(3)]
        assert made.seed == derive_seed(7, "rerun") and made.budget.trials == 3

    def test_its_sweep_is_none_of_the_originals(self, tmp_path):
        made = derive(ORIGINAL, spec())
        assert made.name == "digits-mlp-1-0007-rerun"
        h.write(tmp_path, h.created(), "digits-mlp.1")
        h.write(tmp_path, h.created(), f"{made.name}.1")
        assert Home(tmp_path).find("digits-mlp").path.name == "digits-mlp.1"
        assert Home(tmp_path).find(made.name).path.name == "digits-mlp-1-0007-rerun.1"

    def test_a_long_name_is_cut_and_stays_one(self):
        from dataclasses import replace

        made = derive(replace(ORIGINAL, name="a" * 63), {**spec(), "of": "x.12/000123"})
        assert made.name == "a" * 47 + "-12-000123-rerun" and len(made.name) <= 63

    def test_it_is_kept_among_the_overrides_so_that_it_can_be_resumed(self):
        rerun = spec(seeds=2)
        kept = json.loads(json.dumps({"seed": 5, "rerun": rerun}))
        assert describe(apply_overrides(ORIGINAL, **kept)) == describe(derive(ORIGINAL, rerun))

    @pytest.mark.parametrize(
        ("told", "why"),
        [
            (h.trial(0, [0.1], end=None), "has not ended yet"),
            ([events.proposed(0, config={}, seed=0, origin="x")], "has not ended yet"),
        ],
    )
    def test_a_trial_that_is_not_over_is_refused(self, told, why):
        with pytest.raises(BadInputError, match=why):
            described(h.state([*h.created(), *told]), 0, None)

    def test_one_whose_driver_was_killed_is_over(self):
        state = h.state([*h.created(), *h.trial(0, [0.1], end=None)])
        assert described(state, 0, None, at_work=False)["of"] == "digits-mlp.1/0000"


def reports(values, first=1):
    return [Report(0, 1, step, value) for step, value in enumerate(values, first)]


class TestStepByStep:
    def test_equal_to_the_bit(self):
        steps = step_by_step(reports([0.1, math.nan, 0.3]), reports([0.1, math.nan, 0.3, 0.4]))
        assert steps.equal and steps.common == 3 and steps.last == 3 and steps.equal_until == 3

    def test_the_last_bit_counts(self):
        steps = step_by_step(reports([0.3]), reports([0.1 + 0.2]))
        assert not steps.equal and steps.worst == (1, 0.3, 0.1 + 0.2) and steps.equal_until is None

    def test_the_largest_difference_and_the_step_up_to_which_all_is_equal(self):
        steps = step_by_step(reports([0.1, 0.2, 0.3, 0.4, 0.5]), reports([0.1, 0.2, 0.31, 0.1, 0.5]))
        assert steps.worst == (4, 0.4, 0.1) and steps.equal_until == 2

    def test_nan_beside_a_number_is_the_largest_difference(self):
        assert step_by_step(reports([0.1, 0.2]), reports([9.0, math.nan])).worst[0] == 2

    def test_nothing_in_common_is_not_equal(self):
        steps = step_by_step(reports([]), reports([0.1]))
        assert not steps.equal and steps.common == 0 and steps.last is None


class TestSpread:
    def test_only_steps_that_the_original_reached_count(self):
        assert best_until(reports([0.1, 0.5, 0.9]), 2, "max") == 0.5
        assert best_until(reports([0.1, math.nan, math.inf]), None, "min") == 0.1
        assert best_until(reports([math.nan]), None, "max") is None

    @pytest.mark.parametrize(("value", "typical"), [(0.9822, True), (0.9999, False), (0.95, False), (None, None)])
    def test_typical_is_what_a_further_seed_would_give_in_95_of_100_cases(self, value, typical):
        spread = Spread(20, value, {0: 0.9800, 1: 0.9778, 2: 0.9844})
        assert spread.mean == pytest.approx(0.98073, abs=1e-5) and spread.sd == pytest.approx(0.00336, abs=1e-5)
        low, high = spread.interval
        half = 4.30265 * spread.sd * math.sqrt(4 / 3)  # Student's t for two degrees of freedom
        assert (low, high) == pytest.approx((spread.mean - half, spread.mean + half), abs=1e-6)
        assert spread.typical is typical

    def test_one_value_says_nothing(self):
        spread = Spread(20, 0.5, {0: 0.4, 1: None})
        assert spread.mean == 0.4 and spread.sd is None and spread.interval is None and spread.typical is None


class TestTold:
    def rerun(self, told, seeds=None, original=(0.5, 0.6), end="stopped", restart=False):
        before = h.state([*h.created(), *h.trial(7, original, end=end)])
        trial = before.trials[7]
        if restart:
            trial.attempts[0].from_step = 1
        name = "digits-mlp-1-0007-rerun.1"
        facts = {"overrides": {"rerun": described(before, 7, seeds)}}
        first = events.sweep_created(sweep=name, experiment=h.experiment(), facts=facts)
        state = replay(h.stored([first, h.session(), *told]))
        return judge(SweepFolder(None), state, "finished", trial)

    def test_equal(self):
        (line,) = lines(self.rerun(h.trial(0, [0.5, 0.6, 0.7])))
        assert line.startswith("digits-mlp-1-0007-rerun.1 equals digits-mlp.1/0007 to the bit: accuracy at all 2 epochs")

    def test_different_and_why_that_may_be(self):
        first, second = lines(self.rerun(h.trial(0, [0.5, 0.65]), restart=True))
        assert first == (
            "digits-mlp-1-0007-rerun.1 differs from digits-mlp.1/0007: equal up to epoch 1, then accuracy differs by at most "
            "0.0500, at epoch 2 (then 0.6000, now 0.6500); 2 epochs compared"
        )
        assert second.startswith("digits-mlp.1/0007 had been restarted from a checkpoint (the last time at epoch 1)")

    def test_one_that_failed(self):
        told = [*h.trial(0, [], end=None), *h.trial(0, [])[2:-2]]
        told += [events.attempt_ended(0, attempt=1, outcome="failed", failure="user error", message="ValueError")]
        told += [events.finished(0, status="failed", reason="user error: ValueError")]
        first, second = lines(self.rerun(told, original=(), end="failed"))
        assert first == "digits-mlp-1-0007-rerun.1/0000 failed: user error: ValueError"
        assert second.endswith("have no epoch in common")

    def test_other_seeds(self):
        told = [*h.trial(0, [0.4, 0.58, 0.9]), *h.trial(1, [0.4, 0.59]), *h.trial(2, [0.61, 0.2])]
        head, line = lines(self.rerun(told, seeds=3))
        assert head == "digits-mlp-1-0007-rerun.1: digits-mlp.1/0007 with 3 other seeds, best accuracy up to epoch 2"
        assert line.startswith("0000 0.5800  0001 0.5900  0002 0.6100   mean 0.5933, sd 0.0153: 0007's 0.6000 is typical (95 %")

    def test_one_other_seed_leaves_the_question_open(self):
        assert "two or more values" in lines(self.rerun(h.trial(0, [0.5]), seeds=1))[1]

    def test_the_result_shows_itself_without_the_whole_trial(self):
        assert isinstance(self.rerun(h.trial(0, [0.5])), Rerun) and "original" not in repr(self.rerun(h.trial(0, [0.5])))
