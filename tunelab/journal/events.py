"""What can happen in a sweep. One function a kind, so that the fields of each are written down once.

    sweep_created --> session_started --> proposed --> started --> reported --> decided ... --> attempt_ended
                                                                                          `--> finished
                                      |--> reopened                 checkpoint_deleted, at any time
                                      `--> session_ended            amended, before a session

`attempt_ended` says how one start of a trial ended; `finished` says that the trial will never run again, unless it is
`reopened`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def session_started(
    *,
    pid: int,
    host: str,
    resources: Mapping[str, Any],
    budget: Mapping[str, Any],
    tracking: Any,
    code: Mapping[str, Any] | None = None,
) -> Event:
    """A driver began to run the sweep, for the first time or again. `tracking` is what MLflow tracks to, or None; `code` is
    what it runs: versions, git commit, the file's SHA-256, project root.
    """
    data = {"pid": pid, "host": host, "resources": dict(resources), "budget": dict(budget), "tracking": tracking}
    return Event("session_started", None, {**data, "code": dict(code or {})})


def session_ended(*, outcome: str, reason: str) -> Event:
    """The driver is done: `finished`, `interrupted` (by Ctrl-C), `out of time` or `aborted`."""
    return Event("session_ended", None, {"outcome": outcome, "reason": reason})


def amended(*, experiment: Mapping[str, Any], changes: Sequence[str], forced: bool) -> Event:
    """The experiment has changed since the session before; the one that starts next, and all later ones, go by the new one.

    Args:
        experiment: Its new description in JSON, as in `sweep_created`.
        changes: What has changed, a line each, for people.
        forced: Whether proposals or decisions follow from it, so that it needed `--amend`.
    """
    return Event("amended", None, {"experiment": dict(experiment), "changes": list(changes), "forced": forced})


def proposed(trial: int, *, config: Mapping[str, Any], seed: int, origin: str, note: str = "") -> Event:
    """A configuration was chosen. `origin` is `baseline` or the searcher's name."""
    return Event("proposed", trial, {"config": dict(config), "seed": seed, "origin": origin, "note": note})


def started(trial: int, *, attempt: int, checkpoint: str | None, from_step: float | None) -> Event:
    """An attempt was handed to the cluster, from a checkpoint (relative to the sweep's storage) or from nothing."""
    return Event("started", trial, {"attempt": attempt, "checkpoint": checkpoint, "from_step": from_step})


def reported(
    trial: int,
    *,
    attempt: int,
    step: float,
    value: float,
    metrics: Mapping[str, Any],
    checkpoint: str | None,
    size: Sequence[int] | None = None,
) -> Event:
    """A trial reported. See `core.trial.Report`."""
    data = {"attempt": attempt, "step": step, "value": value, "metrics": dict(metrics), "checkpoint": checkpoint}
    return Event("reported", trial, data if size is None else {**data, "size": list(size)})


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


def reopened(trial: int, *, upto: float | None, reason: str) -> Event:
    """A trial that had failed is to be tried again, with its retries counted anew.

    Args:
        trial: Which.
        upto: The last step that stands; what was reported after it had diverged. None when nothing stands.
        reason: Who wanted it.
    """
    return Event("reopened", trial, {"upto": upto, "reason": reason})


def checkpoint_deleted(trial: int, *, checkpoint: str, by: str = "retention") -> Event:
    """This checkpoint is about to be deleted: written first, so that nothing refers to a folder that is gone.

    Args:
        trial: Whose it is.
        checkpoint: Which, relative to the sweep's storage.
        by: `retention` while a driver runs the sweep, `gc` between two sessions, `check` when a session that begins finds it
            missing or torn.
    """
    return Event("checkpoint_deleted", trial, {"checkpoint": checkpoint, "by": by})
