"""Reports a Hugging Face `Trainer`'s evaluations and checkpoints to Ray Train. Needs transformers 5 and Ray Train."""

import logging
from pathlib import Path
from typing import Any

import ray.train
import torch.distributed
from transformers import TrainerCallback

log = logging.getLogger(__name__)


class ReportCallback(TrainerCallback):
    """One Ray Train report per evaluation, with the checkpoint saved at that same step.

    Evaluate and save at the same pace (`eval_strategy=save_strategy="epoch"`, or a `save_steps` that `eval_steps`
    divides):

        trainer = Trainer(..., callbacks=[ReportCallback()])

    A report holds the evaluation's metrics without their `eval_` prefix, `train_loss` if the training loss was
    logged, and `epoch` as a float. The checkpoint folder is Hugging Face's own: `from_pretrained(folder)` loads it,
    `trainer.train(resume_from_checkpoint=folder)` goes on from it.

    In place of `ray.train.huggingface.transformers.RayTrainReportCallback`, because there (Ray 2.60)

    * every rank uploads the shared folder while others may still be writing it, which tears checkpoints. Here rank 0
      uploads alone, once all ranks have finished saving;
    * a checkpoint is reported with whatever was logged last, even if that was measured on other weights. Here an
      evaluation without a checkpoint is reported alone, and a checkpoint without an evaluation of its own is not
      reported (a warning says so).

    Ranks may have an `output_dir` each, on any node: rank 0 collects the random states that the others saved, so
    dropout too goes on where it was. Not for sharded states (FSDP, ZeRO), whose other files it does not collect.
    """

    def __init__(self) -> None:
        self._evaluation: dict[str, float] = {}
        self._evaluated_at = -1  # the global step that self._evaluation was measured at
        self._train_loss: dict[str, float] = {}

    def on_train_begin(self, args, state, control, **kwargs):
        workers = ray.train.get_context().get_world_size()
        if args.world_size != workers:
            raise RuntimeError(
                f"Hugging Face trains with {args.world_size} process(es), Ray Train with {workers} workers: each would "
                "train a copy of its own. On CPUs, pass TrainingArguments(use_cpu=True)."
            )
        if args.eval_strategy == "no" or args.save_strategy == "best":
            raise ValueError(
                "ReportCallback needs evaluations, and checkpoints at a pace known beforehand; got "
                f"eval_strategy='{args.eval_strategy.value}', save_strategy='{args.save_strategy.value}'. "
                "Use 'epoch' for both, or 'steps' with save_steps a multiple of eval_steps."
            )

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in (logs or {}):
            self._train_loss = {"train_loss": logs["loss"]}

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        self._evaluation = {name.removeprefix("eval_"): value for name, value in (metrics or {}).items()}
        self._evaluated_at = state.global_step
        if not control.should_save:  # otherwise on_save follows at this same step
            self._report(state)

    def on_save(self, args, state, control, **kwargs):
        folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
        if self._evaluated_at != state.global_step:
            log.warning("%s is not reported: no evaluation at step %d.", folder.name, state.global_step)
            return
        _collect_random_states(folder)
        first = ray.train.get_context().get_world_rank() == 0
        self._report(state, ray.train.Checkpoint.from_directory(folder) if first else None)

    def _report(self, state: Any, checkpoint: ray.train.Checkpoint | None = None) -> None:
        """Called by every rank, as Ray Train asks: the flags it depends on are the same on all of them."""
        metrics = {**self._train_loss, **self._evaluation, "epoch": float(state.epoch)}
        ray.train.report(metrics, checkpoint=checkpoint)


def _collect_random_states(folder: Path) -> None:
    """Brings every rank's rng_state_<rank>.pth (some 10 kB) into rank 0's folder. Also the barrier before its upload."""
    if not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1:
        return
    rank, everyones = torch.distributed.get_rank(), [None] * torch.distributed.get_world_size()
    mine = folder / f"rng_state_{rank}.pth"  # absent with save_only_model=True
    torch.distributed.all_gather_object(everyones, mine.read_bytes() if mine.exists() else None)
    if rank == 0:
        for other, content in enumerate(everyones):
            if other > 0 and content is not None:
                (folder / f"rng_state_{other}.pth").write_bytes(content)
