"""Sweeps in Python instead of at the shell: `tunelab.sweep(experiment)` and `tunelab.open("digits-mlp")`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tunelab.core import select
from tunelab.core.experiment import Budget, Experiment
from tunelab.errors import BadInputError, NoCheckpointError, UnfinishedSweepError
from tunelab.journal import SweepState, read_events
from tunelab.journal.home import DEFAULT_HOME, Home, SweepFolder, load_trial

if TYPE_CHECKING:
    import pandas

    from tunelab.engine.sweeping import Watcher


@dataclass(frozen=True)
class Best:
    """The best trial of a sweep.

    Attributes:
        trial: `digits-mlp.1/0021`.
        config: Its values of the space's parameters.
        value: The objective at `step`.
        step: The best step that has a kept checkpoint.
        checkpoint: Path or URI of that checkpoint, or None when no report of the trial has one.
    """

    trial: str
    config: Mapping[str, Any]
    value: float
    step: float
    checkpoint: str | None


class Sweep:
    """One sweep: what it found, and what can be done with it. Reads the journal anew at each question.

    Args:
        folder: The sweep's folder.
        experiment: The experiment that it runs, or None to load the copy that the sweep keeps of its file.
    """

    def __init__(self, folder: SweepFolder, experiment: Experiment | None = None) -> None:
        self.folder, self._experiment = folder, experiment

    def __repr__(self) -> str:
        return f"<Sweep {self.id} in {self.folder.path}>"

    @property
    def id(self) -> str:
        """`digits-mlp.1`."""
        return self.folder.path.name

    @property
    def state(self) -> SweepState:
        """Everything the journal says."""
        return self.folder.load()

    @property
    def experiment(self) -> Experiment:
        """The experiment that it runs."""
        if self._experiment is None:
            from tunelab.engine.loading import load_snapshot_experiment

            if not (self.folder.path / "experiment.py").is_file():
                raise BadInputError(
                    f"{self.id} was started in Python and keeps no file. Open it with the experiment: open(name, experiment)"
                )
            self._experiment = load_snapshot_experiment(self.folder, self.state)
        return self._experiment

    def trials(self) -> pandas.DataFrame:
        """One row a trial: status, reason, attempts, last step and value, best step and value, and each parameter."""
        import pandas

        state = self.state
        rows = []
        for trial in state.trials.values():
            shown = select.shown_report(trial, state.mode)
            row: dict[str, Any] = {"trial": trial.id, "status": trial.status.value, "reason": trial.reason}
            row |= {"attempts": trial.attempt}
            row |= {"step": trial.last.step if trial.last else None, "value": trial.last.value if trial.last else None}
            row |= {"best_step": shown.step if shown else None, "best_value": shown.value if shown else None}
            rows.append(row | {f"config.{name}": value for name, value in trial.config.items()})
        return pandas.DataFrame(rows)

    @property
    def best(self) -> Best:
        """The best trial.

        Raises:
            NoCheckpointError: No trial has a finite objective yet.
        """
        state = self.state
        found = select.best(state.trials.values(), state.mode)
        if found is None:
            raise NoCheckpointError(f"{self.id} has no trial with a finite objective yet.")
        kept = self.folder.checkpoint(state, str(found.report.checkpoint)) if found.exportable else None
        return Best(f"{self.id}/{found.trial.id}", dict(found.trial.config), found.report.value, found.report.step, kept)

    def why(self, trial: int | str) -> list[str]:
        """What happened to a trial and why, a line each, as `tunelab why` prints it."""
        from tunelab.analysis.why import why

        load_trial(self.folder, int(trial))
        return why(read_events(self.folder.journal), int(trial))

    def export(self, to: str | Path, trial: int | str | None = None) -> Any:
        """Write the best checkpoint, or one trial's, as a proved MLflow model; see `tunelab.export.export_trial`."""
        from tunelab.export import export_trial

        number = None if trial is None else load_trial(self.folder, int(trial))[1]
        return export_trial(folder=self.folder, state=self.state, experiment=self.experiment, trial=number, to=Path(to))

    def resume(
        self,
        *,
        trials: int | None = None,
        time_s: float | None = None,
        code: Literal["current", "snapshot"] | None = None,
        address: str = "local",
        tracking: str | None = None,
        root: str | Path | None = None,
        watcher: Watcher | None = None,
    ) -> Sweep:
        """Go on with the sweep: finished trials stay, unfinished ones continue from their latest checkpoint.

        Args:
            trials: Most trials in all.
            time_s: Wall-clock budget in all.
            code: For a sweep started from a file that has changed since: `current` or `snapshot`.
            address: Ray cluster.
            tracking: None tracks where the sweep did before.
            root: The project's root, for a sweep started in Python. Default: the current folder.
            watcher: Shows the sweep.
        """
        from tunelab.engine.code import SNAPSHOT, Code, code_of, refuse_difference, tracking_of
        from tunelab.engine.sweeping import Plan, Silence, resume

        state, home = self.state, Home(self.folder.path.parent)
        given = self._experiment
        if given is None or (self.folder.path / SNAPSHOT).is_file():
            found = code_of(self.folder, state, code)
        else:
            found = Code(given, Path(root or Path.cwd()).resolve(), None, None, None, None, {})
            refuse_difference(state, given)
        budget = state.budget | {k: v for k, v in (("trials", trials), ("time_s", time_s)) if v is not None}
        experiment = replace(found.experiment, budget=Budget(**budget))
        chosen = tracking_of(state, tracking, home.path, found.root, os.environ)
        plan = Plan(home=home, tracking=chosen, address=address, storage=state.facts.get("storage"), **vars(found))
        resume(replace(plan, experiment=experiment, watcher=watcher or Silence()), self.folder)
        return self


def sweep(
    experiment: Experiment,
    *,
    home: str | Path = DEFAULT_HOME,
    new: bool = False,
    address: str = "local",
    tracking: str | None = None,
    storage: str | None = None,
    root: str | Path | None = None,
    watcher: Watcher | None = None,
) -> Sweep:
    """Run an experiment's sweep to its end.

    Args:
        experiment: What to run.
        home: Where sweeps live.
        new: Start another sweep even if the latest one is unfinished.
        address: Ray cluster: `local`, `auto` or `HOST:PORT`. A connection that there is already is used.
        tracking: `local`, `server`, `none` or a TOML file; None as the environment and the project say.
        storage: Path or URI for checkpoints; None for the sweep's own folder.
        root: The project's root, importable in every worker. Default: the current folder.
        watcher: Shows the sweep; None shows nothing.

    Raises:
        UnfinishedSweepError: The latest sweep is unfinished: `open(name).resume()`, or say `new=True`.
        BadInputError: It cannot be run as asked; nothing has been started.
    """
    from tunelab.engine.ray.trainers import storage_of
    from tunelab.engine.sweeping import Plan, Silence, start
    from tunelab.trackers.tracking import resolve_tracking

    store = Home(Path(home))
    latest = store.latest(experiment.name)
    if latest is not None and not new:
        if latest.load().cut_short:
            raise UnfinishedSweepError(
                f"{latest.path.name} of this experiment is unfinished. Go on: tunelab.open({latest.path.name!r}).resume(), "
                "or start another: sweep(..., new=True)"
            )
    folder = Path(root or Path.cwd()).resolve()
    chosen = resolve_tracking(tracking, home=store.path, project_root=folder, environ=os.environ)
    plan = Plan(experiment, folder, store, chosen, address, storage or storage_of(experiment.trainer))
    return Sweep(start(replace(plan, watcher=watcher or Silence())).folder, experiment)


def open(name: str, experiment: Experiment | None = None, *, home: str | Path = DEFAULT_HOME) -> Sweep:
    """The sweep called `name`: an id (`digits-mlp.2`), an experiment's name (its latest sweep), or a path to its folder.

    Args:
        name: Which.
        experiment: What it runs, for a sweep that was started in Python and so keeps no file.
        home: Where sweeps live.

    Raises:
        UnknownNameError: There is none; suggests the nearest.
    """
    return Sweep(Home(Path(home)).find(name), experiment)
