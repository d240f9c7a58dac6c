"""Workers, trial actors, trackers, raylets and GCS are killed while a sweep runs."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from functools import partial

import psutil
import pytest

from tests.chaos.checks import problems_of_decisions, problems_of_files, problems_of_journal, problems_of_tracking, summary
from tests.chaos.harness import until

pytestmark = [pytest.mark.ray, pytest.mark.slow]

TITLES = {"worker": ("ray::WarmWorker",), "actor": ("ray::_Inner", "ray::TrialActor")}


@pytest.fixture(scope="module")
def cluster():
    """A cluster that outlives the sweeps, so that what they leave in it can be seen."""
    import logging

    import ray

    mine = not ray.is_initialized()  # tests/ray has one of the same size, until the whole session ends
    if mine:
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    yield ray.get_runtime_context().gcs_address
    if mine:
        ray.shutdown()


def left_in_cluster():
    """Placement groups and actors that still are there, and resources that are not free."""
    import ray
    from ray._private.state import actors
    from ray.util import placement_group_table

    found = [
        f"placement group {one['placement_group_id']}" for one in placement_group_table().values() if one["state"] != "REMOVED"
    ]
    found += [f"actor {one['ActorClassName']}" for one in actors().values() if one["State"] != "DEAD"]
    total, free = ray.cluster_resources(), ray.available_resources()
    return found + [f"{name}: {free.get(name, 0)} of {total[name]} free" for name in ("CPU",) if free.get(name) != total[name]]


def titled(kind):
    """Processes on this machine with the title of a worker or a trial actor; of this cluster, as tests run one at a time."""
    import ray

    raylet = next(one for one in psutil.Process().children(recursive=True) if one.name() == "raylet")
    assert ray.is_initialized()
    found = []
    for one in raylet.children(recursive=True):
        try:
            if " ".join(one.cmdline()).startswith(TITLES[kind]):
                found.append(one)
        except psutil.Error:
            continue
    return sorted(found, key=lambda one: one.pid)


def kill_parts(run, seed, kills):
    """Kill a worker or a trial actor after every few reports; returns how many of each."""
    rng, done = random.Random(seed), Counter()
    run.start()
    for _ in range(kills):
        assert run.advance(rng.randint(3, 20)), f"the sweep ended before all kills:\n{run.wait(), run.outputs}"
        time.sleep(rng.uniform(0, 0.05))
        kind = rng.choice(["worker", "worker", "actor"])
        rng.choice(until(partial(titled, kind), f"a process of a {kind}")).kill()
        done[kind] += 1
    status = run.wait()
    assert status == 0, run.outputs[-1]
    return done


def compare_parts(run, experiment, expected, seed, kills):
    done = kill_parts(run, seed, kills)
    print(f"killed {dict(done)}")
    found = [
        *problems_of_journal(run),
        *problems_of_files(run),
        *problems_of_tracking(run),
        *problems_of_decisions(run, experiment),
    ]
    assert found == []
    assert summary(run, experiment) == expected
    until(lambda: not left_in_cluster(), f"nothing left in the cluster, now {left_in_cluster()}", patience_s=5)
    run.wait_until_alone()


@pytest.mark.parametrize("seed", [1])
def test_killed_workers_and_trial_actors_cost_no_trial(seed, chaos, experiments, unbroken, cluster):
    compare_parts(chaos(trials=6, address=cluster), experiments["one"], unbroken(6), seed, kills=2)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", [300, 301])
def test_twenty_kills_of_workers_and_trial_actors(seed, chaos, experiments, unbroken, cluster):
    compare_parts(chaos(address=cluster), experiments["one"], unbroken(24), seed, kills=10)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", [400, 401])
@pytest.mark.parametrize("part", ["raylet", "gcs_server"])
def test_a_sweep_whose_ray_is_killed_ends_and_is_resumed(part, seed, chaos, experiments, unbroken):
    run, rng = chaos(), random.Random(seed)
    run.start()
    assert run.advance(rng.randint(20, 150))
    (victim,) = [one for one in psutil.Process(run.process.pid).children(recursive=True) if one.name() == part]
    victim.kill()
    status = run.wait()
    print(f"exit status {status}: {run.outputs[-1][-1500:]}")
    assert status != 0
    run.wait_until_alone()
    run.finish()
    found = [
        *problems_of_journal(run),
        *problems_of_files(run),
        *problems_of_tracking(run),
        *problems_of_decisions(run, experiments["one"]),
    ]
    assert found == []
    assert summary(run, experiments["one"]) == unbroken(24)
    run.wait_until_alone()


@pytest.mark.chaos
@pytest.mark.parametrize("seed", [500, 501])
def test_a_killed_tracker_costs_the_sweep_nothing_and_all_points_are_there(seed, chaos, experiments, unbroken):
    run, rng = chaos(), random.Random(seed)
    run.start()
    for _ in range(3):
        run.advance(rng.randint(5, 60))
        trackers = [one for one in run.processes() if "tunelab.trackers" in " ".join(one.cmdline())]
        for tracker in trackers:
            tracker.send_signal(signal.SIGKILL)
    status = run.wait()
    assert status == 0, run.outputs[-1]
    if list(problems_of_tracking(run)):
        run.finish()  # what the sweep's last message asks for
    assert [*problems_of_journal(run), *problems_of_files(run), *problems_of_tracking(run)] == []
    assert summary(run, experiments["one"]) == unbroken(24)
    run.wait_until_alone()
