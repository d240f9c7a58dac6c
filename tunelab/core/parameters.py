"""What a search space is made of: `Float`, `Int` and `Choice`. Plain frozen data; checked as a whole by `Space`.

Values of a parameter are JSON: numbers, strings, true, false, null, and for `Choice` also flat lists of those. So a
configuration is the same in the experiment, the journal and the training loop.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

from tunelab.core.values import is_flat, is_int, is_number, is_scalar, number_text, plain, same, value_text

if TYPE_CHECKING:
    import numpy as np


class Absent(Enum):
    """Stands for "no value": a parameter with `otherwise=ABSENT` is left out of the configuration when it is off."""

    ABSENT = "absent"

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = Absent.ABSENT


@dataclass(frozen=True)
class _Range:
    """What `Float` and `Int` share: bounds, scale, step and condition."""

    low: Any
    high: Any
    log: bool = field(default=False, kw_only=True)
    step: Any = field(default=None, kw_only=True)
    when: Mapping[str, Any] | None = field(default=None, kw_only=True)
    otherwise: Any = field(default=ABSENT, kw_only=True)

    kind: ClassVar[str]

    def __post_init__(self) -> None:
        for name in ("low", "high", "step"):
            object.__setattr__(self, name, plain(getattr(self, name)))
        _settle_condition(self)

    def problems(self) -> list[str]:
        """What is wrong with it, one sentence each; conditions on other parameters are checked by `Space`."""
        kind, found = type(self).__name__, []
        for name in ("low", "high"):
            value = getattr(self, name)
            if not self._is_number(value):
                found.append(f"{kind} needs {name} to be {self.kind}, got {value!r}.")
        if not found and kind == "Int" and max(abs(self.low), abs(self.high)) >= 2**62:
            found.append(f"Int needs bounds within +-2**62, got low={self.low!r}, high={self.high!r}.")
        if not isinstance(self.log, bool):
            found.append(f"{kind} needs log to be True or False, got {self.log!r}.")
        if not found and not self.low < self.high:
            hint = f"; for a fixed value use Choice([{self.low!r}])" if self.low == self.high else ""
            found.append(f"{kind} needs low < high, got low={self.low!r}, high={self.high!r}{hint}.")
        if not found and self.log and self.low <= 0:
            found.append(f"{kind} with log=True needs low > 0, got low={self.low!r}.")
        if self.step is not None:
            found += self._step_problems(sound=not found)
        return found + _condition_problems(kind, self.when, self.otherwise)

    def _step_problems(self, sound: bool) -> list[str]:
        kind = type(self).__name__
        if not (self._is_number(self.step) and self.step > 0):
            return [f"{kind} needs step to be {self.kind} > 0, got {self.step!r}."]
        if self.log:
            return [f"{kind} takes log or step, not both; list the values in a Choice instead."]
        if sound:
            steps = (_decimal(self.high) - _decimal(self.low)) / _decimal(self.step)
            if abs(steps - round(steps)) > Decimal("1e-9") or round(steps) < 1:
                last = self.at(int(steps))
                use = f"; use high={last!r} or {self.at(int(steps) + 1)!r}" if steps > 1 else ""
                return [
                    f"{kind} needs high to be a whole number of steps above low, got low={self.low!r}, high={self.high!r}, "
                    f"step={self.step!r}{use}."
                ]
        return []

    def at(self, k: int) -> Any:
        """The value k steps above low, free of rounding noise: 0.15 and not 0.15000000000000002."""
        return self.cast(_decimal(self.low) + k * _decimal(self._step()))

    def index(self, value: Any) -> int:
        """How many steps `value` lies above low; the nearest when it lies between two."""
        return round((value - self.low) / self._step())

    def size(self) -> int | None:
        """How many values there are, or None when they are continuous."""
        return None if self._step() is None else self.index(self.high) + 1

    def values(self) -> Iterator[Any]:
        """Its values in ascending order. Only when `size()` is not None."""
        return (self.at(k) for k in range(self.size() or 0))

    def largest(self) -> Any:
        """The largest number that it can hand to the training loop, `otherwise` included."""
        return max(self.high, self.otherwise) if is_number(self.otherwise) else self.high

    def describe(self) -> str:
        """Short text: `1e-4..1e-1 log`, `0..0.2 step 0.05`."""
        tail = " log" if self.log else f" step {self.step:g}" if self.step is not None else ""
        return f"{self.text(self.low)}..{self.text(self.high)}{tail}"

    def text(self, value: Any) -> str:
        """`value` as `describe` writes it."""
        return number_text(value, log=self.log)

    def to_json(self) -> dict[str, Any]:
        data = {"type": type(self).__name__.lower(), "low": self.low, "high": self.high}
        if self.log:
            data["log"] = True
        if self.step is not None:
            data["step"] = self.step
        return data | _condition_json(self)

    def _step(self) -> Any:
        return self.step

    def _is_number(self, value: Any) -> bool:
        return is_number(value)

    def cast(self, value: Any) -> Any:
        raise NotImplementedError

    def sample(self, rng: np.random.Generator) -> Any:
        raise NotImplementedError


@dataclass(frozen=True)
class Float(_Range):
    """A real number in [low, high].

    Args:
        low: Smallest value; finite.
        high: Largest value; finite and above `low`.
        log: Spread on a logarithmic scale; needs low > 0.
        step: Only low, low + step, ..., high; high must be one of them. Not together with `log`.
        when: `{"optimizer": "sgd"}`: counts only when the other parameter has this value, or one of a list of values; with
            several keys, all must hold. When it does not count the parameter is left out of the configuration.
        otherwise: The value to hand to the training loop when the parameter does not count; it need not lie in the range.
    """

    kind: ClassVar[str] = "a finite number"

    def cast(self, value: Any) -> float:
        return float(value)

    def contains(self, value: Any) -> bool:
        """Whether `value` lies in the range and on the step's grid. Whole numbers count as real ones."""
        value = plain(value)
        if not is_number(value) or not self.low <= value <= self.high:
            return False
        return self.step is None or abs(self.at(self.index(value)) - value) <= 1e-9 * max(abs(self.step), abs(value))

    def sample(self, rng: np.random.Generator) -> float:
        """A value drawn uniformly, on the logarithmic scale if `log`."""
        if self.step is not None:
            return self.at(int(rng.integers(self.index(self.high) + 1)))
        u = rng.random()
        if self.log:
            value = math.exp(math.log(self.low) + u * (math.log(self.high) - math.log(self.low)))
        else:
            value = self.low + u * (self.high - self.low)
        return float(min(max(value, self.low), self.high))

    def spread(self, points: int) -> list[float]:
        """`points` values from low to high, evenly spaced on the parameter's scale; both ends are exact."""
        if points == 1:
            middle = math.sqrt(self.low * self.high) if self.log else (self.low + self.high) / 2
            return [_short(middle)]
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        inner = [low + k * (high - low) / (points - 1) for k in range(1, points - 1)]
        return [float(self.low), *(_short(math.exp(x) if self.log else x) for x in inner), float(self.high)]


@dataclass(frozen=True)
class Int(_Range):
    """A whole number in [low, high], both included. Arguments as for `Float`, all bounds and steps whole."""

    kind: ClassVar[str] = "a whole number"

    def cast(self, value: Any) -> int:
        return int(value)

    def contains(self, value: Any) -> bool:
        value = plain(value)
        return is_int(value) and self.low <= value <= self.high and (value - self.low) % self._step() == 0

    def sample(self, rng: np.random.Generator) -> int:
        """A value drawn uniformly; if `log`, the value v has the weight of [v - 1/2, v + 1/2] on the logarithmic scale."""
        if not self.log:
            return self.at(int(rng.integers(self.index(self.high) + 1)))
        low, high = math.log(self.low - 0.5), math.log(self.high + 0.5)
        return min(max(round(math.exp(low + rng.random() * (high - low))), self.low), self.high)

    def _step(self) -> int:
        return 1 if self.step is None else self.step

    def at(self, k: int) -> int:
        return self.low + k * self._step()

    def index(self, value: Any) -> int:
        return (value - self.low) // self._step()

    def _is_number(self, value: Any) -> bool:
        return is_int(value)


@dataclass(frozen=True)
class Choice:
    """One of a few options, without an order.

    Args:
        options: A list of strings, numbers, True, False, None, or flat lists of those. At least one; no two equal, where 1 and
            1.0 are equal and 1 and True are not. An option that is a list reaches the training loop as a list.
        when: As for `Float`.
        otherwise: As for `Float`.
    """

    options: Sequence[Any]
    when: Mapping[str, Any] | None = field(default=None, kw_only=True)
    otherwise: Any = field(default=ABSENT, kw_only=True)

    def __post_init__(self) -> None:
        if isinstance(self.options, (list, tuple, range)):
            object.__setattr__(self, "options", tuple(_freeze(plain(option)) for option in self.options))
        _settle_condition(self)

    def problems(self) -> list[str]:
        """What is wrong with it, one sentence each; conditions on other parameters are checked by `Space`."""
        found: list[str] = []
        if not isinstance(self.options, tuple):
            found.append(f"Choice needs a list of options, got {self.options!r}.")
        elif not self.options:
            found.append("Choice needs at least one option, got an empty list.")
        else:
            bad = [problem for option in self.options if (problem := _option_problem(option))]
            found += bad
            if not bad:
                twice = [o for i, o in enumerate(self.options) if any(same(o, other) for other in self.options[:i])]
                found += [f"Choice needs different options, got {_thaw(option)!r} twice." for option in twice]
        return found + _condition_problems("Choice", self.when, self.otherwise)

    def contains(self, value: Any) -> bool:
        value = plain(value)
        return (is_scalar(value) or is_flat(value)) and any(same(option, value) for option in self.options)

    def cast(self, value: Any) -> Any:
        """The option equal to `value`."""
        return _thaw(next(option for option in self.options if same(option, value)))

    def at(self, k: int) -> Any:
        return _thaw(self.options[k])

    def index(self, value: Any) -> int:
        """Position of `value` among the options."""
        return next(i for i, option in enumerate(self.options) if same(option, value))

    def size(self) -> int:
        return len(self.options)

    def values(self) -> Iterator[Any]:
        return map(_thaw, self.options)

    def sample(self, rng: np.random.Generator) -> Any:
        return self.at(int(rng.integers(len(self.options))))

    def largest(self) -> Any:
        """The largest option, `otherwise` included, or None when they are not all numbers."""
        values = [*self.options, *([] if self.otherwise is ABSENT else [self.otherwise])]
        return max(values) if all(is_number(value) for value in values) else None

    def describe(self) -> str:
        """Short text: `16, 32, 64`."""
        return ", ".join(self.text(_thaw(option)) for option in self.options)

    def text(self, value: Any) -> str:
        return value_text(value)

    def to_json(self) -> dict[str, Any]:
        return {"type": "choice", "options": [_thaw(option) for option in self.options]} | _condition_json(self)


Parameter = Float | Int | Choice


def parameter_from_json(data: Mapping[str, Any]) -> Parameter:
    """The parameter that `to_json` wrote. Unknown types raise KeyError, unknown keys TypeError."""
    data = dict(data)
    kind = {"float": Float, "int": Int, "choice": Choice}[data.pop("type")]
    return kind(**data)


def _short(value: float) -> float:
    return float(f"{value:.12g}")


def _decimal(value: float) -> Decimal:
    return Decimal(repr(value))


def _freeze(option: Any) -> Any:
    return tuple(plain(part) for part in option) if isinstance(option, (list, tuple)) else option


def _thaw(option: Any) -> Any:
    return list(option) if isinstance(option, tuple) else option


def _settle_condition(parameter: Any) -> None:
    object.__setattr__(parameter, "otherwise", plain(parameter.otherwise))
    if isinstance(parameter.when, Mapping):
        object.__setattr__(parameter, "when", dict(parameter.when))


def _condition_problems(kind: str, when: Any, otherwise: Any) -> list[str]:
    found = []
    if when is None:
        if otherwise is not ABSENT:
            found.append(f"{kind} takes otherwise only together with when, got otherwise={otherwise!r}.")
    elif not isinstance(when, dict) or not when:
        found.append(f'{kind} needs when to be a dictionary such as {{"optimizer": "sgd"}}, got {when!r}.')
    if otherwise is not ABSENT and not (is_scalar(otherwise) or is_flat(otherwise)):
        found.append(f"{kind} needs otherwise to be a string, a finite number, True, False or None, got {otherwise!r}.")
    return found


def _option_problem(option: Any) -> str | None:
    if is_scalar(option) or is_flat(option):
        return None
    if isinstance(option, float):
        return f"Choice needs finite numbers, got {option!r}."
    module = getattr(type(option), "__module__", "")
    if module.startswith("ray.tune") or isinstance(option, (Float, Int, Choice)):
        return (
            f"Choice takes no range inside an option ({option!r}): it would reach the training loop unresolved. Make it a "
            "parameter of its own with when={...}."
        )
    if isinstance(option, (Mapping, list, tuple)):
        return (
            f"Choice takes no nested option ({option!r}): name the alternatives, Choice(['adam', 'sgd']), and give each its "
            "own parameters with when={...}."
        )
    return (
        f"Choice needs strings, numbers, True, False, None or flat lists of those, got {option!r}; name it and look it up in "
        "the training loop."
    )


def _condition_json(parameter: Any) -> dict[str, Any]:
    data = {}
    if parameter.when is not None:
        data["when"] = {name: list(v) if isinstance(v, tuple) else v for name, v in parameter.when.items()}
    if parameter.otherwise is not ABSENT:
        data["otherwise"] = parameter.otherwise
    return data
