"""The sweep's loop without the cluster: what to launch, what follows from a report, what follows from an end.

Everything that happens is journalled before it is acted on, and the state is the journal's. So the conductor of a resumed
sweep, built from the same journal, goes on exactly as this one would have.
"""

from __future__ import annotations

import difflib
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from tunelab.core.experiment import Budget, Experiment
from tunelab.core.failures import RULES, Failure, may_retry
from tunelab.core.retain import Retainer
from tunelab.core.trial import Config, Decision, Report, Status, Stop, Trial
from tunelab.journal import Event, Journal, SweepState, events

SAME_ERROR_LIMIT = 3
FAR_ENOUGH = "as far as was asked for"  # the reason of a session that `Plan.until` ended


@dataclass(frozen=True)
class Launch:
    """One attempt, ready to be handed to the cluster."""

    trial: int
    attempt: int
    config: Config
    seed: int
    checkpoint: str | None  # relative to the sweep's storage
    from_step: float | None


class Conductor:
    """Runs one sweep, or goes on with it.

    Args:
        experiment: What is swept.
        journal: Where everything is written, holding `sweep_created` and whatever happened since.
        budget: The budget in force; its `trials` and `time_s` are totals over all sessions.
        max_failures: The user's retries for exceptions in the train loop.
        delete: Removes the checkpoint with this relative path; called after its deletion is journalled.
        notify: Called with the state and each new event.
        say: Shows a sentence to the user.
        clock: Seconds since the epoch.
    """

    def __init__(
        self,
        experiment: Experiment,
        journal: Journal,
        *,
        budget: Budget,
        max_failures: int = 0,
        delete: Callable[[str], None] = lambda checkpoint: None,
        notify: Callable[[SweepState, Event], None] = lambda state, event: None,
        say: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.experiment, self.budget = experiment, budget
        self.state = SweepState()
        self._journal, self._max_failures = journal, max_failures
        self._delete, self._notify, self.say, self._clock = delete, notify, say, clock
        self._judge = experiment.scheduler.judge(experiment.objective, experiment.last_step())
        self._retainer = Retainer(experiment.retention, experiment.objective.mode)
        self._overdue: dict[int, Stop] = {}  # stops of other trials than the one that reported
        self._undecided: dict[int | None, Decision | None] = {}  # what a killed driver had not journalled yet
        self.until: dict[int, float] = {}  # trial -> step at which the judge next has something to say of it
        self._afterwards: list[Callable[[], None]] | None = None  # what waits until the events before it are durable
        self._keys: dict[int, set[str]] = {}  # keys reported by trials that have not reported the objective yet
        self._stop: tuple[str, str] | None = None  # (outcome, reason) once the sweep is to end early
        self._exhausted = False
        self._again: deque[int] = deque()
        self._deadline = math.inf
        for event in journal.events():
            self.state.apply(event)
            if event.kind == "reported":
                assert event.trial is not None
                self._undecided[event.trial] = self._judge_latest(self.state.trials[event.trial])
            elif event.kind == "decided":
                self._undecided.pop(event.trial, None)

    # ---- the session ------------------------------------------------------------------------------------------------

    def begin(self, session: Event) -> None:
        """Start a session: settle what a killed driver left undecided and queue what can go on."""
        if self.budget.time_s is not None:
            self._deadline = self._clock() + self.budget.time_s - self.state.elapsed_s
        self._record(session)
        for trial in self.state.unfinished():
            self._settle(trial)
        for trial in list(self.state.trials.values()):
            self._retain(trial)

    def _settle(self, trial: Trial) -> None:
        """Carry out what was decided, or followed, before a driver was killed; else the trial goes on."""
        bad = trial.last and diverged(trial.last)
        if trial.attempts and trial.attempts[-1].outcome not in (None, "interrupted"):
            self._conclude(trial)
        elif bad:
            self._finish(trial, RULES[Failure.DIVERGED].ends_as, f"{Failure.DIVERGED.value}: {bad}")
        elif self._journal_decision(trial, self._undecided.get(trial.number)) or (
            trial.decisions and trial.decisions[-1].action == "stop"
        ):
            self._finish(trial, Status.STOPPED, trial.decisions[-1].reason)
        else:
            self._again.append(trial.number)

    def end(self) -> str:
        """End the session and return its outcome: `finished`, `interrupted`, `out of time` or `aborted`."""
        for trial in self.state.unfinished():
            if trial.status is Status.RUNNING:
                self._end_attempt(trial, "interrupted", message=self._stop[1] if self._stop else "the session ended")
        done = not self.state.unfinished() and self.state.counted() >= self.budget.trials
        outcome, reason = ("finished", self._why_finished()) if done or self._stop is None else self._stop
        self._record(events.session_ended(outcome=outcome, reason=reason))
        return outcome

    def stop(self, outcome: str, reason: str) -> bool:
        """End the sweep early: running trials stop at their next report, nothing new starts. Returns whether this is new."""
        first, self._stop = self._stop is None, self._stop or (outcome, reason)
        return first

    @property
    def stopping(self) -> bool:
        """Whether the sweep is to end early: asked for, or out of time."""
        if self._stop is None and self._clock() >= self._deadline:
            self.stop("out of time", f"the time budget of {self.budget.time_s:g} s is used up")
        return self._stop is not None

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left to launch unless a running trial fails or turns out infeasible."""
        if self.stopping:
            return True
        return not self._again and (self._exhausted or self.state.counted() >= self.budget.trials)

    # ---- launching --------------------------------------------------------------------------------------------------

    def next_launch(self) -> Launch | None:
        """The next attempt to start, journalled; None when there is none at the moment.

        Trials that can go on come before new ones. Call it only when a slot is free: the searcher sees the trials that
        have ended by now.
        """
        if self.exhausted:
            return None
        trial = self.state.trials[self._again.popleft()] if self._again else self._propose()
        if trial is None:
            return None
        latest = trial.latest_checkpoint()
        checkpoint, from_step = (latest.checkpoint, latest.step) if latest else (None, None)
        self._record(events.started(trial.number, attempt=trial.attempt + 1, checkpoint=checkpoint, from_step=from_step))
        return Launch(trial.number, trial.attempt, dict(trial.config), trial.seed, checkpoint, from_step)

    def _propose(self) -> Trial | None:
        number, experiment = len(self.state.trials), self.experiment
        history = list(self.state.trials.values())
        baseline = experiment.full_baseline() if number == 0 else None
        if baseline is not None:
            config, origin, note = baseline, "baseline", ""
        else:
            proposal = experiment.searcher.propose(
                number, space=experiment.space, objective=experiment.objective, history=history, seed=experiment.seed
            )
            if proposal is None:
                self._exhausted = True
                return None
            ended = sum(trial.status.ended for trial in history)
            config, origin, note = proposal, experiment.searcher.name, f"from {ended} ended trials"
        self._record(events.proposed(number, config=config, seed=experiment.trial_seed(number), origin=origin, note=note))
        return self.state.trials[number]

    # ---- reports ----------------------------------------------------------------------------------------------------

    def reported(self, number: int, metrics: Mapping[str, Any], checkpoint: str | None) -> bool:
        """Take a report and return whether the trial goes on.

        Args:
            number: The trial.
            metrics: What rank 0 reported.
            checkpoint: Its checkpoint relative to the sweep's storage, or None.
        """
        trial = self.state.trials[number]
        objective = self.experiment.objective
        said = {name: metrics.get(name) for name in (objective.metric, objective.step) if name is not None}
        if None in said.values():
            return self._incomplete(trial, metrics)
        wrong_values = [f"{name} is {value!r}" for name, value in said.items() if not _is_usable(value, name == objective.step)]
        if wrong_values:
            told = f"{' and '.join(wrong_values)}: the objective is a number, its step a finite one"
            self._fail(trial, Failure.BAD_REPORT, told)
            return False
        step = self._step(trial, metrics)
        if wrong := self._wrong_order(trial, step):
            self._fail(trial, *wrong)
            return False
        value = float(metrics[objective.metric])
        attempt = trial.attempt
        self._record(events.reported(number, attempt=attempt, step=step, value=value, metrics=metrics, checkpoint=checkpoint))
        decision = self._judge_latest(trial)
        bad = diverged(trial.reports[-1])
        if bad is not None:
            self._fail(trial, Failure.DIVERGED, f"{bad} at {objective.step or 'step'} {step:g}")
        elif self._journal_decision(trial, decision) or self._journal_decision(trial, self._overdue.pop(number, None)):
            self._end_attempt(trial, "stopped", message=trial.decisions[-1].reason)
            self._conclude(trial)
        elif self.stopping:
            self.interrupt(number)
        self._retain(trial)
        return trial.status is Status.RUNNING

    def _wrong_order(self, trial: Trial, step: float) -> tuple[Failure, str] | None:
        """What is wrong with a step that does not come after the attempt's start and its reports so far."""
        attempt, axis = trial.attempts[-1], self.experiment.objective.step or "step"
        if self._reported_in(trial, attempt.number):
            last = trial.reports[-1].step
            if step <= last:
                return Failure.BAD_REPORT, f"{axis} {step:g} was reported after {axis} {last:g}: it has to increase"
        elif attempt.from_step is not None and step <= attempt.from_step:
            return Failure.RESTART_IGNORED, (
                f"attempt {attempt.number} was given {axis} {attempt.from_step:g}'s checkpoint and reported {axis} {step:g}: "
                "the loop has to continue from ray.train.get_checkpoint()"
            )
        return None

    @contextmanager
    def together(self) -> Iterator[None]:
        """Make several reports durable with one commit. Nothing follows from them before that: no answer, no deletion."""
        self._afterwards = []
        try:
            with self._journal.together():
                yield
        finally:
            afterwards, self._afterwards = self._afterwards, None
        for act in afterwards:
            act()

    def _once_durable(self, act: Callable[[], None]) -> None:
        if self._afterwards is None:
            act()
        else:
            self._afterwards.append(act)

    def heartbeat(self, number: int) -> bool:
        """Whether a trial that has nothing to report goes on: not when it is to stop without waiting for a report."""
        trial = self.state.trials[number]
        if trial.status is Status.RUNNING and trial.reports and self._journal_decision(trial, self._overdue.pop(number, None)):
            self._end_attempt(trial, "stopped", message=trial.decisions[-1].reason)
            self._conclude(trial)
        return trial.status is Status.RUNNING

    def interrupt(self, number: int) -> None:
        """Journal that a running trial is interrupted between two reports; it can go on from its latest checkpoint."""
        trial = self.state.trials[number]
        if trial.status is Status.RUNNING:
            self._end_attempt(trial, "interrupted", message=self._stop[1] if self._stop else "")

    def _step(self, trial: Trial, metrics: Mapping[str, Any]) -> float:
        """The declared step; without one, the trial's reports are counted, going on from the checkpoint's."""
        axis = self.experiment.objective.step
        if axis is not None:
            step = float(metrics[axis])
            return int(step) if step.is_integer() else step
        attempt = trial.attempts[-1]
        if self._reported_in(trial, attempt.number):
            return trial.reports[-1].step + 1
        return (attempt.from_step or 0) + 1

    @staticmethod
    def _reported_in(trial: Trial, attempt: int) -> bool:
        return bool(trial.reports) and trial.reports[-1].attempt == attempt

    def _incomplete(self, trial: Trial, metrics: Mapping[str, Any]) -> bool:
        """A report without the objective or its step says nothing to decide on; its keys are kept for the message."""
        objective = self.experiment.objective
        known = self._keys.setdefault(trial.number, set())
        if not known:
            missing = [name for name in (objective.metric, objective.step) if name is not None and metrics.get(name) is None]
            self.say(
                f"{trial.id} reported {', '.join(sorted(metrics)) or 'nothing'} without {' and '.join(missing)}: "
                "such reports are not recorded"
            )
        known.update(metrics)
        if self.stopping:
            self.interrupt(trial.number)
        return trial.status is Status.RUNNING

    def _journal_decision(self, trial: Trial, decision: Decision | None) -> bool:
        """Journal what was decided on the trial's latest report, and return whether that ends the trial."""
        if decision is None or not decision.reason:
            return False
        stops = isinstance(decision, Stop) and not self._shielded(trial)
        note = " (the baseline is never stopped)" if isinstance(decision, Stop) and not stops else ""
        action = "stop" if stops else "continue"
        step = trial.reports[-1].step
        self._record(events.decided(trial.number, step=step, action=action, reason=decision.reason + note))
        return stops

    def _judge_latest(self, trial: Trial) -> Decision | None:
        """What the judge says of the trial's latest report. Called in the journal's order, live and when it is replayed."""
        report = trial.reports[-1]
        if diverged(report) is not None:
            report = Report(report.trial, report.attempt, report.step, math.nan, report.metrics, report.checkpoint, report.at)
        own = None
        for decision in self._judge.decide(report):
            if decision.trial == trial.number:
                own = decision
                self.until[trial.number] = math.inf if isinstance(own, Stop) or own.until is None else own.until
            elif isinstance(decision, Stop):
                self._overdue[decision.trial] = decision
        return own

    def _shielded(self, trial: Trial) -> bool:
        return trial.origin == "baseline"

    # ---- ends -------------------------------------------------------------------------------------------------------

    def completed(self, number: int) -> None:
        """The train loop returned on every rank."""
        trial = self.state.trials[number]
        if trial.status is not Status.RUNNING:
            return
        if not trial.reports:
            self._fail(trial, Failure.NO_REPORT, f"the train loop returned without {self._not_reported(number)}")
            if not any(other.reports for other in self.state.trials.values()):
                self.stop("aborted", f"{trial.id}: {trial.reason}")
            return
        self._end_attempt(trial, "completed")
        self._conclude(trial)

    def _not_reported(self, number: int) -> str:
        """`reporting 'msee'. Did you mean 'mse'? It reported epoch, mse`: of a trial without a report that counts."""
        objective, keys = self.experiment.objective, sorted(self._keys.get(number, ()))
        wanted = [name for name in (objective.metric, objective.step) if name is not None]
        missing = [name for name in wanted if name not in keys]
        others = [key for key in keys if key not in wanted]
        close = [match for name in missing for match in difflib.get_close_matches(name, others, n=1)]
        what = "reporting" if missing else "a report with a value of"
        hint = f" Did you mean {' and '.join(map(repr, close))}?" if close else ""
        return f"{what} {' and '.join(map(repr, missing or wanted))}.{hint} It reported {', '.join(keys) or 'nothing'}"

    def failed(self, number: int, failure: Failure, message: str, details: str = "") -> None:
        """The attempt failed: retried as `core/failures.py` says, else the trial ends."""
        trial = self.state.trials[number]
        if trial.status is Status.RUNNING:
            self._fail(trial, failure, message, details)
            self._break_circuit()

    def _fail(self, trial: Trial, failure: Failure, message: str, details: str = "") -> None:
        outcome = "infeasible" if failure is Failure.INFEASIBLE else "failed"
        self._end_attempt(trial, outcome, failure=failure.value, message=message, details=details)
        self._conclude(trial)

    def _conclude(self, trial: Trial) -> None:
        """What follows from how the latest attempt ended: the trial is over, or is tried again."""
        attempt = trial.attempts[-1]
        if attempt.failure is None:
            self._finish(trial, Status(attempt.outcome), attempt.message)
        elif may_retry(failure := Failure(attempt.failure), trial.attempts, self._max_failures):
            self._again.append(trial.number)
        else:
            self._finish(trial, RULES[failure].ends_as, f"{failure.value}: {attempt.message}")

    def _break_circuit(self) -> None:
        """The same error in each of the first trials will be in every later one."""
        ended = [trial for trial in self.state.trials.values() if trial.status.ended]
        errors = {(trial.attempts[-1].failure, trial.attempts[-1].message) for trial in ended if trial.attempts}
        if len(ended) >= SAME_ERROR_LIMIT and len(errors) == 1 and all(trial.status is Status.FAILED for trial in ended):
            self.stop("aborted", f"the first {len(ended)} trials failed with the same error: {errors.pop()[1]}")

    def _end_attempt(self, trial: Trial, outcome: str, **fields: Any) -> None:
        self._record(events.attempt_ended(trial.number, attempt=trial.attempt, outcome=outcome, **fields))

    def _finish(self, trial: Trial, status: Status, reason: str) -> None:
        self._record(events.finished(trial.number, status=status.value, reason=reason))
        self._retain(trial)

    def _retain(self, trial: Trial) -> None:
        for number, checkpoint in self._retainer.to_delete(trial):
            self._record(events.checkpoint_deleted(number, checkpoint=checkpoint))
            self._once_durable(partial(self._delete, checkpoint))

    def _why_finished(self) -> str:
        if self.state.counted() >= self.budget.trials:
            return f"all {self.budget.trials} trials have ended"
        return "the searcher has nothing left to propose"

    def _record(self, event: Event) -> None:
        stored = self._journal.append(event)
        self.state.apply(stored)
        self._once_durable(partial(self._notify, self.state, stored))


def _is_usable(value: Any, is_step: bool) -> bool:
    """Whether a reported value can be the objective, which may be NaN or infinite, or its step, which may not."""
    if isinstance(value, float):
        return math.isfinite(value) or not is_step
    return isinstance(value, int) and abs(value) < 2**1000


def diverged(report: Report) -> str | None:
    """What makes a report diverge: a NaN metric (accuracy alone would hide it) or an infinite objective; None otherwise."""
    for name, metric in report.metrics.items():
        if isinstance(metric, float) and math.isnan(metric):
            return f"{name} is NaN"
    return None if math.isfinite(report.value) else f"the objective is {report.value}"
