"""What can happen in a sweep. One function a kind, so that the fields of each are written down once.

    sweep_created --> session_started --> proposed --> started --> reported --> decided ... --> attempt_ended
                                                                                          `--> finished
                                      `--> session_ended            checkpoint_deleted, at any time

`attempt_ended` says how one start of a trial ended; `finished` says that the trial will never run again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Event(NamedTuple):
    """One row of the journal. A tuple, because a reader makes a hundred thousand of them and a frozen dataclass takes longer.

    Args:
        kind: Name of the function below that made it.
        trial: Number of the trial it is about, or None when it is about the sweep.
        data: Its fields, JSON values; NaN and infinities are kept.
        seq: Position in the journal from 1; 0 until it is stored.
        at: Seconds since the epoch; set when it is stored.
    """

    kind: str
    trial: int | None
    data: Mapping[str, Any]
    seq: int = 0
    at: float = 0.0


def sweep_created(*, sweep: str, experiment: Mapping[str, Any], facts: Mapping[str, Any]) -> Event:
    """The sweep exists. `experiment` is its description in JSON; `facts` are versions, git commit, file, project root."""
    return Event("sweep_created", None, {"sweep": sweep, "experiment": dict(experiment), "facts": dict(facts)})


def session_started(*, pid: int, host: str, resources: Mapping[str, Any], budget: Mapping[str, Any], tracking: Any) -> Event:
    """A driver began to run the sweep, for the first time or again. `tracking` is what MLflow tracks to, or None."""
    data = {"pid": pid, "host": host, "resources": dict(resources), "budget": dict(budget), "tracking": tracking}
    return Event("session_started", None, data)


def session_ended(*, outcome: str, reason: str) -> Event:
    """The driver is done: `finished`, `interrupted` (by Ctrl-C), `out of time` or `aborted`."""
    return Event("session_ended", None, {"outcome": outcome, "reason": reason})


def proposed(trial: int, *, config: Mapping[str, Any], seed: int, origin: str, note: str = "") -> Event:
    """A configuration was chosen. `origin` is `baseline` or the searcher's name."""
    return Event("proposed", trial, {"config": dict(config), "seed": seed, "origin": origin, "note": note})


def started(trial: int, *, attempt: int, checkpoint: str | None, from_step: float | None) -> Event:
    """An attempt was handed to the cluster, from a checkpoint (relative to the sweep's storage) or from nothing."""
    return Event("started", trial, {"attempt": attempt, "checkpoint": checkpoint, "from_step": from_step})


def reported(
    trial: int, *, attempt: int, step: float, value: float, metrics: Mapping[str, Any], checkpoint: str | None
) -> Event:
    """A trial reported. See `core.trial.Report`."""
    data = {"attempt": attempt, "step": step, "value": value, "metrics": dict(metrics), "checkpoint": checkpoint}
    return Event("reported", trial, data)


def decided(trial: int, *, step: float, action: str, reason: str) -> Event:
    """The answer to a report: `continue` or `stop`. Journalled when there is a reason to tell or the trial stops."""
    return Event("decided", trial, {"step": step, "action": action, "reason": reason})


def attempt_ended(
    trial: int, *, attempt: int, outcome: str, failure: str | None = None, message: str = "", details: str = ""
) -> Event:
    """An attempt is over: `completed`, `stopped`, `interrupted`, `failed` or `infeasible`. See `core.trial.Attempt`."""
    data = {"attempt": attempt, "outcome": outcome, "failure": failure, "message": message, "details": details}
    return Event("attempt_ended", trial, data)


def finished(trial: int, *, status: str, reason: str) -> Event:
    """The trial will never run again: `completed`, `stopped`, `failed` or `infeasible`."""
    return Event("finished", trial, {"status": status, "reason": reason})


def checkpoint_deleted(trial: int, *, checkpoint: str) -> Event:
    """Retention is about to delete this checkpoint: written first, so that nothing refers to a folder that is gone."""
    return Event("checkpoint_deleted", trial, {"checkpoint": checkpoint})
