"""The main job on real input: sweep, compare, MLflow's page, export, predict. All have to tell the same."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.test_mlflow_page import browser, look  # noqa: F401  `browser` is a fixture
from tunelab.core.trial import Status
from tunelab.journal.home import SweepFolder
from tunelab.trackers.tracking import resolve_tracking
from tunelab.trackers.ui import run_url, running_ui

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def tunelab(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "tunelab", *map(str, arguments)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def bert(cluster, tmp_path_factory):
    """A short sweep of `experiments/bert_glue.py`: four trials of at most two epochs."""
    import ray

    home = tmp_path_factory.mktemp("bert")
    address = ray.get_runtime_context().gcs_address
    flags = ["--trials", 4, "--max-steps", 2, "--home", home, "--address", address]
    tunelab("sweep", "experiments/bert_glue.py", *flags)
    return SweepFolder(home / "bert-glue.1")


@pytest.fixture(scope="module")
def best(bert):
    return json.loads(tunelab("best", "bert-glue", "--home", bert.path.parent, "--json"))


def test_the_best_trial_is_clearly_better_than_the_majority_class(bert, best):
    trials = bert.load().trials.values()
    assert len(trials) == 4 and all(trial.status in (Status.COMPLETED, Status.STOPPED) for trial in trials)
    assert best["value"] > 0.7  # the sentences are balanced: 0.5


def test_compare_names_the_same_best_trial_and_metric(bert, best):
    top = json.loads(tunelab("compare", "bert-glue", "--home", bert.path.parent, "--json"))["trials"][0]
    assert best["trial"].endswith(top["trial"]) and top["value"] == best["value"]


def test_mlflows_page_shows_the_same_best_trial_and_metric(bert, best, browser, tmp_path):  # noqa: F811
    tracking = resolve_tracking("local", home=bert.path.parent, project_root=None, environ={})
    pictures = Path(os.environ.get("TUNELAB_SCREENSHOTS") or tmp_path)
    with running_ui(tracking, log_path=tmp_path / "ui.log", timeout_s=180) as (url, _):
        page = run_url(url, experiment="bert-glue", sweep="bert-glue.1")
        shown = look(browser, page, pictures / "bert_sweep.png", tmp_path / "profile", until="best.accuracy")
    metric = re.search(r"best\.accuracy\W+(0\.\d+)", shown)
    assert metric and float(metric[1]) == pytest.approx(best["value"], abs=1e-4), shown
    assert re.search(rf"tunelab\.best_trial\W+{best['trial']}", shown), shown


def test_the_exported_model_scores_what_the_sweep_says_on_the_held_out_sentences(bert, best, tmp_path):
    from experiments.bert_glue import experiment, movie_reviews, write_held_out

    count = experiment.trainer.train_loop_config["eval_sentences"]
    line = tunelab("export", "bert-glue", "--home", bert.path.parent, "--to", tmp_path / "model")
    assert best["trial"] in line and "8 of 8 rows equal" in line
    write_held_out(tmp_path / "held_out.csv", count)
    predicted = [
        json.loads(row) for row in tunelab("predict", tmp_path / "model", "--input", tmp_path / "held_out.csv").splitlines()
    ]
    labels = ["negative", "positive"]
    right = [row["prediction"] == labels[label] for row, (_, label) in zip(predicted, movie_reviews()[:count], strict=True)]
    assert sum(right) / count == pytest.approx(best["value"], abs=1e-9)


def test_a_digits_model_predicts_the_validation_rows_as_well_as_the_sweep_says(cluster, tmp_path):
    import ray

    from experiments.digits_mlp import split

    address = ray.get_runtime_context().gcs_address
    flags = ["--trials", 2, "--max-steps", 4, "--home", tmp_path, "--address", address, "--tracking", "none"]
    tunelab("sweep", "experiments/digits_mlp.py", *flags)
    best = json.loads(tunelab("best", "digits-mlp", "--home", tmp_path, "--json"))
    tunelab("export", "digits-mlp", "--home", tmp_path, "--to", tmp_path / "model")
    _, x_val, _, y_val = split()
    with open(tmp_path / "rows.csv", "w", newline="") as file:
        csv.writer(file).writerows([[f"pixel{i}" for i in range(64)], *x_val.tolist()])
    predicted = [
        json.loads(row) for row in tunelab("predict", tmp_path / "model", "--input", tmp_path / "rows.csv").splitlines()
    ]
    right = [row["prediction"] == label for row, label in zip(predicted, y_val.tolist(), strict=True)]
    assert sum(right) / len(right) == pytest.approx(best["value"], abs=1e-6)
