"""What must be true of a sweep that was killed and resumed to its end, whenever and however that was."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tests.chaos.harness import Run
from tunelab.core.select import best
from tunelab.core.trial import Report, Stop
from tunelab.journal import Event, replay


def judge_of(experiment: Any, events: list[Event]) -> tuple[Any, list[tuple[int, float, str, str]]]:
    """A fresh judge that was told the journal's reports in order, and the decisions with a reason that it came to."""
    judge, decided = experiment.scheduler.judge(experiment.objective, experiment.last_step()), []
    for event in events:
        if event.kind == "reported":
            report = Report(event.trial, **event.data)
            for decision in judge.decide(report):
                if decision.reason:
                    action = "stop" if isinstance(decision, Stop) else "continue"
                    decided.append((decision.trial, report.step, action, decision.reason))
    return judge, decided


def summary(run: Run, experiment: Any) -> dict[str, Any]:
    """What must not depend on whether, and when, a sweep was killed."""
    state, (judge, _) = run.state(), judge_of(experiment, run.events())
    found = best(state.trials.values(), state.mode)
    assert found is not None
    return {
        "trials": {
            trial.number: {
                "config": trial.config,
                "seed": trial.seed,
                "origin": (trial.origin, trial.note),
                "ended": (trial.status.value, trial.reason),
                "curve": trial.curve(),
                "decisions": [(one.step, one.action, one.reason) for one in trial.decisions],
            }
            for trial in state.trials.values()
        },
        "rungs": {rung: list(values.items()) for rung, values in judge.rungs().items()},
        "best": (found.trial.number, found.report.step, found.report.value, found.exportable),
    }


def problems_of_journal(run: Run) -> Iterator[str]:
    """What no kill may bring about."""
    ended: set[int | None] = set()
    for event in run.events():
        if event.trial in ended and event.kind != "checkpoint_deleted":
            yield f"trial {event.trial} had ended, then: {event.kind} (event {event.seq})"
        if event.kind == "finished":
            ended.add(event.trial)
    state = run.state()
    if len(state.trials) != run.trials or state.unfinished():
        yield f"{len(state.trials)} of {run.trials} trials, {len(state.unfinished())} unfinished"
    if state.outcome != "finished":
        yield f"the last session ended as {state.outcome}"


def problems_of_work(run: Run, kills: int) -> Iterator[str]:
    """More than one interval recomputed for each time that a trial was killed."""
    attempts = {trial.number: trial.attempt for trial in run.state().trials.values()}
    again: Counter[tuple[int, int]] = Counter()
    for (trial, _, rank), count in run.executed().items():
        again[trial, rank] += count - 1
    for (trial, rank), count in again.items():
        if count > attempts[trial] - 1:
            yield f"trial {trial} rank {rank}: {count} epochs computed again in {attempts[trial]} attempts"
    if sum(attempts.values()) - len(attempts) > kills * 2:
        yield f"{attempts} attempts for {kills} kills"


def problems_of_files(run: Run) -> Iterator[str]:
    """Checkpoints on disk that the journal does not refer to, and the other way round."""
    assert run.folder is not None
    storage = run.storage / run.folder.path.name if run.storage else run.folder.trials
    for trial in run.state().trials.values():
        there = {f"{trial.id}/{path.name}" for path in (storage / trial.id).glob("checkpoint_*")}
        kept = {report.checkpoint for report in trial.kept()}
        if there != kept:
            yield f"trial {trial.id}: on disk only {there - kept}, in the journal only {kept - there}"


def problems_of_tracking(run: Run) -> Iterator[str]:
    """MLflow's SQLite: each run once, each step once, a final status."""
    state = run.state()
    connection = sqlite3.connect(f"file:{run.home / 'mlflow.sqlite'}?mode=ro", uri=True)
    runs = connection.execute("SELECT run_uuid, name, status FROM runs WHERE lifecycle_stage = 'active'").fetchall()
    names = Counter(name for _, name, _ in runs)
    wanted = Counter([state.sweep, *(f"{state.sweep}/{trial.id}" for trial in state.trials.values())])
    if names != wanted:
        yield f"runs {names - wanted} too many, {wanted - names} missing"
    for uuid, name, status in runs:
        if status != "FINISHED":
            yield f"run {name} is {status}"
        if "/" in name:
            points = connection.execute(
                "SELECT step, value FROM metrics WHERE run_uuid = ? AND key = 'score' ORDER BY step, timestamp", (uuid,)
            ).fetchall()
            curve = state.trials[int(name.rpartition("/")[2])].curve()
            if points != curve:
                yield f"run {name} has {points} for {curve}"
    connection.close()


def problems_of_decisions(run: Run, experiment: Any) -> Iterator[str]:
    """Decisions and proposals that do not follow from the journal's own order."""
    events = run.events()
    _, wanted = judge_of(experiment, events)
    told = [(e.trial, e.data["step"], e.data["action"], e.data["reason"]) for e in events if e.kind == "decided"]
    if Counter(told) != Counter(wanted):
        only = Counter(told) - Counter(wanted), Counter(wanted) - Counter(told)
        yield f"decided only in the journal {only[0]}, only by the judge {only[1]}"
    for index, event in enumerate(events):
        if event.kind == "proposed":
            config = experiment.searcher.propose(
                event.trial, space=experiment.space, objective=experiment.objective,
                history=list(replay(events[:index]).trials.values()), seed=experiment.seed,
            )  # fmt: skip
            if config != event.data["config"]:
                yield f"trial {event.trial} got {event.data['config']}, and the journal's order implies {config}"


def problems(run: Run, experiment: Any) -> list[str]:
    """All that is wrong with a sweep that was killed and resumed to its end."""
    kills = len(run.done.landed)
    found: list[str] = []
    for check in (problems_of_journal, problems_of_files, problems_of_tracking):
        found += check(run)
    return [*found, *problems_of_work(run, kills), *problems_of_decisions(run, experiment)]
