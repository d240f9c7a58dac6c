"""Tracking never hurts: real sweeps that track to a real MLflow server on PostgreSQL, whose server or database goes away.

Whatever happens to either of them: the training goes on, the sweep's exit status is its own, and once they are back every
point is there, in order and once, read from PostgreSQL itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tests.contract.servers import mlflow_server, postgres, wait_for
from tunelab.journal import read_events, replay
from tunelab.journal.home import SweepFolder

pytest.importorskip("mlflow")
psycopg2 = pytest.importorskip("psycopg2")

ROOT = Path(__file__).parents[2]
OUTAGE_S = 30.0
pytestmark = [pytest.mark.slow, pytest.mark.ray]

EXPERIMENT = """
import time
import ray.train
from tunelab import FIFO, Budget, Experiment, Float, Objective, Random

def train(config):
    for epoch in range(1, config["epochs"] + 1):
        time.sleep(config["pace"])
        ray.train.report({"epoch": epoch, "loss": config["x"] / epoch, "odd": float("inf") if epoch == 2 else epoch / 7})

def loop(config):
    train({"epochs": EPOCHS, "pace": 0.4, **config})

experiment = Experiment(
    name="outage", trainer=loop, space={"x": Float(0.0, 1.0)}, searcher=Random(), scheduler=FIFO(),
    objective=Objective("loss", mode="min", step="epoch", last_step=EPOCHS), budget=Budget(trials=TRIALS, concurrent=1),
)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A running PostgreSQL and MLflow: (database server, MLflow server, database URI, MLflow's address)."""
    folder = tmp_path_factory.mktemp("servers")
    with postgres() as (database, uri), mlflow_server(uri.replace("://", "+psycopg2://"), folder) as (server, url):
        yield database, server, uri, url


class Sweep:
    """`tunelab sweep` of a small experiment in a process of its own, tracked to the server."""

    def __init__(self, folder: Path, url: str, name: str, trials: int, epochs: int) -> None:
        self.name, self.home = name, folder / "runs"
        self.folder = SweepFolder(self.home / f"{name}.1")
        file = folder / f"{name}.py"
        text = EXPERIMENT.replace("EPOCHS", str(epochs)).replace("TRIALS", str(trials)).replace('"outage"', f'"{name}"')
        file.write_text(text)
        self.environment = {**os.environ, "PYTHONPATH": str(ROOT), "MLFLOW_TRACKING_URI": url}
        self.cwd = folder
        self.process = self.tunelab("sweep", str(file))

    def tunelab(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tunelab", *arguments, "--home", str(self.home)]
        return subprocess.Popen(
            command, cwd=self.cwd, env=self.environment, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def state(self):
        return replay(read_events(self.folder.journal))

    def reports(self) -> int:
        if not self.folder.journal.is_file():
            return 0
        return sum(event.kind == "reported" for event in read_events(self.folder.journal))

    def ends(self, timeout_s: float = 300) -> str:
        _, told = self.process.communicate(timeout=timeout_s)
        assert self.process.returncode == 0, told
        return told


def ask(uri: str, query: str, *values) -> list[tuple]:
    connection = psycopg2.connect(uri)
    try:
        cursor = connection.cursor()
        cursor.execute(query, values)
        return cursor.fetchall()
    finally:
        connection.close()


def recorded(uri: str, name: str) -> int:
    """How many points of the objective the database holds of a sweep."""
    query = "SELECT count(*) FROM metrics JOIN runs USING (run_uuid) WHERE key = 'loss' AND runs.name LIKE %s"
    return ask(uri, query, f"{name}.1/%")[0][0]


def refuse_difference(uri: str, sweep: Sweep) -> None:
    """Compare what the database holds with the journal: every point once, in order, and every run's end."""
    state = sweep.state()
    query = """
        SELECT runs.name, key, step, value, is_nan, timestamp FROM metrics JOIN runs USING (run_uuid)
        WHERE runs.name LIKE %s AND lifecycle_stage = 'active' ORDER BY timestamp, step
    """
    curves = defaultdict(list)
    for name, key, step, value, is_nan, at in ask(uri, query, f"{sweep.name}.1/%"):
        curves[name, key].append((step, None if is_nan else value, at))
    for trial in state.trials.values():
        name = f"{sweep.name}.1/{trial.id}"
        wanted = [(report.step, report.value, int(report.at * 1000)) for report in trial.reports]
        assert curves[name, "loss"] == wanted
        assert [value for _, value, _ in curves[name, "odd"]] == [None if s == 2 else s / 7 for s, *_ in wanted]
    names = Counter(name for (name,) in ask(uri, "SELECT name FROM runs WHERE name LIKE %s", f"{sweep.name}.1%"))
    doubles = Counter(
        name
        for (name,) in ask(uri, "SELECT name FROM runs WHERE name LIKE %s AND lifecycle_stage = 'active'", f"{sweep.name}.1%")
    )
    assert set(names) == {f"{sweep.name}.1", *(f"{sweep.name}.1/{trial.id}" for trial in state.trials.values())}
    assert set(doubles.values()) == {1}
    ends = ask(uri, "SELECT DISTINCT status FROM runs WHERE name LIKE %s AND lifecycle_stage = 'active'", f"{sweep.name}.1%")
    assert ends == [("FINISHED",)]


@pytest.mark.parametrize("what", ["server ended", "server frozen", "database ended"])
def test_an_outage_in_the_middle_of_a_sweep(place, tmp_path, what):
    """30 s without MLflow: the trials go on at their pace, the exit status is 0, and all points are there once."""
    database, server, uri, url = place
    name = what.replace(" ", "-")
    sweep = Sweep(tmp_path, url, name, trials=8, epochs=16)
    wait_for(lambda: sweep.process.poll() is not None or recorded(uri, name) >= 5, 120)
    assert sweep.process.poll() is None, sweep.process.communicate()
    before, began = sweep.reports(), time.monotonic()
    if what == "server ended":
        server.end()
    elif what == "server frozen":
        server.send(signal.SIGSTOP)
    else:
        database.end(signal.SIGINT)
    time.sleep(OUTAGE_S)  # this is the outage, not a wait for something
    passed, made = time.monotonic() - began, sweep.reports() - before
    if what == "server ended":
        server.start()
    elif what == "server frozen":
        server.send(signal.SIGCONT)
    else:
        database.start()
    assert made >= 0.6 * passed / 0.4, "the training was held up"
    assert sweep.process.poll() is None, "the sweep was to last longer than the outage"
    sweep.ends()
    refuse_difference(uri, sweep)
    assert not (sweep.folder.path / "tracker.behind").exists()


def test_a_server_that_does_not_come_back_before_the_end(place, tmp_path):
    """The sweep ends soon and says so; reading verbs are quick; the first after it is back has the rest recorded."""
    _, server, uri, url = place
    sweep = Sweep(tmp_path, url, "late", trials=2, epochs=10)
    try:
        wait_for(lambda: sweep.process.poll() is not None or recorded(uri, "late") >= 3, 120)
        server.send(signal.SIGSTOP)
        wait_for(lambda: sweep.state().outcome == "finished", 120)
        over = time.monotonic()
        told = sweep.ends()
        assert time.monotonic() - over < 45
        assert "has not got the last" in told and "the rest follows at the next tunelab command" in told

        behind = sweep.folder.path / "tracker.behind"
        wait_for(lambda: b"Gave up" in (sweep.folder.path / "tracker.log").read_bytes(), 180)
        began = time.monotonic()
        listed = sweep.tunelab("ls")
        out, _ = listed.communicate(timeout=30)
        assert "late.1" in out and time.monotonic() - began < 3
        assert behind.exists()
        examined = sweep.tunelab("doctor")
        out, _ = examined.communicate(timeout=60)
        assert examined.returncode == 1 and "late.1" in out and behind.exists()  # it only tells
    finally:
        server.send(signal.SIGCONT)
    sweep.tunelab("ls").communicate(timeout=30)
    wait_for(lambda: not behind.exists(), 120)
    refuse_difference(uri, sweep)
    examined = sweep.tunelab("doctor")
    out, told = examined.communicate(timeout=60)
    assert "late.1" not in out, out + told
