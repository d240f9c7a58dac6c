"""A whole sweep in this process, in milliseconds, on recorded or made-up curves.

It knows a searcher and a scheduler by their protocols alone, so it runs any of them. Time is virtual: a trial takes one unit
for each unit of its steps, and `concurrent` trials run side by side.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator

from tunelab.core.experiment import Objective
from tunelab.core.protocols import Judge, Scheduler, Searcher
from tunelab.core.space import Space
from tunelab.core.trial import Attempt, Config, Decided, Report, Status, Stop, Trial, derive_seed
from tunelab.errors import Infeasible

Curve = Callable[[Config], Iterable[tuple[float, float]]]


def simulate(
    space: Space,
    objective: Objective,
    searcher: Searcher,
    scheduler: Scheduler,
    curve: Curve,
    trials: int,
    seed: int,
    concurrent: int = 1,
) -> list[Trial]:
    """The trials of a simulated sweep, in order of number.

    Args:
        space: What is searched.
        objective: Its `last_step`, if a number or the name of a parameter, is where trials are complete.
        searcher: Proposes; the sweep ends early when it has nothing left.
        scheduler: Decides on each report.
        curve: `curve(config)` yields (step, objective) with increasing steps. It is asked for no step past a stop, and may
            raise `Infeasible`. A value that is not finite fails the trial, as divergence does in a sweep.
        trials: How many to propose, at least 1. Infeasible ones count here.
        seed: The sweep's seed.
        concurrent: How many trials run at a time, at least 1. At equal times the trial with the smaller number goes first.
    """
    judge = scheduler.judge(objective, _last_step(space, objective))
    proposed: list[Trial] = []
    due: list[tuple[float, int, Report]] = []  # reports under way: when they are made, by which trial
    points: dict[int, Iterator[tuple[float, float]]] = {}
    now, exhausted = 0.0, False
    while True:
        while not exhausted and len(proposed) < trials and len(due) < concurrent:
            number = len(proposed)
            config = searcher.propose(number, space=space, objective=objective, history=tuple(proposed), seed=seed)
            if config is None:
                exhausted = True
                break
            trial = Trial(number, config, derive_seed(seed, "trial", number), origin=searcher.name, proposed_at=now)
            trial.status, trial.attempts = Status.RUNNING, [Attempt(1, started_at=now)]
            proposed.append(trial)
            points[number] = _points(curve, config, _last_step(space, objective, config))
            _go_on(trial, points[number], now, due)
        if not due:
            if exhausted or len(proposed) >= trials:
                return proposed
            continue  # all trials so far ended without a report
        now, number, report = heapq.heappop(due)
        trial = proposed[number]
        trial.reports.append(report)
        stop = _decide(trial, report, judge)
        if not math.isfinite(report.value):
            _end(trial, Status.FAILED, f"diverged: {report.value} at step {report.step:g}", now)
        elif stop is not None:
            _end(trial, Status.STOPPED, stop.reason, now)
        else:
            _go_on(trial, points[number], now, due)


def _go_on(trial: Trial, points: Iterator[tuple[float, float]], now: float, due: list[tuple[float, int, Report]]) -> None:
    """Lets the trial work on its next report, or end."""
    try:
        step, value = next(points)
    except StopIteration:
        if trial.reports:
            _end(trial, Status.COMPLETED, "", now)
        else:
            _end(trial, Status.FAILED, "no report", now)
    except Infeasible as error:
        _end(trial, Status.INFEASIBLE, str(error), now)
    else:
        at = now + step - (trial.reports[-1].step if trial.reports else 0.0)
        heapq.heappush(due, (at, trial.number, Report(trial.number, 1, step, value, at=at)))


def _decide(trial: Trial, report: Report, judge: Judge) -> Stop | None:
    """What the scheduler says of the trial itself; decisions about others do not occur in the built-in schedulers."""
    stop = None
    for decision in judge.decide(report):
        if decision.trial == trial.number:
            action = "stop" if isinstance(decision, Stop) else "continue"
            trial.decisions.append(Decided(report.step, action, decision.reason, report.at))
            stop = decision if isinstance(decision, Stop) else stop
    return stop


def _end(trial: Trial, status: Status, reason: str, now: float) -> None:
    trial.status, trial.reason, trial.ended_at = status, reason, now
    trial.attempts[-1].outcome, trial.attempts[-1].ended_at = status.value, now


def _points(curve: Curve, config: Config, last_step: float | None) -> Iterator[tuple[float, float]]:
    for step, value in curve(dict(config)):
        if last_step is not None and step > last_step:
            return
        yield step, value


def _last_step(space: Space, objective: Objective, config: Config | None = None) -> float | None:
    """Where a trial with `config` is complete; without it, the most that any can reach."""
    last = objective.last_step
    if not isinstance(last, str):
        return last
    if config is not None:
        return config.get(last)
    return space.parameters[last].largest() if last in space.parameters else None
