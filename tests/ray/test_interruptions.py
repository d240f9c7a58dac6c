"""Ctrl-C and time budgets, also while a train loop has nothing to report for a minute."""

from __future__ import annotations

import os
import signal
import threading
import time

from toys import FIFO, experiment, torch_trainer

from tunelab.core.trial import Status

SILENT_S = 60.0  # between two reports


def slow(config):
    import json
    from pathlib import Path
    from tempfile import TemporaryDirectory

    import ray.train

    checkpoint = ray.train.get_checkpoint()
    start = 0 if checkpoint is None else json.loads(Path(checkpoint.path, "state.json").read_text())
    for epoch in range(start + 1, 7):
        if epoch > 2 and start == 0:
            time.sleep(SILENT_S)
        with TemporaryDirectory() as folder:
            Path(folder, "state.json").write_text(json.dumps(epoch))
            ray.train.report({"epoch": epoch, "score": epoch}, checkpoint=ray.train.Checkpoint(folder))


def silent_trainer():
    trainer = torch_trainer(workers=1)
    trainer.train_loop_per_worker = slow
    return trainer


def interrupt_after_epoch(bench, epoch, times=1):
    """Send SIGINT half a second after a trial reported this epoch. Returns a list that holds the moment."""
    sent = []

    def changed(state, event):
        bench.events.append(event)
        if event.kind == "reported" and event.data["step"] == epoch and not sent:
            sent.append(time.monotonic() + 0.5)
            for number in range(times):
                threading.Timer(0.5 + 0.2 * number, os.kill, (os.getpid(), signal.SIGINT)).start()

    bench.changed = changed
    return sent


def test_ctrl_c_in_a_silent_train_loop_stops_within_seconds_and_the_sweep_goes_on_later(bench):
    sent = interrupt_after_epoch(bench, 2)
    broken = bench.start(experiment(silent_trainer(), trials=1, scheduler=FIFO()))
    assert time.monotonic() - sent[0] < 20
    trial = broken.state.trials[0]
    assert broken.outcome == "interrupted" and broken.reason == "Ctrl-C" and trial.status is Status.INTERRUPTED
    assert trial.attempts[0].outcome == "interrupted" and trial.latest_checkpoint().step == 2
    assert bench.said[-1].startswith("Ctrl-C: stopping at the next report")

    done = bench.resume(experiment(silent_trainer(), trials=1, scheduler=FIFO()), broken.folder)
    trial = done.state.trials[0]
    assert done.outcome == "finished" and trial.status is Status.COMPLETED
    assert trial.attempts[1].from_step == 2 and [report.step for report in trial.reports] == [1, 2, 3, 4, 5, 6]


def test_a_second_ctrl_c_does_not_wait_for_a_report(bench):
    sent = interrupt_after_epoch(bench, 2, times=2)
    broken = bench.start(experiment(silent_trainer(), trials=1, scheduler=FIFO()))
    assert time.monotonic() - sent[0] < 6
    assert broken.outcome == "interrupted"


def test_ctrl_c_between_quick_reports_stops_at_the_next_one(bench):
    interrupt_after_epoch(bench, 2)
    broken = bench.start(experiment(torch_trainer(sleep=0.3), trials=4, scheduler=FIFO()))
    trial = broken.state.trials[0]
    assert trial.status is Status.INTERRUPTED and trial.last.step == trial.latest_checkpoint().step
    assert broken.state.trials.keys() == {0}


def test_ctrl_c_in_a_silent_plain_function_stops_it_too(bench):
    sent = interrupt_after_epoch(bench, 2)
    broken = bench.start(experiment(slow, trials=1, scheduler=FIFO()))
    assert time.monotonic() - sent[0] < 20
    assert broken.state.trials[0].status is Status.INTERRUPTED


def test_a_time_budget_ends_a_silent_sweep_and_says_so(bench):
    began = time.monotonic()
    done = bench.start(experiment(silent_trainer(), trials=1, scheduler=FIFO(), time_s=20))
    assert time.monotonic() - began < 45
    assert done.outcome == "out of time" and done.reason == "the time budget of 20 s is used up"
    assert done.state.trials[0].status is Status.INTERRUPTED
    assert done.state.sessions[-1].outcome == "out of time"
