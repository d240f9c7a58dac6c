"""A real driver killed by force together with its tracker, and what `tunelab doctor` finds of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tunelab.journal import read_events
from tunelab.journal.home import SweepFolder

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.ray, pytest.mark.slow]

EXPERIMENT = """
import subprocess, time
from pathlib import Path
from tempfile import TemporaryDirectory
import ray.train
from tunelab import FIFO, Budget, Experiment, Float, Objective, Random

def loop(config):
    subprocess.Popen(["sleep", "600"], start_new_session=True)  # what a killed trainer leaves
    for epoch in range(1, 101):
        time.sleep(0.1)
        with TemporaryDirectory() as folder:
            Path(folder, "state.txt").write_text(str(epoch))
            ray.train.report({"epoch": epoch, "loss": config["x"] / epoch}, checkpoint=ray.train.Checkpoint(folder))

experiment = Experiment(
    name="killed", trainer=loop, space={"x": Float(0.0, 1.0)}, searcher=Random(), scheduler=FIFO(),
    objective=Objective("loss", mode="min", step="epoch", last_step=100), budget=Budget(trials=2, concurrent=1),
)
"""


def wait_for(what, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline, f"waited {timeout_s} s in vain"
        time.sleep(0.05)


@pytest.fixture
def tunelab(tmp_path):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    # Ray's sockets need a short path, so its own folder stays where it is.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary), "RAY_TMPDIR": "/tmp"}

    def start(*arguments):
        command = [sys.executable, "-m", "tunelab", *arguments, "--home", str(tmp_path / "runs")]
        return subprocess.Popen(
            command, cwd=tmp_path, env=environment, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    return start


def examine(tunelab, *arguments):
    process = tunelab("doctor", "--json", *arguments)
    out, err = process.communicate(timeout=120)
    assert process.returncode in (0, 1), err
    found = {}
    for finding in json.loads(out):
        found.setdefault(finding["kind"], []).append(finding)
    return process.returncode, found


def sleepers(folder):
    """Processes that the train loop left, by where they work."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.name() == "sleep" and process.cwd().startswith(str(folder.trials.resolve())):
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_what_a_killed_driver_and_its_killed_tracker_leave(tunelab, tmp_path):
    (tmp_path / "killed.py").write_text(EXPERIMENT)
    folder = SweepFolder(tmp_path / "runs" / "killed.1")
    driver = tunelab("sweep", str(tmp_path / "killed.py"), "--tracking", "local")
    tracker = None
    try:

        def reports():
            assert driver.poll() is None, driver.communicate()
            return folder.journal.is_file() and sum(event.kind == "reported" for event in read_events(folder.journal))

        wait_for(lambda: reports() >= 3, 120)
        (tracker,) = [child for child in psutil.Process(driver.pid).children() if "tunelab.trackers" in child.cmdline()]

        def is_tracked():
            import sqlite3

            connection = sqlite3.connect(tmp_path / "runs" / "mlflow.sqlite", timeout=10)
            try:
                return connection.execute("SELECT count(*) FROM metrics").fetchone()[0] > 0
            except sqlite3.Error:
                return False
            finally:
                connection.close()

        wait_for(is_tracked, 60)
        assert examine(tunelab) == (0, {})  # the driver lives
        tracker.send_signal(signal.SIGKILL)
        driver.kill()
        driver.communicate()
        (left,) = sleepers(folder)
        stray = folder.trials / "0000" / "checkpoint_stray"
        stray.mkdir()

        status, found = examine(tunelab, "killed")
        assert status == 1
        assert any(f"{left.pid} sleep" in finding["items"] for finding in found["process"])
        assert {finding["what"].split(" is ")[1] for finding in found["tracking"] if " is " in finding["what"]} == {
            "RUNNING in MLflow and should be KILLED"
        }
        assert any(str(stray) in finding["items"] for finding in found["checkpoint"])
        assert "its driver was killed: 0 of 2 trials have ended" in found["unfinished"][0]["what"]
        assert left.is_running()

        for owner in (tmp_path / "tmp").glob("tunelab-tune-*/.owner"):
            os.utime(owner, (1, 1))  # as if it had lain there for a while
        status, found = examine(tunelab, "--fix")
        assert status == 0 and found["temporary"][0]["repaired"]
        assert not left.is_running() and not stray.exists() and not list((tmp_path / "tmp").glob("tunelab-tune-*"))
        status, found = examine(tunelab)
        assert status == 0 and set(found) == {"unfinished"}
    finally:
        driver.kill()
        for process in [*sleepers(folder), *([tracker] if tracker else [])]:
            if process.is_running():
                process.kill()


LEAVE = """
import sys, ray
from ray.util.placement_group import placement_group
ray.init(address=sys.argv[1], log_to_driver=False)
for name in ("tunelab-left", "somebody-elses"):
    ray.get(placement_group([{"CPU": 0.5}], name=name, lifetime="detached").ready())
"""


def test_placement_groups_of_a_dead_driver_on_a_running_cluster(cluster):
    """None outlives its driver by itself, so these are made to."""
    import ray
    from ray.util import placement_group, placement_group_table, remove_placement_group
    from ray.util.placement_group import PlacementGroup

    from tunelab.engine.ray.leftovers import placement_groups

    address = ray.get_runtime_context().gcs_address
    own = placement_group([{"CPU": 0.5}], name="tunelab-own")
    ray.get(own.ready())
    subprocess.run([sys.executable, "-c", LEAVE, address], check=True, capture_output=True, timeout=120)
    wait_for(lambda: placement_groups(address), 30)
    (finding,) = placement_groups(address)
    assert finding.what == "placement group tunelab-left of 1 bundles was left by a dead driver"
    assert finding.repair()
    wait_for(lambda: not placement_groups(address), 30)
    left = {entry["name"]: key for key, entry in placement_group_table().items() if entry["state"] == "CREATED"}
    assert set(left) == {"tunelab-own", "somebody-elses"}
    remove_placement_group(own)
    remove_placement_group(PlacementGroup(ray.PlacementGroupID(bytes.fromhex(left["somebody-elses"]))))
