"""Rows of input: what a model takes (`Inputs`), and reading them from `.csv` and `.jsonl` files, checked.

Rows are counted from 0, as in the predictions; lines from 1, as in an editor.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tunelab.errors import BadInputError

_SHOWN = 10  # problems listed before "and n more"
_PAIR = ["text", "text_pair"]


@dataclass(frozen=True)
class Inputs:
    """What one row of input is.

    Args:
        kind: `array` (numbers of one shape), `text` (one text, or a pair), `table` (named columns) or `json` (anything).
        dtype: NumPy's name of the numbers' type, for arrays.
        shape: Shape of one row, for arrays.
        columns: Names, for texts and tables.
        types: Kind of each column of a table: `number`, `integer`, `bool` or `text`.
    """

    kind: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    columns: tuple[str, ...] = ()
    types: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """Numbers in one row of an array."""
        return math.prod(self.shape)

    def describe(self) -> str:
        """`rows of 64 numbers (float32)`, `texts`, `a table with the columns a, b`."""
        match self.kind:
            case "array":
                return f"rows of {' x '.join(map(str, self.shape)) or 'one'} numbers ({self.dtype})"
            case "text":
                return "texts" if self.columns == ("text",) else f"texts in the columns {', '.join(self.columns)}"
            case "table":
                return f"a table with the columns {', '.join(self.columns)}"
        return "one JSON value a row"

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Inputs:
        """From a card, where tuples are lists."""
        known: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
        return cls(**known)


def canonical(example: Any) -> tuple[Any, Inputs]:
    """What `Export.example` returned, in the form that frameworks get, and its description.

    Raises:
        BadInputError: It has no rows.
    """
    if hasattr(example, "detach"):  # a tensor
        example = example.detach().cpu().numpy()
    if hasattr(example, "columns"):
        kinds = {"f": "number", "i": "integer", "u": "integer", "b": "bool"}
        example = example.reset_index(drop=True)
        types = tuple(kinds.get(example[name].dtype.kind, "text") for name in example.columns)
        inputs = Inputs("table", columns=tuple(map(str, example.columns)), types=types)
    elif hasattr(example, "dtype") and hasattr(example, "shape") and example.dtype.kind in "fiub":
        if not example.shape:
            raise BadInputError("Export.example must return rows of input, got a single number.")
        inputs = Inputs("array", dtype=str(example.dtype), shape=tuple(example.shape[1:]))
    else:
        example = list(example.tolist() if hasattr(example, "tolist") else example)
        if example and all(
            isinstance(row, tuple) and len(row) == 2 and all(isinstance(t, str) for t in row) for row in example
        ):
            example = [dict(zip(_PAIR, row, strict=True)) for row in example]
        if all(isinstance(row, str) for row in example):
            inputs = Inputs("text", columns=("text",))
        elif all(isinstance(row, dict) and sorted(row) == _PAIR for row in example):
            inputs = Inputs("text", columns=tuple(_PAIR))
        else:
            inputs = Inputs("json")
    if len(example) == 0:
        raise BadInputError("Export.example returned no rows; it needs a few to prove the exported model on.")
    return example, inputs


def check(file: Path, inputs: Inputs) -> int:
    """Read the whole file and return its number of rows.

    Raises:
        BadInputError: All that is wrong with it, by row (from 0, as in the output) and line.
    """
    problems, count, wrong = [], 0, 0
    for number, (line, row) in enumerate(read(file, inputs)):
        count += 1
        if isinstance(row, _Bad):
            wrong += 1
            if wrong <= _SHOWN:
                problems.append(f"  row {number} (line {line}): {row.problem}")
    if wrong:
        more = [f"  and {wrong - _SHOWN} more"] if wrong > _SHOWN else []
        wanted = inputs.describe()
        head = f"{wrong} of {count} rows of {file} do not fit the model, which takes {wanted}:"
        raise BadInputError("\n".join([head, *problems, *more]))
    if not count:
        raise BadInputError(f"{file} has no rows.")
    return count


@dataclass(frozen=True)
class _Bad:
    problem: str


def read(file: Path, inputs: Inputs) -> Iterator[tuple[int, Any]]:
    """(line, row) for each row: a flat list of numbers, a text, a dictionary, or what is wrong with the row."""
    formats = {".csv": _read_csv, ".jsonl": _read_jsonl}
    if file.suffix.lower() not in formats:
        raise BadInputError(f"Cannot read {file}: a file of rows ends in .csv or .jsonl.")
    if not file.is_file():
        raise BadInputError(f"There is no file {file}.")
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            yield from formats[file.suffix.lower()](stream, file, inputs)
    except UnicodeDecodeError as error:
        raise BadInputError(f"{file} is not UTF-8 text: {error}.") from error


def _read_csv(stream: Any, file: Path, inputs: Inputs) -> Iterator[tuple[int, Any]]:
    csv.field_size_limit(sys.maxsize >> 16)  # texts may be longer than the module's 128 kB
    reader = csv.reader(stream, strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        pick = _columns(header, file, inputs)
        for cells in reader:
            if not cells:
                continue  # a blank line
            if len(cells) != len(header):
                yield reader.line_num, _Bad(f"{len(cells)} columns, the header has {len(header)}")
            else:
                yield reader.line_num, _row([cells[i] for i in pick], inputs, text=True)
    except csv.Error as error:
        raise BadInputError(f"{file}, line {reader.line_num}: {error}.") from error


def _columns(header: list[str], file: Path, inputs: Inputs) -> list[int]:
    """Positions of the model's columns in a CSV file, from its header."""
    if not header:
        raise BadInputError(f"{file} is empty: its first line must be a header.")
    if len(set(header)) != len(header):
        twice = sorted({name for name in header if header.count(name) > 1})
        raise BadInputError(f"{file} has the columns {', '.join(map(repr, twice))} more than once.")
    if inputs.kind == "array":
        if len(header) != inputs.width:
            raise BadInputError(f"{file} has {len(header)} columns; the model takes {inputs.describe()}.")
        numbered = [str(i) for i in range(len(header))]
        if set(header) == set(numbered):
            return [header.index(name) for name in numbered]
        if all(_number(name, "float64") is not None for name in header):
            raise BadInputError(
                f"The first line of {file} is numbers, and so would be taken for the header. Put one before it, such as "
                f"{','.join(numbered[:3])}{',...' if len(numbered) > 3 else ''}."
            )
        return list(range(len(header)))
    if inputs.kind == "json":
        raise BadInputError(f"The model takes {inputs.describe()}: give a .jsonl file.")
    if inputs.columns == ("text",) and len(header) == 1:
        return [0]
    missing = [name for name in inputs.columns if name not in header]
    if missing:
        raise BadInputError(f"{file} lacks the columns {', '.join(map(repr, missing))}. It has: {', '.join(header)}.")
    return [header.index(name) for name in inputs.columns]


def _read_jsonl(stream: Any, file: Path, inputs: Inputs) -> Iterator[tuple[int, Any]]:
    names: list[str] = []  # of an array's columns, where rows are objects: those of the first
    for line, text in enumerate(stream, 1):
        if not text.strip():
            continue
        try:
            value = json.loads(text)
        except ValueError as error:
            yield line, _Bad(f"not JSON: {error}")
            continue
        if inputs.kind == "json":
            yield line, value
        elif inputs.kind == "array":
            if isinstance(value, dict):
                numbered = [str(i) for i in range(len(value))]
                names = names or (numbered if set(value) == set(numbered) else list(value))
                if set(value) != set(names):
                    yield line, _Bad(f"has the names {', '.join(value)}; the first row has {', '.join(names)}")
                    continue
                value = [value[name] for name in names]
            yield line, _row(list(_flat(value)), inputs)
        elif isinstance(value, dict):
            missing = [name for name in inputs.columns if name not in value]
            yield line, _Bad(f"lacks {', '.join(missing)}") if missing else _row([value[n] for n in inputs.columns], inputs)
        else:
            yield line, _row(list(value) if isinstance(value, list) else [value], inputs)


def _row(cells: list[Any], inputs: Inputs, *, text: bool = False) -> Any:
    """One row's cells as the model's values, or what is wrong with them. `text`: all cells are strings, from a CSV file."""
    wanted = inputs.width if inputs.kind == "array" else len(inputs.columns)
    if len(cells) != wanted:
        return _Bad(f"{len(cells)} values, needs {wanted}")
    names = inputs.columns if inputs.kind != "array" else [f"column {i}" for i in range(wanted)]
    values, wrong = [], []
    for name, kind, cell in zip(names, inputs.types or [inputs.kind] * wanted, cells, strict=True):
        value = _cell(cell, inputs.dtype if kind == "array" else kind, text)
        values.append(value)
        if value is None:
            wrong.append(f"{name} is {str(cell)[:40]!r}")
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        what = "not a text" if inputs.kind == "text" else "not a finite number" if inputs.kind == "array" else "of another type"
        return _Bad(f"{', '.join(wrong[:3])}{more}: {what}")
    if inputs.kind == "text":
        return values[0] if len(values) == 1 else dict(zip(names, values, strict=True))
    return dict(zip(names, values, strict=True)) if inputs.kind == "table" else values


def _cell(cell: Any, kind: str, text: bool) -> Any:
    """The value of a cell, or None if it is not of its kind."""
    if kind == "text":
        return cell if isinstance(cell, str) and cell.strip() else None
    if kind == "bool":
        return {"true": True, "false": False}.get(str(cell).strip().lower())
    if kind == "number" and cell in ("", None):
        return math.nan  # a gap in a table, which models of tables know how to take
    if isinstance(cell, str) and not text:
        return None
    return _number(cell, {"number": "float64", "integer": "int64"}.get(kind, kind))


def _number(cell: Any, dtype: str) -> float | int | bool | None:
    """A finite number that `dtype` can hold, or None. `1.0` is an integer, `1.5` is not."""
    kind, lowest, highest = _limits(dtype)
    if isinstance(cell, bool) or cell is None:
        return cell if kind == "b" and cell is not None else None
    try:
        number = float(cell)
    except (TypeError, ValueError, OverflowError):
        return None
    if not lowest <= number <= highest:  # NaN too
        return None
    if kind == "f":
        return number
    try:
        whole = int(cell)  # exact where a float of 64 bits is not
    except ValueError:  # "1.0"
        whole = int(number)
    if whole != number or not lowest <= whole <= highest:
        return None
    return bool(whole) if kind == "b" else whole


@lru_cache
def _limits(dtype: str) -> tuple[str, float, float]:
    """Kind of a NumPy type (`f`, `i`, `u` or `b`), its smallest and its largest number."""
    import numpy as np

    kind = np.dtype(dtype)
    if kind.kind == "f":
        return "f", float(np.finfo(kind).min), float(np.finfo(kind).max)
    if kind.kind == "b":
        return "b", 0, 1
    return kind.kind, int(np.iinfo(kind).min), int(np.iinfo(kind).max)


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for part in value:
            yield from _flat(part)
    else:
        yield value
