"""Torch checkpoints, and whatever a `load` hook can read, become MLflow models that predict the same elsewhere."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.contract.sweep_on_disk import Told, experiment_file, write_sweep  # noqa: E402
from tunelab.core.experiment import Budget, Experiment, Export, Objective  # noqa: E402
from tunelab.core.parameters import Float  # noqa: E402
from tunelab.errors import BadInputError, ExportMismatchError, NoCheckpointError  # noqa: E402
from tunelab.export import export_trial, predict_file  # noqa: E402
from tunelab.schedulers.fifo import FIFO  # noqa: E402
from tunelab.searchers.random import Random  # noqa: E402

ROOT = Path(__file__).parents[2]

# A model class of its own, with dropout and batch norm, which predict differently in training mode.
TOY = """
import json
from pathlib import Path
import numpy as np
import torch
from torch import nn

NAMES = ["zero", "one", "two"]

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.5))
        self.out = nn.Linear(width, 3)

    def forward(self, x):
        return self.out(self.inner(x))

class Branching(Net):
    def forward(self, x):  # what runs depends on the data: no graph of it can be made
        return super().forward(x) if torch.isfinite(x).all() else -super().forward(x)

def rows(n=8):
    return np.random.default_rng(0).normal(size=(n, 4)).astype("float32")

def build(config):
    return Net(config["width"])

def build_branching(config):
    return Branching(config["width"])

def classes(net, x):
    return net(x).argmax(1)

def write(folder, config, step):
    torch.manual_seed(int(step))
    net = build(config)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.as_tensor(rows(32))
    for _ in range(50):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), (x.sum(1) > 0).long()).backward()
        optimizer.step()
    wrapped = {f"module.{name}": value for name, value in net.state_dict().items()}  # as DistributedDataParallel saves it
    torch.save({"model": wrapped, "optimizer": optimizer.state_dict(), "epoch": step}, folder / "state.pt")

def direct(folder, config):  # the predictions that the exported model must give, without any of tunelab
    net = build(config)
    state = torch.load(folder / "state.pt", weights_only=True)["model"]
    net.load_state_dict({name.removeprefix("module."): value for name, value in state.items()})
    return net.eval()

def write_json(folder, config, step):
    (folder / "weights.json").write_text(json.dumps({"w": [config["width"], step, 0.5, -1.0]}))

def load_json(folder, config):
    return np.array(json.loads((folder / "weights.json").read_text())["w"])

def names(weights, x):
    return [NAMES[int(value > 0) + int(value > 10)] for value in np.asarray(x) @ weights]
"""


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return experiment_file(tmp_path_factory.mktemp("project"), TOY)


@pytest.fixture(scope="module")
def graph(tmp_path_factory, toy):
    """(what was exported, where its checkpoint lies, the model's folder) for a model that has a graph."""
    tmp_path = tmp_path_factory.mktemp("graph")
    folder, to = one_trial(tmp_path, toy.write), tmp_path / "it's a model"
    to.mkdir()  # an empty folder is as good as none
    return export(folder, hooks(toy, evaluate=lambda net: {"held_out": 0.75}), to), folder.trials / "0000/checkpoint_2", to


@pytest.fixture(scope="module")
def hooked(tmp_path_factory, toy):
    """(what was exported, the model's folder) for a checkpoint that a `load` hook reads."""
    tmp_path = tmp_path_factory.mktemp("hooked")
    folder, to = one_trial(tmp_path, toy.write_json), tmp_path / "model"
    return export(folder, Export(load=toy.load_json, example=toy.rows, predict=toy.names), to), to


def experiment(export):
    return Experiment(
        name="toy",
        trainer=lambda config: None,
        space={"width": Float(1, 100)},
        objective=Objective("accuracy", step="epoch"),
        searcher=Random(),
        scheduler=FIFO(),
        budget=Budget(trials=1),
        export=export,
    )


def hooks(toy, **changes):
    return replace(Export(build=toy.build, weights=("state.pt", "model"), example=toy.rows, predict=toy.classes), **changes)


def one_trial(tmp_path, write, config=None):
    told = Told(config or {"width": 7, "lr": 0.1}, {1: 0.5, 2: 0.9, 3: 0.8}, checkpoint=write)
    return write_sweep(tmp_path / "my runs", "toy.1", [told])


def export(folder, export_, to, **changes):
    return export_trial(folder=folder, state=folder.load(), experiment=experiment(export_), to=to, clock=lambda: 0.0, **changes)


def nothing_left(to):
    return not to.exists() and not list(to.parent.glob(f".{to.name}.*"))


def test_the_best_checkpoint_predicts_the_same_in_a_clean_process_and_from_a_file(tmp_path, toy, graph):
    exported, checkpoint, to = graph
    assert exported.line() == (
        f"toy.1/0000, epoch 2, accuracy 0.9 -> {to}/ (MLflow, pytorch). Clean process: 8 of 8 rows equal, max difference 0"
    )
    assert (exported.format, exported.runs_code, exported.note) == ("pt2", False, "")

    # Direct evaluation, on rows that the export has not seen and in another number.
    net, x = toy.direct(checkpoint, {"width": 7}), toy.rows(50)
    direct = net(torch.as_tensor(x)).argmax(1).tolist()
    assert len(set(direct)) > 1
    file = tmp_path / "held out.csv"
    file.write_text("\n".join([",".join("0123"), *(",".join(map(repr, map(float, row))) for row in x)]), encoding="utf-8")
    assert list(predict_file(to, file, batch_size=7)) == [{"row": i, "prediction": p} for i, p in enumerate(direct)]


def test_the_model_says_what_it_is_and_names_nothing_of_this_machine(graph):
    to = graph[2]
    card = json.loads((to / "card.json").read_text(encoding="utf-8"))
    assert card["trial"] == "toy.1/0000"
    assert card["config"] == {"width": 7, "lr": 0.1}
    assert card["objective"] == {"metric": "accuracy", "mode": "max", "value": 0.9, "step_name": "epoch", "step": 2}
    assert card["evaluation"] == {"held_out": 0.75}
    assert card["code"] == {"git": {"commit": "4f2c1e9", "dirty": False}, "file": "toy.py"}
    assert card["exported_at"] == "1970-01-01T00:00:00+00:00"
    assert list(card["weights"]) == sorted(card["weights"])
    assert "data/model.pt2" in card["weights"]
    assert "4f2c1e9" in (to / "README.md").read_text(encoding="utf-8")

    requirements = (to / "requirements.txt").read_text(encoding="utf-8").split()
    assert f"torch=={torch.__version__.partition('+')[0]}" in requirements
    assert all(line.count("==") == 1 and "+" not in line and "/" not in line for line in requirements)
    assert {line.partition("==")[0] for line in requirements} == {"mlflow", "numpy", "torch"}
    files = [file for file in to.rglob("*") if file.is_file()]
    assert len(files) > 8
    for file in files:
        for path in (str(to.parent), str(ROOT), sys.prefix, tempfile.gettempdir() + "/tunelab"):
            assert path.encode() not in file.read_bytes(), f"a local path in {file.name}"
    mlmodel = (to / "MLmodel").read_text(encoding="utf-8")
    assert '"shape": [-1, 4]' in mlmodel
    assert "input_example.json" in mlmodel


def test_the_framework_s_own_loader_needs_neither_tunelab_nor_the_experiment(tmp_path, toy, graph):
    _, checkpoint, to = graph
    code = """
        import os, sys
        os.environ["MLFLOW_ALLOW_PICKLE_DESERIALIZATION"] = "false"
        import mlflow.pytorch, numpy as np, torch
        x = np.load(sys.argv[2])
        np.save(sys.argv[3], mlflow.pytorch.load_model(sys.argv[1])(torch.from_numpy(x)).detach().numpy())
        assert not [name for name in sys.modules if name.startswith(("tunelab", "toy"))]
    """
    x = toy.rows(13)
    np.save(tmp_path / "x.npy", x)
    arguments = [sys.executable, "-I", "-c", textwrap.dedent(code), str(to), tmp_path / "x.npy", tmp_path / "y.npy"]
    subprocess.run(arguments, check=True, cwd="/", capture_output=True)
    direct = toy.direct(checkpoint, {"width": 7})(torch.as_tensor(x)).argmax(1).numpy()
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), direct)


def test_a_model_without_a_graph_is_pickled_with_its_code_and_says_so(tmp_path, toy):
    folder, to = one_trial(tmp_path, toy.write), tmp_path / "model"
    exported = export(folder, hooks(toy, build=toy.build_branching, predict=None), to)
    assert (exported.flavor, exported.format, exported.runs_code) == ("pytorch", "pickle", True)
    assert "torch.export cannot make a graph" in exported.note
    assert "Load it only if you trust" in (to / "README.md").read_text(encoding="utf-8")
    (tmp_path / "a.jsonl").write_text("[1, 1, 1, 1]\n", encoding="utf-8")
    assert next(predict_file(to, tmp_path / "a.jsonl"))["prediction"] == pytest.approx(
        toy.direct(folder.trials / "0000/checkpoint_2", {"width": 7})(torch.ones(1, 4))[0].tolist(), abs=1e-5
    )


def test_anything_else_is_exported_through_its_load_hook(tmp_path, toy, hooked):
    exported, to = hooked
    assert (exported.flavor, exported.runs_code, exported.equal) == ("python_function", True, 8)
    x = toy.rows(20)
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(row.tolist()) for row in x), encoding="utf-8")
    direct = toy.names(np.array([7, 2, 0.5, -1.0]), x)
    assert [row["prediction"] for row in predict_file(to, tmp_path / "a.jsonl")] == direct
    for file in to.rglob("*"):
        if file.suffix != ".pkl" and file.is_file():
            assert str(to.parent).encode() not in file.read_bytes(), f"a local path in {file.name}"


def test_texts_and_tables_reach_a_load_hook_s_predict_as_they_were(tmp_path):
    import pandas as pd

    text = experiment_file(
        tmp_path / "texts", "def load(folder, config): return len\ndef predict(m, x): return [m(t) for t in x]\n"
    )
    table = experiment_file(
        tmp_path / "tables",
        "def load(folder, config): return 2\ndef predict(m, x): return (x['a'] * m).where(x['b'] == 'up', -1)\n",
    )
    cases = [
        (text, ["a", "bcd"], "text\nhello\n", [5]),
        (table, pd.DataFrame({"a": [1.5, 2.0], "b": ["up", "no"]}), "b,a\nup,4\n", [8.0]),
    ]
    for number, (module, example, csv, wanted) in enumerate(cases):
        folder = write_sweep(tmp_path / f"runs{number}", "toy.1", [Told({}, {1: 1.0}, checkpoint=lambda *_: None)])
        to = tmp_path / f"model{number}"
        export(folder, Export(load=module.load, predict=module.predict, example=lambda e=example: e), to)
        (tmp_path / "a.csv").write_text(csv, encoding="utf-8")
        assert [row["prediction"] for row in predict_file(to, tmp_path / "a.csv")] == wanted


def test_packages_that_only_the_hooks_import_are_pinned(tmp_path):
    sklearn = pytest.importorskip("sklearn")
    code = "def load(folder, config):\n    from sklearn.dummy import DummyClassifier as D\n    return D().fit([[0]], [7])\n"
    folder, to = one_trial(tmp_path, lambda *_: None), tmp_path / "model"
    export(folder, Export(load=experiment_file(tmp_path / "p", code).load, example=lambda: np.zeros((2, 1))), to)
    requirements = (to / "requirements.txt").read_text(encoding="utf-8").split()
    assert f"scikit-learn=={sklearn.__version__}" in requirements
    assert not [line for line in requirements if line.startswith(("scipy", "joblib"))], "scikit-learn brings them"
    assert f"scikit-learn=={sklearn.__version__}" in (to / "conda.yaml").read_text(encoding="utf-8")


def test_a_mismatch_is_an_error_and_leaves_nothing(tmp_path, toy):
    folder, to = one_trial(tmp_path, toy.write_json), tmp_path / "out" / "model"
    dice = experiment_file(
        tmp_path / "dice", "import os\ndef load(folder, config): return 0\ndef predict(m, x): return [os.getpid()] * len(x)\n"
    )
    with pytest.raises(ExportMismatchError, match=r"(?s)0 of 8 rows equal.*row 0: expected"):
        export(folder, Export(load=dice.load, predict=dice.predict, example=toy.rows), to)
    assert nothing_left(to)


def test_a_model_that_needs_this_machine_is_an_error_and_leaves_nothing(tmp_path, toy):
    folder, to = one_trial(tmp_path, toy.write_json), tmp_path / "model"
    bound = experiment_file(
        tmp_path / "bound",
        "def load(folder, config):\n    import tunelab\n    return 0\ndef predict(m, x): return [0] * len(x)\n",
    )
    with pytest.raises(ExportMismatchError, match=r"No module named 'tunelab'"):
        export(folder, Export(load=bound.load, predict=bound.predict, example=toy.rows), to)
    assert nothing_left(to)


def test_proof_can_be_repeated_and_notices_changed_weights(tmp_path, hooked):
    to = shutil.copytree(hooked[1], tmp_path / "model")
    again = [sys.executable, "-m", "tunelab.export.prove", str(to)]
    done = subprocess.run(again, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "Clean process: 8 of 8 rows equal, max difference 0\n"
    weights = next(to.rglob("weights.json"))
    weights.write_text('{"w": [-50, -50, -50, -50]}', encoding="utf-8")
    done = subprocess.run(again, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "row 0" in done.stdout


@pytest.mark.parametrize("fill", [lambda to: (to.mkdir(), (to / "x").touch()), lambda to: to.touch()])
def test_a_target_that_is_taken_is_refused_and_untouched(tmp_path, toy, fill):
    folder, to = one_trial(tmp_path, lambda *_: None), tmp_path / "model"
    fill(to)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(BadInputError, match=r"not empty|not a folder"):
        export(folder, hooks(toy), to)
    assert sorted(tmp_path.rglob("*")) == before


class TestWhichCheckpoint:
    def nothing(self, folder, config, step):
        pass

    def refused(self, tmp_path, toy, trials, trial=None, prepare=None):
        folder, to = write_sweep(tmp_path / "runs", "toy.1", trials), tmp_path / "model"
        if prepare:
            prepare(folder)
        with pytest.raises(NoCheckpointError) as error:
            export(folder, hooks(toy), to, trial=trial)
        assert nothing_left(to)
        return str(error.value)

    def test_no_trial_has_ended_well(self, tmp_path, toy):
        trials = [Told({}, {1: 0.5}, "failed", self.nothing), Told({}, {1: 0.5}, None, self.nothing)]
        assert "no trial that completed or was stopped: 1 failed, 1 running" in self.refused(tmp_path, toy, trials)

    def test_no_trial_reported_a_checkpoint(self, tmp_path, toy):
        message = self.refused(tmp_path, toy, [Told({}, {1: 0.5})])
        assert "No trial of toy.1 has a kept checkpoint: 1 completed" in message

    def test_a_trial_without_checkpoint_names_the_next_best(self, tmp_path, toy):
        message = self.refused(tmp_path, toy, [Told({}, {1: 0.5}), Told({}, {4: 0.25}, checkpoint=self.nothing)], trial=0)
        assert "toy.1/0000 (completed) has no checkpoint" in message
        assert "Next best: 0001, accuracy 0.25 at epoch 4. Run: tunelab export toy.1 --trial 1 --to" in message

    def test_a_folder_deleted_by_hand_is_named_with_the_next_best_that_exists(self, tmp_path, toy):
        trials = [Told({}, {1: value}, checkpoint=self.nothing) for value in (0.9, 0.8, 0.7)]

        def delete(folder):
            for number in (0, 1):
                (folder.trials / f"000{number}/checkpoint_1").rmdir()

        message = self.refused(tmp_path, toy, trials, prepare=delete)
        assert f"{tmp_path}/runs/toy.1/trials/0000/checkpoint_1 does not exist" in message
        assert "Next best: 0002, accuracy 0.7 at epoch 1" in message

    def test_the_last_folder_deleted_by_hand(self, tmp_path, toy):
        message = self.refused(
            tmp_path,
            toy,
            [Told({}, {1: 0.9}, checkpoint=self.nothing)],
            prepare=lambda folder: (folder.trials / "0000/checkpoint_1").rmdir(),
        )
        assert message.endswith("No other trial has a kept checkpoint.")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": ("model.pt", "model")}, "names the file 'model.pt'.*It holds: state.pt"),
        ({"weights": ("state.pt", "net")}, "names the key 'net'.*'model', 'optimizer', 'epoch'"),
        ({"build": lambda config: torch.nn.Linear(4, 2)}, "do not fit the model"),
        ({"build": lambda config: 3}, "must return a torch.nn.Module, got int"),
        ({"example": lambda: ["text"]}, "models of one array of numbers"),
        ({"predict": lambda net, x: net(x).sum()}, "returned 1 predictions for 8 rows"),
        ({"predict": lambda net, x: ["a"] * len(x)}, "predictions are numbers"),
    ],
)
def test_hooks_that_do_not_fit_the_checkpoint_are_told_so(tmp_path, toy, changes, message):
    folder, to = one_trial(tmp_path, toy.write), tmp_path / "model"
    with pytest.raises(BadInputError, match=message):
        export(folder, hooks(toy, **changes), to)
    assert nothing_left(to)


def test_an_experiment_without_export_is_told_what_to_add(tmp_path, toy):
    folder = one_trial(tmp_path, toy.write)
    with pytest.raises(BadInputError, match=r"it holds state.pt.*Add to the Experiment: export=Export\(build"):
        export(folder, None, tmp_path / "model")


def test_a_checkpoint_that_could_run_code_is_not_read(tmp_path, toy):
    ran = tmp_path / "ran"

    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(ran),)

    folder = one_trial(tmp_path, lambda where, *_: torch.save({"model": Bomb()}, where / "state.pt"))
    with pytest.raises(BadInputError, match="could run code"):
        export(folder, hooks(toy), tmp_path / "model")
    assert not ran.exists()


def test_a_model_whose_card_promises_no_code_is_not_unpickled(tmp_path, hooked):
    to = shutil.copytree(hooked[1], tmp_path / "model")
    card = json.loads((to / "card.json").read_text(encoding="utf-8"))
    (to / "card.json").write_text(json.dumps(card | {"runs_code": False}), encoding="utf-8")
    (tmp_path / "a.jsonl").write_text("[1, 1, 1, 1]\n", encoding="utf-8")
    with pytest.raises(Exception, match=r"pickle is disallowed"):
        list(predict_file(to, tmp_path / "a.jsonl"))


def test_an_export_that_is_terminated_leaves_nothing(tmp_path):
    """While the clean process runs, when most of the model is written."""
    toy = experiment_file(tmp_path / "project", TOY)
    one_trial(tmp_path, toy.write_json)
    (tmp_path / "project" / "slow.py").write_text(
        "def load(folder, config):\n    import pathlib, sys, time\n"
        "    if 'tunelab' not in sys.modules:\n"
        f"        pathlib.Path({str(tmp_path / 'there')!r}).touch()\n        time.sleep(60)\n"
        "    return 0\ndef predict(m, x): return [0] * len(x)\n",
        encoding="utf-8",
    )
    code = f"""
        import sys
        sys.path[:0] = [{str(ROOT)!r}, {str(tmp_path / "project")!r}]
        from pathlib import Path
        import slow
        from tests.contract.test_export_torch import Export, export
        from tunelab.journal.home import SweepFolder
        export(SweepFolder(Path({str(tmp_path / "my runs/toy.1")!r})),
               Export(load=slow.load, predict=slow.predict, example=lambda: ["a"]), Path({str(tmp_path / "model")!r}))
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not (tmp_path / "there").exists():
        assert process.poll() is None, process.stderr.read().decode()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    partial = tmp_path / f".model.partial-{process.pid}"
    assert (partial / "MLmodel").is_file()
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 128 + signal.SIGTERM
    process.stderr.close()
    assert nothing_left(tmp_path / "model")


def test_what_a_killed_export_left_is_removed_by_the_next_and_a_running_one_is_left_alone(tmp_path, toy):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left, running = (tmp_path / f".model.partial-{pid}" for pid in (gone.pid, os.getppid()))
    left.mkdir()
    running.mkdir()
    with pytest.raises(BadInputError):
        export(one_trial(tmp_path, toy.write_json), None, tmp_path / "model")
    assert not left.exists()
    assert running.exists()
