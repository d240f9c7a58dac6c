"""Reports a Lightning `Trainer`'s epochs and checkpoints to Ray Train. Needs `lightning` or `pytorch_lightning`."""

import math
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import ray.train

from tunelab.errors import InvalidExperimentError, WorldSizeError

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError:
    from pytorch_lightning import Callback

CHECKPOINT_NAME = "checkpoint.ckpt"


class ReportCallback(Callback):
    """One Ray Train report per training epoch, and with it the checkpoint of that epoch.

        trainer = Trainer(..., strategy=RayDDPStrategy(), plugins=[RayLightningEnvironment()], callbacks=[ReportCallback()])

        if checkpoint := ray.train.get_checkpoint():
            with checkpoint.as_directory() as folder:
                trainer.fit(model, data, ckpt_path=Path(folder, ReportCallback.CHECKPOINT_NAME))
        else:
            trainer.fit(model, data)

    A report holds what was logged in this epoch, as floats, `epoch` counted from 1, and `step`, the optimizer steps so far.
    The checkpoint's folder holds `checkpoint.ckpt`, as that of `ray.train.lightning.RayTrainReportCallback` does. In its
    place because there (Ray 2.60)

    * what the module logs in its own `on_train_epoch_end` is reported an epoch late, and what was measured epochs ago is
      reported again. Here the report comes after all other callbacks, and holds this epoch's metrics alone;
    * every rank brings a checkpoint. Here rank 0 does, or one rank a node where the strategy writes a folder of shards;
    * every epoch has its checkpoint, and epochs count from 0;
    * a restart takes learning rates from the checkpoint, even if the trial has been given others.

    On a restart, a hyperparameter of the optimizers (`lr`, `weight_decay`, ...) for which `configure_optimizers` now gives
    another value than it gave the run that saved the checkpoint is the new one; a schedule goes on from there, scaled. What
    else a scheduler keeps (`T_max`, `gamma`) is the checkpoint's. Metrics are rank 0's: log with `sync_dist=True` for means
    over ranks.

    Args:
        every_n_epochs: Save a checkpoint with each so manieth report. At least 1.
        on_improvement: Save one with each report whose metric of this name is better than all before, and not otherwise. NaN is
            never better. Cannot be had with `every_n_epochs`.
        mode: Whether smaller or larger is better: `"min"` or `"max"`. Needed with `on_improvement`.
    """

    CHECKPOINT_NAME = CHECKPOINT_NAME

    def __init__(
        self,
        *,
        every_n_epochs: int | None = None,
        on_improvement: str | None = None,
        mode: Literal["min", "max"] | None = None,
    ) -> None:
        super().__init__()
        problems = []
        if every_n_epochs is not None and (not isinstance(every_n_epochs, int) or every_n_epochs < 1):
            problems.append(f"every_n_epochs is a number of epochs of at least 1, got {every_n_epochs!r}.")
        if every_n_epochs is not None and on_improvement is not None:
            problems.append("Give every_n_epochs or on_improvement, not both.")
        if (on_improvement is None) != (mode is None) or mode not in (None, "min", "max"):
            problems.append(f'on_improvement="metric" needs mode="min" or mode="max", and mode needs it; got mode={mode!r}.')
        if problems:
            raise InvalidExperimentError("ReportCallback", problems)
        self._every, self._metric, self._sign = every_n_epochs or 1, on_improvement, -1.0 if mode == "min" else 1.0
        self._best = -math.inf
        self._before: dict[str, Any] = {}  # metrics as the epoch found them
        self._asked: list[list[dict[str, Any]]] = []  # hyperparameters as `configure_optimizers` gave them
        self._asked_then: list[list[dict[str, Any]]] = []  # likewise, in the run that saved the checkpoint

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Before anything else, see that the ranks train one model; then queue behind all other callbacks."""
        workers = ray.train.get_context().get_world_size()
        if trainer.world_size != workers:
            raise WorldSizeError("Lightning", trainer.world_size, workers)
        if stage == "fit" and not any(getattr(callback, "reports_for", None) is self for callback in trainer.callbacks):
            trainer.callbacks.append(_last(trainer, self))

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """The optimizers are new, and the checkpoint's states not yet in them."""
        self._asked = [[_plain(group) for group in optimizer.param_groups] for optimizer in trainer.optimizers]

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The checkpoint's states are in the optimizers: what the trial asks for now goes before what was asked for then."""
        for optimizer, now, then in zip(trainer.optimizers, self._asked, self._asked_then, strict=False):
            schedulers = [one.scheduler for one in trainer.lr_scheduler_configs if one.scheduler.optimizer is optimizer]
            for index, (new, old) in enumerate(zip(now, then, strict=False)):
                changed = {name: value for name, value in new.items() if old.get(name) != value}
                _apply(changed, old, optimizer.param_groups[index], schedulers, index)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._before = dict(trainer.callback_metrics)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self._best, "asked": self._asked}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._best, self._asked_then = state_dict["best"], state_dict["asked"]

    def report(self, trainer: Any) -> None:
        """Called by every rank at the end of each training epoch."""
        metrics = {
            name: float(value) for name, value in trainer.callback_metrics.items() if self._before.get(name) is not value
        }
        epoch = trainer.current_epoch + 1
        metrics |= {"epoch": epoch, "step": trainer.global_step}
        if not trainer.strategy.broadcast(self._saves(epoch, metrics)):  # rank 0 decides: saving takes all ranks
            ray.train.report(metrics)
            return
        with _shared_folder(trainer) as folder:
            path = folder / CHECKPOINT_NAME
            trainer.save_checkpoint(path)  # a barrier too: all of it is written
            in_shards = trainer.strategy.broadcast(path.is_dir())
            context = ray.train.get_context()
            uploads = context.get_local_rank() == 0 if in_shards else context.get_world_rank() == 0
            ray.train.report(metrics, checkpoint=ray.train.Checkpoint(folder) if uploads else None)

    def _saves(self, epoch: int, metrics: dict[str, float]) -> bool:
        if self._metric is None:
            return epoch % self._every == 0
        value = self._sign * metrics.get(self._metric, math.nan)
        if not value > self._best:
            return False
        self._best = value
        return True


def _last(trainer: Any, callback: ReportCallback) -> Any:
    """A callback that has `callback` report at the end of the epoch, after the module and all other callbacks.

    Lightning calls its own `Checkpoint` callbacks last, by class. It is added during `setup`, for a Trainer refuses to be made
    with one of them and `enable_checkpointing=False`.
    """
    package = next(
        kind.__module__.partition(".trainer.")[0]
        for kind in type(trainer).__mro__
        if kind.__module__.endswith(".trainer.trainer")
    )

    class Last(sys.modules[f"{package}.callbacks"].Checkpoint):  # type: ignore[misc]
        reports_for = callback

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            callback.report(trainer)

    return Last()


@contextmanager
def _shared_folder(trainer: Any) -> Iterator[Path]:
    """A new folder of one name on all ranks, for strategies whose ranks write into it together. Gone afterwards."""
    context = ray.train.get_context()
    first = context.get_world_rank() == 0
    folder = Path(trainer.strategy.broadcast(tempfile.mkdtemp(prefix="tunelab-lightning-") if first else None))
    folder.mkdir(exist_ok=True)
    try:
        yield folder
    finally:
        if context.get_local_rank() == 0:
            shutil.rmtree(folder, ignore_errors=True)


def _plain(group: dict[str, Any]) -> dict[str, Any]:
    """A parameter group's hyperparameters, as a checkpoint can hold them. A scheduler has moved `lr` off where it starts."""
    plain = {name: value for name, value in group.items() if isinstance(value, (bool, int, float, str, tuple)) or value is None}
    return plain | {"lr": plain.pop("initial_lr", plain["lr"])}


def _apply(changed: dict[str, Any], old: dict[str, Any], group: dict[str, Any], schedulers: list[Any], index: int) -> None:
    """Give a parameter group what has changed. A scheduled learning rate keeps its share of the one that it started from."""
    rate = changed.pop("lr", None)
    group.update(changed)
    if rate is None:
        return
    factor = rate / old["lr"] if schedulers and old["lr"] else None
    group["lr"] = rate if factor is None else group["lr"] * factor
    if "initial_lr" in group:
        group["initial_lr"] = group["initial_lr"] * factor if factor else rate
    for scheduler in schedulers:
        for one in (scheduler, *getattr(scheduler, "_schedulers", ())):  # of a sequence or a chain
            if factor and hasattr(one, "base_lrs"):
                one.base_lrs[index] *= factor
