"""What a store has missed is recorded later, whatever was wrong with it, and nobody waits for it. Real processes and stores."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from tests.contract.servers import wait_for, wedged_server
from tunelab import trackers
from tunelab.cli import cli, common
from tunelab.journal import events
from tunelab.journal.locks import held
from tunelab.trackers import behind, run
from tunelab.trackers.follow import Inbox
from tunelab.trackers.process import TrackerProcess, catch_up_later
from tunelab.trackers.tracking import Tracking, resolve_tracking

mlflow = pytest.importorskip("mlflow")

from tests.contract.test_mlflow_tracker import Store, Sweep, empty_store, eventful, home, quick  # noqa: E402

__all__ = ["empty_store", "home", "quick"]  # fixtures
REPOSITORY = Path(__file__).parents[2]


def lag(sweep, recorded=0):
    """The sweep as a tracker leaves it that was killed, or gave up."""
    behind.mark(sweep.folder, behind.Behind(tracking=sweep.tracking, recorded=recorded, why="store is down"))
    return sweep


def with_checkpoints(sweep):
    """The sweep with the checkpoints that it refers to, so that the doctor has nothing else to say."""
    for trial in sweep.state().trials.values():
        for report in trial.kept():
            path = sweep.folder / "trials" / report.checkpoint
            path.mkdir(parents=True, exist_ok=True)
            (path / "state").write_text("x")
    return sweep


def tunelab(home, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "tunelab", *arguments, "--home", str(home)]
    return subprocess.run(command, check=False, cwd=home, env=environment, capture_output=True, text=True, timeout=120)


def caught_up(sweep):
    return not (sweep.folder / behind.FILE_NAME).exists() and not held(sweep.folder / behind.LOCK)


def log(sweep):
    file = sweep.folder / behind.LOG
    return file.read_text() if file.exists() else ""


@pytest.mark.slow
@pytest.mark.parametrize("verb", [["ls"], ["best", "toy"], ["doctor", "--fix"]], ids=lambda verb: verb[0])
def test_any_verb_has_the_rest_recorded(home, verb):
    sweep = lag(with_checkpoints(eventful(home)))
    assert tunelab(home, *verb).returncode == 0
    wait_for(lambda: caught_up(sweep), 60)
    store = Store(sweep)
    store.everything()  # each point once
    assert {run.info.status for run in store.runs} == {"FINISHED", "FAILED"}


@pytest.mark.slow
@pytest.mark.parametrize("told", ["", "{", "[]", '{"tracking": 3}'])
def test_a_file_that_a_crash_of_the_machine_has_torn_says_that_something_is_missing(home, told):
    sweep = eventful(home)
    (sweep.folder / behind.FILE_NAME).write_text(told)
    assert behind.read(sweep.folder) == behind.Behind(tracking=sweep.tracking)
    if told == "":
        common.record_what_is_missing(home)
        wait_for(lambda: caught_up(sweep), 60)
        assert len(Store(sweep).trials) == 5


def test_a_checkpoint_deleted_between_two_sessions_is_told(home):
    sweep = eventful(home).track()
    best = sweep.state().trials[4].kept()[-1].checkpoint
    assert Store(sweep).trials[4].data.tags["tunelab.best_checkpoint"] == best
    sweep.add(events.checkpoint_deleted(4, checkpoint=best, by="gc"))
    behind.journal_grew(sweep.folder)
    assert behind.is_behind(sweep.folder) and behind.read(sweep.folder).tracking == sweep.tracking
    assert Store(sweep.track()).trials[4].data.tags["tunelab.best_checkpoint"] != best


@pytest.mark.slow
def test_a_sweep_named_by_its_path_is_caught_up_with_wherever_it_lies(home, tmp_path):
    sweep = lag(eventful(home))
    tunelab(tmp_path, "best", str(sweep.folder))
    wait_for(lambda: caught_up(sweep), 60)
    assert len(Store(sweep).trials) == 5


@pytest.mark.slow
def test_a_moved_home_is_caught_up_with_in_its_own_store(home, tmp_path):
    sweep = lag(eventful(home))
    sweep.journal.close()
    moved = tmp_path / "moved"
    shutil.copytree(home, moved)
    before = (home / "mlflow.sqlite").read_bytes()
    tunelab(moved, "ls")
    wait_for(lambda: not (moved / "toy.1" / behind.FILE_NAME).exists(), 60)
    assert (home / "mlflow.sqlite").read_bytes() == before
    client = mlflow.MlflowClient(f"sqlite:///{moved / 'mlflow.sqlite'}")
    assert len(client.search_runs([client.get_experiment_by_name("toy").experiment_id])) == 6


class TestStartingIt:
    @pytest.fixture
    def started(self, monkeypatch):
        started = []

        def start(command, **options):
            started.append(command)
            return SimpleNamespace(pid=1)

        monkeypatch.setattr("tunelab.trackers.process.subprocess.Popen", start)
        return started

    def test_it_takes_no_time(self, home):
        """Of the verb's own time: a look at the home where nothing lags, starting a process where something does."""
        sweeps = [Sweep(home, f"toy.{number}") for number in range(1, 101)]
        common.record_what_is_missing(home)
        began = time.perf_counter()
        common.record_what_is_missing(home)
        assert time.perf_counter() - began < 0.01
        for sweep in sweeps[:3]:
            behind.mark(sweep.folder, behind.Behind(tracking=Tracking(kind="none", name="none")))
        began = time.perf_counter()
        common.record_what_is_missing(home)
        assert time.perf_counter() - began < 0.1

    def test_one_process_for_all_sweeps_that_lag(self, home, started):
        for number in (1, 2, 3):
            sweep = Sweep(home, f"toy.{number}")
            if number != 2:
                lag(sweep)
        common.record_what_is_missing(home)
        assert [command[-2:] for command in started] == [[str(home / "toy.1"), str(home / "toy.3")]]

    @pytest.mark.parametrize("lock", ["driver.lock", behind.LOCK])
    def test_none_while_a_driver_or_a_tracker_is_at_it(self, home, started, lock):
        import filelock

        sweep = lag(Sweep(home))
        with filelock.FileLock(sweep.folder / lock):
            common.record_what_is_missing(home)
        assert not started
        common.record_what_is_missing(home)
        assert len(started) == 1

    def test_none_in_a_folder_that_cannot_be_written(self, home, started, monkeypatch):
        lag(Sweep(home))
        monkeypatch.setattr("tunelab.trackers.process.os.access", lambda path, mode: mode != os.W_OK)
        common.record_what_is_missing(home)
        assert not started

    def test_none_by_the_doctor_unless_it_is_to_fix(self, home, started):
        sweep = lag(Sweep(home).session().end().track(), recorded=3)
        done = CliRunner().invoke(cli, ["doctor", "--home", str(home)])
        assert done.exit_code == 1 and "may lack how it ended" in done.stdout
        assert not started and (sweep.folder / behind.FILE_NAME).exists()


class TestWedged:
    """A server that accepts and never answers."""

    @pytest.fixture
    def wedged(self):
        with wedged_server() as url:
            yield Tracking(kind="server", name="server", tracking_uri=url)

    def test_the_end_of_a_sweep_waits_for_it_only_so_long_and_says_what_is_missing(self, home, wedged):
        sweep, warned = Sweep(home).session(), []
        tracker = TrackerProcess(sweep.journal.path, wedged, sweep.folder / "log", patience_s=4, warn=warned.append)
        tracker.start()
        try:
            sweep.poke = tracker.poke
            sweep.start(0).report(0, 1, 0.5).finish(0).end()
            began = time.monotonic()
            assert not tracker.close()
            assert 4 <= time.monotonic() - began < 8
        finally:
            os.kill(tracker.pid, signal.SIGKILL)
            tracker._process.wait()
        assert [line.partition(" to take")[0] for line in warned[:1]] == [f"Waiting for {wedged.describe()}"]
        assert warned[-1].startswith(f"{wedged.describe()} has not got the last 8 events")
        assert behind.missing(sweep.folder) == 8

    def test_ctrl_c_ends_the_waiting_and_nothing_else(self, home, wedged):
        sweep = Sweep(home).session().end()
        code = f"""
            import json, sys
            from pathlib import Path
            from tunelab.trackers.process import TrackerProcess
            from tunelab.trackers.tracking import Tracking
            tracking = Tracking.from_json(json.loads({json.dumps(wedged.to_json())!r}))
            tracker = TrackerProcess(Path({str(sweep.journal.path)!r}), tracking, Path({str(sweep.folder / "log")!r}))
            tracker.start()
            print(tracker.pid, flush=True)
            print(tracker.close(), flush=True)
        """
        driver = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
        )
        pid = int(driver.stdout.readline())
        assert "Waiting" in driver.stderr.readline()
        driver.send_signal(signal.SIGINT)
        out, err = driver.communicate(timeout=10)
        os.kill(pid, signal.SIGKILL)
        assert out.strip() == "False" and driver.returncode == 0
        assert "has not got the last 3 events" in err and "Traceback" not in err

    def test_a_verb_does_not_wait_for_it_and_mlflow_is_not_even_loaded(self, home, wedged):
        sweep = eventful(home)
        behind.mark(sweep.folder, behind.Behind(tracking=wedged))
        began = time.monotonic()
        done = tunelab(home, "ls")
        assert done.returncode == 0 and "toy.1" in done.stdout and time.monotonic() - began < 4
        code = (
            "import sys; from tunelab.trackers.run import main; print(main(['--behind', sys.argv[1]]), 'mlflow' in sys.modules)"
        )
        told = subprocess.run(
            [sys.executable, "-c", code, str(sweep.folder)], check=True, capture_output=True, text=True, cwd=REPOSITORY
        )
        assert told.stdout.split() == ["3", "False"]
        assert (sweep.folder / behind.FILE_NAME).exists()

    def test_the_doctor_says_so_soon(self, home, wedged):
        sweep = eventful(home)
        behind.mark(sweep.folder, behind.Behind(tracking=wedged))
        began = time.monotonic()
        done = tunelab(home, "doctor")
        assert done.returncode == 1 and "does not answer (timed out)" in done.stdout
        assert time.monotonic() - began < 15


class TestSqlite:
    """A store in a file, while a tracker writes to it."""

    @pytest.fixture
    def following(self, home):
        """A sweep and its tracker process, which has recorded the first report."""
        sweep = Sweep(home).session().start(0).report(0, 1, 0.5)
        tracker = TrackerProcess(sweep.journal.path, sweep.tracking, sweep.folder / behind.LOG, warn=lambda line: None)
        tracker.start()
        sweep.poke = tracker.poke
        wait_for(lambda: self.points(sweep) == [1])
        yield sweep, tracker
        tracker.close(30)

    def points(self, sweep):
        connection = sqlite3.connect(sweep.tracking.sqlite_file, timeout=10)
        try:
            return [step for (step,) in connection.execute("SELECT step FROM metrics WHERE key = 'accuracy' ORDER BY rowid")]
        except sqlite3.Error:
            return []
        finally:
            connection.close()

    @pytest.mark.slow
    def test_locked_by_somebody_else_for_longer_than_mlflow_waits(self, following):
        sweep, tracker = following
        blocker = sqlite3.connect(sweep.tracking.sqlite_file, isolation_level=None)
        blocker.execute("BEGIN EXCLUSIVE")
        sweep.report(0, 2, 0.6)
        wait_for(lambda: "not recorded yet" in log(sweep), 60)  # after the 20 s that MLflow waits for a lock
        sweep.report(0, 3, 0.7).finish(0).end()
        blocker.execute("ROLLBACK")
        blocker.close()
        assert tracker.close(60), log(sweep)
        assert self.points(sweep) == [1, 2, 3]
        Store(sweep).everything()

    @pytest.mark.slow
    @pytest.mark.parametrize("replacement", [None, "another"], ids=["deleted", "replaced"])
    def test_deleted_in_the_middle(self, following, empty_store, replacement):
        """Whoever has the file open goes on writing to what nobody can read any more; the tracker begins again in a new one."""
        sweep, tracker = following
        file = sweep.tracking.sqlite_file
        for path in file.parent.glob("mlflow.sqlite*"):
            path.unlink()
        if replacement:
            shutil.copy(empty_store, file)
        sweep.report(0, 2, 0.6)
        wait_for(lambda: self.points(sweep) == [1, 2], 90)
        sweep.report(0, 3, 0.7).finish(0).end()
        assert tracker.close(60), log(sweep)
        assert "was deleted or replaced" in log(sweep)
        store = Store(sweep)
        store.everything()
        assert self.points(sweep) == [1, 2, 3] and {run.info.status for run in store.runs} == {"FINISHED"}


class TestTwoAtOnce:
    @pytest.mark.slow
    def test_of_many_commands_one_process_records(self, home):
        sweep = lag(eventful(home))
        pids = [catch_up_later([sweep.folder]) for _ in range(4)]
        assert all(pids)
        wait_for(lambda: caught_up(sweep) and not any(Path(f"/proc/{pid}/cwd").exists() for pid in pids), 90)
        assert log(sweep).count("all recorded") == 1, log(sweep)
        Store(sweep).everything()

    @pytest.mark.slow
    def test_two_trackers_of_one_sweep_record_one_after_the_other(self, home):
        sweep = eventful(home)
        trackers = [TrackerProcess(sweep.journal.path, sweep.tracking, sweep.folder / behind.LOG) for _ in range(2)]
        for tracker in trackers:
            tracker.start()
        for tracker in trackers:
            tracker._process.stdin.close()  # whichever holds the lock follows until then
        assert [tracker.close() for tracker in trackers] == [True, True], log(sweep)
        store = Store(sweep)
        store.everything()
        assert len(store.runs) == 6


class TestCallsCarriedOutLate:
    """A frozen server carries out, once it goes on, what nobody waits for any more."""

    def test_a_run_made_twice_and_an_end_overwritten_are_put_right_at_the_end(self, home):
        sweep = with_checkpoints(eventful(home)).track()
        store = Store(sweep)
        first = store.trials[0].info
        tags = {key: value for key, value in store.trials[0].data.tags.items() if key.startswith("tunelab.")}
        late = store.client.create_run(first.experiment_id, start_time=first.start_time - 1, tags=tags, run_name=first.run_name)
        store.client.update_run(store.trials[1].info.run_id, status="RUNNING")
        store.client.update_run(store.parent.info.run_id, status="RUNNING")
        done = CliRunner().invoke(cli, ["doctor", "--json", "--home", str(home)])
        assert done.exit_code == 1
        assert [finding["what"] for finding in json.loads(done.stdout)] == [
            "trial 0000 has 2 runs in MLflow",
            "the sweep is RUNNING in MLflow and should be FINISHED",
            "trial 0001 is RUNNING in MLflow and should be FINISHED",
        ]
        assert store.client.get_run(late.info.run_id).info.lifecycle_stage == "active"
        done = CliRunner().invoke(cli, ["doctor", "--fix", "--home", str(home)])
        assert done.exit_code == 0 and done.stdout.count("repaired") == 3
        repaired = Store(sweep)
        assert repaired.trials[0].info.run_id == first.run_id and repaired.everything() == store.everything()
        assert CliRunner().invoke(cli, ["doctor", "--home", str(home)]).exit_code == 0


def test_the_doctor_finds_the_runs_of_a_killed_driver_and_of_a_lost_store(home):
    sweep = with_checkpoints(Sweep(home).session().start(0).report(0, 1, 0.5)).track()
    store = Store(sweep)
    for found in store.runs:
        store.client.update_run(found.info.run_id, status="RUNNING")  # as when everybody was killed
    done = CliRunner().invoke(cli, ["doctor", "--json", "--home", str(home)])
    told = {finding["what"] for finding in json.loads(done.stdout) if finding["kind"] == "tracking"}
    assert done.exit_code == 1 and told == {
        "the sweep is RUNNING in MLflow and should be KILLED",
        "trial 0000 is RUNNING in MLflow and should be KILLED",
    }
    assert CliRunner().invoke(cli, ["doctor", "--fix", "--home", str(home)]).exit_code == 0
    assert {found.info.status for found in Store(sweep).runs} == {"KILLED"}
    for path in home.glob("mlflow.sqlite*"):
        path.unlink()
    done = CliRunner().invoke(cli, ["doctor", "--home", str(home)])
    assert "there is no store at" in done.stdout and not (home / "mlflow.sqlite").exists()


def test_a_new_tracker_is_a_line_in_the_table(home, monkeypatch):
    """What the table and a configuration's `tracker` name is what the process loads."""
    recorded = []

    class Notes:
        def __init__(self, tracking):
            self.tracking = tracking

        def open(self, uid, experiment):
            return 0

        def record(self, batch):
            recorded.extend(batch.runs)

    monkeypatch.setattr(sys.modules[__name__], "Notes", Notes, raising=False)
    monkeypatch.setitem(trackers.TABLE, "notes", f"{__name__}:Notes")
    file = home / "notes.toml"
    file.write_text('kind = "local"\ntracker = "notes"\n')
    tracking = resolve_tracking(str(file), home=home, project_root=None, environ={})
    sweep = Sweep(home).session().start(0).end()
    monkeypatch.setattr(os, "nice", lambda by: 0)
    monkeypatch.setattr(run.signal, "signal", lambda *_: None)
    monkeypatch.setattr(run, "_log_to", lambda file: None)
    read, write = os.pipe()
    os.close(write)
    monkeypatch.setattr(run, "Inbox", lambda fd, parent: Inbox(read))
    assert run.main(["--journal", str(sweep.journal.path), "--tracking", json.dumps(tracking.to_json())]) == 0
    assert set(recorded) == {None, 0}
