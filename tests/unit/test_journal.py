"""The journal: what is appended comes back, readers do not disturb the driver, and events add up to the right state."""

from __future__ import annotations

import gc
import json
import math
import os
import sqlite3
import subprocess
import sys
import textwrap
from itertools import count
from pathlib import Path

import pytest

import tunelab
from tests.unit import histories as h
from tunelab.core.trial import Status
from tunelab.errors import BadInputError, DiskFullError, JournalError, UnknownNameError
from tunelab.journal import SCHEMA_VERSION, Event, Journal, SweepState, events, read_events, replay
from tunelab.journal.home import Home, SweepFolder, load_trial
from tunelab.journal.store import FILE_NAME

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(tunelab.__file__).parents[1])}


def fill_disk(journal, pages=0):
    """Let SQLite say that the disk is full, after `pages` more of its pages."""
    (count_,) = journal._connection.execute("PRAGMA page_count").fetchone()
    journal._connection.execute(f"PRAGMA max_page_count = {count_ + pages}")


LONG = "x" * 10_000  # more than a page


class TestFullDisk:
    def test_the_message_says_what_is_full_and_what_to_do(self, tmp_path):
        folder = h.write(tmp_path / "my runs", h.created())
        journal = Journal(folder.journal)
        fill_disk(journal)
        with pytest.raises(DiskFullError) as caught:
            journal.append(h.report(0, 1, 0.5, note=LONG))
        assert str(caught.value) == (
            f"Cannot write to {folder.journal}: the disk is full. Nothing that was recorded is lost.\n"
            f"Free some space, then go on with: tunelab resume '{folder.path}'"
        )

    def test_the_file_ends_at_the_first_event_that_could_not_be_written_also_when_there_is_room_again(self, tmp_path):
        journal = Journal(h.write(tmp_path, h.created()).journal)
        fill_disk(journal, pages=4)
        first = journal.append(h.trial(0)[0])
        with pytest.raises(DiskFullError):
            journal.append(h.trial(1, settings={"note": LONG + LONG})[0])
        fill_disk(journal, pages=1000)
        with pytest.raises(DiskFullError):  # the driver's memory and the file would say different things
            journal.append(h.trial(2)[0])
        journal.close()
        assert list(read_events(journal.path))[-1] == first
        assert Journal(journal.path).append(h.trial(1)[0]).seq == first.seq + 1

    def test_of_events_that_belong_together_none_is_written(self, tmp_path):
        journal = Journal(h.write(tmp_path, [*h.created(), *h.trial(0, end=None)]).journal)
        before = list(journal.events())
        fill_disk(journal, pages=4)
        with pytest.raises(DiskFullError), journal.together():
            for step in range(1, 20):
                journal.append(h.report(0, step, 0.5, note=LONG))
        with pytest.raises(DiskFullError), journal.together():
            journal.append(h.report(0, 20, 0.5))
        journal.close()
        assert list(read_events(journal.path)) == before

    def test_a_sweep_that_cannot_begin_leaves_no_journal(self, tmp_path, monkeypatch):
        made = Journal.__init__

        def small(self, *arguments):
            made(self, *arguments)
            fill_disk(self)

        monkeypatch.setattr(Journal, "__init__", small)
        first = events.sweep_created(sweep="a.1", experiment={"note": LONG}, facts={})
        with pytest.raises(DiskFullError, match="the disk is full. Nothing was started"):
            Journal.create(tmp_path / "journal.sqlite", first)
        assert list(tmp_path.iterdir()) == []


class TestStore:
    def test_events_come_back_in_order_with_position_and_time(self, tmp_path):
        told = [*h.created(), *h.trial(0, [0.5, 0.6])]
        ticks = count(5)
        journal = Journal(tmp_path / "journal.sqlite", clock=lambda: float(next(ticks)))
        given = [journal.append(event) for event in told]
        assert list(read_events(journal.path)) == given == list(journal.events())
        assert [(e.kind, e.trial, e.data) for e in given] == [(e.kind, e.trial, e.data) for e in told]
        assert [event.seq for event in given] == list(range(1, len(told) + 1))
        assert given[0].at == 5.0

    def test_only_later_events_are_read_after_a_position(self, tmp_path):
        folder = h.write(tmp_path, [*h.created(), *h.trial(0, [0.5])])
        assert [event.kind for event in read_events(folder.journal, after=2)] == [
            "proposed", "started", "reported", "attempt_ended", "finished",
        ]  # fmt: skip

    def test_a_journal_longer_than_what_a_reader_decodes_together_comes_back_whole(self, tmp_path):
        values = [math.nan if n % 7 == 0 else math.inf if n % 11 == 0 else n / 3 for n in range(1201)]
        folder = h.write(tmp_path, [*h.created(), *h.trial(0, values, end=None)])
        told = list(read_events(folder.journal))
        assert [event.seq for event in told] == list(range(1, len(values) + 5))
        assert [repr(event.data["value"]) for event in told if event.kind == "reported"] == list(map(repr, values))
        for after in (498, 499, 500, 501, len(told) - 1, len(told)):
            assert list(map(repr, read_events(folder.journal, after))) == list(map(repr, told[after:]))

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e308, 5e-324, 0.1 + 0.2])
    def test_numbers_are_kept_exactly_nan_and_infinities_too(self, tmp_path, value):
        folder = h.write(tmp_path, [*h.created(), *h.trial(0), h.report(0, 1, value, loss=value)])
        report = folder.load().trials[0].reports[0]
        assert repr(report.value) == repr(value) == repr(report.metrics["loss"])

    def test_text_of_any_kind_is_kept(self, tmp_path):
        name = 'it\'s "quoted", ünïcode \u2028 and\nlines'
        folder = h.write(tmp_path / "a folder's name", [*h.created(), *h.trial(0, settings={"name": name})])
        assert folder.load().trials[0].config == {"name": name}

    def test_what_append_returns_is_what_a_reader_gets(self, tmp_path):
        """Or the driver's state would hold a tuple where a replayed one holds a list."""
        journal = Journal(tmp_path / "journal.sqlite")
        journal.append(h.created()[0])
        live = journal.append(events.proposed(0, config={"betas": (0.9, 0.99)}, seed=0, origin="grid"))
        assert live.data["config"]["betas"] == [0.9, 0.99]

    def test_a_reader_sees_what_was_appended_while_it_was_open_and_never_blocks_the_driver(self, tmp_path):
        folder = h.write(tmp_path, h.created())
        reader = read_events(folder.journal)
        next(reader)
        journal = Journal(folder.journal)
        for event in h.trial(0, [0.1, 0.2]):
            journal.append(event)
        list(reader)
        assert [event.kind for event in read_events(folder.journal)][-1] == "finished"

    def test_a_reader_in_another_process_reads_while_the_driver_appends(self, tmp_path):
        journal = Journal(tmp_path / "journal.sqlite")
        for event in h.created():
            journal.append(event)
        program = """
        import sys, time
        from tunelab.journal import read_events
        seen, until = 0, time.monotonic() + 60
        while seen < 300 and time.monotonic() < until:
            seqs = [event.seq for event in read_events(sys.argv[1])]
            assert seqs == list(range(1, len(seqs) + 1)) and len(seqs) >= seen
            seen = len(seqs)
        print(seen)
        """
        reader = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program), str(journal.path)],
            stdout=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
        for event in h.trial(0, [0.5] * 300):
            journal.append(event)
        assert int(reader.communicate(timeout=90)[0]) >= 300
        assert reader.returncode == 0

    def test_a_driver_killed_in_the_middle_loses_nothing_that_append_returned_for(self, tmp_path):
        program = """
        import os, sys
        from tests.unit import histories as h
        from tunelab.journal import Journal
        journal = Journal(sys.argv[1])
        for event in [*h.created(), *h.trial(0, [0.5] * 20, end=None)]:
            journal.append(event)
        print("said", flush=True)
        os.kill(os.getpid(), 9)
        """
        path = tmp_path / "journal.sqlite"
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program), str(path)],
            capture_output=True,
            text=True,
            check=False,
            env=ENVIRONMENT,
        )
        assert (done.stdout, done.returncode) == ("said\n", -9)
        state = replay(read_events(path))
        assert (len(state.trials[0].reports), state.trials[0].status) == (20, Status.RUNNING)

    def test_another_schema_version_is_refused_with_both_numbers(self, tmp_path):
        folder = h.write(tmp_path, h.created())
        with sqlite3.connect(folder.journal) as connection:
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
        connection.close()
        for use in (lambda: list(read_events(folder.journal)), lambda: Journal(folder.journal)):
            with pytest.raises(
                JournalError, match=f"schema version {SCHEMA_VERSION + 1}; this tunelab reads version {SCHEMA_VERSION}"
            ):
                use()

    def test_a_missing_file_and_one_that_is_no_journal_are_refused(self, tmp_path):
        with pytest.raises(JournalError, match="There is no journal"):
            list(read_events(tmp_path / "journal.sqlite"))
        assert not (tmp_path / "journal.sqlite").exists()
        (tmp_path / "text").write_text("not a database " * 100)
        with pytest.raises(JournalError, match="text"):
            list(read_events(tmp_path / "text"))


class TestAFolderThatMayNotBeWritten:
    """A colleague's, or one on a read-only mount: SQLite cannot make the files beside the journal that readers share."""

    @pytest.fixture
    def addresses(self, monkeypatch):
        """What SQLite is told to open from here on, in a folder that may not be written."""
        really, told = sqlite3.connect, []

        def connect(address, *arguments, **options):
            told.append(address)
            return really(address, *arguments, **options)

        def forbid():
            monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
            monkeypatch.setattr(sqlite3, "connect", connect)
            return told

        return forbid

    def test_the_file_alone_is_read(self, tmp_path, addresses):
        folder = h.write(tmp_path / "50% of #1?", [*h.created(), *h.trial(0, [0.5])])
        before, told = list(read_events(folder.journal)), addresses()
        assert list(read_events(folder.journal)) == before and len(before) == 7
        assert [address.partition("?")[2] for address in told] == ["mode=ro&immutable=1"]
        assert [path.name for path in folder.path.iterdir()] == [FILE_NAME]

    def test_what_waits_in_the_wal_is_read_too(self, tmp_path, addresses):
        folder = SweepFolder(tmp_path)
        journal = Journal(folder.journal)
        for event in h.created():
            journal.append(event)
        told = addresses()
        assert len(list(read_events(folder.journal))) == 2
        assert [address.partition("?")[2] for address in told] == ["mode=rw"]
        journal.close()

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
    def test_in_earnest(self, tmp_path):
        folder = h.write(tmp_path, h.created())
        folder.path.chmod(0o555)
        try:
            assert len(list(read_events(folder.journal))) == 2
        finally:
            folder.path.chmod(0o755)


class TestDamage:
    """By a newer tunelab that writes more than this one knows, or by a disk: `ls` and `doctor` go on with the other sweeps."""

    MESSAGE = "was written by a newer tunelab, or is damaged"

    @pytest.mark.parametrize(
        "event",
        [
            Event("session_started", None, {**h.session().data, "mood": "good"}),
            Event("reported", 0, {**h.report(0, 2, 0.5).data, "mood": "good"}),
            Event("decided", 0, {}),
            Event("finished", 0, {"status": "paused", "reason": ""}),
            Event("started", 7, h.trial(7)[1].data),
            Event("attempt_ended", 0, []),
        ],
        ids=lambda event: event.kind,
    )
    def test_fields_that_are_not_known_or_not_there(self, tmp_path, event):
        folder = h.write(tmp_path, [*h.created(), *h.trial(0, [0.5], end=None), event])
        with pytest.raises(JournalError, match=rf"event 6 \({event.kind}\) {self.MESSAGE}") as caught:
            folder.load()
        assert str(folder.journal) in str(caught.value)

    @pytest.mark.parametrize("text", ['{"half', "", "{}}"])
    def test_text_that_is_no_json(self, tmp_path, text):
        folder = h.write(tmp_path, h.created())
        with sqlite3.connect(folder.journal) as connection:
            connection.execute("UPDATE events SET data = ? WHERE seq = 2", (text,))
        connection.close()
        with pytest.raises(JournalError, match=f"journal.sqlite {self.MESSAGE}: between events 1 and 2"):
            list(read_events(folder.journal))


class TestReplay:
    @pytest.mark.parametrize("enabled", [True, False])
    def test_garbage_collection_is_as_before_afterwards_also_after_an_error(self, enabled):
        before = gc.isenabled()
        try:
            (gc.enable if enabled else gc.disable)()
            h.state([*h.created(), *h.trial(0, [0.1])])
            assert gc.isenabled() is enabled
            with pytest.raises(JournalError):
                replay([Event("paused", None, {})])
            assert gc.isenabled() is enabled
        finally:
            (gc.enable if before else gc.disable)()

    def test_an_unknown_event_names_the_likely_cause(self):
        with pytest.raises(JournalError, match="'paused': written by a newer tunelab"):
            SweepState().apply(Event("paused", None, {}))

    def test_a_plain_sweep(self):
        state = h.state([*h.created(trials=3), *h.trial(0, [0.5, 0.6], origin="baseline"), *h.trial(1, [0.4], end="stopped")])
        assert (state.sweep, state.mode, state.budget["trials"]) == ("digits-mlp.1", "max", 3)
        assert [trial.status for trial in state.trials.values()] == [Status.COMPLETED, Status.STOPPED]
        assert state.trials[0].curve() == [(1, 0.5), (2, 0.6)]
        assert state.trials[0].attempts[0].outcome == "completed"
        assert not state.unfinished()
        assert state.outcome is None and state.cut_short

    def test_recomputed_steps_replace_the_lost_ones_and_their_checkpoints_are_superseded(self):
        told = [
            *h.created(),
            *h.trial(0, [0.1, 0.2, 0.3], end=None),
            events.attempt_ended(0, attempt=1, outcome="failed", failure="lost", message="worker 1 was killed (signal 9)"),
            events.started(0, attempt=2, checkpoint="0000/checkpoint_1_2", from_step=2),
            h.report(0, 3, 0.35, attempt=2),
            h.report(0, 4, 0.4, attempt=2),
        ]
        trial = h.state(told).trials[0]
        assert trial.curve() == [(1, 0.1), (2, 0.2), (3, 0.35), (4, 0.4)]
        assert [report.attempt for report in trial.reports] == [1, 1, 2, 2]
        assert trial.superseded == {"0000/checkpoint_1_3"}
        assert [a.failure for a in trial.attempts] == ["lost", None]
        assert trial.status is Status.RUNNING

    def test_a_restart_from_the_beginning_replaces_the_whole_curve(self):
        told = [
            *h.created(),
            *h.trial(0, [0.1, 0.2], end=None, checkpoint=False),
            events.attempt_ended(0, attempt=1, outcome="failed", failure="lost"),
            events.started(0, attempt=2, checkpoint=None, from_step=None),
            h.report(0, 1, 0.15, attempt=2, checkpoint=False),
        ]
        trial = h.state(told).trials[0]
        assert trial.curve() == [(1, 0.15)]
        assert trial.superseded == set()

    def test_a_restart_that_skips_ahead_keeps_what_came_before(self):
        told = [*h.created(), *h.trial(0, [0.1, 0.2], end=None), events.attempt_ended(0, attempt=1, outcome="interrupted")]
        told += [events.started(0, attempt=2, checkpoint=None, from_step=2), h.report(0, 4, 0.4, attempt=2)]
        assert h.state(told).trials[0].curve() == [(1, 0.1), (2, 0.2), (4, 0.4)]

    def test_a_failed_attempt_waits_for_its_retry_and_does_not_end_the_trial(self):
        told = [
            *h.created(),
            *h.trial(0, [0.1], end=None),
            events.attempt_ended(0, attempt=1, outcome="failed", failure="lost"),
        ]
        trial = h.state(told).trials[0]
        assert trial.status is Status.RETRYING
        assert not trial.status.ended

    def test_a_killed_drivers_running_trials_are_interrupted_by_the_next_session(self):
        told = [*h.created(), *h.trial(0, [0.5]), *h.trial(1, [0.1, 0.2], end=None)]
        assert h.state(told).trials[1].status is Status.RUNNING
        state = h.state([*told, h.session()])
        assert state.trials[1].status is Status.INTERRUPTED
        assert state.trials[1].attempts[0].message == "the driver was killed"
        assert state.trials[0].status is Status.COMPLETED
        assert [session.outcome for session in state.sessions] == [None, None]
        assert [trial.number for trial in state.unfinished()] == [1]

    def test_time_in_which_no_driver_ran_does_not_count(self):
        told = list(h.stored([*h.created(), *h.trial(0, [0.1, 0.2], end=None)]))
        last = told[-1]
        later = Event("session_started", None, h.session().data, last.seq + 1, last.at + 10_000)
        report = h.report(0, 3, 0.3, attempt=1)
        state = replay([*told, later, Event(report.kind, 0, report.data, last.seq + 2, later.at + 7)])
        assert state.elapsed_s == (last.at - told[1].at) + 7

    @pytest.mark.parametrize(
        ("outcome", "cut_short"),
        [("finished", False), ("aborted", False), ("out of time", False), ("interrupted", True), (None, True)],
    )
    def test_a_sweep_that_was_interrupted_or_killed_was_cut_short(self, outcome, cut_short):
        ended = [events.session_ended(outcome=outcome, reason="why")] if outcome else []
        state = h.state([*h.created(), *ended])
        assert (state.outcome, state.cut_short) == (outcome, cut_short)

    def test_a_later_session_may_raise_the_budget(self):
        assert h.state([*h.created(trials=4), h.session(trials=8)]).budget["trials"] == 8

    def test_infeasible_trials_do_not_count_against_the_budget(self):
        told = [*h.created(), *h.trial(0, [0.1]), *h.trial(1, end="infeasible"), *h.trial(2, end=None)]
        assert [h.state(told[:cut]).counted() for cut in (2, 7, 10, 11, 13)] == [0, 1, 2, 1, 2]

    def test_deleted_checkpoints_are_no_longer_kept_nor_restarted_from(self):
        told = [*h.created(), *h.trial(0, [0.1, 0.2, 0.3], end=None)]
        told += [events.checkpoint_deleted(0, checkpoint=f"0000/checkpoint_1_{step}") for step in (1, 3)]
        trial = h.state(told).trials[0]
        assert [report.step for report in trial.kept()] == [2]
        assert trial.latest_checkpoint().step == 2

    def test_every_prefix_can_be_replayed_and_going_on_from_it_gives_the_same_state(self):
        told = [
            *h.created(),
            *h.trial(0, [0.1, 0.2]),
            *h.trial(1, [math.inf], end="failed"),
            *h.trial(2, end=None),
            h.session(),
        ]
        told = list(h.stored(told))
        whole = replay(told)
        for cut in range(1, len(told) + 1):
            state = replay(told[:cut])
            for event in told[cut:]:
                state.apply(event)
            assert state == whole

    def test_each_kind_of_event_can_be_applied(self):
        makers = [
            name
            for name, value in vars(events).items()
            if callable(value) and getattr(value, "__module__", "") == events.__name__
        ]
        kinds = sorted(set(makers) - {"Event"})
        assert len(kinds) == 12
        assert all(hasattr(SweepState, f"_on_{kind}") for kind in kinds)

    def test_events_are_json(self):
        for event in [*h.created(), *h.trial(0, [0.5])]:
            assert json.loads(json.dumps(event.data)) == event.data


class TestHome:
    @pytest.fixture
    def home(self, tmp_path):
        for sweep in ("digits-mlp.1", "digits-mlp.2", "digits-mlp.10", "bert_glue.1"):
            h.write(tmp_path, h.created(sweep), sweep)
        (tmp_path / "not-a-sweep").mkdir()
        (tmp_path / "digits-mlp.11").mkdir()  # no journal yet
        return Home(tmp_path)

    def test_sweeps_are_in_order_of_number_and_not_of_text(self, home):
        assert [sweep.path.name for sweep in home.sweeps("digits-mlp")] == ["digits-mlp.1", "digits-mlp.2", "digits-mlp.10"]
        assert home.next_id("digits-mlp") == "digits-mlp.11"
        assert home.next_id("new") == "new.1"

    def test_a_name_an_id_and_a_path_find_a_sweep(self, home):
        assert home.find("digits-mlp").path.name == "digits-mlp.10"
        assert home.find("digits-mlp.2").path.name == "digits-mlp.2"
        assert home.find(str(home.path / "bert_glue.1")).path == home.path / "bert_glue.1"

    def test_an_unknown_sweep_is_refused_with_a_suggestion(self, home):
        with pytest.raises(UnknownNameError, match="Did you mean 'digits-mlp'"):
            home.find("digits-mpl")

    def test_trials_are_found_by_short_and_long_numbers(self, home):
        assert home.find_trial("digits-mlp.2/0007") == (SweepFolder(home.path / "digits-mlp.2"), 7)
        assert home.find_trial("digits-mlp/7")[1] == 7
        for name in ("digits-mlp", "digits-mlp/x", "digits-mlp/"):
            with pytest.raises(BadInputError, match="does not name a trial"):
                home.find_trial(name)

    def test_a_trial_that_is_not_there_is_refused(self, tmp_path):
        folder = h.write(tmp_path, [*h.created(), *h.trial(0, [0.1])])
        with pytest.raises(UnknownNameError, match=r"has no trial 0003\. It has 0000 to 0000"):
            load_trial(folder, 3)

    def test_a_sweep_can_be_moved_with_its_checkpoints(self, tmp_path):
        folder = h.write(tmp_path, h.created())
        assert folder.checkpoint(folder.load(), "0000/c") == str(folder.path / "trials/0000/c")
        stored = [events.sweep_created(sweep="a.1", experiment=h.experiment(), facts={"storage": "s3://bucket/x"})]
        folder = h.write(tmp_path, stored, "a.1")
        assert folder.checkpoint(folder.load(), "0000/c") == "s3://bucket/x/a.1/0000/c"


def test_a_journal_that_was_removed_is_noticed_at_the_next_event(tmp_path):
    journal = Journal.create(tmp_path / "journal.sqlite", h.created()[0])
    (tmp_path / "journal.sqlite").unlink()
    with pytest.raises(JournalError, match="has been removed"):
        journal.append(h.session())


def test_events_appended_together_are_durable_all_or_none(tmp_path):
    path = tmp_path / "journal.sqlite"
    journal = Journal.create(path, h.created()[0])
    with journal.together():
        for event in h.trial(0, [0.1, 0.2]):
            journal.append(event)
        assert len(list(read_events(path))) == 1, "a reader sees half of what belongs together"
    assert len(list(read_events(path))) == 1 + len(h.trial(0, [0.1, 0.2]))
