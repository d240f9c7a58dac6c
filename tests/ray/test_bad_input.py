"""Bad input from the shell, with a cluster of tunelab's own: the message, the exit status, and no process left."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from tunelab.journal import Journal, events

ROOT = Path(__file__).parents[2]

EXPERIMENT = """
import ray.train
from ray.train.torch import TorchTrainer
from tunelab import FIFO, Budget, Experiment, Float, Objective, Random

def train(config):
    ray.train.report({{"epoch": 1, "accuracy": config["x"]}})

{name} = Experiment(
    name="bad", trainer=TorchTrainer(train, scaling_config=ray.train.ScalingConfig(num_workers={workers})),
    space={space}, objective=Objective("{metric}", step="epoch"),
    searcher={searcher}, scheduler=FIFO(), budget=Budget(trials={trials}),
)
"""
DEFAULTS = {
    "name": "experiment",
    "workers": 1,
    "space": '{"x": Float(0.0, 1.0)}',
    "metric": "accuracy",
    "searcher": "Random()",
    "trials": 4,
}


def write(folder, **parts):
    file = folder / "bad.py"
    file.write_text(EXPERIMENT.format(**{**DEFAULTS, **parts}))
    return file


def tunelab(folder, *arguments):
    """(exit status, stdout, stderr), after checking that no process is left that this started."""
    mark = uuid.uuid4().hex
    done = subprocess.run(
        [sys.executable, "-m", "tunelab", *map(str, arguments)],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT), "TUNELAB_TEST_MARK": mark},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    deadline = time.monotonic() + 10
    while left := marked(mark):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


def marked(mark):
    """Command lines of the processes that have this mark in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text().replace("\0", " ")[:120])
        except OSError:
            continue
    return found


EARLY = {
    "no such file": (None, {}, "nothere.py", "nothere.py"),
    "no experiment": ("x = 1\n", {}, "bad.py", "holds no experiment"),
    "two experiments": (None, {"name": "first = second"}, "bad.py", None),
    "a typo in a searcher's argument": (None, {"searcher": "Random(sed=1)"}, "bad.py", "Random"),
    "an empty space": (None, {"space": "{}"}, "bad.py", "at least"),
    "a budget of no trials": (None, {"trials": 0}, "bad.py", "Budget needs trials >= 1, got trials=0"),
}


@pytest.mark.parametrize("case", EARLY)
def test_what_the_file_shows_is_refused_before_anything_is_started(tmp_path, case):
    text, parts, argument, told = EARLY[case]
    write(tmp_path, **parts)
    if text is not None:
        (tmp_path / "bad.py").write_text(text)
    if case == "two experiments":
        file = write(tmp_path, name="first")
        file.write_text(file.read_text() + "\nfrom dataclasses import replace\nsecond = replace(first, seed=1)\n")
        told = "bad.py:first, bad.py:second"
    status, _, stderr = tunelab(tmp_path, "sweep", argument)
    assert status == 2 and told in stderr
    assert not (tmp_path / "runs").exists()


def test_more_workers_than_the_cluster_has(tmp_path):
    write(tmp_path, workers=500)
    status, _, stderr = tunelab(tmp_path, "sweep", "bad.py", "--tracking", "none")
    assert status == 2
    assert "A trial needs 500 workers with 1 CPU each: that is 500 CPU where the cluster has" in stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("address", "told"), [("127.0.0.1:1", "There is no Ray cluster at"), ("nonsense", "HOST:PORT")])
def test_an_address_at_which_nothing_answers(tmp_path, address, told):
    write(tmp_path)
    began = time.monotonic()
    status, _, stderr = tunelab(tmp_path, "sweep", "bad.py", "--tracking", "none", "--address", address)
    assert status == 2 and told in stderr and time.monotonic() - began < 30


def test_an_objective_that_is_never_reported(tmp_path):
    write(tmp_path, metric="f1")
    status, _, stderr = tunelab(tmp_path, "sweep", "bad.py", "--tracking", "none")
    assert status == 1
    assert "without reporting 'f1'. It reported accuracy, epoch" in stderr


@pytest.fixture
def sweep_of_one(tmp_path):
    """A finished sweep of one trial with a checkpoint, and the file it came from."""
    file = write(tmp_path)
    folder = tmp_path / "runs" / "bad.1"
    folder.mkdir(parents=True)
    shutil.copy(file, folder / "experiment.py")
    checkpoint = folder / "trials" / "0000" / "checkpoint_1"
    checkpoint.mkdir(parents=True)
    facts = {"root": str(tmp_path), "file": "bad.py", "variable": "experiment", "overrides": {}, "storage": None}
    described = {"name": "bad", "objective": {"metric": "accuracy", "mode": "max", "step": "epoch"}, "budget": {"trials": 1}}
    described |= {"searcher": {"name": "random"}, "scheduler": {"name": "fifo"}, "seed": 0}
    journal = Journal.create(folder / "journal.sqlite", events.sweep_created(sweep="bad.1", experiment=described, facts=facts))
    journal.append(events.proposed(0, config={"x": 0.5}, seed=1, origin="random"))
    journal.append(events.started(0, attempt=1, checkpoint=None, from_step=None))
    relative = "0000/checkpoint_1"
    journal.append(events.reported(0, attempt=1, step=1, value=0.5, metrics={"epoch": 1, "accuracy": 0.5}, checkpoint=relative))
    yield tmp_path, journal, checkpoint
    journal.close()


def test_export_of_a_sweep_without_a_finished_trial(sweep_of_one):
    folder, _, _ = sweep_of_one
    status, _, stderr = tunelab(folder, "export", "bad", "--to", "model")
    assert status == 1 and "bad.1 has no trial that completed or was stopped: 1 running" in stderr
    assert not (folder / "model").exists()


def test_export_of_a_checkpoint_whose_folder_was_deleted(sweep_of_one):
    folder, journal, checkpoint = sweep_of_one
    journal.append(events.attempt_ended(0, attempt=1, outcome="completed"))
    journal.append(events.finished(0, status="completed", reason=""))
    shutil.rmtree(checkpoint)
    status, _, stderr = tunelab(folder, "export", "bad", "--to", "model")
    assert status == 1 and "The checkpoint of bad.1/0000 is gone" in stderr and checkpoint.name in stderr
    assert not (folder / "model").exists()
