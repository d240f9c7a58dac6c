"""What a sweep is described by: one frozen `Experiment`, checked as a whole so that every problem shows at once."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tunelab.core import failures
from tunelab.core.failures import OnFailure
from tunelab.core.protocols import Scheduler, Searcher
from tunelab.core.reduce import REDUCTIONS
from tunelab.core.space import Space
from tunelab.core.trial import Config, derive_seed
from tunelab.errors import InvalidExperimentError

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


@dataclass(frozen=True)
class Objective:
    """The reported metric that the sweep improves, and the axis along which trials report it.

    Args:
        metric: Key in the reported metrics.
        mode: `"max"` or `"min"`. NaN and infinities rank worst under both.
        step: Key of the step in the reported metrics (`"epoch"`, `"round"`); increases within a trial and goes on after
            a restart. None counts the trial's reports from 1.
        last_step: The step at which a trial is complete: a number, or the name of a configuration key that holds it, so
            that the scheduler's maximum and the loop's cannot differ. None if it is not known beforehand.
    """

    metric: str
    mode: Literal["max", "min"] = "max"
    step: str | None = None
    last_step: float | str | None = None

    def problems(self) -> list[str]:
        found = []
        if not isinstance(self.metric, str) or not self.metric:
            found.append(f"Objective needs the name of a reported metric, got {self.metric!r}.")
        if self.mode not in ("max", "min"):
            found.append(f"Objective needs mode 'max' or 'min', got {self.mode!r}.")
        if self.step is not None and (not isinstance(self.step, str) or not self.step):
            found.append(f"Objective needs step to be the key of a reported metric or None, got {self.step!r}.")
        if isinstance(self.last_step, str):
            if not self.last_step:
                found.append("Objective needs last_step to be a number or the name of a configuration key, got ''.")
        elif self.last_step is not None and not (_is_number(self.last_step) and self.last_step > 0):
            found.append(f"Objective needs last_step > 0, got {self.last_step!r}.")
        return found


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How much a sweep may spend. The first limit reached ends it.

    Args:
        trials: Most trials to run in all, the baseline included. At least 1. Infeasible configurations are not counted.
        time_s: Wall-clock limit in seconds over all starts of the sweep, or None for none.
        concurrent: Most trials at a time, or None for as many as the cluster's resources allow.
    """

    trials: int
    time_s: float | None = None
    concurrent: int | None = None

    def problems(self) -> list[str]:
        found = []
        if not _is_int(self.trials) or self.trials < 1:
            found.append(f"Budget needs trials >= 1, got trials={self.trials!r}.")
        if self.time_s is not None and not (_is_number(self.time_s) and self.time_s > 0):
            found.append(f"Budget needs time_s > 0 (seconds) or None, got time_s={self.time_s!r}.")
        if self.concurrent is not None and (not _is_int(self.concurrent) or self.concurrent < 1):
            found.append(f"Budget needs concurrent >= 1 or None, got concurrent={self.concurrent!r}.")
        return found


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Which checkpoints stay: the union of three counts, plus whatever a trial that can still run may need.

    Args:
        best_of_sweep: So many best checkpoints over all trials, at most one of each trial.
        best_of_trial: So many best checkpoints of each trial.
        latest_of_trial: So many latest checkpoints of each trial.
    """

    best_of_sweep: int = 1
    best_of_trial: int = 1
    latest_of_trial: int = 1

    def problems(self) -> list[str]:
        found = [
            f"Retention needs {name} >= 0, got {value!r}."
            for name, value in vars(self).items()
            if not _is_int(value) or value < 0
        ]
        if not found and self.best_of_sweep < 1:
            found.append("Retention needs best_of_sweep >= 1: without it there would be nothing to export.")
        return found


@dataclass(frozen=True, kw_only=True)
class Export:
    """How a checkpoint becomes a model that predicts.

    Frameworks with a self-describing checkpoint (Transformers) need only `example`.

    Args:
        build: `build(config)` returns the model without trained weights.
        weights: File in the checkpoint that holds the weights, or (file, key) when they are one entry of a dictionary.
            Read with `weights_only=True`; the `module.` prefix of DistributedDataParallel is removed. None for a checkpoint
            of Lightning's, which says it itself.
        load: `load(folder, config)` returns the model ready for inference: for anything that `build` and `weights` cannot say.
        example: `example()` returns a few rows of input; becomes the model's signature and input example, and is what the
            exported model is proved on.
        predict: `predict(model, inputs)` returns one prediction a row. None calls the model. For Torch, `inputs` is a tensor,
            the result one number or one row of numbers for each input, and the hook becomes part of the exported graph.
        evaluate: `evaluate(model)` returns metrics on held-out data for the model's card, or None.
    """

    build: Callable[[Config], Any] | None = None
    weights: str | tuple[str, str] | None = None
    load: Callable[..., Any] | None = None
    example: Callable[[], Any] | None = None
    predict: Callable[[Any, Any], Any] | None = None
    evaluate: Callable[[Any], Mapping[str, float]] | None = None

    def problems(self) -> list[str]:
        found = []
        for name in ("build", "load", "example", "predict", "evaluate"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                found.append(f"Export needs {name} to be a function, got {value!r}.")
        if self.weights is not None and self.build is None:
            found.append("Export needs build beside weights: the model that they are filled into.")
        if self.build is not None and self.load is not None:
            found.append("Export takes build and weights, or load, not both.")
        weights = self.weights
        if weights is not None and not isinstance(weights, str):
            if not (isinstance(weights, tuple) and len(weights) == 2 and all(isinstance(part, str) for part in weights)):
                found.append(f"Export needs weights to be a file name or (file name, key), got {weights!r}.")
        if self.example is None:
            found.append("Export needs example, a function that returns a few rows of input.")
        return found


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A tuned training run: what is trained, what is varied, what is best, and how much may be spent.

    Args:
        name: Lower-case letters, digits, `-` and `_`; at most 63. Sweeps are called `<name>.1`, `<name>.2`, ...
        trainer: A Ray Train trainer (`TorchTrainer(...)`); or a function of the configuration that returns one; or a plain
            function of the configuration that calls `ray.train.report`, which is run inside the trial's own process.
        space: A `Space`, or a dictionary of parameters.
        objective: The metric that the sweep improves.
        searcher: Chooses configurations: `Random()`, `Grid()`, `TPE()`.
        scheduler: Ends trials that are not worth going on with: `FIFO()`, `ASHA(...)`.
        budget: How much may be spent.
        baseline: The configuration of trial 0000, which is never stopped early and against which `compare` shows every
            gain. Parameters that it leaves out come from the trainer's `train_loop_config`.
        retention: Which checkpoints stay.
        export: How a checkpoint becomes a model.
        seed: Proposals, decisions and trial seeds follow from it. In [0, 2**31).
        trial_seeds: `"derived"` gives each trial a seed of its own, `"same"` gives all trials the sweep's.
        isolation: `"warm"` runs trial after trial through the same worker processes; `"fresh"` starts new ones for each trial.
        reports: `"auto"` waits for the decision at each report, unless reports come faster than every 20 ms: then about every
            0.1 s, and always at a step at which the scheduler has something to say. `"lockstep"` waits at each, whatever it
            costs; `"coalesced"` waits about every 0.1 s. No report is dropped.
        reduce: Metric -> `"mean"`, `"sum"`, `"min"` or `"max"` of what all ranks report under that name. Other metrics are
            rank 0's.
        report_timeout_s: A trial that reports nothing for so many seconds hangs: its stacks are kept, its workers replaced,
            and it is tried once more. None waits forever. Counts from when the train loop begins.
        on_failure: Failure class -> `OnFailure(...)`, where something else is to follow than docs/failures.md says.
        alone_wait_s: A trial that ran out of memory is tried again alone: nothing new starts until the others have ended,
            for at most so many seconds. Then it starts beside them.
        recycle_after: Warm workers are replaced after so many trials; None for no limit.
        max_growth_mb: A warm worker whose memory has grown by more than this since its first trial is replaced; None for no
            limit.
    """

    name: str
    trainer: Any
    space: Space  # a mapping is taken too, and becomes one
    objective: Objective
    searcher: Searcher
    scheduler: Scheduler
    budget: Budget
    baseline: Mapping[str, Any] | None = None
    retention: Retention = field(default_factory=Retention)
    export: Export | None = None
    seed: int = 0
    trial_seeds: Literal["derived", "same"] = "derived"
    isolation: Literal["warm", "fresh"] = "warm"
    reports: Literal["auto", "lockstep", "coalesced"] = "auto"
    reduce: Mapping[str, Literal["mean", "sum", "min", "max"]] = field(default_factory=dict)
    report_timeout_s: float | None = None
    on_failure: Mapping[str, OnFailure] = field(default_factory=dict)
    alone_wait_s: float = 600.0
    recycle_after: int | None = None
    max_growth_mb: float | None = 2048.0

    def __post_init__(self) -> None:
        problems = [*self._own_problems(), *self._settle_space()]
        kinds = {"objective": Objective, "budget": Budget, "retention": Retention, "export": Export}
        for name, kind in kinds.items():
            part = getattr(self, name)
            if isinstance(part, kind):
                problems += part.problems()  # type: ignore[attr-defined]
            elif not (name == "export" and part is None):
                problems.append(f"{name} needs {kind.__name__}(...), got {part!r}.")
        for name, contract, example in (("searcher", Searcher, "TPE()"), ("scheduler", Scheduler, "ASHA()")):
            part = getattr(self, name)
            if isinstance(part, type) or not isinstance(part, contract):
                problems.append(f"{name} needs an instance such as {example}, got {part!r}.")
            elif hasattr(part, "problems"):
                problems += part.problems()
        if not problems:
            problems += self._baseline_problems()
            if hasattr(self.searcher, "space_problems"):
                problems += self.searcher.space_problems(self.space)
        if problems:
            raise InvalidExperimentError(f"Experiment {self.name!r}", problems)

    def trial_seed(self, number: int) -> int:
        """The seed of trial `number`, in [0, 2**31)."""
        return self.seed if self.trial_seeds == "same" else derive_seed(self.seed, "trial", number)

    def loop_defaults(self) -> Config:
        """The trainer's own `train_loop_config`; empty when the trainer is a function."""
        return dict(getattr(self.trainer, "train_loop_config", None) or {})

    def full_baseline(self) -> Config | None:
        """The baseline with what it leaves out filled in from the trainer's configuration, or None without a baseline."""
        if self.baseline is None:
            return None
        return self.space.complete({**self.loop_defaults(), **self.baseline})

    def last_step(self, config: Mapping[str, Any] | None = None) -> float | None:
        """The step at which a trial with `config` is complete; without `config`, the most that any trial can reach."""
        last = self.objective.last_step
        if isinstance(last, str):
            if config is not None and last in config:
                return config[last]
            if last in self.space.parameters:
                return self.space.parameters[last].largest()
            return self.loop_defaults().get(last)
        return last

    def _own_problems(self) -> list[str]:
        found = []
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name):
            found.append(f"name needs lower-case letters, digits, '-' or '_', at most 63, got {self.name!r}.")
        if not (callable(self.trainer) or hasattr(self.trainer, "fit")):
            found.append(
                "trainer needs a Ray Train trainer such as TorchTrainer(train, scaling_config=...), or a function of the "
                f"configuration, got {self.trainer!r}."
            )
        if not _is_int(self.seed) or not 0 <= self.seed < 2**31:
            found.append(f"seed needs an integer in [0, 2**31), got {self.seed!r}.")
        if self.trial_seeds not in ("derived", "same"):
            found.append(f"trial_seeds needs 'derived' or 'same', got {self.trial_seeds!r}.")
        if self.isolation not in ("warm", "fresh"):
            found.append(f"isolation needs 'warm' or 'fresh', got {self.isolation!r}.")
        if self.reports not in ("auto", "lockstep", "coalesced"):
            found.append(f"reports needs 'auto', 'lockstep' or 'coalesced', got {self.reports!r}.")
        found += self._reduce_problems()
        if self.report_timeout_s is not None and not (_is_number(self.report_timeout_s) and self.report_timeout_s > 0):
            found.append(f"report_timeout_s needs a time > 0 in seconds or None, got {self.report_timeout_s!r}.")
        found += failures.problems(self.on_failure)
        if not _is_number(self.alone_wait_s) or self.alone_wait_s < 0:
            found.append(f"alone_wait_s needs a time >= 0 in seconds, got {self.alone_wait_s!r}.")
        if self.recycle_after is not None and not (_is_int(self.recycle_after) and self.recycle_after >= 1):
            found.append(f"recycle_after needs a number of trials >= 1 or None, got {self.recycle_after!r}.")
        if self.max_growth_mb is not None and not (_is_number(self.max_growth_mb) and self.max_growth_mb > 0):
            found.append(f"max_growth_mb needs a size > 0 in MB or None, got {self.max_growth_mb!r}.")
        checkpoint_config = getattr(getattr(self.trainer, "run_config", None), "checkpoint_config", None)
        if checkpoint_config is not None and _says_retention(checkpoint_config):
            found.append(
                "RunConfig.checkpoint_config is not used in a sweep: say Experiment(retention=Retention(...)) instead."
            )
        return found

    def _reduce_problems(self) -> list[str]:
        if not isinstance(self.reduce, Mapping):
            return [f'reduce needs a dictionary such as {{"loss": "mean"}}, got {self.reduce!r}.']
        found = [
            f"reduce[{name!r}] needs one of {', '.join(map(repr, REDUCTIONS))}, got {how!r}."
            for name, how in self.reduce.items()
            if not isinstance(how, str) or how not in REDUCTIONS
        ]
        step = getattr(self.objective, "step", None)
        return found + [f"reduce cannot name the step {step!r}: all ranks are at the same one."] * (step in self.reduce)

    def _settle_space(self) -> list[str]:
        if isinstance(self.space, Space):
            return []
        try:
            object.__setattr__(self, "space", Space(self.space))
        except InvalidExperimentError as error:
            return list(error.problems)
        return []

    def _baseline_problems(self) -> list[str]:
        found = []
        last = self.objective.last_step
        if isinstance(last, str) and last not in self.space.parameters and not _is_factory(self.trainer):
            value = self.loop_defaults().get(last)
            if value is None or not (_is_number(value) and value > 0):
                where = "is missing" if value is None else f"is {value!r}"
                found.append(f"Objective's last_step names the configuration key {last!r}, which {where} in train_loop_config.")
        if self.baseline is not None:
            found += self.space.baseline_problems(self.baseline, self.loop_defaults())
        return found


def _says_retention(checkpoint_config: Any) -> bool:
    return any(getattr(checkpoint_config, name, None) is not None for name in ("num_to_keep", "checkpoint_score_attribute"))


def _is_factory(trainer: Any) -> bool:
    return callable(trainer) and not hasattr(trainer, "fit")


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
