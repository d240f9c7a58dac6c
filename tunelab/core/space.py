"""Which configurations may be tried: parameters, the conditions between them, and constraints. All of it is data.

>>> space = Space({"lr": Float(1e-5, 1e-1, log=True), "optimizer": Choice(["adam", "sgd"]),
...                "momentum": Float(0.0, 0.99, when={"optimizer": "sgd"})})
>>> space.contains({"lr": 1e-3, "optimizer": "adam"})
True
>>> space.why_not({"lr": 1e-3, "optimizer": "adam", "momentum": 0.9})
['momentum = 0.9 is given but off: it counts only with optimizer = sgd.']
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tunelab.core.conditions import asked_problems, asks_for, condition_text, prune
from tunelab.core.constraints import Constraint
from tunelab.core.foreign import convert
from tunelab.core.parameters import ABSENT, Absent, Choice, Float, Int, Parameter, parameter_from_json
from tunelab.core.trial import Config
from tunelab.core.values import canonical, is_flat, is_scalar, plain, same, value_text
from tunelab.errors import InvalidExperimentError, UnknownNameError

if TYPE_CHECKING:
    import numpy as np

__all__ = ["ABSENT", "Absent", "Choice", "Float", "Int", "Parameter", "Space"]

TRIES = 10_000  # draws before constraints count as impossible to meet
COUNTED = 100_000  # configurations that are counted one by one


@dataclass(frozen=True)
class Space:
    """The configurations that may be tried.

    Args:
        parameters: Name -> `Float`, `Int` or `Choice`. Names are any non-empty strings. Flat Ray Tune domains are taken over.
        require: Rules that a configuration must meet, such as `"batch_size * accumulate <= 32"`; see `core/constraints.py`.

    A parameter is off when its condition does not hold, or when a parameter that the condition names is itself off. When
    off, it is left out, or has the value of `otherwise`.

    Raises:
        InvalidExperimentError: With every problem of every parameter, condition and constraint.
    """

    parameters: Mapping[str, Any]
    require: Sequence[str] = ()

    def __post_init__(self) -> None:
        problems = self._settle()
        if problems:
            raise InvalidExperimentError("Space", problems)

    # --- what it holds -------------------------------------------------------------------------------------------

    def contains(self, config: Mapping[str, Any]) -> bool:
        """Whether `config` is one of the configurations: active parameters only, all in range, all constraints met."""
        return not self.why_not(config)

    def why_not(self, config: Mapping[str, Any]) -> list[str]:
        """Why `config` is not contained, one sentence each; empty when it is."""
        found = []
        for name in config:
            if name not in self.parameters:
                known = list(self.parameters)
                close = difflib.get_close_matches(str(name), known, n=1)
                hint = f" Did you mean '{close[0]}'?" if close else ""
                found.append(f"{name} is not a parameter of the space.{hint} Known: {', '.join(known)}.")
        for name, parameter in self.parameters.items():
            value = config.get(name, ABSENT)
            shown, only = value_text(value), f"it counts only with {condition_text(parameter)}"
            if any(parent not in config for parent in parameter.when or ()) and not self._surely_off(name, config):
                continue  # the missing parent is the problem to show
            if self._is_on(name, config):
                if value is ABSENT:
                    found.append(f"{name} is missing; it takes {parameter.describe()}.")
                elif not parameter.contains(value):
                    found.append(f"{name} = {shown} is outside {parameter.describe()}.")
            elif parameter.otherwise is ABSENT:
                if value is not ABSENT:
                    found.append(f"{name} = {shown} is given but off: {only}.")
            elif value is ABSENT or not same(value, parameter.otherwise):
                given = "is missing" if value is ABSENT else f"= {shown} is given"
                found.append(f"{name} {given} but off, where it is {value_text(parameter.otherwise)}: {only}.")
        if found:
            return found
        return [f"{_values_text(rule, config)} breaks '{rule.text}'." for rule in self._rules if not rule.holds(config)]

    def active(self, config: Mapping[str, Any]) -> Config:
        """`config` without the parameters that are off, or with their `otherwise`. Keys that are not the space's stay."""
        off = {name: self.parameters[name].otherwise for name in self._order if not self._is_on(name, config)}
        kept = {name: value for name, value in config.items() if name not in off}
        kept |= {name: value for name, value in off.items() if value is not ABSENT}
        own = {name: kept.pop(name) for name in self.parameters if name in kept}
        return own | kept

    def on(self, config: Mapping[str, Any]) -> list[str]:
        """The parameters that `config` switches on, parents before their children."""
        return [name for name in self._order if self._is_on(name, config)]

    def complete(self, config: Mapping[str, Any]) -> Config:
        """The space's own part of a larger configuration: no other keys, off parameters left out or with their `otherwise`.

        Values in range become the parameter's type (1 becomes 1.0 for a `Float`); missing and wrong ones stay so.
        """
        own = {}
        for name, parameter in self.parameters.items():
            if name in config:
                value = plain(config[name])
                own[name] = parameter.cast(value) if parameter.contains(value) else value
        return self.active(own)

    def baseline_problems(self, baseline: Mapping[str, Any], loop_defaults: Mapping[str, Any]) -> list[str]:
        """Why `baseline`, with what it leaves out taken from `loop_defaults`, is not a configuration of the space."""
        if not isinstance(baseline, Mapping):
            return [f"baseline needs a dictionary of parameter -> value, got {baseline!r}."]
        found = self.complete({**loop_defaults, **baseline})
        given = {**found, **baseline}  # what it says itself is judged even where it is off
        problems = []
        for problem in self.why_not(given):
            if " is missing; it takes" in problem:
                problem = problem.replace(" is missing;", " is missing, in the baseline and in train_loop_config;")
            problems.append(f"baseline: {problem}")
        return problems

    # --- drawing and counting ------------------------------------------------------------------------------------

    def sample(self, rng: np.random.Generator) -> Config:
        """A configuration drawn uniformly: parents before their children, again until the constraints are met.

        Raises:
            InvalidExperimentError: Nothing in 10,000 draws met the constraints, nor, if they can be counted, is there anything.
        """
        for _ in range(TRIES):
            config = self.build(lambda name: self.parameters[name].sample(rng))
            if all(rule.holds(config) for rule in self._rules):
                return config
        number = self.count()
        if number:
            nth = int(rng.integers(number))
            return next(config for i, config in enumerate(self.enumerate()) if i == nth)
        rules = ", ".join(repr(rule.text) for rule in self._rules)
        seen = "no configuration meets" if number == 0 else f"none of {TRIES:,} random configurations meets"
        raise InvalidExperimentError("Space", [f"{seen} require {rules}; widen the ranges or loosen the constraint."])

    def build(self, value: Callable[[str], Any]) -> Config:
        """A configuration from `value(name)`, asked for each parameter that is on, parents first; checks no constraint."""
        config: Config = {}
        for name in self._order:
            if self._is_on(name, config):
                config[name] = value(name)
            elif self.parameters[name].otherwise is not ABSENT:
                config[name] = self.parameters[name].otherwise
        return self._in_order(config)

    def count(self) -> int | None:
        """How many configurations there are; None when they are continuous or too many to count.

        Without conditions and constraints any number is exact; with them, up to 100,000 combinations are counted one by one.
        """
        return self._count

    def enumerate(self, points: int | None = None) -> Iterator[Config]:
        """All configurations in a fixed order: like nested loops, the first parameter slowest, ranges ascending.

        Args:
            points: How many values to take from each continuous parameter, evenly spaced on its scale. At least 1.

        Raises:
            InvalidExperimentError: There is a continuous parameter and no `points`.
        """
        values: dict[str, list[Any]] = {}
        endless = [name for name, p in self.parameters.items() if p.size() is None]
        if endless and points is None:
            why = "is continuous, so it cannot be enumerated; give it a step, or say how many points."
            raise InvalidExperimentError("Space", [f"{name} {why}" for name in endless])
        for name, parameter in self.parameters.items():
            values[name] = list(parameter.spread(points) if name in endless else parameter.values())
        return (config for config in self._walk(values) if config is not None)

    def key(self, config: Mapping[str, Any]) -> str:
        """The identity of a configuration as text: the same for equal values in any order; other keys do not count."""
        own = {name: canonical(config[name]) for name in self.parameters if name in config}
        return json.dumps(own, sort_keys=True, default=repr)

    # --- making other spaces -------------------------------------------------------------------------------------

    def __or__(self, changes: Mapping[str, Any]) -> Space:
        """The space with parameters replaced or added; a plain value pins a parameter and keeps its condition.

        Parameters that can no longer count (their condition asks for an option that is gone) are left out, or become fixed at
        their `otherwise`.
        """
        if not isinstance(changes, Mapping):
            return NotImplemented
        merged, fresh = dict(self.parameters), set()
        for name, change in changes.items():
            change = plain(change)
            if is_scalar(change) or is_flat(change):
                old = self.parameters.get(name)
                condition = {} if old is None else {"when": old.when, "otherwise": old.otherwise}
                merged[name] = Choice([change], **condition)
            else:
                new = convert(change)
                merged[name] = change if isinstance(new, str) else new
                fresh.add(name)
        gone = prune(merged, fresh)
        require = [rule for rule in self.require if not gone & Constraint(rule).names()]
        return Space(merged, require)

    def pin(self, name: str, value: Any) -> Space:
        """The space with parameter `name` fixed at `value`.

        Raises:
            UnknownNameError: There is no such parameter.
            InvalidExperimentError: The value is outside the parameter's range; `space | {name: ...}` widens a range.
        """
        if name not in self.parameters:
            raise UnknownNameError.among("parameter", name, self.parameters)
        parameter = self.parameters[name]
        if not parameter.contains(value):
            raise InvalidExperimentError(
                f"Parameter '{name}'", [f"{value_text(value)} is outside {parameter.describe()}; widen the space to allow it."]
            )
        return self | {name: parameter.cast(value)}

    def to_json(self) -> dict[str, Any]:
        """The space as JSON data. Parameters are a list, so that their order survives sorted keys."""
        parameters = [{"name": name, **parameter.to_json()} for name, parameter in self.parameters.items()]
        return {"parameters": parameters, "require": list(self.require)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Space:
        """The space that `to_json` wrote."""
        parameters = {}
        for entry in data["parameters"]:
            entry = dict(entry)
            name = entry.pop("name")
            parameters[name] = parameter_from_json(entry)
        return cls(parameters, data.get("require", ()))

    def describe(self) -> dict[str, str]:
        """Name -> short text, with the condition: `1..5 with freeze = layers, else 0`."""
        texts = {}
        for name, parameter in self.parameters.items():
            text = parameter.describe()
            if parameter.when:
                text += f" with {condition_text(parameter)}"
                text += "" if parameter.otherwise is ABSENT else f", else {value_text(parameter.otherwise)}"
            texts[name] = text
        return texts

    # --- inside --------------------------------------------------------------------------------------------------

    @cached_property
    def _rules(self) -> tuple[Constraint, ...]:
        return tuple(Constraint(text) for text in self.require)

    @cached_property
    def _order(self) -> tuple[str, ...]:
        """Names, parents before their children, otherwise as given. Parameters on a cycle are left out."""
        order: list[str] = []
        waiting = list(self.parameters)

        def is_ready(name: str) -> bool:
            return all(parent in order or parent not in self.parameters for parent in self.parameters[name].when or ())

        while (ready := next(filter(is_ready, waiting), None)) is not None:
            order.append(ready)
            waiting.remove(ready)
        return tuple(order)

    @cached_property
    def _count(self) -> int | None:
        total = 1
        for parameter in self.parameters.values():
            size = parameter.size()
            if size is None:
                return None
            total *= size
        if not self.require and not any(parameter.when for parameter in self.parameters.values()):
            return total
        number = 0
        values = {name: parameter.values() for name, parameter in self.parameters.items() if parameter.size() <= COUNTED}
        if len(values) < len(self.parameters):
            return None
        for seen, config in enumerate(self._walk({name: list(given) for name, given in values.items()})):
            if seen >= COUNTED:
                return None
            number += config is not None
        return number

    def _walk(self, values: Mapping[str, list[Any]]) -> Iterator[Config | None]:
        """Every combination in order; None for a branch that breaks a constraint, so that a caller can bound the work."""
        order = self._order
        due: list[list[Constraint]] = [[] for _ in order]
        for rule in self._rules:
            due[max((order.index(name) for name in rule.names()), default=0)].append(rule)

        def walk(depth: int, config: Config) -> Iterator[Config | None]:
            if depth == len(order):
                yield self._in_order(config)
                return
            name = order[depth]
            otherwise = self.parameters[name].otherwise
            for value in values[name] if self._is_on(name, config) else [otherwise]:
                extended = config if value is ABSENT else {**config, name: value}
                if all(rule.holds(extended) for rule in due[depth]):
                    yield from walk(depth + 1, extended)
                else:
                    yield None

        return walk(0, {})

    def _in_order(self, config: Config) -> Config:
        return {name: config[name] for name in self.parameters if name in config}

    def _is_on(self, name: str, config: Mapping[str, Any]) -> bool:
        """Whether `config` switches the parameter on: every parent is on and has one of the values asked for."""
        when = self.parameters[name].when
        if not when:
            return True
        return all(p in config and asks_for(asked, config[p]) and self._is_on(p, config) for p, asked in when.items())

    def _surely_off(self, name: str, config: Mapping[str, Any]) -> bool:
        """Whether it is off whatever the values of the parents that `config` lacks."""
        when = self.parameters[name].when or {}
        return any(not asks_for(asked, config[p]) if p in config else not self._is_on(p, config) for p, asked in when.items())

    def _settle(self) -> list[str]:
        """Converts and checks; afterwards `parameters` is a dictionary of ours and `require` a tuple."""
        if not isinstance(self.parameters, Mapping):
            return [f"parameters needs a dictionary of name -> Float, Int or Choice, got {self.parameters!r}."]
        found, sound = [], {}
        if not self.parameters:
            found.append("parameters is empty; give at least one, such as {'lr': Float(1e-5, 1e-1, log=True)}.")
        for name, given in self.parameters.items():
            if not isinstance(name, str) or not name:
                found.append(f"a parameter's name needs to be a non-empty string, got {name!r}.")
                continue
            parameter = convert(given)
            if isinstance(parameter, str):
                found.append(f"{name} {parameter}.")
            elif problems := parameter.problems():
                found += [f"{name}: {problem}" for problem in problems]
            else:
                sound[name] = parameter
        known = [name for name in self.parameters if isinstance(name, str) and name]
        object.__setattr__(self, "parameters", sound)
        found += self._condition_problems(known)
        found += self._require_problems(known, probe=not found)
        return found

    def _condition_problems(self, known: list[str]) -> list[str]:
        found = []
        for name, parameter in self.parameters.items():
            for parent, asked in (parameter.when or {}).items():
                if parent == name:
                    found.append(f"{name} is conditioned on itself.")
                elif parent not in known:
                    hint = UnknownNameError.among("parameter", str(parent), known)
                    found.append(f"{name} is conditioned on '{parent}'. {hint}")
                elif parent in self.parameters:
                    found += asked_problems(name, parent, self.parameters[parent], asked)
        cyclic = [n for n in self.parameters if n not in self._order and n not in (self.parameters[n].when or {})]
        if cyclic:
            found.append(f"the conditions of {', '.join(cyclic)} depend on each other in a circle.")
        self.__dict__.pop("_order", None)
        return found

    def _require_problems(self, known: list[str], probe: bool) -> list[str]:
        require = self.require
        if isinstance(require, str) or not isinstance(require, Sequence):
            object.__setattr__(self, "require", ())
            return [f"require needs a list of expressions, got {require!r}."]
        object.__setattr__(self, "require", tuple(require))
        found = [problem for rule in self._rules for problem in rule.problems(known)]
        if probe and not found:
            found = [problem for rule in self._rules if (problem := self._probe(rule))]
        return found

    def _probe(self, rule: Constraint) -> str | None:
        """Tries the rule on a few configurations, to find what computes with a string before a sweep does."""
        import numpy as np  # here, so that a space without constraints loads no numpy

        free = Space(self.parameters)
        rng = np.random.default_rng(0)
        for _ in range(50):
            config = free.sample(rng)
            try:
                rule.decide(config)
            except TypeError as error:
                return f"require {rule.text!r} cannot be decided: {error}, for example with {_values_text(rule, config)}."
        return None


def _values_text(rule: Constraint, config: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value_text(config[name])}" for name in sorted(rule.names()) if name in config) or "it"
