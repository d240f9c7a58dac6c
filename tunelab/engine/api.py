"""Sweeps in Python instead of at the shell: `tunelab.sweep(experiment)` and `tunelab.open("digits-mlp")`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tunelab.core import select
from tunelab.core.experiment import Experiment
from tunelab.errors import BadInputError, NoCheckpointError, UnfinishedSweepError
from tunelab.journal import SweepState, read_events
from tunelab.journal.home import DEFAULT_HOME, Home, SweepFolder, load_trial

if TYPE_CHECKING:
    import pandas

    from tunelab.core.experiment import Retention
    from tunelab.engine.collecting import Surplus
    from tunelab.engine.going_on import Wish
    from tunelab.engine.rerunning import Rerun
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
        concurrent: int | None = None,
        code: Literal["current", "snapshot"] | None = None,
        amend: bool = False,
        address: str = "local",
        tracking: str | None = None,
        root: str | Path | None = None,
        watcher: Watcher | None = None,
    ) -> Sweep:
        """Go on with the sweep: finished trials stay, unfinished ones continue from their latest checkpoint.

        Args:
            trials: Most trials in all.
            time_s: Wall-clock budget in all.
            concurrent: Most trials at a time.
            code: For a sweep started from a file that has changed since: `current` or `snapshot`.
            amend: Whether space, objective, seed, searcher, baseline or scheduler may have changed; the change is recorded.
            address: Ray cluster.
            tracking: None tracks where the sweep did before.
            root: The project's root, for a sweep started in Python. Default: the current folder.
            watcher: Shows the sweep.
        """
        from tunelab.engine.going_on import Wish

        wish = Wish(
            trials=trials, time_s=time_s, concurrent=concurrent, code=code, amend=amend, address=address, tracking=tracking
        )  # fmt: skip
        return self._go_on(self.state, wish, root, watcher)

    def extend(
        self, *, trials: int | str | None = None, time_s: float | str | None = None, root: str | Path | None = None, **how: Any
    ) -> Sweep:
        """Give the sweep a larger budget and go on with it.

        Args:
            trials: `"+20"` for 20 more, 84 for 84 in all.
            time_s: `"+600"` for ten minutes more, 3600 for an hour in all.
            root: As in `resume`.
            how: `concurrent`, `code`, `amend`, `address`, `tracking` and `watcher`, as in `resume`.
        """
        from tunelab.engine.going_on import Wish, more, refuse_time_alone

        if trials is None and time_s is None:
            raise BadInputError('Say by how much: extend(trials="+20"), extend(time_s="+600"), or both.')
        state = self.state
        wish = Wish(
            trials=None if trials is None else int(more(state.budget["trials"], str(trials), "trials")),
            time_s=None if time_s is None else more(state.budget["time_s"], str(time_s), "time"),
        )
        refuse_time_alone(state, wish, 'extend(trials="+N")')
        return self.resume(trials=wish.trials, time_s=wish.time_s, root=root, **how)

    def retry(
        self,
        *trials: int | str,
        time_s: float | None = None,
        address: str = "local",
        tracking: str | None = None,
        code: Literal["current", "snapshot"] | None = None,
        root: str | Path | None = None,
        watcher: Watcher | None = None,
    ) -> Sweep:
        """Try failed trials again, from their latest checkpoints and with their retries counted anew, and go on.

        Args:
            trials: Numbers of failed or infeasible ones. Without any: all that have failed.
            time_s: Wall-clock budget in all.
            address: Ray cluster.
            tracking: None tracks where the sweep did before.
            code: As in `resume`.
            root: As in `resume`.
            watcher: Shows the sweep.
        """
        from tunelab.engine.going_on import Wish, to_retry

        state = self.state
        numbers = to_retry(state, [int(trial) for trial in trials])
        wish = Wish(reopen=numbers, time_s=time_s, address=address, tracking=tracking, code=code)
        return self._go_on(state, wish, root, watcher)

    def stop(self, *, now: bool = False) -> Sweep:
        """Have the driver that runs the sweep, in another process, stop as after Ctrl-C, and wait until it has ended.

        Args:
            now: Whether not to wait for trials' next reports.

        Raises:
            BadInputError: No driver runs it.
        """
        from tunelab.engine.stopping import stop

        stop(self.folder, now=now)
        return self

    def rerun(
        self,
        trial: int | str,
        *,
        seeds: int | None = None,
        code: Literal["current", "snapshot"] | None = None,
        address: str = "local",
        tracking: str | None = None,
        root: str | Path | None = None,
        watcher: Watcher | None = None,
    ) -> Rerun:
        """Run a trial once more in a sweep of its own, without early stopping, and compare.

        Args:
            trial: Its number.
            seeds: How many other seeds to run it with. None runs it with its own, to be compared step by step.
            code: As in `resume`.
            address: Ray cluster.
            tracking: None tracks where the sweep did.
            root: As in `resume`.
            watcher: Shows the rerun.
        """
        from tunelab.engine import rerunning

        state, number = load_trial(self.folder, int(trial))
        made = rerunning.plan(
            self.folder, state, number, seeds=seeds, code=code, address=address, tracking=tracking,
            experiment=self._experiment, root=None if root is None else Path(root), watcher=watcher,
        )  # fmt: skip
        return rerunning.run(made, state.trials[number])[1]

    def gc(self, keep: Retention | None = None, *, dry_run: bool = False) -> list[Surplus]:
        """Delete checkpoints that the counts in `keep` do not keep, and return what was deleted.

        Args:
            keep: The counts; None takes the experiment's.
            dry_run: Whether to delete nothing and only return what would go.

        Raises:
            SweepLockedError: The sweep is running.
        """
        from tunelab.engine.collecting import collect, retention_of

        return collect(self.folder, keep or retention_of(self.state), dry_run=dry_run)

    def _go_on(self, state: SweepState, wish: Wish, root: str | Path | None, watcher: Watcher | None) -> Sweep:
        from tunelab.engine.going_on import catch_up, plan
        from tunelab.engine.sweeping import Silence, resume

        made = plan(self.folder, state, wish, experiment=self._experiment, root=None if root is None else Path(root))
        if made is None:
            catch_up(self.folder, state, wish.tracking)
        else:
            resume(replace(made, watcher=watcher or Silence()), self.folder)
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
