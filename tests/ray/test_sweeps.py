"""What a sweep does on a real cluster of two CPUs, which fits exactly one trial of two workers."""

from __future__ import annotations

import pytest
from ray.train.torch import TorchTrainer
from toys import FIFO, climb, experiment, marks, torch_trainer

from tunelab import Infeasible
from tunelab.core.trial import Status
from tunelab.errors import ResourcesError


def test_a_cluster_that_fits_one_trial_finishes_all_of_them(bench):
    done = bench.start(experiment(trials=8))
    statuses = [trial.status for trial in done.state.trials.values()]
    assert done.outcome == "finished" and len(statuses) == 8
    assert set(statuses) == {Status.COMPLETED, Status.STOPPED}


def test_a_stopped_trial_computes_nothing_after_the_report_on_any_rank(bench, tmp_path):
    done = bench.start(experiment(torch_trainer(marks=str(tmp_path)), trials=6))
    computed = marks(tmp_path)
    stopped = [trial for trial in done.state.trials.values() if trial.status is Status.STOPPED]
    assert stopped, "no trial was stopped: the test shows nothing"
    for trial in done.state.trials.values():
        epochs = range(1, int(trial.last.step) + 1)
        expected = sorted(f"{trial.id} rank{rank} epoch{epoch}" for rank in (0, 1) for epoch in epochs)
        assert [line for line in computed if line.startswith(trial.id)] == expected


def test_warm_trials_share_their_processes_and_fresh_ones_do_not(bench, tmp_path):
    pids = {}
    for isolation in ("warm", "fresh"):
        folder = tmp_path / isolation
        folder.mkdir()
        bench.start(experiment(torch_trainer(marks=str(folder), epochs=1), trials=3, isolation=isolation))
        pids[isolation] = len(list(folder.glob("*.txt")))
    assert pids == {"warm": 2, "fresh": 6}


def test_a_killed_worker_costs_nothing_but_the_steps_after_the_checkpoint(bench, tmp_path):
    done = bench.start(experiment(torch_trainer(marks=str(tmp_path), kill=3), trials=1, scheduler=FIFO()))
    (trial,) = done.state.trials.values()
    assert trial.status is Status.COMPLETED
    assert [attempt.failure for attempt in trial.attempts] == ["lost", None]
    assert trial.attempts[1].from_step == 2
    assert [report.step for report in trial.reports] == [1, 2, 3, 4, 5, 6]
    assert sum(line == "0000 rank0 epoch2" for line in marks(tmp_path)) == 1


def test_an_exception_is_retried_as_often_as_the_user_says_and_its_traceback_kept(bench):
    done = bench.start(experiment(torch_trainer(failures=1, raise_at=2), trials=1))
    (trial,) = done.state.trials.values()
    assert trial.status is Status.FAILED and len(trial.attempts) == 2
    assert trial.attempts[0].message == "RuntimeError: no luck at epoch 2"
    assert "toys.py" in trial.attempts[0].details
    assert trial.reason == "user error: RuntimeError: no luck at epoch 2"


def test_the_same_error_in_the_first_three_trials_ends_the_sweep(bench):
    done = bench.start(experiment(torch_trainer(raise_at=1), trials=8))
    assert done.outcome == "aborted" and len(done.state.trials) == 3
    assert "the first 3 trials failed with the same error: RuntimeError: no luck at epoch 1" in done.reason


def test_nan_ends_the_trial_and_is_never_best(bench):
    done = bench.start(experiment(torch_trainer(nan_at=2), trials=2, scheduler=FIFO()))
    trial = done.state.trials[1]
    assert trial.status is Status.FAILED and trial.reason == "diverged: score is NaN at epoch 2"


def test_an_infeasible_configuration_does_not_use_up_the_budget(bench):
    done = bench.start(experiment(torch_trainer(infeasible=["0000"], epochs=1), trials=2))
    assert [trial.status for trial in done.state.trials.values()] == [
        Status.INFEASIBLE, Status.COMPLETED, Status.COMPLETED,
    ]  # fmt: skip


def test_a_loop_that_ignores_its_checkpoint_is_told(bench):
    done = bench.start(experiment(torch_trainer(kill=3, forgets=True), trials=1, scheduler=FIFO()))
    (trial,) = done.state.trials.values()
    assert trial.status is Status.FAILED
    assert "was given epoch 2's checkpoint and reported epoch 1" in trial.reason and "get_checkpoint" in trial.reason


def test_an_objective_that_is_never_reported_ends_the_sweep_and_names_the_keys(bench):
    done = bench.start(experiment(torch_trainer(misnamed=True), trials=8))
    assert done.outcome == "aborted" and len(done.state.trials) == 1
    assert "without reporting 'score'. It reported accuracy, epoch" in done.reason


def test_more_workers_than_the_cluster_has_are_refused_before_anything_is_written(bench):
    with pytest.raises(ResourcesError, match="3 workers with 1 CPU each: that is 3 CPU where the cluster has 2"):
        bench.start(experiment(torch_trainer(workers=3)))
    assert not bench.home.path.exists()


def test_a_plain_function_that_reports_runs_in_the_trial_actor(bench):
    done = bench.start(experiment(climb_six, trials=3, scheduler=FIFO()))
    trials = list(done.state.trials.values())
    assert [trial.status for trial in trials] == [Status.COMPLETED] * 3
    assert all([report.step for report in trial.reports] == [1, 2, 3, 4, 5, 6] for trial in trials)
    for trial in trials:  # one best and one latest, which are the same here
        assert len(list((done.folder.trials / trial.id).glob("checkpoint_*"))) == 1


def test_a_function_of_the_configuration_may_return_the_trainer(bench):
    done = bench.start(experiment(trainer_for, trials=3, scheduler=FIFO()))
    assert [trial.status for trial in done.state.trials.values()] == [Status.COMPLETED] * 3


def test_a_function_that_turns_out_to_return_a_trainer_is_told_how_to_say_so(bench):
    done = bench.start(experiment(lambda config: trainer_for(config), trials=1))
    assert "returned a TorchTrainer and was taken for a train loop. Annotate it" in done.state.trials[0].reason


def test_a_trainer_function_that_raises_ends_its_trial_and_not_the_sweep(bench):
    done = bench.start(experiment(trainer_for_some, trials=3, scheduler=FIFO()))
    statuses = [trial.status for trial in done.state.trials.values()]
    assert done.outcome == "finished" and Status.COMPLETED in statuses
    infeasible = [trial for trial in done.state.trials.values() if trial.status is Status.INFEASIBLE]
    assert infeasible and infeasible[0].reason == "infeasible: x is too small"


def test_a_stopped_loop_may_take_its_time_to_clean_up(bench, tmp_path):
    done = bench.start(experiment(torch_trainer(workers=1, marks=str(tmp_path), lingers=7.0), trials=3))
    assert done.outcome == "finished"
    assert all(trial.attempt == 1 for trial in done.state.trials.values()), "a trial paid for its predecessor's clean-up"
    assert Status.STOPPED in {trial.status for trial in done.state.trials.values()}, [
        t.reason for t in done.state.trials.values()
    ]


def climb_six(config):
    climb({**config, "epochs": 6})


def trainer_for(config) -> TorchTrainer:
    return torch_trainer(workers=1 if config["x"] < 0.5 else 2, x=config["x"], epochs=2)


def trainer_for_some(config) -> TorchTrainer:
    if config["x"] < 0.36:
        raise Infeasible("x is too small")
    return torch_trainer(workers=1, epochs=1)
