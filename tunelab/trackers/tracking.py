"""Where a sweep is tracked to: `resolve_tracking` turns a flag, the environment and the project's files into a `Tracking`.

The first that says something wins:

1. the flag: `local`, `server`, another name, `none`, or a TOML file;
2. `MLFLOW_TRACKING_URI`;
3. `[tool.tunelab] tracking = "..."` in the project's pyproject.toml, with the same values as the flag;
4. `local`.

A name stands for `mlruns_config/<name>.toml` in the project if there is such a file, else for the one in `defaults/` here.
The choice is printed and journalled, so it never holds a secret: credentials stay in MLflow's own environment variables.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit

from tunelab import trackers
from tunelab.errors import BadInputError, UnknownNameError

CONFIG_FOLDER = "mlruns_config"
VARIABLE = "MLFLOW_TRACKING_URI"
_DEFAULTS = Path(__file__).parent / "defaults"
_KEYS = {
    "local": ("kind", "tracker", "experiment", "store", "artifacts"),
    "server": ("kind", "tracker", "uri", "experiment", "artifacts"),
    "none": ("kind",),
}
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_SECRET_KEY = re.compile(r"passw|pwd|token|secret|api_?key|access_?key|credential", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"\b(dapi[0-9a-f]{32}|AKIA[0-9A-Z]{16}|gh[pousr]_\w{20,}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)")
_CREDENTIALS = (
    "Credentials come from the environment: MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
)


@dataclass(frozen=True, kw_only=True)
class Tracking:
    """Where MLflow's runs go. Holds no secret, so that it can be printed and journalled.

    Args:
        kind: `local` is a SQLite file of this machine, `server` anything with an address, `none` no tracking.
        name: What chose it: a configuration's name, a file, or `MLFLOW_TRACKING_URI`.
        tracking_uri: As MLflow takes it; empty for `none`.
        experiment: MLflow experiment to record in, or None for the tunelab experiment's name.
        artifacts: URI of the folder for artifacts, or None for the server's own.
        tracker: Who writes it: a name in `trackers.TABLE`.
    """

    kind: Literal["local", "server", "none"]
    name: str
    tracking_uri: str = ""
    experiment: str | None = None
    artifacts: str | None = None
    tracker: str = "mlflow"

    @property
    def sqlite_file(self) -> Path | None:
        """The store's file when it is a SQLite file, else None."""
        head = "sqlite:///"
        return Path(self.tracking_uri.removeprefix(head)) if self.tracking_uri.startswith(head) else None

    def describe(self) -> str:
        """One line for people: `local (SQLite in /home/me/runs/mlflow.sqlite)`."""
        if self.kind == "none":
            return "none"
        place = f"SQLite in {self.sqlite_file}" if self.sqlite_file else self.tracking_uri
        experiment = f", experiment {self.experiment}" if self.experiment else ""
        return f"{self.name} ({place}{experiment})"

    def moved(self, before: Path, now: Path) -> Tracking:
        """The same where the home was moved or copied: what lay in the folder `before` lies in `now`."""
        if before == now or self.kind != "local":
            return self
        pairs = ((f"sqlite:///{before}/", f"sqlite:///{now}/"), (f"{before.as_uri()}/", f"{now.as_uri()}/"))
        (file, file_now), (folder, folder_now) = pairs
        uri, artifacts = self.tracking_uri, self.artifacts
        if uri.startswith(file):
            uri = file_now + uri.removeprefix(file)
        if artifacts is not None and artifacts.startswith(folder):
            artifacts = folder_now + artifacts.removeprefix(folder)
        return replace(self, tracking_uri=uri, artifacts=artifacts)

    def to_json(self) -> dict[str, Any]:
        """JSON values from which `from_json` makes an equal Tracking; what `session_started` journals."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Tracking:
        known = {field.name for field in fields(cls)}
        return cls(**{key: value for key, value in data.items() if key in known})


def resolve_tracking(flag: str | None, *, home: Path, project_root: Path | None, environ: Mapping[str, str]) -> Tracking:
    """The tracking that is asked for; see the module's docstring for the order.

    Args:
        flag: Value of `--tracking`, or None.
        home: Folder of the sweeps; the local store lies in it.
        project_root: Folder with the project's pyproject.toml and `mlruns_config/`, or None outside a project.
        environ: The environment.

    Raises:
        BadInputError: A configuration is missing, breaks its rules, or holds what looks like a secret.
    """
    if flag is not None:
        return _from_choice(flag, "--tracking", Path(), home, project_root)
    if uri := environ.get(VARIABLE, "").strip():
        return _from_variable(uri)
    pyproject = project_root / "pyproject.toml" if project_root else None
    if pyproject and pyproject.is_file():
        choice = _load_toml(pyproject).get("tool", {}).get("tunelab", {}).get("tracking")
        if choice is not None and not isinstance(choice, str):
            raise BadInputError(f"[tool.tunelab] tracking in {pyproject} needs a name or a file, got {choice!r}.")
        if choice is not None:
            return _from_choice(choice, f"[tool.tunelab] tracking in {pyproject}", pyproject.parent, home, project_root)
    return _from_choice("local", "the default", Path(), home, project_root)


def _from_choice(choice: str, said_by: str, base: Path, home: Path, project_root: Path | None) -> Tracking:
    if choice == "none":
        return Tracking(kind="none", name="none")
    if _NAME.fullmatch(choice):
        folders = [*([project_root / CONFIG_FOLDER] if project_root else []), _DEFAULTS]
        for folder in folders:
            if (folder / f"{choice}.toml").is_file():
                return _from_file(folder / f"{choice}.toml", choice, home)
        known = {path.stem for folder in folders if folder.is_dir() for path in folder.glob("*.toml")}
        raise UnknownNameError.among("tracking configuration", choice, [*sorted(known), "none"])
    if "://" in choice:
        raise BadInputError(
            f"{said_by} takes a name (local, server, none) or a TOML file, not an address. Put the address into {VARIABLE}, "
            f'or into a file with the lines kind = "server" and uri = "...".'
        )
    path = base / choice
    if not path.is_file():
        raise BadInputError(f"{said_by}: there is no file {path}. It takes local, server, none or a TOML file.")
    return _from_file(path, choice, home)


def _from_variable(uri: str) -> Tracking:
    if problem := _secret_in(uri):
        raise BadInputError(f"{VARIABLE} holds {problem}. It would be printed and journalled. {_CREDENTIALS}.")
    _refuse_files(uri, VARIABLE)
    if uri.startswith("sqlite:///"):
        file = Path(uri.removeprefix("sqlite:///")).absolute()
        artifacts = (file.parent / "mlartifacts").as_uri()
        return Tracking(kind="local", name=VARIABLE, tracking_uri=f"sqlite:///{file}", artifacts=artifacts)
    return Tracking(kind="server", name=VARIABLE, tracking_uri=uri)


def _from_file(path: Path, name: str, home: Path) -> Tracking:
    data = _load_toml(path)
    if problems := _problems(data):
        listed = problems[0] if len(problems) == 1 else "\n" + "\n".join(f"  - {problem}" for problem in problems)
        raise BadInputError(f"Tracking configuration {path}: {listed}")
    if data["kind"] == "none":
        return Tracking(kind="none", name=name)
    experiment, artifacts, tracker = data.get("experiment"), data.get("artifacts"), data.get("tracker", "mlflow")
    if data["kind"] == "server":
        _refuse_files(data["uri"], str(path))
        uri = data["uri"]
        return Tracking(kind="server", name=name, tracking_uri=uri, experiment=experiment, artifacts=artifacts, tracker=tracker)
    home = home.absolute()
    artifacts = artifacts or "mlartifacts"
    return Tracking(
        kind="local",
        name=name,
        tracking_uri=f"sqlite:///{home / data.get('store', 'mlflow.sqlite')}",
        experiment=experiment,
        artifacts=artifacts if "://" in artifacts else (home / artifacts).as_uri(),
        tracker=tracker,
    )


def _problems(data: Mapping[str, Any]) -> list[str]:
    """Everything that is wrong with a configuration. Never repeats a value that may be a secret."""
    found, kind = [], data.get("kind")
    known = _KEYS.get(kind, ()) if isinstance(kind, str) else ()
    if not known:
        found.append(f"kind needs to be one of {', '.join(_KEYS)}; it is {'missing' if kind is None else repr(kind)}.")
    for key, value in data.items():
        if _SECRET_KEY.search(key):
            found.append(f"{key!r} looks like a secret, which does not belong into a file. {_CREDENTIALS}.")
        elif known and key not in known:
            found.append(str(UnknownNameError.among(f"key for kind {kind}", key, known)))
        elif not isinstance(value, str) or not value:
            found.append(f"{key} needs a text, got {value!r}.")
        elif problem := _secret_in(value):
            found.append(f"{key} holds {problem}. {_CREDENTIALS}.")
        elif key == "tracker" and value not in trackers.names():
            found.append(str(UnknownNameError.among("tracker", value, trackers.names())))
    if kind == "server" and "uri" not in data:
        found.append('kind server needs uri, such as uri = "http://mlflow.example:5000".')
    return found


def _secret_in(value: str) -> str | None:
    """What in `value` looks like a secret, in words that do not repeat it; None if nothing does."""
    if _SECRET_VALUE.search(value):
        return "what looks like an access token"
    try:
        url = urlsplit(value)
    except ValueError:
        return None
    if url.password is not None or (url.username is not None and url.scheme in ("http", "https")):
        return "a user name or password in its address"
    if any(_SECRET_KEY.search(key) for key, _ in parse_qsl(url.query, keep_blank_values=True)):
        return "a secret in its address's query"
    return None


def _refuse_files(uri: str, said_by: str) -> None:
    if ("://" not in uri and not uri.startswith("databricks")) or uri.startswith("file:"):
        raise BadInputError(
            f"{said_by} names the folder {uri!r}, but MLflow 3 no longer keeps runs in folders. "
            "Use sqlite:///PATH, or a server's address."
        )


def _load_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInputError(f"Cannot read {path}: {error}.") from error
