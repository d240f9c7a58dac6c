"""One local cluster for all tests in this folder."""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path

import pytest

from tunelab.engine.sweeping import Outcome, Plan, resume, start
from tunelab.journal.home import Home, SweepFolder
from tunelab.trackers.tracking import Tracking

sys.path.insert(0, str(Path(__file__).parent))  # for `toys`, here and, as the project's root, in every worker


@pytest.fixture(scope="session", autouse=True)
def cluster():
    import ray

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    yield
    ray.shutdown()


@pytest.fixture(autouse=True)
def everything_is_given_back(cluster):
    """After each test, within 5 s, all CPUs are free and no placement group is left."""
    yield
    import ray
    from ray.util import placement_group_table

    deadline = time.monotonic() + 5
    while True:
        free = ray.available_resources().get("CPU", 0.0)
        groups = [group for group in placement_group_table().values() if group["state"] != "REMOVED"]
        if free == 2.0 and not groups:
            return
        assert time.monotonic() < deadline, f"free CPUs {free} of 2, placement groups {groups}"
        time.sleep(0.05)


class Bench:
    """Runs experiments in a folder of their own, without tracking."""

    def __init__(self, path: Path) -> None:
        self.home = Home(path / "runs")
        self.said: list[str] = []
        self.events: list = []

    def changed(self, state, event) -> None:
        self.events.append(event)

    def say(self, text) -> None:
        self.said.append(text)

    def plan(self, experiment) -> Plan:
        return Plan(experiment, Path(__file__).parent, self.home, Tracking(kind="none", name="none"), watcher=self)

    def start(self, experiment) -> Outcome:
        return start(self.plan(experiment))

    def resume(self, experiment, folder: SweepFolder) -> Outcome:
        return resume(self.plan(experiment), folder)


@pytest.fixture(scope="session")
def make_bench():
    """`Bench` itself, for a fixture that serves several tests."""
    return Bench


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)
