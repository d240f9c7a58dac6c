"""How numbers, steps, times and configurations are written, the same in every verb."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from tunelab.core.trial import Trial
from tunelab.core.values import value_text
from tunelab.journal.state import Amendment, SweepState


def metric_text(value: float | None) -> str:
    """Four decimals, or four digits where those would not tell values apart.

    >>> metric_text(0.97114), metric_text(0.00012345), metric_text(float("nan"))
    ('0.9711', '1.234e-4', 'nan')
    """
    if value is None:
        return ""
    if not math.isfinite(value):
        return str(value)
    if value == 0 or 1e-2 <= abs(value) < 1e6:
        return f"{value:.4f}"
    return _scientific(value, 3)


def setting_text(value: Any, *, log: bool = False) -> str:
    """A configuration's value in a table: a real number to 2 digits on a logarithmic scale, else to 4.

    >>> setting_text(0.0812345, log=True), setting_text(0.15), setting_text(64), setting_text("adam")
    ('8.1e-2', '0.15', '64', 'adam')
    """
    if isinstance(value, float) and math.isfinite(value) and value != 0:
        if log or not 1e-3 <= abs(value) < 1e6:
            return _scientific(value, 1) if not 1 <= abs(value) < 1e4 else f"{value:.3g}"
        return f"{value:.4g}"
    return value_text(value)


def step_text(step: float) -> str:
    """`6`, `2.5`."""
    return str(int(step)) if 1e6 <= abs(step) < math.inf else f"{step:.6g}"


def span_text(seconds: float) -> str:
    """A length of time: `0:07`, `1:38`, `2:03:59`, `3 d 4:05:00`."""
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    clock = f"{hours}:{minutes:02d}:{rest:02d}" if hours or days else f"{minutes}:{rest:02d}"
    return f"{days} d {clock}" if days else clock


def gain_text(gain: float | None) -> str:
    """`+0.0289`: positive is better, whether the metric is to rise or to fall."""
    if gain is None:
        return ""
    text = metric_text(abs(gain))
    return f"{'-' if gain < 0 else '+'}{text}"


def axis(state: SweepState) -> str:
    """What the steps are called: `epoch`, `round`, or `step` when none is declared."""
    return state.experiment["objective"].get("step") or "step"


def metric(state: SweepState) -> str:
    """The objective's name."""
    return state.experiment["objective"]["metric"]


def parameters(state: SweepState) -> dict[str, bool]:
    """The space's parameters in order -> whether they are on a logarithmic scale."""
    return {entry["name"]: bool(entry.get("log")) for entry in state.experiment["space"]["parameters"]}


def varied(state: SweepState) -> dict[str, bool]:
    """The parameters that are not fixed, as `parameters` gives them."""
    fixed = {e["name"] for e in state.experiment["space"]["parameters"] if e["type"] == "choice" and len(e["options"]) == 1}
    return {name: log for name, log in parameters(state).items() if name not in fixed}


def settings(config: Mapping[str, Any], names: Mapping[str, bool]) -> list[str]:
    """The configuration's values for `names`, empty where a parameter is off."""
    return [setting_text(config[name], log=log) if name in config else "" for name, log in names.items()]


def config_text(config: Mapping[str, Any], names: Mapping[str, bool]) -> str:
    """`lr 8.1e-2 width 19 batch_size 64`."""
    return " ".join(f"{name} {setting_text(config[name], log=log)}" for name, log in names.items() if name in config)


def last_step(state: SweepState, trial: Trial) -> float | None:
    """The step at which the trial is complete, or None where it is not declared or cannot be told from the journal."""
    last = state.experiment["objective"].get("last_step")
    if isinstance(last, str):
        last = trial.config.get(last, state.experiment.get("loop", {}).get(last))
    return last if isinstance(last, (int, float)) else None


def amendment_text(amendment: Amendment) -> str:
    """`amended before session 2, after 12 trials`, or `changed ...` where `--amend` was not needed."""
    count = f"{amendment.trials} trial{'s'[: amendment.trials != 1]}"
    return f"{'amended' if amendment.forced else 'changed'} before session {amendment.session}, after {count}"


def plural(word: str, steps: Iterable[float]) -> str:
    """`epoch 3`, `epochs 1..3`."""
    steps = list(steps)
    first, last = steps[0], steps[-1]
    return f"{word} {step_text(first)}" if first == last else f"{word}s {step_text(first)}..{step_text(last)}"


def _scientific(value: float, digits: int) -> str:
    mantissa, _, exponent = f"{value:.{digits}e}".partition("e")
    return f"{mantissa}e{int(exponent)}"
