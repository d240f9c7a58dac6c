"""Placement groups that a dead driver left on a running cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import ray
from ray._private.state import state
from ray.core.generated import gcs_pb2
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, remove_placement_group

from tunelab.engine.doctor.finding import Finding
from tunelab.engine.ray.cluster import join, refuse_silent
from tunelab.errors import BadInputError

PREFIX = "tunelab-"  # of each slot's placement group; see slots.py


@contextmanager
def _connected(address: str) -> Iterator[None]:
    """A connection that only looks: nothing of the project travels."""
    if ray.is_initialized():
        yield
        return
    if address == "local":
        raise BadInputError("--address needs a running cluster: auto or HOST:PORT. A local one ends with its driver.")
    if address != "auto":
        refuse_silent(address)
    join(address)
    try:
        yield
    finally:
        ray.shutdown()


def placement_groups(address: str) -> list[Finding]:
    """Placement groups of tunelab's whose driver is dead. Its actors live in them and end with them.

    Raises:
        BadInputError: There is no cluster at `address`.
    """
    with _connected(address):
        table = state._connect_and_get_accessor().get_placement_group_table()
    found = []
    for entry in table:
        group = gcs_pb2.PlacementGroupTableData.FromString(entry)
        if not group.name.startswith(PREFIX) or not group.creator_job_dead:
            continue
        if group.state == gcs_pb2.PlacementGroupTableData.PlacementGroupState.Value("REMOVED"):
            continue
        what = f"placement group {group.name} of {len(group.bundles)} bundles was left by a dead driver"
        identifier = group.placement_group_id
        found.append(
            Finding("placement group", address, what, "removes it", (identifier.hex(),), partial(_remove, address, identifier))
        )
    return found


def _remove(address: str, identifier: bytes) -> bool:
    try:
        with _connected(address):
            remove_placement_group(PlacementGroup(ray.PlacementGroupID(identifier)))
    except (RayError, BadInputError):  # the cluster has gone meanwhile
        return False
    return True
