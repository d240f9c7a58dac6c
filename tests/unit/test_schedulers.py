"""Schedulers: the contract for each in the family's table, and ASHA worked out by hand."""

import math

import pytest

from tunelab import schedulers
from tunelab.core.experiment import Objective
from tunelab.core.space import Float, Space
from tunelab.core.trial import Continue, Report, Status, Stop
from tunelab.errors import UnknownNameError
from tunelab.schedulers.asha import ASHA, ordinal
from tunelab.schedulers.fifo import FIFO
from tunelab.searchers.random import Random
from tunelab.testing.contracts import SchedulerContract
from tunelab.testing.simulate import simulate

ACCURACY = Objective("accuracy", mode="max", step="epoch", last_step=20)


class TestBuiltInSchedulers(SchedulerContract):
    @pytest.fixture(params=schedulers.names())
    def make(self, request):
        return schedulers.load(request.param)


def judge(mode="max", last_step=20, **asha):
    return ASHA(**{"first_rung": 2, "reduction": 3, **asha}).judge(Objective("m", mode=mode), last_step)


def say(judge, trial, step, value):
    (decision,) = judge.decide(Report(trial, 1, step, value))
    return decision


def test_table_holds_what_it_says():
    assert schedulers.names() == ["fifo", "asha"]
    for name in schedulers.names():
        assert schedulers.load(name).name == name
    with pytest.raises(UnknownNameError, match=r"No scheduler is called 'ahsa'\. Did you mean 'asha'"):
        schedulers.load("ahsa")


def test_rungs_lie_below_the_last_step():
    asha = ASHA(first_rung=2, reduction=3)
    assert asha.milestones(20) == [2, 6, 18]
    assert asha.milestones(18) == [2, 6], "the last step needs no rung: the trial is complete there"
    assert asha.milestones(2) == []
    assert asha.milestones(None) == []
    assert ASHA(first_rung=0.5, reduction=2).milestones(3) == [0.5, 1.0, 2.0]


def test_worked_example_at_one_rung():
    """Ten accuracies arrive at rung 2 one after the other; the needed one is the floor(n/3)-th best of those before."""
    j = judge()
    expected = [
        (0.50, "1st of 1 at rung 2, too few to stop any", True),
        (0.40, "2nd of 2 at rung 2, too few to stop any", True),
        (0.60, "1st of 3 at rung 2, needed 0.5000 (top 1/3)", True),  # n=3: better than the best other
        (0.55, "2nd of 4 at rung 2, needed 0.6000 (top 1/3)", False),
        (0.60, "1st of 5 at rung 2, needed 0.6000 (top 1/3)", True),  # a tie with the one needed goes on
        (0.58, "3rd of 6 at rung 2, needed 0.6000 (top 1/3)", False),  # n=6: second best of 0.60 0.60 0.55 0.50 0.40
        (0.70, "1st of 7 at rung 2, needed 0.6000 (top 1/3)", True),
        (0.60, "2nd of 8 at rung 2, needed 0.6000 (top 1/3)", True),
        (math.nan, "9th of 9 at rung 2, nan is not a finite number", False),
        (0.59, "5th of 10 at rung 2, needed 0.6000 (top 1/3)", False),
    ]
    for trial, (value, reason, goes_on) in enumerate(expected):
        answer = say(j, trial, 2, value)
        assert answer == (Continue(trial, reason, until=6) if goes_on else Stop(trial, reason))
    assert list(j.rungs()) == [2, 6, 18]
    assert list(j.rungs()[2]) == list(range(10)) and j.rungs()[2][6] == 0.70


def test_a_loss_is_judged_the_other_way_round():
    j = judge(mode="min")
    for trial, loss in enumerate([0.5, 0.4, 0.3]):
        say(j, trial, 2, loss)
    assert say(j, 3, 2, 0.35) == Stop(3, "2nd of 4 at rung 2, needed 0.3000 (top 1/3)")
    assert say(j, 4, 2, 0.2) == Continue(4, "1st of 5 at rung 2, needed 0.3000 (top 1/3)", until=6)


def test_between_rungs_it_has_nothing_to_say():
    j = judge()
    assert say(j, 0, 1, 0.1) == Continue(0, "", until=2)
    assert say(j, 0, 2, 0.1).until == 6
    assert say(j, 0, 5, 0.0) == Continue(0, "", until=6)
    assert say(j, 0, 17, 0.0).until == 18
    assert say(j, 0, 18, 0.0).until is None
    assert j.rungs() == {2: {0: 0.1}, 6: {0: 0.0}, 18: {0: 0.0}}, "rung 6 was passed by the report of step 17"


def test_the_first_report_at_or_past_a_rung_counts_and_skipped_rungs_are_judged():
    j = judge()
    for trial in range(3):
        say(j, trial, 2, 0.5)
    assert say(j, 3, 7, 0.9) == Continue(
        3, "1st of 4 at rung 2, needed 0.5000 (top 1/3); 1st of 1 at rung 6, too few to stop any", until=18
    )
    assert say(j, 4, 7, 0.4).reason == "5th of 5 at rung 2, needed 0.9000 (top 1/3)"
    assert 4 not in j.rungs()[6]


def test_fractional_epochs_reach_a_rung_in_spite_of_rounding():
    j = judge()
    assert say(j, 0, 1.9999999, 0.5).until == 6
    assert say(j, 0, 3.25, 0.5).reason == ""
    assert j.rungs()[2] == {0: 0.5}


def test_a_resumed_trial_is_not_judged_again():
    j = judge()
    for trial in range(4):
        say(j, trial, 2, 0.5 + trial / 10)
    assert say(j, 0, 2, 0.1) == Continue(0, "", until=6), "it would be stopped now"
    assert j.rungs()[2][0] == 0.5


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize("mode", ["max", "min"])
def test_what_is_not_finite_is_stopped_even_as_the_first_of_a_rung(mode, bad):
    j = judge(mode=mode)
    assert say(j, 0, 2, bad) == Stop(0, f"1st of 1 at rung 2, {bad} is not a finite number")
    say(j, 1, 2, bad)
    assert say(j, 2, 2, 0.5) == Continue(2, "1st of 3 at rung 2, needed any finite number (top 1/3)", until=6)


def test_a_complete_trial_is_not_stopped():
    j = judge()
    for trial in range(3):
        say(j, trial, 2, 0.9)
    answer = say(j, 3, 20, 0.1)
    assert isinstance(answer, Continue) and answer.until is None
    assert j.rungs()[2][3] == 0.1, "but it counts at the rungs it passed"


def test_without_a_last_step_rungs_go_on():
    j = judge(last_step=None)
    assert say(j, 0, 2, 0.5).until == 6
    assert say(j, 0, 100, 0.5).until == 162
    assert j.rungs()[54] == {0: 0.5}


def test_problems_are_all_named():
    assert len(ASHA(first_rung=0, reduction=1).problems()) == 2
    assert ASHA(first_rung=math.nan).problems() and ASHA(reduction="3").problems() and ASHA(first_rung=True).problems()
    assert ASHA(first_rung=0.5, reduction=1.5).problems() == []


def test_ordinals():
    expected = {
        1: "1st",
        2: "2nd",
        3: "3rd",
        4: "4th",
        11: "11th",
        12: "12th",
        13: "13th",
        21: "21st",
        22: "22nd",
        101: "101st",
    }
    expected |= {111: "111th", 113: "113th", 123: "123rd"}
    assert {n: ordinal(n) for n in expected} == expected


def test_asha_saves_most_of_the_work_and_keeps_a_good_trial():
    def curve(config):
        return [(step, config["x"] * step / 20) for step in range(1, 21)]

    space = Space({"x": Float(0.0, 1.0)})
    asked = {"trials": 60, "seed": 0, "concurrent": 4}
    full = simulate(space, ACCURACY, Random(), FIFO(), curve, **asked)
    asha = simulate(space, ACCURACY, Random(), ASHA(first_rung=2), curve, **asked)
    assert [t.config for t in asha] == [t.config for t in full]
    assert sum(len(t.reports) for t in full) == 1200
    assert sum(len(t.reports) for t in asha) < 500
    best = max(t.config["x"] for t in full)
    assert max(t.config["x"] for t in asha if t.status is Status.COMPLETED) == best


def test_simulated_trials_run_side_by_side():
    seen = []
    space = Space({"x": Float(0.0, 1.0)})

    class Watching:
        def decide(self, report):
            seen.append((report.trial, report.step))
            return [Continue(report.trial)]

        def rungs(self):
            return {}

    class Watch:
        name = "watch"

        def judge(self, objective, last_step):
            return Watching()

    simulate(space, ACCURACY, Random(), Watch(), lambda c: [(1, 0.0), (2, 0.0)], trials=3, seed=0, concurrent=2)
    assert seen == [(0, 1), (1, 1), (0, 2), (1, 2), (2, 1), (2, 2)]
