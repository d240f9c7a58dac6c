"""MLflow's own page, in a real browser, on a store that the tracker wrote.

TUNELAB_SCREENSHOTS=folder keeps the screenshots. Without Chromium the test is skipped, except where CI is set.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import urllib.request
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("mlflow")

from tests.contract.test_mlflow_tracker import Store, Sweep
from tunelab.errors import BadInputError
from tunelab.trackers.tracking import Tracking
from tunelab.trackers.ui import page_path, run_url, running_ui, serve_ui

REPOSITORY = Path(__file__).parents[2]
pytestmark = pytest.mark.slow

FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--window-size=1500,1300", "--virtual-time-budget=30000"),
]


@pytest.fixture(scope="module")
def browser():
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None and os.environ.get("CI"):
        pytest.fail("CI is set, but there is no Chromium: apt-get install chromium")
    if found is None:
        pytest.skip("there is no Chromium on this machine: apt-get install chromium")
    return found


class Text(HTMLParser):
    """The words of a page, without its scripts and styles."""

    def __init__(self, html):
        super().__init__()
        self.words, self._mute = [], 0
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self._mute += tag in ("script", "style")

    def handle_endtag(self, tag):
        self._mute -= tag in ("script", "style")

    def handle_data(self, data):
        if not self._mute and data.strip():
            self.words.append(data.strip())


def look(browser, url, picture: Path, profile: Path, until: str) -> str:
    """The text of the page at `url`, and a picture of it. The page is asked again while `until` is not on it."""
    picture.parent.mkdir(parents=True, exist_ok=True)
    text = ""
    for attempt in range(4):
        command = [browser, *FLAGS, f"--user-data-dir={profile}-{attempt}", f"--screenshot={picture}", "--dump-dom", url]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=180)
        assert done.returncode == 0, done.stderr[-2000:]
        text = " ".join(Text(done.stdout).words)
        if until in text:
            break
        time.sleep(2)
    return text


def test_the_page_shows_the_sweep_its_best_trial_and_the_metric(browser, tmp_path):
    sweep = Sweep(tmp_path / "runs").session()
    for trial, curve in enumerate([(0.71, 0.8244, 0.8711), (0.75, 0.9333, 0.9822), (0.42, 0.4137)]):
        sweep.start(trial, lr=10.0 ** -(trial + 1), width=64 * (trial + 1))
        for epoch, accuracy in enumerate(curve, 1):
            sweep.report(trial, epoch, accuracy, loss=1 - accuracy)
        stopped = len(curve) < 3
        sweep.finish(trial, "stopped" if stopped else "completed", "3rd of 3 at rung 2" if stopped else "reached epoch 3")
    sweep.end().track()
    best = Store(sweep).trials[1]
    pictures = Path(os.environ.get("TUNELAB_SCREENSHOTS") or tmp_path / "pictures")

    with running_ui(sweep.tracking, log_path=tmp_path / "ui.log", timeout_s=180) as (url, server):
        page = run_url(url, experiment="toy", sweep="toy.1")
        assert run_url(url, experiment="toy", sweep="toy.2") is None
        assert run_url(url, experiment="nobody", sweep="toy.1") is None
        parent = look(browser, page, pictures / "mlflow_sweep.png", tmp_path / "profile-1", until="toy.1/0001")
        trial_page = f"{url}/{page_path(best.info.experiment_id, best.info.run_id)}"
        child = look(browser, trial_page, pictures / "mlflow_best_trial.png", tmp_path / "profile-2", until="0.9822")
        with urllib.request.urlopen(f"{url}/health") as answer:
            assert answer.status == 200

    assert all(f"toy.1/{number:04d}" in parent for number in range(3)), parent
    assert re.search(r"best\.accuracy\W+0\.9822", parent), parent
    assert "tunelab.best_trial" in parent and "Finished" in parent
    assert "toy.1/0001" in child and re.search(r"best\.accuracy\W+0\.9822", child), child
    assert "reached epoch 3" in child
    for name in ("mlflow_sweep.png", "mlflow_best_trial.png"):
        assert (pictures / name).read_bytes().startswith(b"\x89PNG") and (pictures / name).stat().st_size > 20_000
    assert server.poll() is not None
    with pytest.raises(ProcessLookupError):  # nor any of its workers
        os.killpg(server.pid, 0)


def test_the_page_ends_with_ctrl_c_and_leaves_no_process(tmp_path):
    code = """
        import sys
        from pathlib import Path
        from tunelab.trackers import tracking, ui
        local = tracking.resolve_tracking("local", home=Path(sys.argv[1]), project_root=None, environ={})
        ui.serve_ui(local, port=0, show=lambda url: print(url, flush=True))
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "my runs")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as page:
        url = page.stdout.readline().strip()
        with urllib.request.urlopen(url) as answer:
            assert answer.status == 200
        assert processes_with(str(tmp_path / "my runs" / "mlflow.sqlite"))
        page.send_signal(signal.SIGINT)
        assert page.wait(30) == 0
    assert not processes_with(str(tmp_path / "my runs" / "mlflow.sqlite"))


def processes_with(argument: str) -> list[str]:
    """Command lines of this machine's processes that contain `argument`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += [line for line in [path.read_bytes().replace(b"\0", b" ").decode(errors="replace")] if argument in line]
        except OSError:
            pass
    return found


def test_there_is_no_page_of_nothing_and_a_servers_is_its_own(capsys):
    with pytest.raises(BadInputError, match="tracked nowhere"):
        serve_ui(Tracking(kind="none", name="none"))
    serve_ui(Tracking(kind="server", name="server", tracking_uri="http://host:5000"))
    assert capsys.readouterr().out == "http://host:5000\n"
    with pytest.raises(BadInputError, match="Port 99999 cannot be used"):
        serve_ui(Tracking(kind="local", name="local", tracking_uri="sqlite:////nowhere/x"), port=99999)
