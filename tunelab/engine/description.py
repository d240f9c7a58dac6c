"""An experiment as JSON, for its sweep's journal, and what has changed between two of them."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tunelab.core.experiment import Experiment
from tunelab.core.space import Space
from tunelab.core.values import value_text

# What a sweep stands on: proposals and decisions follow from these, and from the space.
_FIXED = ("objective", "last_step", "searcher", "scheduler", "seed", "trial_seeds", "baseline")

# What is described in words of its own or, being code, not at all. Any other part of an experiment is a setting.
_DESCRIBED = {*_FIXED, "name", "space", "budget", "trainer", "export"}

_ABSENT = object()
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def describe(experiment: Experiment) -> dict[str, Any]:
    """What can be said of an experiment in JSON. Functions and classes appear by name."""
    data = {
        "name": experiment.name,
        "space": experiment.space.to_json(),
        "objective": dataclasses.asdict(experiment.objective),
        "last_step": experiment.last_step(),
        "searcher": _part(experiment.searcher),
        "scheduler": _part(experiment.scheduler),
        "budget": dataclasses.asdict(experiment.budget),
        "seed": experiment.seed,
        "trial_seeds": experiment.trial_seeds,
        "baseline": experiment.full_baseline(),
        "trainer": _trainer(experiment.trainer),
        "resources": _resources(experiment.trainer),
        "loop": {key: value for key, value in experiment.loop_defaults().items() if _is_json(value)},
    }
    for field in dataclasses.fields(experiment):
        if field.name not in _DESCRIBED:
            data[field.name] = getattr(experiment, field.name)
    return json.loads(json.dumps(data, default=_called))  # as it will be read back: lists for tuples


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What changed in the parts that proposals and decisions follow from: one line each, empty when nothing did.

    >>> difference({"seed": 0}, {"seed": 1})
    ['seed was 0, is 1']
    """
    lines = list(_space_difference(old.get("space"), new.get("space")))
    for key in _FIXED:
        lines += _value_difference(key, old.get(key), new.get(key))
    return lines


def harmless_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What changed in the other parts, which only concern what is still to come: one line each.

    A part that only one of the descriptions has was not described by the version that wrote the other.

    >>> harmless_difference({"budget": {"trials": 8}}, {"budget": {"trials": 16}, "isolation": "warm"})
    ['budget: trials was 8, is 16']
    """
    lines: list[str] = []
    for key in (*new, *(key for key in old if key not in new)):
        if key in old and key in new and key not in (*_FIXED, "name", "space"):
            lines += _value_difference(key, old[key], new[key])
    return lines


def _called(value: Any) -> Any:
    """A function or class by its name, another thing as it shows itself: without its address, which differs each time."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return getattr(value, "__qualname__", None) or _ADDRESS.sub("", repr(value))


def _part(part: Any) -> dict[str, Any]:
    fields = (
        {field.name: getattr(part, field.name) for field in dataclasses.fields(part)} if dataclasses.is_dataclass(part) else {}
    )
    return {"name": part.name, **fields}


def _trainer(trainer: Any) -> str:
    if not hasattr(trainer, "fit"):
        return f"function {getattr(trainer, '__name__', type(trainer).__name__)}"
    workers = getattr(getattr(trainer, "scaling_config", None), "num_workers", None)
    text = f"{type(trainer).__name__}, {_range(workers)} worker"
    return text if workers == 1 else text + "s"


def _resources(trainer: Any) -> dict[str, Any]:
    """What each worker asks for, as far as JSON can hold it; empty when the trainer is a function."""
    scaling = getattr(trainer, "scaling_config", None)
    names = ("use_gpu", "resources_per_worker", "placement_strategy", "accelerator_type")
    asked = {name: getattr(scaling, name, None) for name in names}
    return {name: value for name, value in asked.items() if value is not None and _is_json(value)}


def _range(workers: Any) -> str:
    return " to ".join(map(str, workers)) if isinstance(workers, (list, tuple)) else str(workers)


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _space_difference(old: Any, new: Any) -> Iterator[str]:
    if old == new or not (old and new):
        return
    before, after = Space.from_json(old).describe(), Space.from_json(new).describe()
    for name in {**before, **after}:
        if name not in after:
            yield f"space: {name} is gone (was {before[name]})"
        elif name not in before:
            yield f"space: {name} is new ({after[name]})"
        elif before[name] != after[name]:
            yield f"space: {name} was {before[name]}, is {after[name]}"
    yield from (f"space: no longer requires {rule}" for rule in old["require"] if rule not in new["require"])
    yield from (f"space: now requires {rule}" for rule in new["require"] if rule not in old["require"])
    if list(before) != list(after) and set(before) == set(after):
        yield f"space: the order was {', '.join(before)}, is {', '.join(after)}"


def _value_difference(key: str, old: Any, new: Any) -> Iterator[str]:
    if old == new:
        return
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        if old.get("name") != new.get("name"):  # another searcher or scheduler: its settings have nothing to compare with
            yield f"{key} was {_text(old.get('name', _ABSENT))}, is {_text(new.get('name', _ABSENT))}"
            return
        for name in {**old, **new}:
            yield from _value_difference(f"{key}: {name}", old.get(name, _ABSENT), new.get(name, _ABSENT))
    else:
        yield f"{key} was {_text(old)}, is {_text(new)}"


def _text(value: Any) -> str:
    if value is _ABSENT:
        return "absent"
    return json.dumps(value) if isinstance(value, (dict, list)) else value_text(value)
