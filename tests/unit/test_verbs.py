"""`extend`, `retry`, `stop`, `rerun` and `gc` at the shell: what they refuse, what they say. None of it starts Ray."""

from __future__ import annotations

import contextlib
import fcntl
import json
import multiprocessing
import shutil
import subprocess
import sys
import textwrap

import pytest
from click.testing import CliRunner

import tunelab
from tests.unit import histories as h
from tests.unit.test_cli import ENVIRONMENT, python
from tunelab.cli import cli
from tunelab.cli import ui as ui_verb
from tunelab.engine import sweeping
from tunelab.errors import BadInputError, SweepLockedError
from tunelab.journal import events
from tunelab.journal.home import SweepFolder


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


@pytest.fixture
def sweep(home):
    """Trials 0 and 2 completed, 1 was stopped, 3 failed, 4 was infeasible; finished."""
    told = [
        *h.created(trials=4),
        *h.trial(0, [0.90, 0.95, 0.93], origin="baseline"),
        *h.trial(1, [0.80], end="stopped"),
        *h.trial(2, [0.97, 0.96]),
        *h.trial(3, [0.5], end="failed", reason="ValueError: no rows"),
        *h.trial(4, [], end="infeasible"),
        events.session_ended(outcome="finished", reason="all 4 trials have ended"),
    ]
    return h.write(home, told)


def run(*args, status=0):
    result = CliRunner().invoke(cli, list(args), prog_name="tunelab")
    assert result.exit_code == status, (result.output, result.exception)
    return result


def test_more_time_for_a_finished_sweep_is_refused_and_a_retry_takes_it(home, monkeypatch):
    budget = {"trials": 2, "time_s": 1.0, "concurrent": None}
    told = [*h.created(budget=budget), *h.trial(0, [0.9]), *h.trial(1, [0.5], end="failed")]
    h.write(home, [*told, events.session_ended(outcome="finished", reason="")])
    said = run("extend", "digits-mlp", "--time", "+600", status=2).stderr
    assert "digits-mlp.1 is finished: more time changes nothing and was not recorded." in said
    assert "tunelab extend digits-mlp.1 --trials +N" in said
    with pytest.raises(BadInputError, match=r'extend\(trials="\+N"\)'):
        tunelab.open("digits-mlp", home=home).extend(time_s="+600")
    assert "has used up its time budget" in run("retry", "digits-mlp", "--failed", status=2).stderr
    asked = []
    monkeypatch.setattr("tunelab.cli.running.go_on", lambda folder, state, wish, as_json: asked.append(wish) or 0)
    run("retry", "digits-mlp", "--failed", "--time", "600")
    assert (asked[0].time_s, asked[0].reopen) == (600.0, [1])


@contextlib.contextmanager
def a_driver(folder):
    with folder.lock.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.mark.parametrize("verb", ["extend", "retry", "stop", "rerun", "gc", "resume"])
def test_help_loads_nothing_heavy(verb):
    done = python(f"from tunelab.cli import cli; cli.main(['{verb}', '--help'], prog_name='tunelab')", "-X", "importtime")
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines() if "import time:" in line}
    assert not loaded & {"ray", "torch", "optuna", "mlflow", "numpy", "pandas", "rich"}
    assert f"tunelab {verb}" in done.stdout


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["extend", "digits-mlp"], "Say by how much: --trials +20, --time +600, or both."),
        (["extend", "digits-mlp", "--trials", "4"], "does not extend the sweep: its total is 4 already"),
        (["extend", "digits-mlp", "--trials", "lots"], "--trials needs a number above 0"),
        (["extend", "digits-mlp", "--time", "+600"], "no limit of time"),
        (["extend", "digits-mpl", "--trials", "+1"], "Did you mean 'digits-mlp'?"),
        (["retry", "digits-mlp"], "Say which trials of digits-mlp: --failed for all that have failed, or digits-mlp/0007."),
        (["retry", "digits-mlp/0"], "0000 has completed"),
        (["retry", "digits-mlp/1", "digits-mlp/2"], "0001 was stopped by the scheduler"),
        (["retry", "digits-mlp/99"], "has no trial 0099"),
        (["retry", "--failed", "digits-mlp", "other"], "--failed takes one sweep"),
        (["stop", "digits-mlp"], "No driver runs digits-mlp.1, so there is nothing to stop."),
        (["rerun", "digits-mlp"], "does not name a trial"),
        (["rerun", "digits-mlp/9"], "has no trial 0009"),
        (["rerun", "digits-mlp/0", "--seeds", "0"], "0 is not in the range x>=1"),
        (["rerun", "digits-mlp/0", "--address", "ray://x"], "ray job submit"),
        (["gc", "digits-mlp", "--keep", "best=1"], "No retention count is called 'best'"),
        (["resume", "digits-mlp", "--trials", "2"], "4 trials exist already; a total of 2 is fewer"),
    ],
)
def test_bad_input_is_refused_with_status_2_and_what_would_be_right(sweep, args, told):
    assert told in run(*args, status=2).output


@pytest.mark.parametrize(
    "args", [["extend", "--trials", "+4"], ["retry", "--failed"], ["resume"], ["gc"], ["gc", "--dry-run"]], ids=" ".join
)
def test_a_sweep_that_is_running_is_left_alone(sweep, args):
    with a_driver(sweep):
        assert "is being run by another driver" in run(args[0], "digits-mlp", *args[1:], status=2).output


class TestGC:
    @pytest.fixture
    def files(self, sweep):
        for trial in sweep.load().trials.values():
            for report in trial.reports:
                place = sweep.trials / str(report.checkpoint)
                place.mkdir(parents=True)
                (place / "state.pt").write_bytes(b"x" * 26_000)
        return sweep

    def test_a_dry_run_shows_what_would_go(self, files):
        result = run("gc", "digits-mlp", "--keep", "best_of_trial=0,latest_of_trial=0", "--dry-run")
        assert result.stdout.splitlines()[0].split() == ["trial", "epoch", "accuracy", "size", "checkpoint"]
        assert result.stdout.splitlines()[1].split() == ["0000", "1", "0.9000", "26.0", "kB", "checkpoint_1_1"]
        assert len(result.stdout.splitlines()) == 7
        assert "6 checkpoints of 4 trials, 156.0 kB of 182.0 kB would go." in result.stderr
        assert "Kept: best_of_sweep=1, best_of_trial=0, latest_of_trial=0" in result.stderr
        assert len(list(files.trials.glob("*/*"))) == 7

    def test_then_it_goes_and_the_best_stays(self, files):
        run("gc", "digits-mlp", "--keep", "best_of_trial=0", "--keep", "latest_of_trial=0")
        assert [path.name for path in files.trials.glob("*/*")] == ["checkpoint_1_1"]
        assert "0002" in run("best", "digits-mlp").output
        again = run("gc", "digits-mlp", "--keep", "best_of_trial=0,latest_of_trial=0", "--json")
        assert json.loads(again.stdout)["checkpoints"] == []

    def test_without_counts_those_of_the_experiment(self, files):
        assert "1 checkpoint of 1 trial, " in run("gc", "digits-mlp", "--dry-run").stderr


class TestStop:
    def test_it_says_what_is_left(self, home, monkeypatch):
        folder = h.write(home, [*h.created(), *h.trial(0, [0.5], end=None)])
        told = [
            events.attempt_ended(0, attempt=1, outcome="interrupted", message="tunelab stop"),
            events.session_ended(outcome="interrupted", reason="tunelab stop"),
        ]
        state = h.state([*h.created(), *h.trial(0, [0.5], end=None), *told])
        monkeypatch.setattr("tunelab.engine.stopping.stop", lambda folder, now, told: told(None) or state)
        result = run("stop", "digits-mlp", "--now")
        assert "digits-mlp.1 has been asked to stop now" in result.stderr
        assert result.stdout == "interrupted: tunelab stop. 1 interrupted (0000 at epoch 1).\n"
        assert "Go on:  tunelab resume digits-mlp.1" in result.stderr
        assert folder.path.name in result.stderr


class TestShown:
    def test_amendments_and_retries(self, home):
        experiment = h.experiment(trials=4)
        told = [
            *h.created(trials=4),
            *h.trial(0, [0.5], end="failed", reason="ValueError"),
            events.session_ended(outcome="finished", reason=""),
            events.amended(experiment={**experiment, "seed": 1}, changes=["seed was 0, is 1"], forced=True),
            events.amended(experiment={**experiment, "seed": 1}, changes=["isolation was warm, is fresh"], forced=False),
            h.session(trials=4),
            events.reopened(0, upto=1, reason="to be tried again"),
            events.started(0, attempt=2, checkpoint="0000/checkpoint_1_1", from_step=1),
            h.report(0, 2, 0.6, attempt=2),
        ]
        h.write(home, told)
        shown = run("show", "digits-mlp").stdout
        assert "amended before session 2, after 1 trial: seed was 0, is 1" in shown
        assert "changed before session 2, after 1 trial: isolation was warm, is fresh" in shown
        assert json.loads(run("show", "digits-mlp", "--json").stdout)["amendments"][0]["changes"] == ["seed was 0, is 1"]
        why = run("why", "digits-mlp/0").stdout.splitlines()
        assert why[1] == "since then  amended before session 2, after 1 trial: seed was 0, is 1"
        assert why[3] == "reopened    by `tunelab retry`: retries count anew"
        assert why[4].startswith("attempt 2   from the checkpoint of epoch 1, epoch 2, running; no epoch recomputed")

    def test_a_rerun_says_of_what(self, home):
        first = events.sweep_created(sweep="digits-mlp.1", experiment=h.experiment(), facts={"rerun_of": "x.1/0007"})
        h.write(home, [first, h.session()])
        assert "a rerun of x.1/0007" in run("show", "digits-mlp").stdout


class TestMoved:
    @pytest.fixture
    def tracked(self, home):
        """A sweep with a local store, as this version journals it, in a home that is then moved."""
        tracking = {
            "kind": "local", "name": "local", "tracking_uri": f"sqlite:///{home}/mlflow.sqlite", "experiment": None,
            "artifacts": (home / "mlartifacts").as_uri(),
        }  # fmt: skip
        first = events.sweep_created(sweep="digits-mlp.1", experiment=h.experiment(), facts={"root": str(home.parent)})
        session = events.session_started(
            pid=1, host="h", resources={}, budget=h.experiment()["budget"], tracking=tracking, code={"home": str(home)}
        )
        h.write(home, [first, session, *h.trial(0, [0.5])])
        return home

    @pytest.fixture
    def pages(self, monkeypatch):
        shown = []
        monkeypatch.setattr("tunelab.trackers.ui.serve_ui", lambda tracking, port: shown.append(tracking))
        monkeypatch.setattr(ui_verb.common, "record_what_is_missing", lambda *_, **__: None, raising=False)
        return shown

    def test_ui_opens_the_store_beside_the_sweep(self, tracked, tmp_path, pages):
        elsewhere = tmp_path / "else where"
        tracked.rename(elsewhere)
        run("ui", "digits-mlp", "--home", str(elsewhere))
        run("ui", str(elsewhere / "digits-mlp.1"))
        assert [tracking.tracking_uri for tracking in pages] == [f"sqlite:///{elsewhere}/mlflow.sqlite"] * 2
        assert pages[0].artifacts == (elsewhere / "mlartifacts").as_uri()

    def test_a_copy_under_another_name_is_found_by_its_path(self, tracked, tmp_path):
        copy = tmp_path / "a copy"
        shutil.copytree(tracked / "digits-mlp.1", copy)
        for verb in ("show", "compare", "best"):
            assert "0000" in run(verb, str(copy)).stdout
        assert tunelab.open(str(copy)).best.checkpoint == f"{copy}/trials/0000/checkpoint_1_1"
        result = run("resume", str(copy), status=2)
        assert "started in Python" in result.output
        assert tunelab.cli.common.suggest("resume", SweepFolder(copy)) == f"tunelab resume '{copy}'"


class TestTwoDrivers:
    def race(self, path, start, results):
        start.wait()
        try:
            with sweeping.locked(SweepFolder(path)):
                results.put("runs")
                start.wait()  # until the other has tried
        except SweepLockedError:
            results.put("refused")
            start.wait()

    @pytest.mark.parametrize("round_", range(5))
    def test_of_two_processes_at_the_same_instant_exactly_one_runs(self, tmp_path, round_):
        context = multiprocessing.get_context("fork")
        start, results = context.Barrier(2), context.Queue()
        racers = [context.Process(target=self.race, args=(tmp_path, start, results)) for _ in range(2)]
        for racer in racers:
            racer.start()
        assert sorted(results.get(timeout=30) for _ in racers) == ["refused", "runs"]
        for racer in racers:
            racer.join(30)
            assert racer.exitcode == 0

    def test_a_dead_drivers_lock_is_free(self, tmp_path):
        code = f"""
            import os, sys
            from pathlib import Path
            from tunelab.engine.sweeping import locked
            from tunelab.journal.home import SweepFolder
            with locked(SweepFolder(Path({str(tmp_path)!r}))):
                print("locked", flush=True)
                sys.stdin.read()
        """
        holder = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT,
        )  # fmt: skip
        assert holder.stdout.readline() == b"locked\n"
        folder = SweepFolder(tmp_path)
        assert folder.is_running()
        with pytest.raises(SweepLockedError), sweeping.locked(folder):
            pass
        holder.kill()
        holder.communicate()
        with sweeping.locked(folder):
            assert folder.is_running()
        assert not folder.is_running()


class TestInPython:
    def test_the_verbs_are_methods(self, sweep, home):
        opened = tunelab.open("digits-mlp", home=home)
        with pytest.raises(BadInputError, match="Say by how much"):
            opened.extend()
        with pytest.raises(BadInputError, match="does not extend"):
            opened.extend(trials=4)
        with pytest.raises(BadInputError, match="0000 has completed"):
            opened.retry("0000")
        with pytest.raises(BadInputError, match="No driver runs"):
            opened.stop()
        assert [entry.checkpoint for entry in opened.gc(dry_run=True)] == ["0000/checkpoint_1_1"]
        keep = tunelab.Retention(best_of_trial=0, latest_of_trial=0)
        sweep.trials.mkdir()
        assert len(opened.gc(keep)) == 6 and opened.gc(keep) == []
