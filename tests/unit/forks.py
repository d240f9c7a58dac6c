"""Run a test in a process of its own, or as a trial runs: in a thread of its own."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from pathlib import Path

import pytest


def in_a_fork(function, timeout_s=30):
    """Run a function in a process of its own; what goes wrong there goes wrong here."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a process with threads: nothing here waits for them
        says = Path(folder, "says")
        pid = os.fork()
        if pid == 0:
            faulthandler.dump_traceback_later(timeout_s - 1, file=2)
            try:
                function()
                says.write_text("")
            except BaseException:
                says.write_text(traceback.format_exc())
            os._exit(0)
        deadline = time.monotonic() + timeout_s
        while not os.waitpid(pid, os.WNOHANG)[0]:
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                pytest.fail(f"still running after {timeout_s} s")
            time.sleep(0.002)
        if text := says.read_text() if says.exists() else "the process died":
            pytest.fail(text, pytrace=False)


def in_a_thread(function):
    """As a trial runs: in a thread of its own."""
    made = []
    thread = threading.Thread(target=lambda: made.append(function()))
    thread.start()
    thread.join()
    return made[0]


def run_python(code):
    root = Path(__file__).parents[2]
    return subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=root, check=True).stdout
