"""MLflow's page on a sweep's store: starts it for a local store, finds it for a server, and says where a sweep is on it."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock

from tunelab.errors import BadInputError, TunelabError
from tunelab.trackers.tracking import Tracking

HOST = "127.0.0.1"  # the local page has no password, so no other machine may reach it


def serve_ui(
    tracking: Tracking,
    *,
    port: int = 5000,
    log_path: Path | None = None,
    environ: Mapping[str, str] | None = None,
    show: Callable[[str], None] = print,
) -> None:
    """Show the page's address and, for a local store, serve it until Ctrl-C. Leaves no process. For the main thread.

    Args:
        tracking: The store to show.
        port: Port on this machine; 0 for any free one.
        log_path: Where the server writes what it has to say; nowhere if None.
        environ: The environment, for the server's.
        show: Called with the address once the page answers.

    Raises:
        BadInputError: There is nothing to show, or the port is in use.
        TunelabError: The server ended, or did not answer in time.
    """
    if tracking.tracking_uri.startswith("databricks"):
        raise BadInputError("Databricks serves its own page: open the experiment in your workspace.")
    if tracking.tracking_uri.startswith(("http://", "https://")):
        show(tracking.tracking_uri)
        return
    for number in (signal.SIGTERM, signal.SIGHUP):  # end like Ctrl-C, not leaving the server behind
        signal.signal(number, _interrupt)
    try:
        with running_ui(tracking, port=port, log_path=log_path, environ=environ) as (url, server):
            show(url)
            server.wait()
    except KeyboardInterrupt:
        return
    raise TunelabError(f"The MLflow server has ended (status {server.returncode}). See {log_path or 'its log'}.")


@contextmanager
def running_ui(
    tracking: Tracking,
    *,
    port: int = 0,
    log_path: Path | None = None,
    environ: Mapping[str, str] | None = None,
    timeout_s: float = 120,
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """An MLflow server on `tracking`'s store that answers, as (address, process); ended, with its workers, on leaving."""
    if tracking.kind == "none":
        raise BadInputError("There is no page to show: this sweep is tracked nowhere (tracking none).")
    port = _free_port(port)
    url = f"http://{HOST}:{port}"
    command = [sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", tracking.tracking_uri]
    if tracking.artifacts:
        command += ["--no-serve-artifacts", "--default-artifact-root", tracking.artifacts]
    settings = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    file = tracking.sqlite_file
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
    with open(log_path or os.devnull, "ab") as log:
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=file.parent if file is not None else None,
            env={**settings, **(os.environ if environ is None else environ)},
            start_new_session=True,  # its workers, too, are ended as one group
        )
    try:
        if file is None or file.exists():
            _wait_until_ready(server, url, timeout_s, log_path)
        else:
            with FileLock(f"{file}.lock"):  # the server makes the store's tables: no tracker at the same time
                _wait_until_ready(server, url, timeout_s, log_path)
        yield url, server
    finally:
        _end(server)


def run_url(base_url: str, *, experiment: str, sweep: str, environ: Mapping[str, str] | None = None) -> str | None:
    """Address of a sweep's page, asked of the server at `base_url`; None when it is not recorded there.

    Args:
        base_url: `http://127.0.0.1:5000`, for example.
        experiment: Name of the MLflow experiment.
        sweep: Id of the sweep.
        environ: For `MLFLOW_TRACKING_USERNAME`, `MLFLOW_TRACKING_PASSWORD` and `MLFLOW_TRACKING_TOKEN`.
    """
    api, headers = f"{base_url.rstrip('/')}/api/2.0/mlflow", _headers(os.environ if environ is None else environ)
    name = urllib.parse.quote(experiment, safe="")
    try:
        found = _ask(f"{api}/experiments/get-by-name?experiment_name={name}", headers)
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise
    experiment_id = found["experiment"]["experiment_id"]
    filter_ = f"tags.`tunelab.sweep` = '{sweep}' and tags.`tunelab.kind` = 'sweep'"
    query = {"experiment_ids": [experiment_id], "filter": filter_, "order_by": ["attributes.start_time DESC"], "max_results": 1}
    runs = _ask(f"{api}/runs/search", headers, query).get("runs")
    return f"{base_url.rstrip('/')}/{page_path(experiment_id, runs[0]['info']['run_id'])}" if runs else None


def page_path(experiment_id: str, run_id: str) -> str:
    """Path of a run's page. The query has MLflow show its pages for training, not those for language models."""
    return f"#/experiments/{experiment_id}/runs/{run_id}?workflowType=machine_learning"


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _free_port(port: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError) as error:
            raise BadInputError(
                f"Port {port} cannot be used ({error}). Name another: --port 5001, or --port 0 for any."
            ) from None
        return probe.getsockname()[1]


def _wait_until_ready(server: subprocess.Popen[bytes], url: str, timeout_s: float, log_path: Path | None) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise TunelabError(f"The MLflow server ended at once (status {server.returncode}). See {log_path or 'its log'}.")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise TunelabError(f"The MLflow server did not answer at {url} within {timeout_s:g} s. See {log_path or 'its log'}.")


def _end(server: subprocess.Popen[bytes]) -> None:
    """End the server and its workers: politely, then not. They are a process group of their own."""
    for how, wait_s in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(server.pid, how)
        except ProcessLookupError:
            break
        try:
            server.wait(wait_s)
        except subprocess.TimeoutExpired:
            continue
        time.sleep(0.1)  # its workers follow it; who does not is killed in the next round
    server.poll()


def _headers(environ: Mapping[str, str]) -> dict[str, str]:
    headers = {"Content-Type": "application/json"}
    user, password = environ.get("MLFLOW_TRACKING_USERNAME"), environ.get("MLFLOW_TRACKING_PASSWORD")
    if user and password:
        headers["Authorization"] = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
    elif token := environ.get("MLFLOW_TRACKING_TOKEN"):
        headers["Authorization"] = f"Bearer {token}"
    return headers


def _ask(url: str, headers: Mapping[str, str], body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, dict(headers)), timeout=30) as answer:
        return json.load(answer)
