"""The user's trainer, whatever it is, prepared for one trial."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import ray.cloudpickle
from ray.train import FailureConfig
from ray.train.constants import DEFAULT_STORAGE_PATH
from ray.train.v2._internal.execution.context import TrainRunContext
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from tunelab import frameworks
from tunelab.errors import BadInputError

Bundle = dict[str, float]


@dataclass(frozen=True)
class Shape:
    """What a trial occupies.

    Args:
        bundles: Resources of each of its processes.
        strategy: How they are spread over nodes, as Ray's placement groups name it.
        in_actor: Whether the trial actor itself is that process, and there are no workers.
    """

    bundles: tuple[tuple[tuple[str, float], ...], ...]
    strategy: str = "PACK"
    in_actor: bool = False

    def as_dicts(self) -> list[Bundle]:
        return [dict(bundle) for bundle in self.bundles]

    def __str__(self) -> str:
        resources = " and ".join(f"{amount:g} {name}" for name, amount in self.bundles[0]) or "no resources"
        count = len(self.bundles)
        return f"{count} workers with {resources} each" if count > 1 else f"1 worker with {resources}"


_RAY_TRAINERS = {
    "DataParallelTrainer", "TorchTrainer", "TensorflowTrainer", "XGBoostTrainer", "LightGBMTrainer", "JaxTrainer",
}  # fmt: skip


def is_trainer(trainer: Any) -> bool:
    """Whether this is a trainer and not a function."""
    return isinstance(trainer, DataParallelTrainer)


def is_factory(trainer: Any) -> bool:
    """Whether this is a function that returns a trainer, and not a plain function that reports.

    It is when its return annotation is a trainer class or when its code names one (`TorchTrainer`).
    """
    if is_trainer(trainer) or not callable(trainer):
        return False
    returns = getattr(trainer, "__annotations__", {}).get("return")
    if getattr(returns, "__name__", returns) in _RAY_TRAINERS:
        return True
    code = getattr(trainer, "__code__", None)
    names = code.co_names if code is not None else ()
    module = getattr(trainer, "__globals__", {})
    return any(
        name in _RAY_TRAINERS or isinstance(module.get(name), type) and issubclass(module[name], DataParallelTrainer)
        for name in names
    )


def resolve(trainer: Any, config: Mapping[str, Any], seed: int) -> Any:
    """The trainer or plain function that one trial runs."""
    if not is_factory(trainer):
        return trainer
    made = trainer(loop_config(trainer, config, seed))
    if not is_trainer(made):
        raise BadInputError(f"The trainer function returned {made!r} instead of a Ray Train trainer.")
    return made


def pickled(trainer: Any, module: ModuleType | None) -> bytes:
    """The trainer as it is sent to other processes: by value, so that editing the file does not reach a running sweep.

    Args:
        trainer: The user's.
        module: The module that the experiment's file was run as, or None when it can be imported by name everywhere.
    """
    if module is not None:
        ray.cloudpickle.register_pickle_by_value(module)
    try:
        return ray.cloudpickle.dumps(trainer)
    except Exception as error:
        raise BadInputError(f"The trainer cannot be sent to other processes: {error}") from error
    finally:
        if module is not None:
            ray.cloudpickle.unregister_pickle_by_value(module)


def storage_of(trainer: Any) -> str | None:
    """The user's `RunConfig(storage_path=...)`, or None where it is Ray's default."""
    path = getattr(getattr(trainer, "run_config", None), "storage_path", None)
    return None if path is None or path == DEFAULT_STORAGE_PATH else str(path)


def shape_of(trainer: Any) -> Shape:
    """What a trial of `trainer` occupies: its workers, or one CPU for a plain function."""
    if not is_trainer(trainer):
        return Shape(((("CPU", 1.0),),), in_actor=True)
    scaling = trainer.scaling_config
    if isinstance(scaling.num_workers, tuple):
        raise BadInputError(
            f"ScalingConfig(num_workers={scaling.num_workers}): elastic worker groups are not supported in a sweep."
        )
    if scaling.num_workers < 1:
        raise BadInputError("ScalingConfig(num_workers=0) is Ray Train's local mode: a trial needs at least 1 worker.")
    bundle = tuple(sorted((name, float(amount)) for name, amount in scaling._resources_per_worker_not_none.items() if amount))
    return Shape((bundle,) * scaling.num_workers, scaling.placement_strategy)


def refuse(trainer: Any) -> list[str]:
    """What a trainer says that a sweep cannot honour."""
    found = []
    run_config = getattr(trainer, "run_config", None)
    if run_config is not None and not run_config.name.startswith("ray_train_run-"):
        found.append(f"RunConfig(name={run_config.name!r}) is not used in a sweep: say Experiment(name=...) instead.")
    if getattr(trainer, "validation_config", None) is not None:
        found.append("validation_config: asynchronous validation is not supported in a sweep.")
    return found + frameworks.load(frameworks.recognise(trainer))().refuse(trainer)


def worker_env(trainer: Any) -> Any:
    """The user's `RunConfig(worker_runtime_env=...)`, or None."""
    return getattr(getattr(trainer, "run_config", None), "worker_runtime_env", None) or None


def may_preload(trainer: Any) -> bool:
    """Whether workers may import what the trainer needs before its backend has set their environment up.

    Not where the framework reads it when it is imported.
    """
    return frameworks.load(frameworks.recognise(trainer)).preload


def max_failures(trainer: Any) -> int:
    """The user's `RunConfig(failure_config=FailureConfig(max_failures=...))`; 0 without one."""
    run_config = getattr(trainer, "run_config", None)
    return run_config.failure_config.max_failures if run_config is not None else 0


def loop_config(trainer: Any, config: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """What the train loop gets: `train_loop_config` updated by the trial's values, and `seed` unless one of them has it."""
    return {"seed": seed, **(getattr(trainer, "train_loop_config", None) or {}), **config}


def for_trial(
    trainer: DataParallelTrainer, *, config: Mapping[str, Any], seed: int, name: str, storage: str
) -> DataParallelTrainer:
    """A copy of `trainer` for one trial: its own loop configuration, run name and storage, and no retries of Ray Train's."""
    own = copy.copy(trainer)
    own.train_loop_config = loop_config(trainer, config, seed)
    own.run_config = dataclasses.replace(
        trainer.run_config,
        name=name,
        storage_path=storage,
        failure_config=FailureConfig(max_failures=0, controller_failure_limit=0, max_preemption_failures=0),
    )
    own.train_run_context = TrainRunContext(
        run_config=own.run_config,
        train_loop_config=own.train_loop_config,
        scaling_config=own.scaling_config,
        backend_config=own.backend_config,
        dataset_config=own.data_config,
    )
    return own
