"""Hyperparameter tuning on Ray Tune and Ray Train: one `Experiment(...)` more than a training script.

The names below are loaded when they are first used, so that `import tunelab` costs a few milliseconds and loads no
framework. Where each of them lives is said in `_HOMES`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    # what an experiment is made of
    "Experiment",
    "Objective",
    "Budget",
    "Retention",
    "Export",
    "OnFailure",
    # spaces
    "Space",
    "Float",
    "Int",
    "Choice",
    # searchers
    "Random",
    "Grid",
    "TPE",
    # schedulers
    "FIFO",
    "ASHA",
    # in a training loop
    "Infeasible",
    "current_trial",
    "project_path",
    # in Python instead of at the shell
    "sweep",
    "open",
    "__version__",
]

_HOMES = {
    "tunelab.core.experiment": ("Experiment", "Objective", "Budget", "Retention", "Export"),
    "tunelab.core.failures": ("OnFailure",),
    "tunelab.core.space": ("Space", "Float", "Int", "Choice"),
    "tunelab.searchers.random": ("Random",),
    "tunelab.searchers.grid": ("Grid",),
    "tunelab.searchers.optuna": ("TPE",),
    "tunelab.schedulers.fifo": ("FIFO",),
    "tunelab.schedulers.asha": ("ASHA",),
    "tunelab.errors": ("Infeasible",),
    "tunelab.engine.context": ("current_trial", "project_path"),
    "tunelab.engine.api": ("sweep", "open"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

if TYPE_CHECKING:
    from tunelab.core.experiment import Budget, Experiment, Export, Objective, Retention
    from tunelab.core.failures import OnFailure
    from tunelab.core.space import Choice, Float, Int, Space
    from tunelab.engine.api import open, sweep
    from tunelab.engine.context import current_trial, project_path
    from tunelab.errors import Infeasible
    from tunelab.schedulers.asha import ASHA
    from tunelab.schedulers.fifo import FIFO
    from tunelab.searchers.grid import Grid
    from tunelab.searchers.optuna import TPE
    from tunelab.searchers.random import Random


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        value = getattr(import_module(_HOME_OF[name]), name)
        globals()[name] = value  # found directly from now on
        return value
    if name.startswith("_"):  # asked for by tools, never a typing error of a user's
        raise AttributeError(f"module 'tunelab' has no attribute {name!r}")
    from difflib import get_close_matches

    close = get_close_matches(name, __all__, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise AttributeError(f"module 'tunelab' has no attribute {name!r}.{hint} It has: {', '.join(__all__)}.")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
