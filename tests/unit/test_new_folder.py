"""How a new sweep comes to its folder, and to its part of a storage that others use as well."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.test_conductor import experiment
from tunelab.engine.sweeping import Plan, _new_folder
from tunelab.errors import BadInputError
from tunelab.journal.home import Home
from tunelab.trackers.tracking import Tracking


@pytest.fixture
def plan(tmp_path):
    made = experiment()
    tracking = Tracking(kind="none", name="none")
    return Plan(made, tmp_path, Home(tmp_path / "a"), tracking, storage=str(tmp_path / "store"))


def test_two_homes_with_one_storage_take_different_numbers(plan, tmp_path):
    first = _new_folder(plan)
    second = _new_folder(replace(plan, home=Home(tmp_path / "b")))
    name = plan.experiment.name
    assert [first.path.name, second.path.name] == [f"{name}.1", f"{name}.2"]
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == [f"{name}.1", f"{name}.2"]
    assert not (tmp_path / "b" / f"{name}.1").exists()


def test_a_storage_that_cannot_be_made_is_told_and_no_folder_stays(plan, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(BadInputError, match="Checkpoints cannot be kept in .*file/.*Say where: --storage"):
        _new_folder(replace(plan, storage=str(tmp_path / "file")))
    assert list((tmp_path / "a").iterdir()) == []
