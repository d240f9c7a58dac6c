"""The driver is killed at seeded events and moments, also while it starts, resumes, and waits for the tracker."""

from __future__ import annotations

import pytest

from tests.chaos.checks import problems, summary
from tests.chaos.harness import plan

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def kill_and_compare(run, experiment, expected, kills):
    run.survive(kills)
    print(run.done)
    assert problems(run, experiment) == []
    assert summary(run, experiment) == expected
    run.wait_until_alone()


@pytest.mark.parametrize("seed", [0])
def test_a_sweep_whose_driver_is_killed_ends_as_the_unbroken_one(seed, chaos, experiments, unbroken):
    kill_and_compare(chaos(trials=6), experiments["one"], unbroken(6), plan(seed, kills=2, trials=6))


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(100, 110))
def test_fifty_kills_over_ten_sweeps(seed, chaos, experiments, unbroken):
    kill_and_compare(chaos(), experiments["one"], unbroken(24), plan(seed, kills=5))


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(200, 204))
def test_with_two_trials_at_once_decisions_and_proposals_follow_from_the_journals_order(seed, chaos, experiments):
    run = chaos("pairs")
    run.survive(plan(seed, kills=4))
    print(run.done)
    assert problems(run, experiments["pairs"]) == []
    run.wait_until_alone()
