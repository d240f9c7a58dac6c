"""What the tracking store lacks of a sweep, and what it shows of it that is not so."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Iterator, Mapping
from functools import cache, partial
from pathlib import Path

from tunelab import trackers
from tunelab.engine.code import tracking_of
from tunelab.engine.doctor.finding import Finding
from tunelab.journal import SweepState, read_events
from tunelab.journal.home import SweepFolder
from tunelab.journal.locks import held
from tunelab.trackers import behind
from tunelab.trackers.follow import brief
from tunelab.trackers.process import catch_up
from tunelab.trackers.projection import Projection
from tunelab.trackers.tracking import Tracking


class Stores:
    """The stores that the home's sweeps are tracked to. One that does not answer is asked once.

    Args:
        environ: The environment.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ
        self._silent: dict[str, str | None] = {}  # address -> why it does not answer, or None

    def examine(self, folder: SweepFolder, state: SweepState) -> Iterator[Finding]:
        """What is to be said of the sweep's tracking. Writes nothing to the store."""
        name = folder.path.name
        if held(folder.path / behind.LOCK):
            return  # somebody records it at this moment
        tracking = self._tracking(folder, state)
        if tracking is None or tracking.kind == "none":
            return
        lag = behind.read(folder.path)
        late = behind.missing(folder.path) if lag is not None else 0
        why = self._why_silent(tracking)
        if why is not None:
            lacks = f", and lacks {f'the last {late} events' if late else 'something'}" if lag is not None else ""
            yield Finding("tracking", name, f"{tracking.describe()} does not answer ({why}){lacks}")
            return
        lines = self._audit(folder, tracking)
        if not lines and lag is not None:
            lines = [f"{tracking.describe()} may lack {f'the last {late} events' if late else 'how it ended'}"]
        repair = cache(partial(_catch_up, folder, tracking))
        for line in lines:
            yield Finding("tracking", name, line, "records what is missing and how runs ended", repair=repair)

    def _tracking(self, folder: SweepFolder, state: SweepState) -> Tracking | None:
        lag = behind.read(folder.path)
        if lag is not None:
            return lag.tracking
        if not state.sessions or state.sessions[-1].tracking is None:
            return None
        return tracking_of(state, None, folder.path.parent, Path(state.facts.get("root") or "."), self._environ)

    def _why_silent(self, tracking: Tracking) -> str | None:
        uri = tracking.tracking_uri
        if uri not in self._silent:
            missing = importlib.util.find_spec("mlflow") is None
            self._silent[uri] = "MLflow is not installed" if missing else behind.silence_of(tracking)
        return self._silent[uri]

    def _audit(self, folder: SweepFolder, tracking: Tracking) -> list[str]:
        logging.getLogger("mlflow").setLevel(logging.CRITICAL)  # what it has to say is said by us, in a line
        projection = Projection(folder.path)
        for event in read_events(folder.journal):
            projection.apply(event)
        tracker = trackers.load(tracking.tracker)(tracking)
        try:
            return tracker.audit(projection.uid, projection.experiment, projection.ends(), projection.state.seq)
        except Exception as error:  # whatever a store says
            why = brief(error)
            self._silent[tracking.tracking_uri] = why
            return [f"{tracking.describe()} cannot be read ({why})"]


def _catch_up(folder: SweepFolder, tracking: Tracking) -> bool:
    return catch_up(folder.journal, tracking, folder.path / behind.LOG, settle=True)
