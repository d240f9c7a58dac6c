"""The training itself: Torch DDP on two workers against torchrun, XGBoost against plain XGBoost, the same script body.

The peer gets the niceness that Ray gives its workers, so that whatever else the machine does slows both alike.

With `--native OUT EPOCHS STEPS` it is the script that torchrun starts.
"""

from __future__ import annotations

import importlib.util
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from harness import Bench, Figure, benchmark, cluster, experiment, note, sweep

WALL, CPU = 1.05, 1.02
EPOCHS, ROUNDS = 20, 20  # reports in each
SPARE = 1.1  # the shortest is to take the time that was asked for
NICE = ["nice", "-n", "15"]


# ---- Torch -----------------------------------------------------------------------------------------------------------


def train(config):
    import loops
    import ray.train

    loops.ddp(config, ray.train.report)


def native(out: str, epochs: str, steps: str) -> None:
    """What torchrun runs in each of its processes."""
    import loops
    import torch.distributed as dist

    dist.init_process_group("gloo")
    loops.ddp({"out": out, "epochs": int(epochs), "steps": int(steps)}, lambda metrics: None)
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # now and then a thread of Gloo's aborts a process that ends in the usual way; the figures are written


def under_torchrun(out: Path, epochs: int, steps: int) -> float:
    """Seconds from start to exit."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    began = time.perf_counter()
    done = subprocess.run(
        [*NICE, *command, __file__, "--native", str(out), str(epochs), str(steps)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return time.perf_counter() - began


def under_tunelab(bench: Bench, out: Path, epochs: int, steps: int) -> float:
    """Seconds from the cluster's start to its end, for a sweep of one trial."""
    from ray.train import ScalingConfig
    from ray.train.torch import TorchTrainer

    trainer = TorchTrainer(
        train,
        train_loop_config={"out": str(out), "epochs": epochs, "steps": steps},
        scaling_config=ScalingConfig(num_workers=2),
    )
    began = time.perf_counter()
    with cluster(2, ours=True):
        sweep(experiment("torch", trainer, trials=1, last_step=epochs), bench.home("runs"))
    return time.perf_counter() - began


def torch_pairs(bench: Bench, pairs: int, seconds: float) -> tuple[list[Figure], dict[str, Any]]:
    import loops

    trial = bench.folder / "calibration"
    short = math.ceil(seconds * 10)
    under_torchrun(trial, 2, short)
    steps = math.ceil(SPARE * seconds / EPOCHS / (loops.read(trial)[0]["loop_s"] / (2 * short)))
    found: dict[str, list[dict[str, Any]]] = {"tunelab": [], "torchrun": []}
    for pair in range(pairs):
        note(f"Torch, pair {pair + 1} of {pairs}: {EPOCHS} epochs of {steps} steps")
        for name in ("tunelab", "torchrun") if pair % 2 else ("torchrun", "tunelab"):
            out = bench.folder / f"{name}-{pair}"
            run = under_tunelab(bench, out, EPOCHS, steps) if name == "tunelab" else under_torchrun(out, EPOCHS, steps)
            ranks = loops.read(out)
            assert len(ranks) == 2, ranks
            found[name].append({
                "wall_s": ranks[0]["loop_s"], "cpu_s": sum(rank["cpu_s"] for rank in ranks), "whole_run_s": run,
                "reporting_s": ranks[0]["reporting_s"],
            })  # fmt: skip
    return compare("Torch DDP, 2 workers", found, "torchrun"), {"torch": found, "torch_steps": steps}


def compare(what: str, found: dict[str, list[dict[str, Any]]], peer: str) -> list[Figure]:
    """Wall time and CPU-seconds of training judged by the median of the pairs' ratios; whole runs to be read only."""
    figures = []
    for key, label, target in (("wall_s", "wall time", WALL), ("cpu_s", "CPU-seconds in the workers", CPU)):
        ours, theirs = ([one[key] for one in found[name]] for name in ("tunelab", peer))
        ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
        figures.append(Figure(f"{what}: {label}", "s", ours, theirs, ratio, f"<= {target:g}", ratio <= target))
    ours, theirs = ([one["whole_run_s"] for one in found[name]] for name in ("tunelab", peer))
    return [*figures, Figure(f"{what}: whole run with start and end", "s", ours, theirs)]


# ---- XGBoost ---------------------------------------------------------------------------------------------------------


def boost(config, report):
    """Boost on made-up rows and report after every so many rounds; writes as `loops.ddp` does."""
    import json

    import numpy
    import xgboost

    class Reports(xgboost.callback.TrainingCallback):
        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            if (epoch + 1) % (config["rounds"] // ROUNDS) == 0:
                report({"step": (epoch + 1) // (config["rounds"] // ROUNDS), "score": 0.0})
            return False

    rng = numpy.random.default_rng(0)
    x = rng.standard_normal((100_000, 20), dtype=numpy.float32)
    y = (x[:, 0] * x[:, 1] + x[:, 2] > 0).astype(numpy.float32)
    rows = xgboost.DMatrix(x, y, nthread=2)
    began, cpu_began = time.perf_counter(), time.process_time()
    parameters = {"objective": "binary:logistic", "max_depth": 6, "nthread": 2, "tree_method": "hist"}
    xgboost.train(parameters, rows, num_boost_round=config["rounds"], callbacks=[Reports()])
    said = {"loop_s": time.perf_counter() - began, "cpu_s": time.process_time() - cpu_began}
    Path(config["out"]).write_text(json.dumps(said))


def boost_on_ray(config):
    import native_training
    import ray.train

    native_training.boost(config, ray.train.report)


def native_boost(out: str, rounds: str) -> None:
    boost({"out": out, "rounds": int(rounds)}, lambda metrics: None)


def xgboost_run(bench: Bench, name: str, out: Path, rounds: int) -> dict[str, Any]:
    import json

    began = time.perf_counter()
    if name == "plain":
        subprocess.run([*NICE, sys.executable, __file__, "--native-xgboost", str(out), str(rounds)], check=True)
    else:
        from ray.train import ScalingConfig
        from ray.train.xgboost import XGBoostTrainer

        trainer = XGBoostTrainer(
            boost_on_ray,
            train_loop_config={"out": str(out), "rounds": rounds},
            scaling_config=ScalingConfig(num_workers=1, resources_per_worker={"CPU": 2}),
        )
        with cluster(2, ours=True):
            sweep(experiment("xgboost", trainer, trials=1, last_step=ROUNDS), bench.home("runs"))
    whole_run_s, said = time.perf_counter() - began, json.loads(out.read_text())
    return {"wall_s": said["loop_s"], "cpu_s": said["cpu_s"], "whole_run_s": whole_run_s}


def xgboost_pairs(bench: Bench, pairs: int, seconds: float) -> tuple[list[Figure], dict[str, Any]]:
    few = ROUNDS * math.ceil(seconds)
    short = xgboost_run(bench, "plain", bench.folder / "calibration.json", few)
    rounds = ROUNDS * math.ceil(SPARE * seconds / short["wall_s"] * few / ROUNDS)
    found: dict[str, list[dict[str, Any]]] = {"tunelab": [], "plain": []}
    for pair in range(pairs):
        note(f"XGBoost, pair {pair + 1} of {pairs}: {rounds} rounds")
        for name in ("tunelab", "plain") if pair % 2 else ("plain", "tunelab"):
            found[name].append(xgboost_run(bench, name, bench.folder / f"xgboost-{name}-{pair}.json", rounds))
    return compare("XGBoost, 1 worker with 2 CPUs", found, "plain"), {"xgboost": found, "xgboost_rounds": rounds}


def main() -> None:
    with benchmark(__file__, __doc__) as bench:
        pairs, seconds = (1, 8.0) if bench.quick else (5, 60.0)
        figures, samples = torch_pairs(bench, pairs, seconds)
        if importlib.util.find_spec("xgboost") is None:
            note("XGBoost is not installed, so it is left out")
        else:
            more, others = xgboost_pairs(bench, pairs, seconds)
            figures, samples = [*figures, *more], {**samples, **others}
        bench.finish(figures, sizes={"pairs": pairs, "about_s": seconds, "reports": EPOCHS}, samples=samples)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--native"]:
        native(*sys.argv[2:])
    elif sys.argv[1:2] == ["--native-xgboost"]:
        native_boost(*sys.argv[2:])
    else:
        main()
