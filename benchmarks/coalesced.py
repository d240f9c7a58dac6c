"""Metric points that pass through one trial into the journal in a second: two workers, 20 metrics a report, none dropped."""

from __future__ import annotations

import time
from dataclasses import replace

import ray.train
from harness import Figure, benchmark, cluster, experiment, note, sweep
from ray.train.torch import TorchTrainer

from tunelab.trackers.tracking import resolve_tracking

METRICS = 20
TARGET = 5000.0


def train(config):
    """Reports as fast as it can, as boosting rounds come."""
    for step in range(1, config["reports"] + 1):
        ray.train.report({"step": step, "score": step / 1e6, **{f"metric{i}": step * 0.1 + i for i in range(METRICS - 1)}})


def main() -> None:
    with benchmark(__file__, __doc__) as bench:
        reports, repeats = (1000, 1) if bench.quick else (5000, 3)
        into_journal, all_tracked = [], []
        with cluster(2, ours=True):
            for number in range(repeats):
                note(f"{reports} reports of {METRICS} metrics")
                trainer = TorchTrainer(
                    train, train_loop_config={"reports": reports}, scaling_config=ray.train.ScalingConfig(num_workers=2)
                )
                made = experiment("coalesced", trainer, trials=1, last_step=reports)
                home = bench.home(f"runs{number}")
                tracking = resolve_tracking("local", home=home.path, project_root=None, environ={})
                folder = sweep(replace(made, reports="coalesced"), home, tracking)
                drained = time.time()
                (trial,) = folder.load().trials.values()
                assert [report.step for report in trial.reports] == list(range(1, reports + 1)), "a report is missing"
                points = reports * METRICS
                assert _tracked(tracking, trial.id) == points, "a point is missing in MLflow"
                into_journal.append(points / (trial.reports[-1].at - trial.reports[0].at))
                all_tracked.append(points / (drained - trial.reports[0].at))
        ok = sorted(into_journal)[len(into_journal) // 2] >= TARGET
        figures = [
            Figure("points a second into the journal", "/s", into_journal, target=f">= {TARGET:g}", reached=ok),
            Figure("points a second until MLflow has all", "/s", all_tracked),
        ]
        sizes = {"reports": reports, "metrics": METRICS, "workers": 2}
        bench.finish(figures, sizes=sizes, samples={"journal": into_journal, "tracked": all_tracked})


def _tracked(tracking, trial: str) -> int:
    """How many points MLflow holds of the trial: the metrics, and the step, which is logged as one too."""
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=tracking.tracking_uri)
    (found,) = [found for found in client.search_experiments() if found.name == "coalesced"]
    (run,) = [run for run in client.search_runs([found.experiment_id]) if run.info.run_name.endswith(f"/{trial}")]
    names = ["score", *(f"metric{i}" for i in range(METRICS - 1))]
    return sum(len(client.get_metric_history(run.info.run_id, name)) for name in names)


if __name__ == "__main__":
    main()
