"""Predicts the rows of a file with an exported model: `predict_file(model, rows.csv)`.

The file is read twice, a batch at a time: once to find everything that is wrong with it, before the model is loaded, and once
to predict. So memory stays bounded and a bad row 90,000 costs nobody the first 89,999.

A model whose card says that it runs code is loaded by unpickling: only predict with models whose origin you trust. Every other
model is loaded with unpickling switched off, whatever else its folder holds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tunelab.errors import BadInputError
from tunelab.export import card as cards
from tunelab.export.prove import rows as as_rows
from tunelab.export.rows import Inputs, check, read

BATCH_SIZE = 256


def predict_file(model_dir: Path, input: Path, *, batch_size: int = BATCH_SIZE) -> Iterator[dict[str, Any]]:
    """`{"row": 0, "prediction": 6}` for each row of a `.csv` or `.jsonl` file, in order, as plain JSON values.

    Raises:
        BadInputError: Before anything is predicted: not an exported model, no such file, another format, or rows that do not
            fit the model, all of them named.
    """
    if batch_size < 1:
        raise BadInputError(f"batch_size needs at least 1, got {batch_size}.")
    model_dir, card = Path(model_dir), cards.read(Path(model_dir))
    inputs = Inputs.from_json(card["input"])
    check(Path(input), inputs)
    return _predict(model_dir, card, Path(input), inputs, batch_size)


def _predict(model_dir: Path, card: Mapping[str, Any], file: Path, inputs: Inputs, batch_size: int) -> Iterator[dict[str, Any]]:
    import mlflow.pyfunc

    with _unpickling(bool(card["runs_code"])):
        model = mlflow.pyfunc.load_model(str(model_dir.resolve()))
    start, batch = 0, []
    for _, row in read(file, inputs):
        batch.append(row)
        if len(batch) == batch_size:
            yield from _batch(model, batch, start, inputs)
            start, batch = start + len(batch), []
    if batch:
        yield from _batch(model, batch, start, inputs)


def _batch(model: Any, batch: list[Any], start: int, inputs: Inputs) -> Iterator[dict[str, Any]]:
    data: Any = batch
    if inputs.kind == "array":
        import numpy as np

        data = np.asarray(batch, dtype=inputs.dtype).reshape(len(batch), *inputs.shape)
    elif inputs.kind == "table":
        import pandas as pd

        data = pd.DataFrame(batch, columns=list(inputs.columns))
        for name, kind in zip(inputs.columns, inputs.types, strict=True):
            data[name] = data[name].astype({"number": "float64", "integer": "int64", "bool": "bool", "text": "object"}[kind])
    for number, row in enumerate(as_rows(model.predict(data)), start):
        yield {"row": number, **row}


@contextmanager
def _unpickling(allowed: bool) -> Iterator[None]:
    """MLflow's own switch for unpickling, for as long as a model is loaded."""
    name = "MLFLOW_ALLOW_PICKLE_DESERIALIZATION"
    before = os.environ.get(name)
    os.environ[name] = "true" if allowed else "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
