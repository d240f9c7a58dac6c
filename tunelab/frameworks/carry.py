"""What an exported model carries with it: the user's code, by value, and the versions it needs."""

from __future__ import annotations

import logging
import os
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from types import ModuleType


def pinned(*packages: str) -> list[str]:
    """`name==version` of each installed package. `2.13.0+cpu` becomes `2.13.0`: the local part names a build, which another
    machine may not have.

    >>> pinned("pip")[0].startswith("pip==")
    True
    """
    return [f"{name}=={metadata.version(name).partition('+')[0]}" for name in sorted(set(packages))]


@contextmanager
def local_code_by_value() -> Iterator[None]:
    """Within it cloudpickle writes functions and classes of the project's own modules whole instead of by name.

    What can be installed (standard library, site-packages) and tunelab itself stay names.
    """
    import cloudpickle

    registered = [module for module in list(sys.modules.values()) if _is_local(module)]
    known = cloudpickle.list_registry_pickle_by_value()
    registered = [module for module in registered if module.__name__ not in known]
    for module in registered:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in registered:
            cloudpickle.unregister_pickle_by_value(module)


@contextmanager
def quiet() -> Iterator[None]:
    """Without MLflow's and torch.export's advice and progress bars: what matters of them is in the model's card."""
    bars = "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"
    before = os.environ.get(bars)
    os.environ[bars] = "false"
    loggers = [logging.getLogger(name) for name in ("mlflow", "torch", "torch.fx.experimental.symbolic_shapes")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if before is None:
            del os.environ[bars]
        else:
            os.environ[bars] = before


def _is_local(module: ModuleType) -> bool:
    name, file = getattr(module, "__name__", None), getattr(module, "__file__", None)
    if not isinstance(name, str) or not isinstance(file, str) or name == "__main__" or name.partition(".")[0] == "tunelab":
        return False
    if sys.modules.get(name) is not module:
        return False
    path = Path(file).resolve()
    return not any(path.is_relative_to(folder) for folder in _INSTALLED) and "site-packages" not in path.parts


_INSTALLED = {Path(sysconfig.get_paths()[key]).resolve() for key in ("stdlib", "platstdlib", "purelib", "platlib")} | {
    Path(sys.base_prefix, "lib").resolve()
}
