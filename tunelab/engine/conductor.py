"""The sweep's loop without the cluster: what to launch, what follows from a report, what follows from an end.

Everything that happens is journalled before it is acted on, and the state is the journal's. So the conductor of a resumed
sweep, built from the same journal, goes on exactly as this one would have.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from tunelab.core.experiment import Budget, Experiment
from tunelab.core.failures import Breaker, Failure, has_to_be_alone, may_retry, rules
from tunelab.core.retain import Retainer
from tunelab.core.trial import Config, Decision, Status, Stop, Trial, measured
from tunelab.engine.lineup import Lineup
from tunelab.engine.reports import Reader, Wrong, diverged, goes_on_from, has_diverged, last_sound
from tunelab.journal import Event, Journal, SweepState, events

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
    alone: bool = False  # whether nothing else runs meanwhile


class Conductor:
    """Runs one sweep, or goes on with it.

    Args:
        experiment: What is swept.
        journal: Where everything is written, holding `sweep_created` and whatever happened since.
        budget: The budget in force; its `trials` and `time_s` are totals over all sessions.
        max_failures: The user's retries for exceptions in the train loop.
        delete: Removes the checkpoint with this relative path; called after its deletion is journalled.
        measure: Number of files and bytes of the checkpoint with this relative path, or None where that is not known.
        torn: (trial, checkpoint, what is wrong) of each checkpoint that the journal refers to and that is not whole.
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
        delete: Callable[[str], object] = lambda checkpoint: None,
        measure: Callable[[str], Sequence[int] | None] = lambda checkpoint: None,
        torn: Callable[[SweepState], Iterable[tuple[int, str, str]]] = lambda state: (),
        notify: Callable[[SweepState, Event], None] = lambda state, event: None,
        say: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.experiment, self.budget = experiment, budget
        self.state = SweepState()
        self._journal, self._rules, self._breaker = journal, rules(experiment.on_failure, max_failures), Breaker()
        self._delete, self._notify, self.say, self._clock = delete, notify, say, clock
        self._measure, self._torn = measure, torn
        self._judge = experiment.scheduler.judge(experiment.objective, experiment.last_step())
        self._retainer = Retainer(experiment.retention, experiment.objective.mode)
        self._overdue: dict[int, Stop] = {}  # stops of other trials than the one that reported
        self._undecided: dict[int | None, Decision | None] = {}  # what a killed driver had not journalled yet
        self.until: dict[int, float] = {}  # trial -> step at which the judge next has something to say of it
        self._afterwards: list[Callable[[], object]] | None = None  # what waits until the events before it are durable
        self._reader = Reader(experiment.objective, say)
        self._stop: tuple[str, str] | None = None  # (outcome, reason) once the sweep is to end early
        self._exhausted = False
        self._again = Lineup(experiment.alone_wait_s, clock)
        self._preempted: set[int] = set()  # running trials whose node is about to be taken away
        self._outside: set[int] = set()  # trials that an amended space does not contain: the searcher is not told of them
        self._deadline = math.inf
        for event in journal.events():
            self.state.apply(event)
            if event.kind == "reported":
                assert event.trial is not None
                self._undecided[event.trial] = self._judge_latest(self.state.trials[event.trial])
            elif event.kind in ("decided", "reopened"):
                self._undecided.pop(event.trial, None)
            elif event.kind == "finished":
                assert event.trial is not None
                self._breaker.ended(self.state.trials[event.trial])
            if event.kind == "reopened":
                self._breaker.reopened()

    # ---- the session ------------------------------------------------------------------------------------------------

    def begin(self, session: Event, *, amendment: Event | None = None, reopen: Sequence[int] = ()) -> None:
        """Start a session: settle what a killed driver left undecided and queue what can go on.

        Args:
            session: `session_started`.
            amendment: `amended`, where the experiment differs from the one of the session before.
            reopen: Failed or infeasible trials to try again.
        """
        if self.budget.time_s is not None:
            self._deadline = self._clock() + self.budget.time_s - self.state.elapsed_s
        if amendment is not None:
            self._record(amendment)
        self._record(session)
        if any(change.forced for change in self.state.amendments):
            trials, space = self.state.trials.values(), self.experiment.space
            self._outside = {trial.number for trial in trials if not space.contains(trial.config)}
        self._pass_over_torn()
        for number in reopen:
            if self.state.trials[number].status in (Status.FAILED, Status.INFEASIBLE):  # another session may have come between
                self._reopen(self.state.trials[number])
        for trial in self.state.unfinished():
            self._settle(trial)
        for trial in list(self.state.trials.values()):
            self._retain(trial)

    def _pass_over_torn(self) -> None:
        """Strike off checkpoints that a machine's crash has torn, before any other is deleted in their favour."""
        for number, checkpoint, wrong in list(self._torn(self.state)):
            self._record(events.checkpoint_deleted(number, checkpoint=checkpoint, by="check"))
            trial = self.state.trials[number]
            left = trial.latest_checkpoint()
            axis = self.experiment.objective.step or "step"
            instead = f"the one of {axis} {left.step:g} counts instead" if left else "the trial has no other"
            self.say(f"{trial.id}: its checkpoint {checkpoint.rpartition('/')[2]} is not whole ({wrong}); {instead}")

    def _reopen(self, trial: Trial) -> None:
        """Take a trial's end back. It stands where it last reported something that had not diverged."""
        stands = last_sound(trial)
        self._record(events.reopened(trial.number, upto=stands.step if stands else None, reason="to be tried again"))
        self._breaker.reopened()
        self._undecided.pop(trial.number, None)
        self._overdue.pop(trial.number, None)

    def _settle(self, trial: Trial) -> None:
        """Carry out what was decided, or followed, before a driver was killed; else the trial goes on."""
        bad, rule = self._has_diverged(trial), self._rules[Failure.DIVERGED]
        if trial.reopened and trial.reopened[-1] == trial.attempt:
            self._queue(trial)
        elif trial.attempts and trial.attempts[-1].outcome not in (None, "interrupted"):
            self._conclude(trial)
        elif bad and may_retry(Failure.DIVERGED, trial.counted_attempts, rule):
            self._queue(trial)
        elif bad:
            self._finish(trial, rule.ends_as, f"{Failure.DIVERGED.value}: {bad}")
        elif self._journal_decision(trial, self._undecided.get(trial.number)) or (
            trial.decisions and trial.decisions[-1].action == "stop"
        ):
            self._finish(trial, Status.STOPPED, trial.decisions[-1].reason)
        else:
            self._queue(trial)

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
        """End the sweep early: running trials stop at their next report, or soon. Returns whether this is new."""
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

        Trials that can go on come before new ones, and one that has to run alone before all others. Call it only when a slot
        is free: the searcher sees the trials that have ended by now.
        """
        if self.exhausted or self._again.holds():
            return None
        number = self._again.take()
        trial = self._propose() if number is None else self.state.trials[number]
        if trial is None:
            return None
        latest = goes_on_from(trial, self._rules[Failure.DIVERGED].patience)
        checkpoint, from_step = (latest.checkpoint, latest.step) if latest else (None, None)
        self._record(events.started(trial.number, attempt=trial.attempt + 1, checkpoint=checkpoint, from_step=from_step))
        self._again.started(trial.number)
        alone = self._again.alone == trial.number
        return Launch(trial.number, trial.attempt, dict(trial.config), trial.seed, checkpoint, from_step, alone)

    def _queue(self, trial: Trial) -> None:
        """The trial is to be tried again."""
        others = self._again.add(trial.number, alone=has_to_be_alone(trial.counted_attempts, self._rules))
        if others:
            self.say(
                f"{trial.id} ran out of memory: it is tried again alone, once {others} other trial{'s'[: others > 1]} "
                f"{'have' if others > 1 else 'has'} ended, at the latest in {self.experiment.alone_wait_s:g} s"
            )

    def _propose(self) -> Trial | None:
        number, experiment = len(self.state.trials), self.experiment
        history = [trial for trial in self.state.trials.values() if trial.number not in self._outside]
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
            metrics: What rank 0 reported, or the ranks together.
            checkpoint: Its checkpoint relative to the sweep's storage, or None.
        """
        trial = self.state.trials[number]
        said = self._reader.read(trial, metrics)
        if said is None:
            if self.stopping:
                self.interrupt(number)
            return trial.status is Status.RUNNING
        if isinstance(said, Wrong):
            self._fail(trial, said.failure, said.message)
            return False
        step, value, attempt = said.step, said.value, trial.attempt
        size = None if checkpoint is None else self._measure(checkpoint)
        self._record(
            events.reported(number, attempt=attempt, step=step, value=value, metrics=metrics, checkpoint=checkpoint, size=size)
        )
        decision = self._judge_latest(trial)
        axis = self.experiment.objective.step or "step"
        if bad := self._has_diverged(trial):
            self._fail(trial, Failure.DIVERGED, f"{bad} at {axis} {step:g}")
        elif self._journal_decision(trial, decision) or self._journal_decision(trial, self._overdue.pop(number, None)):
            self._end_attempt(trial, "stopped", message=trial.decisions[-1].reason)
            self._conclude(trial)
        elif self.stopping:
            self.interrupt(number)
        elif checkpoint is not None and number in self._preempted and not self._is_last(trial, step):
            self._fail(trial, Failure.PREEMPTED, f"its node is being taken away; it has a checkpoint of {axis} {step:g}")
        self._retain(trial)
        return trial.status is Status.RUNNING

    def _has_diverged(self, trial: Trial) -> str | None:
        """What has made a trial diverge: more diverged reports in a row, up to its latest, than are put up with."""
        return has_diverged(trial, self._rules[Failure.DIVERGED].patience)

    def _is_last(self, trial: Trial, step: float) -> bool:
        last = self.experiment.last_step(trial.config)
        return last is not None and step >= last

    def preempted(self, number: int) -> None:
        """The node of a running trial is about to be taken away: it ends with its next checkpoint, and goes on elsewhere."""
        if self.state.trials[number].status is Status.RUNNING:
            self._preempted.add(number)

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

    def _once_durable(self, act: Callable[[], object]) -> None:
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
        report, metric = trial.reports[-1], self.experiment.objective.metric
        # The objective may have been another one when this was reported.
        report = report._replace(value=measured(report.metrics, metric, report.value))
        if diverged(report) is not None:
            report = report._replace(value=math.nan)
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
            self._fail(trial, Failure.NO_REPORT, f"the train loop returned without {self._reader.not_reported(number)}")
            if not any(other.reports for other in self.state.trials.values()):
                self.stop("aborted", f"{trial.id}: {trial.reason}")
            return
        self._end_attempt(trial, "completed")
        self._conclude(trial)

    def failed(self, number: int, failure: Failure, message: str, details: str = "") -> None:
        """The attempt failed: retried as `core/failures.py` says, else the trial ends."""
        trial = self.state.trials[number]
        if trial.status is Status.RUNNING and failure is Failure.DISK_FULL:  # every other trial would meet it, too
            if self.stop("interrupted", f"the disk is full ({trial.id}: {message}). Free some space first"):
                self.say(f"The disk is full ({trial.id}: {message}): stopping at the next report")
            self._end_attempt(trial, "interrupted", message=f"{failure.value}: {message}", details=details)
        elif trial.status is Status.RUNNING:
            if number in self._preempted and failure in (Failure.LOST, Failure.USER_ERROR):  # ranks that are left raise, too
                failure, message = Failure.PREEMPTED, f"its node was taken away: {message}"
            self._fail(trial, failure, message, details)

    def _fail(self, trial: Trial, failure: Failure, message: str, details: str = "") -> None:
        outcome = "infeasible" if failure is Failure.INFEASIBLE else "failed"
        self._end_attempt(trial, outcome, failure=failure.value, message=message, details=details)
        self._conclude(trial)

    def _conclude(self, trial: Trial) -> None:
        """What follows from how the latest attempt ended: the trial is over, or is tried again."""
        attempt = trial.attempts[-1]
        if attempt.failure is None:
            self._finish(trial, Status(attempt.outcome), attempt.message)
            return
        failure, rule = Failure(attempt.failure), self._rules[Failure(attempt.failure)]
        if may_retry(failure, trial.counted_attempts, rule):
            self._queue(trial)
            return
        reason = f"{failure.value}: {attempt.message}"
        self._finish(trial, rule.ends_as, reason)
        if rule.then == "stop sweep":
            self.stop("aborted", f"{trial.id}: {reason}")

    def _end_attempt(self, trial: Trial, outcome: str, **fields: Any) -> None:
        self._record(events.attempt_ended(trial.number, attempt=trial.attempt, outcome=outcome, **fields))
        self._again.ended(trial.number)
        self._preempted.discard(trial.number)

    def _finish(self, trial: Trial, status: Status, reason: str) -> None:
        self._record(events.finished(trial.number, status=status.value, reason=reason))
        self._retain(trial)
        if hopeless := self._breaker.ended(trial):
            self.stop("aborted", hopeless)

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
