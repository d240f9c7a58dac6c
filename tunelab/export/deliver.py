"""Chooses a checkpoint and turns it into a model: `export_trial(...)`.

    choose --> copy the checkpoint --> load --> predict the example --> save --> prove in a clean process --> card --> rename

Everything is written into a hidden folder beside the target, which is renamed at the very end: the target is a whole, proved
model or it is not there.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from tunelab import frameworks
from tunelab.core.experiment import Experiment, Export
from tunelab.core.protocols import Framework
from tunelab.core.select import Best
from tunelab.errors import BadInputError, ExportMismatchError
from tunelab.export import card as cards
from tunelab.export.choose import choose, fetch, path_of
from tunelab.export.prove import TOLERANCE, ProofFailed, prove, record, rows
from tunelab.export.rows import canonical
from tunelab.journal import SweepState
from tunelab.journal.home import SweepFolder
from tunelab.journal.locks import scratch


@dataclass(frozen=True)
class Exported:
    """A model that was delivered and proved.

    Args:
        trial: Full id, `digits-mlp.1/0021`.
        flavor: MLflow flavor. `format`: how its weights are kept. `runs_code`: whether loading it runs code it carries.
        rows: Rows of the example; `equal` of them came out the same in a clean process, numbers within `max_difference`.
        note: What the user should know, or "".
    """

    path: Path
    trial: str
    metric: str
    value: float
    step_name: str
    step: float
    flavor: str
    format: str
    runs_code: bool
    rows: int
    equal: int
    max_difference: float
    note: str = ""

    def line(self) -> str:
        """`digits-mlp.1/0021, epoch 17, accuracy 0.9822 -> model/ (MLflow, pytorch). Clean process: 8 of 8 rows equal, ...`"""
        return (
            f"{self.trial}, {self.step_name} {self.step:g}, {self.metric} {self.value:.4g} -> "
            f"{self.path}/ (MLflow, {self.flavor}). "
            f"Clean process: {self.equal} of {self.rows} rows equal, max difference {self.max_difference:.2g}"
        )

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "path": str(self.path)}


def export_trial(
    *,
    folder: SweepFolder,
    state: SweepState,
    experiment: Experiment,
    to: Path,
    trial: int | None = None,
    clock: Callable[[], float] = time.time,
) -> Exported:
    """Write the best checkpoint of the sweep, or of one trial, into the folder `to` as an MLflow model, and prove it.

    Args:
        experiment: The experiment as the sweep ran it; its `export` hooks are called in this process.
        to: Must not exist, or be empty. Nothing is left there if anything goes wrong, SIGTERM included.
        trial: Number of the trial, or None for the sweep's best.
        clock: Seconds since the epoch, for the card.

    Raises:
        NoCheckpointError: No trial has ended well, or none has a kept checkpoint, or the checkpoint's folder is gone.
        BadInputError: `to` is taken, or the experiment does not say how its checkpoints become a model.
        ExportMismatchError: The model, reloaded in a clean process, fails or predicts something else.
    """
    to = Path(to)
    check_target(to)
    chosen = choose(folder, state, trial)
    to.parent.mkdir(parents=True, exist_ok=True)
    with _partial(to) as partial, scratch("tunelab-export-") as aside:
        # A copy: retention may delete the original while a sweep goes on.
        checkpoint = Path(aside, "checkpoint")
        fetch(folder.checkpoint(state, path_of(chosen)), checkpoint)
        exported = _write(partial, checkpoint, chosen, state, experiment, to, clock)
        if to.is_dir():
            to.rmdir()  # empty, or it would have been refused; fails if something came in since
        os.rename(partial, to)
    return exported


def _write(
    partial: Path,
    checkpoint: Path,
    chosen: Best,
    state: SweepState,
    experiment: Experiment,
    to: Path,
    clock: Callable[[], float],
) -> Exported:
    trial, report = chosen.trial, chosen.report
    title = f"{state.sweep}/{trial.id}"
    config = {**experiment.loop_defaults(), **trial.config}
    framework, hooks = _framework(checkpoint, experiment.export)
    model = framework.load(checkpoint, config, hooks)
    assert hooks.example is not None
    inputs, described = canonical(hooks.example())
    if frameworks.is_torch_module(model) and described.kind == "array":
        model, framework = model.eval(), frameworks.load("torch")()
    elif framework.name == "transformers" and described.kind != "text":
        raise BadInputError(
            "A Transformers checkpoint is exported with texts: Export.example must return a list of texts or of pairs."
        )
    elif framework.name in ("torch", "lightning"):
        raise BadInputError(
            f"Export(build, weights) is for models of one array of numbers; Export.example returned {described.describe()}. "
            "Give Export(load=..., predict=...)."
        )
    outputs = framework.predict(model, inputs, hooks)
    expected = rows(outputs)
    if len(expected) != len(inputs):
        raise BadInputError(
            f"Export.predict returned {len(expected)} predictions for {len(inputs)} rows; it needs one for each row."
        )
    evaluation = {name: float(value) for name, value in (hooks.evaluate(model) if hooks.evaluate else {}).items()}
    saved = framework.save(
        model, partial, inputs=inputs, outputs=outputs, hooks=hooks, checkpoint=checkpoint, config=config, title=title
    )
    weights = cards.hashes(partial)
    record(partial, inputs, expected, runs_code=saved.runs_code)
    try:
        proof = prove(partial)
    except ProofFailed as error:
        raise ExportMismatchError(f"{title}: the exported model does not work in a clean process: {error}") from error
    if not proof.holds:
        raise ExportMismatchError(
            "\n  ".join(
                [f"{title}: the exported model does not predict what its checkpoint does. {proof.line()}:", *proof.mismatches]
            )
        )
    requirements = _require(partial, proof.packages if saved.runs_code else ())
    objective = state.experiment["objective"]
    card = cards.make(
        state=state,
        trial=trial,
        report=report,
        saved={"framework": framework.name, **asdict(saved)},
        inputs=asdict(described),
        evaluation=evaluation,
        proof={"rows": proof.rows, "equal": proof.equal, "max_difference": proof.max_difference, "tolerance": TOLERANCE},
        checkpoint=path_of(chosen),
        weights=weights,
        requirements=requirements,
        at=clock(),
    )
    cards.write(partial, card)
    return Exported(
        path=to,
        trial=title,
        metric=objective["metric"],
        value=report.value,
        step_name=objective.get("step") or "step",
        step=report.step,
        **asdict(saved),
        rows=proof.rows,
        equal=proof.equal,
        max_difference=proof.max_difference,
    )


def _framework(checkpoint: Path, hooks: Export | None) -> tuple[Framework, Export]:
    """The framework that reads the checkpoint, and the hooks to use with it."""
    name = frameworks.of_checkpoint(checkpoint, hooks)
    if name is None:
        held = ", ".join(sorted(p.name for p in checkpoint.iterdir())) or "nothing"
        raise BadInputError(
            f"The experiment does not say how its checkpoint becomes a model, and the checkpoint (it holds {held}) does not "
            'describe itself. Add to the Experiment: export=Export(build=..., weights=("state.pt", "model"), example=...), or '
            "Export(load=..., example=...)."
        )
    framework = frameworks.load(name)()
    if hooks is None:  # only a checkpoint that describes itself comes this far
        hooks = Export(example=framework.default_example)
    return framework, hooks


def _require(folder: Path, modules: tuple[str, ...]) -> list[str]:
    """Pin, beside what the framework pinned, the packages that the clean process had to import; not what those bring along."""
    file = folder / "requirements.txt"
    pinned = [line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    names = {line.partition("==")[0].lower() for line in pinned}
    providers = metadata.packages_distributions()
    used = {name for module in modules for name in providers.get(module, ())}
    brought = set()
    for name in [*used, *names] if used else ():
        if name == "mlflow":  # it asks for scikit-learn, say, in any version; the user's pickles need this one
            continue
        for requirement in metadata.requires(name) or ():
            if "extra ==" not in requirement:
                brought.add(_normal(requirement))
    missing = sorted(name for name in used if _normal(name) not in brought | {_normal(n) for n in names})
    added = [f"{name}=={metadata.version(name).partition('+')[0]}" for name in missing]
    if added:
        import yaml

        file.write_text("\n".join([*pinned, *added]) + "\n", encoding="utf-8")
        environment = yaml.safe_load((folder / "conda.yaml").read_text(encoding="utf-8"))
        for part in environment["dependencies"]:
            if isinstance(part, dict):
                part["pip"] = [*part["pip"], *added]
        (folder / "conda.yaml").write_text(yaml.safe_dump(environment, sort_keys=False), encoding="utf-8")
    return [*pinned, *added]


def _normal(requirement: str) -> str:
    """`Foo_bar[x]>=1; extra == "y"` -> `foo-bar`."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    return str(canonicalize_name(Requirement(requirement).name))


def check_target(to: Path) -> None:
    if to.is_dir() and any(to.iterdir()):
        raise BadInputError(f"{to} is not empty. Export into a new folder, or empty it first.")
    if not to.is_dir() and (to.exists() or to.is_symlink()):
        raise BadInputError(f"{to} exists and is not a folder.")
    if not to.name:
        raise BadInputError(f"Cannot export into {to}: name a new folder.")


@contextmanager
def _partial(to: Path) -> Iterator[Path]:
    """A folder beside `to` that is gone afterwards, unless it was renamed. SIGTERM unwinds too, as Ctrl-C does."""
    for stale in to.parent.glob(f".{to.name}.partial-*"):  # of an export that was killed outright
        if not _alive(stale.name.rpartition("-")[2]):
            shutil.rmtree(stale, ignore_errors=True)
    partial = to.parent / f".{to.name}.partial-{os.getpid()}"
    shutil.rmtree(partial, ignore_errors=True)
    with _terminable():
        try:
            partial.mkdir()
            yield partial
        finally:
            shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM raises SystemExit(143), so that `finally` runs. Signals can be handled in the main thread alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(*_: Any) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)


def _alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True
