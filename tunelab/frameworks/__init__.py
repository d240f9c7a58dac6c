"""The frameworks tunelab knows: one file each holds all that is special about one of them.

    name = of_checkpoint(folder, hooks)     # which framework can read this checkpoint
    framework = load(name)()                # its file is imported only now
    model = framework.load(folder, config, hooks)
    outputs = framework.predict(model, inputs, hooks)
    saved = framework.save(model, target, ...)   # an MLflow model

    remember_clean()                        # in a worker, before its first trial
    reasons = reset_loaded()                # and after each: why the process cannot be used again, if it cannot

To add one: a file in this folder, a line in `TABLE`, and the names of its Ray Train trainers in `_TRAINERS`. Importing this
module, and its files, loads no framework: they import it inside their methods.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tunelab.core.experiment import Export
from tunelab.core.family import Family

TABLE = {
    "torch": "tunelab.frameworks.torch:Torch",
    "transformers": "tunelab.frameworks.transformers:Transformers",
    "function": "tunelab.frameworks.function:Function",
}

# Class name of a Ray Train trainer -> framework. TorchTrainer is also what Lightning and Transformers loops run in, so the
# trainer alone does not say how its checkpoints are read: `of_checkpoint` does.
_TRAINERS = {"TorchTrainer": "torch"}

_family = Family("framework", TABLE)
names, load = _family.names, _family.load


def recognise(trainer: Any) -> str:
    """The framework that `trainer` runs: by its class's name, or that of a base class; `function` for everything else.

    >>> recognise(lambda config: None)
    'function'
    """
    for kind in type(trainer).__mro__:
        if kind.__name__ in _TRAINERS:
            return _TRAINERS[kind.__name__]
    return "function"


def of_checkpoint(folder: Path, hooks: Export | None) -> str | None:
    """The framework that can read the checkpoint in `folder`: the hooks come first, then what the folder says of itself.

    None if nobody can: there are no hooks and the checkpoint does not describe itself. With a `load` hook the answer is
    `function`; whether the loaded model is a Torch module is known only once it is loaded.
    """
    if hooks is not None and hooks.build is not None:
        return "torch"
    if hooks is not None and hooks.load is not None:
        return "function"
    if _describes_transformer(folder):
        return "transformers"
    return None


def is_torch_module(model: Any) -> bool:
    """Whether `model` is a `torch.nn.Module`, without importing torch: an instance cannot exist before torch is imported."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


def remember_clean() -> None:
    """Note the settings that a trial may change. Once in a worker process, before its first trial. Imports no framework."""
    for name in names():
        load(name)().remember()


def reset_loaded() -> list[str]:
    """Put back what a trial changed in the frameworks that this process has loaded, whichever of them the trial ran in.

    Returns:
        Why the process cannot be used for another trial, a sentence each. Empty if it can. Never raises: a reset that
        fails is a reason.
    """
    reasons = []
    for name in names():
        framework = load(name)()
        if any(library in sys.modules for library in framework.libraries):
            try:
                reason = framework.reset()
            except Exception as error:
                reason = f"{name} cannot be reset: {type(error).__name__}: {error}"
            if reason is not None:
                reasons.append(reason)
    return reasons


def _describes_transformer(folder: Path) -> bool:
    """Weights in safetensors next to a config.json that names the architecture, as `save_pretrained` writes them."""
    if not any((folder / name).is_file() for name in ("model.safetensors", "model.safetensors.index.json")):
        return False
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, Mapping) and bool(config.get("architectures")) and "model_type" in config
