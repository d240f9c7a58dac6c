"""Connecting to a cluster, and what fits on it."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ray

from tunelab.engine.ray.actor import RAY_SETTINGS
from tunelab.engine.ray.lean import without_attendants
from tunelab.engine.ray.trainers import Bundle, Shape
from tunelab.errors import BadInputError, ResourcesError

_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
ANSWER_S = 5.0  # how long a cluster may take to accept a connection


def start_local(num_cpus: int | None = None) -> None:
    """Start a cluster of this machine alone and connect to it.

    Args:
        num_cpus: How many CPUs it has; None for as many as the machine.
    """
    os.environ.update(RAY_SETTINGS)
    with without_attendants():
        ray.init("local", num_cpus=num_cpus, include_dashboard=False, **_QUIET)


def join(address: str, **options: Any) -> None:
    """Connect to a cluster that runs already.

    Raises:
        BadInputError: There is none at `address`.
    """
    try:
        ray.init(address, **_QUIET, **options)
    except ConnectionError as error:
        raise BadInputError(f"There is no Ray cluster at address '{address}': {error}") from error


@contextmanager
def connected(address: str, root: str) -> Iterator[None]:
    """Connect to the cluster at `address`, or use the connection there is; disconnect at the end if it was made here.

    Args:
        address: `local` starts one on this machine, `auto` finds a running one, else `HOST:PORT`.
        root: The project's root. Its files travel to the nodes of a cluster that is not on this machine.
    """
    if ray.is_initialized():
        yield
        return
    if address.startswith("ray://"):
        raise BadInputError(
            "Ray client addresses (ray://) are not supported: a sweep's driver has to run on the cluster. "
            f"Run: ray job submit --address http://HOST:8265 --working-dir {root} -- tunelab sweep ... --address auto"
        )
    if address not in ("local", "auto"):
        refuse_silent(address)
    if address == "local":
        start_local()
    else:
        from ray.tune.execution.class_cache import ENV_VARS_TO_PROPAGATE  # among them the keys of object stores

        os.environ.update(RAY_SETTINGS)
        known = {name: os.environ[name] for name in ENV_VARS_TO_PROPAGATE if name in os.environ}
        env = {"working_dir": root, "excludes": ["runs/", ".git/", ".venv/"], "env_vars": {**known, **RAY_SETTINGS}}
        join(address, runtime_env=env)
    try:
        yield
    finally:
        ray.shutdown()


def refuse_silent(address: str) -> None:
    """Refuse an address at which nothing answers; Ray itself would try for minutes.

    Raises:
        BadInputError: It is not HOST:PORT, or nothing listens there.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise BadInputError(f"--address needs local, auto or HOST:PORT, got '{address}'.")
    try:
        socket.create_connection((host, int(port)), timeout=ANSWER_S).close()
    except (OSError, OverflowError) as error:
        raise BadInputError(
            f"There is no Ray cluster at address '{address}': {error}. Is it `ray status`'s address?"
        ) from error


def nodes() -> list[Bundle]:
    """The resources of each node that lives."""
    return [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]


def refuse_impossible(shape: Shape, resources: list[Bundle]) -> None:
    """Refuse a shape that the cluster can never place.

    Raises:
        ResourcesError: Says what is asked for, what there is, and what to do.
    """
    if fit([shape], resources):
        return
    total, asked = _sum(resources), _sum(shape.as_dicts())
    lacking = [
        f"{amount:g} {name} where the cluster has {total.get(name, 0.0):g}"
        for name, amount in asked.items()
        if amount > total.get(name, 0.0)
    ]
    detail = f"that is {' and '.join(lacking)}" if lacking else "the cluster has that in all, but not on the right nodes"
    raise ResourcesError(
        f"A trial needs {shape}: {detail}. Ask for less in ScalingConfig (num_workers, resources_per_worker), or use a larger "
        "cluster (--address)."
    )


def fit(shapes: Sequence[Shape], resources: list[Bundle]) -> bool:
    """Whether trials of these shapes fit on the nodes all at once, each bundle placed where there is room (first fit)."""
    free = [dict(node) for node in resources]
    return all(_place(shape, free) for shape in shapes)


def how_many(shape: Shape, resources: list[Bundle]) -> int:
    """How many trials of this shape fit on the nodes at once."""
    free, count = [dict(node) for node in resources], 0
    while count < 100_000 and _place(shape, free):
        count += 1
    return count


def _place(shape: Shape, free: list[Bundle]) -> bool:
    apart, together = shape.strategy == "STRICT_SPREAD", shape.strategy == "STRICT_PACK"
    used: set[int] = set()
    bundles = [_sum(shape.as_dicts())] if together else shape.as_dicts()
    for bundle in bundles:
        for index, node in enumerate(free):
            if apart and index in used:
                continue
            if all(node.get(name, 0.0) + 1e-9 >= amount for name, amount in bundle.items()):
                for name, amount in bundle.items():
                    node[name] -= amount
                used.add(index)
                break
        else:
            return False
    return True


def _sum(bundles: Iterable[Bundle]) -> Bundle:
    total: Bundle = {}
    for bundle in bundles:
        for name, amount in bundle.items():
            total[name] = total.get(name, 0.0) + amount
    return total
