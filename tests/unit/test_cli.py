"""The command line: what each verb prints, what goes to which stream, exit statuses, and that help loads nothing heavy."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import math
import os
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner

import tunelab
from tests.unit import histories as h
from tunelab.cli import VERBS, cli, common, running
from tunelab.cli import sweep as sweep_verb
from tunelab.cli.watch import LiveTable, PlainLines, View, cut, estimate_left_s, footer, make_watcher, table
from tunelab.engine.conductor import FAR_ENOUGH
from tunelab.errors import BadInputError, NoCheckpointError, SweepLockedError, UnfinishedSweepError
from tunelab.journal import SweepState, events

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(tunelab.__file__).parents[1])}
HEAVY = ("ray", "torch", "optuna", "mlflow", "numpy", "pandas", "sklearn", "transformers")


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


@pytest.fixture
def sweep(home):
    told = [
        *h.created(trials=4),
        *h.trial(0, [0.90, 0.95], origin="baseline"),
        *h.trial(1, [0.80], end="stopped", reason="7th of 10 at rung 1, needed 0.9422 (top 1/3)"),
        *h.trial(2, [0.97, 0.96]),
        *h.trial(3, [0.5], end=None),
        events.attempt_ended(
            3, attempt=1, outcome="failed", failure="user error", message="ValueError: no rows", details="T\nE"
        ),
        events.finished(3, status="failed", reason="user error: ValueError: no rows"),
        events.session_ended(outcome="finished", reason="all 4 trials have ended"),
    ]
    return h.write(home, told)


def run(*args: str, status: int = 0):
    result = CliRunner().invoke(cli, list(args), prog_name="tunelab")
    assert result.exit_code == status, (result.output, result.exception)
    return result


def python(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, "-c", code], capture_output=True, text=True, check=False, timeout=60, env=ENVIRONMENT
    )


class TestLight:
    @pytest.mark.parametrize(
        "code", ["import tunelab", "from tunelab.cli import cli; cli.main(['--help'], prog_name='tunelab')"]
    )
    def test_import_and_help_load_nothing_heavy(self, code):
        done = python(code, "-X", "importtime")
        loaded = {
            line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines() if "import time:" in line
        }
        assert "tunelab" in loaded
        assert not loaded & {*HEAVY, "rich"}
        assert done.returncode == 0

    @pytest.mark.parametrize("verb", ["ls", "show", "why", "best", "compare", "ui"])
    def test_a_reading_verbs_help_loads_nothing_heavy(self, verb):
        done = python(f"from tunelab.cli import cli; cli.main(['{verb}', '--help'], prog_name='tunelab')", "-X", "importtime")
        loaded = {
            line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines() if "import time:" in line
        }
        assert not loaded & {*HEAVY, "rich"}
        assert f"tunelab {verb}" in done.stdout

    def test_names_of_the_package_are_loaded_when_used(self):
        code = "import sys, tunelab; early = 'tunelab.schedulers.asha' in sys.modules; tunelab.ASHA; "
        assert python(code + "print(early, 'tunelab.schedulers.asha' in sys.modules)").stdout == "False True\n"

    def test_every_public_name_is_there_and_listed(self):
        missing = [name for name in tunelab.__all__ if name not in dir(tunelab)]
        assert not missing
        assert len(tunelab.__all__) >= 19

    def test_a_misspelt_name_of_the_package_gets_a_suggestion(self):
        with pytest.raises(AttributeError, match="Did you mean 'ASHA'"):
            tunelab.ASAH


class TestHelp:
    def test_help_lists_every_verb_in_the_tables_order(self):
        output = run("--help").output
        places = [output.index(f"\n  {verb} ") for verb in VERBS]
        assert places == sorted(places)

    def test_the_readme_shows_it_as_it_is(self):
        readme = (Path(tunelab.__file__).parents[1] / "README.md").read_text()
        assert f"$ tunelab --help\n{run('--help').output}```" in readme

    def test_version(self):
        assert run("--version").output == f"tunelab {tunelab.__version__}\n"

    def test_an_unknown_verb_gets_a_suggestion(self):
        result = run("compair", status=2)
        assert "No verb is called 'compair'. Did you mean 'compare'?" in result.stderr
        assert result.stdout == ""

    def test_a_file_in_place_of_a_verb(self):
        assert "tunelab sweep experiments/x.py" in run("experiments/x.py", status=2).stderr

    def test_an_unknown_option_is_bad_input(self):
        assert "--tpo" in run("compare", "x", "--tpo", "3", status=2).stderr


class TestErrors:
    """How errors of every kind end, with a verb that raises them."""

    @pytest.fixture
    def failing(self, monkeypatch):
        def failing(error: BaseException, *args: str, status: int):
            def fail(*_, **__):
                raise error

            monkeypatch.setattr("tunelab.cli.ls._summary", fail)
            monkeypatch.setattr("tunelab.journal.home.Home.sweeps", fail)
            return run("ls", *args, status=status)

        return failing

    @pytest.mark.parametrize(
        ("error", "status"),
        [(BadInputError("bad thing"), 2), (SweepLockedError("locked"), 2), (NoCheckpointError("nothing"), 1)],
    )
    def test_deliberate_errors_are_their_message_on_stderr(self, failing, error, status):
        result = failing(error, status=status)
        assert (result.stdout, result.stderr) == ("", f"{error}\n")

    def test_an_unexpected_error_is_one_line_and_says_how_to_see_more(self, failing):
        result = failing(ZeroDivisionError("division by zero"), status=1)
        assert result.stderr.splitlines() == [
            "tunelab: unexpected ZeroDivisionError: division by zero", "Run it with --debug for the traceback.",
        ]  # fmt: skip

    def test_debug_shows_the_traceback_wherever_it_stands(self, failing):
        for args in (["ls", "--debug"], ["--debug", "ls"]):
            with pytest.raises(ZeroDivisionError):
                failing(ZeroDivisionError(), status=1)
                CliRunner().invoke(cli, args, catch_exceptions=False)

    def test_ctrl_c_is_130(self, failing):
        failing(KeyboardInterrupt(), status=130)
        failing(click.Abort(), status=130)

    def test_a_closed_pipe_is_quiet(self, sweep):
        code = "from tunelab.cli import main; main()"
        command = f"{shlex.quote(sys.executable)} -c '{code}' show digits-mlp --json | head -1"
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env=ENVIRONMENT,
        )
        assert (done.stdout, done.stderr, done.returncode) == ("{\n", "", 0)


class TestHome:
    def test_the_flag_wins_over_the_projects_setting_and_that_over_runs(self, home, tmp_path):
        h.write(tmp_path / "runs", h.created("a.1"), "a.1")
        h.write(tmp_path / "set", h.created("b.1"), "b.1")
        h.write(tmp_path / "flag", h.created("c.1"), "c.1")
        assert "a.1" in run("ls").output
        (tmp_path / "pyproject.toml").write_text('[tool.tunelab]\nhome = "set"\n')
        assert "b.1" in run("ls").output
        assert "c.1" in run("ls", "--home", "flag").output

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ('[tool.tunelab]\nhoem = "x"\n', "Did you mean 'home'"),
            ("[tool.tunelab]\nhome = 3\n", "home needs text, got 3"),
            ("[tool", "pyproject.toml cannot be read"),
        ],
    )
    def test_a_wrong_setting_is_refused(self, home, tmp_path, content, message):
        (tmp_path / "pyproject.toml").write_text(content)
        assert message in run("ls", status=2).stderr

    @pytest.mark.parametrize("args", [["ls"], ["show", "x"], ["sweep", "x.py"], ["resume", "x"], ["export", "x", "--to", "y"]])
    @pytest.mark.parametrize("where", ["file", "file/below"])
    def test_a_file_is_no_home(self, home, tmp_path, args, where):
        (tmp_path / "file").write_text("")
        assert run(*args, "--home", where, status=2).stderr == "--home needs a folder, and file is a file.\n"

    def test_a_suggested_command_finds_the_home_that_was_given(self, sweep, tmp_path):
        assert common.suggest("show", sweep) == "tunelab show digits-mlp.1"
        elsewhere = h.write(tmp_path / "my runs", h.created())
        assert common.suggest("show", elsewhere, short=True) == f"tunelab show digits-mlp --home '{tmp_path}/my runs'"
        assert "tunelab sweep FILE --home none" in run("ls", "--home", "none").stderr
        (tmp_path / "pyproject.toml").write_text('[tool.tunelab]\nhome = "my runs"\n')
        assert common.suggest("show", elsewhere) == "tunelab show digits-mlp.1"

    def test_an_older_sweep_is_suggested_by_its_own_name(self, sweep, home):
        h.write(home, h.created("digits-mlp.2"), "digits-mlp.2")
        assert common.suggest("compare", sweep, short=True) == "tunelab compare digits-mlp.1"

    def test_an_unknown_sweep_gets_a_suggestion(self, sweep):
        assert "Did you mean 'digits-mlp'?" in run("show", "digits-mpl", status=2).stderr


class TestLs:
    def test_one_line_a_sweep(self, sweep):
        lines = run("ls").stdout.splitlines()
        assert lines[0].split() == ["sweep", "state", "trials", "best", "last", "active"]
        assert lines[1].startswith("digits-mlp.1  finished  4 of 4  accuracy 0.9700 (0002)  1970-01-01 ")

    def test_no_sweeps_is_no_error_and_says_how_to_start(self, home):
        result = run("ls")
        assert result.stdout == ""
        assert "tunelab sweep FILE" in result.stderr

    @pytest.mark.parametrize(
        ("outcome", "shown"),
        [
            ("finished", "finished"),
            ("aborted", "aborted"),
            ("interrupted", "interrupted"),
            ("out of time", "out of time"),
            (None, "killed"),
        ],
    )
    def test_states(self, home, outcome, shown):
        h.write(home, [*h.created(), *([events.session_ended(outcome=outcome, reason="")] if outcome else [])])
        assert json.loads(run("ls", "--json").stdout)[0]["state"] == shown

    def test_a_sweep_whose_driver_holds_the_lock_is_running_and_looking_does_not_disturb_it(self, sweep):
        with sweep.lock.open("w") as file:
            file.write("the driver's")
            file.flush()
            fcntl.flock(file, fcntl.LOCK_EX)
            assert json.loads(run("ls", "--json").stdout)[0]["state"] == "running"
        assert sweep.lock.read_text() == "the driver's"
        assert json.loads(run("ls", "--json").stdout)[0]["state"] == "finished"

    def test_an_unreadable_journal_does_not_hide_the_others(self, sweep, home):
        (home / "broken.1").mkdir()
        (home / "broken.1/journal.sqlite").write_text("nothing of the kind " * 99)
        result = run("ls")
        assert "digits-mlp.1" in result.stdout
        assert "broken.1" in result.stderr


class TestShow:
    def test_a_sweep_with_its_trials_and_what_became_of_the_failed_ones(self, sweep):
        output = run("show", "digits-mlp").stdout
        assert output.startswith("sweep digits-mlp.1: 4 trials, tpe, asha, seed 0\nfinished after 0:")
        assert "2 completed, 1 stopped, 1 failed" in output
        assert "0001   stopped  1/20   0.8000    0.8000@1" in output
        assert "7th of 10 at rung 1" in output
        assert "0003 failed in attempt 1: user error: ValueError: no rows" in output

    def test_only_the_latest_trials_unless_all_are_asked_for(self, home):
        h.write(home, [*h.created(), *(event for n in range(60) for event in h.trial(n, [0.1]))])
        assert "(the latest 50 of 60 trials; --all shows the others)" in run("show", "digits-mlp").stdout
        assert "\n0000 " in run("show", "digits-mlp", "--all").stdout

    def test_a_trial_with_its_curve(self, sweep):
        output = run("show", "digits-mlp/2").stdout
        assert output.startswith("digits-mlp.1/0002\nproposed ")
        assert "1      0.9700    1        0002/checkpoint_1_1" in output

    def test_json_has_no_nan(self, home):
        h.write(home, [*h.created(), *h.trial(0, [math.nan], end="failed")])
        data = json.loads(run("show", "digits-mlp/0", "--json").stdout)
        assert data["reports"][0]["value"] is None


class TestCompareBestWhy:
    def test_compare(self, sweep):
        lines = run("compare", "digits-mlp", "--top", "1").stdout.splitlines()
        assert lines[0].split() == ["trial", "accuracy", "gain", "epoch", "lr", "width", "batch_size"]
        assert lines[1].startswith("0002   0.9700    +0.0200  1      ")
        assert lines[2].startswith("0000   0.9500             2      ")
        assert lines[2].endswith("baseline")
        assert lines[3] == "no importance: importance needs 8 trials with a finite value at a common epoch, there are 4"

    def test_compare_as_json(self, sweep):
        data = json.loads(run("compare", "digits-mlp.1", "--json").stdout)
        assert [entry["trial"] for entry in data["trials"]] == ["0002", "0000", "0001"]
        assert data["trials"][0]["checkpoint"] == "0002/checkpoint_1_1"
        assert data["importance"] is None

    def test_compare_before_the_first_report(self, home):
        h.write(home, h.created())
        assert "has no trial with a finite accuracy yet" in run("compare", "digits-mlp").stderr

    def test_best_prints_the_whole_configuration_and_the_checkpoints_place(self, sweep):
        output = run("best", "digits-mlp").stdout
        assert f"lr          {h.config(2)['lr']!r}" in output
        assert "accuracy    0.9700 at epoch 1  +0.0200 over the baseline" in output
        data = json.loads(run("best", "digits-mlp", "--json").stdout)
        assert data["config"] == h.config(2)
        assert data["checkpoint"].endswith("runs/digits-mlp.1/trials/0002/checkpoint_1_1")

    def test_best_of_nothing(self, home):
        h.write(home, h.created())
        assert "no trial with a finite accuracy yet" in run("best", "digits-mlp", status=1).stderr

    def test_why(self, sweep):
        assert "stopped at epoch 1" in run("why", "digits-mlp.1/0001").stdout
        assert "is a number" not in run("why", "digits-mlp/1").stdout
        assert "does not name a trial" in run("why", "digits-mlp", status=2).stderr
        assert "has no trial 0009" in run("why", "digits-mlp/9", status=2).stderr

    def test_a_name_with_brackets_is_printed_as_it_is_on_a_terminal_too(self, home, monkeypatch):
        pytest.importorskip("rich")
        monkeypatch.setattr(sys, "stdout", terminal := Terminal())
        common.show_table(["a"], [["[bold]x[/bold] \\[y"]])
        assert "[bold]x[/bold]" in terminal.getvalue()


INTERRUPTED = [
    *h.created(trials=12),
    *h.trial(0, [0.90, 0.95], origin="baseline"),
    *h.trial(1, [0.80], end="stopped"),
    *h.trial(2, [0.97], end=None),
    *h.trial(3, [0.97], end=None, checkpoint=False),
    *h.trial(4, [], end=None),
    *(events.attempt_ended(number, attempt=1, outcome="interrupted", message="Ctrl-C") for number in (2, 3, 4)),
    events.session_ended(outcome="interrupted", reason="Ctrl-C"),
]


class TestSummary:
    def tell(self, capsys, home, told, outcome, reason):
        folder = h.write(home, told)
        done = SimpleNamespace(folder=folder, state=folder.load(), outcome=outcome, reason=reason, tracked=True)
        status = running.tell(done, False)
        return status, capsys.readouterr().err.splitlines()

    def test_an_interruption_counts_every_trial_and_says_where_each_is(self, capsys, home):
        status, lines = self.tell(capsys, home, INTERRUPTED, "interrupted", "Ctrl-C")
        assert status == 130
        assert lines[0] == (
            "interrupted: Ctrl-C. 3 interrupted "
            "(0002 at epoch 1; 0003 at epoch 1, no checkpoint; 0004 before the first epoch). "
            "Go on:  tunelab resume digits-mlp.1"
        )
        assert lines[1].startswith("5 trials in 0:")
        assert lines[1].endswith(": 1 completed, 1 stopped early, 3 interrupted")
        assert len(lines) == 2

    def test_only_kinds_that_occurred_are_counted_and_infeasible_ones_are_trials_too(self, capsys, home):
        told = [*h.created(trials=1), *h.trial(0, [0.9]), *h.trial(1, [], end="infeasible")]
        _, lines = self.tell(capsys, home, told, "finished", "all 1 trials have ended")
        assert lines[0].startswith("2 trials in ")
        assert lines[0].endswith(": 1 completed, 1 infeasible")

    def test_after_a_finished_sweep_the_next_steps_are_told(self, capsys, home):
        _, lines = self.tell(capsys, home, [*h.created(trials=1), *h.trial(0, [0.9])], "finished", "all 1 trials have ended")
        assert [line.split(maxsplit=1)[-1] for line in lines[1:2]] == ["tunelab compare digits-mlp"]
        assert lines[2].strip() == "tunelab export digits-mlp --to model/"

    def test_nothing_to_export_is_not_suggested(self, capsys, home):
        told = [*h.created(trials=1), *h.trial(0, [0.9], checkpoint=False)]
        assert "export" not in "".join(self.tell(capsys, home, told, "finished", "all 1 trials have ended")[1])

    def test_a_sweep_that_ends_before_its_budget_says_why(self, capsys, home):
        told = [*h.created(trials=9), *h.trial(0, [0.9])]
        _, lines = self.tell(capsys, home, told, "finished", "the searcher has nothing left to propose")
        assert lines[0] == "digits-mlp.1 ended before its budget of 9 trials: the searcher has nothing left to propose"


class TestResume:
    def test_fewer_trials_than_there_are_is_refused(self, home, sweep):
        told = run("resume", "digits-mlp", "--trials", "3", status=2).stderr
        assert told == "4 trials exist already; a total of 3 is fewer. Say 4 or more.\n"
        h.write(home, INTERRUPTED, "cut.1")
        assert "5 trials exist already" in run("resume", "cut", "--trials", "4", status=2).stderr

    def test_what_is_to_come_follows_from_the_budget_in_force(self):
        told = running.goes_on(h.state(INTERRUPTED), 7)
        assert told.startswith("digits-mlp.1: 2 ended stay; 0002 goes on from epoch 1; 0003 starts from the beginning; ")
        assert told.endswith("; 2 to come.")

    def test_a_trial_that_has_diverged_goes_on_from_before(self):
        nan = math.nan
        told = [*h.created(), *h.trial(0, [0.5, nan], end="failed"), *h.trial(1, [nan], end="failed")]
        state = h.state([*told, *h.trial(2, [0.5, nan], end=None), *h.trial(3, [0.5, nan, 0.6, nan], end="failed")])
        said = running.goes_on(state, 4, reopen=[0, 1, 3])
        assert "0000 goes on from epoch 1; 0001 starts from the beginning; 0002 goes on from epoch 1; 0003 " in said
        assert "0003 goes on from epoch 3" in said
        assert "0002 goes on from epoch 2" in running.goes_on(state, 4, patience=1)


class TestSweep:
    @pytest.fixture
    def unfinished(self, home):
        told = h.created(trials=12)
        told[0].data["facts"]["overrides"] = {"max_steps": 3, "sets": ["width=16"]}
        return h.write(home, [*told, events.session_ended(outcome="interrupted", reason="Ctrl-C")])

    @pytest.fixture
    def asked(self, monkeypatch):
        """On a terminal, where the default is taken."""
        asked = []
        monkeypatch.setattr(sys, "stdin", Terminal())
        monkeypatch.setattr(click, "confirm", lambda text, default, **_: asked.append(text) or default)
        return asked

    @pytest.mark.parametrize("changes", [{}, {"trials": 9}, {"max_steps": 3}, {"seed": 0, "sets": ["width=16"]}])
    def test_the_same_flags_go_on_with_it(self, unfinished, asked, changes):
        assert sweep_verb._decide(unfinished, None, changes) == "resume"
        assert asked == ["digits-mlp.1 of this experiment is unfinished (0 of 12). Go on with it?"]
        assert sweep_verb._decide(unfinished, "resume", changes) == "resume"

    def test_other_flags_take_another_sweep_which_is_not_started_unasked(self, unfinished, asked):
        changes = {"seed": 1, "max_steps": 3, "sets": ["width=17"]}
        with pytest.raises(UnfinishedSweepError, match=r"Nothing was started. To go on with it:  tunelab resume digits-mlp.1"):
            sweep_verb._decide(unfinished, None, changes)
        assert asked == [
            "digits-mlp.1 of this experiment is unfinished (0 of 12) and was started with other flags (--seed, --set). "
            "Start another?"
        ]
        with pytest.raises(BadInputError, match=r"other flags \(--seed, --set\).*--new"):
            sweep_verb._decide(unfinished, "resume", changes)

    def test_another_is_started_when_that_is_the_answer(self, unfinished, asked, monkeypatch):
        monkeypatch.setattr(click, "confirm", lambda *_, **__: True)
        assert sweep_verb._decide(unfinished, None, {"seed": 1}) == "new"

    def test_without_a_terminal_both_ways_are_told(self, unfinished, monkeypatch):
        monkeypatch.setattr(sys, "stdin", io.StringIO())
        with pytest.raises(UnfinishedSweepError, match=r"\(--seed\).*tunelab resume digits-mlp.1.*--new"):
            sweep_verb._decide(unfinished, None, {"seed": 1})

    @pytest.mark.parametrize("name", ["digits-mlp", "digits-mlp.1"])
    def test_a_sweeps_name_in_place_of_a_file(self, sweep, name):
        assert run("sweep", name, status=2).stderr.endswith(f"\nA sweep of this name exists: tunelab resume {name}\n")
        assert "A sweep of this name" not in run("sweep", "digits", status=2).stderr


CHECKED = """
from tunelab import FIFO, Budget, Experiment, Export, Float, Objective, Random

class Trainer:
    train_loop_config = {"epochs": 20}
    def fit(self): ...

experiment = Experiment(
    name="toy", trainer=Trainer(), space={"lr": Float(1e-4, 1e-1, log=True)}, searcher=Random(), scheduler=FIFO(),
    budget=Budget(trials=4), objective=Objective("accuracy", step="epoch", last_step="epochs"), export=EXPORT,
)
"""
EXPORT = 'Export(build=lambda config: None, weights=("state.pt", "model"), example=lambda: [])'


@pytest.mark.parametrize(
    ("export", "flags", "status"),
    [("None", [], 0), (EXPORT, ["--no-export"], 0), (EXPORT, [], 1)],
    ids=["none", "flag", "asked"],
)
def test_check_of_a_loop_without_checkpoints_fails_only_where_one_is_needed(home, tmp_path, monkeypatch, export, flags, status):
    (tmp_path / "toy.py").write_text(CHECKED.replace("EXPORT", export))
    monkeypatch.setattr(sys, "path", list(sys.path))
    state = h.state([*h.created(), *h.trial(0, [0.9], end=None, checkpoint=False)])
    done = SimpleNamespace(state=state, outcome="interrupted", reason=FAR_ENOUGH, folder=None)
    monkeypatch.setattr("tunelab.engine.sweeping.start", lambda plan: done)
    monkeypatch.setattr("tunelab.engine.ray.cluster.connected", lambda *_: contextlib.nullcontext())
    result = run("check", "toy.py", *flags, status=status)
    assert "nothing could be resumed or exported" in result.output
    assert ("reports accuracy at epoch 1\n--  no checkpoint" in result.stdout) is (status == 0)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def follow(watcher, told) -> SweepState:
    """Show the events to a watcher as a driver would."""
    state = SweepState()
    for event in h.stored(told):
        state.apply(event)
        watcher.changed(state, event)
    return state


class TestWatch:
    TOLD = (
        *h.created(trials=4),
        *h.trial(0, [0.90, 0.95], origin="baseline"),
        *h.trial(1, [0.80], end="stopped", reason="7th of 10 at rung 1"),
        *h.trial(2, [0.97], end=None),
    )

    @pytest.mark.parametrize(
        ("elapsed", "ended", "trials", "limit", "left"),
        [
            (100, 10, 32, None, 220),
            (100, 10, 32, 150, 50),
            (100, 10, 10, None, 0),
            (100, 1, 32, None, None),
            (100, 0, 32, 600, None),
            (100, 1, 32, 600, None),
            (700, 10, 32, 600, 0),
            (0, 0, 32, None, None),
        ],
    )
    def test_the_estimate(self, elapsed, ended, trials, limit, left):
        assert estimate_left_s(elapsed, ended, trials, limit) == left

    def test_table_and_footer(self):
        view = View()
        state = SweepState()
        for event in h.stored(self.TOLD):
            state.apply(event)
            view.take(state, event)
        lines = table(view, state, 10)
        assert [line.split()[:4] for line in lines[1:]] == [
            ["0000", "done", "2/20", "0.9500"],
            ["0001", "stopped", "1/20", "0.8000"],
            ["0002", "running", "1/20", "0.9700"],
        ]
        assert lines[1].endswith("baseline")
        assert lines[2].endswith("7th of 10 at rung 1")
        shown = footer(view, state, now=state.last_at)
        assert shown == "best 0002 0.9700@1 | 2 of 4 ended, 1 stopped early | 0:14 gone, about 0:14 left"

    def test_running_trials_come_first_when_there_is_little_room(self):
        view, state = View(), SweepState()
        for event in h.stored(self.TOLD):
            state.apply(event)
            view.take(state, event)
        assert [line.split()[0] for line in table(view, state, 2)[1:]] == ["0001", "0002"]
        assert [line.split()[0] for line in table(view, state, 1)[1:]] == ["0002"]

    def test_a_resumed_sweeps_past_is_shown_from_the_first_event_on(self):
        told = list(h.stored([*self.TOLD, h.session()]))
        state = SweepState()
        for event in told:
            state.apply(event)
        view = View()
        view.take(state, told[-1])
        assert (view.ended, view.stopped, list(view.running)) == (2, 1, [])
        assert view.best(state) == "best 0002 0.9700@1"

    def test_interrupted_trials_stay_in_the_table_and_nothing_is_left_after_the_end(self):
        view, state = View(), SweepState()
        for event in h.stored(INTERRUPTED):
            state.apply(event)
            view.take(state, event)
        lines = table(view, state, 10)
        assert [line.split()[:2] for line in lines[1:]] == [
            ["0000", "done"], ["0001", "stopped"], ["0002", "interrupted"], ["0003", "interrupted"], ["0004", "interrupted"],
        ]  # fmt: skip
        assert "left" not in footer(view, state, now=state.last_at)

    def test_what_does_not_fit_ends_in_an_ellipsis(self):
        assert cut("needed 0.9422", 13) == "needed 0.9422"
        assert cut("needed 0.9422", 12) == "needed 0.94…"
        assert cut("needed 0.9422", 8) == "needed…"

    def test_a_narrow_terminal_cuts_rows_and_wraps_sentences_at_words(self, monkeypatch):
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "50")
        stream = Terminal()
        with LiveTable(stream, clock=lambda: 0.0) as watcher:
            follow(watcher, self.TOLD)
            watcher.say("stopping at the next report; again to stop now, or wait until it is done")
        lines = stream.getvalue().replace("\r", "\n").splitlines()
        assert all(len(line) < 50 for line in lines if line.startswith("000"))
        assert any(line.startswith("0001") and line.endswith("…") for line in lines)
        assert any(line.rstrip().endswith("again to stop now, or") for line in lines)

    def test_the_last_table_leaves_the_footer_to_the_summary(self, monkeypatch):
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "100")
        stream = Terminal()
        with LiveTable(stream, clock=lambda: 0.0) as watcher:
            follow(watcher, self.TOLD)
        assert "0002" in stream.getvalue()
        assert "ended" not in stream.getvalue()

    def test_plain_lines_leave_the_last_footer_to_the_summary(self):
        stream = io.StringIO()
        with PlainLines(stream) as watcher:
            follow(watcher, [*h.created(trials=2), *h.trial(0, [0.9]), *h.trial(1, [0.8])])
        lines = stream.getvalue().splitlines()
        assert "| 1 of 2 ended |" in lines[2].replace("best 0000 0.9000@1 ", "")
        assert lines[-1] == "0001 completed at epoch 1: accuracy 0.8000"

    @pytest.mark.parametrize("last", [True, False])
    def test_plain_lines_tell_a_failure_once(self, last):
        stream = io.StringIO()
        told = [
            *h.created(),
            *h.trial(0, [], end=None),
            events.attempt_ended(0, attempt=1, outcome="failed", failure="no report", message="it reported nothing"),
            *([events.finished(0, status="failed", reason="no report: it reported nothing")] if last else []),
        ]
        with PlainLines(stream, clock=lambda: 1_000.0) as watcher:
            follow(watcher, told)
        (line,) = [line for line in stream.getvalue().splitlines() if "it reported nothing" in line]
        assert line.startswith("0000 failed (no report" if last else "0000 attempt 1 no report")

    def test_the_best_follows_failures_and_deletions(self):
        told = [
            *self.TOLD,
            events.attempt_ended(2, attempt=1, outcome="failed"),
            events.finished(2, status="failed", reason="x"),
        ]
        view, state = View(), SweepState()
        for event in h.stored(told):
            state.apply(event)
            view.take(state, event)
            view.best(state)
        assert view.best(state) == "best 0000 0.9500@2"
        assert (view.ended, view.failed) == (3, 1)

    def test_a_late_event_of_an_ended_trial_does_not_count_it_twice(self):
        told = [*self.TOLD, events.checkpoint_deleted(0, checkpoint="0000/checkpoint_1_1")]
        view, state = View(), SweepState()
        for event in h.stored(told):
            state.apply(event)
            view.take(state, event)
        assert view.ended == 2

    def test_plain_lines_tell_starts_and_ends(self):
        stream = io.StringIO()
        with PlainLines(stream, clock=lambda: 1_012.0) as watcher:
            follow(watcher, self.TOLD)
            watcher.say("2 trials at a time")
        lines = stream.getvalue().splitlines()
        assert lines[0] == "sweep digits-mlp.1: 4 trials, tpe, asha, seed 0"
        assert lines[1].startswith("0000 starts: baseline; lr 1.0e-4 width 16 batch_size 16")
        assert lines[2].startswith("0000 completed at epoch 2: accuracy 0.9500 (baseline) | best 0000 0.9500@2 | 1 of 4 ended")
        assert lines[4].startswith("0001 stopped at epoch 1: accuracy 0.8000 (7th of 10 at rung 1) | ")
        assert lines[-1] == "2 trials at a time"
        assert len(lines) == 7

    def test_plain_lines_tell_retries_and_reports_when_asked(self):
        stream = io.StringIO()
        told = [
            *h.created(),
            *h.trial(0, [0.5], end=None),
            events.attempt_ended(0, attempt=1, outcome="failed", failure="lost", message="worker 1 was killed"),
            events.started(0, attempt=2, checkpoint="c", from_step=1),
        ]
        with PlainLines(stream, verbose=True) as watcher:
            follow(watcher, told)
        assert stream.getvalue().splitlines()[2:] == [
            "0000 epoch 1: accuracy 0.5000",
            "0000 attempt 1 lost: worker 1 was killed",
            "0000 starts again, attempt 2, from epoch 1: lr 1.0e-4 width 16 batch_size 16",
        ]

    def test_a_terminal_gets_a_table_and_anything_else_gets_lines(self, monkeypatch):
        monkeypatch.setenv("TERM", "xterm")
        assert isinstance(make_watcher(Terminal()), LiveTable)
        assert isinstance(make_watcher(io.StringIO()), PlainLines)
        monkeypatch.setenv("TERM", "dumb")
        assert isinstance(make_watcher(Terminal()), PlainLines)

    def test_the_live_table_is_drawn_on_its_stream_alone_and_at_most_four_times_a_second(self, monkeypatch, capsys):
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "100")
        stream, now = Terminal(), [0.0]
        draws = []
        with LiveTable(stream, clock=lambda: now[0]) as watcher:
            original = watcher._draw
            watcher._draw = lambda **how: (draws.append(now[0]), original(**how))
            state = SweepState()
            for event in h.stored(self.TOLD):
                state.apply(event)
                now[0] += 0.1
                watcher.changed(state, event)
            watcher.say("stopping at the next report")
        assert all(b - a >= 0.25 for a, b in pairwise(draws[:-1]))
        assert "best 0000 0.9" in stream.getvalue()
        assert "stopping at the next report" in stream.getvalue()
        assert capsys.readouterr().out == ""

    def test_ten_thousand_trials_cost_the_driver_little(self):
        view, state = View(), SweepState()
        for event in h.stored([*h.created(trials=20_000), *(e for n in range(3_000) for e in h.trial(n, [n / 3_000]))]):
            state.apply(event)
            view.take(state, event)
        assert view.best(state) == "best 2999 0.9997@1"
        assert len(table(view, state, 30)) == 31


def test_the_environment_is_not_changed_by_importing_the_command_line():
    code = "import os; before = dict(os.environ); import tunelab.cli; print(before == dict(os.environ))"
    assert python(code).stdout == "True\n"
