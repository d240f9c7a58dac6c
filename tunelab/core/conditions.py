"""Conditions between parameters: `when={"optimizer": "sgd"}` asks for a value, or for one of a list of values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tunelab.core.parameters import ABSENT, Choice, Float, Int, Parameter
from tunelab.core.values import same, value_text


def asks_for(asked: Any, value: Any) -> bool:
    return any(same(option, value) for option in alternatives(asked))


def alternatives(asked: Any) -> list[Any]:
    """The values that a condition accepts: a list means any of its entries."""
    return list(asked) if isinstance(asked, (list, tuple, set, frozenset)) else [asked]


def asked_problems(name: str, parent: str, parameter: Parameter, asked: Any) -> list[str]:
    if isinstance(asked, (set, frozenset)):
        return [f"{name}'s condition on {parent} needs a value or a list of values, got {asked!r}."]
    if parameter.size() is None:
        return [f"{name} is conditioned on {parent}, which is continuous and equals a value only by chance."]
    if not alternatives(asked):
        return [f"{name}'s condition on {parent} is an empty list, so it would always be off."]
    return [
        f"{name} is conditioned on {parent} = {value_text(value)}, which is outside {parent}'s {parameter.describe()}."
        for value in alternatives(asked)
        if not parameter.contains(value)
    ]


def prune(parameters: dict[str, Any], fresh: set[str]) -> set[str]:
    """Drops or fixes, in place, parameters whose condition a change of other parameters made impossible.

    Those in `fresh` were just written, so an impossible condition of theirs is a mistake and left for the check to name.
    Returns the names dropped.
    """
    dead: set[str] = set()  # can never be on
    gone: set[str] = set()
    original = dict(parameters)
    changed = True
    while changed:
        changed = False
        for name, parameter in list(parameters.items()):
            when = getattr(parameter, "when", None)
            if name in dead or name in fresh or not isinstance(when, dict):
                continue
            left: dict[str, list[Any]] = {}
            for parent, asked in when.items():
                source = original.get(parent)
                if parent in dead:
                    left[parent] = []
                elif isinstance(source, (Float, Int, Choice)) and not source.problems() and source.size():
                    left[parent] = [value for value in alternatives(asked) if source.contains(value)]
                else:
                    left[parent] = alternatives(asked)  # unknown or wrong: for the check to say
            if all(left.values()):
                kept = {p: values[0] if not isinstance(when[p], (list, tuple)) else values for p, values in left.items()}
                if kept != when:
                    parameters[name] = replace(parameter, when=kept)
                continue
            dead.add(name)
            changed = True
            if parameter.otherwise is ABSENT:
                del parameters[name]
                gone.add(name)
            else:
                parameters[name] = Choice([parameter.otherwise])
    return gone


def condition_text(parameter: Parameter) -> str:
    texts = [f"{p} = {' or '.join(value_text(v) for v in alternatives(asked))}" for p, asked in (parameter.when or {}).items()]
    return " and ".join(texts)
