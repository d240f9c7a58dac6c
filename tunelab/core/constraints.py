"""Constraints between parameters: small expressions, parsed and never evaluated as Python.

`"batch_size * accumulate <= 32"` survives YAML and JSON, can be shown, and cannot run code. Allowed: numbers, strings,
True, False, None, parameters' names, `+ - * / // % **`, comparisons (also chained), `in` and `not in` a list, `and or
not`, parentheses, `min max abs`.
"""

from __future__ import annotations

import ast
import difflib
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tunelab.core.values import identity, is_number

LONGEST = 1000  # characters
LARGEST_EXPONENT = 64

_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_ORDER: dict[type, Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_SIGN: dict[type, Callable[[Any], Any]] = {ast.USub: operator.neg, ast.UAdd: operator.pos}
_FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "abs": abs}
_ALLOWED = "numbers, strings, parameters, + - * / // % **, comparisons, in, and, or, not, min, max, abs"


@dataclass(frozen=True)
class Constraint:
    """A rule that a configuration must meet.

    A rule that mentions a parameter which the configuration leaves out (off, without `otherwise`) holds. One that cannot be
    computed (a division by zero, an overflow, a string where a number is needed) does not.

    >>> Constraint("batch_size * accumulate <= 32").holds({"batch_size": 16, "accumulate": 2})
    True
    """

    text: str

    def problems(self, known: Iterable[str]) -> list[str]:
        """Bad syntax, forbidden parts and unknown names, one sentence each."""
        if not isinstance(self.text, str) or not self.text.strip():
            return [f'require needs expressions such as "batch_size * accumulate <= 32", got {self.text!r}.']
        if len(self.text) > LONGEST:
            return [f"require takes at most {LONGEST} characters in an expression, got {len(self.text)}."]
        try:
            tree = _parse(self.text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            return [f"require {self.text!r} is not an expression: {getattr(error, 'msg', None) or error}."]
        found = [f"require {self.text!r} has {what}; allowed are {_ALLOWED}." for what in dict.fromkeys(_forbidden(tree))]
        known = list(known)
        for name in sorted(self.names()):
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f" Did you mean '{close[0]}'?" if close else ""
                found.append(f"require {self.text!r} names '{name}', which is no parameter.{hint} Known: {', '.join(known)}.")
        return found

    def names(self) -> frozenset[str]:
        """The parameters it mentions."""
        return _names(self.text)

    def holds(self, config: Mapping[str, Any]) -> bool:
        """Whether `config`, without off parameters, meets the rule."""
        try:
            return self.decide(config)
        except TypeError:
            return False

    def decide(self, config: Mapping[str, Any]) -> bool:
        """As `holds`.

        Raises:
            TypeError: It compares or computes what cannot be, such as a string with a number.
        """
        if any(name not in config for name in self.names()):
            return True
        try:
            return _truth(_value(_parse(self.text), config))
        except (ZeroDivisionError, OverflowError):
            return False


@lru_cache(maxsize=512)
def _parse(text: str) -> ast.expr:
    return ast.parse(text.strip(), mode="eval").body


@lru_cache(maxsize=512)
def _names(text: str) -> frozenset[str]:
    tree = _parse(text)
    functions = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in functions)


def _forbidden(node: ast.expr) -> list[str]:
    """Words for each part of the expression that is not allowed."""
    parts: list[ast.expr]
    match node:
        case ast.Name():
            return []
        case ast.Constant(value=value):
            if value is None or isinstance(value, (str, bool)) or is_number(value):
                return []
            return [f"the constant {value!r}"]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _SIGN or isinstance(op, ast.Not):
            parts = [operand]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in (*_ARITHMETIC, ast.Pow):
            parts = [left, right]
        case ast.BoolOp(values=values):
            parts = values
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            parts = [left]
            for comparison, part in zip(ops, comparators, strict=True):
                if isinstance(comparison, (ast.In, ast.NotIn)):
                    if not isinstance(part, (ast.List, ast.Tuple)):
                        return ["'in' without a list after it"]
                    parts += part.elts
                elif isinstance(comparison, (ast.Is, ast.IsNot)):
                    return ["'is' (use ==)"]
                else:
                    parts.append(part)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            parts = args
            if not args or (name == "abs") != (len(args) == 1):
                return [f"{name}() with {len(args)} argument{'s' * (len(args) != 1)}"]
        case _:
            return [f"'{ast.unparse(node)}'"]
    return [what for part in parts for what in _forbidden(part)]


def _value(node: ast.expr, config: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return config[name]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _truth(_value(operand, config))
        case ast.UnaryOp(op=sign, operand=operand):
            return _SIGN[type(sign)](_number(_value(operand, config)))
        case ast.BinOp(left=left, op=arithmetic, right=right):
            compute = _power if isinstance(arithmetic, ast.Pow) else _ARITHMETIC[type(arithmetic)]
            return compute(_number(_value(left, config)), _number(_value(right, config)))
        case ast.BoolOp(op=ast.And(), values=values):
            return all(_truth(_value(part, config)) for part in values)
        case ast.BoolOp(values=values):
            return any(_truth(_value(part, config)) for part in values)
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            a = _value(left, config)
            for op, part in zip(ops, comparators, strict=True):
                b = [_value(e, config) for e in part.elts] if isinstance(part, (ast.List, ast.Tuple)) else _value(part, config)
                if not _compare(op, a, b):
                    return False
                a = b
            return True
        case ast.Call(func=ast.Name(id=name), args=args):
            return _FUNCTIONS[name](*(_number(_value(part, config)) for part in args))
    raise AssertionError(ast.dump(node))


def _compare(op: ast.cmpop, a: Any, b: Any) -> bool:
    if isinstance(op, (ast.In, ast.NotIn)):
        return any(identity(a) == identity(part) for part in b) == isinstance(op, ast.In)
    if isinstance(op, (ast.Eq, ast.NotEq)):
        return bool(identity(a) == identity(b)) == isinstance(op, ast.Eq)
    return bool(_ORDER[type(op)](_number(a), _number(b)))


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{value!r} is not a number")
    return value


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither true nor false")
    return value


def _power(a: Any, b: Any) -> Any:
    if abs(b) > LARGEST_EXPONENT:
        raise OverflowError("exponent too large")
    result = a**b
    if isinstance(result, complex):
        raise OverflowError("root of a negative number")
    return result
