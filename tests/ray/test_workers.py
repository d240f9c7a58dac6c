"""The life of worker processes: kept from trial to trial, and replaced after an error, a kill, a hang or by plan."""

from __future__ import annotations

import json
import os
import time
import uuid
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
import ray.train
from ray.exceptions import RayActorError
from ray.train import CheckpointUploadMode
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError
from ray.train.v2._internal.execution.worker_group.poll import WorkerStatus
from toys import ASHA, FIFO, experiment, report

from tunelab import Choice, current_trial
from tunelab.core.failures import Failure
from tunelab.core.trial import Status
from tunelab.engine.ray.group import WarmWorkerGroup


def trainer(loop, marks, workers=2, **config):
    return TorchTrainer(
        loop, train_loop_config={"marks": str(marks), **config}, scaling_config=ray.train.ScalingConfig(num_workers=workers)
    )


def note(config, **told):
    """Append what this attempt has to say on this rank to a file of its own."""
    trial = current_trial()
    told |= {"trial": int(trial.id[-4:]), "attempt": trial.attempt, "rank": ray.train.get_context().get_world_rank()}
    Path(config["marks"], f"{uuid.uuid4().hex}.json").write_text(json.dumps({"pid": os.getpid(), **told}))


def notes(folder, **wanted):
    told = [json.loads(path.read_text()) for path in Path(folder).glob("*.json")]
    return [one for one in told if wanted.items() <= one.items()]


def pids(folder, **wanted):
    return {one["rank"]: one["pid"] for one in notes(folder, **wanted)}


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except FileNotFoundError:
        return False


# ---- kept and replaced -----------------------------------------------------------------------------------------------


def every_tenth_fails(config):
    note(config)
    if int(current_trial().id[-4:]) % 10 == 9:
        raise RuntimeError("one of ten")
    ray.train.report({"epoch": 1, "score": 1.0})


def test_a_hundred_trials_through_one_slot_with_every_tenth_failing(bench, tmp_path):
    folder = tmp_path / "marks"
    folder.mkdir()
    done = bench.start(
        experiment(trainer(every_tenth_fails, folder, workers=1), trials=100, concurrent=1, scheduler=FIFO(), last_step=1)
    )
    assert [trial.status for trial in done.state.trials.values()] == ([Status.COMPLETED] * 9 + [Status.FAILED]) * 10
    seen = [pids(folder, trial=number) for number in range(100)]
    for number in range(1, 100):
        kept = seen[number] == seen[number - 1]
        assert kept == (number % 10 != 0), f"trial {number}: workers {seen[number]} after {seen[number - 1]}"
    assert all(set(seen[number].values()).isdisjoint(seen[number - 1].values()) for number in range(10, 100, 10))


def misbehaves(config):
    trial = current_trial()
    number, rank = int(trial.id[-4:]), ray.train.get_context().get_world_rank()
    note(config, what="started")
    try:
        if number == 1 and trial.attempt == 1 and rank == config["rank"]:
            if config["how"] == "error":
                raise RuntimeError("no luck")
            if config["how"] == "kill":
                os.kill(os.getpid(), 9)
            while True:
                time.sleep(0.01)
        report({"epoch": 1, "score": 1.0}, 1, rank)
    finally:
        note(config, what="unwound")


@pytest.mark.parametrize(
    ("how", "failure", "timeout_s", "rank"),
    [("error", Failure.USER_ERROR, None, 1), ("kill", Failure.LOST, None, 1), ("hang", Failure.HUNG, 2.0, 0)],
)
def test_workers_are_replaced_after(bench, tmp_path, how, failure, timeout_s, rank):
    folder = tmp_path / "marks"
    folder.mkdir()
    made = trainer(misbehaves, folder, how=how, rank=rank)
    made.run_config.failure_config = ray.train.FailureConfig(max_failures=1)
    done = bench.start(experiment(made, trials=3, concurrent=1, scheduler=FIFO(), last_step=1, report_timeout_s=timeout_s))
    trials = done.state.trials
    assert [trial.status for trial in trials.values()] == [Status.COMPLETED] * 3, [trial.reason for trial in trials.values()]
    first, second = trials[1].attempts
    assert (first.failure, second.failure) == (failure.value, None)
    before, bad, good, after = (
        pids(folder, trial=number, attempt=attempt, what="started") for number, attempt in ((0, 1), (1, 1), (1, 2), (2, 1))
    )
    assert before == bad and good == after, "warm until then, and warm again"
    assert set(bad.values()).isdisjoint(good.values())
    assert not any(is_running(pid) for pid in bad.values())
    unwound = {one["rank"] for one in notes(folder, trial=1, attempt=1, what="unwound")}
    assert unwound == ({0, 1} - {rank} if how == "kill" else {0, 1}), "each loop that lives is given the time to clean up"
    if how == "hang":
        assert "time.sleep(0.01)" in first.details and "rank 1" in first.details and "rank 0" in first.details, first.details


def swallows(config):
    """A loop that cannot be interrupted."""
    note(config)
    if current_trial().attempt == 1:
        while True:
            try:
                while True:
                    time.sleep(0.01)
            except BaseException:
                pass
    ray.train.report({"epoch": 1, "score": 1.0})


def test_a_loop_that_ignores_its_interruption_is_ended_with_its_process(bench, tmp_path):
    folder = tmp_path / "marks"
    folder.mkdir()
    made = experiment(trainer(swallows, folder, workers=1), trials=1, scheduler=FIFO(), last_step=1, report_timeout_s=1.0)
    done = bench.start(made)
    assert done.state.trials[0].status is Status.COMPLETED, done.state.trials[0].reason
    assert [attempt.failure for attempt in done.state.trials[0].attempts] == ["hung", None]
    assert not is_running(pids(folder, attempt=1)[0])


def hangs_here(config):
    if current_trial().attempt == 1:
        while True:
            time.sleep(0.01)
    ray.train.report({"epoch": 1, "score": 1.0})


def test_a_plain_function_that_hangs_is_tried_again(bench):
    done = bench.start(experiment(hangs_here, trials=2, concurrent=1, scheduler=FIFO(), last_step=1, report_timeout_s=1.0))
    for trial in done.state.trials.values():
        assert trial.status is Status.COMPLETED and [attempt.failure for attempt in trial.attempts] == ["hung", None]
        assert "hangs_here" in trial.attempts[0].details


def plain(config):
    note(config)
    ray.train.report({"epoch": 1, "score": 1.0})


@pytest.mark.parametrize(("options", "lives"), [({"recycle_after": 2}, 2), ({"isolation": "fresh"}, 1)])
def test_workers_are_replaced_by_plan(bench, tmp_path, options, lives):
    folder = tmp_path / "marks"
    folder.mkdir()
    made = trainer(plain, folder, workers=1)
    bench.start(experiment(made, trials=4, concurrent=1, scheduler=FIFO(), last_step=1, **options))
    seen = [pids(folder, trial=number)[0] for number in range(4)]
    assert [seen.index(pid) for pid in seen] == [number - number % lives for number in range(4)]


def test_a_trial_of_another_shape_gets_workers_of_its_own(bench, tmp_path):
    folder = tmp_path / "marks"
    folder.mkdir()

    def make(config) -> TorchTrainer:
        return trainer(plain, folder, workers=config["workers"])

    made = experiment(make, trials=6, concurrent=1, scheduler=FIFO(), last_step=1)
    object.__setattr__(made, "space", type(made.space)({"workers": Choice([1, 2])}))
    done = bench.start(made)
    asked = [trial.config["workers"] for trial in done.state.trials.values()]
    assert {1, 2} <= set(asked), "the seed has to give both"
    for number, workers in enumerate(asked):
        assert sorted(pids(folder, trial=number)) == list(range(workers))
        if number and workers == asked[number - 1]:
            assert pids(folder, trial=number) == pids(folder, trial=number - 1)


# ---- reports of all ranks, and uploads -------------------------------------------------------------------------------


def differs_by_rank(config):
    rank = ray.train.get_context().get_world_rank()
    for epoch in range(1, config["epochs"] + 1):
        metrics = {"epoch": epoch, "score": float(10 * rank + epoch), "own": float(rank), "worst": float(rank - epoch)}
        if config.get("lacking") and rank == 1:
            del metrics["worst"]
        ray.train.report(metrics)


@pytest.mark.parametrize("epochs", [3, 500])
def test_metrics_are_rank_0s_unless_they_are_to_be_reduced(bench, tmp_path, epochs):
    made = trainer(differs_by_rank, tmp_path, epochs=epochs)
    reduce = {"score": "mean", "worst": "max", "absent": "sum"}
    done = bench.start(experiment(made, trials=1, scheduler=FIFO(), last_step=epochs, reduce=reduce))
    reports = done.state.trials[0].reports
    assert [report.step for report in reports] == list(range(1, epochs + 1))
    assert [report.value for report in reports] == [5.0 + epoch for epoch in range(1, epochs + 1)]
    assert all(report.metrics["own"] == 0.0 and report.metrics["worst"] == 1.0 - report.step for report in reports)


def test_a_metric_to_be_reduced_that_a_rank_does_not_report_is_named(bench, tmp_path):
    made = trainer(differs_by_rank, tmp_path, epochs=2, lacking=True)
    done = bench.start(experiment(made, trials=1, scheduler=FIFO(), last_step=2, reduce={"worst": "mean"}))
    assert done.state.trials[0].status is Status.FAILED
    assert "needs a number from every rank, got rank 0: -1.0, rank 1: None" in done.state.trials[0].reason


def uploads_aside(config):
    """Reports with uploads that take their time; says when `report` returned and when the upload was done."""
    rank = ray.train.get_context().get_world_rank()

    def slowly(checkpoint, name):
        storage = ray.train.get_context().get_storage()
        time.sleep(config["upload_s"])
        note(config, what="uploaded", at=time.monotonic())
        return storage.persist_current_checkpoint(checkpoint, name)

    for epoch in range(1, config["epochs"] + 1):
        folder = Path(config["marks"], "..", f"local-{current_trial().id[-4:]}-{epoch}")
        folder.mkdir(exist_ok=True)
        (folder / "state.json").write_text(str(epoch))
        checkpoint = ray.train.Checkpoint(str(folder)) if rank == 0 else None
        ray.train.report(
            {"epoch": epoch, "score": epoch * config["x"]},
            checkpoint=checkpoint,
            checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
            checkpoint_upload_fn=slowly if rank == 0 else None,
        )
        note(config, what="went on", at=time.monotonic(), epoch=epoch)


def test_asynchronous_uploads_do_not_hold_the_loop_up_and_nothing_is_lost(bench, tmp_path):
    folder = tmp_path / "marks"
    folder.mkdir()
    made = trainer(uploads_aside, folder, epochs=4, upload_s=0.5)
    done = bench.start(experiment(made, trials=1, scheduler=FIFO(), last_step=4))
    (trial,) = done.state.trials.values()
    assert trial.status is Status.COMPLETED, trial.reason
    assert [report.step for report in trial.reports] == [1, 2, 3, 4]
    assert all(report.checkpoint for report in trial.reports)
    last = done.folder.trials / str(trial.reports[-1].checkpoint)
    assert (last / "state.json").read_text() == "4"
    uploaded = sorted(one["at"] for one in notes(folder, rank=0, what="uploaded"))
    went_on = sorted(one["at"] for one in notes(folder, rank=0, what="went on"))
    assert len(uploaded) == 4 and all(went < up for went, up in zip(went_on, uploaded, strict=True))


def test_a_stop_reaches_a_loop_that_uploads_asynchronously_one_report_later(bench, tmp_path):
    folder = tmp_path / "marks"
    folder.mkdir()
    made = trainer(uploads_aside, folder, epochs=9, upload_s=0.0)
    done = bench.start(experiment(made, trials=4, concurrent=1, scheduler=ASHA(first_rung=3, reduction=2), last_step=9))
    stopped = [trial for trial in done.state.trials.values() if trial.status is Status.STOPPED]
    assert stopped
    for trial in stopped:
        assert trial.last.step in (3, 6)
        for rank in (0, 1):
            gone_on = [one["epoch"] for one in notes(folder, trial=trial.number, rank=rank, what="went on")]
            assert max(gone_on) == trial.last.step, "it computed one epoch more, and no second one"


# ---- who is gone, when some raise --------------------------------------------------------------------------------------


class Group:
    """What `_make_sure_who_is_gone` needs of a worker group: nothing is being asked of any rank."""

    _world_rank_to_ongoing_poll: ClassVar[dict] = {}

    def __init__(self, actors):
        self.workers = [SimpleNamespace(actor=actor) for actor in actors]

    def get_workers(self):
        return self.workers


def test_a_rank_that_answered_and_then_died_is_found_gone_when_another_raises():
    class Rank:
        def get_metadata(self):
            return "here"

        def end(self):
            os._exit(1)

    actors = [ray.remote(num_cpus=0)(Rank).remote() for _ in range(3)]
    ray.get([actor.get_metadata.remote() for actor in actors])
    with suppress(RayActorError):
        ray.get(actors[1].end.remote())
    statuses = [WorkerStatus(running=False, error=RuntimeError("closed by peer")), WorkerStatus(True), WorkerStatus(True)]
    WarmWorkerGroup._make_sure_who_is_gone(Group(actors), statuses)
    assert [type(status.error) for status in statuses] == [RuntimeError, WorkerHealthCheckFailedError, type(None)]
    for actor in actors:
        ray.kill(actor)


# ---- who trains together -----------------------------------------------------------------------------------------------


def alone(config):
    """Every rank leaves the process group, as one that never joined it."""
    import torch

    rank = ray.train.get_context().get_world_rank()
    torch.distributed.destroy_process_group()
    torch.distributed.init_process_group("gloo", init_method=f"file://{config['marks']}/{rank}", rank=0, world_size=1)
    report({"epoch": 1, "score": 1.0}, 1, rank)


def test_ranks_that_train_a_copy_each_are_an_error_at_the_first_report(bench, tmp_path):
    done = bench.start(experiment(trainer(alone, tmp_path), trials=1, concurrent=1, scheduler=FIFO(), last_step=1))
    (attempt,) = done.state.trials[0].attempts
    assert attempt.failure == Failure.USER_ERROR and not done.state.trials[0].reports
    assert "The trial has 2 workers, but torch has joined 1 of them: each worker trains a copy of its own." in attempt.message
