"""A worker that is alone has nobody to agree with, and needs no process to do it through."""

from __future__ import annotations

from typing import Any

import ray


class Alone:
    """Stands where Ray Train has a `SynchronizationActor`, in a group of one: what the one rank says is what all say.

    It is called as an actor is: `alone.broadcast_from_rank_zero.remote(data=...)`, answered by a reference.
    """

    @property
    def broadcast_from_rank_zero(self) -> Alone:
        return self

    def remote(self, *, data: Any, **_: Any) -> Any:
        return ray.put(data)
