"""One seed, one result: bit for bit, warm or fresh, on the real digits experiment."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tunelab.engine.loading import apply_overrides, load_experiment
from tunelab.engine.sweeping import Plan, start
from tunelab.journal.home import Home
from tunelab.trackers.tracking import Tracking

FILE = Path(__file__).parents[2] / "experiments" / "digits_mlp.py"


@pytest.fixture(scope="module")
def run(cluster, tmp_path_factory):
    loaded = load_experiment(str(FILE))

    def run(**changes):
        experiment = replace(apply_overrides(loaded.experiment, trials=4, max_steps=4), **changes)
        home = Home(tmp_path_factory.mktemp("runs"))
        plan = Plan(experiment, loaded.root, home, Tracking(kind="none", name="none"), module=loaded.module)
        state = start(plan).state
        assert len(state.trials) == 4
        return [
            (
                trial.config,
                trial.seed,
                trial.curve(),
                [dict(report.metrics) for report in trial.reports],
                [(decided.step, decided.action, decided.reason) for decided in trial.decisions],
            )
            for trial in state.trials.values()
        ]

    return run


@pytest.fixture(scope="module")
def warm(run):
    return run()


def test_the_same_seed_gives_the_same_configurations_metrics_and_decisions(run, warm):
    assert run() == warm


def test_warm_and_fresh_workers_give_the_same_metrics_to_the_bit(run, warm):
    assert run(isolation="fresh") == warm


def test_another_seed_gives_something_else(run, warm):
    other = run(seed=1)
    assert [config for config, *_ in other[1:]] != [config for config, *_ in warm[1:]]
    assert other[0][0] == warm[0][0] and other[0][2] != warm[0][2]  # the baseline, trained from another seed
