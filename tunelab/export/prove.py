"""Proves that an exported model gives the predictions that were recorded from its checkpoint, in a clean process.

    python -m tunelab.export.prove model/

The clean process is a fresh, isolated Python elsewhere: no PYTHONPATH, no working directory of the project, no tunelab, no
GPU, no hub, and with unpickling switched off unless the model's card says that it needs it. It runs this very file, which
therefore imports the standard library, NumPy and MLflow and nothing else.

An exported model keeps its proof in `proof/`: the inputs, and `expected.json` with one prediction a row. So it can be proved
again, on the machine where it is to be used.
"""

from __future__ import annotations

import importlib.abc
import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOLERANCE = 1e-5  # largest difference between numbers, absolute up to 1 and relative above
TIMEOUT_S = 600.0
PROOF = "proof"


@dataclass(frozen=True)
class Proof:
    """What the clean process found.

    Args:
        rows: Rows predicted.
        equal: Rows whose prediction is the recorded one: labels equal, numbers within `TOLERANCE`.
        max_difference: Largest absolute difference between two numbers; 0.0 if there are none, infinite when a number met
            something else.
        mismatches: The first few rows that differ, one line each.
        packages: Top-level modules that were imported to load the model and to predict, beyond what MLflow imports itself.
    """

    rows: int
    equal: int
    max_difference: float
    mismatches: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        return self.equal == self.rows and not self.mismatches

    def line(self) -> str:
        """`Clean process: 8 of 8 rows equal, max difference 0`"""
        return f"Clean process: {self.equal} of {self.rows} rows equal, max difference {self.max_difference:.2g}"


class ProofFailed(Exception):
    """The clean process could not load the model or predict with it. The message is what it said last."""


def rows(outputs: Any) -> list[dict[str, Any]]:
    """Predictions of any shape as one `{"prediction": ..., "score": ...}` a row, in plain Python values.

    A table with `label` and `score` keeps both; one column is the prediction; several columns make a dictionary.
    """
    if hasattr(outputs, "to_dict") and hasattr(outputs, "columns"):  # a DataFrame, without importing pandas
        found = []
        for record in outputs.to_dict(orient="records"):
            record = {str(name): _plain(value) for name, value in record.items()}
            if set(record) == {"label", "score"}:
                found.append({"prediction": record["label"], "score": record["score"]})
            elif "prediction" in record and set(record) <= {"prediction", "score"}:
                found.append(record)
            else:
                found.append({"prediction": next(iter(record.values())) if len(record) == 1 else record})
        return found
    if isinstance(outputs, dict):
        columns = {name: _plain(values) for name, values in outputs.items()}
        return [{"prediction": dict(zip(columns, row, strict=True))} for row in zip(*columns.values(), strict=True)]
    plain = _plain(outputs)
    return [{"prediction": value} for value in (plain if isinstance(plain, list) else [plain])]


def compare(expected: Any, found: Any) -> tuple[bool, float]:
    """Whether two plain values agree, and the largest absolute difference between their floats."""
    if isinstance(expected, float) and isinstance(found, (int, float)) and not isinstance(found, bool):
        if expected == found or (math.isnan(expected) and math.isnan(found)):
            return True, 0.0
        difference = abs(expected - found)
        if not math.isfinite(difference):
            return False, math.inf
        return difference <= TOLERANCE * max(1.0, abs(expected)), difference
    if isinstance(expected, dict) and isinstance(found, dict) and expected.keys() == found.keys():
        parts = [compare(value, found[key]) for key, value in expected.items()]
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        parts = [compare(one, other) for one, other in zip(expected, found, strict=True)]
    else:
        same = type(expected) is type(found) and expected == found
        return same, 0.0 if same or isinstance(expected, (str, bool, int)) else math.inf
    return all(equal for equal, _ in parts), max((difference for _, difference in parts), default=0.0)


def record(folder: Path, inputs: Any, expected: Sequence[dict[str, Any]], *, runs_code: bool) -> None:
    """Write `proof/`: what goes in, what must come out, and whether loading may unpickle."""
    proof = folder / PROOF
    proof.mkdir()
    if hasattr(inputs, "columns"):
        kind = "table"
        inputs.to_json(proof / "inputs.json", orient="table", index=False, double_precision=15)
    elif hasattr(inputs, "dtype"):
        import numpy as np

        kind = "array"
        np.savez_compressed(proof / "inputs.npz", inputs=inputs)
    else:
        kind = "list"
        (proof / "inputs.json").write_text(json.dumps(inputs, ensure_ascii=False), encoding="utf-8")
    content = {"kind": kind, "runs_code": runs_code, "tolerance": TOLERANCE, "rows": list(expected)}
    (proof / "expected.json").write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")


def prove(folder: Path, *, timeout_s: float = TIMEOUT_S) -> Proof:
    """Reload the model in `folder` in a clean process and compare.

    Raises:
        ProofFailed: It cannot be loaded, predicting fails, or it takes longer than `timeout_s`.
    """
    from tunelab.journal.locks import scratch  # not above: this file also runs where tunelab is not

    runs_code = json.loads((folder / PROOF / "expected.json").read_text(encoding="utf-8"))["runs_code"]
    dropped = ("PYTHON", "MLFLOW_", "RAY_", "DATABRICKS_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    environment |= {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "TOKENIZERS_PARALLELISM": "false",
    }
    environment |= {"MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "true" if runs_code else "false"}
    with scratch("tunelab-proof-") as elsewhere:
        result = Path(elsewhere, "result.json")
        # -I: no PYTHON* variables, no user site, and neither the working directory nor this file's on sys.path.
        command = [sys.executable, "-I", str(Path(__file__).resolve()), "--here", str(folder.resolve()), str(result)]
        try:
            done = subprocess.run(
                command,
                check=False,
                cwd=elsewhere,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout_s,
            )
        except subprocess.TimeoutExpired as error:
            raise ProofFailed(f"it did not finish within {timeout_s:g} s") from error
        if done.returncode != 0 or not result.is_file():
            lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
            raise ProofFailed(lines[-1].strip() if lines else f"it ended with exit status {done.returncode}")
        found = json.loads(result.read_text(encoding="utf-8"))
    return Proof(found["rows"], found["equal"], found["max_difference"], tuple(found["mismatches"]), tuple(found["packages"]))


def prove_here(folder: Path) -> Proof:
    """The comparison itself, in this process: all rows at once, then the first row alone, since a batch may be of any size."""
    import mlflow.pyfunc

    known = {name.partition(".")[0] for name in sys.modules}
    proof = folder / PROOF
    content = json.loads((proof / "expected.json").read_text(encoding="utf-8"))
    inputs, expected = _inputs(proof, content["kind"]), content["rows"]
    model = mlflow.pyfunc.load_model(str(folder))
    found, alone = rows(model.predict(inputs)), rows(model.predict(inputs[:1]))
    packages = {name.partition(".")[0] for name in sys.modules} - known
    mismatches, equal, largest = [], 0, 0.0
    if len(found) != len(expected):
        mismatches.append(f"{len(expected)} rows went in, {len(found)} predictions came out")
    pairs = [(f"row {number}", *pair) for number, pair in enumerate(zip(expected, found, strict=False))]
    for label, wanted, got in [*pairs, ("row 0 alone", expected[0], alone[0] if len(alone) == 1 else alone)]:
        same, difference = compare(wanted, got)
        largest = max(largest, difference)
        equal += same and label != "row 0 alone"
        if not same:
            mismatches.append(f"{label}: expected {json.dumps(wanted)[:200]}, got {json.dumps(got)[:200]}")
    return Proof(len(expected), equal, largest, tuple(mismatches[:5]), tuple(sorted(packages)))


def _inputs(proof: Path, kind: str) -> Any:
    if kind == "array":
        import numpy as np

        with np.load(proof / "inputs.npz", allow_pickle=False) as arrays:
            return arrays["inputs"]
    if kind == "table":
        import pandas as pd

        return pd.read_json(proof / "inputs.json", orient="table", precise_float=True)
    return json.loads((proof / "inputs.json").read_text(encoding="utf-8"))


def _plain(value: Any) -> Any:
    """`value` with NumPy arrays, scalars and tuples turned into plain Python values, for JSON."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    return value


class _Absent(importlib.abc.MetaPathFinder):
    """Hides tunelab, which may be installed beside MLflow: an exported model must not need it."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] == "tunelab":
            raise ModuleNotFoundError("No module named 'tunelab': an exported model must do without it", name=name)


def _leave_the_project() -> None:
    """Keep the standard library and installed packages on sys.path; an editable install puts the project there too."""
    prefixes = (sys.prefix, sys.base_prefix)
    installed = ("site-packages", "dist-packages")
    sys.path[:] = [p for p in sys.path if any(part in Path(p).parts for part in installed) or p.startswith(prefixes)]
    sys.meta_path[:] = [f for f in sys.meta_path if "__editable__" not in getattr(f, "__module__", "")]
    sys.meta_path.insert(0, _Absent())


def main(arguments: Sequence[str]) -> int:
    if len(arguments) == 3 and arguments[0] == "--here":
        _leave_the_project()
        Path(arguments[2]).write_text(json.dumps(vars(prove_here(Path(arguments[1])))), encoding="utf-8")
        return 0
    if len(arguments) != 1 or not Path(arguments[0], PROOF, "expected.json").is_file():
        print("Usage: python -m tunelab.export.prove DIR, where DIR is a model that `tunelab export` wrote.", file=sys.stderr)
        return 2
    try:
        proof = prove(Path(arguments[0]))
    except ProofFailed as error:
        print(f"The clean process failed: {error}", file=sys.stderr)
        return 1
    print("\n".join([proof.line(), *proof.mismatches]))
    return 0 if proof.holds else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
