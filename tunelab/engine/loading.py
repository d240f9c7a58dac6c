"""From `experiments/digits_mlp.py` or `FILE:NAME` to an `Experiment`.

What the file's text shows to be wrong is said before anything heavy is imported (`source.py`); what only running it shows
is said with the file and line, and without a traceback.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import re
import sys
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunelab.core.experiment import Experiment
from tunelab.engine import source as sources
from tunelab.engine.description import describe, difference
from tunelab.engine.overrides import apply_overrides
from tunelab.engine.packages import how_to_install
from tunelab.engine.source import Source
from tunelab.errors import ExperimentFileError, InvalidExperimentError, TunelabError
from tunelab.journal.home import SweepFolder
from tunelab.journal.state import SweepState

__all__ = ["Loaded", "apply_overrides", "describe", "difference", "load_experiment", "load_snapshot_experiment", "project_root"]

_UNEXPECTED = re.compile(r"(\w+)(?:\.__init__)?\(\) got an unexpected keyword argument '(\w+)'")


@dataclass(frozen=True)
class Loaded:
    """An experiment and where it came from.

    Attributes:
        experiment: As written; overrides are not applied.
        file: The file, absolute.
        variable: The variable or function that it was found under.
        root: The project's root: the nearest folder above the file with a pyproject.toml or .git, else the file's own.
        module: The file as a module, registered in `sys.modules` under a name of its own.
        text: What the file held when it was run: the sweep keeps this copy.
    """

    experiment: Experiment
    file: Path
    variable: str
    root: Path
    module: types.ModuleType
    text: str


def load_experiment(spec: str) -> Loaded:
    """Run the file and find the experiment in it.

    Args:
        spec: `FILE` or `FILE:NAME`, where NAME is a variable, or a function without arguments that returns an experiment.

    Raises:
        ExperimentFileError: The file cannot be found or run, or holds no experiment, or several.
        InvalidExperimentError: The experiment breaks its rules.
    """
    source = sources.read(spec)
    root = project_root(source.file)
    _add_to_path(source.file.parent, root)
    sources.check(source)
    with _without_ray(source):
        module = _run(source, source.file)
        experiment, variable = _find(source, module)
    return Loaded(experiment, source.file, variable, root, module, source.text)


def load_snapshot_experiment(folder: SweepFolder, state: SweepState) -> Experiment:
    """The experiment as the sweep keeps it, with the sweep's overrides; other modules of the project are read as they are now.

    Raises:
        ExperimentFileError: The copy can no longer be run, such as after a module that it imports was removed.
    """
    facts = state.facts
    copy = folder.path / "experiment.py"
    root = Path(facts["root"]) if facts.get("root") else None
    origin = root / facts["file"] if root and facts.get("file") else None
    _add_to_path(*(path for path in (origin.parent if origin else None, root) if path and path.is_dir()))
    source = sources.read(f"{copy}:{facts['variable']}")
    # A loop that looks for files beside itself finds them where the experiment came from, if that is still there.
    with _without_ray(source):
        module = _run(source, origin if origin and origin.parent.is_dir() else copy)
        experiment, _ = _find(source, module)
    return apply_overrides(experiment, **facts.get("overrides", {}))


def project_root(file: Path) -> Path:
    """The nearest folder above `file` that holds a pyproject.toml or .git, else the file's own."""
    folders = file.resolve().parents
    return next(
        (folder for folder in folders if (folder / "pyproject.toml").is_file() or (folder / ".git").exists()), folders[0]
    )


def _add_to_path(*folders: Path) -> None:
    """Put the folders first, where Python puts the folder of a script, and leave them there for imports inside functions."""
    for folder in reversed(folders):
        if str(folder) in sys.path:
            sys.path.remove(str(folder))
        sys.path.insert(0, str(folder))
    importlib.invalidate_caches()


# ---- running the file ----------------------------------------------------------------------------------------------------


def _run(source: Source, file: Path) -> types.ModuleType:
    """The file as a module of its own name, so that it cannot be mistaken for an installed one."""
    name = f"tunelab_experiment_{_identifier(source.file.stem)}_{hashlib.sha256(str(source.file).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up
    try:
        # Not to inherit this file's own `from __future__` imports.
        exec(compile(source.tree, str(source.file), "exec", dont_inherit=True), module.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _explained(error, source) from error
    return module


@contextmanager
def _without_ray(source: Source) -> Iterator[None]:
    """Refuses a file that starts Ray, and stops what it started."""
    before = _ray_is_started()
    try:
        yield
    finally:
        started = _ray_is_started() and not before
        if started:
            sys.modules["ray"].shutdown()
    if started:
        raise ExperimentFileError(
            f"{source.shown} starts Ray when it is imported. tunelab starts Ray itself once it is known what is needed: remove "
            "ray.init(), and give data sets as functions, such as datasets={'train': lambda: ray.data.read_csv(...)}."
        )


def _ray_is_started() -> bool:
    ray = sys.modules.get("ray")
    return bool(ray is not None and hasattr(ray, "is_initialized") and ray.is_initialized())


def _identifier(text: str) -> str:
    return re.sub(r"\W", "_", text)


def _explained(error: BaseException, source: Source) -> TunelabError:
    """What went wrong in the user's file, where, and what to do about it."""
    where = _place(error, source)
    if isinstance(error, InvalidExperimentError):
        return InvalidExperimentError(f"{where}: {error.subject}", error.problems)
    if isinstance(error, TunelabError):
        return ExperimentFileError(f"{where}: {error}")
    if isinstance(error, TypeError) and (match := _UNEXPECTED.search(str(error))) and match[1] in sources.CLASSES:
        return ExperimentFileError(f"{where}: {sources.no_such_argument(match[1], match[2])}")
    if isinstance(error, ModuleNotFoundError) and error.name:
        top = error.name.partition(".")[0]
        if top not in sys.modules:
            return ExperimentFileError(f"{where}: it imports '{top}', which is not installed. {how_to_install(top)}")
    if isinstance(error, SystemExit):
        return ExperimentFileError(f"{where}: the file ends the program. An experiment's file only defines the experiment.")
    if isinstance(error, SyntaxError) and error.filename:  # in a module that the file imports
        return ExperimentFileError(f"{where}: {sources.show(Path(error.filename))}:{error.lineno}: {error.msg}")
    lines = str(error).strip().splitlines()
    return ExperimentFileError(f"{where}: {type(error).__name__}" + (f": {lines[0]}" if lines else ""))


def _place(error: BaseException, source: Source) -> str:
    """`experiments/x.py:12`, and where in another file of the project the error arose."""
    own, deepest = 1, ""
    root = project_root(source.file)
    step = error.__traceback__
    while step is not None:
        file = step.tb_frame.f_code.co_filename
        if file == str(source.file):
            own, deepest = step.tb_lineno, ""
        elif (
            file.startswith(f"{root}/") and "site-packages" not in file and not file.startswith(str(Path(__file__).parents[1]))
        ):
            deepest = f" (in {sources.show(Path(file))}:{step.tb_lineno})"
        step = step.tb_next
    return f"{source.shown}:{own}{deepest}"


# ---- finding the experiment ----------------------------------------------------------------------------------------------


def _find(source: Source, module: types.ModuleType) -> tuple[Experiment, str]:
    names = vars(module)
    if source.name is not None:
        return _named(source, names), source.name
    found: dict[str, Experiment] = {}
    for name, value in names.items():
        if isinstance(value, Experiment) and not any(value is other for other in found.values()):
            found[name] = value
    imported = _imported(source.tree)
    if own := {name: value for name, value in found.items() if name not in imported}:
        found = own  # a variant of an experiment from another file is what this file is about
    if len(found) == 1:
        name, experiment = next(iter(found.items()))
        return experiment, name
    if found:
        choices = ", ".join(f"{source.shown}:{name}" for name in found)
        raise ExperimentFileError(f"{source.shown} holds {len(found)} experiments. Say which: {choices}")
    functions = [name for name, value in names.items() if _makes_experiment(value, module)]
    hint = (
        f" If a function makes it, say which: {', '.join(f'{source.shown}:{name}' for name in functions)}." if functions else ""
    )
    raise ExperimentFileError(f"{source.shown} holds no experiment. Add: experiment = Experiment(...).{hint}")


def _imported(tree: ast.Module) -> set[str]:
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name for node in imports for alias in node.names}


def _named(source: Source, names: Mapping[str, Any]) -> Experiment:
    name = str(source.name)
    value = names.get(name)
    if inspect.isfunction(value):
        required = [
            p.name for p in inspect.signature(value).parameters.values() if p.default is p.empty and p.kind not in (2, 4)
        ]
        if required:
            raise ExperimentFileError(
                f"{source.shown}:{name} needs {', '.join(required)}; a function that makes an experiment is called without "
                "arguments."
            )
        try:
            value = value()
        except Exception as error:
            raise _explained(error, source) from error
    if not isinstance(value, Experiment):
        others = [other for other, known in names.items() if isinstance(known, Experiment)]
        hint = f" These are: {', '.join(others)}." if others else ""
        raise ExperimentFileError(f"{source.shown}:{name} is {_kind(value)}, not an Experiment.{hint}")
    return value


def _makes_experiment(value: Any, module: types.ModuleType) -> bool:
    """Whether it is a function of this file that can be called without arguments and does not look like something else."""
    if not inspect.isfunction(value) or value.__module__ != module.__name__:
        return False
    parameters = inspect.signature(value).parameters.values()
    return all(p.default is not p.empty for p in parameters) and bool({"Experiment", "replace"} & set(value.__code__.co_names))


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
