"""`extend`, `retry`, `stop`, `rerun`, `gc` and `resume --amend` on real sweeps, from the shell and in Python."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import toys

import tunelab
from tunelab.core.trial import Status
from tunelab.engine.stopping import Request, ask
from tunelab.journal import read_events
from tunelab.journal.home import SweepFolder

ROOT, HERE = Path(__file__).parents[2], Path(__file__).parent

FILE = """
from toys import ASHA, experiment as toy, torch_trainer

experiment = toy(torch_trainer(workers=1, sleep={sleep}), name="climb", trials={trials}, seed={seed}, concurrent=1)
"""


@pytest.fixture(scope="module")
def address(cluster):
    import ray

    return ray.get_runtime_context().gcs_address


def write(project, *, sleep=0.0, trials=3, seed=0):
    """The experiment's file, in a folder of its own."""
    (project / "pyproject.toml").write_text('[tool.tunelab]\ntracking = "none"\n')
    shutil.copy(HERE / "toys.py", project)
    (project / "climb.py").write_text(FILE.format(sleep=sleep, trials=trials, seed=seed))


def shell(project, *arguments, status=0):
    """Run a verb to its end and return what it said on both streams."""
    process = started(project, *arguments)
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == status, stdout + stderr
    return stdout, stderr


def environment():
    """The token that the cluster's start put there included."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def started(project, *arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "tunelab", *map(str, arguments)],
        cwd=project, env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def wait_for(process, folder, kind, count=1):
    """Until the journal holds so many events of a kind."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if folder.journal.is_file() and sum(event.kind == kind for event in read_events(folder.journal)) >= count:
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    raise AssertionError(f"no {kind} within two minutes")


def what_is_decided(state):
    return [(t.config, t.seed, t.status, t.curve(), [d.reason for d in t.decisions]) for t in state.trials.values()]


# ---- in Python -----------------------------------------------------------------------------------------------------------


def sweep(tmp_path, trainer=None, **parts):
    made = toys.experiment(trainer or toys.torch_trainer(workers=1), concurrent=1, **parts)
    return tunelab.sweep(made, home=tmp_path / "runs", tracking="none", root=HERE, new=True)


def test_an_extended_sweep_equals_one_that_had_the_larger_budget_from_the_start(tmp_path):
    large = sweep(tmp_path / "large", trials=4)
    small = sweep(tmp_path / "small", trials=2)
    before = what_is_decided(small.state)
    small.extend(trials="+2", root=HERE)
    assert what_is_decided(small.state)[:2] == before
    assert what_is_decided(small.state) == what_is_decided(large.state)
    assert small.state.budget["trials"] == 4 and len(small.state.sessions) == 2
    small.extend(trials="+2", root=HERE)
    assert len(small.state.trials) == 6


def test_failed_trials_are_tried_again_from_their_checkpoints(tmp_path):
    trainer = toys.torch_trainer(workers=1, raise_at=3, raises=1)
    failed = sweep(tmp_path, trainer, trials=2, scheduler=tunelab.FIFO())
    before = failed.state
    assert [trial.status for trial in before.trials.values()] == [Status.FAILED] * 2
    failed.retry(root=HERE)
    after = failed.state
    for number, trial in after.trials.items():
        assert trial.status is Status.COMPLETED and trial.attempts[1].from_step == 2
        assert (trial.config, trial.seed) == (before.trials[number].config, before.trials[number].seed)
        assert [step for step, _ in trial.curve()] == [1, 2, 3, 4, 5, 6]
    assert "reopened" in "\n".join(failed.why(0))


def test_a_rerun_of_a_stopped_trial_runs_on_and_is_compared_with_what_there_is(tmp_path):
    found = sweep(tmp_path, trials=4)
    stopped = next(trial for trial in found.state.trials.values() if trial.status is Status.STOPPED)
    before = list(read_events(found.folder.journal))
    rerun = found.rerun(stopped.number, root=HERE, tracking="none")
    assert rerun.of == f"climb.1/{stopped.id}" and rerun.steps.equal and rerun.steps.common == len(stopped.reports)
    again = rerun.state.trials[0]
    assert (again.config, again.seed, again.last.step) == (stopped.config, stopped.seed, 6)
    assert list(read_events(found.folder.journal)) == before
    assert tunelab.open("climb", home=tmp_path / "runs").id == "climb.1"

    seeds = found.rerun(stopped.number, seeds=2, root=HERE, tracking="none")
    assert len({stopped.seed, *(trial.seed for trial in seeds.state.trials.values())}) == 3
    assert [trial.config for trial in seeds.state.trials.values()] == [stopped.config] * 2
    assert seeds.spread.typical and seeds.spread.until == stopped.last.step


# ---- at the shell --------------------------------------------------------------------------------------------------------


def test_stop_ends_a_sweep_of_another_process_and_an_old_request_does_not_stop_the_next_session(tmp_path, address):
    write(tmp_path, sleep=0.3)
    folder = SweepFolder(tmp_path / "runs/climb.1")
    driver = started(tmp_path, "sweep", "climb.py", "--address", address)
    wait_for(driver, folder, "reported", 2)
    stdout, stderr = shell(tmp_path, "stop", "climb")
    assert not folder.is_running()
    assert stdout.startswith("interrupted: tunelab stop. 1 interrupted (0000 at epoch ")
    assert "has been asked to stop at the next report" in stderr and "tunelab resume climb.1" in stderr
    _, said = driver.communicate(timeout=60)
    assert driver.returncode == 130 and "tunelab stop: stopping at the next report" in said
    assert sorted(path.name for path in folder.path.glob("stop*")) == []

    _, stderr = shell(tmp_path, "stop", "climb", status=2)
    assert "No driver runs climb.1" in stderr
    ask(folder.path, Request(1))  # as if the driver had died before it saw it
    shell(tmp_path, "resume", "climb", "--address", address)
    state = folder.load()
    assert state.outcome == "finished" and len(state.sessions) == 2
    assert not list(folder.path.glob("stop*"))
    assert state.sessions[1].code["sha256"] and state.sessions[1].code["home"] == str(tmp_path / "runs")


def test_of_two_drivers_that_start_at_the_same_instant_exactly_one_runs(tmp_path, address):
    write(tmp_path, trials=2)
    shell(tmp_path, "sweep", "climb.py", "--address", address)
    racer = """
        import sys
        from pathlib import Path
        import ray.tune, ray.train.torch, tunelab.engine.ray.tune, tunelab.engine.going_on, tunelab.cli.resume
        from tunelab.cli import cli
        Path(sys.argv[1]).touch()
        while not Path("go").exists():
            pass
        cli.main(["extend", "climb", "--trials", "+2", "--address", sys.argv[2]], prog_name="tunelab")
    """
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(racer), f"ready{number}", address],
            cwd=tmp_path, env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for number in range(2)
    ]  # fmt: skip
    while len(list(tmp_path.glob("ready*"))) < 2:
        assert all(process.poll() is None for process in racers)
        time.sleep(0.05)
    (tmp_path / "go").touch()
    said = [process.communicate(timeout=120) for process in racers]
    assert sorted(process.returncode for process in racers) == [0, 2], said
    (refused,) = [stderr for (_, stderr), process in zip(said, racers, strict=True) if process.returncode == 2]
    assert "climb.1 is being run by another driver" in refused
    state = SweepFolder(tmp_path / "runs/climb.1").load()
    assert len(state.sessions) == 2 and len(state.trials) == 4


def test_a_changed_seed_is_refused_until_it_is_amended_and_a_changed_budget_is_told(tmp_path, address):
    write(tmp_path, trials=2)
    shell(tmp_path, "sweep", "climb.py", "--address", address)
    write(tmp_path, trials=3, seed=5)
    _, stderr = shell(tmp_path, "resume", "climb", "--code", "current", status=2)
    assert "seed was 0, is 5" in stderr and "--amend" in stderr
    _, stderr = shell(tmp_path, "resume", "climb", "--amend", "--address", address)
    assert "Amended: seed was 0, is 5; budget: trials was 2, is 3" in stderr
    state = SweepFolder(tmp_path / "runs/climb.1").load()
    assert state.trials[2].seed == toys.experiment(seed=5).trial_seed(2)
    assert state.experiment["seed"] == 5 and state.amendments[0].trials == 2
    write(tmp_path, trials=4, seed=5)
    _, stderr = shell(tmp_path, "resume", "climb", "--code", "current", "--address", address)
    assert "Changed since the session before: budget: trials was 3, is 4" in stderr
    stdout, _ = shell(tmp_path, "show", "climb")
    assert "amended before session 2, after 2 trials: seed was 0, is 5" in stdout


def test_a_moved_sweep_is_read_compared_exported_and_resumed_and_an_export_outlives_gc(tmp_path, address):
    """The digits experiment with MLflow tracking, in a home that is moved while trials are unfinished."""
    (tmp_path / "here").mkdir()
    here, there = tmp_path / "here/runs", tmp_path / "over there/runs"
    flags = ["--address", address]
    file = ROOT / "experiments/digits_mlp.py"
    driver = started(tmp_path, "sweep", file, "--trials", 3, "--max-steps", 6, "--home", here, *flags)
    folder = SweepFolder(here / "digits-mlp.1")
    wait_for(driver, folder, "finished")
    shell(tmp_path, "stop", "digits-mlp", "--home", here)
    driver.communicate(timeout=60)
    assert driver.returncode == 130
    there.parent.mkdir()
    shutil.move(tmp_path / "here/runs", there)
    moved = SweepFolder(there / "digits-mlp.1")
    before = moved.load()

    assert "0000" in shell(tmp_path, "show", moved.path)[0]
    assert "0000" in shell(tmp_path, "compare", "digits-mlp", "--home", there)[0]
    _, stderr = shell(tmp_path, "resume", moved.path, *flags)
    assert f"SQLite in {there}/mlflow.sqlite" in stderr
    state = moved.load()
    assert state.outcome == "finished" and len(state.trials) == 3
    ended = [number for number, trial in before.trials.items() if trial.status.ended]
    assert ended and all(state.trials[number].attempt == before.trials[number].attempt for number in ended)
    assert list((tmp_path / "here").iterdir()) == []
    for trial in state.trials.values():
        assert {path.name for path in (moved.trials / trial.id).glob("checkpoint_*")} == {
            report.checkpoint.rpartition("/")[2] for report in trial.kept()
        }
    import mlflow

    runs = mlflow.MlflowClient(tracking_uri=f"sqlite:///{there}/mlflow.sqlite").search_runs(["1"], max_results=50)
    assert len(runs) == 4 and {run.info.status for run in runs} == {"FINISHED"}

    shell(tmp_path, "export", "digits-mlp", "--home", there, "--to", tmp_path / "model")
    dry = shell(tmp_path, "gc", moved.path, "--keep", "best_of_trial=0,latest_of_trial=0", "--dry-run", "--json")[0]
    kept = set(moved.trials.glob("*/checkpoint_*"))
    assert len(kept) > 1
    shell(tmp_path, "gc", moved.path, "--keep", "best_of_trial=0,latest_of_trial=0")
    left = set(moved.trials.glob("*/checkpoint_*"))
    assert len(left) == 1 and len(kept - left) == len(json.loads(dry)["checkpoints"])
    shutil.rmtree(there)  # the model holds its own copy of everything
    rows = tmp_path / "rows.csv"
    rows.write_text(",".join(f"p{number}" for number in range(64)) + "\n" + ",".join(["0.5"] * 64) + "\n")
    assert json.loads(shell(tmp_path, "predict", tmp_path / "model", "--input", rows)[0])["row"] == 0
