"""What a one-slot sweep of trials of 5 s costs beyond their training, with and without MLflow tracking."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import loops
import ray.train
from harness import UNTRACKED, Bench, Figure, benchmark, cluster, events_of, experiment, local_tracking, note, sweep
from ray.train.torch import TorchTrainer

TARGET, TRACKING, EPOCHS, TRIAL_S = 1.10, 1.05, 5, 5.0


def train(config):
    import loops
    import ray.train

    from tunelab import current_trial

    number = current_trial().id.rpartition("/")[2]
    loops.ddp({**config, "out": f"{config['out']}/{number}"}, ray.train.report)


def run(bench: Bench, name: str, trials: int, steps: int) -> dict[str, Any]:
    """One sweep: seconds of its session, of all its trials but the first, and of those trials' training."""
    out, home = bench.folder / name, bench.home(f"runs-{name}")
    trainer = TorchTrainer(
        train,
        train_loop_config={"out": str(out), "epochs": EPOCHS, "steps": steps},
        scaling_config=ray.train.ScalingConfig(num_workers=2),
    )
    tracking = local_tracking(home) if name.startswith("tracked") else UNTRACKED
    with cluster(2, ours=True):
        folder = sweep(experiment("overhead", trainer, trials=trials, last_step=EPOCHS), home, tracking)
    ends = [event.at for event in events_of(folder, "finished")]
    trained = [loops.read(Path(out, f"{trial:04d}"))[0] for trial in range(trials)]
    training = [one["loop_s"] - one["reporting_s"] for one in trained]
    return {
        "wall_s": ends[-1] - ends[0],
        "training_s": sum(training[1:]),
        "ratio": (ends[-1] - ends[0]) / sum(training[1:]),
        "trials_s": training,
        "reporting_s": [one["reporting_s"] for one in trained],
        "turnarounds_s": [end - before for before, end in pairwise(ends)],
    }


def main() -> None:
    with benchmark(__file__, __doc__) as bench:
        trials, trial_s = (3, 2.0) if bench.quick else (32, TRIAL_S)
        note("calibration")
        tried = 50 if bench.quick else 200
        short = run(bench, "calibration", 2, tried)
        steps = math.ceil(1.1 * trial_s * tried / short["trials_s"][1])
        found = {}
        for name in ("tracked", "untracked"):
            note(f"{name}: {trials} trials of {EPOCHS} epochs of {steps} steps")
            found[name] = run(bench, name, trials, steps)
        tracked, untracked = found["tracked"], found["untracked"]
        tracking = tracked["wall_s"] / untracked["wall_s"]
        walls = {name: [one["wall_s"]] for name, one in found.items()}
        figures = [
            Figure("a trial's training, tracked", "s", tracked["trials_s"][1:]),
            Figure(
                "end to end of trials, tracked, against training", "s", tracked["turnarounds_s"], tracked["trials_s"][1:],
                tracked["ratio"], f"<= {TARGET:g}", tracked["ratio"] <= TARGET,
            ),
            Figure(
                "the same, untracked", "s", untracked["turnarounds_s"], untracked["trials_s"][1:], untracked["ratio"],
                f"<= {TARGET:g}", untracked["ratio"] <= TARGET,
            ),
            Figure(
                "wall time, tracked against untracked", "s", walls["tracked"], walls["untracked"], tracking,
                f"<= {TRACKING:g}", tracking <= TRACKING,
            ),
        ]  # fmt: skip
        sizes = {"trials": trials, "epochs": EPOCHS, "steps": steps, "workers": 2}
        bench.finish(figures, sizes=sizes, samples=found)


if __name__ == "__main__":
    main()
