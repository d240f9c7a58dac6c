"""What the journal adds up to: `replay(events) -> SweepState`.

The driver applies each event as it appends it; every other reader replays the file. Both run this code, so they cannot
come to different states.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tunelab.core.trial import Attempt, Decided, Report, Status, Trial, measured, nan_metric
from tunelab.errors import JournalError
from tunelab.journal.events import Event


@dataclass
class Session:
    """One driver's run of the sweep."""

    pid: int
    host: str
    resources: dict[str, Any]
    budget: dict[str, Any]
    tracking: Any
    started_at: float
    ended_at: float | None = None
    outcome: str | None = None  # None while it runs, or when it was killed
    reason: str = ""
    code: dict[str, Any] = field(default_factory=dict)  # versions, git, file: empty in journals of before it was kept


@dataclass(frozen=True)
class Amendment:
    """A change of the experiment between two sessions.

    Args:
        changes: What has changed, a line each.
        forced: Whether proposals or decisions follow from it, so that `--amend` had to be said.
        trials: How many trials had been proposed before it.
        session: The number of the session that follows, from 1.
        at: Seconds since the epoch.
    """

    changes: tuple[str, ...]
    forced: bool
    trials: int
    session: int
    at: float


@dataclass
class SweepState:
    """A sweep as its journal tells it. Changed by `apply` alone."""

    sweep: str = ""
    experiment: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    trials: dict[int, Trial] = field(default_factory=dict)
    sessions: list[Session] = field(default_factory=list)
    amendments: list[Amendment] = field(default_factory=list)
    created_at: float = 0.0
    seq: int = 0
    last_at: float = 0.0  # of the latest event in a session
    infeasible: int = 0  # trials that ended as that

    @property
    def mode(self) -> str:
        """`"max"` or `"min"`."""
        return self.experiment["objective"]["mode"]

    @property
    def budget(self) -> dict[str, Any]:
        """The budget in force: the latest session's, else the experiment's."""
        return self.sessions[-1].budget if self.sessions else self.experiment["budget"]

    @property
    def outcome(self) -> str | None:
        """How the latest session ended: `finished`, `interrupted`, `out of time` or `aborted`; None while it runs, or when
        it was killed.
        """
        return self.sessions[-1].outcome if self.sessions else None

    @property
    def cut_short(self) -> bool:
        """Whether it was interrupted or killed (or still runs), so that another sweep is not started without asking."""
        return self.outcome in (None, "interrupted")

    @property
    def elapsed_s(self) -> float:
        """Wall-clock seconds in which a driver ran; a killed driver's session counts up to its last event."""
        ends = [self.last_at if session.ended_at is None else session.ended_at for session in self.sessions]
        return sum(max(0.0, end - session.started_at) for session, end in zip(self.sessions, ends, strict=True))

    def counted(self) -> int:
        """Trials that count against the budget: all but the infeasible ones."""
        return len(self.trials) - self.infeasible

    def unfinished(self) -> list[Trial]:
        """Trials that can go on, in order of number."""
        return [trial for trial in self.trials.values() if not trial.status.ended]

    def apply(self, event: Event) -> None:
        """Take one event into account.

        Raises:
            JournalError: It is none that this version can read.
        """
        handler = _HANDLERS.get(event.kind)
        if handler is None:
            raise JournalError(f"The journal holds an event of the unknown kind {event.kind!r}: written by a newer tunelab?")
        try:
            if event.trial is None or event.kind == "proposed":
                handler(self, event)
            else:
                handler(self, self.trials[event.trial], event)
            self.seq = event.seq
            if event.kind != "amended" and event.data.get("by") != "gc":  # these are written between two sessions
                self.last_at = event.at
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            what = f"The journal's event {event.seq} ({event.kind})"
            why = f"{type(error).__name__}: {error}"
            raise JournalError(f"{what} was written by a newer tunelab, or is damaged: {why}.") from error

    def _on_sweep_created(self, event: Event) -> None:
        self.sweep, self.created_at = event.data["sweep"], event.at
        self.experiment, self.facts = event.data["experiment"], event.data["facts"]

    def _on_session_started(self, event: Event) -> None:
        for trial in self.unfinished():  # the driver before was killed, or interrupted them
            if trial.status is Status.RUNNING:
                self._close(trial, "interrupted", "the driver was killed", event.at)
        if self.sessions and self.sessions[-1].ended_at is None:  # it was killed: it lasted up to its last event
            self.sessions[-1].ended_at = self.last_at
        self.sessions.append(Session(**event.data, started_at=event.at))

    def _on_session_ended(self, event: Event) -> None:
        session = self.sessions[-1]
        session.ended_at, session.outcome, session.reason = event.at, event.data["outcome"], event.data["reason"]

    def _on_amended(self, event: Event) -> None:
        data, before = event.data, self.experiment["objective"]
        self.experiment = data["experiment"]
        self.amendments.append(
            Amendment(tuple(data["changes"]), data["forced"], len(self.trials), len(self.sessions) + 1, event.at)
        )
        metric = self.experiment["objective"]["metric"]
        if metric != before["metric"]:
            for trial in self.trials.values():
                trial.reports = [
                    report._replace(
                        value=math.nan if nan_metric(report.metrics) else measured(report.metrics, metric, math.nan)
                    )
                    for report in trial.reports
                ]

    def _on_proposed(self, event: Event) -> None:
        assert event.trial is not None
        self.trials[event.trial] = Trial(event.trial, **event.data, proposed_at=event.at)

    def _on_started(self, trial: Trial, event: Event) -> None:
        data = event.data
        trial.attempts.append(Attempt(data["attempt"], data["checkpoint"], data["from_step"], started_at=event.at))
        trial.status, trial.reason = Status.RUNNING, ""

    def _on_reported(self, trial: Trial, event: Event) -> None:
        report = Report(trial.number, **event.data, at=event.at)
        while trial.reports and trial.reports[-1].step >= report.step:  # recomputed after a restart
            lost = trial.reports.pop()
            if lost.checkpoint:
                trial.superseded.add(lost.checkpoint)
        trial.reports.append(report)
        if report.checkpoint:  # its name may have been used before
            trial.deleted.discard(report.checkpoint)
            trial.superseded.discard(report.checkpoint)

    def _on_decided(self, trial: Trial, event: Event) -> None:
        trial.decisions.append(Decided(**event.data, at=event.at))

    def _on_attempt_ended(self, trial: Trial, event: Event) -> None:
        data = event.data
        self._close(trial, data["outcome"], data["message"], event.at)
        attempt = trial.attempts[-1]
        attempt.failure, attempt.details = data["failure"], data["details"]

    def _on_finished(self, trial: Trial, event: Event) -> None:
        trial.status, trial.reason, trial.ended_at = Status(event.data["status"]), event.data["reason"], event.at
        self.infeasible += trial.status is Status.INFEASIBLE

    def _on_reopened(self, trial: Trial, event: Event) -> None:
        self.infeasible -= trial.status is Status.INFEASIBLE
        trial.status, trial.reason, trial.ended_at = Status.INTERRUPTED, event.data["reason"], None
        trial.reopened.append(trial.attempt)
        upto = event.data["upto"]
        while trial.reports and (upto is None or trial.reports[-1].step > upto):
            lost = trial.reports.pop()
            if lost.checkpoint:
                trial.superseded.add(lost.checkpoint)

    def _on_checkpoint_deleted(self, trial: Trial, event: Event) -> None:
        trial.deleted.add(event.data["checkpoint"])

    @staticmethod
    def _close(trial: Trial, outcome: str, message: str, at: float) -> None:
        attempt = trial.attempts[-1]
        attempt.outcome, attempt.message, attempt.ended_at = outcome, message, at
        trial.status = Status.INTERRUPTED if outcome == "interrupted" else Status.RETRYING
        trial.reason = message


# Kind of event -> the method that takes it in.
_HANDLERS: dict[str, Callable[..., None]] = {
    name.removeprefix("_on_"): handler for name, handler in vars(SweepState).items() if name.startswith("_on_")
}


def replay(events: Iterable[Event]) -> SweepState:
    """The state that `events`, in order, add up to."""
    state = SweepState()
    with collections_paused():
        for event in events:
            state.apply(event)
    return state


@contextmanager
def collections_paused() -> Iterator[None]:
    """No garbage collections while a state is built: it has no cycles, and looking for them as it grows doubles the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
