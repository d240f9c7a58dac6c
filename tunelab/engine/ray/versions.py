"""The Ray versions that this folder was tested with, and the private names that it uses.

Ray's private modules can change with any release, so another version is refused before anything starts, and
`tests/unit`'s counterpart in `tests/ray/test_private_names.py` checks each name and signature below.
"""

from __future__ import annotations

from importlib.metadata import version

from tunelab.errors import UnsupportedVersionError

SUPPORTED = ("2.60", "2.61")  # from, below

# module -> {name: parameters, or None where only its existence matters}. Attributes of instances cannot be looked up here.
# These are used, and the sweeps in tests/ray go through all of them: `_checkpoint_manager`, `_worker_group`,
# `_worker_group_state`, `_world_rank_to_ongoing_poll`, `_latest_checkpoint_result`, `result_queue` and
# `training_thread_runner` of Train's, and that one's `_thread`; ScalingConfig's `_resources_per_worker_not_none`;
# `_tune_controller`, its `_actor_cache` and `_class_cache`, and `temporary_state.ray_actor` of Tune's.
PRIVATE_NAMES: dict[str, dict[str, tuple[str, ...] | None]] = {
    "ray.train.v2._internal.execution.controller.controller": {
        "TrainController.__init__": (
            "self", "train_fn_ref", "train_run_context", "scaling_policy", "failure_policy", "callbacks", "validation_config",
        ),
        "TrainController.run": ("self",),
        "TrainController.get_result": ("self",),
        "TrainController.get_state": ("self",),
        "TrainController._poll_workers": ("self",),
        "TrainController._shutdown_worker_group": ("self",),
    },
    "ray.train.v2._internal.execution.controller.state": {"FinishedState": None, "ShuttingDownState": None},
    "ray.train.v2._internal.execution.worker_group.worker_group": {
        "WorkerGroup._start_impl": ("self", "worker_group_state_builder"),
        "WorkerGroup._init_train_context": ("self", "workers", "sync_actor"),
        "WorkerGroup._assign_worker_ranks": ("workers", "starting_world_rank", "world_size", "replica_group_size"),
        "WorkerGroup._decorate_worker_log_file_paths": ("workers",),
        "WorkerGroup._get_poll_tasks": ("self",),
        "WorkerGroup._clear_state": ("self",),
        "WorkerGroup.poll_status": ("self", "timeout"),
        "WorkerGroup._poll_workers_and_collect_errors": ("self", "timeout"),
        "WorkerGroup.shutdown": ("self",),
    },
    "ray.train.v2._internal.execution.worker_group.execution_group": {
        "ReplicaGroup.__init__": ("self", "workers", "resources_per_worker", "callbacks"),
    },
    "ray.train.v2._internal.execution.worker_group.worker": {
        "RayTrainWorker.__init__": ("self",),
        "RayTrainWorker.init_train_context": None,
        "RayTrainWorker.run_train_fn": ("self", "train_fn_ref"),
        "RayTrainWorker.execute": None,
        "RayTrainWorker.poll_status": ("self",),
        "RayTrainWorker.get_metadata": ("self",),
        "RayTrainWorker.mark_preempt": ("self", "info"),
        "RayTrainWorker.shutdown": ("self",),
        "Worker": (
            "actor", "metadata", "resources", "distributed_context", "log_file_path", "placement_group_bundle_index",
        ),
        "get_train_context": (),
    },
    "ray.train.v2._internal.execution.worker_group.thread_runner": {"ThreadRunner.is_running": ("self",)},
    "ray.train.v2._internal.constants": {"get_env_vars_to_propagate": ()},
    "ray._private.state": {"state": None, "state._connect_and_get_accessor": (), "state.get_draining_nodes": ()},
    "ray.core.generated.gcs_pb2": {"PlacementGroupTableData": None},
    "ray.train.v2._internal.execution.worker_group.poll": {"WorkerStatus": None},
    "ray.train.v2._internal.execution.worker_group": {"WorkerGroupPollStatus": None},
    "ray.train.v2._internal.execution.callback": {
        "ReportCallback.after_report": ("self", "training_report", "metrics"),
    },
    "ray.train.v2._internal.execution.checkpoint.checkpoint_manager": {
        "CheckpointManager._write_state_to_storage": ("self",),
        "CheckpointManager.latest_checkpoint_result": None,
        "_TrainingResult.__init__": ("self", "checkpoint", "metrics"),
    },
    "ray.train.v2._internal.execution.checkpoint.sync_actor": {
        "SynchronizationActor": None,
        "SynchronizationActor.broadcast_from_rank_zero": None,
    },
    "ray.train.v2._internal.execution.context": {
        "TrainContext._upload_checkpoint": None,
        "TrainRunContext": ("run_config", "train_loop_config", "scaling_config", "backend_config", "dataset_config"),
    },
    "ray.train.v2._internal.execution.failure_handling": {"create_failure_policy": ("failure_config",)},
    "ray.train.v2._internal.execution.scaling_policy": {
        "FixedScalingPolicy.after_controller_start": ("self", "train_run_context"),
        "FixedScalingPolicy._maybe_send_resource_request": ("self",),
    },
    "ray.train.v2._internal.execution.train_fn_utils": {
        "DistributedTrainFnUtils.report": None,
        "LocalTrainFnUtils.report": None,
        "LocalTrainFnUtils.get_preemption_info": ("self",),
        "set_train_fn_utils": ("train_fn_utils",),
    },
    "ray.train.v2._internal.exceptions": {
        "UserExceptionWithTraceback.__init__": ("self", "exc", "traceback_str"),
        "WorkerGroupStartupFailedError": None,
        "WorkerGroupStartupTimeoutError": None,
        "WorkerHealthCheckFailedError.__init__": ("self", "message", "failure"),
        "WorkerHealthCheckTimeoutError": None,
    },
    "ray.train.v2._internal.util": {"ObjectRefWrapper.__init__": ("self", "obj"), "bundle_to_remote_args": ("bundle",)},
    "ray.train.v2.api.data_parallel_trainer": {
        "DataParallelTrainer._get_train_func": ("self",),
        "DataParallelTrainer._create_default_callbacks": ("self",),
    },
    "ray.tune.execution.tune_controller": {
        "TuneController.stop_trial": ("self", "trial"),
        "TuneController._maybe_cache_trial_actor": ("self", "trial"),
        "TrialRunnerWrapper.__init__": (
            "self", "tune_controller", "trial_executor", "runner_whitelist_attr", "executor_whitelist_attr",
        ),
    },
    "ray._private": {"node": None, "parameter": None},
    "ray._private.node": {"Node.start_api_server": ("self", "include_dashboard", "raise_on_failure")},
    "ray._private.parameter": {"RayParams": None},
    "ray.air._internal": {"usage": None},
    "ray.air._internal.usage": {"tag_callbacks": ("callbacks",)},
    "ray.tune.experiment": {"Trial.get_json_state": ("self",), "Trial.get_trainable_cls": ("self",)},
    "ray.tune.registry": {"get_trainable_cls": ("trainable_name",)},
    "ray.tune.execution.class_cache": {"_ActorClassCache.get": ("self", "trainable_cls")},
    "ray.tune.utils.object_cache": {
        "_ObjectCache.increase_max": ("self", "key", "by"),
        "_ObjectCache.decrease_max": ("self", "key", "by"),
    },
}  # fmt: skip


def check_ray() -> None:
    """Refuse a Ray version that this was not tested with.

    Raises:
        UnsupportedVersionError: Names the version and the supported range.
    """
    installed = version("ray")
    found = tuple(int(part) for part in installed.split(".")[:2])
    low, high = (tuple(int(part) for part in bound.split(".")) for bound in SUPPORTED)
    if not low <= found < high:
        raise UnsupportedVersionError(
            f"Ray {installed} is installed; tunelab works with ray>={SUPPORTED[0]},<{SUPPORTED[1]}. "
            f"Run: pip install 'ray[tune,train]>={SUPPORTED[0]},<{SUPPORTED[1]}'"
        )
