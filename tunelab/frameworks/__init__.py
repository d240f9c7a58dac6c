"""The frameworks tunelab knows: one file each holds all that is special about one of them.

    name = of_checkpoint(folder, hooks)     # which framework can read this checkpoint
    framework = load(name)()                # its file is imported only now
    model = framework.load(folder, config, hooks)
    outputs = framework.predict(model, inputs, hooks)
    saved = framework.save(model, target, ...)   # an MLflow model

To add one: a file in this folder, a line in `TABLE`, and the names of its Ray Train trainers in `_TRAINERS`. Importing this
module, and its files, loads no framework: they import it inside their methods.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tunelab.core.experiment import Export
from tunelab.core.trial import Config
from tunelab.errors import UnknownNameError

TABLE = {
    "torch": "tunelab.frameworks.torch:Torch",
    "transformers": "tunelab.frameworks.transformers:Transformers",
    "function": "tunelab.frameworks.function:Function",
}

# Class name of a Ray Train trainer -> framework. TorchTrainer is also what Lightning and Transformers loops run in, so the
# trainer alone does not say how its checkpoints are read: `of_checkpoint` does.
_TRAINERS = {"TorchTrainer": "torch"}


@dataclass(frozen=True, kw_only=True)
class Saved:
    """What `Framework.save` wrote.

    Args:
        flavor: MLflow flavor that loads it back into the framework: `pytorch`, `transformers`, `python_function`.
        format: How the weights are kept: `pt2`, `safetensors`, `pickle`, `checkpoint`.
        runs_code: Whether loading it unpickles, and so can run any code. False means it loads with pickle switched off.
        note: What the user should know about the choice, one sentence, or "".
    """

    flavor: str
    format: str
    runs_code: bool
    note: str = ""


class Framework(Protocol):
    """Reads one framework's checkpoints and writes them as MLflow models. Stateless."""

    name: str

    def load(self, checkpoint: Path, config: Config, hooks: Export) -> Any:
        """The model in `checkpoint`, on the CPU, ready for inference. Never unpickles what the checkpoint holds."""
        ...

    def predict(self, model: Any, inputs: Any, hooks: Export) -> Any:
        """One prediction a row, through `hooks.predict` if there is one.

        `inputs` is a NumPy array, a list of texts, a list of `{"text": ..., "text_pair": ...}`, a DataFrame, or a list of
        anything else. The result is an array, a list or a DataFrame.
        """
        ...

    def save(
        self,
        model: Any,
        folder: Path,
        *,
        inputs: Any,
        outputs: Any,
        hooks: Export,
        checkpoint: Path,
        config: Config,
        title: str,
    ) -> Saved:
        """Write an MLflow model into the empty `folder`, with signature, input example and pinned requirements.

        `mlflow.pyfunc.load_model(folder).predict(inputs)` must give `outputs` where neither tunelab nor the experiment's
        file can be imported. `title` names the origin (`digits-mlp.1/0021`): no local path may end up in the folder.
        """
        ...


def names() -> list[str]:
    """Names of all known frameworks."""
    return list(TABLE)


def load(name: str) -> type[Framework]:
    """The framework's class, which takes no arguments.

    Raises:
        UnknownNameError: There is none; suggests the nearest.
    """
    if name not in TABLE:
        raise UnknownNameError.among("framework", name, TABLE)
    module, _, attribute = TABLE[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


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


def _describes_transformer(folder: Path) -> bool:
    """Weights in safetensors next to a config.json that names the architecture, as `save_pretrained` writes them."""
    if not any((folder / name).is_file() for name in ("model.safetensors", "model.safetensors.index.json")):
        return False
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, Mapping) and bool(config.get("architectures")) and "model_type" in config
