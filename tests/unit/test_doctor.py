"""`tunelab doctor`: what it finds, what it repairs, and what it never touches. The store's side is in tests/contract."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.unit import histories as h
from tunelab.cli import cli
from tunelab.engine import checkpoints
from tunelab.engine.doctor import files
from tunelab.journal import Event, Journal, events, read_events
from tunelab.journal.home import SweepFolder
from tunelab.journal.locks import OWNER, abandoned, held, scratch
from tunelab.trackers import behind
from tunelab.trackers.tracking import Tracking


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    return tmp_path / "it's my runs"


def doctor(home, *arguments):
    """(exit status, findings by kind)"""
    done = CliRunner().invoke(cli, ["doctor", "--home", str(home), "--json", *arguments])
    assert done.exit_code in (0, 1), done.output
    found = {}
    for finding in json.loads(done.stdout):
        found.setdefault(finding["kind"], []).append(finding)
    return done.exit_code, found


def sweep(home, number=1, *, outcome="finished", storage=None, **sessions):
    """A sweep with one ended trial of two reports, its checkpoints on disk."""
    name = f"digits-mlp.{number}"
    told = [*h.created(name), *h.trial(0, [0.5, 0.6])]
    told += [events.session_ended(outcome=outcome, reason="x")] if outcome else []
    folder = h.write(home, told, name)
    for step in (1, 2):
        put(folder, f"0000/checkpoint_1_{step}")
    return folder


def put(folder, relative, root=None):
    path = (root or folder.trials) / relative
    path.mkdir(parents=True)
    (path / "state.pt").write_bytes(b"x" * 1000)
    return path


def everything(path):
    return sorted(str(entry.relative_to(path)) for entry in path.rglob("*"))


def test_a_home_in_order(home):
    sweep(home)
    assert doctor(home) == (0, {})


def test_no_home_at_all(home):
    assert doctor(home) == (0, {})
    assert not home.exists()


def test_checkpoints_that_nobody_refers_to(home):
    """Left by a killed worker, by a trial that was never journalled, and by a deletion that was journalled and not done."""
    folder = sweep(home)
    lost = [put(folder, name) for name in ("0000/checkpoint_9_9", "0001/checkpoint_1_1", "0000/checkpoint_1_3.partial")]
    before = everything(home)
    status, found = doctor(home)
    (finding,) = found["checkpoint"]
    assert status == 1 and everything(home) == before
    assert finding["what"].startswith("3 checkpoints (") and finding["remedy"] == "removes them"
    assert sorted(finding["items"]) == sorted(map(str, lost))
    status, found = doctor(home, "--fix")
    assert status == 0 and found["checkpoint"][0]["repaired"] is True
    assert not any(path.exists() for path in lost)
    assert sorted(path.name for path in (folder.trials / "0000").iterdir()) == ["checkpoint_1_1", "checkpoint_1_2"]
    assert doctor(home) == (0, {})


def test_a_checkpoint_that_an_unfinished_trial_started_from_is_needed(home):
    told = [*h.created(), *h.trial(0, [0.5], end=None)]
    told += [events.proposed(1, config={}, seed=1, origin="x")]
    told += [events.started(1, attempt=1, checkpoint="0000/checkpoint_donor", from_step=1)]
    folder = h.write(home, [*told, events.session_ended(outcome="interrupted", reason="Ctrl-C")])
    put(folder, "0000/checkpoint_1_1")
    donor = put(folder, "0000/checkpoint_donor")
    status, found = doctor(home, "--fix")
    assert status == 0 and set(found) == {"unfinished"} and donor.exists()


def test_checkpoints_that_are_gone_are_struck_off(home):
    folder = sweep(home, outcome=None)
    (folder.trials / "0000" / "checkpoint_1_2" / "state.pt").unlink()
    (folder.trials / "0000" / "checkpoint_1_2").rmdir()
    status, found = doctor(home)
    assert status == 1 and found["checkpoint"][0]["items"] == ["0000/checkpoint_1_2"]
    length, elapsed_s = len(list(read_events(folder.journal))), folder.load().elapsed_s
    assert doctor(home, "--fix")[0] == 0
    assert len(list(read_events(folder.journal))) == length + 1
    state = folder.load()
    assert state.trials[0].latest_checkpoint().checkpoint == "0000/checkpoint_1_1"
    assert state.elapsed_s == elapsed_s  # nobody ran it meanwhile
    assert set(doctor(home)[1]) == {"unfinished"}


def test_a_storage_that_is_not_there_is_not_taken_for_lost(home, tmp_path):
    storage = tmp_path / "mounted"
    created = events.sweep_created(sweep="digits-mlp.1", experiment=h.experiment(), facts={"git": {}, "storage": str(storage)})
    told = [created, h.session(), *h.trial(0, [0.5]), events.session_ended(outcome="finished", reason="x")]
    folder = h.write(home, told)
    status, found = doctor(home, "--fix")
    assert status == 1 and "Is it mounted?" in found["checkpoint"][0]["what"]
    assert not folder.load().trials[0].deleted
    put(folder, "digits-mlp.1/0000/checkpoint_1_1", storage)
    assert doctor(home) == (0, {})


def test_half_written_files_and_a_sweep_that_never_began(home):
    folder = sweep(home)
    (folder.path / "experiment.py.partial").write_text("half")
    never = home / "digits-mlp.2"
    never.mkdir()
    (never / "driver.lock").touch()
    (never / "experiment.py").write_text("x")
    precious = home / "digits-mlp.3"
    precious.mkdir()
    (precious / "notes.txt").write_text("mine")
    status, found = doctor(home)
    assert status == 1 and [Path(one["items"][0]).name for one in found["half-written"]] == [
        "experiment.py.partial",
        "digits-mlp.2",
    ]
    assert doctor(home, "--fix")[0] == 0
    assert not never.exists() and not (folder.path / "experiment.py.partial").exists()
    assert (precious / "notes.txt").read_text() == "mine"


def test_a_sweep_whose_driver_lives_is_left_alone(home):
    folder = sweep(home, outcome=None)
    left = put(folder, "0000/checkpoint_9_9")
    (folder.path / "x.partial").touch()
    with folder.lock.open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = everything(home)
        assert doctor(home, "--fix") == (0, {})
        assert everything(home) == before
    assert doctor(home, "--fix")[0] == 0
    assert not left.exists()


class TestASweepThatIsJustStarting:
    """It is a folder without a journal when the doctor looks, and more than that when the doctor is to remove it."""

    @pytest.fixture
    def found(self, home):
        folder = SweepFolder(home / "digits-mlp.1")
        folder.path.mkdir(parents=True)
        (finding,) = files.never_began(folder)
        return folder, finding

    def test_its_driver_lives(self, found):
        folder, finding = found
        with folder.lock.open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            assert finding.repair() is False
        assert folder.path.is_dir()
        assert finding.repair() is True and not folder.path.exists()

    def test_its_driver_has_ended_since(self, home, found):
        folder, finding = found
        h.write(home, h.created())
        assert finding.repair() is False
        assert folder.journal.exists()


class TestAStorageThatBelongsToAnother:
    """A copied sweep's journal does not know what the original has written since."""

    @pytest.fixture
    def copied(self, home, tmp_path):
        """(the copy, where the checkpoints are)"""
        facts = {"git": {}, "storage": str(tmp_path / "storage")}
        created = events.sweep_created(sweep="digits-mlp.1", experiment=h.experiment(), facts=facts)
        told = [created, h.session(), *h.trial(0, [0.5]), events.session_ended(outcome="finished", reason="x")]
        original, copy = h.write(tmp_path / "original", told), h.write(home, told)
        storage = tmp_path / "storage" / "digits-mlp.1"
        checkpoints.claim(str(storage), original.path, new=True)
        put(copy, "0000/checkpoint_1_1", storage)
        return original, put(copy, "0000/checkpoint_1_2", storage)

    def test_nothing_of_it_is_removed(self, home, copied):
        original, unknown = copied
        status, found = doctor(home, "--fix")
        (finding,) = found["checkpoint"]
        assert status == 0 and unknown.exists() and not finding["repairable"]
        assert f"belong to {original.path}" in finding["what"]

    def test_unless_the_other_is_gone(self, home, copied):
        original, unknown = copied
        original.journal.unlink()
        assert doctor(home, "--fix")[0] == 0
        assert not unknown.exists()


class TestWhatCannotBeRead:
    """It is told, and the doctor goes on."""

    @staticmethod
    def forbid(monkeypatch, name, forbidden):
        """Let one folder be as another user's."""
        really = getattr(Path, name)

        def refuse(self, *arguments, **options):
            if forbidden in (self, *self.parents):
                raise PermissionError(13, "Permission denied", str(self))
            return really(self, *arguments, **options)

        monkeypatch.setattr(Path, name, refuse)

    def test_a_folder_without_a_journal(self, home, monkeypatch):
        left = put(sweep(home), "0000/checkpoint_9")
        (home / "digits-mlp.2").mkdir()
        self.forbid(monkeypatch, "iterdir", home / "digits-mlp.2")
        status, found = doctor(home, "--fix")
        (finding,) = found["folder"]
        assert status == 1 and finding["where"].endswith("digits-mlp.2") and "it cannot be read" in finding["what"]
        assert found["checkpoint"][0]["repaired"] is True and not left.exists()

    @pytest.mark.parametrize("arguments", [[], ["--fix"]])
    def test_a_sweeps_files(self, home, monkeypatch, arguments):
        left = put(sweep(home), "0000/checkpoint_9")
        unreadable = sweep(home, 2)
        self.forbid(monkeypatch, "glob", unreadable.path)
        status, found = doctor(home, *arguments)
        (finding,) = found["folder"]
        assert status == 1 and finding["where"] == "digits-mlp.2" and "Permission denied" in finding["what"]
        assert left.exists() is not bool(arguments)

    def test_a_checkpoint_that_cannot_be_looked_at_is_not_taken_for_gone(self, home, monkeypatch):
        folder = sweep(home)
        monkeypatch.setattr(checkpoints, "size", lambda storage, checkpoint: None)
        status, found = doctor(home, "--fix")
        (finding,) = found["checkpoint"]
        assert status == 1 and "cannot be read" in finding["what"] and not finding["repairable"]
        assert not folder.load().trials[0].deleted

    @pytest.mark.parametrize("verb", ["ls", "doctor"])
    def test_a_journal_of_a_newer_tunelab(self, home, verb):
        sweep(home)
        newer = Event("session_started", None, {**h.session().data, "mood": "good"})
        h.write(home, [h.created("digits-mlp.2")[0], newer], "digits-mlp.2")
        done = CliRunner().invoke(cli, [verb, "--home", str(home)])
        assert "written by a newer tunelab, or is damaged" in done.output and "digits-mlp.2" in done.output
        assert done.exit_code == int(verb == "doctor")
        assert verb == "doctor" or "digits-mlp.1" in done.stdout


class TestLinks:
    """Nothing outside of the home is looked at, let alone removed."""

    @pytest.fixture
    def outside(self, tmp_path):
        path = tmp_path / "outside"
        (path / "checkpoint_1").mkdir(parents=True)
        (path / "checkpoint_1" / "precious").write_text("mine")
        (path / "x.partial").write_text("mine")
        yield path
        assert everything(path) == ["checkpoint_1", "checkpoint_1/precious", "x.partial"]

    def test_a_trials_folder_that_is_a_link(self, home, outside):
        folder = sweep(home)
        (folder.trials / "0001").symlink_to(outside)
        assert doctor(home, "--fix") == (0, {})

    def test_a_checkpoint_that_is_a_link(self, home, outside):
        folder = sweep(home)
        (folder.trials / "0000" / "checkpoint_9").symlink_to(outside / "checkpoint_1")
        assert doctor(home, "--fix") == (0, {})

    def test_a_checkpoint_that_became_a_link(self, home, outside):
        folder = sweep(home)
        kept = folder.trials / "0000" / "checkpoint_1_2"
        kept.rename(folder.path / "moved")
        kept.symlink_to(outside / "checkpoint_1")
        status, found = doctor(home, "--fix")
        (finding,) = found["checkpoint"]
        assert status == 1 and "behind a link: left alone" in finding["what"] and not finding["repairable"]

    def test_a_link_inside_of_a_checkpoint_that_nobody_refers_to(self, home, outside):
        folder = sweep(home)
        left = put(folder, "0000/checkpoint_9")
        (left / "data").symlink_to(outside)
        assert doctor(home, "--fix")[0] == 0
        assert not left.exists()

    def test_all_trials_behind_a_link(self, home, outside):
        folder = sweep(home)
        (folder.trials / "0000").rename(outside.parent / "moved")
        folder.trials.rmdir()
        (outside / "0000").mkdir()
        folder.trials.symlink_to(outside)
        status, found = doctor(home, "--fix")
        assert status == 0 and "is a link" in found["folder"][0]["what"]
        (outside / "0000").rmdir()

    def test_a_sweep_that_is_a_link(self, home, outside, tmp_path):
        folder = sweep(tmp_path / "elsewhere")
        put(folder, "0000/checkpoint_9")
        home.mkdir()
        (home / "digits-mlp.1").symlink_to(folder.path)
        before = everything(folder.path)
        status, found = doctor(home, "--fix")
        assert status == 0 and "it is a link" in found["folder"][0]["what"]
        assert [name for name in everything(folder.path) if name != "driver.lock"] == before

    @pytest.mark.parametrize("name", ["../../../outside/checkpoint_1", "/etc"])
    def test_a_checkpoint_that_the_journal_places_outside(self, home, outside, name):
        folder = sweep(home)
        journal = Journal(folder.journal)
        journal.append(events.proposed(1, config={}, seed=1, origin="x"))
        journal.append(events.started(1, attempt=1, checkpoint=None, from_step=None))
        journal.append(events.reported(1, attempt=1, step=1, value=0.5, metrics={}, checkpoint=name))
        journal.append(events.finished(1, status="completed", reason=""))
        journal.close()
        status, found = doctor(home, "--fix")
        (finding,) = found["checkpoint"]
        assert status == 1 and finding["items"] == [name] and not finding["repairable"]


class TestProcesses:
    """Real processes of a driver that is dead, and the same of one that lives."""

    @pytest.fixture
    def start(self):
        started = []

        def start(*arguments, cwd=None, **environment):
            process = subprocess.Popen(
                [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(600)", *arguments],
                cwd=cwd, env={**os.environ, **environment}, stdout=subprocess.PIPE,
            )  # fmt: skip
            process.stdout.readline()
            started.append(process)
            return process

        yield start
        for process in started:
            process.kill()
            process.wait()
            process.stdout.close()

    @staticmethod
    def dead_pid():
        process = subprocess.Popen([sys.executable, "-c", ""])
        process.wait()
        return process.pid

    @staticmethod
    def write(home, pid, host=None, at=None):
        budget = h.experiment()["budget"]
        session = events.session_started(pid=pid, host=host or socket.gethostname(), resources={}, budget=budget, tracking=None)
        folder = h.write(home, [])
        journal = Journal(folder.journal, clock=lambda: time.time() if at is None else at)
        journal.append(h.created()[0])
        journal.append(session)
        for event in h.trial(0, [0.5], end=None):
            journal.append(event)
        journal.close()
        put(folder, "0000/checkpoint_1_1")
        (folder.trials / "0000" / "rank0").mkdir()
        return folder

    @staticmethod
    def session_name(pid, at=None):
        return f"--session-dir=/tmp/ray/session_{time.strftime('%Y-%m-%d_%H-%M-%S', time.localtime(at))}_123456_{pid}"

    def test_what_a_dead_driver_left_is_ended_and_nothing_else(self, home, start):
        pid = self.dead_pid()
        folder = self.write(home, pid)
        rank = folder.trials / "0000" / "rank0"
        leftovers = [start(self.session_name(pid)), start(cwd=rank, RAY_JOB_ID="01000000")]
        others = [
            start(self.session_name(pid + 100_000)),  # another driver's
            start(self.session_name(pid, time.time() - 86400)),  # yesterday's, of the same process id
            start(cwd=rank),  # somebody's shell
            start(cwd=home, RAY_JOB_ID="01000000"),
        ]
        status, found = doctor(home)
        (finding,) = found["process"]
        assert status == 1 and {int(item.split()[0]) for item in finding["items"]} == {one.pid for one in leftovers}
        assert all(one.poll() is None for one in leftovers)
        assert doctor(home, "--fix")[0] == 0
        assert all(one.wait(10) is not None for one in leftovers)
        assert all(one.poll() is None for one in others)

    def test_a_driver_that_lives_elsewhere_or_under_the_same_id(self, home, start):
        alive = start()
        process = start(self.session_name(alive.pid))
        self.write(home, alive.pid)
        assert "process" not in doctor(home, "--fix")[1]
        assert process.poll() is None

    def test_another_machines(self, home, start):
        pid = self.dead_pid()
        self.write(home, pid, host="elsewhere")
        process = start(self.session_name(pid))
        assert "process" not in doctor(home, "--fix")[1]
        assert process.poll() is None


class TestTemporaryFolders:
    def test_a_killed_owners_is_removed_and_a_living_ones_is_not(self, home):
        code = (
            "import os, sys, tempfile, time; tempfile.tempdir = sys.argv[1]\n"
            "from tunelab.journal.locks import scratch\n"
            "with scratch('tunelab-tune-') as folder: print(folder, flush=True); time.sleep(600)"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", code, tempfile.gettempdir()],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        left = Path(process.stdout.readline().strip())
        old = time.time() - 3600
        os.utime(left / OWNER, (old, old))
        assert not abandoned(left) and doctor(home) == (0, {})
        process.kill()
        process.wait()
        process.stdout.close()
        assert abandoned(left)
        foreign = Path(tempfile.gettempdir(), "tunelab-tune-other")
        foreign.mkdir()
        with scratch("tunelab-tune-") as own:
            os.utime(Path(own, OWNER), (old, old))
            status, found = doctor(home)
            assert status == 1 and found["temporary"][0]["items"] == [str(left)]
            assert doctor(home, "--fix")[0] == 0
            assert not left.exists() and Path(own).exists() and foreign.exists()
        assert not Path(own).exists()

    def test_one_that_has_just_been_made_is_in_use(self, tmp_path):
        (tmp_path / OWNER).touch()
        assert not held(tmp_path / OWNER) and not abandoned(tmp_path)


def test_an_unfinished_sweep_is_told_with_how_to_go_on_and_is_no_fault(home):
    sweep(home, outcome=None)
    status, found = doctor(home)
    (finding,) = found["unfinished"]
    assert status == 0
    assert "its driver was killed: 1 of 32 trials have ended" in finding["what"]
    assert finding["remedy"] == f"tunelab resume digits-mlp.1 --home '{home!s}'".replace("it's", "it'\"'\"'s")


def test_tracking_that_lags_behind_a_silent_server(home):
    folder = sweep(home)
    away = Tracking(kind="server", name="server", tracking_uri="http://127.0.0.1:9")
    behind.mark(folder.path, behind.Behind(tracking=away, recorded=3))
    status, found = doctor(home)
    (finding,) = found["tracking"]
    assert status == 1 and not finding["repairable"]
    assert "does not answer" in finding["what"] and "lacks the last 6 events" in finding["what"]
    assert (folder.path / behind.FILE_NAME).exists()


def test_lines_for_people(home):
    folder = sweep(home)
    put(folder, "0000/checkpoint_9_9")
    done = CliRunner().invoke(cli, ["doctor", "digits-mlp", "--home", str(home)])
    assert done.exit_code == 1
    assert done.stdout == (
        "digits-mlp.1: 1 checkpoint (0000/checkpoint_9_9) that nobody refers to, 0.0 MB.  --fix removes it\n"
    )
    assert "tunelab doctor --fix --home" in done.stderr
    done = CliRunner().invoke(cli, ["doctor", "digits-mlp", "--home", str(home), "--fix"])
    assert done.exit_code == 0 and done.stdout.endswith("repaired (removes it)\n")
    done = CliRunner().invoke(cli, ["doctor", "--home", str(home)])
    assert done.exit_code == 0 and done.stdout == "" and done.stderr == "Nothing found in 1 sweep.\n"


def test_an_unreadable_journal_does_not_hide_the_others(home):
    sweep(home)
    (home / "digits-mlp.2").mkdir()
    (home / "digits-mlp.2" / "journal.sqlite").write_text("no journal " * 500)
    left = put(sweep(home, 3), "0000/checkpoint_9")
    status, found = doctor(home, "--fix")
    assert status == 1 and found["journal"][0]["where"] == "digits-mlp.2"
    assert not left.exists()


def test_an_unknown_sweep_is_refused(home):
    sweep(home)
    done = CliRunner().invoke(cli, ["doctor", "digts-mlp", "--home", str(home)])
    assert done.exit_code == 2 and "Did you mean 'digits-mlp'?" in done.stderr
