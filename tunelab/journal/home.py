"""Where sweeps live: `<home>/<experiment>.<n>/`, each with its journal, and how a name finds one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tunelab.errors import BadInputError, JournalError, UnknownNameError
from tunelab.journal.locks import held
from tunelab.journal.state import SweepState, replay
from tunelab.journal.store import FILE_NAME, read_events

DEFAULT_HOME = Path("runs")
SWEEP_ID = re.compile(r"(?P<experiment>[a-z0-9][a-z0-9_-]*)\.(?P<number>[1-9][0-9]*)")
_TRIAL = re.compile(r"[0-9]{1,6}")


@dataclass(frozen=True)
class SweepFolder:
    """One sweep's folder.

    Attributes:
        path: The folder. Its name is the sweep's id unless somebody renamed it.
    """

    path: Path

    @property
    def journal(self) -> Path:
        return self.path / FILE_NAME

    @property
    def lock(self) -> Path:
        """Held by the driver while it runs."""
        return self.path / "driver.lock"

    @property
    def trials(self) -> Path:
        """Where trials' checkpoints and logs lie unless the sweep has another storage."""
        return self.path / "trials"

    def is_running(self) -> bool:
        """Whether a driver runs the sweep."""
        return held(self.lock)

    def load(self) -> SweepState:
        """The sweep's state, replayed from the journal as it stands.

        Raises:
            JournalError: It cannot be read; says which.
        """
        try:
            return replay(read_events(self.journal))
        except JournalError as error:
            if str(self.journal) in str(error):
                raise
            raise JournalError(f"{self.journal}: {error}") from error

    def checkpoint(self, state: SweepState, relative: str) -> str:
        """Path or URI of a checkpoint. A sweep without a storage of its own can be moved together with its folder."""
        return f"{self.storage(state)}/{relative}"

    def storage(self, state: SweepState) -> str:
        """Path or URI of the folder that holds the trials' checkpoints."""
        storage = state.facts.get("storage")
        return f"{storage.rstrip('/')}/{state.sweep}" if storage else str(self.trials)


@dataclass(frozen=True)
class Home:
    """The folder that holds all sweeps."""

    path: Path = DEFAULT_HOME

    def sweeps(self, experiment: str | None = None) -> Iterator[SweepFolder]:
        """All sweeps, or those of one experiment, by experiment and number."""
        found = []
        for journal in self.path.glob(f"*/{FILE_NAME}") if self.path.is_dir() else ():
            match = SWEEP_ID.fullmatch(journal.parent.name)
            if match and experiment in (None, match["experiment"]):
                found.append((match["experiment"], int(match["number"]), journal.parent))
        return (SweepFolder(path) for _, _, path in sorted(found))

    def latest(self, experiment: str) -> SweepFolder | None:
        """The experiment's latest sweep, or None."""
        return next(reversed(list(self.sweeps(experiment))), None)

    def next_id(self, experiment: str) -> str:
        """The id of the experiment's next sweep: one more than its largest so far."""
        latest = self.latest(experiment)
        return f"{experiment}.{int(latest.path.name.rpartition('.')[2]) + 1 if latest else 1}"

    def find(self, name: str) -> SweepFolder:
        """The sweep called `name`: an id (`digits-mlp.2`), an experiment (its latest), or a path to a sweep's folder.

        Raises:
            UnknownNameError: There is none; suggests the nearest.
        """
        if SWEEP_ID.fullmatch(name) and (self.path / name / FILE_NAME).is_file():
            return SweepFolder(self.path / name)
        if latest := self.latest(name):
            return latest
        if "/" in name and (Path(name) / FILE_NAME).is_file():
            return SweepFolder(Path(name))
        known = [sweep.path.name for sweep in self.sweeps()]
        experiments = sorted({sweep.rpartition(".")[0] for sweep in known})
        raise UnknownNameError.among(f"sweep in {self.path}/", name, [*experiments, *known])

    def find_trial(self, name: str) -> tuple[SweepFolder, int]:
        """The sweep and trial number called `name`, such as `digits-mlp.2/0007` or `digits-mlp/7`.

        Raises:
            BadInputError: `name` has no trial in it.
        """
        sweep, slash, trial = name.rpartition("/")
        if not slash or not _TRIAL.fullmatch(trial):
            raise BadInputError(f"'{name}' does not name a trial. A trial is SWEEP/NUMBER, such as digits-mlp.1/0007.")
        return self.find(sweep), int(trial)


def load_trial(folder: SweepFolder, number: int) -> tuple[SweepState, int]:
    """The sweep's state, after checking that it has a trial `number`."""
    state = folder.load()
    if number not in state.trials:
        known = f"0000 to {max(state.trials):04d}" if state.trials else "none yet"
        raise UnknownNameError(f"{state.sweep} has no trial {number:04d}. It has {known}.")
    return state, number
