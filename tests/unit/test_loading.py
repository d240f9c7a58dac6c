"""Loading an experiment's file: what is found, what is refused and in which words. No test here imports Ray or a framework."""

from __future__ import annotations

import json
import sys
import textwrap
import types

import pytest

import tunelab
from tests.unit import histories
from tunelab.engine.loading import (
    apply_overrides,
    describe,
    difference,
    load_experiment,
    load_snapshot_experiment,
    project_root,
)
from tunelab.errors import BadInputError, ExperimentFileError, InvalidExperimentError, UnknownNameError
from tunelab.journal import events

GOOD = """
from tunelab import ASHA, Budget, Choice, Experiment, Float, Int, Objective, Random

class Trainer:  # what tunelab looks at in a Ray Train trainer
    def __init__(self):
        self.train_loop_config = {"epochs": 20, "task": "digits"}
    def fit(self): ...

experiment = Experiment(
    name="toy",
    trainer=Trainer(),
    space={"lr": Float(1e-4, 1e-1, log=True), "optimizer": Choice(["adam", "sgd"]),
           "momentum": Float(0.0, 0.9, when={"optimizer": "sgd"}), "batch_size": Choice([16, 32])},
    baseline={"lr": 1e-3, "optimizer": "sgd", "momentum": 0.5, "batch_size": 32},
    objective=Objective("accuracy", step="epoch", last_step="epochs"),
    searcher=Random(),
    scheduler=ASHA(first_rung=2),
    budget=Budget(trials=4),
)
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """An empty project, and what loading changes in this process undone afterwards."""
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "experiments").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if not name.startswith("tunelab.") and str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def write(project):
    def write(text: str, name: str = "toy.py") -> str:
        (project / "experiments" / name).write_text(textwrap.dedent(text))
        return f"experiments/{name}"

    return write


def refusal(spec: str, kind: type[BadInputError] = ExperimentFileError) -> str:
    with pytest.raises(kind) as caught:
        load_experiment(spec)
    assert caught.value.exit_status == 2
    return str(caught.value)


class TestFound:
    def test_the_only_experiment_of_a_file_needs_no_name(self, write, project):
        loaded = load_experiment(write(GOOD))
        assert (loaded.experiment.name, loaded.variable) == ("toy", "experiment")
        assert loaded.file == project / "experiments/toy.py"
        assert loaded.root == project
        assert loaded.text == (project / "experiments/toy.py").read_text()
        assert sys.modules[loaded.module.__name__] is loaded.module

    def test_a_variable_by_name(self, write):
        text = GOOD + "from dataclasses import replace\nseeded = replace(experiment, seed=7)\n"
        assert load_experiment(write(text) + ":seeded").experiment.seed == 7

    def test_a_function_without_arguments_by_name(self, write):
        text = GOOD + "from dataclasses import replace\ndef seeded(seed=9):\n    return replace(experiment, seed=seed)\n"
        loaded = load_experiment(write(text) + ":seeded")
        assert (loaded.experiment.seed, loaded.variable) == (9, "seeded")

    def test_two_names_for_one_experiment_are_one_experiment(self, write):
        assert load_experiment(write(GOOD + "alias = experiment\n")).variable == "experiment"

    def test_a_variant_of_an_imported_experiment_is_what_its_file_is_about(self, write):
        write(GOOD, "base.py")
        spec = write("from dataclasses import replace\nfrom base import experiment\nvariant = replace(experiment, seed=3)\n")
        assert load_experiment(spec).variable == "variant"

    def test_modules_of_the_project_root_and_of_the_files_own_folder_can_be_imported(self, write, project):
        (project / "shared_rows.py").write_text("SEED = 5\n")
        write("NAME = 'helped'\n", "toy_helper.py")
        spec = write(GOOD + "import shared_rows, toy_helper\nfrom dataclasses import replace\n"
                     "experiment = replace(experiment, seed=shared_rows.SEED, name=toy_helper.NAME)\n")  # fmt: skip
        loaded = load_experiment(spec)
        assert (loaded.experiment.seed, loaded.experiment.name) == (5, "helped")

    def test_paths_with_spaces_quotes_and_colons(self, project):
        for name in ("a b.py", "it's.py", "a:b.py"):
            (project / name).write_text(GOOD)
            assert load_experiment(name).experiment.name == "toy"
            assert load_experiment(f"{name}:experiment").experiment.name == "toy"

    def test_a_file_that_is_loaded_again_is_read_again(self, write):
        load_experiment(write(GOOD))
        assert load_experiment(write(GOOD.replace('"toy"', '"new"'))).experiment.name == "new"

    def test_annotations_are_not_turned_into_text(self, write):
        spec = write(
            GOOD + "from dataclasses import dataclass\n@dataclass\nclass D:\n    x: int = 0\nKIND = D.__annotations__['x']\n"
        )
        assert load_experiment(spec).module.KIND is int

    def test_the_root_is_the_nearest_folder_with_a_project_file(self, tmp_path):
        (tmp_path / ".git").mkdir()
        (tmp_path / "a/b").mkdir(parents=True)
        assert project_root(tmp_path / "a/b/x.py") == tmp_path
        (tmp_path / "a/pyproject.toml").write_text("")
        assert project_root(tmp_path / "a/b/x.py") == tmp_path / "a"


class TestRefusedByLooking:
    """None of these runs the file: its first line would fail if it did."""

    RUNS = "raise SystemError('the file was run')\n"

    def test_no_such_file_suggests_the_nearest(self, write):
        write(GOOD, "digits_mlp.py")
        assert refusal("experiments/digits_mpl.py") == (
            "There is no file experiments/digits_mpl.py. Did you mean experiments/digits_mlp.py?"
        )

    def test_no_such_file_lists_what_there_is(self, write):
        write(GOOD, "digits_mlp.py")
        assert "experiments/ holds digits_mlp.py" in refusal("experiments/zzz.py")
        assert "There is no folder nowhere either" in refusal("nowhere/x.py")

    def test_a_folder(self, write):
        write(GOOD)
        assert refusal("experiments") == "experiments is a folder; an experiment is a Python file in it. It holds toy.py."

    def test_not_python(self, project):
        (project / "toy.yaml").write_text("name: toy\n")
        assert refusal("toy.yaml") == "toy.yaml is not a Python file: an experiment's file ends with .py."

    def test_a_syntax_error_shows_its_line(self, write):
        message = refusal(write(self.RUNS + "experiment = Experiment(\n    name='toy'\n    seed=0)\n"))
        assert message.startswith("experiments/toy.py:")
        assert "name='toy'" in message

    def test_a_file_that_is_not_text(self, project):
        (project / "toy.py").write_bytes(b"\xff\xfe\x00")
        assert "toy.py" in refusal("toy.py")

    def test_an_empty_file(self, write):
        assert refusal(write("")) == "experiments/toy.py defines no experiment. Add: experiment = Experiment(...)"

    def test_a_name_that_does_not_occur(self, write):
        message = refusal(write(self.RUNS + GOOD) + ":experimnt")
        assert message == "experiments/toy.py has nothing called 'experimnt'. Did you mean experiments/toy.py:experiment?"

    def test_an_unknown_argument_names_line_class_suggestion_and_choices(self, write):
        text = self.RUNS + GOOD.replace("first_rung=2", "first_rnug=2")
        assert refusal(write(text)) == (
            f"experiments/toy.py:{_line(text, 'first_rnug')}: ASHA has no argument 'first_rnug'. Did you mean 'first_rung'? "
            "It takes: first_rung, reduction."
        )

    def test_an_unknown_argument_through_the_module_or_another_name(self, write):
        assert "Objective has no argument 'metrc'" in refusal(write("import tunelab as t\nx = t.Objective(metrc='a')\n"))
        assert "Float has no argument 'lo'" in refusal(write("from tunelab import Float as F\nx = F(lo=1)\n"))

    def test_a_missing_argument(self, write):
        assert "Budget needs trials; it takes: trials, time_s, concurrent." in refusal(
            write(self.RUNS + GOOD.replace("Budget(trials=4)", "Budget(time_s=4)"))
        )

    def test_arguments_that_have_to_be_named(self, write):
        assert "Budget takes its arguments by name, such as Budget(trials=..., time_s=...)" in refusal(
            write(self.RUNS + GOOD.replace("Budget(trials=4)", "Budget(4)"))
        )

    def test_values_out_of_range_all_at_once_with_their_lines(self, write):
        text = self.RUNS + GOOD.replace("first_rung=2", "first_rung=0").replace("1e-4, 1e-1", "1e-1, 1e-4").replace(
            "[16, 32]", "[]"
        )
        message = refusal(write(text), InvalidExperimentError)
        assert "experiments/toy.py has 3 problems" in message
        assert f"line {_line(text, 'first_rung')}: ASHA needs first_rung > 0" in message
        assert "Float needs low < high, got low=0.1, high=0.0001." in message
        assert "Choice needs at least one option" in message

    def test_a_condition_on_an_unknown_parameter(self, write):
        message = refusal(
            write(self.RUNS + GOOD.replace('{"optimizer": "sgd"}', '{"optimiser": "sgd"}')), InvalidExperimentError
        )
        assert "Did you mean 'optimizer'?" in message

    def test_a_name_that_tunelab_lacks(self, write):
        message = refusal(write(self.RUNS + "from tunelab import ASAH\n"))
        assert message.startswith("experiments/toy.py:2: tunelab has no 'ASAH'. Did you mean 'ASHA'? It has: Experiment,")

    def test_a_package_that_is_not_installed(self, write):
        message = refusal(write(self.RUNS + "import surely_not_installed.part\n"))
        assert message.startswith("experiments/toy.py:2: it imports 'surely_not_installed', which is not installed.")
        assert "pip install surely-not-installed" in message

    def test_a_file_that_hides_the_package_it_imports(self, write):
        assert "hides the package 'optuna'" in refusal(write(self.RUNS + "import optuna\n", "optuna.py"))

    def test_what_only_perhaps_runs_is_not_judged(self, write):
        text = """
        def other():
            return Budget(trials=0, no_such=1)
        try:
            import surely_not_installed
        except ImportError:
            pass
        """
        assert load_experiment(write(GOOD + textwrap.dedent(text))).experiment.name == "toy"

    def test_the_function_asked_for_is_judged(self, write):
        text = "from tunelab import Budget\ndef small():\n    return Budget(trial=1)\n"
        assert "experiments/toy.py:3: Budget has no argument 'trial'" in refusal(write(text) + ":small")

    def test_a_bad_file_is_refused_before_the_framework_is_imported(self, write):
        text = "import slow_framework\n" + GOOD.replace("first_rung", "first_rnug")
        write("import time\ntime.sleep(60)\n", "slow_framework.py")
        assert "first_rnug" in refusal(write(text))


class TestRefusedByRunning:
    def test_an_exception_shows_line_and_message_without_a_traceback(self, write):
        text = GOOD + "x = {}['missing']\n"
        assert refusal(write(text)) == f"experiments/toy.py:{_line(text, 'missing')}: KeyError: 'missing'"

    def test_an_exception_in_another_file_of_the_project_names_both(self, write):
        write("def boom():\n    raise ValueError('no rows')\n", "rows_of_toy.py")
        message = refusal(write("from rows_of_toy import boom\nx = boom()\n"))
        assert message == "experiments/toy.py:2 (in experiments/rows_of_toy.py:2): ValueError: no rows"

    def test_a_syntax_error_in_another_file_of_the_project(self, write):
        write("def boom(:\n", "broken_toy.py")
        assert "experiments/broken_toy.py:1: " in refusal(write("import broken_toy\nx = 1\n"))

    def test_an_unknown_argument_that_only_running_shows(self, write):
        text = GOOD + "options = {'startp': 3}\nfrom tunelab import TPE\nsearcher = TPE(**options)\n"
        assert f"experiments/toy.py:{_line(text, 'TPE(**')}: TPE has no argument 'startp'. Did you mean 'startup'?" in refusal(
            write(text)
        )

    def test_an_experiment_that_breaks_its_rules_says_where(self, write):
        text = GOOD.replace('name="toy"', 'name="Toy 1"').replace("trials=4", "trials=4").replace('epochs")', 'epoch")')
        message = refusal(write(text), InvalidExperimentError)
        assert f"experiments/toy.py:{_line(text, 'experiment = ')}: Experiment 'Toy 1'" in message

    def test_a_file_that_ends_the_program(self, write):
        assert "the file ends the program" in refusal(write(GOOD + "import sys\nsys.exit(3)\n"))

    def test_no_experiment_names_functions_that_make_one(self, write):
        text = GOOD.replace("experiment = Experiment(", "def base():\n  return Experiment(")
        message = refusal(write(text))
        assert message.startswith("experiments/toy.py holds no experiment.")
        assert "experiments/toy.py:base" in message

    def test_two_experiments_are_listed(self, write):
        text = GOOD + "from dataclasses import replace\nother = replace(experiment, seed=1)\n"
        assert refusal(write(text)) == (
            "experiments/toy.py holds 2 experiments. Say which: experiments/toy.py:experiment, experiments/toy.py:other"
        )

    def test_a_name_that_is_something_else(self, write):
        assert refusal(write(GOOD) + ":Budget") == (
            "experiments/toy.py:Budget is a type, not an Experiment. These are: experiment."
        )

    def test_a_function_that_wants_arguments(self, write):
        assert "experiments/toy.py:make needs seed" in refusal(write(GOOD + "def make(seed): ...\n") + ":make")

    def test_a_function_that_fails(self, write):
        text = GOOD + "def make():\n    return 1 / 0\n"
        assert (
            refusal(write(text) + ":make") == f"experiments/toy.py:{_line(text, '1 / 0')}: ZeroDivisionError: division by zero"
        )

    def test_an_experiment_that_starts_ray_is_refused_and_ray_is_stopped(self, write, monkeypatch):
        ray = types.ModuleType("ray")
        running = [False]
        ray.is_initialized = lambda: running[0]
        ray.init = lambda: running.__setitem__(0, True)
        ray.shutdown = lambda: running.__setitem__(0, False)
        monkeypatch.setitem(sys.modules, "ray", ray)
        assert "starts Ray when it is imported" in refusal(write(GOOD + "import ray\nray.init()\n"))
        assert running == [False]

    def test_a_refused_file_leaves_no_module(self, write):
        before = set(sys.modules)
        refusal(write(GOOD + "1 / 0\n"))
        assert not [name for name in set(sys.modules) - before if name.startswith("tunelab_experiment")]


class TestOverrides:
    @pytest.fixture
    def experiment(self, write):
        return load_experiment(write(GOOD)).experiment

    def test_budget_and_seed(self, experiment):
        changed = apply_overrides(experiment, trials=9, time_s=60, concurrent=2, seed=5)
        assert (changed.budget.trials, changed.budget.time_s, changed.budget.concurrent, changed.seed) == (9, 60, 2, 5)
        assert experiment.budget.trials == 4

    def test_nothing_changes_nothing(self, experiment):
        assert apply_overrides(experiment) is experiment

    def test_a_parameter_is_fixed_in_space_and_baseline(self, experiment):
        changed = apply_overrides(experiment, sets=["batch_size=16"])
        assert list(changed.space.parameters["batch_size"].values()) == [16]
        assert changed.full_baseline()["batch_size"] == 16

    def test_a_fixed_parameter_switches_off_what_depends_on_it(self, experiment):
        changed = apply_overrides(experiment, sets=["optimizer=adam"])
        assert "momentum" not in changed.space.parameters
        assert changed.full_baseline() == {"lr": 1e-3, "optimizer": "adam", "batch_size": 32}

    def test_a_loop_key_is_replaced_in_a_copy_of_the_trainer(self, experiment):
        changed = apply_overrides(experiment, sets=["task=letters"])
        assert changed.loop_defaults()["task"] == "letters"
        assert experiment.loop_defaults()["task"] == "digits"

    def test_max_steps_reaches_loop_and_scheduler(self, experiment):
        changed = apply_overrides(experiment, max_steps=2)
        assert (changed.loop_defaults()["epochs"], changed.last_step()) == (2, 2)

    def test_max_steps_replaces_a_number(self, write):
        loaded = load_experiment(write(GOOD.replace('last_step="epochs"', "last_step=20")))
        assert apply_overrides(loaded.experiment, max_steps=3).last_step() == 3

    def test_max_steps_and_set_may_not_say_different_last_steps(self, experiment):
        with pytest.raises(BadInputError, match=r"both set the last step \(epochs\): 9 and 3"):
            apply_overrides(experiment, max_steps=3, sets=["epochs=9"])
        assert apply_overrides(experiment, max_steps=3, sets=["epochs=3"]).last_step() == 3

    @pytest.mark.parametrize("value", ["abc", "nan", "1,2", "True"])
    def test_a_number_has_to_be_one(self, experiment, value):
        with pytest.raises(InvalidExperimentError, match=f"^Parameter 'lr': {value} is not a number; it takes 1e-4..1e-1 log"):
            apply_overrides(experiment, sets=[f"lr={value}"])

    def test_max_steps_needs_a_declared_last_step(self, write):
        loaded = load_experiment(write(GOOD.replace('last_step="epochs"', "last_step=None")))
        with pytest.raises(BadInputError, match="last_step"):
            apply_overrides(loaded.experiment, max_steps=3)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("batchsize=16", "Did you mean 'batch_size'"),
            ("epoch=3", "Did you mean 'epochs'"),
        ],
    )
    def test_unknown_names_are_refused_with_a_suggestion(self, experiment, text, message):
        with pytest.raises(UnknownNameError, match=message):
            apply_overrides(experiment, sets=[text])

    @pytest.mark.parametrize("text", ["lr", "=3", ""])
    def test_not_a_pair(self, experiment, text):
        with pytest.raises(BadInputError, match="NAME=VALUE"):
            apply_overrides(experiment, sets=[text])

    def test_a_value_outside_the_range(self, experiment):
        with pytest.raises(InvalidExperimentError, match="outside"):
            apply_overrides(experiment, sets=["lr=5"])

    def test_a_trainer_that_is_a_function_has_no_keys_to_set(self, write):
        loaded = load_experiment(
            write(GOOD.replace("trainer=Trainer()", "trainer=lambda config: None").replace('"epochs"', "20"))
        )
        with pytest.raises(UnknownNameError, match="trainer is a function"):
            apply_overrides(loaded.experiment, sets=["task=x"])


class TestDescription:
    @pytest.fixture
    def experiment(self, write):
        return load_experiment(write(GOOD)).experiment

    def test_it_survives_json(self, experiment):
        described = describe(experiment)
        assert json.loads(json.dumps(described)) == described
        assert described["scheduler"] == {"name": "asha", "first_rung": 2, "reduction": 3}
        assert described["loop"] == {"epochs": 20, "task": "digits"}
        assert described["last_step"] == 20

    def test_the_same_experiment_does_not_differ(self, experiment):
        assert difference(describe(experiment), describe(experiment)) == []

    def test_what_resume_must_know_is_told_in_words(self, experiment):
        changed = apply_overrides(experiment, seed=1, max_steps=5, sets=["optimizer=adam"])
        assert difference(describe(experiment), describe(changed)) == [
            "space: optimizer was adam, sgd, is adam",
            "space: momentum is gone (was 0..0.9 with optimizer = sgd)",
            "last_step was 20, is 5",
            "seed was 0, is 1",
            "baseline: optimizer was sgd, is adam",
            "baseline: momentum was 0.5, is absent",
        ]

    def test_budget_and_retention_may_change(self, experiment):
        assert difference(describe(experiment), describe(apply_overrides(experiment, trials=99, time_s=1))) == []

    def test_another_searcher(self, experiment):
        from dataclasses import replace

        other = replace(experiment, searcher=tunelab.Grid(points=3), scheduler=tunelab.ASHA(first_rung=4))
        assert difference(describe(experiment), describe(other)) == [
            "searcher was random, is grid",
            "scheduler: first_rung was 2, is 4",
        ]


class TestSnapshot:
    def keep(self, project, text, **facts):
        facts = {"root": str(project), "file": "experiments/toy.py", "variable": "experiment", **facts}
        told = [events.sweep_created(sweep="toy.1", experiment=histories.experiment(), facts=facts)]
        folder = histories.write(project / "runs", told, "toy.1")
        (folder.path / "experiment.py").write_text(text)
        return folder, folder.load()

    def test_the_kept_copy_is_loaded_and_not_the_edited_file(self, write, project):
        write(GOOD.replace('"toy"', '"edited"'))
        assert load_snapshot_experiment(*self.keep(project, GOOD)).name == "toy"

    def test_the_sweeps_overrides_are_applied(self, write, project):
        write(GOOD)
        loaded = load_snapshot_experiment(*self.keep(project, GOOD, overrides={"seed": 4, "sets": ["batch_size=16"]}))
        assert loaded.seed == 4
        assert loaded.full_baseline()["batch_size"] == 16

    def test_it_imports_what_lay_beside_the_file_and_finds_files_there(self, write, project):
        write("NAME = 'from-beside'\n", "toy_beside.py")
        text = GOOD + "from pathlib import Path\nimport toy_beside\nfrom dataclasses import replace\n"
        text += "beside = list(Path(__file__).parent.glob('toy_beside.py'))\n"
        text += "experiment = replace(experiment, name=toy_beside.NAME, seed=len(beside))\n"
        loaded = load_snapshot_experiment(*self.keep(project, text))
        assert (loaded.name, loaded.seed) == ("from-beside", 1)

    def test_it_still_loads_when_the_project_is_gone(self, project, tmp_path):
        facts = {"root": str(tmp_path / "gone")}
        assert load_snapshot_experiment(*self.keep(project, GOOD, **facts)).name == "toy"


def _line(text: str, part: str) -> int:
    return next(number for number, line in enumerate(textwrap.dedent(text).splitlines(), 1) if part in line)
