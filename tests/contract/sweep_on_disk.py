"""A sweep's folder as the engine leaves it: a journal and checkpoints, without running anything. Used by the export tests."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from tunelab.journal import Journal, events
from tunelab.journal.home import SweepFolder

GIT = {"commit": "4f2c1e9", "dirty": False}


@dataclass
class Told:
    """What one trial of the sweep did: its configuration, {step: value}, how it ended, and who writes its checkpoints."""

    config: dict
    curve: dict[float, float]
    status: str | None = "completed"  # None: it still runs
    checkpoint: Callable[[Path, dict, float], None] | None = None


def write_sweep(home: Path, sweep: str, trials: list[Told], *, metric: str = "accuracy", mode: str = "max") -> SweepFolder:
    """Write `<home>/<sweep>/` and return it."""
    folder = SweepFolder(home / sweep)
    journal = Journal(folder.journal, clock=lambda: 1_000.0)
    experiment = {
        "name": sweep.rpartition(".")[0],
        "objective": {"metric": metric, "mode": mode, "step": "epoch", "last_step": None},
        "budget": {"trials": len(trials)},
    }
    journal.append(events.sweep_created(sweep=sweep, experiment=experiment, facts={"git": GIT, "file": "experiments/toy.py"}))
    journal.append(events.session_started(pid=1, host="h", resources={}, budget={"trials": len(trials)}, tracking=None))
    for number, told in enumerate(trials):
        journal.append(events.proposed(number, config=told.config, seed=number, origin="random"))
        journal.append(events.started(number, attempt=1, checkpoint=None, from_step=None))
        for step, value in told.curve.items():
            where = None
            if told.checkpoint is not None:
                where = f"{number:04d}/checkpoint_{step:g}"
                (folder.trials / where).mkdir(parents=True)
                told.checkpoint(folder.trials / where, told.config, step)
            journal.append(
                events.reported(
                    number, attempt=1, step=step, value=value, metrics={metric: value, "epoch": step}, checkpoint=where
                )
            )
        if told.status is not None:
            journal.append(events.attempt_ended(number, attempt=1, outcome=told.status))
            journal.append(events.finished(number, status=told.status, reason=""))
    journal.close()
    return folder


def experiment_file(folder: Path, text: str) -> ModuleType:
    """`text` as an experiment's file, run as a module of its own name, as the engine does."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "toy.py"
    path.write_text(text, encoding="utf-8")
    name = f"tunelab_experiment_toy_{abs(hash(str(path)))}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
