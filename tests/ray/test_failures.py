"""Every class of failure, provoked for real, and what follows from it: docs/failures.md shows the table that comes of it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import ray.train
from provoked import CLASSES, EPOCHS, HANGS_S, NUMBERS, WAYS, StopsOne, markdown, misbehave, row, told_to_tpe
from ray.train.torch import TorchTrainer
from toys import FIFO, experiment

from tunelab import OnFailure
from tunelab.core.failures import Failure
from tunelab.core.trial import Status

DOCS = Path(__file__).parents[2] / "docs" / "failures.md"


@pytest.fixture(scope="module")
def local(tmp_path_factory, make_bench, cluster):
    """One sweep in which each trial goes wrong in a way of its own, on the cluster of two CPUs."""
    bench = make_bench(tmp_path_factory.mktemp("failures"))
    trainer = TorchTrainer(
        misbehave,
        scaling_config=ray.train.ScalingConfig(num_workers=1),
        run_config=ray.train.RunConfig(failure_config=ray.train.FailureConfig(max_failures=1)),
    )
    made = experiment(
        trainer, trials=len(WAYS) + 1, concurrent=1, scheduler=StopsOne(), last_step=EPOCHS, report_timeout_s=HANGS_S
    )
    collect = bench.changed

    def changed(state, event):
        collect(state, event)
        if event.kind == "reported" and event.trial == NUMBERS["interrupted"]:
            os.kill(os.getpid(), signal.SIGINT)

    bench.changed = changed
    done = bench.start(made)
    return done, dict(zip(WAYS, told_to_tpe(made.space, list(done.state.trials.values())), strict=True))


@pytest.fixture(scope="module")
def several_nodes(tmp_path_factory):
    """What came of the sweeps in several_nodes.py."""
    folder = tmp_path_factory.mktemp("nodes")
    script = Path(__file__).with_name("several_nodes.py")
    environment = {**os.environ, "RAY_TRAIN_V2_ENABLED": "1"}
    ran = subprocess.run(
        [sys.executable, str(script), str(folder)], env=environment, capture_output=True, text=True, timeout=400, check=False
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-6000:]
    return json.loads((folder / "told.json").read_text())["told"]


def trial_of(local, way):
    return local[0].state.trials[NUMBERS[way]]


def failures(trial):
    return [attempt.failure for attempt in trial.attempts]


@pytest.mark.parametrize(
    ("way", "expected", "status"),
    [
        ("nothing", [None], Status.COMPLETED),
        ("user error", ["user error"] * 2, Status.FAILED),
        ("infeasible", ["infeasible"], Status.INFEASIBLE),
        ("diverged", ["diverged"], Status.FAILED),
        ("out of memory", ["out of memory", None], Status.COMPLETED),
        ("out of memory again", ["out of memory"] * 2, Status.INFEASIBLE),
        ("lost", ["lost", None], Status.COMPLETED),
        ("hung", ["hung", None], Status.COMPLETED),
        ("restart ignored", ["lost", "restart ignored"], Status.FAILED),
        ("no report", ["no report"], Status.FAILED),
        ("bad report", ["bad report"], Status.FAILED),
        ("unsupported", ["unsupported"], Status.FAILED),
        ("stopped", [None], Status.STOPPED),
        ("interrupted", [None], Status.INTERRUPTED),
    ],
)
def test_each_way_to_fail_lands_in_its_class_with_its_action(local, way, expected, status):
    trial = trial_of(local, way)
    assert (failures(trial), trial.status) == (expected, status), [attempt.message for attempt in trial.attempts]
    for attempt in trial.attempts[1:]:
        assert attempt.from_step == 1, "it goes on from the checkpoint of epoch 1"


def test_what_went_wrong_is_kept_with_the_attempt(local):
    assert "RuntimeError: no luck" in trial_of(local, "user error").attempts[0].details
    assert "MemoryError" in trial_of(local, "out of memory").attempts[0].message
    assert "time.sleep(3600)" in trial_of(local, "hung").attempts[0].details
    assert trial_of(local, "lost").attempts[0].message == "worker 0 died: its process was killed, or crashed"


def test_a_sweep_whose_trials_fail_in_many_ways_goes_on_to_its_end(local):
    assert local[0].outcome == "interrupted" and len(local[0].state.trials) == len(WAYS)
    assert local[0].state.counted() == len(WAYS) - 2, "the two infeasible ones are not counted"


# ---- nodes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scene", "failure", "message", "step"),
    [
        ("a worker's node is gone", "lost", "worker 1 is gone with its node", 2),
        ("and there is no other", "lost", "worker 1 is gone with its node", 2),
        ("the trial's own node is gone", "lost", "the trial's process cannot be reached: it is gone, or its node", 2),
        ("announced, and it saves", "preempted", "its node is being taken away; it has a checkpoint of epoch 3", 3),
        ("announced, and it does not", "preempted", "its node was taken away before it had made another checkpoint", 2),
    ],
)
def test_a_trial_whose_node_is_gone_or_is_about_to_goes_on_elsewhere(several_nodes, scene, failure, message, step):
    told = several_nodes[scene]
    first, second = told["attempts"]
    assert (first["failure"], first["message"]) == (failure, message)
    assert (second["outcome"], second["from_step"], told["status"]) == ("completed", step, "completed")
    assert told["steps"] == [1, 2, 3, 4, 5]
    places = {attempt: {one["rank"]: one["node"] for one in told["notes"] if one["attempt"] == attempt} for attempt in (1, 2)}
    left = places[1][max(places[1])]  # the last rank's node is the one
    assert left not in places[2].values(), "it ran where it could not stay"
    said = "1 of the cluster's nodes is about to be taken away" if failure == "preempted" else "The cluster has "
    if scene != "the trial's own node is gone":  # Ray takes 15 s to know of that; the trial has long been tried again by then
        assert any(line.startswith(said) for line in told["said"]), told["said"]


# ---- one experiment each ---------------------------------------------------------------------------------------------


def one_of_three(config):
    from tunelab import current_trial

    raise RuntimeError(f"process {os.getpid()} of trial {current_trial().id[-4:]} has no luck")


def test_the_same_traceback_in_the_first_three_trials_stops_the_sweep_and_says_so(bench):
    done = bench.start(experiment(one_of_three, trials=9, concurrent=1, scheduler=FIFO()))
    assert done.outcome == "aborted" and len(done.state.trials) == 3
    assert re.fullmatch(
        r"the first 3 trials failed with the same error: RuntimeError: process \d+ of trial 0002 has no luck", done.reason
    )


def hungry(config):
    from provoked import use_up_memory
    from toys import report

    from tunelab import current_trial

    number, attempt = int(current_trial().id[-4:]), current_trial().attempt
    if number == 0 and attempt == 1:
        use_up_memory()
    for epoch in range(1, 4 if number == 0 else 12):
        import time

        time.sleep(0.1)
        report({"epoch": epoch, "score": 1.0}, epoch)


def test_a_trial_out_of_memory_is_tried_again_while_no_other_runs(bench):
    done = bench.start(experiment(hungry, trials=4, concurrent=2, scheduler=FIFO(), last_step=12))
    trials = done.state.trials
    assert failures(trials[0]) == ["out of memory", None] and trials[0].status is Status.COMPLETED
    alone = trials[0].attempts[1]
    for trial in trials.values():
        if trial.number:
            (attempt,) = trial.attempts
            assert attempt.ended_at <= alone.started_at or attempt.started_at >= alone.ended_at
    assert any(
        line.startswith("0000 ran out of memory: it is tried again alone, once 1 other trial has") for line in bench.said
    )


def test_an_experiment_may_say_that_a_class_is_not_retried(bench):
    made = experiment(
        hungry,
        trials=2,
        concurrent=1,
        scheduler=FIFO(),
        last_step=12,
        on_failure={"out of memory": OnFailure(retries=0, then="stop sweep")},
    )
    done = bench.start(made)
    assert done.outcome == "aborted" and failures(done.state.trials[0]) == ["out of memory"]
    assert done.reason.startswith("0000: out of memory: MemoryError")


# ---- the table -------------------------------------------------------------------------------------------------------


def produced(local, several_nodes):
    rows = []
    for way, how in WAYS.items():
        if how:
            rows.append(row(way.removesuffix(" again"), how, trial_of(local, way), local[1][way]))
    hows = {
        "a worker's node is gone": "raylet of worker 1's node killed, of 3 nodes",
        "and there is no other": "raylet of worker 1's node killed, of 2 nodes; a third is added later",
        "the trial's own node is gone": "raylet of the trial's node killed, of 2 nodes",
        "announced, and it saves": "its node drained, and the loop asks `get_preemption_info()`",
        "announced, and it does not": "its node drained with a deadline of 3 s, and the loop does not ask",
    }
    from tunelab.core.space import Space
    from tunelab.journal import read_events, replay

    at = [cells[0] for cells in rows].index("lost") + 1
    for scene, how in hows.items():
        state = replay(read_events(Path(several_nodes[scene]["journal"])))
        (told,) = told_to_tpe(Space.from_json(state.experiment["space"]), list(state.trials.values()))
        name = "preempted" if "announced" in scene else "lost"
        rows.insert(at, row(name, f"{how} (simulated)", state.trials[0], told))
        at += 1
    return rows


def test_the_documentation_shows_the_table_that_these_tests_produced(local, several_nodes):
    rows = produced(local, several_nodes)
    assert {*CLASSES} - {cells[0] for cells in rows} == {Failure.DISK_FULL.value}, "that one is provoked elsewhere"
    shown = DOCS.read_text().partition("<!-- produced by tests/ray/test_failures.py -->\n\n")[2].partition("\n<!-- end -->")[0]
    assert shown == markdown(rows), f"docs/failures.md should show\n\n{markdown(rows)}"
