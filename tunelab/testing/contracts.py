"""Contract tests that authors of searchers and schedulers inherit. They need pytest.

    class TestMine(SearcherContract):
        @pytest.fixture
        def make(self):
            return MySearcher        # called without arguments

A subclass adds only what is special about its own.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tunelab.core.experiment import Objective
from tunelab.core.protocols import Scheduler, Searcher
from tunelab.core.space import Choice, Float, Int, Space
from tunelab.core.trial import Continue, Report, Status, Stop, Trial, derive_seed
from tunelab.testing.simulate import simulate

ACCURACY = Objective("accuracy", mode="max", step="epoch", last_step=9)
LOSS = Objective("loss", mode="min", step="epoch", last_step=9)

SPACES = {
    "one": Space({"lr": Float(1e-5, 1e-1, log=True)}),
    "mixed": Space(
        {
            "lr": Float(1e-5, 1e-1, log=True),
            "width": Int(16, 256, log=True),
            "drop": Float(0.0, 0.3, step=0.05),
            "norm": Choice([True, 1]),
        }
    ),
    "finite": Space({"width": Int(1, 4), "betas": Choice([[0.9, 0.99], [0.8, 0.9]]), "tag": Choice(["a", None])}),
    "single": Space({"only": Choice(["this"])}),
    "constrained": Space(
        {"batch": Choice([8, 16, 32]), "accumulate": Int(1, 4), "lr": Float(0.0, 1.0)}, require=["batch * accumulate <= 32"]
    ),
    "conditional": Space(
        {
            "momentum": Float(0.0, 0.99, when={"optimizer": "sgd"}),  # before its parent on purpose
            "optimizer": Choice(["adam", "sgd", "lion"]),
            "nesterov": Choice([True, False], when={"optimizer": ["sgd"]}, otherwise=False),
            "warm": Int(1, 5, when={"optimizer": ["adam", "lion"]}, otherwise=0),
            "beta": Float(0.8, 0.999, when={"optimizer": "adam"}),
        },
        require=["momentum <= 0.9 or nesterov"],
    ),
}


def make_history(
    space: Space, number: int, *, statuses: Sequence[Status], value: Callable[[int], float] | None = None, seed: int = 0
) -> list[Trial]:
    """`number` trials with random configurations, statuses taken in turn, and curves of up to three reports."""
    rng = np.random.default_rng(derive_seed(seed, "history"))
    history = []
    for n in range(number):
        status = statuses[n % len(statuses)]
        trial = Trial(n, space.sample(rng), derive_seed(seed, "trial", n), status=status)
        if status not in (Status.PROPOSED, Status.INFEASIBLE):
            steps = 3 if status is Status.COMPLETED else 1 + n % 2
            trial.reports = [Report(n, 1, k + 0.5, value(n) if value else float(rng.random())) for k in range(1, steps + 1)]
        history.append(trial)
    return history


class SearcherContract:
    """What every searcher does. Override `make`; override `spaces` when yours searches only some kinds of space."""

    @pytest.fixture
    def make(self) -> Callable[[], Searcher]:
        raise NotImplementedError("return a function without arguments that makes the searcher")

    @pytest.fixture(params=SPACES)
    def space(self, request: pytest.FixtureRequest) -> Space:
        return SPACES[request.param]

    def test_is_a_frozen_description(self, make: Callable[[], Searcher]) -> None:
        searcher = make()
        assert isinstance(searcher, Searcher) and isinstance(searcher.name, str)
        assert dataclasses.is_dataclass(searcher) and searcher == make()
        assert searcher.problems() == []
        assert pickle.loads(pickle.dumps(searcher)) == searcher
        json.dumps(dataclasses.asdict(searcher))
        for field in dataclasses.fields(searcher):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(searcher, field.name, None)

    @pytest.mark.parametrize("objective", [ACCURACY, LOSS], ids=["max", "min"])
    def test_proposals_are_contained_in_the_space_and_are_plain_json(
        self, make: Callable[[], Searcher], space: Space, objective: Objective
    ) -> None:
        searcher = make()
        history: list[Trial] = []
        for n in range(25):
            config = searcher.propose(n, space=space, objective=objective, history=history, seed=3)
            if config is None:
                break
            assert space.why_not(config) == []
            assert json.loads(json.dumps(config)) == config
            assert all(type(v) in (str, int, float, bool, list, type(None)) for v in config.values())
            report = Report(n, 1, 9, (n * 7 % 10) / 10)
            history.append(Trial(n, config, n, status=Status.COMPLETED, reports=[report]))
        assert history, "nothing was proposed at all"

    def test_a_proposal_is_a_function_of_its_arguments(self, make: Callable[[], Searcher], space: Space) -> None:
        history = make_history(space, 14, statuses=[Status.COMPLETED, Status.STOPPED, Status.RUNNING])
        asked: dict[str, Any] = {"space": space, "objective": ACCURACY, "history": history, "seed": 5}
        first, other = make(), make()
        expected = [first.propose(n, **asked) for n in (14, 15, 16)]
        assert [other.propose(n, **asked) for n in (16, 15, 14)] == expected[::-1]
        assert pickle.loads(pickle.dumps(first)).propose(15, **asked) == expected[1]

    def test_a_foreign_generator_makes_no_difference(self, make: Callable[[], Searcher], space: Space) -> None:
        import random

        history = make_history(space, 12, statuses=[Status.COMPLETED])
        asked: dict[str, Any] = {"space": space, "objective": ACCURACY, "history": history, "seed": 5}
        random.seed(1), np.random.seed(1)
        a = make().propose(12, **asked)
        random.seed(2), np.random.seed(2)
        state, legacy = random.getstate(), np.random.get_state()[1].copy()  # type: ignore[index]
        assert make().propose(12, **asked) == a
        assert random.getstate() == state and (np.random.get_state()[1] == legacy).all()  # type: ignore[index]

    def test_history_is_not_changed(self, make: Callable[[], Searcher], space: Space) -> None:
        history = make_history(space, 15, statuses=list(Status))
        before = copy.deepcopy(history)
        make().propose(15, space=space, objective=ACCURACY, history=tuple(history), seed=0)
        assert history == before

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
    @pytest.mark.parametrize("objective", [ACCURACY, LOSS], ids=["max", "min"])
    def test_histories_without_a_finite_value(
        self, make: Callable[[], Searcher], space: Space, objective: Objective, value: float
    ) -> None:
        statuses = [Status.COMPLETED, Status.STOPPED, Status.FAILED, Status.RUNNING]
        history = make_history(space, 13, statuses=statuses, value=lambda _: value)
        self._contained(make(), space, objective, history)

    @pytest.mark.parametrize("status", list(Status), ids=lambda status: status.value)
    def test_histories_of_one_status(self, make: Callable[[], Searcher], space: Space, status: Status) -> None:
        history = make_history(space, 12, statuses=[status])
        self._contained(make(), space, ACCURACY, history)
        for trial in history:
            trial.reports = []
        self._contained(make(), space, ACCURACY, history)

    def test_trials_that_started_later_may_end_earlier(self, make: Callable[[], Searcher], space: Space) -> None:
        history = make_history(space, 14, statuses=[Status.RUNNING, Status.COMPLETED])
        self._contained(make(), space, ACCURACY, history)

    def test_trials_outside_a_narrowed_space_do_no_harm(self, make: Callable[[], Searcher]) -> None:
        wide, narrow = (
            Space({"w": Int(1, 100), "old": Choice(["a", "b"])}),
            Space({"w": Int(40, 60), "new": Choice(["x", "y"])}),
        )
        history = make_history(wide, 14, statuses=[Status.COMPLETED])
        self._contained(make(), narrow, ACCURACY, history)

    def test_conditions_hold_throughout_a_sweep(self, make: Callable[[], Searcher]) -> None:
        from tunelab.schedulers.fifo import FIFO

        space = SPACES["conditional"]
        trials = simulate(space, ACCURACY, make(), FIFO(), lambda c: [(9, len(c) / 10)], trials=30, seed=1, concurrent=3)
        assert len(trials) >= 20  # a grid may be used up
        for trial in trials:
            assert ("momentum" in trial.config) == (trial.config["optimizer"] == "sgd")
            assert ("beta" in trial.config) == (trial.config["optimizer"] == "adam")
            assert (trial.config["warm"] == 0) == (trial.config["optimizer"] == "sgd")

    @staticmethod
    def _contained(searcher: Searcher, space: Space, objective: Objective, history: list[Trial]) -> None:
        config = searcher.propose(len(history), space=space, objective=objective, history=history, seed=0)
        assert config is None or space.why_not(config) == []
        if space.count() is None:
            assert config is not None or getattr(searcher, "points", None), "an endless space is never used up"


class SchedulerContract:
    """What every scheduler does. Override `make`."""

    @pytest.fixture
    def make(self) -> Callable[[], Scheduler]:
        raise NotImplementedError("return a function without arguments that makes the scheduler")

    @staticmethod
    def reports(trials: int = 20, last_step: int = 9, seed: int = 0) -> list[Report]:
        """Interleaved curves, some with NaN, some steps reported twice as after a restart."""
        rng = np.random.default_rng(seed)
        due = dict.fromkeys(range(trials), 1)
        told = []
        while due:
            t = int(rng.choice(list(due)))
            value = math.nan if rng.random() < 0.05 else float(rng.random())
            told.append(Report(t, 1, due[t], value))
            due[t] += 0 if rng.random() < 0.1 else 1
            if due[t] > last_step:
                del due[t]
        return told

    def test_is_a_frozen_description(self, make: Callable[[], Scheduler]) -> None:
        scheduler = make()
        assert isinstance(scheduler, Scheduler) and isinstance(scheduler.name, str)
        assert dataclasses.is_dataclass(scheduler) and scheduler == make()
        assert scheduler.problems() == []
        assert pickle.loads(pickle.dumps(scheduler)) == scheduler
        json.dumps(dataclasses.asdict(scheduler))
        for field in dataclasses.fields(scheduler):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(scheduler, field.name, None)

    @pytest.mark.parametrize("last_step", [9, None])
    @pytest.mark.parametrize("objective", [ACCURACY, LOSS], ids=["max", "min"])
    def test_a_replay_decides_the_same(
        self, make: Callable[[], Scheduler], objective: Objective, last_step: float | None
    ) -> None:
        judge, replayed = make().judge(objective, last_step), make().judge(objective, last_step)
        told = self.reports()
        assert [judge.decide(r) for r in told] == [replayed.decide(r) for r in told]
        assert judge.rungs() == replayed.rungs() or repr(judge.rungs()) == repr(replayed.rungs())  # NaN is not equal to itself

    def test_two_judges_know_nothing_of_each_other(self, make: Callable[[], Scheduler]) -> None:
        scheduler, told = make(), self.reports()
        alone = [make().judge(ACCURACY, 9).decide(told[0])]
        busy = scheduler.judge(ACCURACY, 9)
        for report in self.reports(seed=7):
            busy.decide(report)
        assert [scheduler.judge(ACCURACY, 9).decide(told[0])] == alone

    def test_every_report_is_answered_for_the_trial_that_reported(self, make: Callable[[], Scheduler]) -> None:
        judge = make().judge(ACCURACY, 9)
        for report in self.reports():
            own = [d for d in judge.decide(report) if d.trial == report.trial]
            assert len(own) == 1 and isinstance(own[0], (Continue, Stop))
            if isinstance(own[0], Stop):
                assert own[0].reason, "a stop says why"
            elif own[0].until is not None:
                assert own[0].until > report.step

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf], ids=str)
    @pytest.mark.parametrize("objective", [ACCURACY, LOSS], ids=["max", "min"])
    def test_a_value_that_is_not_finite_never_costs_a_finite_one_its_place(
        self, make: Callable[[], Scheduler], objective: Objective, bad: float
    ) -> None:
        """The best finite trial among diverged ones goes on at every step, whenever it reports."""
        for place in range(8):
            judge = make().judge(objective, 9)
            for step in range(1, 9):
                for t in range(8):
                    answer = [d for d in judge.decide(Report(t, 1, step, 0.5 if t == place else bad)) if d.trial == place]
                    assert not any(isinstance(d, Stop) for d in answer)

    def test_rungs_are_a_copy(self, make: Callable[[], Scheduler]) -> None:
        judge = make().judge(ACCURACY, 9)
        for report in self.reports():
            judge.decide(report)
        before = repr(judge.rungs())
        for values in judge.rungs().values():
            values.clear()
        judge.rungs().clear()
        assert repr(judge.rungs()) == before
        assert all(isinstance(step, (int, float)) for step in judge.rungs())

    def test_a_simulated_sweep_ends(self, make: Callable[[], Scheduler]) -> None:
        from tunelab.searchers.random import Random

        def curve(config: dict[str, Any]) -> list[tuple[float, float]]:
            return [(step, config["x"] * step) for step in range(1, 10)]

        space = Space({"x": Float(0.0, 1.0)})
        trials = simulate(space, ACCURACY, Random(), make(), curve, trials=20, seed=0, concurrent=4)
        assert len(trials) == 20 and all(trial.status in (Status.COMPLETED, Status.STOPPED) for trial in trials)
        assert any(trial.status is Status.COMPLETED for trial in trials)
