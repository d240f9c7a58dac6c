"""The sweep's loop, driven by hand: what is journalled, in which order, and what a resumed conductor does."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tunelab import ASHA, FIFO, Budget, Experiment, Float, Grid, Int, Objective, Random, Retention
from tunelab.core.failures import Failure
from tunelab.core.trial import Continue, Status, Stop
from tunelab.engine.conductor import Conductor
from tunelab.journal import Journal, events

BUDGET = {"trials": 4, "time_s": None, "concurrent": None}


def experiment(**parts):
    defaults = {
        "name": "toy",
        "trainer": print,
        "space": {"x": Float(0.0, 1.0)},
        "objective": Objective("score", step="epoch", last_step=4),
        "searcher": Random(),
        "scheduler": FIFO(),
        "budget": Budget(trials=4),
    }
    return Experiment(**{**defaults, **parts})


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class Rig:
    """A conductor on a journal of its own. `again()` gives the next one on the same journal, as a resume does."""

    def __init__(self, path, made=None, max_failures=0, clock=None):
        self.path, self.experiment, self.max_failures = path, made or experiment(), max_failures
        self.clock, self.deleted, self.said = clock or Clock(), [], []
        if not path.exists():
            Journal.create(
                path, events.sweep_created(sweep="toy.1", experiment={"objective": {"mode": "max"}}, facts={})
            ).close()
        self.journal = Journal(path, self.clock)
        self.conductor = Conductor(
            self.experiment, self.journal, budget=self.experiment.budget, max_failures=max_failures,
            delete=self.deleted.append, say=self.said.append, clock=self.clock,
        )  # fmt: skip
        self.conductor.begin(events.session_started(pid=1, host="here", resources={}, budget=BUDGET, tracking=None))

    def again(self):
        self.journal.close()
        return Rig(self.path, self.experiment, self.max_failures, self.clock)

    def report(self, number, epoch, score, checkpoint=True):
        name = f"{number:04d}/checkpoint_{self.conductor.state.trials[number].attempt}_{epoch}" if checkpoint else None
        return self.conductor.reported(number, {"epoch": epoch, "score": score}, name)

    def trial(self, number=0):
        return self.conductor.state.trials[number]

    def kinds(self):
        return [(event.kind, event.trial) for event in self.journal.events() if event.trial is not None]


@pytest.fixture
def rig(tmp_path):
    return Rig(tmp_path / "journal.sqlite")


def run_all(rig, curve):
    """One trial at a time, up to the end. Returns the decisions that stopped a trial."""
    while (launch := rig.conductor.next_launch()) is not None:
        start = int(launch.from_step or 0)
        for epoch in range(start + 1, 5):
            if not rig.report(launch.trial, epoch, curve(launch.config["x"], epoch)):
                break
        else:
            rig.conductor.completed(launch.trial)
    return rig.conductor.end()


def outcome(rig):
    state = rig.conductor.state
    return [(t.config, t.seed, t.status, t.reason, t.curve(), [d.reason for d in t.decisions]) for t in state.trials.values()]


def test_everything_is_journalled_before_it_is_handed_out(rig):
    launch = rig.conductor.next_launch()
    assert rig.kinds() == [("proposed", 0), ("started", 0)]
    assert launch.attempt == 1 and launch.checkpoint is None and launch.config == rig.trial().config
    assert rig.report(0, 1, 0.5)
    assert rig.kinds()[-1] == ("reported", 0)


@pytest.mark.parametrize("cut", range(1, 60))
def test_a_sweep_cut_at_any_event_and_resumed_equals_the_unbroken_one(tmp_path, cut):
    made = experiment(scheduler=ASHA(first_rung=1, reduction=2), budget=Budget(trials=6))
    unbroken = Rig(tmp_path / "unbroken.sqlite", made)
    run_all(unbroken, lambda x, epoch: x * epoch)
    assert {trial.status for trial in unbroken.conductor.state.trials.values()} == {Status.COMPLETED, Status.STOPPED}

    class Killed(Exception):
        pass

    broken = Rig(tmp_path / "broken.sqlite", made)
    append = broken.journal.append
    left = iter(range(cut))

    def append_or_die(event):
        if next(left, None) is None:
            raise Killed
        return append(event)

    broken.journal.append = append_or_die
    try:
        run_all(broken, lambda x, epoch: x * epoch)
    except Killed:
        broken = broken.again()
        run_all(broken, lambda x, epoch: x * epoch)
    assert outcome(broken) == outcome(unbroken)


def test_a_stop_that_was_decided_but_not_journalled_is_carried_out_on_resume(tmp_path):
    made = experiment(scheduler=ASHA(first_rung=1, reduction=2))
    rig = Rig(tmp_path / "journal.sqlite", made)
    rig.conductor.next_launch()
    assert rig.report(0, 1, 1.0)
    rig.conductor.next_launch()
    append = rig.journal.append
    rig.journal.append = lambda event: append(event) if event.kind == "reported" else (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        rig.report(1, 1, 0.5)
    resumed = rig.again()
    assert resumed.trial(1).status is Status.STOPPED
    assert "2nd of 2 at rung 1" in resumed.trial(1).reason


def test_a_restart_goes_on_from_the_latest_kept_checkpoint(rig):
    rig.conductor.next_launch()
    rig.report(0, 1, 0.9)
    rig.report(0, 2, 0.1)
    rig.report(0, 3, 0.2, checkpoint=False)
    rig.conductor.failed(0, Failure.LOST, "a worker process died")
    assert rig.trial().status is Status.RETRYING
    launch = rig.conductor.next_launch()
    assert (launch.trial, launch.attempt, launch.from_step) == (0, 2, 2)
    rig.report(0, 3, 0.3)
    assert [report.step for report in rig.trial().reports] == [1, 2, 3] and rig.trial().last.value == 0.3


def test_a_lost_worker_is_retried_beside_max_failures_and_not_for_ever(rig):
    for attempt in range(1, 7):
        assert rig.conductor.next_launch().attempt == attempt
        rig.conductor.failed(0, Failure.LOST, "a worker process died")
    assert rig.trial().status is Status.FAILED and rig.trial().reason == "lost: a worker process died"


@pytest.mark.parametrize("allowed", [0, 2])
def test_exceptions_are_retried_as_often_as_the_user_says(tmp_path, allowed):
    rig = Rig(tmp_path / "journal.sqlite", max_failures=allowed)
    for _ in range(allowed + 1):
        rig.conductor.next_launch()
        rig.conductor.failed(0, Failure.USER_ERROR, "ValueError: no")
    assert rig.trial().status is Status.FAILED and rig.trial().attempt == allowed + 1


@pytest.mark.parametrize(
    ("metrics", "told"),
    [
        ({"score": math.nan}, "score is NaN"),
        ({"score": math.inf}, "the objective is inf"),
        ({"score": 0.1, "loss": math.nan}, "loss is NaN"),
    ],
)
def test_a_diverged_trial_ends_and_the_next_one_goes_on(rig, metrics, told):
    rig.conductor.next_launch()
    assert not rig.conductor.reported(0, {"epoch": 1, **metrics}, None)
    assert rig.trial().status is Status.FAILED and rig.trial().reason == f"diverged: {told} at epoch 1"
    assert rig.conductor.next_launch().trial == 1


def test_an_infeasible_trial_is_replaced(rig):
    for number in range(5):
        assert rig.conductor.next_launch().trial == number
        if number == 0:
            rig.conductor.failed(0, Failure.INFEASIBLE, "too wide")
    assert rig.trial().status is Status.INFEASIBLE
    assert rig.conductor.next_launch() is None and rig.conductor.exhausted


def test_reports_without_the_objective_are_told_once_and_named_at_the_end(rig):
    rig.conductor.next_launch()
    assert rig.conductor.reported(0, {"epoch": 1, "loss": 3.0}, None)
    assert rig.conductor.reported(0, {"epoch": 2, "acc": 0.5}, None)
    assert rig.said == ["0000 reported epoch, loss without score: such reports are not recorded"]
    rig.conductor.completed(0)
    assert rig.trial().reason == ("no report: the train loop returned without reporting 'score'. It reported acc, epoch, loss")
    assert rig.conductor.end() == "aborted"


@pytest.mark.parametrize(
    ("reports", "told"),
    [
        ([{"epoch": 1, "scoer": 3.0}], "reporting 'score'. Did you mean 'scoer'? It reported epoch, scoer"),
        ([{"Epoch": 1, "loss": 3.0}], "reporting 'score' and 'epoch'. Did you mean 'Epoch'? It reported Epoch, loss"),
        ([{"epoch": 1}, {"score": 1.0}], "a report with a value of 'score' and 'epoch'. It reported epoch, score"),
        ([], "reporting 'score' and 'epoch'. It reported nothing"),
    ],
)
def test_only_what_is_missing_is_named(rig, reports, told):
    rig.conductor.next_launch()
    for metrics in reports:
        rig.conductor.reported(0, metrics, None)
    rig.conductor.completed(0)
    assert rig.trial().reason == f"no report: the train loop returned without {told}"


def test_the_baseline_is_first_and_never_stopped(tmp_path):
    made = experiment(scheduler=ASHA(first_rung=1, reduction=2), baseline={"x": 0.0})
    rig = Rig(tmp_path / "journal.sqlite", made)
    assert rig.conductor.next_launch().config == {"x": 0.0}
    rig.conductor.next_launch()
    assert rig.report(1, 1, 0.9)
    assert rig.report(0, 1, 0.0), "the baseline was stopped"
    assert rig.trial().decisions[-1].reason.endswith("(the baseline is never stopped)")


def test_a_time_budget_counts_all_sessions_and_not_the_time_between_them(tmp_path):
    made = experiment(budget=Budget(trials=4, time_s=100.0))
    rig = Rig(tmp_path / "journal.sqlite", made)
    rig.conductor.next_launch()
    rig.clock.now += 60
    assert rig.report(0, 1, 0.1)
    rig.clock.now += 10_000  # killed, and nobody looked for hours
    resumed = rig.again()
    resumed.conductor.next_launch()
    resumed.clock.now += 39
    assert resumed.report(0, 2, 0.1)
    resumed.clock.now += 2
    assert not resumed.report(0, 3, 0.1)
    assert resumed.conductor.end() == "out of time" and resumed.trial().status is Status.INTERRUPTED


def test_a_grid_that_is_used_up_ends_the_sweep_before_the_budget_does(tmp_path):
    made = experiment(space={"x": Int(1, 2)}, searcher=Grid())
    rig = Rig(tmp_path / "journal.sqlite", made)
    for number in range(2):
        rig.conductor.next_launch()
        rig.report(number, 4, 1.0)
        rig.conductor.completed(number)
    assert rig.conductor.next_launch() is None and rig.conductor.exhausted
    rig.conductor.end()
    assert rig.conductor.state.sessions[-1].reason == "the searcher has nothing left to propose"


def test_without_a_declared_step_the_reports_are_counted_also_after_a_restart(tmp_path):
    made = experiment(objective=Objective("score"))
    rig = Rig(tmp_path / "journal.sqlite", made)
    rig.conductor.next_launch()
    for number in range(2):
        rig.conductor.reported(0, {"score": 1.0}, f"0000/c{number}")
    rig.conductor.failed(0, Failure.LOST, "gone")
    assert rig.conductor.next_launch().from_step == 2
    rig.conductor.reported(0, {"score": 1.0}, "0000/c2")
    assert [report.step for report in rig.trial().reports] == [1, 2, 3]


def test_checkpoints_are_journalled_as_deleted_before_they_are(rig):
    rig.conductor.next_launch()
    for epoch, score in enumerate([0.5, 0.9, 0.1, 0.2], 1):
        rig.report(0, epoch, score)
    assert rig.deleted == ["0000/checkpoint_1_1", "0000/checkpoint_1_3"]
    assert [report.step for report in rig.trial().kept()] == [2, 4]


def test_trial_seeds_may_be_the_same_for_all(tmp_path):
    made = experiment(trial_seeds="same", seed=7)
    rig = Rig(tmp_path / "journal.sqlite", made)
    assert [rig.conductor.next_launch().seed for _ in range(3)] == [7, 7, 7]
    derived = Rig(tmp_path / "derived.sqlite", replace(made, trial_seeds="derived"))
    assert len({derived.conductor.next_launch().seed for _ in range(3)}) == 3


def test_a_step_that_goes_back_ends_the_trial_and_keeps_what_it_reported(rig):
    rig.conductor.next_launch()
    for epoch in (1, 2, 3):
        assert rig.report(0, epoch, 0.1 * epoch)
    assert not rig.report(0, 1, 0.9)
    assert rig.trial().reason == "bad report: epoch 1 was reported after epoch 3: it has to increase"
    assert [report.step for report in rig.trial().reports] == [1, 2, 3] and rig.trial().kept()


@pytest.mark.parametrize(
    "metrics",
    [
        {"epoch": 1, "score": "high"},
        {"epoch": "one", "score": 1.0},
        {"epoch": math.nan, "score": 1.0},
        {"epoch": math.inf, "score": 1.0},
    ],
)
def test_an_objective_or_step_that_is_no_number_ends_that_trial_alone(rig, metrics):
    rig.conductor.next_launch()
    assert not rig.conductor.reported(0, metrics, None)
    assert rig.trial().reason.startswith("bad report: ") and "the objective is a number" in rig.trial().reason
    assert rig.conductor.next_launch().trial == 1


@pytest.mark.parametrize(
    ("end", "status"),
    [
        (lambda c: c.failed(0, Failure.INFEASIBLE, "too wide"), Status.INFEASIBLE),
        (lambda c: c.failed(0, Failure.USER_ERROR, "ValueError"), Status.FAILED),
        (lambda c: c.completed(0), Status.COMPLETED),
    ],
)
def test_a_trial_whose_end_was_journalled_only_in_part_does_not_run_again(rig, end, status):
    rig.conductor.next_launch()
    rig.report(0, 1, 0.5, checkpoint=False)
    append = rig.journal.append

    def die_at_finished(event):
        if event.kind == "finished":
            raise KeyboardInterrupt
        return append(event)

    rig.journal.append = die_at_finished
    with pytest.raises(KeyboardInterrupt):
        end(rig.conductor)
    resumed = rig.again()
    assert resumed.trial().status is status
    assert resumed.conductor.next_launch().trial == 1


def test_the_best_of_a_finished_trial_outlives_a_better_one_that_diverges(tmp_path):
    rig = Rig(tmp_path / "journal.sqlite", experiment(retention=Retention(best_of_trial=0, latest_of_trial=0)))
    for _ in range(2):
        rig.conductor.next_launch()
    rig.report(0, 4, 0.5)
    rig.conductor.completed(0)
    rig.report(1, 1, 0.9)
    rig.report(1, 2, math.nan)
    assert rig.trial(1).status is Status.FAILED and not rig.trial(1).kept()
    assert rig.trial(0).kept()


class StopsOthers:
    """A scheduler that stops trial 0 when trial 1 reports."""

    name = "others"

    def judge(self, objective, last_step):
        return self

    def decide(self, report):
        return [Continue(report.trial)] + ([Stop(0, "trial 1 is better")] if report.trial == 1 else [])

    def rungs(self):
        return {}


@pytest.mark.parametrize("tell", [lambda rig: rig.report(0, 2, 0.1), lambda rig: rig.conductor.heartbeat(0)])
def test_a_stop_of_another_trial_reaches_it_at_its_next_word(tmp_path, tell):
    rig = Rig(tmp_path / "journal.sqlite", experiment(scheduler=StopsOthers()))
    for number in range(2):
        rig.conductor.next_launch()
        rig.report(number, 1, 0.1)
    assert not tell(rig)
    assert rig.trial().status is Status.STOPPED and rig.trial().decisions[-1].reason == "trial 1 is better"


def test_the_same_failure_of_any_kind_in_the_first_three_trials_ends_the_sweep(rig):
    for number in range(3):
        for _ in range(6):
            rig.conductor.next_launch()
            rig.conductor.failed(number, Failure.LOST, "a worker process died")
    assert rig.conductor.stopping and rig.conductor.end() == "aborted"


def test_a_sweep_whose_trials_have_all_ended_is_finished_whatever_was_asked_for_meanwhile(tmp_path):
    rig = Rig(tmp_path / "journal.sqlite", experiment(budget=Budget(trials=1)))
    rig.conductor.next_launch()
    rig.report(0, 4, 1.0)
    rig.conductor.completed(0)
    rig.conductor.stop("interrupted", "Ctrl-C")
    assert rig.conductor.end() == "finished"
