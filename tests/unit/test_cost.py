"""What a report costs the driver does not grow with the sweep. Counted in bytecodes, so that a busy machine changes nothing."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

import pytest

from tunelab import ASHA, FIFO, Budget, Experiment, Float, Objective, Random
from tunelab.engine.conductor import Conductor
from tunelab.journal import Journal, events

FEW, MANY = 40, 640


def bytecodes(call: Callable[[], object]) -> int:
    """How many Python instructions `call` runs; what C functions do inside is not seen."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def report_cost(path, trials: int, scheduler) -> int:
    """Bytecodes for one report, judged at a rung, after so many trials, half of them stopped at their first report."""
    made = Experiment(
        name="toy", trainer=print, space={"x": Float(0.0, 1.0)}, searcher=Random(), scheduler=scheduler,
        objective=Objective("score", step="epoch", last_step=4), budget=Budget(trials=trials + 1),
    )  # fmt: skip
    Journal.create(path, events.sweep_created(sweep="toy.1", experiment={"objective": {"mode": "max"}}, facts={})).close()
    journal = Journal(path)
    journal._connection.execute("PRAGMA synchronous = OFF")
    conductor = Conductor(made, journal, budget=made.budget)
    budget = {"trials": trials + 1, "time_s": None, "concurrent": None}
    conductor.begin(events.session_started(pid=1, host="here", resources={}, budget=budget, tracking=None))
    rng = random.Random(0)

    def report(number: int, epoch: int, score: float) -> bool:
        return conductor.reported(number, {"epoch": epoch, "score": score}, f"{number:04d}/checkpoint_1_{epoch}")

    for _ in range(trials):
        number = conductor.next_launch().trial
        if all(report(number, epoch, rng.random()) for epoch in range(1, 5)):
            conductor.completed(number)
    number = conductor.next_launch().trial
    assert number == trials
    return bytecodes(lambda: report(number, 1, 2.0))


@pytest.mark.parametrize("scheduler", [FIFO(), ASHA(first_rung=1, reduction=2)], ids=["fifo", "asha"])
def test_a_report_costs_the_same_after_sixteen_times_as_many_trials(tmp_path, scheduler):
    few = report_cost(tmp_path / "few.sqlite", FEW, scheduler)
    many = report_cost(tmp_path / "many.sqlite", MANY, scheduler)
    assert few > 300, "or it was not counted"
    assert many < few * 1.1


def test_the_count_sees_a_loop_over_all_trials():
    short, long = ({n: n for n in range(size)} for size in (FEW, MANY))
    assert bytecodes(lambda: sum(n > 1 for n in long.values())) > 10 * bytecodes(lambda: sum(n > 1 for n in short.values()))
