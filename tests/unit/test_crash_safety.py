"""What the conductor does when the disk is full, or a crash of the machine has torn a checkpoint."""

from __future__ import annotations

import errno

import pytest

from tests.unit.test_conductor import BUDGET, Rig, experiment, run_all
from tunelab import Budget
from tunelab.core.failures import Failure, is_disk_full
from tunelab.core.trial import Status
from tunelab.engine.conductor import Conductor
from tunelab.errors import DiskFullError
from tunelab.journal import Journal, events


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (OSError(errno.ENOSPC, "Error writing bytes to file"), True),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), True),
        (RuntimeError("cannot save: [Errno 28] No space left on device"), True),
        (RuntimeError("(sqlite3.OperationalError) database or disk is full [SQL: INSERT ...]"), True),
        (RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534"), True),  # torch.save
        (RuntimeError("[enforce fail at inline_container.cc:200] . file not found: data.pkl"), False),  # torch.load
        (OSError(errno.EACCES, "Permission denied"), False),
        (ValueError("unexpected pos"), False),
    ],
)
def test_a_full_disk_is_recognised_by_what_is_raised(error, full):
    assert is_disk_full(error) is full


def test_a_full_disk_stops_the_sweep_and_costs_the_trial_no_retry(tmp_path):
    rig = Rig(tmp_path / "journal.sqlite")
    for _ in range(4):  # more often than the same error may stop the first trials, or a trial may fail
        launch = rig.conductor.next_launch()
        assert launch.trial == 0
        if launch.attempt == 1:
            rig.report(0, 1, 0.5)
        rig.conductor.failed(0, Failure.DISK_FULL, "OSError: [Errno 28] No space left on device", "Traceback")
        assert rig.conductor.next_launch() is None
        assert rig.conductor.end() == "interrupted"
        assert rig.trial().status is Status.INTERRUPTED and rig.trial().attempts[-1].details == "Traceback"
        assert rig.conductor.state.sessions[-1].reason == (
            "the disk is full (0000: OSError: [Errno 28] No space left on device). Free some space first"
        )
        assert rig.said == ["The disk is full (0000: OSError: [Errno 28] No space left on device): stopping at the next report"]
        rig = rig.again()
    launch = rig.conductor.next_launch()
    assert (launch.trial, launch.from_step) == (0, 1)


def test_a_journal_that_cannot_be_written_ends_as_if_the_driver_had_been_killed_there(tmp_path):
    made = experiment(budget=Budget(trials=3))
    rig = Rig(tmp_path / "journal.sqlite", made)
    rig.conductor.next_launch()
    rig.report(0, 1, 0.5)
    before = list(rig.journal.events())
    (pages,) = rig.journal._connection.execute("PRAGMA page_count").fetchone()
    rig.journal._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(DiskFullError):
        rig.conductor.reported(0, {"epoch": 2, "score": 0.6, "note": "x" * 10_000}, "0000/checkpoint_1_2")
    with pytest.raises(DiskFullError):
        rig.conductor.end()
    rig = rig.again()
    assert list(rig.journal.events())[: len(before)] == before
    assert run_all(rig, lambda x, epoch: x * epoch) == "finished"
    assert [report.step for report in rig.trial(0).reports] == [1, 2, 3, 4]


def resumed(rig, torn):
    """A conductor on the same journal that finds these checkpoints torn: {name: what is wrong}."""
    rig.journal.close()
    journal, said, deleted = Journal(rig.path), [], []
    conductor = Conductor(
        rig.experiment, journal, budget=rig.experiment.budget, delete=deleted.append, say=said.append,
        torn=lambda state: [(int(name[:4]), name, wrong) for name, wrong in torn.items()],
    )  # fmt: skip
    conductor.begin(events.session_started(pid=1, host="here", resources={}, budget=BUDGET, tracking=None))
    return conductor, said, deleted


def test_a_torn_checkpoint_is_passed_over_for_the_one_before(tmp_path):
    rig = Rig(tmp_path / "journal.sqlite")
    rig.conductor.next_launch()
    rig.report(0, 1, 0.9)  # the best, so that it is still there
    rig.report(0, 2, 0.5)
    conductor, said, deleted = resumed(rig, {"0000/checkpoint_1_2": "0 of 2 files are there"})
    assert said == [
        "0000: its checkpoint checkpoint_1_2 is not whole (0 of 2 files are there); the one of epoch 1 counts instead"
    ]
    assert conductor.next_launch().from_step == 1 and deleted == []
    assert conductor.reported(0, {"epoch": 2, "score": 0.5}, "0000/checkpoint_2_2")
    assert [report.step for report in conductor.state.trials[0].kept()] == [1, 2]


def test_a_trial_whose_only_checkpoint_is_torn_starts_from_the_beginning(tmp_path):
    rig = Rig(tmp_path / "journal.sqlite")
    rig.conductor.next_launch()
    rig.report(0, 1, 0.9)
    conductor, said, _ = resumed(rig, {"0000/checkpoint_1_1": "it is gone"})
    assert said == ["0000: its checkpoint checkpoint_1_1 is not whole (it is gone); the trial has no other"]
    assert conductor.next_launch().from_step is None


def test_a_torn_checkpoint_is_noticed_before_the_one_before_it_is_deleted_in_its_favour(tmp_path):
    rig = Rig(tmp_path / "journal.sqlite")
    rig.conductor.next_launch()
    rig.report(0, 1, 0.1)
    append = rig.journal.append  # killed after the report of epoch 2, before epoch 1's checkpoint was deleted
    rig.journal.append = lambda event: append(event) if event.kind == "reported" else (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        rig.report(0, 2, 0.5)
    conductor, _, deleted = resumed(rig, {"0000/checkpoint_1_2": "it is gone"})
    assert deleted == [] and conductor.next_launch().from_step == 1
