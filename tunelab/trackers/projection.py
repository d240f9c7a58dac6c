"""What the journal's events mean for a tracker: events in, changes of runs out. Pure: no MLflow, no clock, no files.

    projection.apply(event) ...     the sweep's state, and what has changed for which run
    projection.take() -> Batch      the changes since the last `take`, one `Changes` for each run

A sweep is one parent run and each trial a child run. All that is emitted is a function of the events in order, however they are
cut into batches, with times from the journal. So whoever starts again from the last recorded event says exactly the same again,
and a store that keeps identical points once never doubles one.

Steps. MLflow's steps are whole numbers. While a trial's steps are whole, they are used as they are (epoch 3 is step 3). From
its first fractional step on (Hugging Face's epoch 0.5), or one that no database holds, a report gets the larger of its step
rounded down and the next free number; the declared step itself is among the metrics. A step that a restarted trial computes
again is recorded the first time only and counted in the tag `tunelab.recomputed_steps`.

`best.<objective>` is the objective at the best kept checkpoint, by `core.select`, so what `tunelab compare` shows. Its MLflow
step counts its changes, so that the last one is the one in force, also when the best becomes worse. It ends as NaN for a
trial that failed, which can never be best.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from pathlib import Path

from tunelab.core import select
from tunelab.core.trial import Report, Status, Trial
from tunelab.journal.events import Event
from tunelab.journal.state import SweepState
from tunelab.trackers import words
from tunelab.trackers.changes import SWEEP, Batch, Changes, Point

_LARGEST_STEP = 2**62  # of what a database's integer holds, with room to count on
End = tuple[str, int | None]  # a run's status, as MLflow calls it, and when it ended, in milliseconds
_RUN_STATUS = {Status.COMPLETED: "FINISHED", Status.STOPPED: "FINISHED", Status.FAILED: "FAILED", Status.INFEASIBLE: "FAILED"}
_SWEEP_STATUS = {"finished": "FINISHED", "aborted": "FAILED"}  # interrupted and out of time: KILLED, resumable


@dataclass
class _Trail:
    """What a run has been told so far."""

    seen: set[float] = field(default_factory=set)
    fractional: bool = False
    last_step: int = -1
    recomputed: int = 0
    infinite: list[str] = field(default_factory=list)
    ended_ms: int | None = None
    best: select.Best | None = None  # its trial is a stand-in that holds this one report
    best_changes: int = 0


class Projection:
    """Follows one sweep.

    Args:
        folder: The sweep's folder, in which its copy of the experiment file lies.
    """

    def __init__(self, folder: Path) -> None:
        self.state = SweepState()
        self.uid = ""
        self._folder = folder
        self._runs: dict[int | None, Changes] = {}
        self._trails: dict[int | None, _Trail] = {}

    @property
    def experiment(self) -> str:
        """The tunelab experiment's name."""
        return self.state.experiment.get("name") or self.state.sweep.rpartition(".")[0]

    def apply(self, event: Event) -> None:
        """Take one event into account."""
        running = (trial for trial in self.state.trials.values() if trial.status is Status.RUNNING)
        dead = list(running) if event.kind == "session_started" else []
        reports = len(self.state.trials[event.trial].reports) if event.kind == "reported" and event.trial is not None else 0
        before_ms = _ms(self.state.last_at)
        self.state.apply(event)
        for trial in dead:  # their driver was killed; `started` follows if they go on
            self._tell_attempt(trial)
            self._end(trial.number, "KILLED", before_ms)
        if event.trial is None:
            getattr(self, f"_on_{event.kind}", lambda event: None)(event)
            return
        trial = self.state.trials[event.trial]
        if event.kind == "proposed":
            self._on_proposed(trial)
        elif event.kind == "reported":
            self._on_reported(trial, event, grown=len(trial.reports) == reports + 1)
        elif event.kind in ("started", "attempt_ended"):
            self._tell_attempt(trial)
            interrupted = trial.status is Status.INTERRUPTED
            self._end(trial.number, "KILLED" if interrupted else "RUNNING", _ms(event.at) if interrupted else None)
        elif event.kind == "reopened":
            self._tell_status(trial)
            self._end(trial.number, "KILLED", _ms(event.at))
            self._update_best(trial, event.at)
        elif event.kind == "finished":
            self._tell_status(trial)
            self._end(trial.number, _RUN_STATUS[trial.status], _ms(event.at))
            self._update_best(trial, event.at)
        elif event.kind == "checkpoint_deleted":
            best = self._trail(trial.number).best
            if best is not None and best.report.checkpoint == event.data["checkpoint"]:
                self._update_best(trial, event.at)

    def take(self) -> Batch:
        """The changes since the last call, the sweep's own first."""
        runs, self._runs = self._runs, {}
        order = sorted(runs, key=lambda key: -1 if key is SWEEP else key)
        return Batch(self.state.seq, {key: runs[key] for key in order})

    def close_open(self) -> Batch:
        """What to say when the driver is gone: every run that is still open was killed, unless the journal says otherwise."""
        session = self.state.sessions[-1] if self.state.sessions else None
        at_ms = _ms(self.state.last_at)
        if session is None or session.outcome is None:
            self._tags(SWEEP).update({"tunelab.status": "killed", "tunelab.reason": "the driver was killed"})
            self._end(SWEEP, "KILLED", at_ms)
        for trial in self.state.unfinished():
            if trial.status is Status.INTERRUPTED:
                continue
            self._end(trial.number, "KILLED", at_ms)
            if trial.status is Status.RUNNING:
                self._tags(trial.number).update({"tunelab.status": "interrupted", "tunelab.reason": "the driver was killed"})
        return self.take()

    def reopen(self) -> Batch:
        """What to say when the driver turns out to be alive: the reverse of `close_open`."""
        if self.state.sessions and self.state.sessions[-1].outcome is None:
            self._tags(SWEEP).update({"tunelab.status": "running", "tunelab.reason": ""})
            self._end(SWEEP, "RUNNING", None)
            for trial in self.state.unfinished():
                if trial.status is not Status.INTERRUPTED:
                    self._tell_status(trial)
                    self._end(trial.number, "RUNNING", None)
        return self.take()

    def ends(self) -> dict[int | None, End]:
        """How each run has to stand once the driver is gone."""
        state = self.state
        session = state.sessions[-1] if state.sessions else None
        if session is None or session.outcome is None or session.ended_at is None:
            ends: dict[int | None, End] = {SWEEP: ("KILLED", _ms(state.last_at))}
        else:
            ends = {SWEEP: (_SWEEP_STATUS.get(session.outcome, "KILLED"), _ms(session.ended_at))}
        for trial in state.trials.values():
            if trial.status.ended:
                ends[trial.number] = (_RUN_STATUS[trial.status], _ms(trial.ended_at or state.last_at))
            else:
                ends[trial.number] = ("KILLED", self._trail(trial.number).ended_ms or _ms(state.last_at))
        return ends

    # The sweep's own run

    def _on_sweep_created(self, event: Event) -> None:
        state = self.state
        self.uid = words.digest(json.dumps([state.sweep, event.at, state.experiment, state.facts], sort_keys=True))
        changes = self._changes(SWEEP)
        changes.name, changes.started_ms = state.sweep, _ms(event.at)
        changes.tags.update(words.fact_tags(state.facts))
        changes.tags.update(self._identity("sweep"))
        changes.tags.update(words.experiment_tags(state.experiment))
        changes.tags["mlflow.note.content"] = words.note(state)
        description = {"sweep": state.sweep, "experiment": state.experiment, "facts": state.facts}
        changes.files["config.json"] = json.dumps(description, indent=2)
        changes.files["experiment.py"] = self._folder / (state.facts.get("file_copy") or "experiment.py")

    def _on_session_started(self, event: Event) -> None:
        session = self.state.sessions[-1]
        self._tags(SWEEP).update(
            {
                "tunelab.status": "running",
                "tunelab.reason": "",
                "tunelab.sessions": str(len(self.state.sessions)),
                "tunelab.host": session.host,
                "tunelab.pid": str(session.pid),
                "tunelab.resources": json.dumps(session.resources),
                "tunelab.budget": json.dumps(session.budget),
            }
        )
        self._end(SWEEP, "RUNNING", None)

    def _on_amended(self, event: Event) -> None:
        told = "; ".join(change for amendment in self.state.amendments for change in amendment.changes)
        self._tags(SWEEP).update({"tunelab.amended": told, **words.experiment_tags(self.state.experiment)})
        if any(change.startswith("objective") for change in event.data["changes"]):
            for trail in self._trails.values():
                trail.best = None  # it was measured by the objective of before
        for trial in self.state.trials.values():
            if trial.reports:
                self._update_best(trial, event.at)

    def _on_session_ended(self, event: Event) -> None:
        outcome = event.data["outcome"]
        self._tags(SWEEP).update({"tunelab.status": outcome, "tunelab.reason": event.data["reason"]})
        self._end(SWEEP, _SWEEP_STATUS.get(outcome, "KILLED"), _ms(event.at))

    # Trials' runs

    def _on_proposed(self, trial: Trial) -> None:
        changes = self._changes(trial.number)
        changes.name, changes.started_ms = f"{self.state.sweep}/{trial.id}", _ms(trial.proposed_at)
        changes.params, replaced = words.params({"seed": trial.seed, **trial.config})
        if replaced:
            changes.files["config.json"] = json.dumps(trial.config, indent=2)
        changes.tags.update(self._identity("trial"))
        changes.tags.update({"tunelab.trial": trial.id, "tunelab.origin": trial.origin, "tunelab.note": trial.note})
        changes.tags["tunelab.seed"] = str(trial.seed)
        self._tell_status(trial)

    def _on_reported(self, trial: Trial, event: Event, *, grown: bool) -> None:
        trail, report = self._trail(trial.number), trial.reports[-1]
        if report.step in trail.seen:
            trail.recomputed += 1
            self._tags(trial.number)["tunelab.recomputed_steps"] = str(trail.recomputed)
        else:
            step = _mlflow_step(trail, report.step)
            self._changes(trial.number).points += self._points(trial, report, step)
        self._update_best(trial, event.at, fresh=report if grown else None)

    def _points(self, trial: Trial, report: Report, step: int) -> list[Point]:
        trail, points, known = self._trail(trial.number), [], len(self._trail(trial.number).infinite)
        metrics = {words.objective(self.state): report.value, **report.metrics}
        for key, value in words.numbers(metrics).items():
            if math.isinf(value):
                trail.infinite.append(f"{key} {value} at {words.axis(self.state)} {report.step:g}")
                value = math.nan  # MLflow would store 1.8e308, which tops a sorted table
            points.append(Point(key, value, _ms(report.at), step))
        if len(trail.infinite) > known:
            first, more = trail.infinite[:5], len(trail.infinite) - 5
            self._tags(trial.number)["tunelab.infinite"] = "; ".join(first) + (f"; and {more} more" if more > 0 else "")
        return points

    def _tell_attempt(self, trial: Trial) -> None:
        attempt, changes = trial.attempts[-1], self._changes(trial.number)
        changes.tags["tunelab.attempts"] = str(trial.attempt)
        changes.tags[f"tunelab.attempt.{attempt.number}"] = words.attempt(attempt, words.axis(self.state))
        if attempt.failure:
            changes.tags["tunelab.failure"] = attempt.failure
        if attempt.details:
            changes.files[f"attempt_{attempt.number}.txt"] = attempt.details
        self._tell_status(trial)

    def _tell_status(self, trial: Trial) -> None:
        self._tags(trial.number).update({"tunelab.status": trial.status.value, "tunelab.reason": trial.reason})

    # The best

    def _update_best(self, trial: Trial, at: float, fresh: Report | None = None) -> None:
        """Ask `core.select` again. `fresh` is the report by which the trial has grown, when nothing else has changed: then the
        best so far and `fresh` are all that it has to look at, so that a long curve costs no more than a short one."""
        mode, trail = self.state.mode, self._trail(trial.number)
        reports = trial.reports
        if fresh is not None and len(reports) > 1:
            reports = [trail.best.report, fresh] if trail.best else [fresh]
        found = select.best([replace(trial, reports=reports)], mode)
        if found is not None:
            deleted = trial.deleted & {found.report.checkpoint or ""}
            found = select.Best(replace(trial, reports=[found.report], deleted=deleted), found.report)
        if _same(found, trail.best):
            return
        self._tell_best(trial.number, found, at, {})
        sweep = self._trail(SWEEP)
        if sweep.best is not None and sweep.best.trial.number != trial.number:
            rivals = [sweep.best.trial]
        else:
            rivals = [t.best.trial for key, t in self._trails.items() if key not in (SWEEP, trial.number) and t.best]
        best = select.best([*rivals, *([found.trial] if found else [])], mode)
        if not _same(best, sweep.best):
            self._tell_best(SWEEP, best, at, {"tunelab.best_trial": f"{self.state.sweep}/{best.trial.id}" if best else ""})
            self._tags(SWEEP)["mlflow.note.content"] = words.note(self.state, best)

    def _tell_best(self, key: int | None, best: select.Best | None, at: float, tags: dict[str, str]) -> None:
        trail, changes = self._trail(key), self._changes(key)
        value = best.report.value if best else math.nan
        if trail.best is None or trail.best.report.value != value:
            trail.best_changes += 1
            changes.points.append(Point(words.key(f"best.{words.objective(self.state)}"), value, _ms(at), trail.best_changes))
        trail.best = best
        changes.tags["tunelab.best_step"] = f"{best.report.step:g}" if best else ""
        changes.tags["tunelab.best_checkpoint"] = (best.report.checkpoint or "") if best and best.exportable else ""
        changes.tags.update(tags)

    def _identity(self, kind: str) -> dict[str, str]:
        """Tags by which a run is found again. `uid` tells apart two sweeps of one name from two folders on one server."""
        return {"tunelab.kind": kind, "tunelab.sweep": self.state.sweep, "tunelab.uid": self.uid}

    def _end(self, key: int | None, status: str, at_ms: int | None) -> None:
        changes = self._changes(key)
        changes.status, changes.ended_ms = status, at_ms
        self._trail(key).ended_ms = at_ms

    def _tags(self, key: int | None) -> dict[str, str]:
        return self._changes(key).tags

    def _changes(self, key: int | None) -> Changes:
        return self._runs.setdefault(key, Changes())

    def _trail(self, key: int | None) -> _Trail:
        return self._trails.setdefault(key, _Trail())


def _mlflow_step(trail: _Trail, step: float) -> int:
    trail.seen.add(step)
    trail.fractional = trail.fractional or not float(step).is_integer() or abs(step) > _LARGEST_STEP
    number = int(step) if math.isfinite(step) and abs(step) <= _LARGEST_STEP else 0
    if trail.fractional:
        number = max(number, trail.last_step + 1)
    trail.last_step = max(trail.last_step, number)
    return number


def _same(a: select.Best | None, b: select.Best | None) -> bool:
    if a is None or b is None:
        return a is b
    return (a.trial.number, a.report, a.exportable) == (b.trial.number, b.report, b.exportable)


def _ms(at: float) -> int:
    return int(at * 1000)
