"""Writes a sweep's changes to MLflow: one parent run for the sweep, one child run for each trial.

    python -m tunelab.trackers.mlflow --journal runs/digits-mlp.1/journal.sqlite --tracking '{"kind": "local", ...}'

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
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from tunelab.trackers import follow, words
from tunelab.trackers.changes import SWEEP, Batch, Changes
from tunelab.trackers.follow import StartOver
from tunelab.trackers.tracking import Tracking

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger("tunelab.tracker")

CURSOR = "tunelab.cursor"
_REFUSED = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "INVALID_STATE", "RESOURCE_DOES_NOT_EXIST")
_FILE_TRIES = 3
_EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}  # the page opens with runs and curves, not with traces
_SETTINGS = {  # the follower retries, and must notice within seconds that its driver is gone
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
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
        self._tries: dict[tuple[int | None, str], int] = {}

    def open(self, uid: str, experiment: str) -> int:
        """Find or make the experiment, find the sweep's runs, and return the position up to which its journal is recorded."""
        self._uid, self._experiment = uid, self._tracking.experiment or experiment
        self._known_runs()
        return self._cursor

    def record(self, batch: Batch) -> None:
        """Write everything in `batch`, then the cursor. What has been written is taken out of `batch`.

        Raises:
            StartOver: The sweep's run is no longer in the store.
            Exception: The store does not answer; to be repeated.
        """
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
        """All parameters, tags and points in as few calls as MLflow's limits allow (the client cuts at 1,000)."""
        from mlflow.entities import Metric, Param, RunTag

        metrics = [Metric(point.key, point.value, point.at_ms, point.step) for point in changes.points]
        params = [Param(name, value) for name, value in changes.params.items()]
        tags = [RunTag(words.key(name), words.tag(value)) for name, value in changes.tags.items()]
        if not (metrics or params or tags):
            return
        if self._tolerate(key, lambda: self.client.log_batch(run, metrics, params, tags)):
            return
        singly = [*(([m], [], []) for m in metrics), *(([], [p], []) for p in params), *(([], [], [t]) for t in tags)]
        for one in singly:  # to lose only what is refused
            self._tolerate(key, functools.partial(self.client.log_batch, run, *one))

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

    def _tolerate(self, key: int | None, call: Callable[[], Any]) -> bool:
        """Make a call; False if the store works and refuses it, which repeating would not cure."""
        from mlflow.exceptions import MlflowException

        try:
            call()
        except MlflowException as error:
            if error.error_code not in _REFUSED:
                raise
            self.client.get_experiment(self._experiment_id)  # raises if it is an outage that looks like a refusal
            name = "the sweep" if key is SWEEP else f"trial {key}"
            log.error("MLflow refuses something of %s: %s; left out", name, str(error).partition("\n")[0][:500])
            return False
        return True

    @property
    def client(self) -> MlflowClient:
        if self._client is None:
            from mlflow import MlflowClient

            self._client = MlflowClient(self._tracking.tracking_uri)
        return self._client

    def _parent(self) -> str:
        """Id of the sweep's run."""
        run = self._known_runs().get(SWEEP)
        if run is None:
            raise StartOver(f"the sweep's run is gone from MLflow experiment {self._experiment}")
        return run

    def _known_runs(self) -> dict[int | None, str]:
        if self._runs is None:
            self._prepare_store()
            self._experiment_id = self._find_experiment()
            runs: dict[int | None, str] = {}
            for run in self._search():
                key = int(run.data.tags["tunelab.trial"]) if run.data.tags["tunelab.kind"] == "trial" else SWEEP
                if key in runs:  # two creates, the first of which was answered too late
                    log.warning("deleting run %s, a double of %s", run.info.run_id, runs[key])
                    self.client.delete_run(run.info.run_id)
                    continue
                runs[key] = run.info.run_id
                if key is SWEEP:
                    self._cursor = int(run.data.tags.get(CURSOR, 0))
            if SWEEP not in runs:
                self._cursor = 0
            self._runs = runs
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
        file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{file}.lock", timeout=60):
            self.client.search_experiments(max_results=1)
            connection = sqlite3.connect(file, timeout=30)
            connection.execute("PRAGMA journal_mode = WAL")  # so that looking at the page does not hold up the tracker
            connection.close()


def main(argv: list[str] | None = None) -> int:
    """The tracker process. See `follow.main` for its arguments and exit status."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    return follow.main(MlflowTracker, argv)


if __name__ == "__main__":
    sys.exit(main())
