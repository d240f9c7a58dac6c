"""Ray Train's controller and worker group, run inside the trial actor, with workers that outlive a trial."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError
from ray.train.v2._internal.exceptions import WorkerGroupStartupFailedError, WorkerHealthCheckFailedError
from ray.train.v2._internal.execution.callback import ReportCallback
from ray.train.v2._internal.execution.checkpoint.checkpoint_manager import CheckpointManager, _TrainingResult
from ray.train.v2._internal.execution.controller.controller import TrainController
from ray.train.v2._internal.execution.controller.state import FinishedState, ShuttingDownState
from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy
from ray.train.v2._internal.execution.worker_group import WorkerGroupPollStatus
from ray.train.v2._internal.execution.worker_group.execution_group import ReplicaGroup
from ray.train.v2._internal.execution.worker_group.worker import Worker
from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup

from tunelab.core.reduce import merge
from tunelab.engine.ray.crew import Post, Slot
from tunelab.engine.ray.messages import Answer, Report
from tunelab.engine.ray.worker import POLL_S

SILENT_S = 60.0  # how long a rank may take to turn out to be gone, when another has failed

for name in ("controller.controller", "worker_group.worker_group", "failure_handling"):
    logging.getLogger(f"ray.train.v2._internal.execution.{name}").setLevel(logging.ERROR)


class TrialPlacementGroup:
    """The placement group that Tune made for the trial; its life is Tune's business."""

    def __init__(self, placement_group: Any) -> None:
        self.placement_group = placement_group

    def wait(self, timeout_s: float) -> bool:
        return True

    def shutdown(self) -> None:
        pass


class PlacedScalingPolicy(FixedScalingPolicy):
    """A fixed number of workers whose placement group exists already, so that no autoscaler (a process more) is asked."""

    def after_controller_start(self, train_run_context: Any) -> None:
        pass

    def _maybe_send_resource_request(self) -> None:
        pass


class WarmWorkerGroup(WorkerGroup):
    """A worker group that takes the slot's workers, and gives them back when the trial is over."""

    slot: Slot  # set on the subclass that `WarmController` makes
    went_well = False  # whether all train loops have returned
    answer: Answer | None = None  # to the last report, on its way to the workers
    conversation: Conversation | None = None

    def _start_impl(self, worker_group_state_builder: Any) -> None:
        context = self._worker_group_context
        for callback in self._callbacks:
            callback.before_worker_group_start(context)
        runtime_env = self._train_run_context.run_config.worker_runtime_env
        self._crew = crew = self.slot.take(Post.of(context.num_workers, context.resources_per_worker, runtime_env))
        try:
            workers = self._assign_worker_ranks(crew.workers())
            self._replica_groups = [
                ReplicaGroup([worker], context.resources_per_worker, self._replica_group_callbacks) for worker in workers
            ]
            self._worker_rank_to_replica_group_rank = {
                worker.distributed_context.world_rank: rank for rank, worker in enumerate(workers)
            }
            builder = worker_group_state_builder
            builder.with_placement_group_handle(TrialPlacementGroup(ray.util.get_current_placement_group()))
            builder.with_sync_actor(crew.sync_actor).with_workers(workers)
            self.slot.placed = [(w.distributed_context.world_rank, w.metadata.node_id, w.actor) for w in workers]
            self._init_train_context(workers, crew.sync_actor)
            self._worker_group_state = builder.build()
            for callback in self._callbacks:
                callback.after_worker_group_start(self)
            self.slot.tell_leaving()
            ray.get([worker.actor.run_train_fn.remote(context.train_fn_ref) for worker in workers])
            for callback in self._callbacks:
                callback.after_worker_group_training_start(self)
        except BaseException as error:  # whatever it was: the next attempt needs the room
            self._give_back()
            if isinstance(error, RayActorError):
                raise WorkerGroupStartupFailedError("A worker died while the trial was being started.") from error
            raise
        if self.conversation is not None:
            self.conversation.begun()

    def _give_back(self) -> None:
        self.slot.give_back(self._crew, trial=self._train_run_context.run_config.name, went_well=self.went_well)

    @staticmethod
    def _decorate_worker_log_file_paths(workers: list[Worker]) -> list[Worker]:
        return workers  # a round trip for the dashboard's sake

    def _get_poll_tasks(self) -> list[Any]:
        answer, self.answer = self.answer, None
        if answer is None:
            return super()._get_poll_tasks()
        self._world_rank_to_ongoing_poll.clear()
        return [worker.actor.poll_status.remote(answer) for worker in self.get_workers()]

    def _poll_workers_and_collect_errors(self, timeout: float | None) -> list[Any]:
        statuses = super()._poll_workers_and_collect_errors(timeout)
        if any(status.error for status in statuses):
            self._make_sure_who_is_gone(statuses)
        early = [getattr(status, "early", ()) for status in statuses]
        if any(early) and self.conversation is not None:
            self.conversation.early(early)  # before the report that comes after them
        return statuses

    def _make_sure_who_is_gone(self, statuses: list[Any]) -> None:
        """Ask every rank that has not failed by itself whether it is still there, and wait until that is known.

        When a node goes, ranks that are left raise at once, and its own cannot be reached, though they may have answered just
        before; that the node is gone is known 15 s later.
        """
        until = time.monotonic() + SILENT_S
        asked = {rank: poll.task for rank, poll in self._world_rank_to_ongoing_poll.items()}
        for rank, worker in enumerate(self.get_workers()):
            error = statuses[rank].error
            if rank not in asked and (error is None or _is_out_of_reach(error)):
                asked[rank] = worker.actor.get_metadata.remote()
        for rank, task in asked.items():
            if gone := _why_gone(self.get_workers()[rank].actor, task, until):
                statuses[rank].error = WorkerHealthCheckFailedError("A worker is gone.", failure=gone)

    def poll_status(self, timeout: float | None = None) -> WorkerGroupPollStatus:
        status = super().poll_status(timeout)
        # Ray Train's error holds the exceptions without their tracebacks.
        self.slot.tracebacks = {rank: str(one.error) for rank, one in status.worker_statuses.items() if one.error}
        return status

    def shutdown(self) -> None:
        try:
            for callback in self._callbacks:
                callback.before_worker_group_shutdown(self)
        finally:
            self._give_back()
        self._clear_state()
        for callback in self._callbacks:
            callback.after_worker_group_shutdown(self._worker_group_context)


def _is_out_of_reach(error: Exception) -> bool:
    return isinstance(getattr(error, "health_check_failure", None), ActorUnavailableError)


def _why_gone(actor: Any, asked: Any, until: float) -> Exception | None:
    """What has become of an actor that was asked something; None when it answers, or nothing is known of it by then."""
    while True:
        try:
            ray.get(asked, timeout=max(0.0, until - time.monotonic()))
            return None
        except GetTimeoutError:
            return None
        except ActorUnavailableError as error:
            if time.monotonic() > until:
                return error
            time.sleep(0.5)  # there is nothing to be notified by
            asked = actor.get_metadata.remote()
        except Exception as error:
            return error


class Conversation(ReportCallback):
    """Hands each consolidated report to the attempt, waits for the answer and leaves it for the next poll.

    Args:
        attempt: Takes the reports.
        reduce: How metrics are made of all ranks' values, by name; the others are rank 0's.
    """

    def __init__(self, attempt: Any, reduce: Mapping[str, str]) -> None:
        self._attempt, self._reduce = attempt, reduce
        self._by_rank: list[deque[tuple[dict[str, Any], Any]]] = []
        self.controller: WarmController | None = None

    def begun(self) -> None:
        """All train loops are running."""
        self._attempt.begun()

    def after_report(self, training_report: Any, metrics: list[dict[str, Any]]) -> None:
        checkpoint = training_report.checkpoint
        merged = merge(metrics, self._reduce)
        answer = self._attempt.converse(Report(merged, self._attempt.relative(checkpoint)))
        assert self.controller is not None and self.controller._worker_group is not None
        self.controller._worker_group.answer = answer

    def early(self, reports: Sequence[Sequence[tuple[dict[str, Any], Any]]]) -> None:
        """Pass on what was reported without waiting, by rank: all ranks' if they are to be merged, else rank 0's."""
        ranks = reports if self._reduce else reports[:1]
        self._by_rank = self._by_rank or [deque() for _ in ranks]
        for waiting, new in zip(self._by_rank, ranks, strict=True):
            waiting.extend(new)
        while all(self._by_rank):
            same = [waiting.popleft() for waiting in self._by_rank]
            merged = merge([metrics for metrics, _ in same], self._reduce)
            self._attempt.tell(Report(merged, self._attempt.relative(same[0][1]), asks=False))


class WarmController(TrainController):
    """Ray Train's controller for one attempt, without processes or files of its own.

    Args:
        slot: Where the attempt runs.
        conversation: Takes the reports.
        checkpoint: What `ray.train.get_checkpoint()` returns before the first report, or None.
        kwargs: As `TrainController`.
    """

    def __init__(self, *, slot: Slot, conversation: Conversation, checkpoint: Any, **kwargs: Any) -> None:
        self.worker_group_cls = type("SlotWorkerGroup", (WarmWorkerGroup,), {"slot": slot, "conversation": conversation})
        kwargs["callbacks"] = [*kwargs["callbacks"], conversation]
        super().__init__(**kwargs)
        conversation.controller = self
        self._keep_books_in_memory(checkpoint)

    def _keep_books_in_memory(self, checkpoint: Any) -> None:
        """The journal says where a trial goes on from, so Ray Train's snapshot is neither written nor read."""
        books: CheckpointManager = self._checkpoint_manager
        books._write_state_to_storage = lambda: None
        if checkpoint is not None:
            books._latest_checkpoint_result = _TrainingResult(checkpoint=checkpoint, metrics={})

    async def _poll_workers(self) -> WorkerGroupPollStatus:
        assert self._worker_group is not None
        return self._worker_group.poll_status(timeout=2 * POLL_S)

    def _shutdown_worker_group(self) -> None:
        state = self.get_state()
        assert self._worker_group is not None
        self._worker_group.went_well = isinstance(state, ShuttingDownState) and isinstance(state.next_state, FinishedState)
        super()._shutdown_worker_group()
