"""The model's card: `card.json` for programs, `README.md` for people.

It says which trial the model is, how it was trained, what it scored, with which code and versions, and whether loading it
runs code. `tunelab predict` reads only folders that carry one.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tunelab.core.trial import Report, Trial
from tunelab.errors import BadInputError
from tunelab.export.rows import Inputs
from tunelab.journal import SweepState

FILE_NAME = "card.json"
SCHEMA_VERSION = 1


def make(
    *,
    state: SweepState,
    trial: Trial,
    report: Report,
    saved: Mapping[str, Any],
    inputs: Mapping[str, Any],
    evaluation: Mapping[str, float],
    proof: Mapping[str, Any],
    checkpoint: str,
    weights: Mapping[str, str],
    requirements: list[str],
    at: float,
) -> dict[str, Any]:
    """The card as JSON values.

    Args:
        saved: Fields of `frameworks.Saved`, and the framework's name as `framework`.
        inputs: Fields of `rows.Inputs`.
        evaluation: What `Export.evaluate` returned, or nothing.
        proof: Rows, equal, max_difference and tolerance of the proof.
        checkpoint: Where in the sweep's storage the checkpoint lies, relative.
        weights: SHA-256 of each file of the model by its path within the folder.
        at: When it was exported, in seconds since the epoch.
    """
    objective, facts = state.experiment["objective"], state.facts
    return {
        "card": SCHEMA_VERSION,
        "trial": f"{state.sweep}/{trial.id}",
        "sweep": state.sweep,
        "config": dict(trial.config),
        "seed": trial.seed,
        "objective": {
            "metric": objective["metric"],
            "mode": objective["mode"],
            "value": report.value,
            "step_name": objective.get("step") or "step",
            "step": report.step,
        },
        "metrics": dict(report.metrics),
        "evaluation": dict(evaluation),
        "data": facts.get("data"),
        "code": {"git": facts.get("git"), "file": Path(facts["file"]).name if facts.get("file") else None},
        "trained_with": facts.get("versions"),
        "exported_at": datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "requirements": requirements,
        **saved,
        "input": dict(inputs),
        "checkpoint": checkpoint,
        "weights": dict(weights),
        "proof": dict(proof),
    }


def write(folder: Path, card: Mapping[str, Any]) -> None:
    """Write `card.json` and `README.md` into the model's folder."""
    (folder / FILE_NAME).write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(render(card), encoding="utf-8")


def read(folder: Path) -> dict[str, Any]:
    """The card of an exported model.

    Raises:
        BadInputError: `folder` is not one, or a newer tunelab wrote it.
    """
    if not folder.is_dir():
        raise BadInputError(f"There is no folder {folder}. Expected a model that `tunelab export` wrote.")
    try:
        card = json.loads((folder / FILE_NAME).read_text(encoding="utf-8"))
        version = card["card"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInputError(
            f"{folder} is not an exported model: it has no readable {FILE_NAME}. See: tunelab export"
        ) from error
    if not (folder / "MLmodel").is_file():
        raise BadInputError(f"{folder} is not an exported model: its file MLmodel is missing.")
    if version != SCHEMA_VERSION:
        raise BadInputError(f"{folder} has a card of version {version}; this tunelab reads version {SCHEMA_VERSION}.")
    return card


def hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of every file in `folder`, by path within it."""
    found = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        with path.open("rb") as file:
            found[path.relative_to(folder).as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def render(card: Mapping[str, Any]) -> str:
    """The card in Markdown."""
    objective, proof = card["objective"], card["proof"]
    config = "\n".join(f"| {name} | {_cell(value)} |" for name, value in card["config"].items())
    metrics = {**card["metrics"], **{f"{name} (evaluate)": value for name, value in card["evaluation"].items()}}
    lines = [
        f"# {card['trial']}",
        "",
        f"{objective['metric']} {objective['value']:.6g} ({objective['mode']}) at {objective['step_name']} "
        f"{objective['step']:g}. Exported {card['exported_at']}.",
        "",
        "## Use",
        "",
        "```",
        "pip install -r requirements.txt",
        "python -c \"import mlflow; print(mlflow.pyfunc.load_model('.').predict(...))\"",
        "```",
        "",
        f"Framework {card['framework']}, MLflow flavor `{card['flavor']}`, weights as {card['format']}. "
        f"Input: {Inputs.from_json(card['input']).describe()}.",
        "",
        "**Loading this model runs code that it carries. Load it only if you trust where it comes from.** " + card["note"]
        if card["runs_code"]
        else "Loading this model runs no code of its own: it loads with `MLFLOW_ALLOW_PICKLE_DESERIALIZATION=false`.",
        "",
        f"Proof: {proof['equal']} of {proof['rows']} rows equal to the checkpoint's predictions in a clean process, "
        f"max difference {proof['max_difference']:.2g}. Again: `python -m tunelab.export.prove .`",
        "",
        "## Configuration",
        "",
        f"Seed {card['seed']}.",
        "",
        "| name | value |",
        "|---|---|",
        config,
        "",
        "## Metrics",
        "",
        "| name | value |",
        "|---|---|",
        *[f"| {name} | {_cell(value)} |" for name, value in metrics.items()],
        "",
        "## Origin",
        "",
        f"- Data: {card['data'] or 'not described'}",
        f"- Code: {_code(card['code'])}",
        f"- Checkpoint: {card['checkpoint']}",
        f"- Requires: Python {card['python']}; {', '.join(card['requirements'])}",
        "",
    ]
    return "\n".join(lines)


def _code(code: Mapping[str, Any]) -> str:
    git = code.get("git")
    if isinstance(git, Mapping) and git.get("commit"):
        return (
            f"{code['file'] or ''} at git {git['commit']} {'with uncommitted changes' if git.get('dirty') else 'clean'}".strip()
        )
    return f"{code['file'] or 'unknown'}, git {git or 'unknown'}"


def _cell(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value).replace("|", "\\|").replace("\n", " ")
