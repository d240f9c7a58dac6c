"""Lightning, from either of its packages: `lightning` and `pytorch_lightning`.

A Lightning checkpoint is one `*.ckpt` file. Its module runs in a TorchTrainer, and is exported as any Torch module is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from tunelab.core.experiment import Export
from tunelab.core.protocols import Saved
from tunelab.core.trial import Config
from tunelab.frameworks.base import Base
from tunelab.frameworks.torch import Torch

CHECKPOINT_NAME = "checkpoint.ckpt"  # as Ray's RayTrainReportCallback and ours write it
WEIGHTS = "state_dict"  # the key under which a checkpoint holds them
VERSION = "pytorch-lightning_version"  # written into every checkpoint, whatever the package

# What an error of Lightning's or torch's says -> what it means and what to do.
_ON_CPUS = "On CPUs use RayDDPStrategy; for a GPU a worker say ScalingConfig(use_gpu=True)"
EXPLAINED = {
    "invalid strategy name: `strategy=<ray.train.lightning.": (
        "this Trainer is pytorch_lightning's, but the strategies of ray.train.lightning belong to the package lightning: where "
        "both are installed, Ray takes that one. Import Trainer, LightningModule and callbacks from lightning.pytorch instead "
        "of pytorch_lightning, or uninstall lightning"
    ),
    "FSDP needs a non-CPU accelerator": f"FSDP (RayFSDPStrategy) needs a GPU for each worker. {_ON_CPUS}",
    "DeepSpeed strategy is only supported on CUDA": f"RayDeepSpeedStrategy needs a GPU for each worker. {_ON_CPUS}",
    "`DeepSpeedStrategy`, you must have DeepSpeed installed": (
        f"RayDeepSpeedStrategy needs the package deepspeed and a GPU for each worker. {_ON_CPUS}"
    ),
}


class Lightning(Base):
    """Modules whose checkpoint is Lightning's; everything else about them is Torch's."""

    name = "lightning"
    libraries: ClassVar[tuple[str, ...]] = ("lightning", "pytorch_lightning")

    def seed(self, seed: int) -> None:
        """Torch, NumPy and Python are seeded already. This is what Lightning shuffles a distributed loader's rows by, and what
        `seed_everything()` takes where it is told no seed.
        """
        os.environ["PL_GLOBAL_SEED"] = str(seed)

    def remember(self) -> None:
        for name, registry in _registries():
            _clean.setdefault(name, set(registry))

    def reset(self) -> str | None:
        """Rank 0 until told otherwise, all warnings still to be given, and the strategies and accelerators known before.

        Seeds in environment variables, handlers of signals and levels of loggers are put back with those of the whole process.
        """
        for module in ("lightning_utilities.core.rank_zero", "lightning_fabric.utilities.rank_zero"):
            if module in sys.modules:
                sys.modules[module].rank_zero_only.rank = 0
        for cache in _warning_caches():
            cache.clear()
        for name, registry in _registries():
            for key in registry.keys() - _clean.setdefault(name, set(registry)):
                del registry[key]
        return None

    def explain(self, error: BaseException) -> str | None:
        """Ray's strategies in a Trainer of the other package, and those that need a GPU on a CPU."""
        text = str(error)
        return next((meaning for words, meaning in EXPLAINED.items() if words in text), None)

    def reads(self, checkpoint: Path, hooks: Export | None) -> bool:
        """A Lightning checkpoint, where the user gives `build` and does not say where the weights lie."""
        if hooks is None or hooks.build is None or hooks.weights is not None:
            return False
        return _find(checkpoint) is not None

    def load(self, checkpoint: Path, config: Config, hooks: Export) -> Any:
        """What `build` returns, with the checkpoint's weights in it, ready for inference.

        Raises:
            BadInputError: The file holds more than tensors and plain values, or the weights do not fit the module.
        """
        file = _find(checkpoint)
        assert file is not None, "reads() has found it"
        return Torch().load(checkpoint, config, replace(hooks, weights=(file.name, WEIGHTS)))

    def predict(self, model: Any, inputs: Any, hooks: Export) -> Any:
        return Torch().predict(model, inputs, hooks)

    def save(self, model: Any, folder: Path, **described: Any) -> Saved:
        return Torch().save(model, folder, **described)


_clean: dict[str, set[str]] = {}  # what `remember` found in this process: registry -> the names in it
_ROOTS = ("lightning.pytorch", "lightning.fabric", "pytorch_lightning", "lightning_fabric")
_REGISTRIES = (
    ("strategies", "StrategyRegistry"), ("strategies", "STRATEGY_REGISTRY"),
    ("accelerators", "AcceleratorRegistry"), ("accelerators", "ACCELERATOR_REGISTRY"),
)  # fmt: skip


def _registries() -> Iterator[tuple[str, dict[str, Any]]]:
    """Name -> registry, of those that are loaded: what `strategy="..."` and `accelerator="..."` are looked up in."""
    for root in _ROOTS:
        for module, attribute in _REGISTRIES:
            registry = getattr(sys.modules.get(f"{root}.{module}"), attribute, None)
            if isinstance(registry, dict):
                yield f"{root}.{attribute}", registry


def _warning_caches() -> Iterator[set[str]]:
    """What has been warned of once and is not to be again, module by module."""
    for name, module in list(sys.modules.items()):
        if name.startswith(_ROOTS):
            cache = getattr(module, "warning_cache", None)
            if isinstance(cache, set):
                yield cache


def _find(checkpoint: Path) -> Path | None:
    """The checkpoint's one Lightning file; None if there is none, several, or one that cannot be read without running code."""
    files = [file for file in checkpoint.glob("*.ckpt") if file.is_file()]
    if len(files) != 1:
        return None
    if files[0].name == CHECKPOINT_NAME:
        return files[0]
    import torch

    try:
        held = torch.load(files[0], map_location="meta", weights_only=True)
    except Exception:  # whatever else it is
        return None
    return files[0] if isinstance(held, dict) and VERSION in held and WEIGHTS in held else None
