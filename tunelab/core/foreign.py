"""Search spaces written for other libraries: flat Ray Tune domains are taken over, the rest is refused with the reason.

Ray is recognised by its classes' module (`ray.tune.search.sample`) and not imported.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tunelab.core.parameters import Choice, Float, Int, Parameter
from tunelab.core.values import is_scalar

RAY = "ray.tune.search.sample"


def convert(value: Any) -> Parameter | str:
    """The parameter that `value` stands for, or why it stands for none: half a sentence to follow the parameter's name.

    Ray's bounds (checked against Ray 2.60): `randint` and `lograndint` leave the upper bound out, `qrandint` takes it in
    except with q=1, `quniform` takes it in. `quniform` gives its end points half the weight of the others; here all have the
    same.
    """
    if isinstance(value, (Float, Int, Choice)):
        return value
    if isinstance(value, type) and value in (Float, Int, Choice):
        return f"is the class {value.__name__}, not a parameter; write {value.__name__}(...)"
    ray_class = next((cls.__name__ for cls in type(value).__mro__ if cls.__module__ == RAY), None)
    if ray_class is not None:
        return _from_ray(ray_class, value)
    if isinstance(value, Mapping):
        if set(value) == {"grid_search"} and isinstance(value["grid_search"], (list, tuple)):
            return Choice(list(value["grid_search"]))
        return "is a nested dictionary; spaces are flat: give each entry its own name, and conditions with when={...}"
    if isinstance(value, (tuple, list)):
        return f"is {value!r}, not a parameter; write Choice([...]) for options, Float(low, high) or Int(low, high) for a range"
    if is_scalar(value) or isinstance(value, float):
        return f"is the constant {value!r}; put constants in train_loop_config or use Choice([{value!r}])"
    library = type(value).__module__.partition(".")[0]
    if library in ("optuna", "hyperopt", "ConfigSpace", "skopt", "ray", "scipy"):
        return f"is {library}'s {value!r}; write Float(low, high), Int(low, high) or Choice([...])"
    return f"is {value!r}, not a parameter; write Float(low, high), Int(low, high) or Choice([...])"


def _from_ray(kind: str, domain: Any) -> Parameter | str:
    sampler = domain.get_sampler()
    step = None
    if type(sampler).__name__ == "Quantized":
        step, sampler = sampler.q, sampler.sampler
    spread = type(sampler).__name__.lstrip("_")  # Uniform, LogUniform, Normal, Grid
    if kind == "Function":
        return (
            "is Ray Tune's sample_from, a function that nothing can describe or replay; use when={...} for conditions, "
            "require=[...] for rules between parameters, or compute the value in the training loop"
        )
    if spread == "Normal":
        return "is Ray Tune's normal distribution, which has no bounds; use Float(low, high), with log=True for a scale"
    if kind == "Categorical":
        return Choice(list(domain.categories))
    if kind not in ("Float", "Integer") or spread not in ("Uniform", "LogUniform"):
        return f"is Ray Tune's {domain!r}; write Float(low, high), Int(low, high) or Choice([...])"
    log = spread == "LogUniform"
    if log and step is not None:
        return "is quantised on a logarithmic scale; use log=True without a step, or list the values in a Choice"
    low, high = domain.lower, domain.upper
    if kind == "Float":
        if step is None:
            return Float(low, high, log=log)
        first, last = _grid(low, step, math.ceil), _grid(high, step, math.floor)
        exact = Float(0.0, 1.0, step=step)
        return _range(Float, exact.at(first), exact.at(last), step)
    if step is None:
        return _range(Int, low, high - 1, None, log=log)
    first, last = _grid(low, step, math.ceil) * step, _grid(high, step, math.floor) * step
    return _range(Int, first, last - 1, None) if step == 1 else _range(Int, first, last, step)


def _range(kind: Any, low: Any, high: Any, step: Any, log: bool = False) -> Parameter:
    return Choice([low]) if low == high else kind(low, high, step=step, log=log)


def _grid(bound: float, step: float, inwards: Any) -> int:
    nearest = round(bound / step)
    return nearest if math.isclose(bound / step, nearest) else inwards(bound / step)
