"""How values, names and facts are written for a tracker: within MLflow's limits, and readable on its page.

MLflow allows letters, digits and `_ - . : / space` in names, 250 characters a name, 6,000 a parameter's value (what is
longer is cut in silence) and 5,000 to 8,000 a tag's value, depending on the server.
"""

from __future__ import annotations

import hashlib
import json
import math
import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tunelab.core.select import Best
from tunelab.core.trial import Attempt
from tunelab.journal.state import SweepState

NAME_LENGTH, PARAM_LENGTH, TAG_LENGTH = 250, 6000, 5000
_FORBIDDEN = re.compile(r"[^/\w.\- :]")


def digest(text: str) -> str:
    """16 hexadecimal digits of SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def key(name: Any) -> str:
    """`name` as MLflow allows it; unchanged if it is allowed already.

    >>> key("eval/loss"), key("f1 (macro)"), key("../x")
    ('eval/loss', 'f1 _macro_', '___x')
    """
    allowed = _FORBIDDEN.sub("_", str(name))
    if posixpath.normpath(allowed) != allowed or allowed.startswith(("/", "..")) or allowed == ".":  # not as a path, then
        allowed = re.sub(r"^\.{1,2}", lambda dots: "_" * len(dots[0]), allowed.replace("/", "_")) or "_"
    return allowed if len(allowed) <= NAME_LENGTH else f"{allowed[: NAME_LENGTH - 17]}_{digest(str(name))}"


def tag(value: Any) -> str:
    """A tag's value: text as it is, anything else as JSON, cut where MLflow's servers refuse it."""
    text = _clean(value if isinstance(value, str) else json.dumps(value, default=str))
    return text if len(text) <= TAG_LENGTH else text[: TAG_LENGTH - 2] + " …"


def params(config: Mapping[str, Any]) -> tuple[dict[str, str], bool]:
    """A configuration as parameters, nested keys joined by dots, and whether a value was too long and had to be replaced."""
    found, replaced = {}, False
    for name, value in _unique(_flat(config)):
        text = _clean(value if isinstance(value, str) else _json(value) if isinstance(value, (list, dict)) else str(value))
        if len(text) > PARAM_LENGTH:
            text, replaced = f"sha256:{digest(text)} of {len(text)} characters, in the artifact config.json", True
        found[name] = text
    return found, replaced


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The numeric ones of reported metrics; True counts as 1, text is left out, and what no float can hold as infinity."""
    found = {}
    for name, value in _unique(_flat(metrics)):
        if isinstance(value, (int, float)):
            try:
                found[name] = float(value)
            except OverflowError:
                found[name] = math.inf if value > 0 else -math.inf
    return found


def fact_tags(facts: Mapping[str, Any]) -> dict[str, str]:
    """Facts as tags `tunelab.<fact>`, nested ones joined by dots; commit, file and user also where MLflow's page shows them."""
    flat = dict(_unique(_flat(facts)))
    tags = {f"tunelab.{name}": tag(value) for name, value in flat.items() if value is not None}
    commit = flat.get("git.commit") or flat.get("git_commit") or flat.get("commit")
    shown = {"mlflow.source.git.commit": commit, "mlflow.source.name": flat.get("file"), "mlflow.user": flat.get("user")}
    return {**tags, **{name: str(value) for name, value in shown.items() if value}, "mlflow.source.type": "LOCAL"}


def experiment_tags(experiment: Mapping[str, Any]) -> dict[str, str]:
    """The parts of an experiment that people filter and sort sweeps by."""
    objective = experiment.get("objective") or {}
    tags = {"tunelab.objective": objective.get("metric"), "tunelab.mode": objective.get("mode")}
    tags["tunelab.seed"] = experiment.get("seed")
    for part in ("searcher", "scheduler"):
        described = experiment.get(part)
        tags[f"tunelab.{part}"] = described.get("name", described) if isinstance(described, Mapping) else described
    return {name: tag(value) for name, value in tags.items() if value is not None}


def objective(state: SweepState) -> str:
    """Name of the metric that the sweep improves."""
    return state.experiment["objective"]["metric"]


def axis(state: SweepState) -> str:
    """What a step is called: `epoch`, `round`, or `report` when the experiment does not say."""
    return state.experiment["objective"].get("step") or "report"


def attempt(attempt: Attempt, axis: str) -> str:
    """`from the checkpoint of epoch 3; failed: worker lost: node 2 is gone`"""
    start = "from nothing" if attempt.checkpoint is None else "from a checkpoint"
    if attempt.checkpoint is not None and attempt.from_step is not None:
        start = f"from the checkpoint of {axis} {attempt.from_step:g}"
    end = [part for part in (attempt.outcome or "running", attempt.failure, attempt.message) if part]
    return tag(f"{start}; {': '.join(end)}")


def note(state: SweepState, best: Best | None = None) -> str:
    """What MLflow's page shows on top of the sweep's run (Markdown)."""
    lines = [f"Sweep **{state.sweep}**: `{objective(state)}` ({state.mode}), one child run for each trial.", ""]
    if best is not None:
        where = f"{state.sweep}/{best.trial.id}"
        lines += [f"Best: **{where}**, {objective(state)} {best.report.value:g} at {axis(state)} {best.report.step:g}.", ""]
        lines += [f"    tunelab why {where}", f"    tunelab export {state.sweep} --to model/"]
    return "\n".join([*lines, f"    tunelab compare {state.sweep}"])


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _unique(pairs: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """The pairs under allowed names, no name twice: `a*` and `a?` become `a_` and `a__<hash>`."""
    taken: set[str] = set()
    for name, value in pairs:
        allowed = key(name)
        if allowed in taken:
            allowed = key(f"{allowed[: NAME_LENGTH - 17]}_{digest(name)}")
        taken.add(allowed)
        yield allowed, value


def _clean(text: str) -> str:
    """The text without what databases refuse: NUL, which PostgreSQL does not store, and halves of surrogate pairs."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def _json(value: Any) -> str:
    return json.dumps(value, default=str)
