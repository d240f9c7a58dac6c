"""Writes a sweep's changes to MLflow: one parent run for the sweep, one child run for each trial.

The journal's position up to which everything is recorded lies in the parent's tag `tunelab.cursor`, written after each batch.
Whoever comes later, after a kill at any instant, finds the runs by their tags and says again what follows the cursor; MLflow's
SQL stores keep a point that is the same in key, step, time and value once (`SqlAlchemyStore._log_metrics_once`), and everything
else is overwritten with itself.

Only `MlflowClient` is used: the fluent API's active run is a global of the process.
"""

from __future__ import annotations

import functools
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from tunelab.trackers import words
from tunelab.trackers.changes import SWEEP, Batch, Changes
from tunelab.trackers.follow import Replaced, StartOver
from tunelab.trackers.projection import End
from tunelab.trackers.tracking import Tracking

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger("tunelab.tracker")

CURSOR = "tunelab.cursor"
_REFUSED = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "INVALID_STATE", "RESOURCE_DOES_NOT_EXIST")
_FILE_TRIES = 3
_AT_ONCE = 1000  # points in a call, as MLflow's client cuts them
_SMALLER_AFTER, _LEFT_OUT_AFTER = 3, 8  # failures in a row at the same call, of a store that takes others
_EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}  # the page opens with runs and curves, not with traces
_SETTINGS = {  # the follower retries, and must notice within seconds that its driver is gone
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


class MlflowTracker:
    """One sweep in one MLflow store. After any exception a call may be repeated: it goes on where it was.

    Args:
        tracking: Where to.
        client: An `MlflowClient`, or None to make one.
    """

    def __init__(self, tracking: Tracking, client: MlflowClient | None = None) -> None:
        self._tracking, self._client = tracking, client
        self._uid = self._experiment = self._experiment_id = ""
        self._runs: dict[int | None, str] | None = None  # trial -> run id; None: ask the store
        self._cursor = 0
        self._found: dict[int | None, str] = {}  # status, as the search found it
        self._tries: dict[tuple[int | None, str], int] = {}
        self._at_once, self._failures = _AT_ONCE, 0
        self._file: tuple[int, int] | None = None  # which file a SQLite store is: its device and inode

    def open(self, uid: str, experiment: str) -> int:
        """Find or make the experiment, find the sweep's runs, and return the position up to which its journal is recorded."""
        self._uid, self._experiment = uid, self._tracking.experiment or experiment
        self._known_runs()
        return self._cursor

    def record(self, batch: Batch) -> None:
        """Write everything in `batch`, then the cursor. What has been written is taken out of `batch`.

        Raises:
            StartOver: The sweep's run is no longer in the store.
            Replaced: The SQLite file was deleted or replaced: what was written since then is lost with the open file.
            Exception: The store does not answer; to be repeated.
        """
        self._refuse_other_file()
        try:
            for key in list(batch.runs):
                self._write(key, batch.runs[key])
                del batch.runs[key]
            if batch.seq > self._cursor:
                self._log_batch(SWEEP, self._parent(), Changes(tags={CURSOR: str(batch.seq)}))
                self._cursor = batch.seq
        except Exception:
            self._runs = None  # a create that seemed to fail may have succeeded: look before making another
            raise
        self._at_once = min(_AT_ONCE, self._at_once * 2)
        self._refuse_other_file()

    def settle(self, ends: Mapping[int | None, End]) -> list[str]:
        """Delete runs that are there twice, and give each run the end that the journal says. Returns what was done."""
        done: list[str] = []
        self._runs = None
        runs = self._known_runs(done)
        self._parent()
        for key, (status, ended_ms) in ends.items():
            if key in runs and (found := self._found[key]) != status:
                run = runs[key]
                self._tolerate(key, functools.partial(self.client.set_terminated, run, status, ended_ms))
                done.append(f"{_subject(key)} was {found} in MLflow and is {status} now")
        return done

    def audit(self, uid: str, experiment: str, ends: Mapping[int | None, End], seq: int) -> list[str]:
        """What `settle` and recording would put right, a line each. Writes nothing.

        Args:
            uid: Of the sweep.
            experiment: The tunelab experiment's name.
            ends: How each run has to stand.
            seq: Position of the journal's last event.
        """
        name, file = self._tracking.experiment or experiment, self._tracking.sqlite_file
        if file is not None and not file.is_file():
            return [f"there is no store at {file}"]
        found = self.client.get_experiment_by_name(name)
        self._uid, self._experiment_id = uid, found.experiment_id if found else ""
        runs: dict[int | None, list[Any]] = {}
        for run in self._search() if found else ():
            runs.setdefault(_key(run), []).append(run)
        if SWEEP not in runs:
            return ["the sweep has no run in MLflow"]
        lines = [f"{_subject(key)} has {len(same)} runs in MLflow" for key, same in runs.items() if len(same) > 1]
        recorded = int(max(runs[SWEEP], key=_weight).data.tags.get(CURSOR, 0))
        if recorded < seq:
            lines.append(f"MLflow has {recorded} of {seq} events")
        for key, same in runs.items():
            status, wanted = max(same, key=_weight).info.status, ends.get(key, ("", None))[0]
            if wanted and status != wanted:
                lines.append(f"{_subject(key)} is {status} in MLflow and should be {wanted}")
        return lines

    def _refuse_other_file(self) -> None:
        if self._file is not None and self._tracking.sqlite_file is not None:
            if _identity(self._tracking.sqlite_file) != self._file:
                raise Replaced(f"{self._tracking.sqlite_file} was deleted or replaced")

    def _write(self, key: int | None, changes: Changes) -> None:
        run, is_new = self._known_runs().get(key), False
        if run is None and changes.name is None:
            self._parent()
            log.warning("trial %s has no run in MLflow any more: what it says is left out", key)
            return
        if run is None:
            run, is_new = self._create(key, changes), True
            changes.tags = {}
        elif changes.name is not None and key is not SWEEP:  # said again, perhaps under a new parent
            changes.tags["mlflow.parentRunId"] = self._parent()
        self._log_batch(key, run, changes)
        for name in list(changes.files):
            self._write_file(key, run, name, changes.files[name])
            del changes.files[name]
        if changes.status == "RUNNING" and not is_new:
            self._tolerate(key, lambda: self.client.update_run(run, status="RUNNING"))
        elif changes.status not in (None, "RUNNING"):
            self._tolerate(key, lambda: self.client.set_terminated(run, changes.status, changes.ended_ms))

    def _create(self, key: int | None, changes: Changes) -> str:
        tags = {words.key(name): words.tag(value) for name, value in changes.tags.items()}
        if key is not SWEEP:
            tags["mlflow.parentRunId"] = self._parent()
        run = self.client.create_run(self._experiment_id, start_time=changes.started_ms, tags=tags, run_name=changes.name)
        self._known_runs()[key] = run.info.run_id
        return run.info.run_id

    def _log_batch(self, key: int | None, run: str, changes: Changes) -> None:
        """All parameters, tags and points, in as few calls as MLflow's limits and the server's speed allow. Takes out of
        `changes` what is written.
        """
        from mlflow.entities import Metric, Param, RunTag
        from mlflow.exceptions import MlflowException

        while changes.points or changes.params or changes.tags:
            points = changes.points[: self._at_once]
            items: list[Any] = [Metric(point.key, point.value, point.at_ms, point.step) for point in points]
            items += [Param(name, value) for name, value in changes.params.items()]
            items += [RunTag(words.key(name), words.tag(value)) for name, value in changes.tags.items()]
            try:
                self._log_items(key, run, items)
                self._failures = 0
            except MlflowException as error:
                if error.error_code != "INTERNAL_ERROR" or not self._leave_out_after(error, key, len(points)):
                    raise
            del changes.points[: len(points)]
            changes.params, changes.tags = {}, {}

    def _leave_out_after(self, error: Exception, key: int | None, n_points: int) -> bool:
        """Whether to give up on a call that failed, with so many points in it, though the store takes others.

        A server that times out or breaks at a large call may manage a small one, and one value that it cannot take must not
        hold up all others.
        """
        self._refuse_outage()
        self._failures += 1
        if self._failures >= _SMALLER_AFTER and n_points > 1:
            self._at_once, self._failures = n_points // 2, 0
        if self._failures < _LEFT_OUT_AFTER:
            return False
        log.error("MLflow fails at something of %s: %s; left out", _subject(key), _first_line(error))
        self._failures = 0
        return True

    def _log_items(self, key: int | None, run: str, items: list[Any]) -> None:
        """Log metrics, parameters and tags. What is refused is halved until only that is left out which cannot be taken."""
        from mlflow.entities import Metric, Param, RunTag

        def log_batch() -> None:
            metrics, params, tags = ([item for item in items if type(item) is kind] for kind in (Metric, Param, RunTag))
            self.client.log_batch(run, metrics, params, tags)

        if items and not self._tolerate(key, log_batch, told=len(items) == 1) and len(items) > 1:
            middle = len(items) // 2
            self._log_items(key, run, items[:middle])
            self._log_items(key, run, items[middle:])

    def _write_file(self, key: int | None, run: str, name: str, content: str | Path) -> None:
        """Store an artifact. The artifacts' place may be out of order for good while the store works, so few tries are made."""
        if isinstance(content, Path) and not content.is_file():
            return
        try:
            if isinstance(content, Path):
                self.client.log_artifact(run, str(content))
            else:
                self.client.log_text(run, content, name)
        except Exception as error:
            tries = self._tries[key, name] = self._tries.get((key, name), 0) + 1
            if tries < _FILE_TRIES:
                raise
            log.error("cannot store the artifact %s: %s; left out", name, error)
            self._log_batch(key, run, Changes(tags={"tunelab.tracking_error": f"artifact {name}: {error}"}))

    def _tolerate(self, key: int | None, call: Callable[[], Any], *, told: bool = True) -> bool:
        """Make a call; False if the store works and refuses it, which repeating would not cure."""
        for is_last in (False, True):
            try:
                call()
                return True
            except Exception as error:
                if not _is_refusal(error):
                    raise
                self._refuse_outage()
                if is_last and told:  # a database that has just come back may have refused the first call
                    log.error("MLflow refuses something of %s: %s; left out", _subject(key), _first_line(error))
        return False

    def _refuse_outage(self) -> None:
        """Raise if the store is away, or takes nothing though it answers, as a database does that has become read-only: what
        fails then is not refused for what it is. Found out by writing what is there already.
        """
        parent = (self._runs or {}).get(SWEEP)
        if parent is None:
            self.client.get_experiment(self._experiment_id)
        else:
            self.client.set_tag(parent, CURSOR, str(self._cursor))

    @property
    def client(self) -> MlflowClient:
        if self._client is None:
            for name, value in _SETTINGS.items():
                os.environ.setdefault(name, value)
            from mlflow import MlflowClient

            self._client = MlflowClient(self._tracking.tracking_uri)
        return self._client

    def _parent(self) -> str:
        """Id of the sweep's run."""
        run = self._known_runs().get(SWEEP)
        if run is None:
            raise StartOver(f"the sweep's run is gone from MLflow experiment {self._experiment}")
        return run

    def _known_runs(self, done: list[str] | None = None) -> dict[int | None, str]:
        """Run id by trial, asked of the store when it is not known; what was deleted as a double is added to `done`."""
        if self._runs is None:
            self._prepare_store()
            self._experiment_id = self._find_experiment()
            found: dict[int | None, list[Any]] = {}
            for run in self._search():
                found.setdefault(_key(run), []).append(run)
            kept = {key: max(runs, key=_weight) for key, runs in found.items()}
            for key, runs in found.items():  # two creates, one of which was answered too late
                for run in runs:
                    if run is not kept[key]:
                        log.warning("deleting run %s, a double of %s", run.info.run_id, kept[key].info.run_id)
                        self.client.delete_run(run.info.run_id)
                        if done is not None:
                            done.append(f"{_subject(key)} had {len(runs)} runs in MLflow")
            self._cursor = int(kept[SWEEP].data.tags.get(CURSOR, 0)) if SWEEP in kept else 0
            self._found = {key: run.info.status for key, run in kept.items()}
            self._runs = {key: run.info.run_id for key, run in kept.items()}
        return self._runs

    def _search(self) -> Iterator[Any]:
        """The sweep's runs, the oldest first."""
        token = None
        while True:
            filter_ = f"tags.`tunelab.uid` = '{self._uid}'"
            order = ["attributes.start_time ASC"]
            page = self.client.search_runs([self._experiment_id], filter_, max_results=1000, order_by=order, page_token=token)
            yield from page
            token = page.token
            if not token:
                return

    def _find_experiment(self) -> str:
        found = self.client.get_experiment_by_name(self._experiment)
        if found is None:
            from mlflow.exceptions import MlflowException

            place = self._tracking.artifacts
            folder = f"{place}/{words.key(self._experiment)}" if place else None
            try:
                return self.client.create_experiment(self._experiment, folder, tags=_EXPERIMENT_TAGS)
            except MlflowException as error:  # another tracker was faster
                found = self.client.get_experiment_by_name(self._experiment)
                if found is None:
                    raise error
        if found.lifecycle_stage == "deleted":
            log.warning("restoring the deleted MLflow experiment %s", self._experiment)
            self.client.restore_experiment(found.experiment_id)
        return found.experiment_id

    def _prepare_store(self) -> None:
        """Make a SQLite store's tables, which takes MLflow seconds, with one process at a time doing it."""
        file = self._tracking.sqlite_file
        if file is None:
            return
        self._refuse_other_file()
        file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{file}.lock", timeout=60):
            self.client.search_experiments(max_results=1)
            connection = sqlite3.connect(file, timeout=30)
            connection.execute("PRAGMA journal_mode = WAL")  # so that looking at the page does not hold up the tracker
            connection.close()
        self._file = _identity(file)


def _is_refusal(error: Exception) -> bool:
    """Whether a call failed for what was said, and not for a store that is away."""
    from mlflow.exceptions import MlflowException

    if isinstance(error, MlflowException):
        return error.error_code in _REFUSED
    return isinstance(error, (ValueError, TypeError, OverflowError))  # such as a number that no field holds


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:500]


def _key(run: Any) -> int | None:
    """The trial that a run is of."""
    return int(run.data.tags["tunelab.trial"]) if run.data.tags["tunelab.kind"] == "trial" else SWEEP


def _subject(key: int | None) -> str:
    return "the sweep" if key is SWEEP else f"trial {key:04d}"


def _weight(run: Any) -> tuple[bool, int]:
    """How much has been written to a run. Of two of one trial, the one that was answered too late has little."""
    data = run.data
    return CURSOR in data.tags, len(data.metrics) + len(data.params) + len(data.tags)


def _identity(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
