"""What follows from each class of failure: the table, an experiment's changes to it, and the conductor that goes by it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.unit.histories import config, created, stored, write
from tests.unit.test_conductor import Clock, Rig, experiment
from tunelab import ASHA, TPE, Budget, OnFailure, Retention
from tunelab.analysis.why import why
from tunelab.cli.show import command as show
from tunelab.core.failures import RULES, Breaker, Failure, is_out_of_memory, rules, signature
from tunelab.core.select import best
from tunelab.core.trial import Attempt, Status, Trial
from tunelab.engine.description import describe, difference, harmless_difference
from tunelab.engine.lineup import Lineup
from tunelab.engine.memory import kernel_kills
from tunelab.errors import InvalidExperimentError
from tunelab.journal import events
from tunelab.trackers.projection import Projection


@pytest.fixture
def make(tmp_path):
    def rig(max_failures=0, clock=None, **parts):
        return Rig(tmp_path / "journal.sqlite", experiment(**parts), max_failures, clock)

    return rig


def fail(rig, failure, number=0, message="something", details=""):
    rig.conductor.failed(number, failure, message, details)
    return rig.trial(number)


# ---- the table -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "retries", "ends_as"),
    [
        (Failure.USER_ERROR, 2, Status.FAILED),  # max_failures is 2 below
        (Failure.INFEASIBLE, 0, Status.INFEASIBLE),
        (Failure.UNSUPPORTED, 0, Status.FAILED),
        (Failure.DIVERGED, 0, Status.FAILED),
        (Failure.OUT_OF_MEMORY, 1, Status.INFEASIBLE),
        (Failure.LOST, 5, Status.FAILED),
        (Failure.PREEMPTED, 100, Status.FAILED),
        (Failure.HUNG, 1, Status.FAILED),
        (Failure.RESTART_IGNORED, 0, Status.FAILED),
        (Failure.NO_REPORT, 0, Status.FAILED),
        (Failure.BAD_REPORT, 0, Status.FAILED),
    ],
)
def test_each_class_is_retried_as_often_as_the_table_says_and_then_ends(make, failure, retries, ends_as):
    rig = make(max_failures=2)
    for attempt in range(1, retries + 2):
        launch = rig.conductor.next_launch()
        assert (launch.trial, launch.attempt) == (0, attempt)
        trial = fail(rig, failure)
    assert trial.status is ends_as and trial.reason == f"{failure.value}: something"
    assert rig.conductor.next_launch().trial == 1


def test_the_table_has_a_rule_for_every_class():
    assert set(RULES) == set(Failure)


def test_retries_of_one_class_do_not_use_up_those_of_another(make):
    rig = make(max_failures=1)
    for failure in (Failure.LOST, Failure.HUNG, Failure.PREEMPTED, Failure.USER_ERROR, Failure.LOST):
        rig.conductor.next_launch()
        assert fail(rig, failure).status is Status.RETRYING
    rig.conductor.next_launch()
    assert fail(rig, Failure.HUNG).status is Status.FAILED


# ---- an experiment's changes to it -----------------------------------------------------------------------------------


def test_what_an_experiment_says_stands_in_place_of_the_tables_word():
    table = rules({"lost": OnFailure(retries=9), "hung": OnFailure(then="infeasible"), "diverged": OnFailure(patience=3)}, 4)
    assert table[Failure.LOST] == replace(RULES[Failure.LOST], retries=9)
    assert table[Failure.HUNG] == replace(RULES[Failure.HUNG], then="infeasible")
    assert table[Failure.DIVERGED] == replace(RULES[Failure.DIVERGED], patience=3)
    assert table[Failure.USER_ERROR].retries == 4
    assert rules({"user error": OnFailure(retries=0)}, 4)[Failure.USER_ERROR].retries == 0
    assert table[Failure.OUT_OF_MEMORY].alone


def test_all_that_is_wrong_with_on_failure_is_told_at_once():
    wrong = {
        "out of memroy": OnFailure(),
        "lost": 3,
        "hung": OnFailure(retries=-2, then="stop"),
        "no report": OnFailure(patience=2),
        "disk full": OnFailure(retries=1),
        "diverged": OnFailure(patience=-1),
    }
    with pytest.raises(InvalidExperimentError) as caught:
        experiment(on_failure=wrong, alone_wait_s=-1)
    told = caught.value.problems
    assert told[0].startswith(
        "on_failure: No failure class is called 'out of memroy'. Did you mean 'out of memory'? Known: user"
    )
    assert told[1:] == (
        "on_failure['lost'] needs OnFailure(...), got 3.",
        "on_failure['hung'] needs retries >= 0, -1 for no limit, or None, got -2.",
        "on_failure['hung'] needs then to be one of 'failed', 'infeasible', 'stop sweep', or None, got 'stop'.",
        "on_failure['no report'] takes no patience: only 'diverged' does.",
        "on_failure cannot change 'disk full': a full disk always interrupts the sweep, and its resume goes on.",
        "on_failure['diverged'] needs patience >= 0 (reports in a row), got -1.",
        "alone_wait_s needs a time >= 0 in seconds, got -1.",
    )
    with pytest.raises(InvalidExperimentError, match="on_failure needs a dictionary such as"):
        experiment(on_failure=OnFailure())


def test_a_change_of_on_failure_is_told_at_resume_and_needs_no_amendment():
    before, after = (describe(experiment(on_failure={"diverged": OnFailure(patience=n)}, alone_wait_s=n)) for n in (0, 3))
    assert difference(before, after) == []
    assert harmless_difference(before, after) == ["on_failure: diverged: patience was 0, is 3", "alone_wait_s was 0, is 3"]


def test_a_failure_can_be_made_to_stop_the_sweep(make):
    rig = make(on_failure={"lost": OnFailure(retries=1, then="stop sweep")})
    for _ in range(2):
        assert not rig.conductor.stopping
        rig.conductor.next_launch()
        fail(rig, Failure.LOST)
    assert rig.trial().status is Status.FAILED
    assert rig.conductor.end() == "aborted" and rig.conductor.state.sessions[-1].reason == "0000: lost: something"


def test_a_failure_can_be_made_infeasible_and_then_uses_up_no_budget(make):
    rig = make(on_failure={"hung": OnFailure(retries=0, then="infeasible")}, budget=Budget(trials=1))
    rig.conductor.next_launch()
    assert fail(rig, Failure.HUNG).status is Status.INFEASIBLE
    assert rig.conductor.next_launch().trial == 1


# ---- diverged --------------------------------------------------------------------------------------------------------


def test_so_many_diverged_reports_in_a_row_are_put_up_with(make):
    rig = make(on_failure={"diverged": OnFailure(patience=2)})
    rig.conductor.next_launch()
    scores = [0.1, math.nan, math.inf, 0.2, math.nan, math.nan]
    assert all(rig.report(0, epoch, score) for epoch, score in enumerate(scores, 1))
    assert not rig.report(0, 7, math.nan)
    assert rig.trial().reason == "diverged: score is NaN at epoch 7" and rig.trial().attempt == 1


def test_patience_goes_on_counting_after_a_resume(make):
    rig = make(on_failure={"diverged": OnFailure(patience=2)})
    rig.conductor.next_launch()
    assert rig.report(0, 1, math.nan) and rig.report(0, 2, math.nan)
    resumed = rig.again()
    assert resumed.conductor.next_launch().from_step == 2
    assert not resumed.report(0, 3, math.nan)


def test_a_report_that_is_put_up_with_is_never_best_however_good_its_objective(make):
    rig = make(on_failure={"diverged": OnFailure(patience=9)}, retention=Retention(latest_of_trial=0))
    rig.conductor.next_launch()
    rig.report(0, 1, 0.5)
    name = "0000/checkpoint_1_2"
    assert rig.conductor.reported(0, {"epoch": 2, "score": 0.9, "loss": math.nan}, name)
    rig.conductor.completed(0)
    assert rig.trial().status is Status.COMPLETED
    found = best(rig.conductor.state.trials.values(), "max")
    assert found.report.step == 1 and math.isnan(rig.trial().last.value)
    assert rig.trial().last.metrics["score"] == 0.9, "what was reported is kept"
    assert name in rig.deleted


def test_a_report_that_is_put_up_with_ranks_worst_at_its_rung_and_the_rung_goes_on_working(make):
    rig = make(on_failure={"diverged": OnFailure(patience=9)}, scheduler=ASHA(first_rung=1, reduction=2))
    for _ in range(3):
        rig.conductor.next_launch()
    assert not rig.conductor.reported(0, {"epoch": 1, "score": 99.0, "loss": math.nan}, None)
    assert rig.trial(0).status is Status.STOPPED
    assert rig.report(1, 1, 0.1), "better than the diverged one"
    assert not rig.report(2, 1, 0.05)


def test_a_diverged_trial_that_is_retried_goes_on_from_before_it_diverged(make):
    rig = make(on_failure={"diverged": OnFailure(retries=1)})
    rig.conductor.next_launch()
    rig.report(0, 1, 0.9)
    rig.report(0, 2, 0.2)  # not its best, and no longer its latest once it has diverged
    assert not rig.report(0, 3, math.nan)
    assert rig.conductor.next_launch().from_step == 2
    assert not rig.report(0, 3, math.nan)
    assert rig.trial().status is Status.FAILED


def test_the_searcher_is_told_that_a_diverged_trial_is_worse_than_any(make):
    rig = make()
    rig.conductor.next_launch()
    rig.conductor.reported(0, {"epoch": 1, "score": 0.9, "loss": math.nan}, None)
    assert rig.trial().status is Status.FAILED and math.isnan(rig.trial().last.value)


# ---- out of memory ---------------------------------------------------------------------------------------------------


def test_a_trial_out_of_memory_is_tried_again_alone(make):
    rig = make(budget=Budget(trials=6))
    for _ in range(3):
        rig.conductor.next_launch()
    fail(rig, Failure.OUT_OF_MEMORY)
    assert rig.said == [
        "0000 ran out of memory: it is tried again alone, once 2 other trials have ended, at the latest in 600 s"
    ]
    assert rig.conductor.next_launch() is None, "1 and 2 still run"
    rig.report(1, 1, 0.5)
    rig.conductor.completed(1)
    assert rig.conductor.next_launch() is None and not rig.conductor.exhausted
    rig.report(2, 1, 0.5)
    rig.conductor.completed(2)
    launch = rig.conductor.next_launch()
    assert (launch.trial, launch.attempt, launch.alone) == (0, 2, True)
    assert rig.conductor.next_launch() is None, "it is to be alone"
    rig.report(0, 1, 0.5)
    rig.conductor.completed(0)
    launch = rig.conductor.next_launch()
    assert launch.trial == 3 and not launch.alone


def test_the_others_are_held_up_for_so_long_and_no_longer(make):
    clock = Clock()
    rig = make(alone_wait_s=60.0, clock=clock)
    for _ in range(2):
        rig.conductor.next_launch()
    fail(rig, Failure.OUT_OF_MEMORY)
    for _ in range(6):
        assert rig.conductor.next_launch() is None
        clock.now += 10
    launch = rig.conductor.next_launch()
    assert (launch.trial, launch.attempt, launch.alone) == (0, 2, False)
    assert rig.conductor.next_launch().trial == 2, "beside the others, so nothing waits for it"


def test_a_trial_that_ran_out_of_memory_is_alone_in_later_attempts_too_also_after_a_resume(make):
    rig = make()
    rig.conductor.next_launch()
    fail(rig, Failure.OUT_OF_MEMORY)
    rig.conductor.next_launch()
    rig.report(0, 1, 0.5)
    fail(rig, Failure.LOST)
    assert rig.conductor.next_launch().alone
    resumed = rig.again()
    launch = resumed.conductor.next_launch()
    assert (launch.trial, launch.attempt, launch.alone) == (0, 4, True)
    fail(resumed, Failure.OUT_OF_MEMORY)
    assert resumed.trial().status is Status.INFEASIBLE


def test_a_lineup_takes_trials_in_order_and_those_that_are_to_be_alone_first():
    clock = Clock()
    lineup = Lineup(10.0, clock)
    assert not lineup and lineup.take() is None
    assert lineup.add(1, alone=False) == 0
    lineup.started(0)
    assert lineup.add(2, alone=True) == lineup.add(3, alone=True) == 1
    assert lineup.holds()
    lineup.ended(0)
    assert not lineup.holds()
    assert lineup.take() == 2 and lineup.alone == 2
    lineup.started(2)
    clock.now += 1000
    assert lineup.holds(), "that it runs alone has no limit"
    lineup.ended(2)
    assert lineup.take() == 3
    lineup.started(3)
    lineup.ended(3)
    assert lineup.take() == 1 and lineup.alone is None and not lineup


class OutOfMemoryError(RuntimeError):
    """Called as Torch's is."""


class XlaRuntimeError(RuntimeError):
    pass


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (MemoryError(), True),
        (OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),  # Torch before 1.13
        (RuntimeError("[enforce fail at alloc_cpu.cpp:119] . DefaultCPUAllocator: can't allocate memory: 64 bytes"), True),
        (XlaRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 64 bytes"), True),
        (OSError(12, "Cannot allocate memory"), True),
        (OSError(28, "No space left on device"), False),
        (ValueError("CUDA out of memory"), False),
        (RuntimeError("memory"), False),
    ],
)
def test_lack_of_memory_is_recognised_by_what_is_raised(error, told):
    assert is_out_of_memory(error) is told


def test_the_kernels_count_of_killed_processes(tmp_path):
    file = tmp_path / "vmstat"
    assert kernel_kills(file) is None
    file.write_text("nr_free_pages 17\noom_kill 3\nzone 4\n")
    assert kernel_kills(file) == 3
    file.write_text("nr_free_pages 17\n")
    assert kernel_kills(file) is None


# ---- preempted -------------------------------------------------------------------------------------------------------


def test_a_trial_whose_node_is_about_to_go_ends_with_its_next_checkpoint_and_goes_on_from_it(make):
    rig = make()
    rig.conductor.next_launch()
    rig.report(0, 1, 0.1)
    rig.conductor.preempted(0)
    assert rig.report(0, 2, 0.2, checkpoint=False), "nothing is saved yet"
    assert not rig.report(0, 3, 0.3)
    assert rig.trial().attempts[0].failure == "preempted"
    assert rig.trial().attempts[0].message == "its node is being taken away; it has a checkpoint of epoch 3"
    launch = rig.conductor.next_launch()
    assert (launch.attempt, launch.from_step) == (2, 3)
    assert rig.report(0, 4, 0.4), "the next attempt is somewhere else"


def test_a_preempted_trial_that_is_at_its_last_step_is_let_finish(make):
    rig = make()
    rig.conductor.next_launch()
    rig.conductor.preempted(0)
    assert rig.report(0, 4, 0.1)
    rig.conductor.completed(0)
    assert rig.trial().status is Status.COMPLETED


@pytest.mark.parametrize("failure", [Failure.LOST, Failure.USER_ERROR])
def test_what_fails_while_its_node_goes_away_was_preempted(make, failure):
    rig = make()
    rig.conductor.next_launch()
    rig.conductor.preempted(0)
    trial = fail(rig, failure, message="worker 1 is gone with its node")
    assert trial.attempts[0].failure == "preempted" and trial.status is Status.RETRYING
    rig.conductor.next_launch()
    assert fail(rig, failure).attempts[1].failure == failure.value


# ---- hopeless sweeps -------------------------------------------------------------------------------------------------

TRACEBACK = """Traceback (most recent call last):
  File "/ray/train.py", line {ours}, in run
    loop()
  File "/home/me/train.py", line {line}, in train
    load(config)
  File "/home/me/data.py", line 7, in load
    raise ValueError(path)
ValueError: {message}"""


def user_error(rig, number, message, line=30):
    rig.conductor.next_launch()
    fail(rig, Failure.USER_ERROR, number, message, TRACEBACK.format(ours=1, line=line, message=message))


def test_the_same_traceback_in_the_first_trials_stops_the_sweep_whatever_numbers_are_in_its_message(make):
    rig = make()
    for number in range(3):
        assert not rig.conductor.stopping
        user_error(rig, number, f"ValueError: no batch {number} in /tmp/ray/a{number}f-{number}, process 0x{number:x}")
    assert rig.conductor.end() == "aborted"
    reason = rig.conductor.state.sessions[-1].reason
    assert reason.startswith("the first 3 trials failed with the same error: ValueError: no batch 2")


def test_the_same_message_from_elsewhere_or_another_one_from_there_does_not(make):
    rig = make(budget=Budget(trials=9))
    for number, (message, line) in enumerate([("a", 30), ("a", 31), ("a", 30), ("b", 30), ("a", 30)]):
        user_error(rig, number, message, line)
    assert not rig.conductor.stopping


def test_nor_does_it_after_a_trial_that_went_well(make):
    rig = make(budget=Budget(trials=9))
    rig.conductor.next_launch()
    rig.report(0, 4, 1.0)
    rig.conductor.completed(0)
    for number in range(1, 5):
        user_error(rig, number, "a")
    assert not rig.conductor.stopping


def test_what_is_wrong_with_single_configurations_does_not_count_either_way(make):
    rig = make(budget=Budget(trials=9))
    for number, failure in enumerate([Failure.INFEASIBLE, None, Failure.INFEASIBLE, None, None]):
        rig.conductor.next_launch()
        if failure is None:
            rig.report(number, 1, math.nan)
        else:
            fail(rig, failure, number)
    assert not rig.conductor.stopping
    for number in range(5, 8):
        assert not rig.conductor.stopping
        user_error(rig, number, "a")
    assert rig.conductor.stopping


def test_a_resumed_sweep_remembers_how_its_first_trials_failed_until_they_are_tried_again(make, tmp_path):
    rig = make(budget=Budget(trials=9))
    for number in range(2):
        user_error(rig, number, "a")
    rig = rig.again()
    user_error(rig, 2, "a")
    assert rig.conductor.stopping
    rig.conductor.end()
    rig = rig.again()
    user_error(rig, 3, "a")
    assert rig.conductor.stopping, "the fourth that failed alike, and nothing has been repaired"


def test_a_sweep_in_which_nothing_is_feasible_does_not_go_on_for_ever(make):
    rig = make()
    for number in range(100):
        assert not rig.conductor.stopping
        rig.conductor.next_launch()
        fail(rig, Failure.INFEASIBLE, number, "too wide")
    assert rig.conductor.end() == "aborted"
    reason = rig.conductor.state.sessions[-1].reason
    assert reason.startswith("100 trials in a row were infeasible, the last one because of this: too wide. Narrow the space")


def test_signatures_of_stacks_and_of_dead_processes_go_by_their_message_alone():
    hung = [
        Attempt(1, failure="hung", message="no report for 2 s", details=TRACEBACK.format(ours=n, line=n, message=""))
        for n in (1, 2)
    ]
    assert signature(hung[0]) == signature(hung[1])


def test_a_trial_of_which_only_the_end_is_known_breaks_nothing():
    trial = Trial(0, {}, 0)
    trial.status = Status.FAILED
    assert Breaker().ended(trial) is None


# ---- what the searcher is told ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "reports", "told"),
    [
        (Failure.USER_ERROR, [0.1, 0.2], ("PRUNED", 0.2, None)),
        (Failure.USER_ERROR, [], ("COMPLETE", 0.0, {"worst": 1.0})),
        (Failure.INFEASIBLE, [0.1], ("COMPLETE", 0.0, {"worst": 2.0})),
        (Failure.OUT_OF_MEMORY, [0.1], ("COMPLETE", 0.0, {"worst": 2.0})),
        (Failure.DIVERGED, [0.1, math.nan], ("COMPLETE", 0.0, {"worst": 1.0})),
    ],
)
def test_tpe_takes_each_end_for_what_it_is(make, failure, reports, told):
    import optuna

    from tunelab.searchers.optuna import _distribution, _study_trials

    rig = make(on_failure={"out of memory": OnFailure(retries=0)}, searcher=TPE())
    rig.conductor.next_launch()
    for epoch, score in enumerate(reports, 1):
        rig.report(0, epoch, score)
    if failure is not Failure.DIVERGED:
        fail(rig, failure)
    space = rig.experiment.space
    distributions = {name: _distribution(optuna, parameter) for name, parameter in space.parameters.items()}
    (trial,) = _study_trials(optuna, space, distributions, list(rig.conductor.state.trials.values()))
    worst = trial.constraints if hasattr(trial, "constraints") else None
    value = trial.value if trial.state.name == "COMPLETE" else list(trial.intermediate_values.values())[-1]
    assert (trial.state.name, value) == told[:2]
    assert told[2] is None or worst == told[2]


# ---- what is shown of it ---------------------------------------------------------------------------------------------


def failed_twice():
    """A trial that was lost, and then ran out of memory twice."""
    told = [events.proposed(0, config=config(0), seed=0, origin="tpe")]
    for attempt, failure in enumerate(["lost", "out of memory", "out of memory"], 1):
        told.append(events.started(0, attempt=attempt, checkpoint=None, from_step=None))
        told.append(
            events.attempt_ended(
                0, attempt=attempt, outcome="failed", failure=failure, message="MemoryError", details="line\nend"
            )
        )
    return [*created(), *told, events.finished(0, status="infeasible", reason="out of memory: MemoryError")]


def test_show_tells_the_class_of_each_failure_and_what_followed(tmp_path):
    write(tmp_path, failed_twice())
    shown = CliRunner().invoke(show, ["digits-mlp.1", "--home", str(tmp_path)], catch_exceptions=False).output
    assert "tried again after lost and out of memory, out of memory: MemoryError" in shown
    assert "0000 infeasible in attempt 3: out of memory: MemoryError\n  line\n  end" in shown
    told = CliRunner().invoke(show, ["digits-mlp.1/0", "--home", str(tmp_path), "--json"], catch_exceptions=False).output
    failures = json.loads(told)["failures"]
    assert [(one["failure"], one["then"]) for one in failures] == [
        ("lost", "retry"), ("out of memory", "retry"), ("out of memory", "infeasible"),
    ]  # fmt: skip


def test_why_tells_how_each_was_retried():
    told = why(stored(failed_twice()), 0)
    assert told[1].endswith("then lost: MemoryError (free retry)")
    assert told[2].endswith("then out of memory: MemoryError (retried alone)")
    assert told[3].endswith("then out of memory: MemoryError")


def test_mlflow_is_told_the_class_and_what_followed(tmp_path):
    projection = Projection(tmp_path)
    for event in stored(failed_twice()):
        projection.apply(event)
    tags = projection.take().runs[0].tags
    assert (tags["tunelab.failure"], tags["tunelab.status"], tags["tunelab.attempts"]) == ("out of memory", "infeasible", "3")
    assert tags["tunelab.attempt.1"] == "from nothing; failed: lost: MemoryError"


# ---- the documentation -----------------------------------------------------------------------------------------------

DOCS = Path(__file__).parents[2] / "docs" / "failures.md"


def test_the_documented_change_is_one_that_an_experiment_takes():
    block = DOCS.read_text().partition("```python\n")[2].partition("```")[0]
    scope = {"experiment": experiment()}
    exec(block, scope)
    assert scope["experiment"].on_failure["diverged"].patience == 3 and scope["experiment"].alone_wait_s == 1800


def test_the_documentation_names_every_class():
    table = DOCS.read_text().partition("| class |")[2].partition("## Provoked")[0]
    named = {line.split("|")[1].strip() for line in table.splitlines()[2:] if line.startswith("|")}
    assert named == {failure.value for failure in Failure}
