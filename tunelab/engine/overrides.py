"""What the flags of one run change in an experiment: `--trials --max-steps --time --seed --concurrent --set NAME=VALUE`."""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tunelab.core.experiment import Experiment
from tunelab.core.parameters import Choice
from tunelab.core.space import Space
from tunelab.core.values import is_number
from tunelab.errors import BadInputError, InvalidExperimentError, UnknownNameError


def apply_overrides(
    experiment: Experiment,
    *,
    trials: int | None = None,
    time_s: float | None = None,
    seed: int | None = None,
    max_steps: int | None = None,
    concurrent: int | None = None,
    sets: Sequence[str] = (),
    rerun: Mapping[str, Any] | None = None,
) -> Experiment:
    """The experiment with what is not None changed. The arguments are JSON, so that a sweep can keep them.

    Args:
        experiment: As loaded.
        trials: Replaces `Budget.trials`.
        time_s: Replaces `Budget.time_s`.
        seed: Replaces the seed.
        max_steps: Replaces the objective's `last_step`: the number, or the value of the configuration key that it names.
        concurrent: Replaces `Budget.concurrent`.
        sets: `NAME=VALUE` each, VALUE a Python literal or else a string. A parameter of the space is fixed at the value, in
            the baseline too; a key of `train_loop_config` gets the value.
        rerun: Makes it the experiment that runs one trial once more; see `engine/rerunning.py`.

    Raises:
        UnknownNameError: A NAME is neither a parameter nor a key; suggests the nearest.
        BadInputError: `max_steps` and `sets` give the last step different values.
        InvalidExperimentError: The changed experiment breaks a rule.
    """
    spent: dict[str, Any] = {"trials": trials, "time_s": time_s, "concurrent": concurrent}
    if changed := {name: value for name, value in spent.items() if value is not None}:
        experiment = replace(experiment, budget=replace(experiment.budget, **changed))
    if seed is not None:
        experiment = replace(experiment, seed=seed)
    pairs = [_parse(text) for text in sets]
    if max_steps is not None:
        for name, value, text in pairs:
            if name == experiment.objective.last_step and value != max_steps:
                raise BadInputError(
                    f"--set {name}={text} and --max-steps {max_steps} both set the last step ({name}): {text} and {max_steps}. "
                    "Give one of them."
                )
        experiment = _with_max_steps(experiment, max_steps)
    _refuse_unknown(experiment, [name for name, _, _ in pairs])
    for name, value, text in pairs:
        space = experiment.space
        if parameter := space.parameters.get(name):
            if not parameter.contains(value) and parameter.contains(text):
                value = text  # the option "16", not the number
            if not isinstance(parameter, Choice) and not is_number(value):
                raise InvalidExperimentError(
                    f"Parameter '{name}'", [f"{text} is not a number; it takes {parameter.describe()}."]
                )
            experiment = _with_space(experiment, space.pin(name, value), name, value)
        else:
            experiment = _with_loop_value(experiment, name, value)
    if rerun is not None:
        from tunelab.engine.rerunning import derive

        experiment = derive(experiment, rerun)
    return experiment


def _parse(text: str) -> tuple[str, Any, str]:
    name, equals, value = text.partition("=")
    name, value = name.strip(), value.strip()
    if not equals or not name:
        raise BadInputError(f"--set needs NAME=VALUE, such as --set batch_size=16, got '{text}'.")
    try:
        return name, ast.literal_eval(value), value
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return name, value, value


def _refuse_unknown(experiment: Experiment, names: Sequence[str]) -> None:
    known = list(dict.fromkeys([*experiment.space.parameters, *experiment.loop_defaults()]))
    for name in names:
        if name not in known:
            error = UnknownNameError.among("parameter or train_loop_config key", name, known)
            if not hasattr(experiment.trainer, "train_loop_config"):
                error = UnknownNameError(f"{error} The trainer is a function, so --set reaches the space's parameters only.")
            raise error


def _with_max_steps(experiment: Experiment, steps: int) -> Experiment:
    if steps < 1:
        raise BadInputError(f"--max-steps needs a whole number >= 1, got {steps}.")
    last = experiment.objective.last_step
    if last is None:
        raise BadInputError("--max-steps needs an objective that says its last step: Objective(..., last_step=...).")
    if not isinstance(last, str):
        return replace(experiment, objective=replace(experiment.objective, last_step=steps))
    if last in experiment.space.parameters:
        return _with_space(experiment, experiment.space | {last: steps}, last, steps)
    if not hasattr(experiment.trainer, "train_loop_config"):
        raise BadInputError(
            f"--max-steps cannot change '{last}': the trainer is a function. Change the function, or name a number."
        )
    return _with_loop_value(experiment, last, steps)


def _with_space(experiment: Experiment, space: Space, name: str, value: Any) -> Experiment:
    baseline = experiment.baseline
    if baseline is not None:  # what the fixed value switches off is no longer part of it
        baseline = space.complete({**experiment.loop_defaults(), **baseline, name: value})
    return replace(experiment, space=space, baseline=baseline)


def _with_loop_value(experiment: Experiment, name: str, value: Any) -> Experiment:
    trainer = copy.copy(experiment.trainer)  # the file's own trainer stays as it was written
    trainer.train_loop_config = {**experiment.loop_defaults(), name: value}
    return replace(experiment, trainer=trainer)
