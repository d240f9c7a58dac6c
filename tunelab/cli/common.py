"""What the verbs share: options, finding a sweep, and printing tables and JSON. Data goes to stdout, talk to stderr."""

from __future__ import annotations

import gc
import json
import math
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from tunelab.core.trial import Status
from tunelab.errors import BadInputError, UnknownNameError
from tunelab.journal.home import DEFAULT_HOME, SWEEP_ID, Home, SweepFolder
from tunelab.journal.state import SweepState

SETTINGS = ("home", "storage", "tracking")


def project_settings() -> dict[str, str]:
    """`[tool.tunelab]` in the current folder's pyproject.toml: where things live when no flag says so.

    Raises:
        BadInputError: The file is not TOML, or a value is not text.
        UnknownNameError: A key is not a setting.
    """
    file = Path("pyproject.toml")
    if not file.is_file():
        return {}
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {}).get("tunelab", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInputError(f"pyproject.toml cannot be read: {error}") from error
    for key, value in found.items():
        if key not in SETTINGS:
            raise UnknownNameError(f"pyproject.toml: {UnknownNameError.among('setting in [tool.tunelab]', key, SETTINGS)}")
        if not isinstance(value, str):
            raise BadInputError(f"pyproject.toml: [tool.tunelab] {key} needs text, got {value!r}.")
    return found


def _home(ctx: click.Context, parameter: click.Parameter, value: str | None) -> Path:
    home = Path(value) if value else _default_home()
    existing = next((path for path in (home, *home.parents) if path.exists()), home)
    if existing.exists() and not existing.is_dir():
        where = "--home" if value else "home in pyproject.toml's [tool.tunelab]"
        raise BadInputError(f"{where} needs a folder, and {existing} is a file.")
    return home


def _home_and_catch_up(ctx: click.Context, parameter: click.Parameter, value: str | None) -> Path:
    home = _home(ctx, parameter, value)
    ctx.call_on_close(lambda: record_what_is_missing(home, ctx.params.values()))
    return home


def record_what_is_missing(home: Path, values: Iterable[Any] = ()) -> None:
    """Have a process record what MLflow, when it was down, has not got of the home's sweeps, and do not wait for it.

    Args:
        home: Where sweeps live.
        values: A verb's arguments; a sweep that is named by its folder's path need not be in the home.
    """
    paths = [Path(value) for value in values if isinstance(value, str) and "/" in value]
    files = [*home.glob("*/tracker.behind"), *(folder / "tracker.behind" for path in paths for folder in (path, path.parent))]
    late = list(dict.fromkeys(file.parent for file in files if file.is_file()))
    if late:
        from tunelab.trackers.process import catch_up_later

        catch_up_later(late)


def _default_home() -> Path:
    return Path(project_settings().get("home") or DEFAULT_HOME)


def home_flag(home: Path) -> str:
    """What a suggested command needs to find its way: ` --home X`, or nothing where X is meant anyway."""
    return "" if home.resolve() == _default_home().resolve() else f" --home {shlex.quote(str(home))}"


def suggest(verb: str, folder: SweepFolder, more: str = "", *, short: bool = False) -> str:
    """A command to type: `tunelab resume digits-mlp.1 --time SECONDS`.

    Args:
        verb: Its verb.
        folder: The sweep's.
        more: What follows the sweep's name.
        short: Whether to name the experiment instead, where this is its latest sweep.
    """
    name, home = folder.path.name, folder.path.parent
    if not SWEEP_ID.fullmatch(name):  # a copy under a name of its own is found by its path alone
        return f"tunelab {verb} {shlex.quote(str(folder.path.absolute()))}{more and ' '}{more}"
    experiment = name.rpartition(".")[0]
    if short and experiment and Home(home).latest(experiment) == folder:
        name = experiment
    return f"tunelab {verb} {name}{more and ' '}{more}{home_flag(home)}"


_HOME_HELP = "Where sweeps live. Default: home in [tool.tunelab], else ./runs."


def home_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--home FOLDER`; the verb gets `home`, a path. When it ends, what MLflow has missed of that home is recorded."""
    return click.option("--home", metavar="FOLDER", callback=_home_and_catch_up, help=_HOME_HELP)(function)


def plain_home_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a verb that is to start nothing by itself."""
    return click.option("--home", metavar="FOLDER", callback=_home, help=_HOME_HELP)(function)


def json_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--json`; the verb gets `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(function)


def sweep_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    """`SWEEP`; the verb gets its name."""
    return click.argument("sweep", metavar="SWEEP")(function)


def load(folder: SweepFolder) -> SweepState:
    """The sweep's state, for a verb that prints it and ends: the interpreter does not search it for garbage any more."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        state = folder.load()
        gc.freeze()
    finally:
        if enabled:
            gc.enable()
    return state


def sweep_status(folder: SweepFolder, state: SweepState) -> str:
    """`running`, `finished`, `interrupted`, `aborted`, `out of time`, or `killed` when its driver was."""
    if is_running(folder):
        return "running"
    return state.outcome or "killed"


def is_running(folder: SweepFolder) -> bool:
    """Whether a driver runs the sweep."""
    return folder.is_running()


def counts(state: SweepState) -> dict[str, int]:
    """Status -> number of trials, those that occur, in the order of a trial's life."""
    found = [trial.status for trial in state.trials.values()]
    return {status.value: number for status in Status if (number := found.count(status))}


def ended(state: SweepState) -> int:
    """How many trials have ended, of those that count against the budget."""
    return sum(trial.status.ended and trial.status is not Status.INFEASIBLE for trial in state.trials.values())


def emit_json(data: Any) -> None:
    """Print `data` as JSON. NaN and infinities, which JSON lacks, become null."""
    click.echo(json.dumps(_finite(data), indent=2, default=str))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    return [_finite(entry) for entry in value] if isinstance(value, (list, tuple)) else value


def show_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on stdout: fitted to a terminal, else aligned text of any width, one line a row."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*(entry.replace("[", "\\[") for entry in row))
        Console(highlight=False).print(table)
    else:
        click.echo("\n".join(aligned([columns, *rows])))


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows as lines, columns two spaces apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(entry.ljust(width) for entry, width in zip(row, widths, strict=True)).rstrip() for row in rows]
