"""What is told of a sweep: comparison, importance, and a trial's story, from journals written by hand."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from pathlib import Path

import pytest

import tunelab
from tests.unit import histories as h
from tunelab.analysis import compare, fanova, text
from tunelab.analysis.importance import AT_LEAST, AT_MOST, common_step, importance, line
from tunelab.analysis.why import why
from tunelab.errors import UnknownNameError
from tunelab.journal import events


class TestText:
    @pytest.mark.parametrize(
        ("value", "shown"),
        [(0.97114, "0.9711"), (1.0, "1.0000"), (64.0, "64.0000"), (0.0, "0.0000"), (-0.5, "-0.5000"), (1.234e-4, "1.234e-4"),
         (1.5e7, "1.500e7"), (math.nan, "nan"), (math.inf, "inf"), (None, "")],
    )  # fmt: skip
    def test_metrics(self, value, shown):
        assert text.metric_text(value) == shown

    @pytest.mark.parametrize(
        ("value", "log", "shown"),
        [(0.08123, True, "8.1e-2"), (0.001, True, "1.0e-3"), (2.5, True, "2.5"), (0.15, False, "0.15"), (64, False, "64"),
         (64, True, "64"), ("adam", False, "adam"), (True, False, "true"), (None, False, "null"), ([1, 2], False, "[1, 2]"),
         (0.0, True, "0.0"), (1e-7, False, "1.0e-7"), (123456.0, False, "1.235e+05")],
    )  # fmt: skip
    def test_settings(self, value, log, shown):
        assert text.setting_text(value, log=log) == shown

    @pytest.mark.parametrize(
        ("seconds", "shown"),
        [(0, "0:00"), (7.4, "0:07"), (98, "1:38"), (59.9, "1:00"), (3725, "1:02:05"), (90061, "1 d 1:01:01"), (-3, "0:00")],
    )
    def test_spans_of_time(self, seconds, shown):
        assert text.span_text(seconds) == shown

    def test_whole_steps_have_no_decimals(self):
        assert [text.step_text(step) for step in (6, 6.0, 2.5, 1.9999999, 12_345_678)] == ["6", "6", "2.5", "2", "12345678"]

    def test_the_last_step_comes_from_the_trials_configuration_then_from_the_loops(self):
        state = h.state([*h.created(), *h.trial(0, [0.1]), *h.trial(1, [0.1], settings={"epochs": 7})])
        assert [text.last_step(state, trial) for trial in state.trials.values()] == [20, 7]

    def test_fixed_parameters_are_not_among_the_varied(self):
        space = {"parameters": [*h.SPACE["parameters"], {"name": "task", "type": "choice", "options": ["a"]}], "require": []}
        state = h.state(h.created(space=space))
        assert list(text.varied(state)) == ["lr", "width", "batch_size"]
        assert list(text.parameters(state)) == ["lr", "width", "batch_size", "task"]


class TestCompare:
    def test_the_best_come_first_with_their_gain_over_the_baseline(self):
        state = h.state(
            [*h.created(), *h.trial(0, [0.90, 0.95], origin="baseline"), *h.trial(1, [0.98, 0.97]), *h.trial(2, [0.5])]
        )
        rows = compare.rows(state)
        assert [(row.trial.number, row.report.value) for row in rows] == [(1, 0.98), (0, 0.95), (2, 0.5)]
        assert [row.gain for row in rows] == [pytest.approx(0.03), None, pytest.approx(-0.45)]
        assert [row.note for row in rows] == ["", "baseline", ""]

    def test_gain_is_positive_when_a_loss_falls(self):
        state = h.state([*h.created(mode="min"), *h.trial(0, [0.9], origin="baseline"), *h.trial(1, [0.7])])
        assert compare.rows(state)[0].gain == pytest.approx(0.2)
        assert text.gain_text(0.2) == "+0.2000"
        assert text.gain_text(-0.2) == "-0.2000"

    def test_the_baseline_is_added_when_it_is_not_among_the_top(self):
        state = h.state(
            [*h.created(), *h.trial(0, [0.1], origin="baseline"), *(e for n in (1, 2, 3) for e in h.trial(n, [n / 10 + 0.1]))]
        )
        assert [row.trial.number for row in compare.rows(state, top=2)] == [3, 2, 0]

    def test_the_value_shown_is_that_of_the_kept_checkpoint(self):
        told = [*h.created(), *h.trial(0, [0.5, 0.9, 0.7]), events.checkpoint_deleted(0, checkpoint="0000/checkpoint_1_2")]
        row = compare.rows(h.state(told))[0]
        assert (row.report.step, row.report.value, row.exportable) == (3, 0.7, True)

    def test_a_trial_without_checkpoint_says_so_and_comes_last(self):
        state = h.state([*h.created(), *h.trial(0, [0.9], checkpoint=False), *h.trial(1, [0.2]), *h.trial(2, [0.1], end=None)])
        assert [(row.trial.number, row.note) for row in compare.rows(state)] == [(1, ""), (2, "running"), (0, "no checkpoint")]

    def test_a_baseline_that_failed_gives_no_gain(self):
        state = h.state([*h.created(), *h.trial(0, [math.nan], origin="baseline", end="failed"), *h.trial(1, [0.2])])
        assert [(row.trial.number, row.gain) for row in compare.rows(state)] == [(1, None)]

    def test_a_sweep_of_one_trial_and_of_none(self):
        assert compare.rows(h.state(h.created())) == []
        rows = compare.rows(h.state([*h.created(), *h.trial(0, [0.3])]))
        assert len(rows) == 1
        assert compare.not_settled(h.state(h.created()), rows) is None

    def test_a_difference_within_the_best_ones_own_wobble_is_not_settled(self):
        close = h.state([*h.created(), *h.trial(0, [0.5, 0.91, 0.9, 0.91, 0.9]), *h.trial(1, [0.905])])
        assert compare.not_settled(close, compare.rows(close)) == (
            "not settled: 0000 and 0001 differ by 5.000e-3, no more than 0000's accuracy moves from one epoch to the next "
            "(0.0100)"
        )
        clear = h.state([*h.created(), *h.trial(0, [0.5, 0.91, 0.9, 0.91, 0.9]), *h.trial(1, [0.5])])
        assert compare.not_settled(clear, compare.rows(clear)) is None


class TestImportance:
    def sweep(self, number: int, value, *, seed: int = 0):
        """Trials whose objective is `value(config)` from epoch 2 on; two of three are stopped there."""
        told = h.created()
        rng = random.Random(seed)
        for n in range(number):
            config = {"lr": 10 ** rng.uniform(-4, -1), "width": rng.randrange(16, 257), "batch_size": rng.choice([16, 32, 64])}
            curve = [0.0, value(config), *([] if n % 3 else [rng.random()] * 18)]
            told += h.trial(n, curve, end="stopped" if n % 3 else "completed", settings=config)
        return h.state(told)

    def test_the_parameter_that_decides_gets_the_largest_share(self):
        found, reason = importance(self.sweep(40, lambda c: -((math.log10(c["lr"]) + 2.5) ** 2)))
        assert reason == ""
        assert next(iter(found.shares)) == "lr"
        assert found.shares["lr"] > 0.6
        assert sum(found.shares.values()) == pytest.approx(1)
        assert (found.trials, found.step) == (40, 2)

    def test_options_count_too(self):
        found, _ = importance(self.sweep(40, lambda c: {16: 0.1, 32: 0.9, 64: 0.5}[c["batch_size"]]))
        assert next(iter(found.shares)) == "batch_size"

    def test_shares_are_those_that_can_be_worked_out(self):
        """Over the whole space lr explains 0.45, width (1/2 log2 on [16, 256]) 0.333, batch_size 0.107 of the variance."""

        def value(c):
            return (math.log10(c["lr"]) + 2.5) ** 2 + math.log2(c["width"]) / 2 + {16: 0.1, 32: 0.9, 64: 0.5}[c["batch_size"]]

        found, _ = importance(self.sweep(AT_MOST, value))
        assert found.shares["lr"] == pytest.approx(0.51, abs=0.1)
        assert found.shares["width"] == pytest.approx(0.37, abs=0.1)
        assert found.shares["batch_size"] == pytest.approx(0.12, abs=0.1)

    def test_neither_unit_nor_sign_nor_size_of_the_objective_matters(self):
        plain = importance(self.sweep(30, lambda c: c["width"] / 256))[0].shares
        for scale in (-1.0, 1e-300, 1e300):
            scaled = importance(self.sweep(30, lambda c, scale=scale: scale * c["width"] / 256))[0].shares
            assert scaled == pytest.approx(plain, abs=0.01)  # ties are broken by rounding

    def test_values_closer_than_rounding_are_not_told_apart(self):
        columns = {"a": ([1.0, math.nextafter(1.0, 2)] * 8, None), "b": ([0.0, 0.0, 1.0, 1.0] * 4, None)}
        assert fanova.shares(columns, [0.0, 0.0, 1.0, 1.0] * 4)["b"] > 0.9

    def test_a_tree_in_which_nothing_counts_by_itself(self):
        columns = {"a": ([0.0, 0.0, 1.0, 1.0] * 8, None), "b": ([0.0, 1.0, 0.0, 1.0] * 8, 2)}
        assert sum(fanova.shares(columns, [0.0, 1.0, 1.0, 0.0] * 8).values()) == pytest.approx(1)
        assert fanova.shares(columns, [1.0] * 32) == {"a": 0.5, "b": 0.5}

    def test_it_agrees_with_optunas(self):
        pytest.importorskip("sklearn")
        import optuna

        rng = random.Random(0)
        rows = [{"a": rng.random(), "b": rng.random(), "c": rng.randrange(3)} for _ in range(150)]
        values = [2 * row["a"] ** 2 + row["b"] + (0.0, 0.5, 1.0)[row["c"]] for row in rows]
        ours = fanova.shares(
            {"a": ([r["a"] for r in rows], None), "b": ([r["b"] for r in rows], None), "c": ([float(r["c"]) for r in rows], 3)},
            values,
        )
        unit, kinds = optuna.distributions.FloatDistribution(0, 1), optuna.distributions.CategoricalDistribution(range(3))
        study = optuna.create_study()
        study.add_trials(
            optuna.trial.create_trial(params=row, distributions={"a": unit, "b": unit, "c": kinds}, value=value)
            for row, value in zip(rows, values, strict=True)
        )
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
        theirs = optuna.importance.get_param_importances(study, evaluator=evaluator)
        assert ours == pytest.approx(theirs, abs=0.12)

    def test_it_loads_neither_optuna_nor_scikit_learn(self):
        program = (
            "import sys; from tunelab.analysis import fanova; "
            "fanova.shares({'a': (list(range(9)), None)}, list(range(9))); print({'optuna', 'sklearn'} & {*sys.modules})"
        )
        root = Path(tunelab.__file__).parents[1]
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=root)
        assert done.stdout == "set()\n"

    def test_it_is_the_same_each_time(self):
        state = self.sweep(12, lambda c: c["width"] / 256)
        assert importance(state) == importance(state)

    def test_the_line_says_on_what_it_rests(self):
        shown = line(self.sweep(12, lambda c: c["width"] / 256))
        assert shown.startswith("importance: width ")
        assert shown.endswith("(fANOVA on 12 trials, at their highest common step: epoch 2)")

    def test_too_few_trials(self):
        found, reason = importance(self.sweep(AT_LEAST - 1, lambda c: c["lr"]))
        assert found is None
        assert reason == f"importance needs {AT_LEAST} trials with a finite value at a common epoch, there are {AT_LEAST - 1}"
        assert importance(h.state(h.created()))[0] is None

    def test_all_values_equal(self):
        assert importance(self.sweep(20, lambda c: 0.5))[1] == "all trials have the same value at epoch 2"

    def test_one_parameter_that_varies_has_it_all(self):
        told = h.created()
        for n in range(10):
            told += h.trial(n, [n / 10], settings={"lr": 1e-3, "width": 16 + n, "batch_size": 16})
        assert importance(h.state(told))[0].shares == {"width": 1.0}

    def test_a_parameter_that_is_off_in_some_trials(self):
        told = h.created()
        for n in range(20):
            settings = {"lr": 10 ** -(1 + n % 4), "batch_size": 16 if n % 2 else 32} | ({"width": 20 + n} if n % 2 else {})
            told += h.trial(n, [0.9 if n % 2 else 0.1], settings=settings)
        assert set(importance(h.state(told))[0].shares) == {"lr", "width", "batch_size"}

    def test_trials_are_compared_where_nearly_all_of_them_were(self):
        curves = [[0.1] * 2] * 3 + [[0.1] * 6] * 6 + [[0.9]]  # one of ten ended at epoch 1
        state = h.state([*h.created(), *(e for n, curve in enumerate(curves) for e in h.trial(n, curve))])
        step, values = common_step(list(state.trials.values()))
        assert (step, sorted(values)) == (2, list(range(9)))

    def test_steps_that_are_off_by_rounding_are_the_same_step(self):
        told = h.created()
        for n in range(10):
            told += [*h.trial(n, end=None), h.report(n, 1.9999999 if n % 2 else 2.0, n / 10)]
        assert len(common_step(list(h.state(told).trials.values()))[1]) == 10

    def test_values_that_are_not_finite_are_left_out(self):
        told = h.created()
        for n in range(10):
            told += h.trial(n, [math.nan if n == 3 else n / 10])
        assert sorted(common_step(list(h.state(told).trials.values()))[1]) == [0, 1, 2, 4, 5, 6, 7, 8, 9]


class TestWhy:
    def story(self, *told, number: int = 0) -> list[str]:
        return why(h.stored([*h.created(), *told]), number)

    def test_a_stopped_trial_that_was_restarted(self):
        told = [
            *h.trial(0, [0.7, 0.8, 0.81], end=None, settings={"lr": 0.0812, "width": 19, "batch_size": 64}),
            events.attempt_ended(0, attempt=1, outcome="failed", failure="lost", message="worker 1 was killed (signal 9)"),
            events.started(0, attempt=2, checkpoint="0000/checkpoint_1_3", from_step=3),
            *(h.report(0, step, 0.85, attempt=2) for step in (4, 5)),
            h.report(0, 6, 0.8711, attempt=2),
            events.decided(0, step=6, action="stop", reason="7th of 10 at rung 6, needed 0.9422 (top 1/3)"),
            events.attempt_ended(0, attempt=2, outcome="stopped", message="7th of 10 at rung 6, needed 0.9422 (top 1/3)"),
            events.finished(0, status="stopped", reason="7th of 10 at rung 6, needed 0.9422 (top 1/3)"),
        ]
        told.insert(4, events.decided(0, step=2, action="continue", reason="4th of 12 at rung 2, needed 0.7900 (top 1/3)"))
        assert self.story(*told) == [
            "proposed   tpe, from 9 ended trials; lr 8.1e-2 width 19 batch_size 64; seed 0",
            "attempt 1  epochs 1..3, then lost: worker 1 was killed (signal 9) (free retry)",
            "attempt 2  from the checkpoint of epoch 3, epochs 4..6, stopped; no epoch recomputed",
            "epoch 2    continue   0.8000, 4th of 12 at rung 2, needed 0.7900 (top 1/3)",
            "epoch 6    stop       0.8711, 7th of 10 at rung 6, needed 0.9422 (top 1/3)",
            "ended      stopped at epoch 6",
            "best       0.8711 at epoch 6, checkpoint 0000/checkpoint_2_6",
        ]

    def test_recomputed_steps_are_counted(self):
        told = [
            *h.trial(0, [0.1, 0.2, 0.3], end=None),
            events.attempt_ended(0, attempt=1, outcome="interrupted", message="Ctrl-C"),
            events.started(0, attempt=2, checkpoint="0000/checkpoint_1_1", from_step=1),
            *(h.report(0, step, 0.2, attempt=2) for step in (2, 3, 4)),
        ]
        lines = self.story(*told)
        assert lines[1] == "attempt 1  epochs 1..3, then interrupted: Ctrl-C"
        assert lines[2] == "attempt 2  from the checkpoint of epoch 1, epochs 2..4, running; 2 epochs recomputed"
        assert lines[3] == "now        running at epoch 4"

    def test_a_failed_trial_ends_with_its_traceback(self):
        details = "Traceback (most recent call last):\n" + "\n".join(f"  line {n}" for n in range(9)) + "\nValueError: no rows"
        told = [
            *h.trial(0, [0.1], end=None),
            events.attempt_ended(
                0, attempt=1, outcome="failed", failure="user error", message="ValueError: no rows", details=details
            ),
            events.finished(0, status="failed", reason="user error: ValueError: no rows"),
        ]
        lines = self.story(*told)
        assert lines[1] == "attempt 1  epoch 1, then user error: ValueError: no rows"
        assert lines[2] == "ended      failed at epoch 1"
        assert lines[-1] == "  ValueError: no rows"
        assert "the end of the traceback:" in lines

    def test_a_retry_of_the_users_own_is_told_as_such(self):
        told = [
            *h.trial(0, end=None),
            events.attempt_ended(0, attempt=1, outcome="failed", failure="user error", message="boom"),
        ]
        lines = self.story(*told)
        assert lines[1] == "attempt 1  no report, then user error: boom (retried, one of max_failures)"
        assert lines[2] == "now        retrying"

    def test_a_trial_that_has_not_started(self):
        lines = self.story(events.proposed(0, config=h.config(0), seed=3, origin="baseline"))
        assert lines[0].startswith("proposed  the baseline; lr ")
        assert lines[1] == "now       proposed, not started yet"

    def test_an_unknown_trial(self):
        with pytest.raises(UnknownNameError, match="has no trial 0004"):
            self.story(*h.trial(0, [0.1]), number=4)

    def test_other_trials_do_not_matter(self):
        alone = self.story(*h.trial(0, [0.1, 0.2]))
        assert self.story(*h.trial(0, [0.1, 0.2]), *h.trial(1, [0.9] * 5)) == alone
