"""What the benchmarks share: a cluster, a sweep in this process, the figures' table and file."""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tunelab import FIFO, Budget, Experiment, Float, Objective, Random
from tunelab.engine import facts
from tunelab.journal import Event, read_events
from tunelab.journal.home import Home, SweepFolder
from tunelab.trackers.tracking import Tracking

HERE = Path(__file__).resolve().parent  # on `sys.path` of every process, so that loops are found there
UNTRACKED = Tracking(kind="none", name="none")


# ---- samples and figures ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figure:
    """One line of a benchmark's table.

    Args:
        name: What was measured.
        unit: `s`, `ms`, `MB`, ...
        ours: Samples under tunelab.
        peer: Samples under the peer, or empty when there is none.
        ratio: The number to judge, or None when `ours` has it.
        target: What has to be reached, in words; empty when the line is there to be read only.
        reached: Whether it was; None when nothing has to be.
    """

    name: str
    unit: str
    ours: Sequence[float]
    peer: Sequence[float] = ()
    ratio: float | None = None
    target: str = ""
    reached: bool | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name, "unit": self.unit, "tunelab": spread(self.ours), "peer": spread(self.peer),
            "ratio": self.ratio, "target": self.target, "reached": self.reached,
        }  # fmt: skip


def quantile(samples: Sequence[float], share: float) -> float:
    """The sample at or next to `share` of the way from the least to the most, between two of them in proportion."""
    ordered = sorted(samples)
    below = int(place := share * (len(ordered) - 1))
    return ordered[below] + (place - below) * (ordered[min(below + 1, len(ordered) - 1)] - ordered[below])


def spread(samples: Sequence[float]) -> dict[str, float] | None:
    """Median, p10, p90, least and most."""
    if not samples:
        return None
    return {
        "median": statistics.median(samples), "p10": quantile(samples, 0.1), "p90": quantile(samples, 0.9),
        "least": min(samples), "most": max(samples), "samples": len(samples),
    }  # fmt: skip


def table(figures: Sequence[Mapping[str, Any]]) -> str:
    """The figures as `Figure.to_json` gives them, a line each: medians, p10 to p90 in brackets, ratio, target, verdict."""
    rows = [("", "tunelab", "peer", "ratio", "target", "")]
    for figure in figures:
        verdict = {True: "reached", False: "MISSED", None: ""}[figure["reached"]]
        ratio = "" if figure["ratio"] is None else f"{figure['ratio']:.3g}"
        unit = figure["unit"]
        rows.append(
            (figure["name"], _cell(figure["tunelab"], unit), _cell(figure["peer"], unit), ratio, figure["target"], verdict)
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def _cell(found: Mapping[str, float] | None, unit: str) -> str:
    if found is None:
        return "-"
    if found["samples"] == 1:
        return f"{found['median']:.4g} {unit}".strip()
    return f"{found['median']:.4g} {unit} [{found['p10']:.3g}..{found['p90']:.3g}]".replace(" [", " [" if unit else "[")


# ---- one benchmark ---------------------------------------------------------------------------------------------------


@dataclass
class Bench:
    """One run of one benchmark: its sizes, its temporary folder, and the file it writes.

    Args:
        name: Of the script.
        quick: Whether to use sizes that only show that it works.
        folder: Temporary folder for everything that runs.
        results: The JSON file.
    """

    name: str
    quick: bool
    folder: Path
    results: Path

    def __post_init__(self) -> None:
        self._began, self._load = time.time(), os.getloadavg()[0]

    def home(self, name: str) -> Home:
        """A home for sweeps of its own."""
        return Home(self.folder / name)

    def finish(self, figures: Sequence[Figure], *, sizes: Mapping[str, Any], samples: Mapping[str, Any]) -> None:
        """Print the table and write it with the raw samples."""
        rows = [figure.to_json() for figure in figures]
        print(table(rows), flush=True)
        said = {
            "benchmark": self.name, "quick": self.quick, "machine": machine(self._load), "took_s": time.time() - self._began,
            "sizes": sizes, "figures": rows, "samples": samples,
        }  # fmt: skip
        self.results.parent.mkdir(parents=True, exist_ok=True)
        self.results.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
        print(f"written to {self.results}")


@contextmanager
def benchmark(file: str, doc: str | None) -> Iterator[Bench]:
    """Read the command line and hand out a temporary folder."""
    name = Path(file).stem
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="sizes that only show that it works; results/NAME.quick.json")
    parser.add_argument("--results", type=Path, help=f"where the JSON goes (benchmarks/results/{name}.json)")
    args = parser.parse_args()
    results = args.results or HERE / "results" / f"{name}{'.quick' if args.quick else ''}.json"
    with tempfile.TemporaryDirectory(prefix=f"tunelab-{name}-", ignore_cleanup_errors=True) as folder:
        print(f"{name}: {(doc or '').partition(chr(10))[0]}", flush=True)
        yield Bench(name, args.quick, Path(folder).resolve(), results)


def machine(load_before: float) -> dict[str, Any]:
    """Where and when the figures were taken."""
    return {
        "cpus": os.cpu_count(), "platform": platform.platform(), "load_before": load_before, "load_after": os.getloadavg()[0],
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "versions": facts.versions(), "git": facts.git(HERE.parent),
    }  # fmt: skip


def note(text: str) -> None:
    """Say what is going on, so that nobody thinks it hangs."""
    print(f"  {text}", flush=True)


# ---- Ray and sweeps --------------------------------------------------------------------------------------------------


@contextmanager
def cluster(cpus: int, *, ours: bool) -> Iterator[None]:
    """A Ray cluster of this machine with so many CPUs, without dashboard.

    Args:
        cpus: How many trials' worth of CPUs Ray is told that there are.
        ours: Whether it is started as tunelab starts one; the peer's is stock.
    """
    import ray

    from tunelab.engine.ray.actor import RAY_SETTINGS
    from tunelab.engine.ray.cluster import start_local

    before = dict(os.environ)
    try:
        if ours:
            start_local(cpus)
        else:
            ray.init("local", num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        yield
    finally:
        ray.shutdown()
        for name in RAY_SETTINGS.keys() - before.keys():
            os.environ.pop(name, None)


def experiment(name: str, trainer: Any, *, trials: int, last_step: int, concurrent: int | None = None) -> Experiment:
    """An experiment of random trials that all run to their end. Its objective is `score` at `step`."""
    return Experiment(
        name=name, trainer=trainer, space={"x": Float(0.0, 1.0)},
        objective=Objective("score", step="step", last_step=last_step), searcher=Random(), scheduler=FIFO(),
        budget=Budget(trials=trials, concurrent=concurrent),
    )  # fmt: skip


class Printed:
    """A watcher that shows sentences and no events."""

    def changed(self, state: Any, event: Event) -> None:
        pass

    def say(self, text: str) -> None:
        note(text)


def sweep(made: Experiment, home: Home, tracking: Tracking = UNTRACKED) -> SweepFolder:
    """Run a sweep to its end on the cluster that there is."""
    from tunelab.core.trial import Status
    from tunelab.engine.sweeping import Plan, start

    done = start(Plan(made, HERE, home, tracking, watcher=Printed()))
    bad = [trial for trial in done.state.trials.values() if trial.status is not Status.COMPLETED]
    why = [trial.attempts[-1].details or trial.reason for trial in bad if trial.attempts]
    assert done.outcome == "finished" and done.tracked and not bad, "\n".join([f"{done.outcome}: {done.reason}", *why[:1]])
    return done.folder


def local_tracking(home: Home) -> Tracking:
    """MLflow in a SQLite file of the home, as `tunelab sweep` tracks when nobody says otherwise."""
    from tunelab.trackers.tracking import resolve_tracking

    return resolve_tracking("local", home=home.path, project_root=None, environ={})


def events_of(folder: SweepFolder, kind: str) -> list[Event]:
    """The journal's events of one kind, in order."""
    return [event for event in read_events(folder.journal) if event.kind == kind]
