"""Checkpoints as files: removing them, sweeping up what nobody refers to, and noticing what a machine's crash has torn."""

from __future__ import annotations

import errno
import os
import shutil

import pytest

from tests.unit import histories as h
from tunelab.engine import checkpoints
from tunelab.engine.checkpoints import delete, refuse_absent, size, sweep_up, torn
from tunelab.errors import BadInputError
from tunelab.journal import events


def test_a_checkpoint_that_is_gone_already_is_fine(tmp_path):
    said = []
    delete(str(tmp_path), "0000/checkpoint_1", said.append)
    (tmp_path / "0000" / "checkpoint_1").mkdir(parents=True)
    delete(str(tmp_path), "0000/checkpoint_1", said.append)
    assert said == [] and not (tmp_path / "0000" / "checkpoint_1").exists()


def test_one_that_cannot_be_removed_is_told_and_left(tmp_path, monkeypatch):
    (tmp_path / "c").mkdir()
    monkeypatch.setattr(shutil, "rmtree", lambda path: (_ for _ in ()).throw(PermissionError("read-only")))
    said = []
    delete(str(tmp_path), "c", said.append)
    assert said == ["Cannot delete checkpoint c: read-only"]


@pytest.mark.parametrize("ended", [None, "completed"])
def test_what_a_killed_process_left_is_swept_up_and_what_is_kept_stays(tmp_path, ended):
    told = [*h.created(), *h.trial(0, [0.1, 0.2, 0.3], end=ended)]
    told.append(events.checkpoint_deleted(0, checkpoint="0000/checkpoint_1_1"))
    state = h.state(told)
    for name in ("checkpoint_1_1", "checkpoint_1_2", "checkpoint_1_3", "checkpoint_half_written", "rank0", "my_notes"):
        (tmp_path / "0000" / name).mkdir(parents=True)
    sweep_up(str(tmp_path), state)
    assert {path.name for path in (tmp_path / "0000").iterdir()} == {"checkpoint_1_2", "checkpoint_1_3", "rank0", "my_notes"}


def saved(storage, *names, content="12345"):
    """Checkpoints of trial 0, two files each; returns a state that knows their sizes."""
    told = [*h.created(), *h.trial(0, end=None)]
    for step, name in enumerate(names, start=1):
        folder = storage / "0000" / name
        (folder / "shard").mkdir(parents=True)
        (folder / "state.pt").write_text(content)
        (folder / "shard" / "1.pt").write_text(content)
        checkpoint = f"0000/{name}"
        measured = size(str(storage), checkpoint)
        told.append(events.reported(0, attempt=1, step=step, value=0.1, metrics={}, checkpoint=checkpoint, size=measured))
    return h.state(told)


def test_a_checkpoint_is_as_large_as_all_files_in_it(tmp_path):
    saved(tmp_path, "checkpoint_1")
    assert size(str(tmp_path), "0000/checkpoint_1") == (2, 10)
    assert size(str(tmp_path), "0000/checkpoint_2") is None
    assert size("s3://bucket/sweeps", "0000/checkpoint_1") is None


def test_what_a_crash_has_torn_is_found_and_what_was_added_is_fine(tmp_path):
    state = saved(tmp_path, "checkpoint_whole", "checkpoint_short", "checkpoint_fewer", "checkpoint_gone", "checkpoint_more")
    folder = tmp_path / "0000"
    (folder / "checkpoint_short" / "state.pt").write_text("")
    (folder / "checkpoint_fewer" / "shard" / "1.pt").unlink()
    (folder / "checkpoint_fewer" / "state.pt").write_text("1" * 100)
    shutil.rmtree(folder / "checkpoint_gone")
    (folder / "checkpoint_more" / "notes.txt").write_text("mine")
    assert list(torn(str(tmp_path), state)) == [
        (0, "0000/checkpoint_short", "5 of 10 bytes are there"),
        (0, "0000/checkpoint_fewer", "1 of 2 files are there"),
        (0, "0000/checkpoint_gone", "it is gone"),
    ]


def test_what_the_driver_could_not_see_when_it_was_written_is_not_judged(tmp_path):
    state = h.state([*h.created(), *h.trial(0, [0.1, 0.2], end=None)])
    assert list(torn(str(tmp_path), state)) == []
    assert list(torn("s3://bucket/sweeps", saved(tmp_path, "checkpoint_1"))) == [(0, "0000/checkpoint_1", "it is gone")]


def test_a_storage_that_is_not_mounted_is_refused_and_not_taken_for_lost(tmp_path):
    state = saved(tmp_path / "mounted", "checkpoint_1")
    refuse_absent(str(tmp_path / "mounted"), state)
    refuse_absent("s3://bucket", state)
    refuse_absent(None, state)
    refuse_absent(str(tmp_path / "gone"), h.state(h.created()))
    with pytest.raises(BadInputError, match=r"checkpoints of digits-mlp\.1 are in .*gone, which is not there. Is it mounted"):
        refuse_absent(str(tmp_path / "gone"), state)


class TestAStorageOfItsOwn:
    """It holds the checkpoints of one sweep folder, and no other may delete in it."""

    @staticmethod
    def folder(path):
        path.mkdir(parents=True)
        (path / "journal.sqlite").touch()
        return path

    def test_a_new_sweep_takes_no_folder_that_is_there(self, tmp_path):
        first, second = (self.folder(tmp_path / home / "x.1") for home in ("a", "b"))
        checkpoints.claim(str(tmp_path / "store/x.1"), first, new=True)
        with pytest.raises(FileExistsError):
            checkpoints.claim(str(tmp_path / "store/x.1"), second, new=True)

    def test_a_copy_may_not_go_on_while_the_original_is_there(self, tmp_path):
        storage, original = str(tmp_path / "store/x.1"), self.folder(tmp_path / "a/x.1")
        checkpoints.claim(storage, original, new=True)
        copy = tmp_path / "copy/x.1"
        shutil.copytree(original, copy)
        assert checkpoints.owned_elsewhere(storage, copy) == original
        assert checkpoints.owned_elsewhere(storage, original) is None
        with pytest.raises(BadInputError, match="belong to .*a/x.1, of which this is a copy"):
            checkpoints.claim(storage, copy)

    def test_a_moved_sweep_takes_its_storage_over(self, tmp_path):
        storage, original = str(tmp_path / "store/x.1"), self.folder(tmp_path / "a/x.1")
        checkpoints.claim(storage, original, new=True)
        moved = original.rename(tmp_path / "a/y.1")
        assert checkpoints.owned_elsewhere(storage, moved) is None
        checkpoints.claim(storage, moved)
        self.folder(tmp_path / "a/x.1")
        assert checkpoints.owned_elsewhere(storage, tmp_path / "a/x.1") == moved


def test_a_link_that_leads_nowhere_does_not_make_a_checkpoint_unreadable(tmp_path):
    (tmp_path / "0000/checkpoint_1").mkdir(parents=True)
    (tmp_path / "0000/checkpoint_1/link").symlink_to("nowhere")
    assert checkpoints.size(str(tmp_path), "0000/checkpoint_1")[0] == 1


def test_only_what_is_certainly_not_there_is_gone(tmp_path, monkeypatch):
    (tmp_path / "0000/checkpoint_1").mkdir(parents=True)
    assert checkpoints.is_gone(str(tmp_path), "0000/checkpoint_2")
    assert not checkpoints.is_gone(str(tmp_path), "0000/checkpoint_1")

    def stale(*args, **kwargs):
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(os, "stat", stale)
    assert not checkpoints.is_gone(str(tmp_path), "0000/checkpoint_1")
