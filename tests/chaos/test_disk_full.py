"""The disk fills up while a sweep runs: a small one that is mounted for the test. What cannot be mounted is tested at the seams
in `tests/unit/test_journal.py` and `tests/unit/test_crash_safety.py`.
"""

from __future__ import annotations

import subprocess

import pytest

from tests.chaos.checks import problems_of_decisions, problems_of_files, problems_of_journal, problems_of_tracking, summary
from tunelab.core.trial import Status

pytestmark = [pytest.mark.ray, pytest.mark.slow]


class SmallDisk:
    """A file system of 32 MB."""

    def __init__(self, path):
        self.path = path
        path.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", "size=32m", "none", path]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode != 0:
            pytest.skip(f"a small disk cannot be mounted here: {made.stderr.strip()}")

    def fill(self):
        """Leave not a byte."""
        with open(self.path / "filler", "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass

    def free(self):
        (self.path / "filler").unlink()

    def unmount(self):
        subprocess.run(["umount", "--lazy", self.path], check=True)


@pytest.fixture
def disk(tmp_path):
    made = SmallDisk(tmp_path / "small")
    yield made
    made.unmount()


def check_and_go_on(run, disk, experiment, expected):
    """After the driver has ended: nothing is left running or broken, and once there is room the sweep ends as ever."""
    run.wait_until_alone()
    state = run.state()
    assert not [trial for trial in state.trials.values() if trial.status in (Status.FAILED, Status.INFEASIBLE)]
    disk.free()
    run.finish()
    found = [*problems_of_journal(run), *problems_of_files(run), *problems_of_tracking(run)]
    assert [*found, *problems_of_decisions(run, experiment)] == []
    assert summary(run, experiment) == expected
    run.wait_until_alone()


def test_full_while_a_checkpoint_is_written(chaos, disk, experiments, unbroken):
    run = chaos(trials=6, storage=disk.path)
    run.start()
    assert run.advance(20)
    disk.fill()
    assert run.wait() == 130
    told = run.outputs[-1]
    assert "The disk is full (" in told and "No space left on device" in told and "Traceback" not in told
    assert "Free some space first. 1 interrupted" in told and "Go on:  tunelab resume one.1" in told
    state = run.state()
    assert state.outcome == "interrupted" and state.sessions[-1].reason.startswith("the disk is full")
    assert max(trial.attempt for trial in state.trials.values()) == 1  # no retry was spent
    check_and_go_on(run, disk, experiments["one"], unbroken(6))


def test_full_while_the_journal_is_written(chaos, disk, experiments, unbroken):
    run = chaos(trials=6)
    run.home = disk.path / "runs"
    run.home.mkdir()
    run.start()
    assert run.advance(20)
    disk.fill()
    assert run.wait() == 1
    told = run.outputs[-1]
    assert "Traceback" not in told and told.count("the disk is full") == 1
    assert f"Cannot write to {run.folder.journal}: the disk is full. Nothing that was recorded is lost." in told
    assert f"Free some space, then go on with: tunelab resume {run.folder.path}" in told
    check_and_go_on(run, disk, experiments["one"], unbroken(6))
