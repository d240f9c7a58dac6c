"""How often a train loop waits, and that nothing it reports in between is lost."""

from __future__ import annotations

import math

import pytest
from toys import ASHA, FIFO, experiment, fast_trainer, marks, torch_trainer

from tunelab.core.trial import Status
from tunelab.engine.ray.pace import BATCH_S, WORTH_S, Pace


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def paced(mode, interval, reports=1, until=math.inf, step=1.0):
    """The batch after so many reports, each `interval` seconds after the one before."""
    clock = Clock()
    pace = Pace(mode, "epoch", clock)
    pace.until = until
    for number in range(1, reports + 1):
        clock.now += interval
        pace.saw({"epoch": number * step})
    clock.now += 5.0  # the driver took its time: that is not the loop's
    return pace.batch()


def test_slow_reports_wait_each():
    assert paced("auto", WORTH_S * 1.5) == 1 and paced("lockstep", 1e-4) == 1


def test_fast_reports_wait_about_every_tenth_of_a_second():
    assert paced("auto", 0.001) == pytest.approx(BATCH_S / 0.001, abs=1)
    assert paced("coalesced", 0.05) == 2


@pytest.mark.parametrize(("reports", "until", "batch"), [(1, 9, 8), (4, 9, 5), (8, 9, 1), (9, 9, 1)])
def test_a_step_at_which_the_scheduler_has_something_to_say_is_waited_at(reports, until, batch):
    assert paced("auto", 1e-4, reports=reports, until=until) == batch


def test_fractional_steps_reach_the_rung_and_do_not_pass_it_by_more_than_one_report():
    assert paced("auto", 1e-4, reports=1, until=1.0, step=0.3) == 3  # 0.3, then 0.6, 0.9 and 1.2


@pytest.mark.parametrize("workers", [1, 2])
def test_every_one_of_two_thousand_fast_reports_is_kept_in_order(bench, workers):
    trainer = fast_trainer(workers, rounds=2000, checkpoint_every=500)
    done = bench.start(experiment(trainer, trials=1, scheduler=FIFO(), last_step=2000, concurrent=1))
    (trial,) = done.state.trials.values()
    assert trial.status is Status.COMPLETED, trial.attempts[-1].details
    assert [report.step for report in trial.reports] == list(range(1, 2001))
    assert [report.step for report in trial.reports if report.checkpoint] == [500, 1000, 1500, 2000]
    assert len(list((done.folder.trials / "0000").glob("checkpoint_*"))) == 1  # the latest, and the best, which it is


def test_a_fast_loop_stops_at_the_rung_on_every_rank(bench, tmp_path):
    trainer = torch_trainer(marks=str(tmp_path), epochs=40)
    done = bench.start(experiment(trainer, trials=5, scheduler=ASHA(first_rung=9, reduction=2), last_step=40))
    computed = marks(tmp_path)
    stopped = [trial for trial in done.state.trials.values() if trial.status is Status.STOPPED]
    assert stopped
    for trial in stopped:
        assert trial.last.step in (9, 18, 36)
        assert sum(line.startswith(trial.id) for line in computed) == 2 * trial.last.step


def test_lockstep_can_be_asked_for(bench):
    done = bench.start(experiment(fast_trainer(1, rounds=30), trials=1, scheduler=FIFO(), last_step=30, reports="lockstep"))
    assert len(done.state.trials[0].reports) == 30
