"""Whatever a trial changes in its worker, the next one does not see it.

Each case runs in a forked process: `leave` is what the trial does, `see` what the next one finds. That `see` notices what
`leave` has done is asserted first, so a case fails when what it tests is taken out.
"""

from __future__ import annotations

import builtins
import decimal
import faulthandler
import gc
import importlib
import io
import locale
import logging
import multiprocessing
import os
import resource
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
import urllib.request
import warnings

import numpy
import pytest

from tests.unit.forks import in_a_fork, in_a_thread, run_python
from tunelab.engine.hygiene import CleanState, interpreter, settings


class Noisy(logging.Logger):
    pass


class Finder:
    @staticmethod
    def find_spec(*name):
        return None


class Quiet(logging.Handler):
    pass


def set_attribute(owner, name, value):
    return lambda: setattr(owner, name, value)


def shown(owner, name):
    return lambda: getattr(owner, name)


EXISTING = logging.getLogger("tunelab.existing")
HANDLER = Quiet()
EXISTING.addHandler(HANDLER)

SETTINGS = {
    "umask": (lambda: os.umask(0o027), settings.umask),
    "locale": (
        lambda: locale.setlocale(locale.LC_ALL, "C" if locale.setlocale(locale.LC_ALL) != "C" else "C.UTF-8"),
        lambda: locale.setlocale(locale.LC_ALL),
    ),
    "longest integer as text": (lambda: sys.set_int_max_str_digits(0), sys.get_int_max_str_digits),
    "recursion limit": (lambda: sys.setrecursionlimit(4321), sys.getrecursionlimit),
    "switch interval": (lambda: sys.setswitchinterval(0.1), sys.getswitchinterval),
    "tracing of threads": (lambda: threading.settrace(lambda *event: None), threading.gettrace),
    "profiling of threads": (lambda: threading.setprofile(lambda *event: None), threading.getprofile),
    "stack size of threads": (lambda: threading.stack_size(2**20), settings.stack_size),
    "socket timeout": (lambda: socket.setdefaulttimeout(1.5), socket.getdefaulttimeout),
    "garbage collection": (gc.disable, gc.isenabled),
    "garbage collection's thresholds": (lambda: gc.set_threshold(7, 7, 7), gc.get_threshold),
    "garbage collection's debugging": (lambda: gc.set_debug(gc.DEBUG_UNCOLLECTABLE), gc.get_debug),
    "multiprocessing's start method": (
        lambda: multiprocessing.set_start_method("spawn", force=True),
        lambda: multiprocessing.get_start_method(allow_none=True),
    ),
    "tracemalloc": (tracemalloc.start, tracemalloc.is_tracing),
    "faulthandler": (
        lambda: faulthandler.disable() if faulthandler.is_enabled() else faulthandler.enable(2),
        faulthandler.is_enabled,
    ),
    "priority": (
        lambda: os.setpriority(os.PRIO_PROCESS, os.getpid(), 3),
        lambda: os.getpriority(os.PRIO_PROCESS, os.getpid()),
    ),
    "limits": (
        lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1])),
        lambda: resource.getrlimit(resource.RLIMIT_NOFILE),
    ),
    "CPU affinity": (
        lambda: os.sched_setaffinity(os.getpid(), {min(os.sched_getaffinity(0))}),
        lambda: os.sched_getaffinity(os.getpid()),
    ),
    "timer": (lambda: signal.alarm(1000), lambda: signal.getitimer(signal.ITIMER_REAL)[0] > 0),
}

ATTRIBUTES = {
    f"{module.__name__}.{name}": (set_attribute(module, name, value), shown(module, name))
    for module, name, value in [
        (builtins, "print", io.StringIO),
        (sys, "breakpointhook", print),
        (sys, "excepthook", print),
        (sys, "unraisablehook", print),
        (sys, "displayhook", print),
        (sys, "stdin", io.StringIO()),
        (sys, "stdout", io.StringIO()),
        (sys, "stderr", io.StringIO()),
        (sys, "dont_write_bytecode", "yes"),
        (sys, "pycache_prefix", "/tmp/elsewhere"),
        (threading, "excepthook", print),
        (tempfile, "tempdir", "/nowhere"),
        (warnings, "formatwarning", print),
        (logging, "raiseExceptions", "no"),
        (logging, "lastResort", None),
        (ssl, "_create_default_https_context", ssl._create_unverified_context),
        (urllib.request, "_opener", urllib.request.build_opener()),
    ]
}

LISTS = {
    "path": (lambda: sys.path.insert(0, "/of/a/trial"), lambda: list(sys.path)),
    "argv": (set_attribute(sys, "argv", ["train.py", "--lr", "3"]), lambda: list(sys.argv)),
    "meta_path": (lambda: sys.meta_path.insert(0, Finder), lambda: list(sys.meta_path)),
    "path_hooks": (lambda: sys.path_hooks.append(None), lambda: list(sys.path_hooks)),
    "warnoptions": (lambda: sys.warnoptions.append("error"), lambda: list(sys.warnoptions)),
}


def delete_a_variable():
    del os.environ["TUNELAB_KEPT"]


def basic_config():
    logging.basicConfig(level=logging.DEBUG, force=True)


OTHERS = {
    "a new variable": (lambda: os.environ.update(LR_DEBUG="1"), lambda: os.environ.get("LR_DEBUG")),
    "a new variable, as child processes see it": (
        lambda: os.environ.update(LR_DEBUG="1"),
        lambda: subprocess.check_output(["sh", "-c", "echo $LR_DEBUG"]),
    ),
    "a changed variable": (lambda: os.environ.update(TUNELAB_KEPT="no"), lambda: os.environ.get("TUNELAB_KEPT")),
    "a deleted variable": (delete_a_variable, lambda: os.environ.get("TUNELAB_KEPT")),
    "a time zone": (lambda: (os.environ.update(TZ="Asia/Tokyo"), time.tzset()), lambda: time.localtime(0).tm_hour),
    "a folder": (lambda: os.chdir("/"), os.getcwd),
    "a warning filter": (lambda: warnings.simplefilter("error"), lambda: list(warnings.filters)),
    "a way to show warnings": (set_attribute(warnings, "showwarning", print), shown(warnings, "showwarning")),
    "captured warnings": (lambda: logging.captureWarnings(True), shown(logging, "_warnings_showwarning")),
    "the root's handlers and level": (basic_config, lambda: (list(logging.root.handlers), logging.root.level)),
    "a handler on a logger": (lambda: EXISTING.addHandler(Quiet()), lambda: list(EXISTING.handlers)),
    "a handler taken from a logger": (lambda: EXISTING.removeHandler(HANDLER), lambda: list(EXISTING.handlers)),
    "a handler on a new logger": (
        lambda: logging.getLogger("of.a.trial").addHandler(Quiet()),
        lambda: len(logging.getLogger("of.a.trial").handlers),
    ),
    "a new logger's level": (
        lambda: logging.getLogger("of.a.trial").setLevel("DEBUG"),
        lambda: logging.getLogger("of.a.trial").level,
    ),
    "a logger's level": (lambda: EXISTING.setLevel("CRITICAL"), lambda: EXISTING.level),
    "a logger's effective level, which is cached": (
        lambda: logging.root.setLevel("ERROR"),
        lambda: EXISTING.isEnabledFor(logging.WARNING),
    ),
    "a logger's filter": (lambda: EXISTING.addFilter(lambda record: False), lambda: list(EXISTING.filters)),
    "propagation": (set_attribute(EXISTING, "propagate", False), shown(EXISTING, "propagate")),
    "a disabled logger": (set_attribute(EXISTING, "disabled", True), shown(EXISTING, "disabled")),
    "a handler's level": (lambda: HANDLER.setLevel("ERROR"), lambda: HANDLER.level),
    "a handler's formatter": (lambda: HANDLER.setFormatter(logging.Formatter("%(message)s")), lambda: HANDLER.formatter),
    "a handler's filter": (lambda: HANDLER.addFilter(lambda record: False), lambda: list(HANDLER.filters)),
    "logging switched off": (lambda: logging.disable(logging.ERROR), lambda: logging.root.manager.disable),
    "a class of loggers": (lambda: logging.setLoggerClass(Noisy), logging.getLoggerClass),
    "a factory of records": (lambda: logging.setLogRecordFactory(dict), logging.getLogRecordFactory),
    "NumPy's global generator": (
        lambda: numpy.random.set_bit_generator(numpy.random.PCG64(1)),
        lambda: type(numpy.random.get_bit_generator()),
    ),
    "the precision of decimals, for threads to come": (
        set_attribute(decimal.DefaultContext, "prec", 5),
        lambda: str(1 / decimal.Decimal(3)),
    ),
}

IN_THE_MAIN_THREAD = {  # what a trial's thread cannot change, but a callback can
    "a signal's handler": (
        lambda: signal.signal(signal.SIGUSR1, lambda *event: None),
        lambda: signal.getsignal(signal.SIGUSR1),
    ),
    "an ignored signal": (lambda: signal.signal(signal.SIGINT, signal.SIG_IGN), lambda: signal.getsignal(signal.SIGINT)),
    "the precision of decimals": (
        lambda: decimal.setcontext(decimal.Context(prec=5)),
        lambda: str(1 / decimal.Decimal(3)),
    ),
    "the errors of decimals": (
        lambda: decimal.getcontext().traps.update({decimal.DivisionByZero: False}),
        lambda: decimal.getcontext().traps[decimal.DivisionByZero],
    ),
    "NumPy's errors": (lambda: numpy.seterr(all="raise"), numpy.geterr),
    "NumPy's handler of errors": (lambda: numpy.seterrcall(print), numpy.geterrcall),
    "NumPy's printing": (lambda: numpy.set_printoptions(precision=2), numpy.get_printoptions),
}


def check(leave, see, run=in_a_thread):
    def trial():
        os.environ["TUNELAB_KEPT"] = "yes"
        before = run(see)
        clean = CleanState.take()
        assert run(see) == before
        run(leave)
        assert run(see) != before, "the case shows nothing"
        cleanup = clean.restore()
        assert run(see) == before
        assert cleanup.fit and cleanup.restored and not cleanup.leftovers, cleanup
        assert not clean.restore().restored

    in_a_fork(trial)


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_are_put_back(name):
    if name == "CPU affinity" and len(os.sched_getaffinity(0)) == 1:
        pytest.skip("a single CPU")
    check(*SETTINGS[name])


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes_of_the_standard_library_are_put_back(name):
    check(*ATTRIBUTES[name])


@pytest.mark.parametrize("name", LISTS)
def test_lists_of_the_interpreter_are_put_back(name):
    check(*LISTS[name])


@pytest.mark.parametrize("name", OTHERS)
def test_what_a_trial_changes_is_put_back(name):
    check(*OTHERS[name])


@pytest.mark.parametrize("name", IN_THE_MAIN_THREAD)
def test_what_a_callback_changes_is_put_back(name):
    check(*IN_THE_MAIN_THREAD[name], run=lambda function: function())


def test_every_setting_that_is_put_back_is_tested():
    assert SETTINGS.keys() == settings.Settings.TABLE.keys()
    assert ATTRIBUTES.keys() == {f"{module.__name__}.{name}" for module, name in interpreter.Attributes.NAMES}
    assert LISTS.keys() == set(interpreter.Lists.NAMES)


def test_nothing_is_reported_of_a_trial_that_leaves_nothing():
    def trial():
        cleanup = CleanState.take().restore()
        assert (cleanup.fit, cleanup.reason, cleanup.leftovers, cleanup.restored) == (True, "", (), ())
        assert 5 < cleanup.rss_mb < 100_000 and cleanup.open_files >= 3

    in_a_fork(trial)


def test_a_watchdog_that_a_trial_set_does_not_end_the_next_one():
    def trial():
        clean = CleanState.take()
        faulthandler.dump_traceback_later(0.1, exit=True)
        clean.restore()
        time.sleep(0.3)

    in_a_fork(trial)


def test_signals_are_a_reason_outside_of_the_main_thread():
    def trial():
        clean = CleanState.take()
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        cleanup = in_a_thread(clean.restore)
        assert not cleanup.fit and "signal handlers cannot be put back: ValueError" in cleanup.reason

    in_a_fork(trial)


def test_a_handler_that_a_trial_added_is_closed(tmp_path):
    def trial():
        clean = CleanState.take()
        handler = logging.FileHandler(tmp_path / "trial.log")
        logging.root.addHandler(handler)
        clean.restore()
        assert handler.stream is None

    in_a_fork(trial)


def test_a_library_first_imported_by_a_trial_keeps_the_handlers_it_gave_itself(tmp_path):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "chatty.py").write_text(
        "import logging\nlog = logging.getLogger('chatty')\nlog.addHandler(logging.StreamHandler())\nlog.propagate = False\n"
    )

    def trial():
        sys.path.append(str(folder))
        clean = CleanState.take()
        chatty = importlib.import_module("chatty")
        own = list(chatty.log.handlers)
        chatty.log.addHandler(logging.FileHandler(tmp_path / "trial.log"))
        clean.restore()
        assert chatty.log.handlers == own and not chatty.log.propagate
        chatty.log.setLevel("DEBUG")
        clean.restore()
        assert chatty.log.level == logging.NOTSET

    in_a_fork(trial)


def test_modules_of_the_same_name_from_two_trials_folders_are_not_confused(tmp_path):
    for trial in "ab":
        (tmp_path / trial).mkdir()
        (tmp_path / trial / "helper.py").write_text(f"TRIAL = {trial!r}\n")

    def trials():
        clean = CleanState.take()
        for trial in "ab":
            sys.path.insert(0, str(tmp_path / trial))
            assert importlib.import_module("helper").TRIAL == trial
            assert "modules helper" in clean.restore().restored

    in_a_fork(trials)


def test_modules_of_the_project_stay_imported(tmp_path):
    (tmp_path / "project.py").write_text("")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")

    def trial():
        sys.path.insert(0, str(tmp_path))
        clean = CleanState.take()
        made = [importlib.import_module(name) for name in ("project", "package")]
        clean.restore()
        assert [sys.modules.get("project"), sys.modules.get("package")] == made

    in_a_fork(trial)


# ---- what it costs


def test_restoring_is_cheap_once_imports_are_frozen():
    def trial():
        import torch  # noqa: F401

        clean = CleanState.take()
        clean.restore()
        took = []
        for _ in range(5):
            begun = time.perf_counter()
            clean.restore()
            took.append(time.perf_counter() - begun)
        assert min(took) < 0.03, took

    in_a_fork(trial)


def test_taking_the_clean_state_imports_no_framework():
    code = (
        "import sys; from tunelab import frameworks; from tunelab.engine.hygiene import CleanState\n"
        "frameworks.remember_clean(); c = CleanState.take(); print(frameworks.reset_loaded(), c.restore().fit)\n"
        "print([name for name in ('ray', 'torch', 'transformers', 'accelerate', 'mlflow', 'numpy') if name in sys.modules])"
    )
    assert run_python(code).splitlines() == ["[] True", "[]"]
