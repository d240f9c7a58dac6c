"""Removing checkpoints: what is gone is fine, what cannot be removed is told, what nobody refers to is swept up."""

from __future__ import annotations

import shutil

import pytest

from tests.unit import histories as h
from tunelab.engine.checkpoints import delete, sweep_up
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
