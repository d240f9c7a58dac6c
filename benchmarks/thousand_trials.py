"""A thousand trials of one report each, tracked in MLflow: tunelab against a Tune class trainable without tracking."""

from __future__ import annotations

import statistics
import time

import peers
import ray.train
from harness import Figure, benchmark, cluster, events_of, experiment, local_tracking, note, sweep

TARGET, CPUS = 2.0, 2


def body():
    return {"step": 1, "score": 0.0}


def train(config):
    ray.train.report(body())


def main() -> None:
    with benchmark(__file__, __doc__) as bench:
        trials, runs = (100, 1) if bench.quick else (1000, 3)
        ours, drains, stock = [], [], []
        for run in range(runs):
            note(f"run {run + 1} of {runs}, {trials} trials")
            home = bench.home(f"runs-{run}")
            with cluster(CPUS, ours=True):
                folder = sweep(experiment("thousand", train, trials=trials, last_step=1), home, local_tracking(home))
                returned = time.time()
            ended = events_of(folder, "session_ended")[0].at
            ours.append(ended - events_of(folder, "session_started")[0].at)
            drains.append(returned - ended)
            with cluster(CPUS, ours=False):
                stock.append(peers.class_trials(body, trials=trials, folder=bench.folder / f"stock-{run}")[0])
        ratio = statistics.median(ours) / statistics.median(stock)
        figures = [
            Figure(f"{trials} trials to the sweep's end", "s", ours, stock, ratio, f"<= {TARGET:g}", ratio <= TARGET),
            Figure("a trial", "ms", [1000 * one / trials for one in ours], [1000 * one / trials for one in stock]),
            Figure("the tracker's drain after that", "s", drains),
        ]
        sizes = {"trials": trials, "runs": runs, "slots": CPUS}
        bench.finish(figures, sizes=sizes, samples={"tunelab_s": ours, "drain_s": drains, "peer_s": stock})


if __name__ == "__main__":
    main()
