"""Searchers: the contract for each in the family's table, and what is special about each."""

import logging
import math
import statistics
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from tunelab import searchers
from tunelab.core.experiment import Objective
from tunelab.core.space import Choice, Float, Int, Space
from tunelab.core.trial import Report, Status, Trial
from tunelab.errors import Infeasible, InvalidExperimentError, UnknownNameError
from tunelab.schedulers.asha import ASHA
from tunelab.schedulers.fifo import FIFO
from tunelab.searchers.grid import Grid
from tunelab.searchers.optuna import TPE
from tunelab.searchers.random import Random
from tunelab.testing.contracts import SPACES, SearcherContract, make_history
from tunelab.testing.simulate import simulate

ROOT = Path(__file__).parents[2]
ACCURACY = Objective("accuracy", mode="max", last_step=9)
LOSS = Objective("loss", mode="min", last_step=9)


class TestBuiltInSearchers(SearcherContract):
    @pytest.fixture(params=searchers.names())
    def make(self, request):
        return (lambda: Grid(points=3)) if request.param == "grid" else searchers.load(request.param)


class TestTPEFromTheFirstTrial(SearcherContract):
    """The model alone, without random trials before it."""

    @pytest.fixture(params=[True, False], ids=["multivariate", "independent"])
    def make(self, request):
        return lambda: TPE(startup=0, multivariate=request.param, group=request.param)

    @pytest.fixture(params=["single", "finite", "conditional"])
    def space(self, request):
        return SPACES[request.param]


def test_table_holds_what_it_says():
    assert searchers.names() == ["random", "grid", "tpe"]
    for name in searchers.names():
        assert searchers.load(name).name == name
    with pytest.raises(UnknownNameError, match=r"No searcher is called 'tpee'\. Did you mean 'tpe'"):
        searchers.load("tpee")


def test_naming_tpe_in_an_experiment_loads_no_optuna():
    code = "import sys, tunelab.searchers as s; s.load('tpe')(); print('optuna' in sys.modules, 'ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == ["False", "False"]


def sweep(searcher, space, value, trials, seed=0, objective=ACCURACY, **options):
    return simulate(space, objective, searcher, FIFO(), lambda c: [(9, value(c))], trials=trials, seed=seed, **options)


@pytest.mark.parametrize("searcher", [Random(), Grid(), TPE(startup=3)], ids=lambda s: s.name)
@pytest.mark.parametrize("name", ["finite", "single"])
def test_a_finite_space_is_tried_once_each_and_then_used_up(searcher, name):
    space = SPACES[name]
    trials = sweep(searcher, space, lambda c: len(str(c)), trials=100)
    assert len({space.key(trial.config) for trial in trials}) == len(trials) == space.count()


def test_trials_in_every_state_count_as_tried():
    space = Space({"x": Int(1, len(Status))})
    history = [Trial(n, {"x": n + 1}, 0, status=status) for n, status in enumerate(list(Status)[:-1])]
    for searcher in (Random(), Grid(), TPE(startup=0)):
        asked = {"space": space, "objective": ACCURACY, "seed": 0}
        assert searcher.propose(7, history=history, **asked) == {"x": len(Status)}
        assert searcher.propose(8, history=[*history, Trial(7, {"x": len(Status)}, 0)], **asked) is None


def test_random_seeds_and_numbers_differ():
    space = SPACES["one"]
    drawn = {
        Random().propose(n, space=space, objective=ACCURACY, history=[], seed=seed)["lr"] for n in range(5) for seed in range(5)
    }
    assert len(drawn) == 25


def test_grid_order_is_that_of_nested_loops():
    space = Space({"a": Choice(["x", "y"]), "b": Float(0.0, 0.2, step=0.1), "c": Int(1, 2, when={"a": "y"})})
    configs = [trial.config for trial in sweep(Grid(), space, lambda c: 0.0, trials=50)]
    assert configs == [{"a": "x", "b": b} for b in (0.0, 0.1, 0.2)] + [
        {"a": "y", "b": b, "c": c} for b in (0.0, 0.1, 0.2) for c in (1, 2)
    ]


def test_grid_points_are_spread_on_the_parameters_scale():
    space = Space({"lr": Float(1e-5, 1e-1, log=True)})
    configs = [trial.config["lr"] for trial in sweep(Grid(points=5), space, lambda c: 0.0, trials=50)]
    assert configs == [1e-5, 1e-4, 1e-3, 1e-2, 1e-1]
    assert Float(1.0, 3.0).spread(1) == [2.0] and Float(1.0, 3.0).spread(3) == [1.0, 2.0, 3.0]


def test_grid_skips_the_baseline():
    space = Space({"a": Int(1, 3)})
    history = [Trial(0, {"a": 2}, 0, origin="baseline")]
    proposed = []
    for n in (1, 2, 3):
        config = Grid().propose(n, space=space, objective=ACCURACY, history=history, seed=0)
        proposed.append(config)
        history.append(Trial(n, config or {}, 0))
    assert proposed == [{"a": 1}, {"a": 3}, None]


def test_grid_over_a_continuous_parameter_says_what_is_needed():
    space = Space({"lr": Float(0.0, 1.0), "n": Int(1, 2)})
    assert "points" in Grid().space_problems(space)[0] and "lr" in Grid().space_problems(space)[0]
    assert Grid(points=2).space_problems(space) == [] == Grid().space_problems(SPACES["finite"])
    with pytest.raises(InvalidExperimentError, match="lr is continuous"):
        Grid().propose(0, space=space, objective=ACCURACY, history=[], seed=0)


def test_bad_arguments_are_problems_and_not_exceptions():
    assert len(TPE(startup=-1, candidates=0, multivariate="yes").problems()) == 3
    assert TPE(multivariate=False).problems() == ["TPE needs multivariate=True for group=True."]
    assert TPE(startup=True).problems() and Grid(points=0).problems() and Grid(points=True).problems()


BOWL = Space({"lr": Float(1e-5, 1e-1, log=True), "drop": Float(0.0, 0.5), "width": Int(8, 512, log=True)})


def bowl(config):
    """Best value 0 at lr=1e-3, drop=0.2, width=64."""
    x, y, z = math.log10(config["lr"]) + 3, config["drop"] - 0.2, math.log2(config["width"]) - 6
    return -(x * x + 20 * y * y + 0.3 * z * z)


@pytest.mark.parametrize("concurrent", [1, 4])
def test_tpe_beats_random_on_a_bowl(concurrent):
    def best(searcher, seed):
        return max(t.reports[-1].value for t in sweep(searcher, BOWL, bowl, 40, seed, concurrent=concurrent))

    seeds = range(5)
    tpe, random = [best(TPE(), s) for s in seeds], [best(Random(), s) for s in seeds]
    assert statistics.mean(tpe) > statistics.mean(random) / 2, (tpe, random)  # less than half the distance from the best
    assert sum(a > b for a, b in zip(tpe, random, strict=True)) >= 4


def test_tpe_minimises_a_loss():
    trials = sweep(TPE(), BOWL, lambda c: -bowl(c), 40, objective=LOSS)
    late, early = ([t.reports[-1].value for t in part] for part in (trials[25:], trials[:10]))
    assert statistics.median(late) < statistics.median(early) / 2


@pytest.mark.parametrize("objective", [ACCURACY, LOSS], ids=["max", "min"])
def test_tpe_keeps_away_from_what_diverged_and_from_what_is_infeasible(objective):
    """Half of the range has no value at all. Values in the other half are worse than 0, the number that stands for none."""
    space = Space({"x": Float(0.0, 1.0)})
    sign = -1 if objective.mode == "max" else 1

    def value(config):
        return sign * (1 + abs(config["x"] - 0.3))

    def diverging(config):
        return [(9, math.nan if config["x"] > 0.5 else value(config))]

    def exploding(config):
        return [(1, value(config)), (9, -sign * math.inf if config["x"] > 0.5 else value(config))]

    def infeasible(config):
        if config["x"] > 0.5:
            yield 1, 0.0
            raise Infeasible("too wide")
        yield 9, value(config)

    for curve in (diverging, exploding, infeasible):
        trials = [
            trial for seed in range(2) for trial in simulate(space, objective, TPE(), FIFO(), curve, trials=40, seed=seed)[15:]
        ]
        assert statistics.mean(t.config["x"] > 0.5 for t in trials) < 0.15, curve.__name__


def test_a_stopped_trial_is_never_taken_for_a_completed_one():
    """Stopped trials report more than completed ones ever do, at an early step; the model still follows the completed ones."""
    space = Space({"x": Float(0.0, 1.0)})
    history = []
    for n in range(40):
        x = (n * 0.618) % 1
        full = x < 0.3
        reports = [Report(n, 1, 9, 0.5 - x / 100)] if full else [Report(n, 1, 1, 0.99)]
        history.append(Trial(n, {"x": x}, 0, status=Status.COMPLETED if full else Status.STOPPED, reports=reports))
    proposed = [TPE().propose(40 + n, space=space, objective=ACCURACY, history=history, seed=0)["x"] for n in range(20)]
    assert statistics.mean(x < 0.3 for x in proposed) > 0.7


def test_what_an_infeasible_trial_reported_counts_for_nothing():
    space = Space({"x": Float(0.0, 1.0)})
    history = []
    for n in range(40):
        x = (n * 0.618) % 1
        status, step, value = (Status.STOPPED, 1, 0.5) if x < 0.3 else (Status.INFEASIBLE, 5, 0.99)
        history.append(Trial(n, {"x": x}, 0, status=status, reports=[Report(n, 1, step, value)]))
    proposed = [TPE().propose(40 + n, space=space, objective=ACCURACY, history=history, seed=0)["x"] for n in range(20)]
    assert statistics.mean(x < 0.3 for x in proposed) > 0.7


def test_of_two_stopped_trials_the_one_that_came_further_is_the_better():
    """Steps may be fractions, as Hugging Face's epochs are."""
    space = Space({"x": Float(0.0, 1.0)})
    history = []
    for n in range(40):
        x = (n * 0.618) % 1
        report = Report(n, 1, 1.75, 0.5 - x / 100) if x < 0.3 else Report(n, 1, 1.25, 0.99)
        history.append(Trial(n, {"x": x}, 0, status=Status.STOPPED, reports=[report]))
    proposed = [TPE().propose(40 + n, space=space, objective=ACCURACY, history=history, seed=0)["x"] for n in range(20)]
    assert statistics.mean(x < 0.3 for x in proposed) > 0.7


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.STOPPED], ids=lambda status: status.value)
def test_running_trials_push_proposals_apart(status):
    """With trials running around the best place, and doing well, proposals lie further from it than without them."""
    space = Space({"x": Float(0.0, 1.0)})
    ended = [Trial(n, {"x": n / 20}, 0, status=status, reports=[Report(n, 1, 3, -abs(n / 20 - 0.5))]) for n in range(20)]
    running = [
        Trial(n, {"x": x}, 0, status=Status.RUNNING, reports=[Report(n, 1, 5, 9.0)]) for n, x in ((20, 0.4975), (21, 0.5))
    ]

    def distance(history):
        return statistics.mean(
            abs(TPE().propose(40 + n, space=space, objective=ACCURACY, history=history, seed=0)["x"] - 0.5) for n in range(20)
        )

    assert distance(ended + running) > 2 * distance(ended)


def test_startup_counts_ended_trials():
    space = SPACES["one"]
    asked = {"space": space, "objective": ACCURACY, "seed": 0}
    value = {"value": lambda n: float(n)}
    running = make_history(space, 20, statuses=[Status.RUNNING], **value)
    nine = make_history(space, 9, statuses=[Status.COMPLETED], **value)
    ten = make_history(space, 10, statuses=[Status.COMPLETED], **value)
    drawn = TPE().propose(30, history=[], **asked)
    assert TPE().propose(30, history=running, **asked) == drawn == TPE().propose(30, history=nine, **asked)
    assert TPE().propose(30, history=ten, **asked) != drawn


def test_tpe_under_asha_ends_better_than_random_under_asha():
    def curve(config):
        return [(step, bowl(config) - 1 / step) for step in range(1, 10)]

    def best(searcher, seed):
        trials = simulate(BOWL, ACCURACY, searcher, ASHA(), curve, trials=60, seed=seed, concurrent=2)
        return max(bowl(t.config) for t in trials if t.status is Status.COMPLETED)

    seeds = range(3)
    assert statistics.mean(best(TPE(), s) for s in seeds) > statistics.mean(best(Random(), s) for s in seeds) / 2


def test_tpe_finds_the_good_branch_of_a_condition():
    def value(config):
        return 1 - abs(config["momentum"] - 0.8) if config["optimizer"] == "sgd" else 0.2

    trials = sweep(TPE(), SPACES["conditional"], value, 40)
    assert statistics.mean(t.config["optimizer"] == "sgd" for t in trials[20:]) > 0.6


def test_tpe_leaves_optunas_settings_alone_and_says_nothing(caplog, capfd):
    import optuna

    optuna.logging.set_verbosity(optuna.logging.INFO)
    try:
        history = make_history(SPACES["mixed"], 12, statuses=[Status.COMPLETED, Status.STOPPED])
        filters = list(warnings.filters)
        with warnings.catch_warnings(record=True) as caught, caplog.at_level(logging.DEBUG):
            warnings.simplefilter("always")
            TPE().propose(12, space=SPACES["mixed"], objective=ACCURACY, history=history, seed=0)
        assert not caught and not caplog.records and capfd.readouterr() == ("", "")
        assert optuna.logging.get_verbosity() == optuna.logging.INFO
        assert warnings.filters == filters
    finally:
        optuna.logging.set_verbosity(optuna.logging.WARNING)


def test_proposals_do_not_depend_on_the_hash_seed():
    code = (
        "from tunelab.testing.contracts import *\nfrom tunelab.searchers.optuna import TPE\n"
        "s = SPACES['conditional']; h = make_history(s, 20, statuses=[Status.COMPLETED, Status.STOPPED])\n"
        "print([TPE().propose(n, space=s, objective=ACCURACY, history=h, seed=0) for n in range(20, 25)])"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, env={"PYTHONHASHSEED": seed}
        )
        for seed in ("1", "2")
    ]
    assert runs[0].stdout == runs[1].stdout and runs[0].stdout.startswith("[{")
