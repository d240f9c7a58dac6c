"""Real servers for tests: PostgreSQL, and MLflow on it, in temporary folders and on free ports of this machine."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

HOST = "127.0.0.1"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def wait_for(what: Callable[[], object], timeout_s: float = 60, pause_s: float = 0.1) -> None:
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline, f"waited {timeout_s} s in vain"
        time.sleep(pause_s)


def postgres_program(name: str) -> str:
    """Path of one of PostgreSQL's programs; skips the test where there is none."""
    found = shutil.which(name) or next(iter(sorted(map(str, Path("/usr/lib/postgresql").glob(f"*/bin/{name}")))), None)
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("CI is set, but there is no PostgreSQL: apt-get install postgresql")
        pytest.skip("there is no PostgreSQL on this machine: apt-get install postgresql")
    return found


class Server:
    """A process in a group of its own that can be stopped, frozen and started again."""

    def __init__(self, command: list[str], log: Path, answers: Callable[[], object], **options) -> None:
        self._command, self._log, self._answers, self._options = command, log, answers, options
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, **self._options
            )
        try:
            wait_for(self._answers, 120)
        except AssertionError:
            pytest.fail(f"{self._command[0]} does not answer:\n{self._log.read_text()[-3000:]}")

    def send(self, number: int) -> None:
        assert self._process is not None
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            pass

    def end(self, number: int = signal.SIGTERM) -> None:
        """End it and its children, and wait for that."""
        if self._process is None:
            return
        self.send(number)
        self.send(signal.SIGCONT)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            pass
        self.send(signal.SIGKILL)
        self._process.wait(20)
        self._process = None


@contextmanager
def postgres() -> Iterator[tuple[Server, str]]:
    """PostgreSQL with an empty database `mlflow`, as (server, URI). It refuses to run as root, so root lends it a user."""
    psycopg2 = pytest.importorskip("psycopg2")
    initdb, program = postgres_program("initdb"), postgres_program("postgres")
    folder, port = Path(tempfile.mkdtemp(prefix="pg-")), free_port()
    options: dict = {"cwd": folder}
    try:
        if os.getuid() == 0:
            try:
                user = pwd.getpwnam("postgres")
            except KeyError:
                user = pwd.getpwnam("nobody")
            os.chown(folder, user.pw_uid, user.pw_gid)
            options |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        data, uri = folder / "data", f"postgresql://postgres@{HOST}:{port}/"
        make = [initdb, "-D", str(data), "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-sync"]
        subprocess.run(make, check=True, capture_output=True, **options)

        def answers() -> bool:
            try:
                psycopg2.connect(f"{uri}postgres", connect_timeout=2).close()
            except psycopg2.Error:
                return False
            return True

        command = [program, "-D", str(data), "-p", str(port), "-k", str(folder), "-h", HOST]
        server = Server(command, folder / "log", answers, **options)
        (folder / "log").touch()
        try:
            server.start()
            connection = psycopg2.connect(f"{uri}postgres")
            connection.autocommit = True
            connection.cursor().execute("CREATE DATABASE mlflow")
            connection.close()
            yield server, f"{uri}mlflow"
        finally:
            server.end(signal.SIGINT)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def mlflow_server(store: str, folder: Path) -> Iterator[tuple[Server, str]]:
    """An MLflow server on `store`, as (server, address)."""
    port = free_port()
    url = f"http://{HOST}:{port}"
    command = [sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", store, "--artifacts-destination", str(folder / "artifacts"), "--serve-artifacts"]

    def answers() -> bool:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=2).close()
        except OSError:
            return False
        return True

    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
    server = Server(command, folder / "mlflow.log", answers, cwd=folder, env=environment)
    try:
        server.start()
        yield server, url
    finally:
        server.end()


@contextmanager
def wedged_server() -> Iterator[str]:
    """The address of a server that accepts and never answers."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        listener.listen(64)
        yield f"http://{HOST}:{listener.getsockname()[1]}"
