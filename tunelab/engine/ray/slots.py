"""The places where trials run.

Tune keeps idle actors in a cache keyed by what they reserved, and a trial whose own actor is still starting takes any
cached one with the same key and throws its own away. So each slot has a key of its own: its placement group's name. A slot's
actor is then started once, and stays until the sweep ends or its shape is no longer wanted.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ray.tune import PlacementGroupFactory

from tunelab.engine.ray.trainers import Shape


@dataclass
class Slot:
    """A place for one trial at a time. `request` is what its actor reserves, and its key in Tune's cache."""

    shape: Shape
    request: PlacementGroupFactory
    busy: bool = False
    counted: bool = False  # whether Tune's cache keeps room for its actor


class Slots:
    """The places where trials run. Only as many as fit on the cluster at once.

    Args:
        fit: Whether trials of these shapes fit at once.
    """

    def __init__(self, fit: Callable[[Sequence[Shape]], bool]) -> None:
        self._fit = fit
        self._slots: list[Slot] = []
        self._cache: Any = None  # Tune's cache of idle actors

    def may_have_room(self, shape: Shape | None) -> bool:
        """Whether a trial of `shape`, or one of any shape when it is not known yet, may find room."""
        if any(not slot.busy for slot in self._slots) or not self._slots:
            return True
        return self._fit([*(slot.shape for slot in self._slots), shape or self._slots[0].shape])

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
        slot = Slot(shape, _request(shape), busy=True)
        self._slots.append(slot)
        return slot

    def release(self, slot: Slot, *, dead: bool) -> None:
        """The slot's trial is over. A slot whose actor has died starts another under a new key."""
        slot.busy = False
        if dead:
            slot.request, slot.counted = _request(slot.shape), False

    def keep_actors(self, cache: Any) -> None:
        """Let Tune's cache hold each slot's actor for as long as the slot lives."""
        self._cache = cache
        for slot in self._slots:
            if not slot.counted:
                slot.counted = True
                cache.increase_max(slot.request)

    def _close(self, slot: Slot) -> None:
        self._slots.remove(slot)
        if self._cache is not None:
            self._cache.decrease_max(slot.request)


def _request(shape: Shape) -> PlacementGroupFactory:
    """What the trial actor of a slot reserves. Tune drops the empty head bundle, so that the actor itself costs nothing."""
    head: list[dict[str, float]] = [] if shape.in_actor else [{}]
    return PlacementGroupFactory(head + shape.as_dicts(), strategy=shape.strategy, name=f"tunelab-{uuid.uuid4().hex}")
