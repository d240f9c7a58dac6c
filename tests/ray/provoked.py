"""Train loops that fail in every way there is, one way for each trial of a sweep, and what became of it as a table."""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import ray.train
import torch.distributed
from ray.train.torch import TorchTrainer
from toys import report, resumed_epoch

from tunelab import Infeasible, current_trial
from tunelab.core.failures import Failure
from tunelab.core.trial import Continue, Stop, Trial

EPOCHS = 3
HANGS_S = 3.0  # report_timeout_s

# What each trial does, in order of number. The rest of a loop that goes wrong at epoch 2 is fine: a score of 1 an epoch.
WAYS = {
    "nothing": "",
    "user error": "`raise RuntimeError` at epoch 2, every time; `max_failures=1`",
    "infeasible": "`raise tunelab.Infeasible`",
    "unsupported": "a strategy of `ray.train.lightning` for the Trainer of `pytorch_lightning`, with `lightning` installed too",
    "diverged": "reports NaN at epoch 2",
    "out of memory": "allocates until `MemoryError` at epoch 2, the first time only",
    "out of memory again": "allocates until `MemoryError` at epoch 2, every time",
    "lost": "worker killed with SIGKILL at epoch 2",
    "hung": "sleeps at epoch 2; `report_timeout_s=3`",
    "restart ignored": "worker killed at epoch 2, and the loop begins anew",
    "no report": "reports no `score`",
    "bad report": "reports epoch 1 after epoch 1",
    "stopped": "told to stop by the scheduler at epoch 2",
    "interrupted": "Ctrl-C after epoch 1",
}
NUMBERS = {way: number for number, way in enumerate(WAYS)}


def misbehave(config):
    """A plain loop, but for what its trial's number says."""
    trial = current_trial()
    way, again = list(WAYS)[int(trial.id[-4:])], trial.attempt > 1
    start = 0 if way == "restart ignored" else resumed_epoch()
    if way == "infeasible":
        raise Infeasible("too wide")
    if way == "unsupported":
        ask_for_a_strategy_of_the_other_package()
    for epoch in range(start + 1, EPOCHS + 1):
        metrics = {"epoch": epoch, "score": float(epoch)}
        if epoch == 2:
            if way == "user error":
                raise RuntimeError("no luck")
            if way in ("lost", "restart ignored") and not again:
                os.kill(os.getpid(), 9)
            if way == "out of memory again" or (way == "out of memory" and not again):
                use_up_memory()
            if way == "hung" and not again:
                time.sleep(3600)
            if way == "diverged":
                metrics["score"] = float("nan")
            if way == "bad report":
                metrics["epoch"] = 1
        if way == "no report":
            del metrics["score"]
        report(metrics, epoch)


def ask_for_a_strategy_of_the_other_package():
    from pytorch_lightning import Trainer
    from ray.train.lightning import RayDDPStrategy

    Trainer(strategy=RayDDPStrategy())


def use_up_memory():
    """Allocate until there is no more, which is soon."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**28, hard))
    hoard = []
    try:
        while True:
            hoard.append(bytearray(2**25))
    finally:
        hoard.clear()
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


class StopsOne:
    """A scheduler that stops the trial that is there to be stopped."""

    name = "stops one"

    def judge(self, objective, last_step):
        return self

    def decide(self, report):
        if report.trial == NUMBERS["stopped"] and report.step >= 2:
            return [Stop(report.trial, "told to")]
        return [Continue(report.trial)]

    def rungs(self):
        return {}


# ---- on a cluster of several nodes -------------------------------------------------------------------------------------


def note(config, **told):
    """Append where this attempt runs to a file of its own."""
    trial, context = current_trial(), ray.train.get_context()
    told |= {"trial": int(trial.id[-4:]), "attempt": trial.attempt, "rank": context.get_world_rank()}
    told["node"] = ray.get_runtime_context().get_node_id()
    Path(config["notes"], f"{told['trial']}-{told['attempt']}-{told['rank']}.json").write_text(json.dumps(told))


def notes(folder, **wanted):
    told = [json.loads(path.read_text()) for path in Path(folder).glob("*.json")]
    return [one for one in told if wanted.items() <= one.items()]


def waits_to_be_moved(config):
    """Reports an epoch, and in a trial's first attempt waits after epoch 2 for what is to come. `saves` when it is warned."""
    trial, rank = current_trial(), ray.train.get_context().get_world_rank()
    note(config)
    for epoch in range(resumed_epoch() + 1, EPOCHS + 3):
        if trial.attempt == 1 and epoch == 3:
            until = time.monotonic() + 120
            while time.monotonic() < until:
                warned = config["saves"] and ray.train.get_preemption_info() is not None
                if warned:
                    break
                if config["workers"] > 1:
                    torch.distributed.barrier()  # raises on the ranks that are left, before it is known that a node is gone
                time.sleep(0.1)
        report({"epoch": epoch, "score": float(epoch)}, epoch, rank)


def moving_trainer(folder, workers, *, saves=False):
    return TorchTrainer(
        waits_to_be_moved,
        train_loop_config={"notes": str(folder), "saves": saves, "workers": workers},
        scaling_config=ray.train.ScalingConfig(num_workers=workers, placement_strategy="SPREAD"),
    )


# ---- the table -------------------------------------------------------------------------------------------------------


def told_to_tpe(space, trials: Sequence[Trial]) -> list[str]:
    """What TPE puts into its study of each trial, in words."""
    import optuna  # not in the workers, which import this file for its loops

    from tunelab.searchers.optuna import _distribution, _study_trials

    distributions = {name: _distribution(optuna, parameter) for name, parameter in space.parameters.items()}
    return [_in_words(trial) for trial in _study_trials(optuna, space, distributions, trials)]


def _in_words(trial) -> str:
    violation = dict(trial.system_attrs).get("constraints") or getattr(trial, "constraints", None)
    values = dict(trial.intermediate_values)
    if trial.state.name == "RUNNING":
        return "still running"
    if trial.state.name == "PRUNED":
        return f"ended early, at {list(values.values())[-1]:g}"
    if violation:
        worst = max(violation.values() if isinstance(violation, Mapping) else violation)
        return "cannot work" if worst > 1 else "worse than any value"
    return f"completed, at {trial.value:g}"


def row(name: str, how: str, trial: Trial, told: str) -> list[str]:
    """A line of the table: class, how it was provoked, attempts, what followed, what the searcher was told."""
    attempts = ", then ".join(
        f"{attempt.failure or attempt.outcome}{f' (from epoch {attempt.from_step:g})' if attempt.from_step else ''}"
        for attempt in trial.attempts
    )
    retries = len(trial.attempts) - 1
    times = "" if not retries else "retried, then " if retries == 1 else f"retried {retries} times, then "
    if any(attempt.failure == Failure.OUT_OF_MEMORY for attempt in trial.attempts[:-1]):
        times = times.replace("retried", "retried alone")
    resumable = "; `tunelab resume` goes on" if not trial.status.ended else ""
    return [name, how, attempts, f"{times}{trial.status.value}{resumable}", told]


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """The table as docs/failures.md shows it."""
    head = ["class", "how it was provoked", "attempts", "action", "what the searcher was told"]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *rows]) + "\n"


CLASSES = [failure.value for failure in Failure]
