"""The cluster's nodes while a sweep runs: they come, go, and are announced to go."""

from __future__ import annotations

import time
from collections.abc import Callable

import ray
from ray._private.state import state
from ray.util import placement_group_table

from tunelab.engine.ray.trainers import Bundle

LOOKS_EVERY_S = 1.0


class Nodes:
    """What the cluster consists of. Asks it at most once a second, in the driver: some two milliseconds.

    Ray Train has a watcher for announced ends of nodes too, an actor, and so a process, for each trial.

    Args:
        clock: Seconds that only go forward.

    Attributes:
        alive: Resources of each node that lives, by id.
        draining: Nodes that are about to be taken away, by id: when, in milliseconds since the epoch, or 0 if that is unknown.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._looks_at = clock, -1.0
        self.alive: dict[str, Bundle] = {}
        self.draining: dict[str, int] = {}
        self.look(now=True)

    def look(self, *, now: bool = False) -> bool:
        """Whether anything has changed since it was looked last, if it is time to look again, or `now`."""
        at = self._clock()
        if at < self._looks_at and not now:
            return False
        self._looks_at = at + LOOKS_EVERY_S
        before = self.alive.keys(), self.draining
        try:
            nodes, announced = ray.nodes(), state.get_draining_nodes()
        except Exception:  # the cluster does not answer for a moment: if that lasts, Tune notices
            return False
        self.alive = {node["NodeID"]: dict(node["Resources"]) for node in nodes if node["Alive"]}
        self.draining = {node: deadline for node, deadline in announced.items() if node in self.alive}
        return before != (self.alive.keys(), self.draining)

    def resources(self) -> list[Bundle]:
        """The resources of each node that lives and is to stay."""
        return [resources for node, resources in self.alive.items() if node not in self.draining]

    @staticmethod
    def of_groups() -> dict[str, set[str]]:
        """Name of each placement group in use -> the nodes that it has parts on; "" for a part whose node is gone."""
        return {
            group["name"]: set(group["bundles_to_node_id"].values())
            for group in placement_group_table().values()
            if group["state"] in ("CREATED", "RESCHEDULING")
        }
