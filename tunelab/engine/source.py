"""What an experiment file says without being run: importing Ray and a framework takes seconds, reading takes none.

`read` refuses what can be refused by looking: no such file, not Python, a name that does not occur, a package that is not
installed, a misspelt argument or a value out of range in `TPE(...)`, `Float(...)` and the like. Only statements that are
sure to run are judged: those at the top of the file, and the body of the function that was asked for.
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
import inspect
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tunelab
from tunelab.engine.packages import how_to_install
from tunelab.errors import ExperimentFileError, InvalidExperimentError

# The classes an experiment is written with. Calling one has no effect outside of it, so it can be tried out.
CLASSES = frozenset(
    ["Experiment", "Objective", "Budget", "Retention", "Export", "Space", "Float", "Int", "Choice"]
    + ["Random", "Grid", "TPE", "FIFO", "ASHA"]
)


@dataclass(frozen=True)
class Source:
    """An experiment file, read and parsed.

    Attributes:
        file: Absolute path.
        shown: The path as messages show it.
        name: The variable or function asked for, or None.
        text: What the file holds.
        tree: `text`, parsed.
    """

    file: Path
    shown: str
    name: str | None
    text: str
    tree: ast.Module


def read(spec: str) -> Source:
    """Read `FILE` or `FILE:NAME`.

    Raises:
        ExperimentFileError: It cannot be an experiment file; the message says why and what to do.
    """
    file, name = _split(spec)
    shown = show(file)
    _refuse_what_is_no_python_file(file, shown)
    try:
        with tokenize.open(file) as stream:  # decodes as Python does
            text = stream.read()
        tree = ast.parse(text, filename=str(file))
    except SyntaxError as error:
        line = (error.text or "").rstrip()
        raise ExperimentFileError(
            f"{shown}:{error.lineno or 1}: {error.msg}" + (f"\n    {line.strip()}" if line else "")
        ) from error
    except (UnicodeDecodeError, OSError) as error:
        raise ExperimentFileError(f"{shown} cannot be read: {error}") from error
    source = Source(file.resolve(), shown, name, text, tree)
    _refuse_unknown_name(source)
    return source


def check(source: Source) -> None:
    """Refuse what the text shows to be wrong. Needs the file's own folders on `sys.path` to find what it imports.

    Raises:
        ExperimentFileError: A package is not installed, or `tunelab` has no such name or argument.
        InvalidExperimentError: Values out of range, all problems at once.
    """
    statements = list(_sure_to_run(source))
    names = _refuse_missing_imports(source, statements)
    problems: list[str] = []
    lines: list[int] = []
    for statement in statements:
        for call in (node for node in _outside_functions(statement) if isinstance(node, ast.Call)):
            kind = _class_called(call, names)
            if kind is None:
                continue
            if trouble := _wrong_arguments(kind, call):
                raise ExperimentFileError(f"{source.shown}:{call.lineno}: {trouble}")
            for problem in _problems_of(call, names):
                problems.append(problem)
                lines.append(call.lineno)
    if problems:
        several = [f"line {line}: {problem}" for line, problem in zip(lines, problems, strict=True)]
        raise InvalidExperimentError(
            source.shown if len(problems) > 1 else f"{source.shown}:{lines[0]}", several if len(problems) > 1 else problems
        )


def show(file: Path) -> str:
    """A path as messages show it: relative to the current folder when it lies in it."""
    try:
        return str(file.resolve().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(file)


def no_such_argument(kind: str, argument: str) -> str:
    """`TPE has no argument 'startp'. Did you mean 'startup'? It takes: startup, multivariate, group, candidates.`"""
    known = list(_parameters(kind))
    close = difflib.get_close_matches(argument, known, n=1)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    return f"{kind} has no argument '{argument}'.{hint} It takes: {', '.join(known) or 'none'}."


# ---- finding the file ----------------------------------------------------------------------------------------------------


def _split(spec: str) -> tuple[Path, str | None]:
    """`FILE:NAME` into its parts. A file whose own name has a colon in it is found first."""
    path, colon, name = spec.rpartition(":")
    if colon and name.isidentifier() and not Path(spec).exists():
        return Path(path), name
    return Path(spec), None


def _refuse_what_is_no_python_file(file: Path, shown: str) -> None:
    if file.is_dir():
        found = sorted(entry.name for entry in file.glob("*.py") if not entry.name.startswith("_"))
        inside = f" It holds {_some(found)}." if found else ""
        raise ExperimentFileError(f"{shown} is a folder; an experiment is a Python file in it.{inside}")
    if not file.exists():
        raise ExperimentFileError(f"There is no file {shown}.{_near(file)}")
    if file.suffix != ".py":
        raise ExperimentFileError(f"{shown} is not a Python file: an experiment's file ends with .py.")


def _near(file: Path) -> str:
    folder = file.parent
    if not folder.is_dir():
        return f" There is no folder {show(folder)} either."
    files = sorted(entry.name for entry in folder.glob("*.py") if not entry.name.startswith("_"))
    close = difflib.get_close_matches(file.name if file.suffix else f"{file.name}.py", files, n=1)
    if close:
        return f" Did you mean {show(folder / close[0])}?"
    return f" {show(folder)}/ holds {_some(files)}." if files else f" {show(folder)}/ holds no Python file."


def _some(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _refuse_unknown_name(source: Source) -> None:
    """A cheap look: whether the name asked for occurs in the file at all, or else whether anything is defined in it."""
    names: list[str] = []
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.append(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.append(node.name)
        elif isinstance(node, ast.alias):
            names.append(node.asname or node.name)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("globals", "exec", "setattr"):
            return  # names may come about in ways that cannot be read
    if "*" in names:
        return
    if source.name is None and not names:
        raise ExperimentFileError(f"{source.shown} defines no experiment. Add: experiment = Experiment(...)")
    if source.name is not None and source.name not in names:
        close = difflib.get_close_matches(source.name, sorted(set(names)), n=1)
        hint = f" Did you mean {source.shown}:{close[0]}?" if close else ""
        raise ExperimentFileError(f"{source.shown} has nothing called '{source.name}'.{hint}")


# ---- judging what is sure to run -----------------------------------------------------------------------------------------

_LATER = (
    *(ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.IfExp, ast.BoolOp),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)
_SIMPLE = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.Expr, ast.Return)


def _sure_to_run(source: Source) -> Iterator[ast.stmt]:
    for statement in source.tree.body:
        if isinstance(statement, _SIMPLE):
            yield statement
        elif isinstance(statement, ast.FunctionDef) and statement.name == source.name:
            yield from (inner for inner in statement.body if isinstance(inner, _SIMPLE))


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    """`node` and what is in it, less what runs later or perhaps never."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _LATER):
            yield from _outside_functions(child)


def _refuse_missing_imports(source: Source, statements: list[ast.stmt]) -> dict[str, str]:
    """Local name -> class of ours, `tunelab` itself as `*`; refuses imports that cannot succeed."""
    names: dict[str, str] = {}
    for statement in statements:
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                _refuse_missing(source, alias.name, statement.lineno)
                if alias.name == "tunelab":
                    names[alias.asname or alias.name] = "*"
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            _refuse_missing(source, statement.module, statement.lineno)
            for alias in statement.names if statement.module == "tunelab" else ():
                if alias.name not in (*tunelab.__all__, "*") and importlib.util.find_spec(f"tunelab.{alias.name}") is None:
                    close = difflib.get_close_matches(alias.name, tunelab.__all__, n=1)
                    hint = f" Did you mean '{close[0]}'?" if close else ""
                    known = ", ".join(name for name in tunelab.__all__ if not name.startswith("_"))
                    raise ExperimentFileError(
                        f"{source.shown}:{statement.lineno}: tunelab has no '{alias.name}'.{hint} It has: {known}."
                    )
                if alias.name in CLASSES:
                    names[alias.asname or alias.name] = alias.name
    return names


def _refuse_missing(source: Source, module: str, line: int) -> None:
    top = module.partition(".")[0]
    if top == source.file.stem and top not in sys.builtin_module_names:
        raise ExperimentFileError(
            f"{source.shown}:{line}: the file hides the package '{top}' that it imports, since Python looks in the file's own "
            "folder first. Give the file another name."
        )
    try:
        found = top in sys.modules or importlib.util.find_spec(top) is not None
    except (ImportError, ValueError):
        return
    if not found:
        raise ExperimentFileError(f"{source.shown}:{line}: it imports '{top}', which is not installed. {how_to_install(top)}")


def _class_called(call: ast.Call, names: dict[str, str]) -> str | None:
    function = call.func
    if isinstance(function, ast.Name):
        return names.get(function.id) if names.get(function.id) != "*" else None
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and names.get(function.value.id) == "*":
        return function.attr if function.attr in CLASSES else None
    return None


def _parameters(kind: str) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(getattr(tunelab, kind)).parameters)


def _wrong_arguments(kind: str, call: ast.Call) -> str | None:
    """Why the call cannot succeed whatever the values of its arguments, or None."""
    known = _parameters(kind)
    unknown = [keyword.arg for keyword in call.keywords if keyword.arg is not None and keyword.arg not in known]
    if unknown:
        return no_such_argument(kind, unknown[0])
    if any(keyword.arg is None for keyword in call.keywords) or any(isinstance(arg, ast.Starred) for arg in call.args):
        return None  # *args and **options may hold anything
    positional = [name for name, parameter in known.items() if parameter.kind is not inspect.Parameter.KEYWORD_ONLY]
    if len(call.args) > len(positional):
        named = ", ".join(f"{name}=..." for name in list(known)[len(positional) : len(positional) + 2])
        if not positional:
            return f"{kind} takes its arguments by name, such as {kind}({named}); it takes: {', '.join(known)}."
        return f"{kind} takes {len(positional)} arguments without a name ({', '.join(positional)}), got {len(call.args)}."
    given = {*positional[: len(call.args)], *(keyword.arg for keyword in call.keywords)}
    required = [name for name, parameter in known.items() if parameter.default is inspect.Parameter.empty]
    missing = [name for name in required if name not in given]
    if missing:
        return f"{kind} needs {' and '.join(missing)}; it takes: {', '.join(known)}."
    return None


class _Unknown(Exception):
    """The value cannot be told from the text."""


_OF_A_PARAMETER = re.compile(r".+: (Float|Int|Choice) ")  # such a problem of a space is told at the parameter's own line


def _problems_of(call: ast.Call, names: dict[str, str]) -> list[str]:
    """What a call of one of our classes has against its arguments, as far as the text tells."""
    try:
        if _class_called(call, names) == "Experiment":  # of its arguments only the space can be told without running the file
            space = next((keyword.value for keyword in call.keywords if keyword.arg == "space"), None)
            value: Any = tunelab.Space(_value(space, names)) if isinstance(space, ast.Dict) else None
        else:
            value = _value(call, names)
    except _Unknown:
        return []
    except InvalidExperimentError as error:
        return [f"{error.subject}: {problem}" for problem in error.problems if not _OF_A_PARAMETER.match(problem)]
    return value.problems() if hasattr(value, "problems") else []


def _value(node: ast.expr, names: dict[str, str]) -> Any:
    """The value of an expression of literals and of our own classes."""
    if isinstance(node, ast.Call):
        kind = _class_called(node, names)
        if kind in (None, "Experiment", "Export") or _wrong_arguments(str(kind), node):
            raise _Unknown
        if any(keyword.arg is None for keyword in node.keywords):
            raise _Unknown
        options = {str(keyword.arg): _value(keyword.value, names) for keyword in node.keywords}
        return getattr(tunelab, str(kind))(*(_value(arg, names) for arg in node.args), **options)
    if isinstance(node, ast.Dict) and None not in node.keys:
        return {_value(key, names): _value(value, names) for key, value in zip(node.keys, node.values, strict=True) if key}
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_value(entry, names) for entry in node.elts]
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
        raise _Unknown from error
