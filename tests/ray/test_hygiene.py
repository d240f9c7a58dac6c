"""Trials of one warm sweep that each leave something behind; the next one writes down what it sees."""

from __future__ import annotations

import ctypes
import json
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from itertools import pairwise
from pathlib import Path

import ray.train
import torch
from ray.train.torch import TorchTrainer
from toys import FIFO, experiment, report

from tunelab import current_trial
from tunelab.core.trial import Status

HANDLER = "left by a trial"
CHILD = "import time; time.sleep(600)  # left by a trial"
KEPT = []


class Handler(logging.NullHandler):
    pass


def spin():
    while True:
        time.sleep(0.01)


def sleep_in_a_thread():
    threading.Thread(target=time.sleep, args=(600,), name="left-asleep").start()


def set_signal_handler():
    """Only the main thread may, so it is asked to, as a callback of Ray Train's would run there."""
    done = threading.Event()

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
    def pending(_):
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        done.set()
        return 0

    KEPT.append(pending)
    ctypes.pythonapi.Py_AddPendingCall(pending, None)
    assert done.wait(10)


LEAVE = [
    ("nothing", lambda: None),
    ("environment", lambda: os.environ.update(LEFT_BY_A_TRIAL="1")),
    ("folder", lambda: os.chdir("/")),
    ("path", lambda: sys.path.insert(0, "/left/by/a/trial")),
    ("warnings", lambda: warnings.filterwarnings("ignore", message=HANDLER)),
    ("logging", lambda: logging.getLogger().addHandler(Handler())),
    ("signal", set_signal_handler),
    ("timer", lambda: signal.setitimer(signal.ITIMER_REAL, 3600)),
    ("umask", lambda: os.umask(0o027)),
    ("dtype", lambda: torch.set_default_dtype(torch.float64)),
    ("grad", lambda: torch.set_grad_enabled(False)),
    ("threads", lambda: torch.set_num_threads(torch.get_num_threads() + 3)),
    ("deterministic", lambda: torch.use_deterministic_algorithms(True)),
    ("interop", lambda: torch.set_num_interop_threads(torch.get_num_interop_threads() + 1)),
    ("thread", sleep_in_a_thread),
    ("daemon", lambda: threading.Thread(target=spin, name="left-spinning", daemon=True).start()),
    ("child", lambda: KEPT.append(subprocess.Popen([sys.executable, "-c", CHILD]))),
    ("pool", lambda: KEPT.append(multiprocessing.get_context("fork").Process(target=spin).start())),
]


def see():
    """The kinds of leftovers that are to be seen in this process; keyed as in `LEAVE`."""
    children = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    clean = {
        "environment": os.environ.get("LEFT_BY_A_TRIAL") is None,
        "folder": os.getcwd() != "/",
        "path": "/left/by/a/trial" not in sys.path,
        "warnings": not any(HANDLER in str(entry[1]) for entry in warnings.filters),
        "logging": not any(isinstance(handler, Handler) for handler in logging.getLogger().handlers),
        "signal": signal.getsignal(signal.SIGUSR1) is not signal.SIG_IGN,
        "timer": signal.getitimer(signal.ITIMER_REAL)[0] == 0,
        "umask": (os.umask(0o022), os.umask(0o022))[0] == 0o022,
        "dtype": torch.get_default_dtype() is torch.float32,
        "grad": torch.is_grad_enabled(),
        "threads": torch.get_num_threads() == int(os.environ["OMP_NUM_THREADS"]),
        "deterministic": not torch.are_deterministic_algorithms_enabled(),
        "interop": torch.get_num_interop_threads() == KNOWN.setdefault("interop", torch.get_num_interop_threads()),
        "thread": not any(thread.name == "left-asleep" for thread in threading.enumerate()),
        "daemon": not any(thread.name == "left-spinning" for thread in threading.enumerate()),
    }
    children = [pid for file in children for pid in file.read_text().split()]
    seen = [name for name, is_clean in clean.items() if not is_clean]
    return seen + [f"child {pid}" for pid in children]


KNOWN = {}


def litter(config):
    number = int(current_trial().id.rpartition("/")[2])
    name, leave = LEAVE[number]
    before = see()
    leave()
    after = see()
    Path(config["marks"], f"{number}.json").write_text(
        json.dumps({"pid": os.getpid(), "left": name, "before": before, "after": after, "ppid": os.getppid()})
    )
    report({"epoch": 1, "score": float(number)}, 1)


def test_no_trial_sees_what_another_has_left_in_its_worker(bench, tmp_path):
    marks = tmp_path / "marks"
    marks.mkdir()
    trainer = TorchTrainer(
        litter, train_loop_config={"marks": str(marks)}, scaling_config=ray.train.ScalingConfig(num_workers=1)
    )
    # One at a time, so that trial after trial runs in the same slot.
    done = bench.start(experiment(trainer, trials=len(LEAVE), concurrent=1, scheduler=FIFO()))
    trials = done.state.trials.values()
    assert [trial.status for trial in trials] == [Status.COMPLETED] * len(LEAVE), [trial.reason for trial in trials]

    told = [json.loads((marks / f"{number}.json").read_text()) for number in range(len(LEAVE))]
    assert {one["left"]: one["before"] for one in told if one["before"]} == {}
    shows = {one["left"]: one["after"] for one in told}
    assert shows.pop("nothing") == []
    for name in ("child", "pool"):
        assert [word.split()[0] for word in shows.pop(name)] == ["child"]
    for name, after in shows.items():
        assert after == [name], f"{name}: the case shows nothing"

    # What cannot be put back costs a worker, the rest does not.
    replaced = {one["left"] for one, following in pairwise(told) if one["pid"] != following["pid"]}
    assert replaced <= {"interop", "thread", "daemon", "pool"}
    assert {"interop", "thread", "daemon"} <= replaced
    assert max(Counter(one["pid"] for one in told).values()) >= 13

    left_running = [pid for one in told for word in one["after"] if word.startswith("child") for pid in word.split()[1:]]
    assert len(left_running) == 2
    deadline = time.monotonic() + 5
    while any(is_running(pid) for pid in left_running):
        assert time.monotonic() < deadline, left_running
        time.sleep(0.05)


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except FileNotFoundError:
        return False
