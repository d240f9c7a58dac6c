"""What the driver spends on a report of 20 metrics with MLflow on, against Ray's MLflow callback on the same reports."""

from __future__ import annotations

import random
import sqlite3
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness import Figure, benchmark, local_tracking, note

from tunelab import ASHA, Budget, Experiment, Float, Objective, Random
from tunelab.engine.conductor import Conductor
from tunelab.engine.description import describe
from tunelab.journal import Journal, events
from tunelab.trackers.process import TrackerProcess
from tunelab.trackers.tracking import Tracking

TRIALS, TARGET, PAUSE_S = 8, 50.0, 0.005


@dataclass(eq=False)
class TuneTrial:
    """What Ray's callback asks of one of Tune's trials."""

    trial_id: str
    config: dict[str, Any]

    def __str__(self) -> str:
        return self.trial_id


def report(trial: int, step: int) -> dict[str, float]:
    """The metrics of a report: the same for both sides. All trials score alike, so that ASHA stops none."""
    rng = random.Random(f"{trial}/{step}")
    return {"step": step, "score": float(step), **{f"metric_{index}": rng.random() for index in range(18)}}


class Driver:
    """A sweep's driver without the cluster: conductor, journal and tracker, as `engine/sweeping.py` puts them together."""

    def __init__(self, folder: Path, tracking: Tracking) -> None:
        folder.mkdir(parents=True)
        made = Experiment(
            name="driver", trainer=print, space={"x": Float(0.0, 1.0)},
            objective=Objective("score", step="step", last_step=1_000_000),
            searcher=Random(), scheduler=ASHA(), budget=Budget(trials=TRIALS),
        )  # fmt: skip
        created = events.sweep_created(sweep="driver.1", experiment=describe(made), facts={"git": {}})
        self._journal = Journal.create(folder / "journal.sqlite", created)
        self._tracker = TrackerProcess(folder / "journal.sqlite", tracking, folder / "tracker.log")
        self._conductor = Conductor(made, self._journal, budget=made.budget, notify=lambda state, event: self._tracker.poke())
        self._tracker.start()
        budget = asdict(made.budget)
        self._conductor.begin(
            events.session_started(pid=1, host="here", resources={}, budget=budget, tracking=tracking.to_json())
        )
        for _ in range(TRIALS):
            assert self._conductor.next_launch() is not None

    def report(self, trial: int, step: int) -> float:
        """Milliseconds that the driver spends on it."""
        metrics = report(trial, step)
        began = time.perf_counter()
        goes_on = self._conductor.reported(trial, metrics, None)
        took_ms = 1000 * (time.perf_counter() - began)
        assert goes_on, self._conductor.state.trials[trial].reason
        return took_ms

    def end(self) -> float:
        """End the sweep; seconds until everything is in MLflow."""
        for trial in range(TRIALS):
            self._conductor.completed(trial)
        self._conductor.end()
        began = time.perf_counter()
        assert self._tracker.close(), "tracking is incomplete"
        self._journal.close()
        return time.perf_counter() - began


def points(store: Path) -> int:
    """How many metric points the store has by now."""
    try:
        connection = sqlite3.connect(f"{store.as_uri()}?mode=ro", uri=True, timeout=10)
        try:
            return connection.execute("SELECT count(*) FROM metrics WHERE key LIKE 'metric_%'").fetchone()[0]
        finally:
            connection.close()
    except sqlite3.Error:  # no file or no table yet
        return 0


def wait_for(store: Path, count: int) -> None:
    """Wait until the tracker has caught up, so that its work does not fall into the other side's time."""
    deadline = time.monotonic() + 120
    while points(store) < count:
        assert time.monotonic() < deadline, f"the tracker has recorded {points(store)} of {count} points in two minutes"
        time.sleep(0.2)


def main() -> None:
    from ray.air.integrations.mlflow import MLflowLoggerCallback

    with benchmark(__file__, __doc__) as bench:
        rounds, steps, peer_reports = (2, 10, 2) if bench.quick else (5, 40, 4)
        tracking = local_tracking(bench.home("runs"))
        assert tracking.sqlite_file is not None
        driver = Driver(bench.folder / "runs" / "driver.1", tracking)
        stock = MLflowLoggerCallback(tracking_uri=f"sqlite:///{bench.folder}/stock.sqlite", experiment_name="driver")
        stock.setup()
        trials = [TuneTrial(f"{number:04d}", {"x": 0.5}) for number in range(TRIALS)]
        for trial in trials:
            stock.log_trial_start(trial)  # type: ignore[arg-type]
        for number in range(TRIALS):  # the tracker has imported MLflow and made its store when these are in it
            driver.report(number, 1)
        wait_for(tracking.sqlite_file, TRIALS * 18)
        ours, theirs, step, peer_count = [], [], 1, 0
        for round_ in range(rounds):
            note(f"round {round_ + 1} of {rounds}: {steps * TRIALS} reports here, {peer_reports} there")
            for _ in range(steps):
                step += 1
                for number in range(TRIALS):
                    ours.append(driver.report(number, step))
                    time.sleep(PAUSE_S)
            wait_for(tracking.sqlite_file, TRIALS * 18 * step)
            for _ in range(peer_reports):
                number, peer_step = peer_count % TRIALS, peer_count // TRIALS + 1
                result = {**report(number, peer_step), "training_iteration": peer_step}
                began = time.perf_counter()
                stock.log_trial_result(peer_step, trials[number], result)  # type: ignore[arg-type]
                theirs.append(1000 * (time.perf_counter() - began))
                peer_count += 1
        drain_s = driver.end()
        ratio = statistics.median(theirs) / statistics.median(ours)
        figures = [
            Figure("driver, a report of 20 metrics", "ms", ours, theirs, ratio, f">= {TARGET:g} times less", ratio >= TARGET),
            Figure("all reports together", "s", [sum(ours) / 1000], [statistics.mean(theirs) * len(ours) / 1000]),
            Figure("the tracker's drain at the end", "s", [drain_s]),
        ]
        sizes = {"trials": TRIALS, "reports_a_trial": rounds * steps, "peer_reports": peer_count, "pause_s": PAUSE_S}
        bench.finish(figures, sizes=sizes, samples={"tunelab_ms": ours, "peer_ms": theirs})


if __name__ == "__main__":
    main()
