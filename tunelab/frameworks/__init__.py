"""The frameworks tunelab knows: one file each holds all that is special about one of them.

    name = recognise(trainer)               # which framework a trainer runs
    trainer = load(name)().prepare(trainer) # as Ray Train should run it

    remember_clean()                        # in a worker, before its first trial
    seed_loaded(seed)                       # before each
    joined(name)                            # within it: how many processes train together
    reasons = reset_loaded()                # and after each: why the process cannot be used again, if it cannot

    name = of_checkpoint(folder, hooks)     # which framework can read this checkpoint
    framework = load(name)()                # its file is imported only now
    model = framework.load(folder, config, hooks)
    outputs = framework.predict(model, inputs, hooks)
    saved = framework.save(model, target, ...)   # an MLflow model

To add one: a file in this folder with a subclass of `base.Base`, and a line in `TABLE`. Importing this module, and its files,
loads no framework: they import it inside their methods.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tunelab.core.experiment import Export
from tunelab.core.family import Family

# In this order they are asked whether they can read a checkpoint.
TABLE = {
    "lightning": "tunelab.frameworks.lightning:Lightning",
    "torch": "tunelab.frameworks.torch:Torch",
    "function": "tunelab.frameworks.function:Function",
    "transformers": "tunelab.frameworks.transformers:Transformers",
}

_family = Family("framework", TABLE)
names, load = _family.names, _family.load


def recognise(trainer: Any) -> str:
    """The framework that `trainer` runs: by its class's name, or that of a base class; `function` for everything else.

    A TorchTrainer is also what Lightning's and Transformers' loops run in, so the trainer does not say how its checkpoints are
    read: `of_checkpoint` does.

    >>> recognise(lambda config: None)
    'function'
    """
    by_trainer = {trainer_class: name for name in names() for trainer_class in load(name).trainers}
    return next((by_trainer[kind.__name__] for kind in type(trainer).__mro__ if kind.__name__ in by_trainer), "function")


def of_checkpoint(folder: Path, hooks: Export | None) -> str | None:
    """The framework that can read the checkpoint in `folder`: the hooks come first, then what the folder says of itself.

    None if nobody can: there are no hooks and the checkpoint does not describe itself. With a `load` hook the answer is
    `function`; whether the loaded model is a Torch module is known only once it is loaded.
    """
    return next((name for name in names() if load(name)().reads(folder, hooks)), None)


def is_torch_module(model: Any) -> bool:
    """Whether `model` is a `torch.nn.Module`, without importing torch: an instance cannot exist before torch is imported."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


def remember_clean() -> None:
    """Note the settings that a trial may change. Once in a worker process, before its first trial. Imports no framework."""
    for name in names():
        load(name)().remember()


def seed_loaded(seed: int) -> None:
    """Seed the generators of the frameworks that this process has loaded."""
    for name in names():
        framework = load(name)()
        if framework.loaded():
            framework.seed(seed)


def joined(name: str) -> int | None:
    """How many processes a train loop trains with, as the framework that its trainer runs counts them; None if unknown."""
    framework = load(name)()
    return framework.joined() if framework.loaded() else None


def explain(error: BaseException) -> str | None:
    """What an error means that a train loop raised over something its framework cannot do, and what to do about it."""
    return next((said for name in names() if (said := load(name)().explain(error)) is not None), None)


def reset_loaded() -> list[str]:
    """Put back what a trial changed in the frameworks that this process has loaded, whichever of them the trial ran in.

    Returns:
        Why the process cannot be used for another trial, a sentence each. Empty if it can. Never raises: a reset that
        fails is a reason.
    """
    reasons = []
    for name in names():
        framework = load(name)()
        if framework.loaded():
            try:
                reason = framework.reset()
            except Exception as error:
                reason = f"{name} cannot be reset: {type(error).__name__}: {error}"
            if reason is not None:
                reasons.append(reason)
    return reasons
