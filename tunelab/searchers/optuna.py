"""TPE, the tree-structured Parzen estimator (Bergstra et al. 2011; multivariate as in Falkner et al. 2018), by Optuna.

Optuna keeps its generator and study inside, so that a restart would replay its start. Here each proposal builds a fresh
study from the history and a fresh sampler from (seed, number): nothing to save, nothing that can disagree.

What becomes of a trial, by how Optuna 5 splits trials (`optuna/samplers/_tpe/sampler.py`, `_split_trials`: complete
ones by value, then pruned ones by their last step and the value there, then infeasible ones; running ones always count
as bad, "constant liar"):

| trial                                  | in the study                                                          |
|----------------------------------------|-----------------------------------------------------------------------|
| completed                              | COMPLETE with the value of its last report                            |
| stopped by the scheduler               | PRUNED with its last step and value: never as if completed            |
| failed after finite reports            | PRUNED likewise: what it reported is true                             |
| last value NaN or infinite; no report  | COMPLETE and infeasible, so behind all others; no number is made up   |
| infeasible                             | likewise, with a larger violation                                     |
| proposed, running, retrying, paused    | RUNNING, so that proposals made meanwhile keep away from it           |
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from tunelab.core.experiment import Objective
from tunelab.core.space import Choice, Float, Space
from tunelab.core.trial import Config, Status, Trial, derive_seed
from tunelab.errors import MissingDependencyError
from tunelab.searchers.random import untried

ASKS = 10  # proposals that may break a constraint or repeat a trial before one is drawn at random

_VIOLATION = {Status.INFEASIBLE: 2.0}  # against 1.0 for divergence: both rank behind every trial with a value


@dataclass(frozen=True)
class TPE:
    """Prefers configurations that are likely among the best tenth of the trials and unlikely among the rest.

    Args:
        startup: Random configurations until so many trials have ended. At least 0.
        multivariate: Whether dependencies between parameters are modelled.
        group: Whether parameters that occur together, under conditions, are modelled together. Needs `multivariate`.
        candidates: Draws among which the most promising is proposed. At least 1.

    Constraints and repetitions: asks again a few times, then draws at random; None when a finite space is used up. A value that
    an off parameter has by `otherwise` is not modelled.
    """

    startup: int = 10
    multivariate: bool = True
    group: bool = True
    candidates: int = 24

    name: ClassVar[str] = "tpe"

    def problems(self) -> list[str]:
        found = []
        for name, least in (("startup", 0), ("candidates", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                found.append(f"TPE needs {name} >= {least}, got {name}={value!r}.")
        for name in ("multivariate", "group"):
            if not isinstance(getattr(self, name), bool):
                found.append(f"TPE needs {name} to be True or False, got {getattr(self, name)!r}.")
        if not found and self.group and not self.multivariate:
            found.append("TPE needs multivariate=True for group=True.")
        return found

    def propose(self, number: int, *, space: Space, objective: Objective, history: Sequence[Trial], seed: int) -> Config | None:
        """The configuration for trial `number`: a function of its arguments alone.

        Raises:
            MissingDependencyError: Optuna is not installed.
        """
        seed = derive_seed(seed, self.name, number)
        if sum(trial.status.ended for trial in history) >= self.startup:
            tried = {space.key(trial.config) for trial in history}
            for config in self._ask(space, objective, history, seed):
                if space.key(config) not in tried and space.contains(config):
                    return config
        return untried(space, history, np.random.default_rng(seed))

    def _ask(self, space: Space, objective: Objective, history: Sequence[Trial], seed: int) -> Iterator[Config]:
        """Proposals that may break a constraint or repeat a trial. An earlier one counts as running for the next."""
        optuna = _optuna()
        distributions = {name: _distribution(optuna, parameter) for name, parameter in space.parameters.items()}
        with _quiet(optuna):
            sampler = optuna.samplers.TPESampler(
                n_startup_trials=0,
                n_ei_candidates=self.candidates,
                multivariate=self.multivariate,
                group=self.group,
                constant_liar=True,
                seed=seed,
            )
            direction = "maximize" if objective.mode == "max" else "minimize"
            study = optuna.create_study(sampler=sampler, direction=direction)
            study.add_trials(_study_trials(optuna, space, distributions, history))
        for _ in range(ASKS):
            with _quiet(optuna):
                config = _ask_once(study, space, distributions)
            yield config


def _ask_once(study: Any, space: Space, distributions: dict[str, Any]) -> Config:
    trial = study.ask()
    return space.build(lambda name: _decode(space.parameters[name], _suggest(trial, name, distributions[name])))


def _study_trials(optuna: Any, space: Space, distributions: dict[str, Any], history: Sequence[Trial]) -> Iterator[Any]:
    state = optuna.trial.TrialState
    steps = sorted({trial.reports[-1].step for trial in history if trial.reports})
    rank = {step: i for i, step in enumerate(steps)}  # Optuna wants whole steps and only compares them
    for trial in sorted(history, key=lambda trial: trial.number):
        params = _encode(space, trial.config)
        if params is None:
            continue
        told: dict[str, Any] = {"params": params, "distributions": {name: distributions[name] for name in params}}
        last = trial.last
        if not trial.status.ended:
            told |= {"state": state.RUNNING}
        elif trial.status is Status.INFEASIBLE or last is None or not math.isfinite(last.value):
            told |= {"state": state.COMPLETE, "value": 0.0, "constraints": {"worst": _VIOLATION.get(trial.status, 1.0)}}
        elif trial.status is Status.COMPLETED:
            told |= {"state": state.COMPLETE, "value": last.value}
        else:
            told |= {"state": state.PRUNED, "intermediate_values": {rank[last.step]: last.value}}
        yield optuna.trial.create_trial(**told)


def _distribution(optuna: Any, parameter: Any) -> Any:
    """How Optuna sees a parameter: options and steps by position, so that no rounding or mixing of 1 and True can occur."""
    kinds = optuna.distributions
    if isinstance(parameter, Choice):
        return kinds.CategoricalDistribution(range(parameter.size()))
    if isinstance(parameter, Float):
        if parameter.step is not None:
            return kinds.IntDistribution(0, parameter.index(parameter.high))
        return kinds.FloatDistribution(parameter.low, parameter.high, log=parameter.log)
    return kinds.IntDistribution(parameter.low, parameter.high, log=parameter.log, step=parameter.step or 1)


def _by_position(parameter: Any) -> bool:
    return isinstance(parameter, Choice) or (isinstance(parameter, Float) and parameter.step is not None)


def _encode(space: Space, config: Config) -> dict[str, Any] | None:
    """The active parameters as Optuna sees them, or None when one is outside the space, as after narrowing it."""
    params = {}
    for name in space.on(config):
        parameter, value = space.parameters[name], config.get(name)
        if name not in config or not parameter.contains(value):
            return None
        params[name] = parameter.index(value) if _by_position(parameter) else parameter.cast(value)
    return params


def _decode(parameter: Any, value: Any) -> Any:
    return parameter.at(value) if _by_position(parameter) else parameter.cast(value)


def _suggest(trial: Any, name: str, distribution: Any) -> Any:
    if type(distribution).__name__ == "CategoricalDistribution":
        return trial.suggest_categorical(name, distribution.choices)
    if type(distribution).__name__ == "IntDistribution":
        return trial.suggest_int(name, distribution.low, distribution.high, step=distribution.step, log=distribution.log)
    return trial.suggest_float(name, distribution.low, distribution.high, log=distribution.log)


def _optuna() -> ModuleType:
    try:
        import optuna  # here, so that an experiment that says TPE() loads it only to propose
    except ImportError as error:
        raise MissingDependencyError("The searcher 'tpe' needs Optuna. Run: pip install optuna") from error
    return optuna


@contextmanager
def _quiet(optuna: Any) -> Iterator[None]:
    """Without Optuna's notes on new studies and experimental arguments; its settings are restored afterwards."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(verbosity)
