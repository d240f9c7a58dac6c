"""Values of parameters: which are allowed, when two are the same, and how a message writes them."""

from __future__ import annotations

import json
import math
from typing import Any


def is_int(value: Any) -> bool:
    """Whether `value` is a whole number and not a truth value."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether `value` is a finite number and not a truth value."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def is_scalar(value: Any) -> bool:
    """Whether JSON can hold `value` by itself. NaN and infinities are not JSON."""
    return value is None or isinstance(value, (str, bool)) or is_number(value)


def plain(value: Any) -> Any:
    """A numpy scalar as the Python value it stands for; anything else unchanged."""
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return value.item()
    return float(value) if type(value) is not float and isinstance(value, float) else value


def identity(value: Any) -> Any:
    """A hashable stand-in: equal for equal values, 1 equal to 1.0, True not equal to 1, a list equal to a tuple."""
    value = plain(value)
    if isinstance(value, (list, tuple)):
        return ("list", *(identity(part) for part in value))
    return ("bool", value) if isinstance(value, bool) else value


def is_flat(value: Any) -> bool:
    """Whether `value` is a list or tuple of scalars."""
    return isinstance(value, (list, tuple)) and all(is_scalar(part) for part in value)


def same(a: Any, b: Any) -> bool:
    """Whether two values are the same option."""
    return bool(identity(a) == identity(b))


def number_text(value: float, *, log: bool = False) -> str:
    """A number as short as it can be told apart: 0.05; on a logarithmic scale below 1 as 5e-2."""
    if is_int(value):
        return str(value)
    if log and value and not 1 <= abs(value) < 1e4:
        mantissa, _, exponent = f"{value:.12e}".partition("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return f"{value:.12g}"


def value_text(value: Any) -> str:
    """A value in a message: strings bare, lists and the rest as JSON."""
    return value if isinstance(value, str) else json.dumps(value, default=repr)


def canonical(value: Any) -> Any:
    """JSON data that is the same for the same value: 1 for 1.0, a list for a tuple."""
    value = plain(value)
    if isinstance(value, (list, tuple)):
        return [canonical(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
