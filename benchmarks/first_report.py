"""From the command to the first report of the first trial: `tunelab sweep FILE` against a stock script of the same training."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

from harness import Bench, Figure, benchmark, events_of, note

from tunelab.journal.home import Home

TARGET = 0.5  # of the peer's time

# One epoch of a two-worker Torch loop, then two reports more; both files hold it.
LOOP = """
import ray.train
import torch
from ray.train.torch import TorchTrainer, prepare_model


def train(config):
    model = prepare_model(torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    for step in range(1, 4):
        optimizer.zero_grad()
        loss = model(torch.ones(32, 16)).square().mean()
        loss.backward()
        optimizer.step()
        ray.train.report({"step": step, "loss": loss.item()})

"""

OURS = (
    LOOP
    + """
from tunelab import ASHA, TPE, Budget, Experiment, Float, Objective

experiment = Experiment(
    name="first-report",
    trainer=TorchTrainer(train, scaling_config=ray.train.ScalingConfig(num_workers=2)),
    space={"lr": Float(1e-3, 1e-1, log=True)},
    objective=Objective("loss", mode="min", step="step", last_step=3),
    searcher=TPE(),
    scheduler=ASHA(),
    budget=Budget(trials=1),
)
"""
)

# As Ray's documentation puts the two together. It says when Tune's driver has the first report, and how long all took.
STOCK = (
    LOOP
    + """
import sys
import time

import ray.tune

STORAGE = sys.argv[1]


def trial(config):
    from ray.tune.integration.ray_train import TuneReportCallback

    run = ray.train.RunConfig(
        name=f"train-{ray.tune.get_context().get_trial_id()}", storage_path=STORAGE, callbacks=[TuneReportCallback()]
    )
    scaling = ray.train.ScalingConfig(num_workers=2)
    TorchTrainer(train, train_loop_config=config, scaling_config=scaling, run_config=run).fit()


class Clock(ray.tune.Callback):
    told = False

    def on_trial_result(self, iteration, trials, trial, result, **info):
        if not self.told:
            self.told = True
            print(f"\\nFIRST REPORT {time.time()}", flush=True)


if __name__ == "__main__":
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    ray.tune.Tuner(
        trial,
        param_space={"lr": ray.tune.loguniform(1e-3, 1e-1)},
        tune_config=ray.tune.TuneConfig(num_samples=1),
        run_config=ray.tune.RunConfig(storage_path=STORAGE, callbacks=[Clock()]),
    ).fit()
"""
)


def tunelab(bench: Bench, number: int, tracking: str) -> float:
    """Seconds from the start of `tunelab sweep` to the first `reported` event in the journal."""
    home = bench.home(f"runs-{tracking}-{number}")
    command = [sys.executable, "-m", "tunelab", "sweep", "first_report_experiment.py"]
    began = time.time()
    done = subprocess.run(
        [*command, "--home", str(home.path), "--tracking", tracking],
        cwd=bench.folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return first_reported(home) - began


def first_reported(home: Home) -> float:
    folder = home.latest("first-report")
    assert folder is not None
    return events_of(folder, "reported")[0].at


def stock(bench: Bench, number: int) -> float:
    """Seconds from the start of the stock script until its driver has the first report."""
    command = [sys.executable, str(bench.folder / "first_report_stock.py"), str(bench.folder / f"stock-{number}")]
    began = time.time()
    done = subprocess.run(command, cwd=bench.folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith("FIRST REPORT ")]
    assert said, f"{done.stdout}\n{done.stderr}"
    return float(said[0].split()[-1]) - began


def main() -> None:
    with benchmark(__file__, __doc__) as bench:
        pairs = 1 if bench.quick else 3
        Path(bench.folder, "first_report_experiment.py").write_text(OURS)
        Path(bench.folder, "first_report_stock.py").write_text(STOCK)
        Path(bench.folder, "pyproject.toml").write_text("")  # the project's root
        ours, untracked, theirs = [], [], []
        for pair in range(pairs):
            note(f"pair {pair + 1} of {pairs}")
            theirs.append(stock(bench, pair))
            ours.append(tunelab(bench, pair, "local"))
            if not bench.quick:
                untracked.append(tunelab(bench, pair, "none"))
        ratio = statistics.median(ours) / statistics.median(theirs)
        figures = [
            Figure("command to first report", "s", ours, theirs, ratio, f"<= {TARGET:g} of the peer", ratio <= TARGET),
            Figure("the same with --tracking none", "s", untracked),
        ]
        samples = {"tunelab_s": ours, "untracked_s": untracked, "peer_s": theirs}
        bench.finish(figures, sizes={"pairs": pairs, "workers": 2}, samples=samples)


if __name__ == "__main__":
    main()
