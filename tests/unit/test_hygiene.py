"""Whatever a trial leaves in its worker, the next one does not see it, or the worker is not used again.

Each case runs in a forked process: `leave` is what the trial does, `see` what the next one finds. That `see` notices what
`leave` has done is asserted first, so a case fails when what it tests is taken out.
"""

from __future__ import annotations

import concurrent.futures
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
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from pathlib import Path

import numpy
import pytest

from tunelab import frameworks
from tunelab.engine import hygiene
from tunelab.engine.hygiene import CleanState

SLEEP = "import time; time.sleep(60)"


@pytest.fixture
def forked():
    """Runs a function in a process of its own; what goes wrong there goes wrong here."""
    return in_a_fork


def in_a_fork(function, timeout_s=30):
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


# ---- what is put back


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
    "umask": (lambda: os.umask(0o027), hygiene._umask),
    "locale": (
        lambda: locale.setlocale(locale.LC_ALL, "C" if locale.setlocale(locale.LC_ALL) != "C" else "C.UTF-8"),
        lambda: locale.setlocale(locale.LC_ALL),
    ),
    "recursion limit": (lambda: sys.setrecursionlimit(4321), sys.getrecursionlimit),
    "switch interval": (lambda: sys.setswitchinterval(0.1), sys.getswitchinterval),
    "tracing of threads": (lambda: threading.settrace(lambda *event: None), threading.gettrace),
    "profiling of threads": (lambda: threading.setprofile(lambda *event: None), threading.getprofile),
    "stack size of threads": (lambda: threading.stack_size(2**20), hygiene._stack_size),
    "socket timeout": (lambda: socket.setdefaulttimeout(1.5), socket.getdefaulttimeout),
    "garbage collection": (gc.disable, gc.isenabled),
    "garbage collection's thresholds": (lambda: gc.set_threshold(7, 7, 7), gc.get_threshold),
    "garbage collection's debugging": (lambda: gc.set_debug(gc.DEBUG_UNCOLLECTABLE), gc.get_debug),
    "multiprocessing's start method": (
        lambda: multiprocessing.set_start_method("spawn", force=True),
        lambda: multiprocessing.get_start_method(allow_none=True),
    ),
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
}

IN_THE_MAIN_THREAD = {  # what a trial's thread cannot change, but a callback can
    "a signal's handler": (
        lambda: signal.signal(signal.SIGUSR1, lambda *event: None),
        lambda: signal.getsignal(signal.SIGUSR1),
    ),
    "an ignored signal": (lambda: signal.signal(signal.SIGINT, signal.SIG_IGN), lambda: signal.getsignal(signal.SIGINT)),
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
    assert SETTINGS.keys() == hygiene._Settings._TABLE.keys()
    assert ATTRIBUTES.keys() == {f"{module.__name__}.{name}" for module, name in hygiene._Attributes._NAMES}
    assert LISTS.keys() == set(hygiene._Lists._NAMES)


def test_nothing_is_reported_of_a_trial_that_leaves_nothing(forked):
    def trial():
        cleanup = CleanState.take().restore()
        assert (cleanup.fit, cleanup.reason, cleanup.leftovers, cleanup.restored) == (True, "", (), ())
        assert 5 < cleanup.rss_mb < 100_000 and cleanup.open_files >= 3

    forked(trial)


def test_signals_are_a_reason_outside_of_the_main_thread(forked):
    def trial():
        clean = CleanState.take()
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        cleanup = in_a_thread(clean.restore)
        assert not cleanup.fit and "signal handlers cannot be put back: ValueError" in cleanup.reason

    forked(trial)


def test_a_handler_that_a_trial_added_is_closed(forked, tmp_path):
    def trial():
        clean = CleanState.take()
        handler = logging.FileHandler(tmp_path / "trial.log")
        logging.root.addHandler(handler)
        clean.restore()
        assert handler.stream is None

    forked(trial)


def test_a_library_first_imported_by_a_trial_keeps_the_handlers_it_gave_itself(forked, tmp_path):
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

    forked(trial)


def test_modules_of_the_same_name_from_two_trials_folders_are_not_confused(forked, tmp_path):
    for trial in "ab":
        (tmp_path / trial).mkdir()
        (tmp_path / trial / "helper.py").write_text(f"TRIAL = {trial!r}\n")

    def trials():
        clean = CleanState.take()
        for trial in "ab":
            sys.path.insert(0, str(tmp_path / trial))
            assert importlib.import_module("helper").TRIAL == trial
            assert "modules helper" in clean.restore().restored

    forked(trials)


def test_modules_of_the_project_stay_imported(forked, tmp_path):
    (tmp_path / "project.py").write_text("")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")

    def trial():
        sys.path.insert(0, str(tmp_path))
        clean = CleanState.take()
        made = [importlib.import_module(name) for name in ("project", "package")]
        clean.restore()
        assert [sys.modules.get("project"), sys.modules.get("package")] == made

    forked(trial)


# ---- threads


def test_a_thread_that_runs_on_makes_the_worker_unfit(forked):
    def trial():
        clean = CleanState.take()
        threading.Thread(target=time.sleep, args=(60,), name="loader-1", daemon=False).start()
        threading.Thread(target=time.sleep, args=(60,), name="loader-2", daemon=False).start()
        cleanup = clean.restore()
        assert not cleanup.fit
        assert cleanup.reason == "2 threads still run: loader-1, loader-2" and cleanup.leftovers == (cleanup.reason,)

    forked(trial)


def test_so_does_a_daemon_thread_of_the_users(forked):
    def spin():
        while True:
            time.sleep(0.01)

    def trial():
        clean = CleanState.take()
        threading.Thread(target=spin, name="spin", daemon=True).start()
        assert clean.restore().reason == "1 thread still runs: spin"

    forked(trial)


def test_so_does_a_timer_that_is_to_run_the_users_code(forked):
    def trial():
        clean = CleanState.take()
        timer = threading.Timer(60, lambda: None)
        timer.daemon = True
        timer.start()
        assert not clean.restore().fit

    forked(trial)


def test_a_thread_that_ends_within_a_moment_does_not(forked):
    def trial():
        clean = CleanState.take()
        threading.Thread(target=time.sleep, args=(0.2,)).start()
        cleanup = clean.restore()
        assert cleanup.fit and not cleanup.leftovers

    forked(trial)


def test_a_pools_idle_threads_do_not_but_busy_ones_do(forked):
    def trial():
        clean = CleanState.take()
        pool = concurrent.futures.ThreadPoolExecutor(2)
        pool.submit(int).result()
        assert clean.restore().fit
        pool.submit(time.sleep, 60)
        assert "ThreadPoolExecutor" in clean.restore().reason

    forked(trial)


def test_a_pool_that_nothing_refers_to_ends(forked):
    def leave():
        pool = concurrent.futures.ThreadPoolExecutor(2)
        pool.submit(int).result()
        knot = [pool]
        knot.append(knot)

    def trial():
        clean = CleanState.take()
        before = threading.active_count()
        leave()
        assert threading.active_count() > before
        assert clean.restore().fit
        time.sleep(0.1)
        assert threading.active_count() == before

    forked(trial)


def test_a_thread_of_which_nobody_can_tell_whose_it_is_makes_the_worker_unfit(forked):
    """`time.sleep` has no file. In a trial all threads are daemons, like the one that starts them."""

    def trial():
        clean = CleanState.take()
        threading.Thread(target=time.sleep, args=(60,), name="asleep", daemon=True).start()
        assert clean.restore().reason == "1 thread still runs: asleep"

    forked(trial)


@pytest.fixture
def library(tmp_path, monkeypatch):
    """An installed package with a function that a thread may run."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "lagging.py").write_text("import time\ndef watch():\n    time.sleep(60)\n")
    monkeypatch.syspath_prepend(folder)
    yield importlib.import_module("lagging")
    del sys.modules["lagging"]


def test_background_threads_of_libraries_are_left_alone_until_they_are_many(forked, library):
    def trial():
        clean = CleanState.take()
        for _ in range(hygiene.MANY_THREADS):
            threading.Thread(target=library.watch, daemon=True).start()
        cleanup = clean.restore()
        assert cleanup.fit and not cleanup.leftovers
        threading.Thread(target=library.watch, daemon=True).start()
        assert clean.restore().reason == f"libraries have left {hygiene.MANY_THREADS + 1} threads in the background"

    forked(trial)


def test_queues_between_processes_feed_in_the_background(forked):
    def trial():
        clean = CleanState.take()
        queue = multiprocessing.get_context("fork").Queue()
        queue.put(1)
        assert any(thread.name == "QueueFeederThread" for thread in threading.enumerate())
        assert clean.restore().fit

    forked(trial)


# ---- child processes

KEPT = []


def runs(pid):
    child = hygiene._look(pid)
    return child is not None and not child.ended


def test_child_processes_are_ended_and_reported(forked):
    def trial():
        clean = CleanState.take()
        child = subprocess.Popen([sys.executable, "-c", SLEEP])
        time.sleep(0.05)
        cleanup = clean.restore()
        assert hygiene._look(child.pid) is None, "neither ended nor reaped"
        assert cleanup.fit and cleanup.leftovers == (
            f"child process {child.pid} ({hygiene._short(f'{sys.executable} -c {SLEEP}')}) still ran and was ended",
        )
        assert not clean.restore().leftovers

    forked(trial)


def test_a_child_that_ignores_sigterm_is_killed(forked):
    def trial():
        clean = CleanState.take()
        child = subprocess.Popen(["sh", "-c", "trap '' TERM; echo; while :; do sleep 0.01; done"], stdout=subprocess.PIPE)
        child.stdout.readline()
        assert clean.restore().fit and not runs(child.pid)

    forked(trial)


def test_grandchildren_and_orphans_are_ended_too(forked):
    def trial():
        clean = CleanState.take()
        tree = subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
        grandchild = int(tree.stdout.readline())
        orphan = int(subprocess.check_output(["sh", "-c", "setsid sleep 60 > /dev/null & echo $!"]))
        assert runs(grandchild) and runs(orphan)
        cleanup = clean.restore()
        assert cleanup.fit and len(cleanup.leftovers) == 3, cleanup
        assert not runs(tree.pid) and not runs(grandchild) and not runs(orphan)

    forked(trial)


def test_children_that_have_ended_are_reaped_without_a_word(forked):
    def trial():
        clean = CleanState.take()
        child = subprocess.Popen(["true"])
        while runs(child.pid):
            time.sleep(0.01)
        assert hygiene._look(child.pid) is not None
        assert not clean.restore().leftovers
        assert hygiene._look(child.pid) is None

    forked(trial)


def test_children_from_before_the_first_trial_are_left_alone(forked):
    def trial():
        child = subprocess.Popen(["sleep", "60"])
        cleanup = CleanState.take().restore()
        assert runs(child.pid) and not cleanup.leftovers
        child.kill()

    forked(trial)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_process_pool_in_use_makes_the_worker_unfit(forked, method):
    def trial():
        clean = CleanState.take()
        pool = multiprocessing.get_context(method).Pool(1)
        KEPT.append(pool)  # its own end would wait for its processes
        pool.apply(os.getpid)
        pids = [process.pid for process in pool._pool]
        cleanup = clean.restore()
        assert not cleanup.fit and "multiprocessing pool" in cleanup.reason
        assert not any(runs(pid) for pid in pids)
        time.sleep(0.3)
        assert not [child for child in hygiene._children() if child.pid not in hygiene._trackers()], "it started others"

    forked(trial)


def test_the_fork_server_is_stopped_with_the_environment_it_was_started_in(forked):
    def trial():
        clean = CleanState.take()
        context = multiprocessing.get_context("forkserver")
        os.environ["LR_DEBUG"] = "1"
        with context.Pool(1) as pool:
            assert pool.apply(os.getenv, ("LR_DEBUG",)) == "1"
            pool.close()
            pool.join()
        cleanup = clean.restore()
        assert cleanup.fit and not cleanup.leftovers, cleanup
        with context.Pool(1) as pool:
            assert pool.apply(os.getenv, ("LR_DEBUG",)) is None

    forked(trial)


# ---- files and memory


def test_open_files_are_counted_and_said_once(forked):
    def trial():
        clean = CleanState.take()
        for _ in range(hygiene.MANY_FILES + 400):  # the collection in between may close some of the test run's own
            os.open(os.devnull, os.O_RDONLY)
        cleanup = clean.restore()
        (said,) = cleanup.leftovers
        assert said.endswith(" more files and sockets are open than before") and cleanup.fit
        assert not clean.restore().leftovers

    forked(trial)


def test_a_process_that_runs_out_of_files_is_unfit(forked):
    def trial():
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        clean = CleanState.take()
        for _ in range(85):
            os.open(os.devnull, os.O_RDONLY)
        assert clean.restore().reason.endswith("of at most 100 files are open")

    forked(trial)


def test_a_bloated_process_is_unfit_and_memory_that_was_freed_is_no_bloat(forked, monkeypatch):
    monkeypatch.setattr(hygiene, "BLOATED_MB", 100)

    def trial():
        clean = CleanState.take()
        first = clean.restore().rss_mb
        size = int(first + 200) * 2**20
        hoard = [bytes(2000) for _ in range(size // 2000)]
        KEPT.append(bytes(2000))  # above the others: the C library gives back nothing of its own accord
        cleanup = clean.restore()
        assert not cleanup.fit and "MB since its first trial" in cleanup.reason
        del hoard
        assert clean.restore().fit

    forked(trial)


def test_restoring_is_cheap_once_imports_are_frozen(forked):
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

    forked(trial)


def test_taking_the_clean_state_imports_no_framework():
    code = (
        "import sys; from tunelab import frameworks; from tunelab.engine.hygiene import CleanState\n"
        "frameworks.remember_clean(); c = CleanState.take(); print(frameworks.reset_loaded(), c.restore().fit)\n"
        "print([name for name in ('ray', 'torch', 'transformers', 'accelerate', 'mlflow', 'numpy') if name in sys.modules])"
    )
    assert run_python(code).splitlines() == ["[] True", "[]"]


# ---- torch


def torch_cases():
    """Name of a setting -> a value that differs from torch's default."""
    import torch

    precise = {path: "ieee" for path in torch_files()._FLAGS if path.endswith("fp32_precision")}
    flags = {path: not default for path, default in torch_files()._FLAGS.items() if isinstance(default, bool)}
    return {
        **precise,
        **flags,
        **dict.fromkeys(torch_files()._ATTENTION, False),
        "default_dtype": torch.float64,
        "grad_mode": False,
        "anomaly_mode": (True, False),
        "deterministic_algorithms": (True, True),
        "matmul_precision": "medium",
        "warn_always": True,
        "autocast_cpu": (True, torch.float16),
        "autocast_cuda": (True, torch.bfloat16),
        "autocast_cache": False,
        "print_options": {"precision": 9, "threshold": 9, "edgeitems": 9, "linewidth": 9, "sci_mode": True},
        "sharing_strategy": "file_system",
    }


def torch_files():
    from tunelab.frameworks import torch as module

    return module


def settings_now():
    return {name: read() for name, (read, _, _) in torch_files().settings().items()}


def test_every_setting_of_torch_is_tested_and_its_default_is_torchs():
    pytest.importorskip("torch")
    code = (
        "import torch; from tunelab.frameworks.torch import settings\n"
        "print([(name, read(), default) for name, (read, _, default) in settings().items() if read() != default])"
    )
    assert run_python(code).strip() == "[]"
    assert torch_cases().keys() == torch_files().settings().keys()


@pytest.mark.parametrize("remembered", [True, False], ids=["torch known before", "torch first imported by the trial"])
def test_every_setting_of_torch_is_put_back(forked, remembered):
    pytest.importorskip("torch")

    def trial():
        before = settings_now()
        for name, value in torch_cases().items():
            torch_files()._clean.clear()
            if remembered:
                frameworks.remember_clean()
            torch_files().settings()[name][1](value)
            assert settings_now()[name] == value != before[name], f"{name}: the case shows nothing"
            assert frameworks.reset_loaded() == []
            assert settings_now() == before, name

    forked(trial, timeout_s=120)


def test_a_clean_value_of_torchs_that_is_not_its_default_is_put_back(forked):
    torch = pytest.importorskip("torch")

    def trial():
        torch.set_default_dtype(torch.float64)
        torch_files()._clean.clear()
        frameworks.remember_clean()
        torch.set_default_dtype(torch.float32)
        frameworks.reset_loaded()
        assert torch.get_default_dtype() is torch.float64

    forked(trial)


def test_torchs_matrix_products_after_flags_that_contradict_each_other(forked):
    torch = pytest.importorskip("torch")

    def trial():
        torch_files()._clean.clear()
        frameworks.remember_clean()
        before = settings_now()
        torch.backends.cuda.matmul.allow_tf32 = True
        assert settings_now() != before
        assert frameworks.reset_loaded() == []
        assert settings_now() == before

    forked(trial)


def test_torchs_threads_are_put_back_for_threads_to_come(forked):
    torch = pytest.importorskip("torch")

    def trial():
        torch_files()._clean.clear()
        frameworks.remember_clean()
        before = in_a_thread(torch.get_num_threads)
        in_a_thread(lambda: torch.set_num_threads(before + 3))
        assert in_a_thread(torch.get_num_threads) == before + 3
        frameworks.reset_loaded()
        assert in_a_thread(torch.get_num_threads) == before

    forked(trial)


def test_torchs_threads_follow_ray_where_a_trial_imports_torch_first(forked, monkeypatch):
    torch = pytest.importorskip("torch")

    def trial():
        torch_files()._clean.clear()
        monkeypatch.setenv("OMP_NUM_THREADS", "3")
        monkeypatch.delitem(sys.modules, "torch")
        frameworks.remember_clean()
        sys.modules["torch"] = torch
        in_a_thread(lambda: torch.set_num_threads(1))
        frameworks.reset_loaded()
        assert in_a_thread(torch.get_num_threads) == 3

    forked(trial)


def test_torchs_threads_between_operations_cannot_be_put_back(forked):
    torch = pytest.importorskip("torch")

    def trial():
        torch_files()._clean.clear()
        frameworks.remember_clean()
        now = torch.get_num_interop_threads()
        torch.set_num_interop_threads(now + 1)
        assert frameworks.reset_loaded() == [f"torch.set_num_interop_threads({now + 1}) holds for the life of a process"]

    forked(trial)


def test_torchs_default_device_is_put_back_in_the_main_thread(forked):
    torch = pytest.importorskip("torch")

    def trial():
        torch.set_default_device("meta")
        frameworks.reset_loaded()
        assert torch.empty(1).device.type == "cpu"

    forked(trial)


def test_a_process_group_is_destroyed(forked, tmp_path):
    torch = pytest.importorskip("torch")

    def trial():
        for turn in range(2):  # the second would be refused
            torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/{turn}", rank=0, world_size=1)
            assert frameworks.reset_loaded() == []
            assert not torch.distributed.is_initialized()

    forked(trial)


def test_compiled_code_is_forgotten(forked, monkeypatch):
    torch = pytest.importorskip("torch")
    pytest.importorskip("torch._dynamo")

    def trial():
        calls = []
        compiled = torch.compile(lambda x: x + 1, backend=lambda graph, inputs: calls.append(1) or graph.forward)
        compiled(torch.ones(2)), compiled(torch.ones(2))
        assert len(calls) == 1
        frameworks.reset_loaded()
        compiled(torch.ones(2))
        assert len(calls) == 2

    forked(trial, timeout_s=120)


def test_gpu_memory_is_given_back_and_what_is_held_makes_the_worker_unfit(forked, monkeypatch):
    torch = pytest.importorskip("torch")
    called = []

    def trial():
        held = [3 * 2**30]
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: held[0])
        for name in ("empty_cache", "reset_peak_memory_stats", "set_per_process_memory_fraction"):
            monkeypatch.setattr(torch.cuda, name, lambda *a, name=name: called.append(name))
        (reason,) = frameworks.reset_loaded()
        assert reason == "3072 MB of GPU memory are still in use after the trial: something holds its tensors"
        held[0] = 0
        assert frameworks.reset_loaded() == []
        assert {"empty_cache", "reset_peak_memory_stats", "set_per_process_memory_fraction"} == set(called)

    forked(trial)


# ---- transformers, and resets in general


def test_transformers_and_accelerate_are_reset(forked):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    def trial():
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState, GradientState, PartialState
        from transformers.utils import logging as words

        frameworks.remember_clean()
        before = (words.get_verbosity(), words.is_progress_bar_enabled())
        Accelerator(mixed_precision="bf16", cpu=True, gradient_accumulation_steps=4)
        words.set_verbosity_debug()
        words.disable_progress_bar()
        assert frameworks.reset_loaded() == []
        assert (words.get_verbosity(), words.is_progress_bar_enabled()) == before
        assert not AcceleratorState._shared_state and not PartialState._shared_state and not GradientState._shared_state
        assert Accelerator(mixed_precision="no", cpu=True).mixed_precision == "no"

    forked(trial, timeout_s=120)


def test_a_reset_that_fails_is_a_reason(monkeypatch):
    from tunelab.frameworks.torch import Torch

    def fail(self):
        raise AttributeError("torch has moved it")

    monkeypatch.setattr(Torch, "reset", fail)
    monkeypatch.setitem(sys.modules, "torch", sys)
    assert frameworks.reset_loaded()[:1] == ["torch cannot be reset: AttributeError: torch has moved it"]


def test_only_loaded_frameworks_are_reset(monkeypatch):
    asked = []
    for name in frameworks.names():
        framework = frameworks.load(name)
        monkeypatch.setattr(framework, "reset", lambda self: asked.append(self.name))
        monkeypatch.setattr(framework, "libraries", ("gc",) if name == "torch" else ("not_there",))
    assert frameworks.reset_loaded() == [] and asked == ["torch"]


@pytest.mark.parametrize("seed", [0, 7])
def test_seeds_cover_python_numpy_and_torch(seed):
    """Random states are not put back: each trial is seeded anew, which is this."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("ray")
    import random

    from tunelab.engine.ray.worker import seed_everything

    drawn = []
    for _ in range(2):
        seed_everything(seed)
        drawn.append((random.random(), numpy.random.rand(), torch.rand(1).item()))
    assert drawn[0] == drawn[1]
