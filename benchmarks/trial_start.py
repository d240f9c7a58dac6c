"""From a trial's `started` in the journal to the first line of its train loop on rank 0, warm, with two Torch workers."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

import ray.train
from harness import Figure, benchmark, cluster, events_of, experiment, note, quantile, sweep
from ray.train.torch import TorchTrainer

TARGET_S, DRIFT, GROWTH = 0.25, 0.10, 0.05


def train(config):
    """Says when it began and how much memory its process holds."""
    began = time.time()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    rss_mb = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    ray.train.report({"step": 1, "score": 0.0, "began": began, "rss_mb": rss_mb, "pid": os.getpid()})


def main() -> None:
    with benchmark(__file__, __doc__) as bench:
        trials = 24 if bench.quick else 200
        early, late = (slice(3, 9), slice(-6, None)) if bench.quick else (slice(10, 30), slice(180, 200))
        settled = early.start
        with cluster(2, ours=True):
            note(f"{trials} trials")
            trainer = TorchTrainer(train, scaling_config=ray.train.ScalingConfig(num_workers=2))
            folder = sweep(experiment("trial-start", trainer, trials=trials, last_step=1), bench.home("runs"))
        started = [event.at for event in events_of(folder, "started")]
        said = [event.data["metrics"] for event in events_of(folder, "reported")]
        starts = [metrics["began"] - at for metrics, at in zip(said, started, strict=True)]
        memory_mb = [metrics["rss_mb"] for metrics in said]
        warm = starts[1:]
        drift = statistics.median(starts[late]) / statistics.median(starts[early])
        growth = memory_mb[-1] / memory_mb[settled]
        median_s, first = statistics.median(warm), settled + 1
        figures = [
            Figure("trial start, warm", "s", warm, target=f"median <= {TARGET_S:g} s", reached=median_s <= TARGET_S),
            Figure("90th percentile", "s", [quantile(warm, 0.9)]),
            Figure("first trial", "s", starts[:1]),
            Figure(
                f"last {len(starts[late])} trials / trials {first}-{early.stop}", "s", starts[late], ratio=drift,
                target="within 10 %", reached=drift <= 1 + DRIFT,
            ),
            Figure(
                f"worker's memory, trial {trials} / trial {first}", "MB", memory_mb[-1:], ratio=growth, target="within 5 %",
                reached=growth <= 1 + GROWTH,
            ),
            Figure("worker processes on rank 0", "", [float(len({metrics["pid"] for metrics in said}))]),
        ]  # fmt: skip
        bench.finish(figures, sizes={"trials": trials, "workers": 2}, samples={"starts_s": starts, "rss_mb": memory_mb})


if __name__ == "__main__":
    main()
