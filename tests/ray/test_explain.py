"""Ray's errors, sorted into failure classes. Those that need a cluster to come about are in test_failures.py."""

from __future__ import annotations

import pytest
from ray.exceptions import ActorDiedError, OutOfMemoryError, RayActorError, RayTaskError
from ray.train import WorkerGroupError
from ray.train.v2._internal.exceptions import WorkerGroupStartupFailedError, WorkerHealthCheckFailedError
from ray.train.v2.api.exceptions import ControllerError, PreemptionError
from ray.train.v2.api.preemption import PreemptionInfo

from tunelab import Infeasible
from tunelab.core.failures import Failure
from tunelab.engine.ray.explain import explain, explain_death

NODE = "The actor died because its node has died. Node Id: 12ab. the actor's node was terminated unexpectedly"


def died(text="The actor is dead because its worker process has died.", preempted=False):
    return WorkerHealthCheckFailedError("A worker health check failed.", failure=RayActorError("ab", text, preempted=preempted))


def group(**failures):
    by_rank = {int(rank.removeprefix("rank")): error for rank, error in failures.items()}
    return WorkerGroupError("Training failed.", by_rank)


def started_badly(cause):
    error = WorkerGroupStartupFailedError("A worker could not be started")
    error.__cause__ = cause
    return ControllerError(error)


PEER = RuntimeError("Connection closed by peer")


@pytest.mark.parametrize(
    ("error", "failure", "message"),
    [
        (group(rank0=ValueError("no")), Failure.USER_ERROR, "ValueError: no"),
        (group(rank0=PEER, rank1=died()), Failure.LOST, "worker 1 died: its process was killed, or crashed"),
        (group(rank0=PEER, rank3=died(NODE)), Failure.LOST, "worker 3 is gone with its node"),
        (group(rank0=PEER, rank1=died(NODE, preempted=True)), Failure.PREEMPTED, "its node was taken away before"),
        (PreemptionError(PreemptionInfo(None, {"ab": [0]})), Failure.PREEMPTED, "its node was taken away before"),
        (group(rank0=PEER, rank1=MemoryError()), Failure.OUT_OF_MEMORY, "MemoryError"),
        (group(rank0=PEER, rank1=OutOfMemoryError("killed by Ray")), Failure.OUT_OF_MEMORY, "OutOfMemoryError: killed by Ray"),
        (group(rank0=died(), rank1=Infeasible("too wide")), Failure.INFEASIBLE, "too wide"),
        (group(rank0=OSError(28, "No space left on device")), Failure.DISK_FULL, "OSError: [Errno 28]"),
        (started_badly(ActorDiedError()), Failure.LOST, "a worker died: its process was killed, or crashed"),
        (ControllerError(ValueError("bad backend")), Failure.USER_ERROR, "ValueError: bad backend"),
    ],
)
def test_what_explains_most_is_what_is_told(error, failure, message):
    ended = explain(error)
    assert ended.failure is failure and ended.message.startswith(message)


def test_a_dead_worker_was_out_of_memory_where_the_kernel_killed_somebody_for_that_on_its_machine():
    error = group(rank0=PEER, rank1=died())
    assert explain(error, short_of_memory={0}).failure is Failure.LOST, "rank 1 was elsewhere"
    ended = explain(error, short_of_memory={0, 1})
    assert ended.failure is Failure.OUT_OF_MEMORY
    assert ended.message == "worker 1 was killed by the kernel for want of memory"
    assert explain(group(rank0=PEER), short_of_memory={0}).failure is Failure.USER_ERROR, "nobody has died"


@pytest.mark.parametrize(
    ("details", "killed", "failure", "message"),
    [
        ("Traceback\nray.exceptions.ActorDiedError: gone", False, Failure.LOST, "the trial's process died: ray.exceptions."),
        (f"Traceback\n{NODE}", True, Failure.LOST, "the trial's process is gone with its node"),
        (
            "ray.exceptions.OutOfMemoryError: Task was killed",
            False,
            Failure.OUT_OF_MEMORY,
            "the trial's process was killed by Ray's",
        ),
        ("ray.exceptions.ActorDiedError: gone", True, Failure.OUT_OF_MEMORY, "the trial's process was killed by the kernel"),
        ("", False, Failure.LOST, "the trial's process died"),
    ],
)
def test_the_death_of_a_trials_own_process(details, killed, failure, message):
    ended = explain_death(details, killed=killed)
    assert ended.failure is failure and ended.message.startswith(message)


def test_an_error_of_a_task_is_told_by_its_cause():
    cause = ValueError("no")
    try:
        raise RayTaskError("loop", "Traceback", cause).as_instanceof_cause()
    except Exception as error:
        assert explain(error).failure is Failure.USER_ERROR
