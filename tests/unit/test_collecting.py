"""`tunelab gc`: other retention counts on a sweep that stands still, and what must survive any of them."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import random
import shutil

import pytest
from click.testing import CliRunner

from tests.unit import histories as h
from tests.unit.test_select_retain import existing, needed
from tunelab.cli import cli
from tunelab.core.experiment import Retention
from tunelab.core.retain import surplus
from tunelab.core.select import best, best_report
from tunelab.core.trial import Status
from tunelab.engine import checkpoints
from tunelab.engine.collecting import collect, find_surplus, parse_keep, retention_of, total_bytes
from tunelab.errors import BadInputError, DiskFullError, InvalidExperimentError, SweepLockedError
from tunelab.journal import Event, Journal, SweepState, events, read_events
from tunelab.journal.home import SweepFolder
from tunelab.trackers import behind

NOTHING = Retention(best_of_sweep=1, best_of_trial=0, latest_of_trial=0)


def random_sweep(rng: random.Random) -> SweepState:
    """A sweep that was killed at some moment: trials in every state, NaN, retries, checkpoints lost and deleted."""
    told = [*h.created(mode=rng.choice(["max", "min"]))]
    for number in range(rng.randrange(1, 12)):
        told.append(events.proposed(number, config={}, seed=0, origin="random"))
        if rng.random() < 0.1:
            continue
        step = 0
        for attempt in range(1, rng.choice([1, 1, 2]) + 1):
            told.append(events.started(number, attempt=attempt, checkpoint=None, from_step=None))
            for _ in range(rng.randrange(5)):
                step += 1
                value = rng.choice([math.nan, math.inf, -math.inf]) if rng.random() < 0.2 else rng.choice([0.1, 0.2, 0.3])
                told.append(h.report(number, step, value, attempt=attempt, checkpoint=rng.random() < 0.8))
            if attempt == 1 and rng.random() < 0.5:
                told.append(events.attempt_ended(number, attempt=attempt, outcome="failed", failure="lost"))
                step = max(0, step - 2)
        end = rng.choice([None, "completed", "stopped", "failed", "infeasible", "reopened", "interrupted"])
        if end in ("completed", "stopped", "failed", "infeasible", "reopened"):
            status = "failed" if end == "reopened" else end
            told.append(events.attempt_ended(number, attempt=attempt, outcome=status))
            told.append(events.finished(number, status=status, reason=""))
            if end == "reopened":
                told.append(events.reopened(number, upto=step, reason=""))
        elif end == "interrupted":
            told.append(events.attempt_ended(number, attempt=attempt, outcome="interrupted"))
    state = h.state(told)
    for trial in state.trials.values():  # what retention did before
        for report in list(trial.kept())[:-1]:
            if rng.random() < 0.2 and trial.status.ended:
                state.apply(Event("checkpoint_deleted", trial.number, {"checkpoint": report.checkpoint}, state.seq + 1, 0.0))
    return state


@pytest.mark.parametrize("seed", range(300))
def test_what_is_needed_is_never_surplus_and_everything_else_is(seed):
    rng = random.Random(seed)
    state = random_sweep(rng)
    keep = Retention(
        best_of_sweep=rng.choice([1, 2, 3]), best_of_trial=rng.choice([0, 1, 2]), latest_of_trial=rng.choice([0, 1, 2])
    )
    there, stay = existing(state.trials), needed(state.trials, keep, state.mode)
    going = {checkpoint for _, checkpoint in surplus(state.trials.values(), keep, state.mode)}
    assert not going & stay
    assert going == there - stay
    top_before = best(state.trials.values(), state.mode)
    resumable = {t.number: t.latest_checkpoint() for t in state.trials.values() if not t.status.ended}
    for number, checkpoint in surplus(state.trials.values(), keep, state.mode):
        state.apply(Event("checkpoint_deleted", number, {"checkpoint": checkpoint, "by": "gc"}, state.seq + 1, 0.0))
    assert {number: state.trials[number].latest_checkpoint() for number in resumable} == resumable
    top = best(state.trials.values(), state.mode)
    assert (top is None) == (top_before is None)
    ended_well = [t for t in state.trials.values() if t.status in (Status.COMPLETED, Status.STOPPED)]
    if top_before is not None and top_before.trial in ended_well and top_before.exportable:
        assert top == top_before
    assert surplus(state.trials.values(), keep, state.mode) == []


@pytest.mark.parametrize("seed", range(50))
def test_larger_counts_keep_whatever_smaller_ones_keep(seed):
    rng = random.Random(seed)
    state = random_sweep(rng)
    small = Retention(best_of_sweep=rng.choice([1, 2]), best_of_trial=rng.choice([0, 1]), latest_of_trial=rng.choice([0, 1]))
    for name in vars(small):
        large = Retention(**{**vars(small), name: getattr(small, name) + 1})
        going = set(surplus(state.trials.values(), large, state.mode))
        assert going <= set(surplus(state.trials.values(), small, state.mode))


def test_nan_ranks_worst():
    state = h.state([*h.created(), *h.trial(0, [math.nan, math.inf, 0.1, math.nan])])
    gone = {checkpoint for _, checkpoint in surplus(state.trials.values(), NOTHING, "max")}
    assert gone == {"0000/checkpoint_1_1", "0000/checkpoint_1_2", "0000/checkpoint_1_4"}


@pytest.fixture
def folder(tmp_path):
    told = [
        *h.created(),
        *h.trial(0, [0.3, 0.9, 0.4]),
        *h.trial(1, [0.5, 0.2]),
        *h.trial(2, [0.1, 0.7], end=None),
        events.attempt_ended(2, attempt=1, outcome="interrupted", message="Ctrl-C"),
        events.session_ended(outcome="interrupted", reason="Ctrl-C"),
    ]
    folder = h.write(tmp_path / "runs", told)
    for trial in folder.load().trials.values():
        for report in trial.reports:
            place = folder.trials / str(report.checkpoint)
            place.mkdir(parents=True)
            (place / "state.pt").write_bytes(b"x" * 1000)
    return folder


def on_disk(folder):
    return {f"{path.parent.name}/{path.name}" for path in folder.trials.glob("*/checkpoint_*")}


@contextlib.contextmanager
def a_driver(folder):
    with folder.lock.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_a_dry_run_tells_what_would_go_and_changes_nothing(folder):
    before, events_before = on_disk(folder), list(read_events(folder.journal))
    found = collect(folder, NOTHING, dry_run=True)
    assert [(entry.trial, entry.step, entry.value, entry.n_bytes) for entry in found] == [
        (0, 1, 0.3, 1000), (0, 3, 0.4, 1000), (1, 1, 0.5, 1000), (1, 2, 0.2, 1000), (2, 1, 0.1, 1000),
    ]  # fmt: skip
    assert on_disk(folder) == before and list(read_events(folder.journal)) == events_before
    assert total_bytes(folder, folder.load()) == 7000


def test_what_goes_is_journalled_before_it_is_deleted(folder, monkeypatch):
    really, order = checkpoints.delete, []

    def delete(storage, checkpoint, say):
        told = [event.data["checkpoint"] for event in read_events(folder.journal) if event.kind == "checkpoint_deleted"]
        order.append((told[-1], checkpoint))
        return really(storage, checkpoint, say)

    monkeypatch.setattr(checkpoints, "delete", delete)
    found = collect(folder, NOTHING)
    assert len(found) == 5 and all(told == checkpoint for told, checkpoint in order)
    assert on_disk(folder) == {"0000/checkpoint_1_2", "0002/checkpoint_1_2"}
    state = folder.load()
    assert state.trials[2].latest_checkpoint().step == 2 and best_report(state.trials[0], "max").step == 2
    assert find_surplus(folder, state, NOTHING) == [] and collect(folder, NOTHING) == []


def test_one_that_was_killed_between_the_two_is_finished_by_the_next(folder, monkeypatch):
    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "delete", die)
        with pytest.raises(KeyboardInterrupt):
            collect(folder, NOTHING)
    assert len(on_disk(folder)) == 7
    collect(folder, NOTHING)
    assert on_disk(folder) == {"0000/checkpoint_1_2", "0002/checkpoint_1_2"}


class TestWhatCannotBeDeleted:
    """A checkpoint that another user wrote, say."""

    @pytest.fixture
    def stubborn(self, folder, monkeypatch):
        """The one checkpoint that does not go."""
        really, stubborn = shutil.rmtree, folder.trials / "0000/checkpoint_1_1"

        def rmtree(path, ignore_errors=False, **options):
            if path != stubborn:
                really(path, ignore_errors=ignore_errors, **options)
            elif not ignore_errors:
                raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr(shutil, "rmtree", rmtree)
        return stubborn

    def test_it_is_not_among_what_is_gone(self, folder, stubborn):
        said, left = [], []
        gone = collect(folder, NOTHING, say=said.append, left=left.append)
        assert [entry.checkpoint for entry in left] == ["0000/checkpoint_1_1"] and len(gone) == 4
        assert len(said) == 1 and stubborn.exists()

    @pytest.mark.parametrize("as_json", [True, False])
    def test_the_verb_counts_what_is_gone_and_fails(self, folder, stubborn, as_json):
        arguments = ["gc", "digits-mlp", "--keep", "best_of_trial=0,latest_of_trial=0", "--home", str(folder.path.parent)]
        done = CliRunner().invoke(cli, arguments + ["--json"] * as_json)
        assert done.exit_code == 1, done.output
        if as_json:
            assert json.loads(done.stdout)["bytes"] == 4000 and len(json.loads(done.stdout)["checkpoints"]) == 4
        else:
            assert "4 checkpoints of 3 trials, 4.0 kB of 7.0 kB deleted" in done.stderr
        assert "1 checkpoint could not be deleted." in done.stderr


def test_room_is_made_before_anything_is_written(folder, monkeypatch):
    """On a full disk the first event would fail, and nothing would ever go."""
    left = folder.trials / "0002/checkpoint_9_9"
    left.mkdir()

    def full(self, event):
        raise DiskFullError("the disk is full")

    monkeypatch.setattr(Journal, "append", full)
    with pytest.raises(DiskFullError):
        collect(folder, NOTHING)
    assert not left.exists() and len(on_disk(folder)) == 7


@pytest.mark.parametrize("died_at", [0, 1])
def test_the_tracker_hears_of_what_was_journalled_before_it_failed(folder, monkeypatch, died_at):
    really, appended, told = Journal.append, [], []

    def full(self, event):
        if len(appended) == died_at:
            raise DiskFullError("the disk is full")
        appended.append(event)
        return really(self, event)

    monkeypatch.setattr(Journal, "append", full)
    monkeypatch.setattr(behind, "journal_grew", told.append)
    with pytest.raises(DiskFullError):
        collect(folder, NOTHING)
    assert told == [folder.path] * died_at


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_copy_does_not_delete_the_originals(tmp_path, dry_run):
    facts = {"storage": str(tmp_path / "storage")}
    first = events.sweep_created(sweep="digits-mlp.1", experiment=h.experiment(), facts=facts)
    original = h.write(tmp_path / "runs", [first, h.session(), *h.trial(0, [0.1, 0.2])])
    storage = tmp_path / "storage/digits-mlp.1"
    checkpoints.claim(str(storage), original.path, new=True)
    for step in (1, 2):
        (storage / f"0000/checkpoint_1_{step}").mkdir(parents=True)
    copy = SweepFolder(shutil.copytree(original.path, tmp_path / "copies/digits-mlp.1"))
    with pytest.raises(BadInputError, match="belong to .*/runs/digits-mlp.1, of which .*/copies/digits-mlp.1 is a copy"):
        collect(copy, NOTHING, dry_run=dry_run)
    assert len(list((storage / "0000").iterdir())) == 2
    assert len(collect(original, NOTHING, dry_run=dry_run)) == 1


@pytest.mark.parametrize("number", ["²", "٣", "-1", "1.0", ""])
def test_a_count_is_written_in_plain_digits(number):
    with pytest.raises(InvalidExperimentError, match="best_of_trial needs a number >= 0"):
        parse_keep((f"best_of_trial={number}",), Retention())


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_running_sweep_is_refused(folder, dry_run):
    with a_driver(folder), pytest.raises(SweepLockedError):
        collect(folder, NOTHING, dry_run=dry_run)
    assert len(on_disk(folder)) == 7


def test_a_storage_that_is_not_there_is_not_taken_for_empty(tmp_path):
    first = events.sweep_created(sweep="digits-mlp.1", experiment=h.experiment(), facts={"storage": str(tmp_path / "gone")})
    folder = h.write(tmp_path, [first, h.session(), *h.trial(0, [0.1, 0.2])])
    with pytest.raises(BadInputError, match="which is not there. Is it mounted"):
        collect(folder, NOTHING)
    assert not [event for event in read_events(folder.journal) if event.kind == "checkpoint_deleted"]


def test_counts_are_named_as_in_retention_and_the_others_stay_as_the_experiment_says(folder):
    assert retention_of(folder.load()) == Retention()
    base = Retention(best_of_sweep=3, best_of_trial=2, latest_of_trial=1)
    assert parse_keep(("best_of_trial=0", "latest_of_trial=4 "), base) == Retention(
        best_of_sweep=3, best_of_trial=0, latest_of_trial=4
    )
    with pytest.raises(InvalidExperimentError) as error:
        parse_keep(("best_of_trail=1,latest_of_trial=-1,best_of_sweep",), base)
    text = str(error.value)
    assert "Did you mean 'best_of_trial'?" in text and "latest_of_trial needs a number >= 0" in text
    assert "best_of_sweep needs a number" in text
    with pytest.raises(InvalidExperimentError, match="best_of_sweep >= 1"):
        parse_keep(("best_of_sweep=0",), base)
