"""Where a sweep is tracked to, and what its events mean for a tracker. No MLflow in here."""

import itertools
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tunelab import trackers
from tunelab.core import select
from tunelab.errors import BadInputError, UnknownNameError
from tunelab.journal import Event, events, read_events
from tunelab.trackers import follow, words
from tunelab.trackers.changes import SWEEP, Batch
from tunelab.trackers.projection import Projection
from tunelab.trackers.tracking import Tracking, resolve_tracking

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path):
    (tmp_path / "mlruns_config").mkdir()
    return tmp_path


def resolve(flag=None, *, home=Path("runs"), project=None, **environ):
    return resolve_tracking(flag, home=home, project_root=project, environ=environ)


class TestOrder:
    def test_without_anything_said_it_is_a_sqlite_store_in_the_home(self, tmp_path):
        tracking = resolve(home=tmp_path / "my runs")
        assert tracking.kind == "local"
        assert tracking.sqlite_file == tmp_path / "my runs" / "mlflow.sqlite"
        assert tracking.artifacts == (tmp_path / "my runs" / "mlartifacts").as_uri()

    def test_a_relative_home_becomes_absolute(self):
        assert resolve(home=Path("runs")).sqlite_file == Path("runs").absolute() / "mlflow.sqlite"

    def test_flag_before_environment_before_project_before_default(self, project):
        (project / "pyproject.toml").write_text('[tool.tunelab]\ntracking = "team"\n')
        (project / "mlruns_config" / "team.toml").write_text('kind = "server"\nuri = "http://team:5000"\nexperiment = "all"\n')
        assert resolve(project=project).tracking_uri == "http://team:5000"
        assert resolve(project=project).experiment == "all"
        assert resolve(project=project, MLFLOW_TRACKING_URI="http://env:1").tracking_uri == "http://env:1"
        assert resolve("none", project=project, MLFLOW_TRACKING_URI="http://env:1").kind == "none"
        assert resolve("local", project=project, MLFLOW_TRACKING_URI="http://env:1").kind == "local"

    def test_the_projects_file_stands_before_the_packaged_one_of_that_name(self, project):
        assert resolve("server", project=project).tracking_uri == "http://127.0.0.1:5000"
        (project / "mlruns_config" / "server.toml").write_text('kind = "server"\nuri = "https://mlflow.example"\n')
        assert resolve("server", project=project).tracking_uri == "https://mlflow.example"

    def test_any_file_can_be_named(self, tmp_path):
        (tmp_path / "it's here.toml").write_text('kind = "local"\nstore = "all.sqlite"\nartifacts = "s3://bucket/x"\n')
        tracking = resolve(str(tmp_path / "it's here.toml"), home=tmp_path)
        assert (tracking.sqlite_file, tracking.artifacts) == (tmp_path / "all.sqlite", "s3://bucket/x")

    def test_a_file_named_in_pyproject_is_relative_to_the_project(self, project):
        (project / "pyproject.toml").write_text('[tool.tunelab]\ntracking = "ci/mlflow.toml"\n')
        (project / "ci").mkdir()
        (project / "ci" / "mlflow.toml").write_text('kind = "none"\n')
        assert resolve(project=project).kind == "none"

    def test_a_sqlite_store_from_the_environment_is_local(self, tmp_path):
        tracking = resolve(MLFLOW_TRACKING_URI=f"sqlite:///{tmp_path}/x.db")
        assert (tracking.kind, tracking.sqlite_file) == ("local", tmp_path / "x.db")

    def test_the_repositorys_own_files_resolve(self):
        found = sorted(path.stem for path in (REPOSITORY / "mlruns_config").glob("*.toml"))
        assert {"local", "server"} <= set(found)
        for name in found:
            assert resolve(name, project=REPOSITORY).kind in ("local", "server")

    def test_a_local_store_moves_with_its_home_and_a_server_does_not(self, tmp_path):
        before, now = tmp_path / "it's here", tmp_path / "there"
        moved = resolve(home=before).moved(before, now)
        assert (moved.sqlite_file, moved.artifacts) == (now / "mlflow.sqlite", (now / "mlartifacts").as_uri())
        assert resolve("server").moved(before, now) == resolve("server")
        elsewhere = resolve(MLFLOW_TRACKING_URI=f"sqlite:///{tmp_path}/x.db")
        assert elsewhere.moved(before, now).sqlite_file == tmp_path / "x.db"

    def test_the_choice_survives_json_and_says_itself_in_one_line(self, tmp_path):
        for tracking in (resolve(home=tmp_path), resolve("server"), resolve("none")):
            assert Tracking.from_json(tracking.to_json()) == tracking
            assert "\n" not in tracking.describe()
        assert resolve("none").describe() == "none"
        assert resolve("server").describe() == "server (http://127.0.0.1:5000)"


class TestRefusals:
    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ('kind = "server"\nuri = "http://me:hunter2@host"', "user name or password in its address"),
            ('kind = "server"\nuri = "https://sometoken9@host"', "user name or password"),
            ('kind = "server"\nuri = "postgresql://me:hunter2@db/mlflow"', "user name or password"),
            ('kind = "server"\nuri = "https://host/?api_key=hunter2"', "secret in its address's query"),
            ('kind = "server"\nuri = "http://host"\npassword = "hunter2"', "'password' looks like a secret"),
            ('kind = "server"\nuri = "http://host"\nMLFLOW_TRACKING_TOKEN = "hunter2"', "looks like a secret"),
            ('kind = "server"\nuri = "http://host"\nexperiment = "dapi0123456789abcdef0123456789abcdef"', "access token"),
            ('kind = "server"', "needs uri"),
            ('kind = "server"\nuri = "./mlruns"', "no longer keeps runs in folders"),
            ('kind = "server"\nurl = "http://host"', "Did you mean 'uri'?"),
            ('kind = "local"\nuri = "http://host"', "No key for kind local is called 'uri'"),
            ('kind = "remote"', "kind needs to be one of local, server, none; it is 'remote'"),
            ('uri = "http://host"', "it is missing"),
            ('kind = "local"\nstore = 3', "store needs a text, got 3"),
            ('kind = "local"\ntracker = "mlfow"', "No tracker is called 'mlfow'. Did you mean 'mlflow'?"),
            ('kind = "local', "Cannot read"),
        ],
    )
    def test_a_configuration_that_breaks_the_rules(self, project, text, says):
        (project / "mlruns_config" / "bad.toml").write_text(text)
        with pytest.raises(BadInputError) as caught:
            resolve("bad", project=project)
        assert says in str(caught.value)
        assert not any(secret in str(caught.value) for secret in ("hunter2", "sometoken9", "dapi0123"))

    def test_all_problems_at_once(self, project):
        (project / "mlruns_config" / "bad.toml").write_text('kind = "local"\nuri = "http://h"\ntoken = "t"\n')
        with pytest.raises(BadInputError, match=r"(?s)'uri'.*'token'"):
            resolve("bad", project=project)

    def test_secrets_in_the_environments_address(self):
        with pytest.raises(BadInputError, match="MLFLOW_TRACKING_USERNAME") as caught:
            resolve(MLFLOW_TRACKING_URI="https://me:hunter2@host")
        assert "hunter2" not in str(caught.value)
        assert resolve(MLFLOW_TRACKING_URI="postgresql://me@db/mlflow").kind == "server"

    def test_a_folder_in_the_environment(self):
        with pytest.raises(BadInputError, match="sqlite:///PATH"):
            resolve(MLFLOW_TRACKING_URI="./mlruns")

    def test_an_unknown_name_gets_a_suggestion(self, project):
        with pytest.raises(UnknownNameError, match="Did you mean 'server'"):
            resolve("sever", project=project)

    def test_an_address_as_flag(self):
        with pytest.raises(BadInputError, match="Put the address into MLFLOW_TRACKING_URI"):
            resolve("http://host:5000")

    def test_a_missing_file(self):
        with pytest.raises(BadInputError, match=r"there is no file nowhere\.toml"):
            resolve("nowhere.toml")

    def test_a_value_in_pyproject_that_is_no_text(self, project):
        (project / "pyproject.toml").write_text("[tool.tunelab]\ntracking = 3\n")
        with pytest.raises(BadInputError, match="needs a name or a file, got 3"):
            resolve(project=project)


def test_the_family_knows_its_members():
    assert trackers.names() == ["mlflow"]
    with pytest.raises(UnknownNameError, match="Did you mean 'mlflow'"):
        trackers.load("mlfow")


def test_the_driver_needs_no_mlflow():
    modules = "tunelab.trackers.process, tunelab.trackers.ui, tunelab.trackers.tracking"
    code = f"import sys, {modules}; print(sorted({{'mlflow', 'ray', 'torch'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, cwd=REPOSITORY)
    assert done.stdout.strip() == "[]", done.stderr


# What events mean


class Story:
    """A journal in memory: events get positions and times as a journal gives them."""

    def __init__(self, mode="max", step="epoch"):
        self.events: list[Event] = []
        objective = {"metric": "accuracy", "mode": mode, "step": step}
        self.add(events.sweep_created(sweep="toy.1", experiment={"name": "toy", "objective": objective}, facts={}))
        self.add(events.session_started(pid=1, host="h", resources={}, budget={"trials": 9}, tracking=None))

    def add(self, event: Event):
        seq = len(self.events) + 1
        self.events.append(Event(event.kind, event.trial, event.data, seq, 1000.0 + seq / 8))
        return self

    def start(self, trial=0, attempt=1, from_step=None, **config):
        if attempt == 1:
            self.add(events.proposed(trial, config=config, seed=7, origin="tpe"))
        checkpoint = None if from_step is None else f"{trial:04d}/c{from_step}"
        return self.add(events.started(trial, attempt=attempt, checkpoint=checkpoint, from_step=from_step))

    def report(self, step, value, trial=0, attempt=1, checkpoint=True, **metrics):
        path = f"{trial:04d}/a{attempt}s{step}" if checkpoint else None
        metrics = {"epoch": step, "accuracy": value, **metrics}
        return self.add(events.reported(trial, attempt=attempt, step=step, value=value, metrics=metrics, checkpoint=path))

    def project(self) -> tuple[Projection, Batch]:
        projection = Projection(Path("nowhere"))
        for event in self.events:
            projection.apply(event)
        return projection, projection.take()

    def points(self, key, trial=0):
        return [(p.step, p.value) for p in self.project()[1].runs[trial].points if p.key == key]


class TestProjection:
    def test_whole_steps_are_used_as_they_are(self):
        story = Story().start().report(10, 0.1).report(20, 0.2).report(30.0, 0.3)
        assert story.points("accuracy") == [(10, 0.1), (20, 0.2), (30, 0.3)]

    def test_fractional_steps_get_the_next_free_number_and_stay_in_the_metrics(self):
        story = Story().start().report(0.5, 0.1).report(1.0, 0.2).report(1.5, 0.3).report(7.0, 0.4)
        assert [step for step, _ in story.points("accuracy")] == [0, 1, 2, 7]
        assert [value for _, value in story.points("epoch")] == [0.5, 1.0, 1.5, 7.0]
        late = Story().start().report(1.0, 0.1).report(1.5, 0.2).report(2.0, 0.3)
        assert [step for step, _ in late.points("accuracy")] == [1, 2, 3]

    def test_recomputed_steps_are_recorded_once_and_counted(self):
        story = Story().start().report(1, 0.1).report(2, 0.2).start(attempt=2, from_step=1)
        story.report(2, 0.25, attempt=2).report(3, 0.3, attempt=2)
        assert story.points("accuracy") == [(1, 0.1), (2, 0.2), (3, 0.3)]
        assert story.project()[1].runs[0].tags["tunelab.recomputed_steps"] == "1"

    def test_infinities_become_nan_and_are_told(self):
        changes = Story().start().report(1, 0.1, loss=math.inf, other=-math.inf, big=10**400).project()[1].runs[0]
        found = {p.key: p.value for p in changes.points}
        assert all(math.isnan(found[key]) for key in ("loss", "other", "big"))
        assert changes.tags["tunelab.infinite"] == "loss inf at epoch 1; other -inf at epoch 1; big inf at epoch 1"

    def test_only_numbers_are_points(self):
        changes = Story().start().report(1, 0.1, text="x", flag=True, nothing=None, eval={"f1": 0.5}).project()[1].runs[0]
        found = {p.key: p.value for p in changes.points if not p.key.startswith("best.")}
        assert found == {"epoch": 1.0, "accuracy": 0.1, "flag": 1.0, "eval.f1": 0.5}

    def test_the_best_is_always_what_select_says(self):
        story = Story().start(0).start(1)
        told = []
        script = [
            lambda: story.report(1, 0.5),
            lambda: story.report(1, 0.6, trial=1, checkpoint=False),
            lambda: story.report(2, 0.4),
            lambda: story.report(3, math.nan),
            lambda: story.report(4, 0.9, checkpoint=False),
            lambda: story.report(5, 0.8),
            lambda: story.report(6, 0.8),
            lambda: story.add(events.checkpoint_deleted(0, checkpoint="0000/a1s5")),
            lambda: story.report(2, 0.7, trial=1),
            lambda: story.start(attempt=2, from_step=2).report(3, 0.45, attempt=2),
            lambda: story.report(4, math.inf, attempt=2),
            lambda: story.add(events.finished(1, status="failed", reason="x")),
            lambda: story.add(events.finished(0, status="completed", reason="x")),
        ]
        for act in script:
            act()
            projection, batch = story.project()
            for key, trials in ((0, [0]), (1, [1]), (SWEEP, [0, 1])):
                best = select.best([projection.state.trials[number] for number in trials], "max")
                points = [p for p in batch.runs[key].points if p.key == "best.accuracy"]
                assert [p.step for p in points] == list(range(1, len(points) + 1))
                latest = points[-1].value if points else math.nan
                if best is None:
                    assert math.isnan(latest), (len(told), key)
                else:
                    assert latest == best.report.value, (len(told), key)
                    assert batch.runs[key].tags["tunelab.best_step"] == f"{best.report.step:g}"
            told.append(latest)
        assert [value for value, _ in itertools.groupby(told)] == [0.5, 0.8, 0.7, 0.5]  # the sweep's best, up and down

    def test_batches_say_the_same_however_they_are_cut(self):
        story = Story().start(0).report(1, 0.5).start(1).report(1, 0.6, trial=1).report(2, 0.7)
        story.add(events.attempt_ended(0, attempt=1, outcome="failed", failure="worker lost", message="node gone"))
        story.start(0, attempt=2, from_step=1).report(2, 0.8, attempt=2).add(events.finished(0, status="stopped", reason="r"))
        whole = {key: changes.points for key, changes in story.project()[1].runs.items()}
        projection, pieces = Projection(Path("nowhere")), {}
        for event in story.events:
            projection.apply(event)
            for key, changes in projection.take().runs.items():
                pieces.setdefault(key, []).extend(changes.points)
        assert pieces == whole

    def test_attempts_are_told_in_words(self):
        story = Story().start().report(3, 0.1)
        story.add(events.attempt_ended(0, attempt=1, outcome="failed", failure="worker lost", message="node 2 is gone"))
        story.start(attempt=2, from_step=3)
        tags = story.project()[1].runs[0].tags
        assert tags["tunelab.attempt.1"] == "from nothing; failed: worker lost: node 2 is gone"
        assert tags["tunelab.attempt.2"] == "from the checkpoint of epoch 3; running"
        assert (tags["tunelab.attempts"], tags["tunelab.status"]) == ("2", "running")

    def test_an_amended_experiment_is_told_and_its_best_found_anew(self):
        story = Story().start(0).report(1, 0.5, loss=3.0).start(1).report(1, 0.4, trial=1, loss=2.0)
        objective = {"metric": "loss", "mode": "min", "step": "epoch"}
        changed = {"name": "toy", "objective": objective}
        story.add(events.amended(experiment=changed, changes=["objective: accuracy max -> loss min"], forced=True))
        projection, batch = story.project()
        assert batch.runs[SWEEP].tags["tunelab.amended"] == "objective: accuracy max -> loss min"
        assert batch.runs[SWEEP].tags["tunelab.best_trial"] == "toy.1/0001"
        assert [p.value for p in batch.runs[SWEEP].points if p.key == "best.loss"][-1] == 2.0

    def test_a_reopened_trial_is_open_again(self):
        story = Story().start(0).report(1, 0.5).add(events.finished(0, status="failed", reason="x"))
        story.add(events.reopened(0, upto=1, reason="retry"))
        projection, batch = story.project()
        assert batch.runs[0].status == "KILLED" and batch.runs[0].tags["tunelab.status"] == "interrupted"
        assert [p.value for p in batch.runs[0].points if p.key == "best.accuracy"][-1] == 0.5
        story.start(0, attempt=2, from_step=1)
        assert story.project()[1].runs[0].status == "RUNNING"

    def test_a_kind_of_event_that_it_has_nothing_to_say_of_does_not_stop_it(self, monkeypatch):
        from tunelab.journal import state

        monkeypatch.setitem(state._HANDLERS, "novel", lambda sweep, event: None)
        story = Story().add(Event("novel", None, {})).start().report(1, 0.5)
        assert story.points("accuracy") == [(1, 0.5)]

    def test_a_dead_driver_leaves_nothing_open(self):
        projection, _ = Story().start(0).start(1).add(events.finished(1, status="completed", reason="")).project()
        batch = projection.close_open()
        assert {key: changes.status for key, changes in batch.runs.items()} == {SWEEP: "KILLED", 0: "KILLED"}

    def test_two_sweeps_of_one_name_are_told_apart(self):
        here, there = Story(), Story()
        there.events[0] = Event("sweep_created", None, there.events[0].data, 1, 2000.0)
        assert here.project()[0].uid != there.project()[0].uid
        assert here.project()[0].uid == Story().project()[0].uid


class TestWords:
    @pytest.mark.parametrize(
        ("name", "allowed"),
        [
            ("lr", "lr"),
            ("a/b.c-d e:f", "a/b.c-d e:f"),
            ("f1 (macro)", "f1 _macro_"),
            ("größe", "größe"),
            ("", "_"),
            ("..", "__"),
        ],
    )
    def test_names(self, name, allowed):
        assert words.key(name) == allowed

    def test_names_that_would_be_paths_and_long_ones(self):
        for name in ("/a", "a//b", "a/", "./a", "../a", "a/../b", ".", "x" * 400):
            assert 0 < len(words.key(name)) <= 250
            assert words.key(words.key(name)) == words.key(name)
        assert words.key("x" * 300) != words.key("x" * 301)

    def test_parameters_are_flat_distinct_and_never_cut_in_silence(self):
        found, replaced = words.params(
            {"opt": {"name": "sgd", "betas": [0.9, 0.99]}, "a*": 1, "a?": 2, "empty": {}, "none": None}
        )
        assert {k: v for k, v in found.items() if not k.startswith("a_")} == {
            "opt.name": "sgd", "opt.betas": "[0.9, 0.99]", "empty": "{}", "none": "None",
        }  # fmt: skip
        assert sorted(v for k, v in found.items() if k.startswith("a_")) == ["1", "2"] and not replaced
        found, replaced = words.params({"long": "x" * 7000})
        assert replaced and found["long"].startswith("sha256:") and "config.json" in found["long"]

    def test_what_no_database_takes_is_replaced(self):
        """PostgreSQL takes no NUL, and nobody a half of a surrogate pair."""
        assert words.tag("a\0b\ud800c") == "a\ufffdb?c"
        assert words.params({"a\0": "b\0"})[0] == {"a_": "b\ufffd"}
        assert words.params({"a": ["\0"]})[0] == {"a": '["\\u0000"]'}

    def test_tags_fit(self):
        assert len(words.tag("x" * 9000)) <= 5000
        assert words.tag({"CPU": 2}) == '{"CPU": 2}'


class Unreliable:
    """A tracker whose first `failures` calls of `record` fail."""

    def __init__(self, failures):
        self.failures, self.batches, self.settled = failures, [], []

    def open(self, uid, experiment):
        return 0

    def record(self, batch):
        if self.failures:
            self.failures -= 1
            raise ConnectionError("store is down")
        self.batches.append(batch)

    def settle(self, ends):
        self.settled.append(ends)
        return []


class TestFollower:
    @pytest.fixture
    def inbox(self, monkeypatch):
        monkeypatch.setattr(follow, "_BACKOFF_S", (0.01,))
        read, write = os.pipe()
        yield follow.Inbox(read), write
        os.close(read)

    @pytest.fixture
    def journal(self, tmp_path):
        from tunelab.journal import Journal

        journal = Journal(tmp_path / "journal.sqlite")
        for event in Story().start().report(1, 0.5).report(2, 0.6).events:
            journal.append(event)
        journal.close()
        return journal.path

    def test_an_outage_loses_nothing(self, inbox, journal):
        tracker = Unreliable(failures=5)
        os.close(inbox[1])
        follow.Follower(journal, tracker, inbox[0], drain_timeout_s=5, interval_s=0).run()
        assert [(p.key, p.step) for p in tracker.batches[0].runs[0].points if p.key == "accuracy"] == [
            ("accuracy", 1),
            ("accuracy", 2),
        ]
        assert tracker.batches[-1].runs[SWEEP].status == "KILLED"
        assert {key: status for key, (status, _) in tracker.settled[0].items()} == {SWEEP: "KILLED", 0: "KILLED"}

    def test_how_runs_stand_is_compared_only_after_a_call_has_failed(self, inbox, journal):
        os.close(inbox[1])
        tracker = Unreliable(failures=0)
        follow.Follower(journal, tracker, inbox[0], interval_s=0).run()
        assert tracker.batches and not tracker.settled

    def test_it_says_how_far_it_has_come_and_what_the_store_says(self, inbox, journal):
        os.close(inbox[1])
        said = []
        follower = follow.Follower(
            journal, Unreliable(failures=2), inbox[0], interval_s=0, recorded=said.append, refused=said.append
        )
        follower.run()
        last = len(list(read_events(journal)))
        assert said == [0, "ConnectionError: store is down", "ConnectionError: store is down", last, last]

    def test_it_gives_up_only_once_the_driver_is_gone(self, inbox, journal):
        os.close(inbox[1])
        with pytest.raises(follow.GaveUp, match="store is down"):
            follow.Follower(journal, Unreliable(failures=10**9), inbox[0], drain_timeout_s=0.2, interval_s=0).run()

    def test_it_does_not_insist_on_a_store_whose_disk_is_full(self, inbox, journal):
        class Full(Unreliable):
            def record(self, batch):
                raise RuntimeError("(sqlite3.OperationalError) database or disk is full")

        os.close(inbox[1])
        began = time.monotonic()
        with pytest.raises(follow.GaveUp, match="disk is full"):
            follow.Follower(journal, Full(0), inbox[0], drain_timeout_s=60, interval_s=0).run()
        assert time.monotonic() - began < 10

    def test_a_store_that_lost_the_sweep_gets_it_again_from_the_beginning(self, inbox, journal):
        class Forgetful(Unreliable):
            def record(self, batch):
                if not self.batches:
                    self.batches.append(None)
                    raise follow.StartOver("gone")
                super().record(batch)

        os.close(inbox[1])
        tracker = Forgetful(0)
        follow.Follower(journal, tracker, inbox[0], interval_s=0).run()
        assert tracker.batches[1].runs[SWEEP].name == "toy.1"

    def test_the_drivers_death_is_seen_also_when_its_pipe_stays_open(self, inbox):
        orphan = follow.Inbox(inbox[0]._fd, parent=1 if os.getppid() != 1 else 2)
        assert orphan.wait(10) and orphan.ended
        os.close(inbox[1])


def test_a_poke_never_blocks_or_raises(tmp_path):
    """Also when the tracker does not read and when it is dead."""
    from tunelab.trackers import process

    warned = []
    tracker = process.TrackerProcess(
        tmp_path / "journal.sqlite", Tracking(kind="local", name="x"), tmp_path / "log", restarts=0, warn=warned.append
    )
    tracker.poke()
    tracker._process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], stdin=subprocess.PIPE, bufsize=0, start_new_session=True
    )
    os.set_blocking(tracker._process.stdin.fileno(), False)
    try:
        for _ in range(100_000):  # more than the pipe holds
            tracker.poke()
    finally:
        tracker._process.kill()
        tracker._process.wait()
    tracker._started_at = -1e9
    for _ in range(3):
        tracker.poke()
    assert len(warned) == 1 and "The sweep goes on without it" in warned[0]
    assert not tracker.close(1)


def test_tracking_nowhere_starts_nothing(tmp_path):
    from tunelab.trackers.process import TrackerProcess

    tracker = TrackerProcess(tmp_path / "journal.sqlite", Tracking(kind="none", name="none"), tmp_path / "log")
    tracker.start()
    tracker.poke()
    assert tracker.pid is None and tracker.close()


def test_the_docs_in_the_configuration_folder_name_every_key():
    text = (REPOSITORY / "mlruns_config" / "README.md").read_text()
    assert all(f"`{key}`" in text for key in ("kind", "uri", "store", "artifacts", "experiment"))
