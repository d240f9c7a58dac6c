"""How long it takes to read a sweep of 10,000 trials. `python benchmarks/reading.py` prints it and writes results/reading.json.

The journal comes from the real conductor and the real ASHA on made-up curves, so it holds what a sweep's journal holds:
about twelve events a trial, most trials stopped after one to three reports. What is timed is what somebody waits for: whole
`tunelab` processes, and for a resume the conductor's replay together with the process that does it.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tunelab import ASHA, Budget, Choice, Experiment, Float, Int, Objective
from tunelab.engine.conductor import Conductor
from tunelab.engine.description import describe
from tunelab.journal import Journal, events
from tunelab.journal.home import SweepFolder

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).resolve().parent / "results" / "reading.json"
SWEEP = "bench.1"
LAST_STEP, CONCURRENT = 81, 8

# What is timed -> (arguments of `tunelab`, target in seconds at 10,000 trials).
VERBS: dict[str, tuple[list[str], float | None]] = {
    "tunelab ls": (["ls"], 0.5),
    "tunelab show SWEEP": (["show", SWEEP], 0.5),
    "tunelab compare SWEEP --top 20": (["compare", SWEEP, "--top", "20"], 1.0),
    "tunelab best SWEEP": (["best", SWEEP], None),
    "tunelab why SWEEP/0007": (["why", f"{SWEEP}/0007"], None),
    "tunelab --version": (["--version"], None),  # the floor: Python and click
}
REPLAY = "conductor: journal, state, ASHA"
REPLAY_TARGET_S = 5.0

# Reads the journal as a resume does and prints how long that took, without the interpreter's start.
_REPLAY = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from reading import experiment
from tunelab.engine.conductor import Conductor
from tunelab.journal import Journal
made = experiment(int(sys.argv[3]))
began = time.perf_counter()
Conductor(made, Journal(Path(sys.argv[1])), budget=made.budget)
print(time.perf_counter() - began)
"""


@dataclass(frozen=True)
class Blind:
    """Random configurations without a look at the history: proposing is not what is measured here."""

    name: ClassVar[str] = "blind"

    def problems(self) -> list[str]:
        return []

    def propose(self, number: int, *, seed: int, **others: Any) -> dict[str, Any]:
        rng = random.Random(f"{seed}/{number}")
        width, batch_size = round(16 * 16 ** rng.random()), rng.choice([16, 32, 64])
        return {"lr": 10 ** rng.uniform(-4, -1), "width": width, "dropout": rng.uniform(0, 0.5), "batch_size": batch_size}


def experiment(trials: int) -> Experiment:
    """The experiment that the journal is of."""
    space = {
        "lr": Float(1e-4, 1e-1, log=True),
        "width": Int(16, 256, log=True),
        "dropout": Float(0.0, 0.5),
        "batch_size": Choice([16, 32, 64]),
    }
    objective = Objective("accuracy", step="epoch", last_step=LAST_STEP)
    return Experiment(
        name="bench", trainer=print, space=space, objective=objective, searcher=Blind(), scheduler=ASHA(),
        budget=Budget(trials=trials),
    )  # fmt: skip


def build(home: Path, trials: int) -> tuple[SweepFolder, int]:
    """A finished sweep's folder in `home`, and how many events its journal holds."""
    made, folder = experiment(trials), SweepFolder(home / SWEEP)
    folder.path.mkdir(parents=True)
    Journal.create(folder.journal, events.sweep_created(sweep=SWEEP, experiment=describe(made), facts={"git": {}})).close()
    ticks = iter(range(1_000_000_000, 2_000_000_000))
    journal = Journal(folder.journal, clock=lambda: float(next(ticks)))
    journal._connection.execute("PRAGMA synchronous = OFF")  # the same rows without a hundred thousand waits for the disk
    conductor = Conductor(made, journal, budget=made.budget, clock=lambda: 0.0)
    budget = {"trials": trials, "time_s": None, "concurrent": CONCURRENT}
    conductor.begin(events.session_started(pid=1, host="here", resources={"CPU": 8.0}, budget=budget, tracking=None))
    rng = random.Random(0)
    due: list[tuple[float, int, int, Mapping[str, Any]]] = []  # when, trial, epoch, configuration
    now = 0.0
    while True:
        while len(due) < CONCURRENT and (launch := conductor.next_launch()) is not None:
            heapq.heappush(due, (now + 0.5 + rng.random(), launch.trial, 1, launch.config))
        if not due:
            break
        now, trial, epoch, config = heapq.heappop(due)
        accuracy = 0.97 - 0.05 * (math.log10(config["lr"]) + 2.5) ** 2 - 0.1 * config["dropout"] - 0.3 / epoch
        accuracy += rng.gauss(0, 0.01)
        metrics = {"epoch": epoch, "accuracy": accuracy, "loss": 1 - accuracy, "epoch_s": rng.random()}
        if not conductor.reported(trial, metrics, f"{trial:04d}/checkpoint_1_{epoch}"):
            continue
        if epoch == LAST_STEP:
            conductor.completed(trial)
        else:
            heapq.heappush(due, (now + 0.5 + rng.random(), trial, epoch + 1, config))
    conductor.end()
    journal.close()
    return folder, conductor.state.seq


def repeat(runs: int, once: Callable[[], float]) -> dict[str, float]:
    """Seconds of `runs` calls, after one that only warms the disk's cache."""
    once()
    seconds = [once() for _ in range(runs)]
    return {"median_s": statistics.median(seconds), "least_s": min(seconds), "most_s": max(seconds), "runs": runs}


def command(home: Path, arguments: list[str]) -> float:
    """Seconds that one `tunelab` process took, its output into a pipe."""
    home_option = [] if arguments[0].startswith("-") else ["--home", str(home)]
    call = [sys.executable, "-m", "tunelab", *arguments, *home_option]
    began = time.perf_counter()
    subprocess.run(call, check=True, capture_output=True, cwd=home, env={**os.environ, "PYTHONPATH": str(ROOT)})
    return time.perf_counter() - began


def replay(folder: SweepFolder, trials: int) -> float:
    """Seconds in which a conductor is built from the journal, in a process of its own."""
    call = [sys.executable, "-c", _REPLAY, str(folder.journal), str(Path(__file__).parent), str(trials)]
    done = subprocess.run(call, check=True, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=10_000, help="how many trials the sweep has (10000)")
    parser.add_argument("--runs", type=int, default=5, help="timed runs of each (5)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the JSON goes (benchmarks/results/reading.json)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tunelab-reading-") as temporary:
        home = Path(temporary) / "runs"
        began = time.perf_counter()
        folder, count = build(home, args.trials)
        built_s = time.perf_counter() - began
        size_mb = folder.journal.stat().st_size / 1e6
        print(
            f"{args.trials} trials, {count} events, {size_mb:.1f} MB, written in {built_s:.1f} s; load {os.getloadavg()[0]:.1f}"
        )
        rows: dict[str, dict[str, Any]] = {}
        for name, (arguments, target) in VERBS.items():
            rows[name] = repeat(args.runs, lambda arguments=arguments: command(home, arguments)) | {"target_s": target}
        rows[REPLAY] = repeat(args.runs, lambda: replay(folder, args.trials)) | {"target_s": REPLAY_TARGET_S}
    print(f"{'':<34}{'median':>8}{'least':>8}{'most':>8}{'target':>8}")
    for name, row in rows.items():
        target_text = "" if row["target_s"] is None else f"{row['target_s']:.1f}"
        print(f"{name:<34}{row['median_s']:>8.2f}{row['least_s']:>8.2f}{row['most_s']:>8.2f}{target_text:>8}")
    machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "load_1min": os.getloadavg()[0]}
    sweep = {"trials": args.trials, "events": count, "journal_mb": round(size_mb, 2), "written_s": round(built_s, 1)}
    args.results.parent.mkdir(parents=True, exist_ok=True)
    args.results.write_text(
        json.dumps({"sweep": sweep, "machine": machine, "seconds": rows}, indent=2) + "\n", encoding="utf-8"
    )
    print(f"written to {args.results}")


if __name__ == "__main__":
    main()
