"""The worker processes of a slot: hired for a trial, kept for the next one, replaced when they are not fit for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from ray.train.v2._internal.constants import get_env_vars_to_propagate
from ray.train.v2._internal.exceptions import WorkerGroupStartupFailedError
from ray.train.v2._internal.execution.checkpoint.sync_actor import SynchronizationActor
from ray.train.v2._internal.execution.worker_group.worker import Worker
from ray.train.v2._internal.util import bundle_to_remote_args
from ray.train.v2.api.preemption import PreemptionInfo
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from tunelab.engine.hygiene import Cleanup
from tunelab.engine.ray.actor import RAY_SETTINGS
from tunelab.engine.ray.alone import Alone
from tunelab.engine.ray.worker import WarmWorker

UNWIND_S = 2.0  # how long train loops that are interrupted may take to clean up before their processes are ended
STACKS_S = 3.0  # how long a worker may take to say where it is


@dataclass(frozen=True)
class Post:
    """What a trial asks of its workers. Trials of equal posts can have the same workers."""

    num_workers: int
    resources: tuple[tuple[str, float], ...]  # of each
    env_key: str
    runtime_env: Any = field(compare=False)

    @staticmethod
    def of(num_workers: int, resources: Mapping[str, float], runtime_env: Any) -> Post:
        """From what Ray Train's configuration says; resources of which nothing is asked do not count."""
        asked = tuple(sorted((name, float(amount)) for name, amount in resources.items() if amount))
        return Post(num_workers, asked, repr(runtime_env or {}), runtime_env or {})


class Crew:
    """The workers of one post, and the actor through which they agree on checkpoint names.

    Attributes:
        trials: How many they have run.
        first_mb: Memory of the largest of them after its first trial; 0 before.
    """

    def __init__(self, post: Post, actors: list[Any]) -> None:
        self.post, self.actors = post, actors
        self.trials, self.first_mb = 0, 0.0
        self._metadata: list[Any] = []

    @staticmethod
    def hire(post: Post, root: str, preload: bytes | None) -> Crew:
        """Start the processes in the trial's placement group, without waiting for them.

        Args:
            post: What they are for.
            root: The project's root, for their `sys.path`.
            preload: The pickled trainer, which they unpickle at once for the sake of its imports, or None.
        """
        placement_group = ray.util.get_current_placement_group()
        options = bundle_to_remote_args(dict(post.resources))
        if runtime_env := _runtime_env(post):
            options["runtime_env"] = runtime_env
        worker_class = ray.remote(**options)(WarmWorker)
        actors = [
            worker_class.options(
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placement_group=placement_group, placement_group_bundle_index=index
                )
            ).remote(root, preload)
            for index in range(post.num_workers)
        ]
        return Crew(post, actors)

    @cached_property
    def sync_actor(self) -> Any:
        """Started when it is first asked for, so that it does not take the time of workers that start; none for one worker."""
        return Alone() if len(self.actors) == 1 else SynchronizationActor.remote()

    def workers(self) -> list[Worker]:
        """The workers as Ray Train describes them, without ranks. Waits for processes that are still starting.

        Raises:
            WorkerGroupStartupFailedError: One of them could not be started.
        """
        try:
            self._metadata = self._metadata or ray.get([actor.get_metadata.remote() for actor in self.actors])
        except RayActorError as error:
            raise WorkerGroupStartupFailedError(f"A worker could not be started: {error}") from error
        return [
            Worker(actor, about, dict(self.post.resources), placement_group_bundle_index=index)
            for index, (actor, about) in enumerate(zip(self.actors, self._metadata, strict=True))
        ]

    def clean(self) -> list[Cleanup]:
        """Have the workers put back as they were before the trial.

        Raises:
            RayActorError: One of them is gone.
        """
        return ray.get([actor.shutdown.remote() for actor in self.actors])

    def stacks(self) -> str:
        """Where each worker is: the stacks of its threads, as text."""
        told = []
        for rank, ref in enumerate([actor.stacks.remote() for actor in self.actors]):
            try:
                told.append(f"rank {rank}\n{ray.get(ref, timeout=STACKS_S)}")
            except GetTimeoutError:
                told.append(f"rank {rank} does not answer: its process holds on to the interpreter\n")
            except RayError as error:
                told.append(f"rank {rank} is gone: {error}\n")
        return "\n".join(told)

    def wind_down(self, grace_s: float) -> None:
        """Interrupt the train loops, let them clean up for as long as `grace_s`, and end the processes."""
        if self._metadata and grace_s > 0:  # without it they are still starting
            unwound = [actor.interrupt.remote(grace_s) for actor in self.actors]
            self._end_sync_actor()  # a rank may wait there for one that has failed
            ray.wait(unwound, num_returns=len(unwound), timeout=grace_s)
        self.dismiss()

    def dismiss(self) -> None:
        """End the processes now, whatever they are doing."""
        for actor in self.actors:
            ray.kill(actor)
        self._end_sync_actor()

    def _end_sync_actor(self) -> None:
        if "sync_actor" in vars(self) and not isinstance(self.sync_actor, Alone):
            ray.kill(self.sync_actor)


def preemption(leaving: Mapping[str, int], ranks: Mapping[str, list[int]]) -> PreemptionInfo:
    """What Ray Train tells a train loop of nodes that are about to be taken away.

    Args:
        leaving: Node -> when, in milliseconds since the epoch, or 0 if that is unknown.
        ranks: Node -> the ranks on it.
    """
    deadlines = [deadline for deadline in leaving.values() if deadline]
    return PreemptionInfo(min(deadlines, default=None), {node: ranks[node] for node in leaving})


def _runtime_env(post: Post) -> dict[str, Any]:
    """What the user asks for, with variables of Ray Train's that the user has set. Empty if that is nothing: then Ray can take
    a process that it has started beforehand.
    """
    env_vars = {name: value for name, value in get_env_vars_to_propagate().items() if RAY_SETTINGS.get(name) != value}
    env_vars |= post.runtime_env.get("env_vars", {})
    return {**post.runtime_env, **({"env_vars": env_vars} if env_vars else {})}


@dataclass
class Slot:
    """A place where trials run one after another: the trial's placement group and the workers in it.

    Args:
        root: The project's root, for the workers' `sys.path`.
        preload: See `Crew.hire`.
        warm: Whether workers outlive a trial.
        recycle_after: Trials after which workers are replaced, or None for no limit.
        max_growth_mb: Growth of a worker's memory since its first trial after which it is replaced, or None for no limit.
    """

    root: str
    preload: bytes | None
    warm: bool
    recycle_after: int | None = None
    max_growth_mb: float | None = None
    busy: Crew | None = None  # runs the trial, or is starting to
    interrupted: bool = False  # whether the trial's workers were told to unwind
    tracebacks: dict[int, str] = field(default_factory=dict)  # of the ranks that failed last
    placed: list[tuple[int, str, Any]] = field(default_factory=list)  # rank, node and worker of the trial, once they are known
    leaving: dict[str, int] = field(default_factory=dict)  # its nodes that are about to be taken away, and when
    notes: list[str] = field(default_factory=list)  # sentences for the user
    _idle: Crew | None = None  # waits for a trial; there is room for one crew

    def hire(self, post: Post) -> None:
        """Start workers for a trial to come, so that they are ready, or nearly, when it comes."""
        self._dismiss_idle()
        self._idle = Crew.hire(post, self.root, self.preload)

    def take(self, post: Post) -> Crew:
        """The workers for a trial that starts now."""
        if self._idle is None or self._idle.post != post:
            self.hire(post)
        self.busy, self._idle, self.interrupted, self.placed = self._idle, None, False, []
        assert self.busy is not None
        return self.busy

    def give_back(self, crew: Crew, *, trial: str, went_well: bool) -> None:
        """The trial is over: its workers wait for the next one, if they are fit for it, or others are started in their place.

        Args:
            crew: What `take` returned.
            trial: The trial's id, for the notes.
            went_well: Whether all train loops have returned.
        """
        crew.trials += 1
        self.busy, self.leaving = None, {}
        if went_well and self.warm and not self.interrupted and self._is_fit(crew, trial):
            self._idle = crew
            return
        if went_well or self.interrupted:
            crew.dismiss()
        else:
            crew.wind_down(UNWIND_S)
        self.hire(crew.post)

    def _is_fit(self, crew: Crew, trial: str) -> bool:
        """Have the workers put back as they were, and say whether they may run another trial."""
        try:
            cleanups = crew.clean()
        except RayActorError:
            return False
        largest = max(cleanup.rss_mb for cleanup in cleanups)
        crew.first_mb = crew.first_mb or largest
        reasons = {cleanup.reason for cleanup in cleanups if not cleanup.fit}
        growth = largest - crew.first_mb
        if self.max_growth_mb is not None and growth > self.max_growth_mb:
            reasons.add(f"its memory has grown by {growth:.0f} MB in {crew.trials} trials")
        leftovers = [leftover for cleanup in cleanups for leftover in cleanup.leftovers]
        self.notes += [f"{trial} left behind: {leftover}" for leftover in dict.fromkeys(leftovers)]
        self.notes += [f"{trial}: its workers are replaced, because {reason}" for reason in sorted(reasons)]
        return not reasons and (self.recycle_after is None or crew.trials < self.recycle_after)

    def interrupt(self, *, at_once: bool) -> None:
        """End the train loops of the trial between two reports, and the processes with them."""
        self.interrupted = True
        if self.busy is not None:
            self.busy.wind_down(0.0 if at_once else UNWIND_S)

    def preempted(self, leaving: Mapping[str, int]) -> None:
        """Nodes of the trial are about to be taken away. Tells its train loops, now or once they are there."""
        self.leaving = dict(leaving)
        self.tell_leaving()

    def tell_leaving(self) -> None:
        """What `ray.train.get_preemption_info()` is to answer from now on."""
        leaving = self.leaving
        ranks = {node: [rank for rank, where, _ in self.placed if where == node] for node in leaving}
        for _, _, actor in self.placed if leaving else []:
            actor.mark_preempt.remote(preemption(leaving, ranks))

    def ranks_here(self) -> set[int]:
        """The ranks of the latest trial that were on this node."""
        here = ray.get_runtime_context().get_node_id()
        return {rank for rank, where, _ in self.placed if where == here}

    def close(self) -> None:
        """End all processes."""
        if self.busy is not None:
            self.busy.dismiss()
        self._dismiss_idle()

    def _dismiss_idle(self) -> None:
        if self._idle is not None:
            self._idle.dismiss()
            self._idle = None
