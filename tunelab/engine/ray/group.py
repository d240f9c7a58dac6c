"""Ray Train's controller and worker group, run inside the trial actor, with workers that outlive a trial."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray.exceptions import RayActorError
from ray.train.v2._internal.exceptions import WorkerGroupStartupFailedError
from ray.train.v2._internal.execution.callback import ReportCallback
from ray.train.v2._internal.execution.checkpoint.checkpoint_manager import CheckpointManager, _TrainingResult
from ray.train.v2._internal.execution.checkpoint.sync_actor import SynchronizationActor
from ray.train.v2._internal.execution.controller.controller import TrainController
from ray.train.v2._internal.execution.controller.state import FinishedState, ShuttingDownState
from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy
from ray.train.v2._internal.execution.worker_group import WorkerGroupPollStatus
from ray.train.v2._internal.execution.worker_group.execution_group import ReplicaGroup
from ray.train.v2._internal.execution.worker_group.worker import Worker
from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup
from ray.train.v2._internal.util import bundle_to_remote_args
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from tunelab.engine.ray.messages import Answer, Report
from tunelab.engine.ray.worker import POLL_S, WarmWorker

for name in ("controller.controller", "worker_group.worker_group", "failure_handling"):
    logging.getLogger(f"ray.train.v2._internal.execution.{name}").setLevel(logging.ERROR)


@dataclass
class Crew:
    """Workers that have finished a trial well and wait for the next."""

    workers: list[Worker]
    sync_actor: Any
    trials: int = 0
    first_mb: float = 0.0  # memory of its largest worker after the first trial

    def dismiss(self) -> None:
        """End the processes now, whatever they are doing."""
        for worker in self.workers:
            ray.kill(worker.actor)
        ray.kill(self.sync_actor)


@dataclass
class Slot:
    """A place where trials run one after another: the trial's placement group and the workers in it.

    Args:
        root: The project's root, for the workers' `sys.path`.
        warm: Whether workers outlive a trial.
        recycle_after: Trials after which workers are replaced, or None for no limit.
        max_growth_mb: Growth of a worker's memory since its first trial after which it is replaced, or None for no limit.
    """

    root: str
    warm: bool
    recycle_after: int | None = None
    max_growth_mb: float | None = None
    idle: dict[Any, Crew] = field(default_factory=dict)
    busy: list[Any] = field(default_factory=list)  # handles of the workers that run the trial, also while they start
    tracebacks: dict[int, str] = field(default_factory=dict)  # of the ranks that failed last
    notes: list[str] = field(default_factory=list)  # sentences for the user

    def interrupt(self) -> None:
        """End the processes that run the trial, at once."""
        for actor in self.busy:
            ray.kill(actor)

    def dismiss_idle(self) -> None:
        """End the crews that wait for a trial."""
        while self.idle:
            self.idle.popitem()[1].dismiss()

    def close(self) -> None:
        """End all processes."""
        self.interrupt()
        self.dismiss_idle()


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
    """A worker group that takes an idle crew where there is one and gives it back when the trial ended well."""

    _worker_cls = WarmWorker
    slot: Slot  # set on the subclass that `WarmController` makes
    keep = False  # whether the workers are fit for another trial
    answer: Answer | None = None  # to the last report, on its way to the workers
    conversation: Conversation | None = None

    def _start_impl(self, worker_group_state_builder: Any) -> None:
        context = self._worker_group_context
        for callback in self._callbacks:
            callback.before_worker_group_start(context)
        self._crew = crew = self._take_crew()
        try:
            workers = crew.workers
            self._replica_groups = [
                ReplicaGroup([worker], context.resources_per_worker, self._replica_group_callbacks) for worker in workers
            ]
            self._worker_rank_to_replica_group_rank = {
                worker.distributed_context.world_rank: rank for rank, worker in enumerate(workers)
            }
            builder = worker_group_state_builder
            builder.with_placement_group_handle(TrialPlacementGroup(ray.util.get_current_placement_group()))
            builder.with_sync_actor(crew.sync_actor).with_workers(workers)
            self._init_train_context(workers, crew.sync_actor)
            self._worker_group_state = builder.build()
            for callback in self._callbacks:
                callback.after_worker_group_start(self)
            ray.get([worker.actor.run_train_fn.remote(context.train_fn_ref) for worker in workers])
        except BaseException as error:
            crew.dismiss()  # whatever it was: the next attempt needs the room
            if isinstance(error, RayActorError):
                raise WorkerGroupStartupFailedError("A worker died while the trial was being started.") from error
            raise
        for callback in self._callbacks:
            callback.after_worker_group_training_start(self)

    def _take_crew(self) -> Crew:
        context = self._worker_group_context
        crew = self.slot.idle.pop(self._shape(), None)
        if crew is None:
            self.slot.dismiss_idle()  # they are of another shape, and hold the same bundles
            sync_actor = SynchronizationActor.remote()
            workers = self._create_workers(
                context.num_workers, ray.util.get_current_placement_group(), context.resources_per_worker
            )
            return Crew(workers, sync_actor)
        fresh = [  # ranks and log paths are filled in anew
            Worker(w.actor, w.metadata, w.resources, placement_group_bundle_index=w.placement_group_bundle_index)
            for w in crew.workers
        ]
        self.slot.busy = [worker.actor for worker in fresh]
        return replace(crew, workers=self._assign_worker_ranks(fresh))

    def _create_workers(
        self, num_workers: int, placement_group: Any, resources_per_worker: dict[str, float], **kwargs: Any
    ) -> list[Worker]:
        """As Ray Train's, with the project's root handed to each worker before anything of the project is unpickled there."""
        runtime_env = self._get_worker_runtime_env(self._train_run_context.run_config.worker_runtime_env)
        worker_class = ray.remote(runtime_env=runtime_env, **bundle_to_remote_args(resources_per_worker))(self._worker_cls)
        actors = [
            worker_class.options(
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placement_group=placement_group, placement_group_bundle_index=index
                )
            ).remote(self.slot.root)
            for index in range(num_workers)
        ]
        self.slot.busy = actors
        try:
            metadata = ray.get([actor.get_metadata.remote() for actor in actors])
        except RayActorError as error:
            for actor in actors:
                ray.kill(actor)
            raise WorkerGroupStartupFailedError(f"A worker could not be started: {error}") from error
        workers = [
            Worker(actor, about, resources_per_worker, placement_group_bundle_index=index)
            for index, (actor, about) in enumerate(zip(actors, metadata, strict=True))
        ]
        return self._assign_worker_ranks(workers)

    @staticmethod
    def _decorate_worker_log_file_paths(workers: list[Worker]) -> list[Worker]:
        return workers  # a round trip for the dashboard's sake

    def _shape(self) -> tuple[Any, ...]:
        context = self._worker_group_context
        runtime_env = self._train_run_context.run_config.worker_runtime_env
        return context.num_workers, tuple(sorted(context.resources_per_worker.items())), repr(runtime_env)

    def _get_poll_tasks(self) -> list[Any]:
        answer, self.answer = self.answer, None
        if answer is None:
            return super()._get_poll_tasks()
        self._world_rank_to_ongoing_poll.clear()
        return [worker.actor.poll_status.remote(answer) for worker in self.get_workers()]

    def _poll_workers_and_collect_errors(self, timeout: float | None) -> list[Any]:
        statuses = super()._poll_workers_and_collect_errors(timeout)
        early = getattr(statuses[0], "early", None)
        if early and self.conversation is not None:
            self.conversation.early(early)  # before the report that comes after them
        return statuses

    def poll_status(self, timeout: float | None = None) -> WorkerGroupPollStatus:
        status = super().poll_status(timeout)
        # Ray Train's error holds the exceptions without their tracebacks.
        self.slot.tracebacks = {rank: str(one.error) for rank, one in status.worker_statuses.items() if one.error}
        return status

    def shutdown(self) -> None:
        state = self._worker_group_state
        for callback in self._callbacks:
            callback.before_worker_group_shutdown(self)
        crew = replace(self._crew, workers=state.workers, trials=self._crew.trials + 1)
        if self.keep and self.slot.warm and self._is_fit(crew):
            self.slot.idle[self._shape()] = crew
        else:
            crew.dismiss()
        self.slot.busy = []
        self._clear_state()
        for callback in self._callbacks:
            callback.after_worker_group_shutdown(self._worker_group_context)

    def _is_fit(self, crew: Crew) -> bool:
        """Have the workers put back as they were, and say whether they may run another trial."""
        try:
            cleanups = ray.get([worker.actor.shutdown.remote() for worker in crew.workers])
        except RayActorError:
            return False
        largest = max(cleanup.rss_mb for cleanup in cleanups)
        crew.first_mb = crew.first_mb or largest
        reasons = {cleanup.reason for cleanup in cleanups if not cleanup.fit}
        slot, growth = self.slot, largest - crew.first_mb
        if slot.max_growth_mb is not None and growth > slot.max_growth_mb:
            reasons.add(f"its memory has grown by {growth:.0f} MB in {crew.trials} trials")
        leftovers = [leftover for cleanup in cleanups for leftover in cleanup.leftovers]
        name = self._train_run_context.run_config.name
        slot.notes += [f"{name} left behind: {leftover}" for leftover in dict.fromkeys(leftovers)]
        slot.notes += [f"{name}: its workers are replaced, because {reason}" for reason in sorted(reasons)]
        return not reasons and (slot.recycle_after is None or crew.trials < slot.recycle_after)


class Conversation(ReportCallback):
    """Hands each consolidated report to the attempt, waits for the answer and leaves it for the next poll."""

    def __init__(self, attempt: Any) -> None:
        self._attempt = attempt
        self.controller: WarmController | None = None

    def after_report(self, training_report: Any, metrics: list[dict[str, Any]]) -> None:
        checkpoint = training_report.checkpoint
        answer = self._attempt.converse(Report(metrics[0], self._attempt.relative(checkpoint)))
        assert self.controller is not None and self.controller._worker_group is not None
        self.controller._worker_group.answer = answer

    def early(self, reports: list[tuple[dict[str, Any], Any]]) -> None:
        """Pass on what rank 0 reported without waiting for an answer."""
        for metrics, checkpoint in reports:
            self._attempt.tell(Report(metrics, self._attempt.relative(checkpoint), asks=False))


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
        self._worker_group.keep = isinstance(state, ShuttingDownState) and isinstance(state.next_state, FinishedState)
        super()._shutdown_worker_group()
