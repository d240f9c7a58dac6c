"""Running a trial once more: with the same seed, to see whether it comes out the same, or with others, to see the noise.

A rerun is a sweep of its own, of an experiment derived from the original: one configuration, no early stopping. So it is never
counted in the original's budget, never told to its searcher, and never its best.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from tunelab.core.experiment import Budget, Experiment, Objective
from tunelab.core.space import Choice, Space
from tunelab.core.trial import Config, Report, Status, Trial, derive_seed, rank_key
from tunelab.engine.code import SNAPSHOT, Code, code_of, tracking_of
from tunelab.engine.sweeping import Outcome, Plan, Silence, Watcher, start
from tunelab.errors import BadInputError
from tunelab.journal import SweepState
from tunelab.journal.home import Home, SweepFolder
from tunelab.schedulers.fifo import FIFO

TYPICAL = 0.95  # how many of further runs the interval would hold


@dataclass(frozen=True)
class Again:
    """A searcher that proposes one configuration, as often as it is asked."""

    config: Mapping[str, Any]

    name: ClassVar[str] = "rerun"

    def propose(self, number: int, *, space: Space, objective: Objective, history: Sequence[Trial], seed: int) -> Config:
        return dict(self.config)


def described(state: SweepState, number: int, seeds: int | None, *, at_work: bool = True) -> dict[str, Any]:
    """A rerun as JSON, as the new sweep keeps it among its overrides.

    Args:
        state: The original sweep's.
        number: The trial.
        seeds: How many other seeds, or None for the trial's own.
        at_work: Whether a driver runs the sweep. Without one, a trial that seems to run was interrupted.

    Raises:
        BadInputError: The trial is not over, or there is nothing to compare with.
    """
    trial = state.trials[number]
    if seeds is not None and seeds < 1:
        raise BadInputError(f"--seeds needs a number >= 1, got {seeds}.")
    if (trial.status is Status.RUNNING and at_work) or not trial.attempts:
        raise BadInputError(f"{state.sweep}/{trial.id} has not ended yet ({trial.status.value}): rerun it when it has.")
    return {"of": f"{state.sweep}/{trial.id}", "config": trial.config, "seed": trial.seed, "seeds": seeds}


def derive(experiment: Experiment, rerun: Mapping[str, Any]) -> Experiment:
    """The experiment whose sweep is the rerun that `described` describes."""
    suffix = f"-{rerun['of'].rpartition('.')[2].replace('/', '-')}-rerun"  # digits-mlp.1/0007: -1-0007-rerun
    seeds = rerun["seeds"]
    return replace(
        experiment,
        name=experiment.name[: 63 - len(suffix)] + suffix,
        space=Space({name: Choice([value]) for name, value in rerun["config"].items()}),
        searcher=Again(rerun["config"]),
        scheduler=FIFO(),
        baseline=None,
        budget=Budget(trials=seeds or 1, concurrent=experiment.budget.concurrent),
        seed=rerun["seed"] if seeds is None else derive_seed(rerun["seed"], "rerun"),
        trial_seeds="same" if seeds is None else "derived",
    )


def plan(
    folder: SweepFolder,
    state: SweepState,
    number: int,
    *,
    seeds: int | None = None,
    code: Literal["current", "snapshot"] | None = None,
    address: str = "local",
    tracking: str | None = None,
    experiment: Experiment | None = None,
    root: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    watcher: Watcher | None = None,
) -> Plan:
    """The sweep that runs a trial once more.

    Args:
        folder: The original sweep's.
        state: The original sweep's.
        number: The trial.
        seeds: How many other seeds to run it with, or None for its own.
        code: For a sweep whose file has changed since: `current` or `snapshot`.
        address: Ray cluster.
        tracking: As `--tracking` takes it; None tracks where the original did.
        experiment: What the original runs, for one that was started in Python.
        root: The project's root, for one that was started in Python.
        environ: The environment.
        watcher: Shows the rerun.

    Raises:
        BadInputError: It cannot be run again like this; nothing has been started.
    """
    rerun = described(state, number, seeds, at_work=folder.is_running())
    if experiment is None or (folder.path / SNAPSHOT).is_file():
        found = code_of(folder, state, code, f"rerun({number})" if seeds is None else f"rerun({number}, seeds={seeds})")
        text = found.text if found.text is not None else (folder.path / SNAPSHOT).read_text()
        found = replace(found, text=text)
    else:
        found = Code(experiment, (root or Path.cwd()).resolve(), None, None, None, None, {})
    objective, before = found.experiment.objective, state.experiment["objective"]
    if (objective.metric, objective.step) != (before["metric"], before.get("step")):
        raise BadInputError(
            f"{state.sweep} was measured by {before['metric']} at {before.get('step')}, the experiment now by "
            f"{objective.metric} at {objective.step}: there would be nothing to compare. Rerun its own copy: --code snapshot"
        )
    home = folder.path.absolute().parent
    overrides = {**found.overrides, "rerun": rerun}
    return Plan(
        **{**vars(found), "experiment": derive(found.experiment, rerun), "overrides": overrides},
        home=Home(home),
        tracking=tracking_of(state, tracking, home, found.root, environ),
        address=address,
        storage=state.facts.get("storage"),
        watcher=watcher or Silence(),
    )


# ---- what came out ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Steps:
    """Two runs compared at the steps that both reported.

    Args:
        common: How many steps both reported.
        last: The last of them, or None without one.
        equal_until: The step up to which all values are equal to the bit, or None when the first one differs.
        worst: (step, value then, value now) of the largest difference, or None when there is none.
    """

    common: int
    last: float | None
    equal_until: float | None
    worst: tuple[float, float, float] | None

    @property
    def equal(self) -> bool:
        """Whether there are common steps and the objective is equal to the bit at all of them."""
        return self.common > 0 and self.worst is None


@dataclass(frozen=True)
class Spread:
    """A trial's value among those of the same configuration with other seeds.

    Args:
        until: The last step that counts: the original's last one, or None when it has none.
        value: The original's best value up to there, or None.
        values: The best value of each rerun up to there, by trial number; None for one without a finite value.
    """

    until: float | None
    value: float | None
    values: dict[int, float | None]

    @property
    def finite(self) -> list[float]:
        return [value for value in self.values.values() if value is not None]

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.finite) if self.finite else None

    @property
    def sd(self) -> float | None:
        """The sample standard deviation, or None with fewer than two values."""
        return statistics.stdev(self.finite) if len(self.finite) > 1 else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Where 95 % of further runs would lie if they were normally distributed (prediction interval by Student's t)."""
        n, mean, sd = len(self.finite), self.mean, self.sd
        if mean is None or sd is None:
            return None
        from scipy.stats import t

        half = float(t.ppf((1 + TYPICAL) / 2, n - 1)) * sd * math.sqrt(1 + 1 / n)
        return mean - half, mean + half

    @property
    def typical(self) -> bool | None:
        """Whether the original's value lies in the interval, or None where that cannot be said."""
        interval = self.interval
        return None if interval is None or self.value is None else interval[0] <= self.value <= interval[1]


@dataclass(frozen=True)
class Rerun:
    """How a rerun came out.

    Args:
        of: The original trial, `digits-mlp.1/0007`.
        folder: The rerun's sweep's.
        state: The rerun's sweep's.
        outcome: How its session ended.
        original: The original trial as it was.
        steps: With the trial's own seed: the comparison step by step.
        spread: With other seeds: the original among them.
    """

    of: str
    folder: SweepFolder
    state: SweepState
    outcome: str
    original: Trial = field(repr=False)
    steps: Steps | None = None
    spread: Spread | None = None


def run(made: Plan, original: Trial) -> tuple[Outcome, Rerun]:
    """Run what `plan` made, and compare."""
    done = start(made)
    return done, judge(done.folder, done.state, done.outcome, original)


def judge(folder: SweepFolder, state: SweepState, outcome: str, original: Trial) -> Rerun:
    """Compare a rerun with the original."""
    rerun = state.facts["overrides"]["rerun"]
    trials = list(state.trials.values())
    if rerun["seeds"] is None:
        steps = step_by_step(original.reports, trials[0].reports if trials else [])
        return Rerun(rerun["of"], folder, state, outcome, original, steps=steps)
    until = original.last.step if original.last else None
    values = {trial.number: best_until(trial.reports, until, state.mode) for trial in trials}
    spread = Spread(until, best_until(original.reports, until, state.mode), values)
    return Rerun(rerun["of"], folder, state, outcome, original, spread=spread)


def step_by_step(then: Iterable[Report], now: Iterable[Report]) -> Steps:
    """Compare the objective at the steps that both have. NaN equals NaN; one beside a number is the largest difference."""
    values = {report.step: report.value for report in now}
    both = [(report.step, report.value, values[report.step]) for report in then if report.step in values]
    differ = [entry for entry in both if not _same(entry[1], entry[2])]
    first = differ[0][0] if differ else math.inf
    until = [step for step, _, _ in both if step < first]
    worst = max(differ, key=lambda entry: _distance(entry[1], entry[2]), default=None)
    return Steps(len(both), both[-1][0] if both else None, until[-1] if until else None, worst)


def best_until(reports: Iterable[Report], step: float | None, mode: str) -> float | None:
    """The best finite value up to `step`, or None without one. Whether a checkpoint was kept does not matter here."""
    values = [report.value for report in reports if (step is None or report.step <= step) and math.isfinite(report.value)]
    return min(values, key=lambda value: rank_key(value, mode), default=None)


def _same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


def _distance(a: float, b: float) -> float:
    difference = abs(a - b)
    return math.inf if math.isnan(difference) else difference
