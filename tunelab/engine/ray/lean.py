"""Ray without what costs time in each trial, or at the start, and is of no use here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import ray
from ray._private import node, parameter
from ray.air._internal import usage
from ray.tune.experiment import Trial


class LeanTrial(Trial):
    """A trial that asks the cluster for its class once per sweep instead of three times per trial, and is not snapshotted.

    The journal says where a sweep goes on from. Tune's snapshot of a trial costs 2 ms, and all are taken at the sweep's end.
    """

    def __init__(self, trainable_name: str, trainable_cls: type, **options: Any) -> None:
        self._trainable_cls = trainable_cls
        super().__init__(trainable_name, stub=True, **options)  # a stub's class is taken to be valid

    def get_trainable_cls(self) -> type:
        return self._trainable_cls

    def get_json_state(self) -> tuple[str, str]:
        return "{}", "{}"


def use_started_processes(classes: Any, trainable_cls: type) -> None:
    """Let the trial actor, and the workers that inherit its environment, take processes that Ray has started beforehand.

    Tune asks for an environment of their own, for variables that are in `RAY_SETTINGS` here; each process would be a new one.

    Args:
        classes: Tune's cache of actor classes.
        trainable_cls: The trial actor's class.
    """
    if trainable_cls not in classes._cache:
        classes._cache[trainable_cls] = ray.remote(trainable_cls)


@contextmanager
def without_counting_callbacks() -> Iterator[None]:
    """Keep Tune from importing MLflow (two seconds) and others to count which of their callbacks are used."""
    before = usage.tag_callbacks
    usage.tag_callbacks = lambda callbacks: False
    try:
        yield
    finally:
        usage.tag_callbacks = before


@contextmanager
def without_attendants() -> Iterator[None]:
    """Keep `ray.init` from starting three processes that a cluster of this machine alone does not need: the autoscaler, the
    dashboard's server, which Ray starts even without a dashboard, and the one that sends workers' output to the driver.

    Each takes a second of a core to start, and a share of one as long as it runs.
    """
    params, start_api_server = parameter.RayParams, node.Node.start_api_server
    parameter.RayParams = partial(params, include_log_monitor=False, no_monitor=True)
    node.Node.start_api_server = lambda self, **options: setattr(self, "_webui_url", "")
    try:
        yield
    finally:
        parameter.RayParams, node.Node.start_api_server = params, start_api_server
