"""What one `ray.train.report()` without a checkpoint costs the train loop, lock-step, two workers: tunelab against stock."""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import replace
from pathlib import Path

import peers
import ray.train
from harness import Figure, benchmark, cluster, experiment, note, sweep
from ray.train.torch import TorchTrainer

TARGET_MS = 10.0


def train(config):
    """Reports as fast as it can; rank 0 writes how long each report took."""
    seconds = []
    for step in range(1, config["reports"] + 1):
        began = time.perf_counter()
        ray.train.report({"step": step, "score": 0.0})
        seconds.append(time.perf_counter() - began)
    if ray.train.get_context().get_world_rank() == 0:
        Path(config["out"]).write_text(json.dumps(seconds))


def main() -> None:
    with benchmark(__file__, __doc__) as bench:
        reports, peer_reports = (100, 5) if bench.quick else (500, 12)
        ours, stock = bench.folder / "ours.json", bench.folder / "stock.json"
        with cluster(2, ours=True):
            note(f"tunelab, {reports} reports")
            trainer = TorchTrainer(
                train,
                train_loop_config={"reports": reports, "out": str(ours)},
                scaling_config=ray.train.ScalingConfig(num_workers=2),
            )
            made = experiment("round-trip", trainer, trials=1, last_step=reports)
            sweep(replace(made, reports="lockstep"), bench.home("runs"))
        with cluster(4, ours=False):
            note(f"stock, {peer_reports} reports")
            config = {"reports": peer_reports, "out": str(stock)}
            peers.torch_trials(train, config, trials=1, folder=bench.folder / "stock")
        times_ms, peer_ms = ([1000 * second for second in json.loads(file.read_text())] for file in (ours, stock))
        median_ms = statistics.median(times_ms)
        ratio = statistics.median(peer_ms) / median_ms
        figures = [
            Figure("report() on rank 0", "ms", times_ms, peer_ms, ratio, f"median <= {TARGET_MS:g} ms", median_ms <= TARGET_MS)
        ]
        sizes = {"reports": reports, "peer_reports": peer_reports, "workers": 2}
        bench.finish(figures, sizes=sizes, samples={"tunelab_ms": times_ms, "peer_ms": peer_ms})


if __name__ == "__main__":
    main()
