"""A sweep put together: its folder, its lock, its tracker, its signals, and the cluster it runs on."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import filelock

from tunelab.core.experiment import Experiment
from tunelab.core.failures import is_disk_full
from tunelab.engine import checkpoints, facts
from tunelab.engine.code import SNAPSHOT
from tunelab.engine.conductor import FAR_ENOUGH, Conductor, Launch
from tunelab.engine.description import describe
from tunelab.engine.stopping import Interruptions, Requests
from tunelab.errors import BadInputError, DiskFullError, InvalidExperimentError, SweepLockedError
from tunelab.journal import Event, Journal, SweepState, events
from tunelab.journal.home import Home, SweepFolder
from tunelab.trackers.process import TrackerProcess
from tunelab.trackers.tracking import Tracking


class Watcher(Protocol):
    """Shows a sweep to the user while it runs. Called in the driver's thread, so both methods return at once."""

    def changed(self, state: SweepState, event: Event) -> None: ...

    def say(self, text: str) -> None: ...


class Silence:
    """A watcher that shows nothing."""

    def changed(self, state: SweepState, event: Event) -> None:
        pass

    def say(self, text: str) -> None:
        pass


@dataclass(frozen=True)
class Plan:
    """What to run, where, and where it is written down.

    Args:
        experiment: With overrides applied.
        root: The project's root; put on `sys.path` of every process that trains.
        home: Where sweeps live.
        tracking: Where MLflow's runs go.
        address: Ray cluster: `local`, `auto` or `HOST:PORT`.
        storage: URI or path for checkpoints, or None for the sweep's own folder.
        module: The module that holds the experiment; pickled by value, so that editing the file does not reach a running sweep.
        file: The experiment's file relative to `root`, or None when it was made in a program.
        variable: The name of the experiment in it.
        text: What the file held.
        overrides: What the command line changed; see `apply_overrides`.
        watcher: Shows the sweep.
        until: Ends the session early, as Ctrl-C does, once it says so of the state after an event.
        amendment: `amended`, when a sweep goes on with an experiment that has changed.
        reopen: Failed or infeasible trials that are to be tried again.
    """

    experiment: Experiment
    root: Path
    home: Home
    tracking: Tracking
    address: str = "local"
    storage: str | None = None
    module: ModuleType | None = None
    file: str | None = None
    variable: str | None = None
    text: str | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    watcher: Watcher = field(default_factory=Silence)
    until: Callable[[SweepState], bool] = lambda state: False
    amendment: Event | None = None
    reopen: Sequence[int] = ()


@dataclass(frozen=True)
class Outcome:
    """How a session of a sweep ended: `finished`, `interrupted`, `out of time` or `aborted`."""

    folder: SweepFolder
    state: SweepState
    outcome: str
    reason: str
    tracked: bool


def start(plan: Plan) -> Outcome:
    """Run a new sweep of the experiment to its end.

    Raises:
        BadInputError: The experiment cannot be run as asked; nothing has been written.
    """
    _refuse_home(plan.home.path)
    if plan.storage is not None and "://" not in plan.storage:
        plan = replace(plan, storage=str(Path(plan.storage).resolve()))
    with _on_cluster(plan) as cluster:
        folder = _new_folder(plan)
        with _saying_disk_full(folder), locked(folder):
            return _drive(plan, folder, _new_journal(plan, folder, cluster), cluster)


def _new_journal(plan: Plan, folder: SweepFolder, cluster: _Cluster) -> Journal:
    """The sweep comes into being with its journal; where that fails, no folder of it stays."""
    try:
        _keep_code(plan, folder)
        described, about = describe(plan.experiment), _facts(plan, cluster)
        created = events.sweep_created(sweep=folder.path.name, experiment=described, facts=about)
        return Journal.create(folder.journal, created)
    except BaseException:
        shutil.rmtree(folder.path, ignore_errors=True)
        if plan.storage is not None and "://" not in plan.storage:  # made a moment ago, for this sweep alone
            shutil.rmtree(_storage(plan, folder, folder.path.name), ignore_errors=True)
        raise


def resume(plan: Plan, folder: SweepFolder) -> Outcome:
    """Go on with a sweep: finished trials stay, unfinished ones continue from their latest checkpoint.

    Raises:
        SweepLockedError: Another driver runs it.
        BadInputError: It cannot be run as asked.
    """
    if plan.storage is not None:
        checkpoints.refuse_absent(plan.storage, folder.load())
    with _saying_disk_full(folder), locked(folder), _on_cluster(plan) as cluster:
        if plan.storage is not None:
            checkpoints.claim(folder.storage(folder.load()), folder.path)
        _keep_code(plan, folder)
        return _drive(plan, folder, Journal(folder.journal), cluster)


# ---- before a trial is started ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Cluster:
    """What is known once the cluster is there."""

    shape_of: Callable[[Launch], Any]
    static_shape: Any
    nodes: Callable[[], list[dict[str, float]]]
    max_failures: int
    trainer: bytes
    worker_env: Any
    preload: bool


@contextmanager
def _on_cluster(plan: Plan) -> Iterator[_Cluster]:
    """Connect, and refuse what can never run there."""
    from tunelab.engine.ray import cluster, trainers

    example = _example(plan.experiment)
    if problems := trainers.refuse(example):
        raise InvalidExperimentError(f"Experiment {plan.experiment.name!r}", problems)
    shape = trainers.shape_of(example)
    trainer = plan.experiment.trainer
    pickled = trainers.pickled(trainer, plan.module)
    # Tune takes a second to import, which passes while the cluster starts.
    threading.Thread(target=import_module, args=("tunelab.engine.ray.tune",), daemon=True).start()
    with cluster.connected(plan.address, str(plan.root)):
        cluster.refuse_impossible(shape, cluster.nodes())

        def shape_of(launch: Launch) -> Any:
            if not trainers.is_factory(trainer):
                return shape
            asked = trainers.shape_of(trainers.resolve(trainer, launch.config, launch.seed))
            cluster.refuse_impossible(asked, cluster.nodes())
            return asked

        static = None if trainers.is_factory(trainer) else shape
        yield _Cluster(
            shape_of,
            static,
            cluster.nodes,
            trainers.max_failures(example),
            pickled,
            trainers.worker_env(example),
            trainers.may_preload(example),
        )


def _example(experiment: Experiment) -> Any:
    """The trainer of one configuration: all there is to see, unless it is a function of the configuration."""
    import numpy

    from tunelab.engine.ray import trainers

    config = experiment.full_baseline() or experiment.space.sample(numpy.random.default_rng(experiment.seed))
    return trainers.resolve(experiment.trainer, config, experiment.trial_seed(0))


def _refuse_home(path: Path) -> None:
    """Refuse a folder for sweeps that cannot be made or written, before anything is started or made.

    Raises:
        BadInputError: Says so.
    """
    there = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    if not there.is_dir():
        raise _unusable(path, f"{there} is a file")
    if not os.access(there, os.W_OK | os.X_OK):
        raise _unusable(path, f"{there} cannot be written")


def _unusable(path: Path, why: object) -> BadInputError:
    return BadInputError(f"Sweeps cannot be kept in {path}: {why}. Say where: --home FOLDER")


def _new_folder(plan: Plan) -> SweepFolder:
    """The experiment's next sweep's folder. Two drivers that start at once get two."""
    try:
        plan.home.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(plan.home.path, error.strerror or error) from error
    folder = SweepFolder(plan.home.path / plan.home.next_id(plan.experiment.name))
    number = int(folder.path.name.rpartition(".")[2])
    while not _make(folder, plan):
        number += 1
        folder = SweepFolder(plan.home.path / f"{plan.experiment.name}.{number}")
    return folder


def _make(folder: SweepFolder, plan: Plan) -> bool:
    """Make a new sweep's folder, and its part of a storage of its own; False if one of them is somebody else's."""
    try:
        folder.path.mkdir()
    except FileExistsError:  # one without a journal yet belongs to a driver that is just starting
        return False
    if plan.storage is None:
        return True
    storage = _storage(plan, folder, folder.path.name)
    try:
        checkpoints.claim(storage, folder.path, new=True)
        return True
    except FileExistsError:  # of a sweep of the same name in another home
        folder.path.rmdir()
        return False
    except OSError as error:
        folder.path.rmdir()
        raise BadInputError(
            f"Checkpoints cannot be kept in {storage}: {error.strerror or error}. Say where: --storage"
        ) from error


@contextmanager
def locked(folder: SweepFolder) -> Iterator[None]:
    """Hold the sweep for this driver. The operating system releases the lock when a driver dies."""
    lock = filelock.FileLock(folder.lock)
    try:
        lock.acquire(timeout=1)  # `ls` looks at it for a moment
    except filelock.Timeout:
        raise SweepLockedError(
            f"{folder.path.name} is being run by another driver. Watch it with: tunelab show {folder.path.name}"
        ) from None
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _saying_disk_full(folder: SweepFolder) -> Iterator[None]:
    """Say what a full disk means for the sweep.

    Raises:
        DiskFullError: Instead of the operating system's error.
    """
    try:
        yield
    except (OSError, DiskFullError) as error:
        began = folder.journal.is_file()
        if isinstance(error, DiskFullError) or not is_disk_full(error):
            raise
        again = (
            f", then go on with: tunelab resume {shlex.quote(str(folder.path))}" if began else " first: nothing was started."
        )
        raise DiskFullError(f"{error.filename or folder.path}: the disk is full. Free some space{again}") from error


def _keep_code(plan: Plan, folder: SweepFolder) -> None:
    if plan.text is not None:
        partial = folder.path / f"{SNAPSHOT}.partial"
        partial.write_text(plan.text)
        partial.replace(folder.path / SNAPSHOT)


def _code(plan: Plan, folder: SweepFolder) -> dict[str, Any]:
    """What this session runs, and where its home is: both may differ from session to session."""
    kept = folder.path / SNAPSHOT
    return {
        "versions": facts.versions(),
        "git": facts.git(plan.root),
        "root": str(plan.root),
        "sha256": hashlib.sha256(kept.read_bytes()).hexdigest() if kept.is_file() else None,
        "home": str(folder.path.absolute().parent),
    }


def _facts(plan: Plan, cluster: _Cluster) -> dict[str, Any]:
    return {
        "versions": facts.versions(),
        "git": facts.git(plan.root),
        "root": str(plan.root),
        "file": plan.file,
        "variable": plan.variable,
        "overrides": dict(plan.overrides),
        "storage": plan.storage,
        "trial_resources": str(cluster.static_shape or "depend on the configuration"),
        **({"rerun_of": plan.overrides["rerun"]["of"]} if "rerun" in plan.overrides else {}),
    }


# ---- the session -----------------------------------------------------------------------------------------------------


def _drive(plan: Plan, folder: SweepFolder, journal: Journal, cluster: _Cluster) -> Outcome:
    from tunelab.engine.ray.cluster import fit, how_many
    from tunelab.engine.ray.nodes import Nodes
    from tunelab.engine.ray.slots import Slots
    from tunelab.engine.ray.tune import Binding, run

    watcher = _Guarded(plan.watcher)
    tracker = TrackerProcess(folder.journal, plan.tracking, folder.path / "tracker.log", warn=watcher.say)

    def notify(state: SweepState, event: Event) -> None:
        tracker.poke()
        watcher.changed(state, event)
        if plan.until(state):
            conductor.stop("interrupted", FAR_ENOUGH)

    sweep = next(journal.events()).data["sweep"]  # its id, also where the folder was renamed
    storage = _storage(plan, folder, sweep)
    conductor = Conductor(
        plan.experiment,
        journal,
        budget=plan.experiment.budget,
        max_failures=cluster.max_failures,
        delete=lambda checkpoint: checkpoints.delete(storage, checkpoint, watcher.say),
        measure=lambda checkpoint: checkpoints.size(storage, checkpoint),
        torn=lambda state: checkpoints.torn(storage, state),
        notify=notify,
        say=watcher.say,
    )
    nodes = Nodes()
    stop = Interruptions(conductor, watcher.say, Requests(folder.path, len(conductor.state.sessions) + 1))
    slots = Slots(lambda shapes: fit(shapes, nodes.resources()))
    binding = Binding(conductor, slots, nodes, cluster.shape_of, cluster.static_shape, each_round=stop.each_round)
    stop.binding = binding
    resources = {name: sum(node.get(name, 0.0) for node in nodes.resources()) for name in ("CPU", "GPU")}
    session = events.session_started(
        pid=os.getpid(),
        host=socket.gethostname(),
        resources=resources,
        budget=asdict(plan.experiment.budget),
        tracking=plan.tracking.to_json(),
        code=_code(plan, folder),
    )
    with ExitStack() as stack:
        stack.callback(journal.close)
        tracked: list[bool] = []
        stack.callback(lambda: tracked.append(tracker.close()))
        tracker.start()
        stack.enter_context(stop)
        if cluster.static_shape is not None:
            room = how_many(cluster.static_shape, nodes.resources())
            at_once = min(room, plan.experiment.budget.concurrent or room)
            watcher.say(f"{at_once} trial{'s'[: at_once > 1]} at a time: each takes {cluster.static_shape}")
        try:
            conductor.begin(session, amendment=plan.amendment, reopen=plan.reopen)
            checkpoints.sweep_up(storage, conductor.state)
            run(binding, _blueprint(plan, folder, sweep, storage, cluster))
        except BaseException as error:
            conductor.stop("aborted", f"{type(error).__name__}: {error}")
            raise
        finally:
            try:
                outcome = conductor.end()
            except BaseException:  # the disk may be full, of what is half-written
                checkpoints.sweep_up(storage, folder.load())
                raise
            checkpoints.sweep_up(storage, conductor.state)
    reason = conductor.state.sessions[-1].reason
    return Outcome(folder, conductor.state, outcome, reason, all(tracked))


def _blueprint(plan: Plan, folder: SweepFolder, sweep: str, storage: str, cluster: _Cluster) -> Any:
    from tunelab.engine.ray.messages import Blueprint

    return Blueprint(
        sweep=sweep,
        root=str(plan.root),
        storage=storage,
        trainer=cluster.trainer,
        worker_env=cluster.worker_env,
        preload=cluster.preload,
        work_dir=str(folder.trials.resolve()),
        warm=plan.experiment.isolation == "warm",
        recycle_after=plan.experiment.recycle_after,
        max_growth_mb=plan.experiment.max_growth_mb,
        reports=plan.experiment.reports,
        step=plan.experiment.objective.step,
        reduce=plan.experiment.reduce,
        report_timeout_s=plan.experiment.report_timeout_s,
    )


def _storage(plan: Plan, folder: SweepFolder, sweep: str) -> str:
    """Where checkpoints lie. A sweep in a renamed folder finds what it has in a storage of its own by its id."""
    if plan.storage is None:
        return str(folder.trials.resolve())
    return f"{plan.storage.rstrip('/')}/{sweep}"


class _Guarded:
    """A watcher that cannot hurt the sweep: one that raises, as when its pipe was closed, is not asked again."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher: Watcher = watcher

    def changed(self, state: SweepState, event: Event) -> None:
        try:
            self._watcher.changed(state, event)
        except Exception as error:
            self._drop(error)

    def say(self, text: str) -> None:
        try:
            self._watcher.say(text)
        except Exception as error:
            self._drop(error)

    def _drop(self, error: Exception) -> None:
        self._watcher = Silence()
        if not isinstance(error, BrokenPipeError):
            print(f"The display has failed ({type(error).__name__}: {error}); the sweep goes on without it.", file=sys.stderr)
