"""The digits experiment from the shell: killed in the middle, resumed, and compared with the unbroken sweep."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tunelab.core.trial import Status
from tunelab.journal import read_events, replay
from tunelab.journal.home import SweepFolder

ROOT = Path(__file__).parents[2]
TRIALS, EPOCHS = 8, 9


def tunelab(*arguments, **options):
    """A tunelab process; `communicate` it."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-m", "tunelab", *map(str, arguments)],
        cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def address(cluster):
    import ray

    return ray.get_runtime_context().gcs_address


def sweep(home, address, *more):
    flags = ["--trials", TRIALS, "--max-steps", EPOCHS, "--home", home, "--address", address]
    return tunelab("sweep", "experiments/digits_mlp.py", *flags, *more)


def kill_after(process, folder, events):
    """SIGKILL the driver once its journal holds so many events."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if folder.journal.is_file() and sum(1 for _ in read_events(folder.journal)) >= events:
            break
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.kill()
    process.communicate()


def outcome(folder):
    """What must not depend on whether a sweep was killed."""
    state = replay(read_events(folder.journal))
    return {
        trial.id: {
            "config": trial.config,
            "seed": trial.seed,
            "status": trial.status.value,
            "reason": trial.reason,
            "curve": trial.curve(),
            "decisions": [(decided.step, decided.action, decided.reason) for decided in trial.decisions],
        }
        for trial in state.trials.values()
    }


def mlflow_runs(home):
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{home / 'mlflow.sqlite'}")
    (experiment,) = [found for found in client.search_experiments() if found.name == "digits-mlp"]
    return client, client.search_runs([experiment.experiment_id], max_results=1000)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory, address):
    home = tmp_path_factory.mktemp("unbroken")
    process = sweep(home, address)
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    assert stdout.startswith("best digits-mlp.1/")
    return SweepFolder(home / "digits-mlp.1")


@pytest.fixture(scope="module")
def resumed(tmp_path_factory, address):
    """Killed three times: in the first trial, in the middle, and once more. Each time resumed."""
    home = tmp_path_factory.mktemp("resumed")
    folder = SweepFolder(home / "digits-mlp.1")
    kill_after(sweep(home, address), folder, 8)
    for events in (30, 60):
        kill_after(tunelab("resume", "digits-mlp", "--home", home, "--address", address), folder, events)
    process = tunelab("resume", "digits-mlp", "--home", home, "--address", address)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    assert "ended stay" in stderr
    return folder


def test_a_killed_and_resumed_sweep_equals_the_unbroken_one(unbroken, resumed):
    assert len(outcome(unbroken)) == TRIALS
    assert outcome(resumed) == outcome(unbroken)


def test_no_trial_that_had_ended_ran_again_and_at_most_one_interval_was_recomputed(resumed):
    events = list(read_events(resumed.journal))
    kinds = Counter((event.kind, event.trial) for event in events)
    assert all(kinds["finished", number] == 1 for number in range(TRIALS))
    assert Counter(event.kind for event in events)["session_started"] == 4
    ended = set()
    for event in events:
        assert event.trial not in ended or event.kind == "checkpoint_deleted"
        if event.kind == "finished":
            ended.add(event.trial)
    repeated = Counter((event.trial, event.data["step"]) for event in events if event.kind == "reported")
    assert sum(count - 1 for count in repeated.values()) <= 3


def test_mlflow_holds_each_trial_once_with_each_step_once_and_none_running(resumed):
    client, runs = mlflow_runs(resumed.path.parent)
    assert {run.info.status for run in runs} == {"FINISHED"}
    names = Counter(run.info.run_name for run in runs)
    assert names == Counter(["digits-mlp.1", *(f"digits-mlp.1/{number:04d}" for number in range(TRIALS))])
    state = replay(read_events(resumed.journal))
    for run in runs:
        if "/" not in run.info.run_name:
            continue
        trial = state.trials[int(run.info.run_name.rpartition("/")[2])]
        history = client.get_metric_history(run.info.run_id, "accuracy")
        assert [(point.step, point.value) for point in history] == trial.curve()


def test_compare_best_and_mlflow_agree_on_the_best_trial(resumed):
    home = resumed.path.parent
    best = json.loads(tunelab("best", "digits-mlp", "--home", home, "--json").communicate()[0])
    top = json.loads(tunelab("compare", "digits-mlp", "--top", 1, "--home", home, "--json").communicate()[0])
    row = top["trials"][0]
    _, runs = mlflow_runs(home)
    parent = next(run for run in runs if run.info.run_name == "digits-mlp.1")
    child = next(run for run in runs if run.info.run_name == best["trial"])
    assert row["trial"] == best["trial"].rpartition("/")[2] and row["value"] == best["value"]
    assert child.data.metrics["best.accuracy"] == parent.data.metrics["best.accuracy"] == best["value"]
    assert Path(best["checkpoint"]).is_dir()


def test_retention_keeps_the_best_and_the_latest_checkpoint_of_each_trial(resumed):
    state = replay(read_events(resumed.journal))
    for trial in state.trials.values():
        found = {f"{trial.id}/{path.name}" for path in (resumed.trials / trial.id).glob("checkpoint_*")}
        assert found == {report.checkpoint for report in trial.kept()}
        assert 1 <= len(found) <= 2


def test_an_unfinished_sweep_is_not_started_over_without_being_asked(tmp_path, address):
    folder = SweepFolder(tmp_path / "digits-mlp.1")
    kill_after(sweep(tmp_path, address), folder, 8)
    process = tunelab("sweep", "experiments/digits_mlp.py", "--home", tmp_path, stdin=subprocess.DEVNULL)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "digits-mlp.1 of this experiment is unfinished (0 of 8)" in stderr
    assert "--resume" in stderr and "--new" in stderr


def test_a_second_driver_is_refused(tmp_path, address):
    folder = SweepFolder(tmp_path / "digits-mlp.1")
    first = sweep(tmp_path, address)
    while not folder.journal.is_file():
        assert first.poll() is None, first.communicate()
        time.sleep(0.05)
    second = tunelab("resume", "digits-mlp.1", "--home", tmp_path, "--address", address)
    _, stderr = second.communicate(timeout=60)
    assert second.returncode == 2 and "is being run by another driver" in stderr
    first.send_signal(signal.SIGINT)
    _, stderr = first.communicate(timeout=60)
    assert first.returncode == 130, stderr
    state = replay(read_events(folder.journal))
    assert state.sessions[-1].outcome == "interrupted"
    assert all(trial.status in (Status.INTERRUPTED, Status.COMPLETED, Status.STOPPED) for trial in state.trials.values())
