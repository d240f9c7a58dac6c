"""The places where trials run.

Tune keeps idle actors in a cache keyed by what they reserved, and a trial whose own actor is still starting takes any
cached one with the same key and throws its own away. So each slot has a key of its own: its placement group's name. A slot's
actor is then started once, and stays until the sweep ends or its shape is no longer wanted.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ray.tune import PlacementGroupFactory

from tunelab.engine.ray.trainers import Shape


@dataclass
class Slot:
    """A place for one trial at a time.

    Attributes:
        name: Its placement group's.
        request: What its actor reserves, and its key in Tune's cache.
    """

    shape: Shape
    name: str
    request: PlacementGroupFactory
    busy: bool = False
    broken: bool = False  # whether a node of it is gone, or is about to go: it takes no trial any more
    counted: bool = False  # whether Tune's cache keeps room for its actor


class Slots:
    """The places where trials run. Only as many as fit on the cluster at once, which may change while they run.

    Args:
        fit: Whether trials of these shapes fit at once, at the moment.
    """

    def __init__(self, fit: Callable[[Sequence[Shape]], bool]) -> None:
        self._fit = fit
        self._slots: list[Slot] = []
        self._cache: Any = None  # Tune's cache of idle actors

    def may_have_room(self, shape: Shape | None) -> bool:
        """Whether a trial of `shape`, or one of any shape when it is not known yet, may find room."""
        shape = shape or (self._slots[0].shape if self._slots else None)
        if shape is None or any(not slot.busy for slot in self._slots):
            return True
        return self._fit([*(slot.shape for slot in self._slots), shape])

    def may_ever_have_room(self, shape: Shape) -> bool:
        """Whether a trial of `shape` fits where no other is."""
        return self._fit([shape])

    def take(self, shape: Shape) -> Slot | None:
        """A free slot of this shape, else a new one if it fits. Idle slots of other shapes give way."""
        for slot in self._slots:
            if not slot.busy and slot.shape == shape:
                slot.busy = True
                return slot
        while not self._fit([*(slot.shape for slot in self._slots), shape]):
            idle = next((slot for slot in self._slots if not slot.busy), None)
            if idle is None:
                return None
            self._close(idle)
        slot = _slot(shape)
        self._slots.append(slot)
        return slot

    def release(self, slot: Slot, *, dead: bool) -> None:
        """The slot's trial is over. A slot whose actor has died, or that a node is missing of, is given up."""
        slot.busy = False
        slot.broken = slot.broken or dead
        self.trim()

    def trim(self) -> None:
        """Give up idle slots that are broken, and others while the cluster has become too small for all of them."""
        self.close_idle(lambda slot: slot.broken)
        while not self._fit([slot.shape for slot in self._slots]):
            idle = next((slot for slot in self._slots if not slot.busy), None)
            if idle is None:
                return
            self._close(idle)

    def close_idle(self, unwanted: Callable[[Slot], bool] = lambda slot: True) -> None:
        """Give up idle slots, and so end their processes."""
        for slot in [slot for slot in self._slots if not slot.busy and unwanted(slot)]:
            self._close(slot)

    def mark_broken(self, nodes_of: Mapping[str, set[str]], usable: Collection[str]) -> None:
        """Note which slots have a part on a node that is not among the `usable` ones, by the names of placement groups."""
        for slot in self._slots:
            slot.broken = slot.broken or not nodes_of.get(slot.name, set()).issubset(usable)
        self.trim()

    def keep_actors(self, cache: Any) -> None:
        """Let Tune's cache hold each slot's actor for as long as the slot lives."""
        self._cache = cache
        for slot in self._slots:
            if not slot.counted:
                slot.counted = True
                cache.increase_max(slot.request)

    def _close(self, slot: Slot) -> None:
        self._slots.remove(slot)
        if slot.counted:
            self._cache.decrease_max(slot.request)


def _slot(shape: Shape) -> Slot:
    """A slot for a trial that comes at once. Tune drops the empty head bundle, so that the trial actor itself costs nothing."""
    head: list[dict[str, float]] = [] if shape.in_actor else [{}]
    name = f"tunelab-{uuid.uuid4().hex}"
    return Slot(shape, name, PlacementGroupFactory(head + shape.as_dicts(), strategy=shape.strategy, name=name), busy=True)
