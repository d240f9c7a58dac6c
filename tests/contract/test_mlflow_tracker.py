"""What MLflow holds after the tracker: against a real SQLite store, and after kills at every instant."""

import itertools
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path

import pytest

mlflow = pytest.importorskip("mlflow")

from tunelab.core import select  # noqa: E402
from tunelab.journal import Journal, events, read_events, replay  # noqa: E402
from tunelab.trackers import behind, follow  # noqa: E402
from tunelab.trackers import mlflow as tracker_module  # noqa: E402
from tunelab.trackers.mlflow import MlflowTracker  # noqa: E402
from tunelab.trackers.process import TrackerProcess, catch_up  # noqa: E402
from tunelab.trackers.tracking import Tracking, resolve_tracking  # noqa: E402

REPOSITORY = Path(__file__).parents[2]
EXPERIMENT = {
    "name": "toy",
    "seed": 3,
    "objective": {"metric": "accuracy", "mode": "max", "step": "epoch"},
    "searcher": {"name": "tpe"},
}
FACTS = {"python": "3.11.2", "packages": {"ray": "2.60.0"}, "git": {"commit": "4f2c1e9", "dirty": False}, "file": "toy.py"}


class Sweep:
    """A sweep's folder in a home, written event by event as a driver would."""

    def __init__(self, home: Path, sweep: str = "toy.1", began: int = 1_700_000_000) -> None:
        self.folder = home / sweep
        self.folder.mkdir(parents=True)
        (self.folder / "experiment.py").write_text("experiment = ...\n")
        self.clock = itertools.count(began)
        self.journal = Journal(self.folder / "journal.sqlite", clock=lambda: float(next(self.clock)))
        self.tracking = resolve_tracking("local", home=home, project_root=None, environ={})
        self.sweep = sweep
        self.poke = lambda: None
        self.add(events.sweep_created(sweep=sweep, experiment=EXPERIMENT, facts=FACTS))

    def add(self, event):
        self.journal.append(event)
        self.poke()
        return self

    def session(self):
        return self.add(
            events.session_started(
                pid=1, host="box", resources={"CPU": 2}, budget={"trials": 4}, tracking=self.tracking.to_json()
            )
        )

    def end(self, outcome="finished", reason="all trials ended"):
        return self.add(events.session_ended(outcome=outcome, reason=reason))

    def start(self, trial, attempt=1, from_step=None, **config):
        if attempt == 1:
            self.add(events.proposed(trial, config=config or {"lr": 0.1}, seed=trial, origin="tpe", note="from 0 ended trials"))
        checkpoint = None if from_step is None else f"{trial:04d}/a1s{from_step}"
        return self.add(events.started(trial, attempt=attempt, checkpoint=checkpoint, from_step=from_step))

    def report(self, trial, step, value, attempt=1, **metrics):
        metrics = {"epoch": step, "accuracy": value, **metrics}
        path = f"{trial:04d}/a{attempt}s{step}"
        return self.add(events.reported(trial, attempt=attempt, step=step, value=value, metrics=metrics, checkpoint=path))

    def attempt_ended(self, trial, outcome, attempt=1, failure=None, message="", details=""):
        return self.add(
            events.attempt_ended(trial, attempt=attempt, outcome=outcome, failure=failure, message=message, details=details)
        )

    def finish(self, trial, status="completed", reason="", attempt=1, **ended):
        return self.attempt_ended(trial, status, attempt, **ended).add(events.finished(trial, status=status, reason=reason))

    def track(self, client=None, drain_timeout_s=5.0):
        """One catch-up, in this process."""
        read, write = os.pipe()
        os.close(write)
        inbox = follow.Inbox(read)
        try:
            tracker = MlflowTracker(self.tracking, client)
            follow.Follower(self.journal.path, tracker, inbox, drain_timeout_s, interval_s=0).run()
        finally:
            os.close(read)
        return self

    def state(self):
        return replay(read_events(self.journal.path))


class Store:
    """What MLflow shows of a sweep."""

    def __init__(self, sweep: Sweep) -> None:
        self.client = mlflow.MlflowClient(sweep.tracking.tracking_uri)
        experiment = self.client.get_experiment_by_name("toy")
        self.runs = list(self.client.search_runs([experiment.experiment_id], f"tags.`tunelab.sweep` = '{sweep.sweep}'"))
        (self.parent,) = [run for run in self.runs if run.data.tags["tunelab.kind"] == "sweep"]
        children = [run for run in self.runs if run.data.tags["tunelab.kind"] == "trial"]
        self.trials = {int(run.data.tags["tunelab.trial"]): run for run in children}
        assert len(self.trials) == len(children), "a trial has two runs"
        assert all(run.data.tags["mlflow.parentRunId"] == self.parent.info.run_id for run in children)

    def points(self, run, key):
        return [(m.step, m.value, m.timestamp) for m in self.client.get_metric_history(run.info.run_id, key)]

    def everything(self):
        """All that is shown, in comparable form; and a check that each point is there once."""
        found = {}
        for run in self.runs:
            curves = {key: sorted(map(repr, self.points(run, key))) for key in run.data.metrics}
            for curve in curves.values():
                assert max(Counter(point.partition(",")[0] for point in curve).values()) == 1, "a point is doubled"
            tags = {key: value for key, value in run.data.tags.items() if key not in ("tunelab.cursor", "mlflow.parentRunId")}
            info = run.info
            found[info.run_name] = (info.status, info.start_time, info.end_time, run.data.params, tags, curves)
        return found

    def files(self, run):
        return {file.path for file in self.client.list_artifacts(run.info.run_id)}


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory):
    """A store with its tables made, which takes seconds: copied for each test."""
    home = tmp_path_factory.mktemp("empty")
    MlflowTracker(resolve_tracking("local", home=home, project_root=None, environ={}))._prepare_store()
    return home / "mlflow.sqlite"


@pytest.fixture
def home(tmp_path, empty_store):
    home = tmp_path / "it's my runs"
    home.mkdir()
    shutil.copy(empty_store, home / "mlflow.sqlite")
    return home


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(follow, "_BACKOFF_S", (0.01,))


def eventful(home) -> Sweep:
    """A sweep in which everything happens: completed, stopped, failed, infeasible, NaN, inf, a retry, a kill and a resume."""
    sweep = Sweep(home).session()
    sweep.start(0, lr=0.1, opt={"name": "sgd"}).report(0, 1, 0.5).report(0, 2, 0.7, loss=math.inf).report(0, 3, 0.6)
    sweep.finish(0, reason="reached epoch 3")
    sweep.start(1, lr=0.2).report(1, 1, math.nan).report(1, 2, 0.4).finish(1, "stopped", "7th of 10 at rung 2")
    sweep.start(2, lr=0.3).report(2, 1, 0.9).report(2, 2, 0.95)
    sweep.attempt_ended(2, "failed", failure="worker lost", message="node 2 is gone", details="Traceback ...")
    sweep.start(2, attempt=2, from_step=1).report(2, 2, 0.94, attempt=2)
    sweep.finish(2, "failed", "worker lost 2 times", attempt=2, failure="worker lost")
    sweep.start(3, lr=0.4).finish(3, "infeasible", "batch does not fit")
    sweep.start(4, lr=0.5).report(4, 1, 0.1).report(4, 2, 0.2)
    sweep.session()  # the driver was killed at epoch 2 of trial 4, and resumes
    sweep.start(4, attempt=2, from_step=1).report(4, 2, 0.21, attempt=2).report(4, 3, 0.8, attempt=2)
    return sweep.finish(4, attempt=2, reason="reached epoch 3").end()


def test_a_sweep_is_a_parent_run_with_a_child_for_each_trial(home):
    sweep = eventful(home).track()
    store = Store(sweep)
    assert store.parent.info.run_name == "toy.1"
    assert {run.info.run_name for run in store.trials.values()} == {f"toy.1/{number:04d}" for number in range(5)}
    statuses = {number: run.info.status for number, run in store.trials.items()}
    assert statuses == {0: "FINISHED", 1: "FINISHED", 2: "FAILED", 3: "FAILED", 4: "FINISHED"}
    assert store.parent.info.status == "FINISHED"

    first, failed, resumed = store.trials[0], store.trials[2], store.trials[4]
    assert first.data.params == {"lr": "0.1", "opt.name": "sgd", "seed": "0"}
    trial = sweep.state().trials[0]
    assert first.info.start_time == int(trial.proposed_at * 1000) and first.info.end_time == int(trial.ended_at * 1000)
    assert [(step, value) for step, value, _ in store.points(first, "accuracy")] == [(1, 0.5), (2, 0.7), (3, 0.6)]
    assert [at for *_, at in store.points(first, "accuracy")] == [int(report.at * 1000) for report in trial.reports]
    assert [math.isnan(value) for _, value, _ in store.points(first, "loss")] == [True]
    assert first.data.tags["tunelab.infinite"] == "loss inf at epoch 2"
    assert math.isnan(store.points(store.trials[1], "accuracy")[0][1])

    assert failed.data.tags["tunelab.attempt.1"] == "from nothing; failed: worker lost: node 2 is gone"
    assert failed.data.tags["tunelab.attempt.2"].startswith("from the checkpoint of epoch 1; failed")
    assert failed.data.tags["tunelab.reason"] == "worker lost 2 times"
    assert failed.data.tags["tunelab.recomputed_steps"] == "1"
    assert store.files(failed) == {"attempt_1.txt"}
    assert [(step, value) for step, value, _ in store.points(resumed, "accuracy")] == [(1, 0.1), (2, 0.2), (3, 0.8)]
    assert resumed.data.tags["tunelab.attempt.1"].endswith("interrupted: the driver was killed")

    tags = store.parent.data.tags
    assert (
        tags["tunelab.packages.ray"] == "2.60.0" and tags["tunelab.git.dirty"] == "false" and tags["tunelab.searcher"] == "tpe"
    )
    assert tags["mlflow.source.git.commit"] == "4f2c1e9"
    assert store.files(store.parent) == {"config.json", "experiment.py"}
    assert (home / "mlartifacts" / "toy" / store.parent.info.run_id / "artifacts" / "config.json").is_file()
    assert len(store.everything()) == 6


def test_the_best_in_mlflow_is_the_best_in_compare(home):
    sweep = eventful(home).track()
    store, state = Store(sweep), sweep.state()
    for best in select.ranked(state.trials.values(), "max"):
        assert store.trials[best.trial.number].data.metrics["best.accuracy"] == best.report.value
    best = select.best(state.trials.values(), "max")
    assert store.parent.data.metrics["best.accuracy"] == best.report.value == 0.8
    assert store.parent.data.tags["tunelab.best_trial"] == "toy.1/0004"
    assert store.parent.data.tags["tunelab.best_step"] == "3"
    ordered = store.client.search_runs([store.parent.info.experiment_id], order_by=["metrics.`best.accuracy` DESC"])
    assert ordered[0].info.run_name in ("toy.1", "toy.1/0004")  # the failed trial's 0.95 is not on top


@pytest.mark.parametrize(
    ("outcome", "status"),
    [("finished", "FINISHED"), ("interrupted", "KILLED"), ("out of time", "KILLED"), ("aborted", "FAILED")],
)
def test_how_the_sweep_ended_is_the_parents_status(home, outcome, status):
    store = Store(Sweep(home).session().end(outcome, "why").track())
    assert store.parent.info.status == status
    assert store.parent.data.tags["tunelab.reason"] == "why"


def test_a_driver_that_died_leaves_no_run_running_and_a_resume_goes_on(home):
    sweep = Sweep(home).session().start(0).report(0, 1, 0.5).start(1).track()
    store = Store(sweep)
    assert {run.info.status for run in store.runs} == {"KILLED"}
    assert store.parent.data.tags["tunelab.status"] == "killed"
    assert store.trials[0].data.tags["tunelab.status"] == "interrupted"
    assert all(run.info.end_time == int(sweep.state().last_at * 1000) for run in store.runs)
    sweep.session().start(0, attempt=2, from_step=1).report(0, 2, 0.6, attempt=2).finish(0, attempt=2).track()
    resumed = Store(sweep)
    assert {n: run.info.run_id for n, run in resumed.trials.items()} == {n: run.info.run_id for n, run in store.trials.items()}
    assert (resumed.trials[0].info.status, resumed.trials[1].info.status, resumed.parent.info.status) == (
        "FINISHED", "KILLED", "KILLED",
    )  # fmt: skip
    assert [(step, value) for step, value, _ in resumed.points(resumed.trials[0], "accuracy")] == [(1, 0.5), (2, 0.6)]


def test_catching_up_piece_by_piece_shows_the_same_as_at_once(home, tmp_path, empty_store):
    whole = Store(eventful(home).track()).everything()
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(empty_store, other / "mlflow.sqlite")
    source = list(read_events(home / "toy.1" / "journal.sqlite"))
    sweep = Sweep(other)
    pieces = [source[i : i + 9] for i in range(1, len(source), 9)]
    for piece in pieces:
        for event in piece:
            sweep.add(event)
        sweep.track()
    assert len(pieces) > 3
    assert Store(sweep).everything() == whole


def test_long_values_odd_names_and_many_points_and_parameters(home):
    sweep = Sweep(home).session()
    config = {"layers": list(range(3000)), "f1 (macro)": 1, "x" * 300: 2, **{f"p{i}": i for i in range(250)}}
    sweep.start(0, **config).report(0, 1, 0.5, **{f"m{i}%": i for i in range(2500)}, **{"../up": 1.0})
    store = Store(sweep.finish(0, message="m" * 9000).end().track())
    run = store.trials[0]
    assert len(run.data.params) == len(config) + 1 and len(run.data.metrics) == 2500 + 1 + 2 + 1
    assert run.data.params["layers"].startswith("sha256:") and run.data.params["f1 _macro_"] == "1"
    path = store.client.download_artifacts(run.info.run_id, "config.json", str(home.parent))
    assert json.loads(Path(path).read_text()) == config


def test_two_sweeps_of_one_name_in_one_store_stay_apart(home, tmp_path):
    sweeps = [Sweep(home).session(), Sweep(tmp_path / "second home", began=1_700_009_999).session()]
    sweeps[1].tracking = sweeps[0].tracking
    for sweep in sweeps:
        sweep.end().track()
    client = mlflow.MlflowClient(sweeps[0].tracking.tracking_uri)
    experiment = client.get_experiment_by_name("toy")
    assert len(client.search_runs([experiment.experiment_id])) == 2


class Faulty:
    """An `MlflowClient` that fails now and then; `after` also makes the call that it fails, like a lost answer."""

    def __init__(self, uri, fails, after=False):
        self.client, self.fails, self.after, self.calls = mlflow.MlflowClient(uri), fails, after, 0

    def __getattr__(self, name):
        method = getattr(self.client, name)

        def call(*args, **kwargs):
            self.calls += 1
            failing = self.fails(self.calls)
            result = method(*args, **kwargs) if self.after or not failing else None
            if failing:
                raise mlflow.exceptions.MlflowException("store is down")
            return result

        return call


@pytest.mark.parametrize("after", [False, True], ids=["refused", "answer lost"])
def test_an_outage_loses_and_doubles_nothing(home, tmp_path, empty_store, after):
    whole = Store(eventful(home).track()).everything()
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(empty_store, other / "mlflow.sqlite")
    sweep = eventful(other)
    random = itertools.cycle([True, False, False, True, False, False, False])
    client = Faulty(sweep.tracking.tracking_uri, lambda call: call < 200 and next(random), after)
    sweep.track(client)
    assert Store(sweep).everything() == whole
    assert client.calls > 30


def test_a_store_that_stays_away_is_given_up_and_caught_up_with_later(home):
    sweep = eventful(home)
    with pytest.raises(follow.GaveUp, match="store is down"):
        sweep.track(Faulty(sweep.tracking.tracking_uri, lambda call: call > 9), drain_timeout_s=0.3)
    sweep.track()
    assert {run.info.status for run in Store(sweep).runs} == {"FINISHED", "FAILED"}


def test_what_mlflow_refuses_costs_only_itself(home, monkeypatch):
    sweep = Sweep(home).session().start(0, lr=1).report(0, 1, 0.5, odd=1.0).finish(0).end()
    real = tracker_module.words.numbers
    monkeypatch.setattr("tunelab.trackers.words.numbers", lambda m: {k if k != "odd" else "o?d": v for k, v in real(m).items()})
    store = Store(sweep.track())
    assert set(store.trials[0].data.metrics) == {"epoch", "accuracy", "best.accuracy"}
    assert store.trials[0].info.status == "FINISHED"


def test_a_step_that_no_database_holds_does_not_hold_up_what_follows(home):
    sweep = Sweep(home).session().start(0).report(0, 1, 0.5).report(0, 10**30, 0.6).report(0, 10**31, 0.7).finish(0)
    sweep.start(1).report(1, 1, 0.9).finish(1).end().track()
    store = Store(sweep)
    assert [step for step, *_ in store.points(store.trials[0], "accuracy")] == [1, 2, 3]
    assert [value for _, value, _ in store.points(store.trials[0], "epoch")] == [1, 1e30, 1e31]
    assert [value for _, value, _ in store.points(store.trials[1], "accuracy")] == [0.9]
    assert {run.info.status for run in store.runs} == {"FINISHED"}


class Bounded:
    """An `MlflowClient` that cannot take more than so many points at once: it fails as a server does that times out."""

    def __init__(self, uri, most):
        self.client, self.most = mlflow.MlflowClient(uri), most

    def __getattr__(self, name):
        return getattr(self.client, name)

    def log_batch(self, run, metrics, params, tags):
        if len(metrics) > self.most:
            raise mlflow.exceptions.MlflowException("timed out")
        self.client.log_batch(run, metrics, params, tags)


def test_a_server_that_never_manages_a_large_batch_gets_small_ones(home):
    sweep = Sweep(home).session().start(0)
    for step in range(1, 41):
        sweep.report(0, step, step / 40)
    sweep.finish(0).end().track(Bounded(sweep.tracking.tracking_uri, 30))
    store = Store(sweep)
    store.everything()
    assert [step for step, *_ in store.points(store.trials[0], "accuracy")] == list(range(1, 41))


class ReadOnly:
    """An `MlflowClient` of a store that answers every question and takes nothing, for its first `calls` writes."""

    def __init__(self, uri, calls, code):
        self.client, self.calls, self.code = mlflow.MlflowClient(uri), calls, code

    def __getattr__(self, name):
        method = getattr(self.client, name)

        def call(*args, **kwargs):
            if name in ("log_batch", "set_tag", "set_terminated", "update_run", "log_text"):
                self.calls -= 1
                if self.calls >= 0:
                    raise mlflow.exceptions.MlflowException("read-only", error_code=self.code)
            return method(*args, **kwargs)

        return call


@pytest.mark.parametrize("code", [1, 4], ids=["INTERNAL_ERROR", "BAD_REQUEST"])
def test_a_store_that_answers_and_takes_nothing_is_not_taken_to_refuse_what_it_is_told(home, code):
    sweep = Sweep(home).session().start(0).report(0, 1, 0.5).finish(0).end()
    client = ReadOnly(sweep.tracking.tracking_uri, 60, code)
    sweep.track(client, drain_timeout_s=30)
    store = Store(sweep)
    assert client.calls < 0 and [step for step, *_ in store.points(store.trials[0], "accuracy")] == [1]
    assert {run.info.status for run in store.runs} == {"FINISHED"} and store.trials[0].data.tags[
        "tunelab.status"
    ] == "completed"


class Poisoned(Bounded):
    """One that breaks at a certain value."""

    def log_batch(self, run, metrics, params, tags):
        if any(metric.value == 0.625 for metric in metrics):
            raise mlflow.exceptions.MlflowException("broken")
        self.client.log_batch(run, metrics, params, tags)


def test_a_value_at_which_the_server_breaks_costs_only_itself(home):
    sweep = Sweep(home).session().start(0)
    for step in range(1, 9):
        sweep.report(0, step, step / 8)
    sweep.finish(0).end().track(Poisoned(sweep.tracking.tracking_uri, 0))
    store = Store(sweep)
    assert [step for step, *_ in store.points(store.trials[0], "accuracy")] == [1, 2, 3, 4, 6, 7, 8]
    assert {run.info.status for run in store.runs} == {"FINISHED"}


def test_a_run_that_somebody_deleted_stays_deleted_and_a_deleted_sweep_comes_back(home):
    sweep = Sweep(home).session().start(0).report(0, 1, 0.5).start(1).track()
    store = Store(sweep)
    store.client.delete_run(store.trials[0].info.run_id)
    sweep.session().start(0, attempt=2).report(0, 2, 0.6, attempt=2).finish(0, attempt=2).track()
    assert set(Store(sweep).trials) == {1}
    store.client.delete_run(store.parent.info.run_id)
    sweep.end().track()
    assert set(Store(sweep).trials) == {0, 1}


KILLER = """
import os, shutil, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
import mlflow
from tests.contract import test_mlflow_tracker as t
t.follow.EVENTS_A_BATCH = 8  # many batches
base, home, empty = map(Path, sys.argv[2:5])

def die_at(number):
    return lambda call: os.kill(os.getpid(), signal.SIGKILL) if call == number else False

def child(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            import traceback; traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def attempt(sweep, at):
    client = t.Faulty(sweep.tracking.tracking_uri, die_at(at)) if at else None
    return lambda: sweep.track(client)

kills = 0
for at in range(1, 500, int(sys.argv[5])):
    folder = home / str(at); folder.mkdir(parents=True)
    shutil.copy(empty, folder / "mlflow.sqlite")
    sweep = t.eventful(folder)
    sweep.journal.close()
    first = child(attempt(sweep, at))
    if first == 0:
        break  # there are no more calls than that
    assert first == -9, first
    assert child(attempt(sweep, at // 2 + 1)) in (-9, 0)  # and again, elsewhere
    assert child(attempt(sweep, None)) == 0
    def check():
        whole = eval(base.read_text(), {"nan": float("nan")})
        found = t.Store(sweep).everything()
        assert found == whole, (at, [(k, a, b) for k in whole for a, b in zip(found[k], whole[k]) if a != b])
    assert child(check) == 0, at
    kills += 1
print(kills)
"""


def test_a_tracker_killed_at_any_call_is_caught_up_with_exactly(home, tmp_path, empty_store):
    """SIGKILL before call 1, 1 + n, 1 + 2 n, ... and a second kill elsewhere; then what MLflow shows equals an unbroken run."""
    whole = Store(eventful(home).track()).everything()
    (tmp_path / "whole").write_text(repr(whole))
    arguments = [str(REPOSITORY), str(tmp_path / "whole"), str(tmp_path / "killed"), str(empty_store), "5"]
    done = subprocess.run([sys.executable, "-c", KILLER, *arguments], check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout.split()[-1]) >= 6


class TestProcess:
    """The real process, as a driver starts it."""

    def wait_for(self, what, timeout_s=60):
        deadline = time.monotonic() + timeout_s
        while not what():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def recorded(self, sweep):
        try:
            return len(Store(sweep).trials)
        except Exception:
            return 0

    def test_it_follows_a_living_sweep_survives_a_kill_and_ends_with_the_driver(self, home):
        sweep = Sweep(home).session()
        warned = []
        tracker = TrackerProcess(sweep.journal.path, sweep.tracking, sweep.folder / "tracker.log", warn=warned.append)
        tracker.start()
        sweep.poke = tracker.poke
        assert os.getpgid(tracker.pid) == tracker.pid != os.getpgid(0)
        sweep.start(0).report(0, 1, 0.5)
        self.wait_for(lambda: self.recorded(sweep) == 1)
        assert Store(sweep).trials[0].info.status == "RUNNING"
        assert os.getpriority(os.PRIO_PROCESS, tracker.pid) >= 10
        os.killpg(tracker.pid, signal.SIGINT)  # Ctrl-C is nothing to it
        sweep.report(0, 2, 0.6)
        self.wait_for(lambda: len(Store(sweep).points(Store(sweep).trials[0], "accuracy")) == 2)
        os.kill(tracker.pid, signal.SIGKILL)
        time.sleep(0.2)
        sweep.report(0, 3, 0.7).finish(0).end()
        assert tracker.close(), (sweep.folder / "tracker.log").read_text()
        store = Store(sweep)
        assert {run.info.status for run in store.runs} == {"FINISHED"}
        assert [step for step, *_ in store.points(store.trials[0], "accuracy")] == [1, 2, 3]
        assert not [line for line in warned if not line.startswith("Waiting for")]

    def test_a_driver_killed_by_force(self, home):
        """It cannot say goodbye: its pipe ends. The tracker closes the runs and goes."""
        sweep = Sweep(home).session().start(0).report(0, 1, 0.5)
        driver = f"""
            import json, sys, time
            from pathlib import Path
            from tunelab.trackers.process import TrackerProcess
            from tunelab.trackers.tracking import Tracking
            tracking = Tracking.from_json(json.loads({json.dumps(sweep.tracking.to_json())!r}))
            tracker = TrackerProcess(Path({str(sweep.journal.path)!r}), tracking, Path({str(sweep.folder / "log")!r}))
            tracker.start()
            print(tracker.pid, flush=True)
            time.sleep(60)
        """
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(driver)], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
        )
        pid = int(process.stdout.readline())
        process.kill()
        process.wait()
        process.stdout.close()
        self.wait_for(lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2])
        assert {run.info.status for run in Store(sweep).runs} == {"KILLED"}

    def test_a_store_that_cannot_be_reached(self, home, tmp_path, capsys):
        sweep = Sweep(home).session().end()
        away = Tracking(kind="server", name="server", tracking_uri="http://127.0.0.1:9")
        assert not catch_up(sweep.journal.path, away, tmp_path / "away.log", drain_timeout_s=1)
        assert "next `tunelab` command" in (tmp_path / "away.log").read_text()
        told = capsys.readouterr().err
        assert "has not got the last 3 events" in told and "Nothing is lost" in told
        assert behind.read(sweep.folder).tracking == away and behind.missing(sweep.folder) == 3


def test_two_trackers_make_the_tables_of_a_new_store_without_a_race(tmp_path):
    home = tmp_path / "new"
    sweeps = [Sweep(home, f"toy.{number}").session().start(0).end() for number in (1, 2)]
    trackers = [TrackerProcess(s.journal.path, s.tracking, s.folder / "log") for s in sweeps]
    for tracker in trackers:
        tracker.start()
    assert [tracker.close() for tracker in trackers] == [True, True], (sweeps[0].folder / "log").read_text()
    assert all(len(Store(sweep).trials) == 1 for sweep in sweeps)
