"""From a checkpoint to a model that predicts somewhere else, and the proof that it does.

`deliver.py` chooses the checkpoint and writes the model, `card.py` says what it is, `prove.py` reloads it in a clean process,
`predict.py` reads rows from a file and predicts them. What is written: docs/decisions/export-format.md.
"""

from __future__ import annotations

from typing import Any

_LAZY = {"export_trial": "deliver", "Exported": "deliver", "predict_file": "predict"}
__all__ = ["Exported", "export_trial", "predict_file"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
