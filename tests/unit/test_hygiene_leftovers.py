"""What a trial leaves running or holds on to is ended, or its worker is not used again."""

from __future__ import annotations

import concurrent.futures
import gc
import importlib
import multiprocessing
import os
import resource
import subprocess
import sys
import threading
import time
import weakref

import pytest

from tests.unit.forks import in_a_fork
from tunelab.engine.hygiene import CleanState, children, memory, threads

SLEEP = "import time; time.sleep(60)"


# ---- threads


def test_a_thread_that_runs_on_makes_the_worker_unfit():
    def trial():
        clean = CleanState.take()
        threading.Thread(target=time.sleep, args=(60,), name="loader-1", daemon=False).start()
        threading.Thread(target=time.sleep, args=(60,), name="loader-2", daemon=False).start()
        cleanup = clean.restore()
        assert not cleanup.fit
        assert cleanup.reason == "2 threads still run: loader-1, loader-2" and cleanup.leftovers == (cleanup.reason,)

    in_a_fork(trial)


def test_so_does_a_daemon_thread_of_the_users():
    def spin():
        while True:
            time.sleep(0.01)

    def trial():
        clean = CleanState.take()
        threading.Thread(target=spin, name="spin", daemon=True).start()
        assert clean.restore().reason == "1 thread still runs: spin"

    in_a_fork(trial)


def test_so_does_a_timer_that_is_to_run_the_users_code():
    def trial():
        clean = CleanState.take()
        timer = threading.Timer(60, lambda: None)
        timer.daemon = True
        timer.start()
        assert not clean.restore().fit

    in_a_fork(trial)


def test_a_thread_that_ends_within_a_moment_does_not():
    def trial():
        clean = CleanState.take()
        threading.Thread(target=time.sleep, args=(0.2,)).start()
        cleanup = clean.restore()
        assert cleanup.fit and not cleanup.leftovers

    in_a_fork(trial)


def test_a_pools_idle_threads_do_not_but_busy_ones_do():
    def trial():
        clean = CleanState.take()
        pool = concurrent.futures.ThreadPoolExecutor(2)
        pool.submit(int).result()
        assert clean.restore().fit
        pool.submit(time.sleep, 60)
        assert "ThreadPoolExecutor" in clean.restore().reason

    in_a_fork(trial)


def test_a_pool_that_nothing_refers_to_ends():
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

    in_a_fork(trial)


def test_a_thread_of_which_nobody_can_tell_whose_it_is_makes_the_worker_unfit():
    """`time.sleep` has no file. In a trial all threads are daemons, like the one that starts them."""

    def trial():
        clean = CleanState.take()
        threading.Thread(target=time.sleep, args=(60,), name="asleep", daemon=True).start()
        assert clean.restore().reason == "1 thread still runs: asleep"

    in_a_fork(trial)


@pytest.fixture
def library(tmp_path, monkeypatch):
    """An installed package with a function that a thread may run."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "lagging.py").write_text("import time\ndef watch():\n    time.sleep(60)\n")
    monkeypatch.syspath_prepend(folder)
    yield importlib.import_module("lagging")
    del sys.modules["lagging"]


def test_background_threads_of_libraries_are_left_alone_until_they_are_many(library):
    def trial():
        clean = CleanState.take()
        for _ in range(threads.MANY):
            threading.Thread(target=library.watch, daemon=True).start()
        cleanup = clean.restore()
        assert cleanup.fit and not cleanup.leftovers
        threading.Thread(target=library.watch, daemon=True).start()
        assert clean.restore().reason == f"libraries have left {threads.MANY + 1} threads in the background"

    in_a_fork(trial)


def test_queues_between_processes_feed_in_the_background():
    def trial():
        clean = CleanState.take()
        queue = multiprocessing.get_context("fork").Queue()
        queue.put(1)
        assert any(thread.name == "QueueFeederThread" for thread in threading.enumerate())
        assert clean.restore().fit

    in_a_fork(trial)


# ---- child processes

KEPT = []


def runs(pid):
    child = children.look(pid)
    return child is not None and not child.ended


def test_child_processes_are_ended_and_reported():
    def trial():
        clean = CleanState.take()
        child = subprocess.Popen([sys.executable, "-c", SLEEP])
        time.sleep(0.05)
        cleanup = clean.restore()
        assert children.look(child.pid) is None, "neither ended nor reaped"
        assert cleanup.fit and cleanup.leftovers == (
            f"child process {child.pid} ({children.short(f'{sys.executable} -c {SLEEP}')}) still ran and was ended",
        )
        assert not clean.restore().leftovers

    in_a_fork(trial)


def test_a_child_that_ignores_sigterm_is_killed():
    def trial():
        clean = CleanState.take()
        child = subprocess.Popen(["sh", "-c", "trap '' TERM; echo; while :; do sleep 0.01; done"], stdout=subprocess.PIPE)
        child.stdout.readline()
        assert clean.restore().fit and not runs(child.pid)

    in_a_fork(trial)


def test_grandchildren_and_orphans_are_ended_too():
    def trial():
        clean = CleanState.take()
        tree = subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
        grandchild = int(tree.stdout.readline())
        orphan = int(subprocess.check_output(["sh", "-c", "setsid sleep 60 > /dev/null & echo $!"]))
        assert runs(grandchild) and runs(orphan)
        cleanup = clean.restore()
        assert cleanup.fit and len(cleanup.leftovers) == 3, cleanup
        assert not runs(tree.pid) and not runs(grandchild) and not runs(orphan)

    in_a_fork(trial)


def test_children_that_have_ended_are_reaped_without_a_word():
    def trial():
        clean = CleanState.take()
        child = subprocess.Popen(["true"])
        while runs(child.pid):
            time.sleep(0.01)
        assert children.look(child.pid) is not None
        assert not clean.restore().leftovers
        assert children.look(child.pid) is None

    in_a_fork(trial)


def test_children_from_before_the_first_trial_are_left_alone():
    def trial():
        child = subprocess.Popen(["sleep", "60"])
        cleanup = CleanState.take().restore()
        assert runs(child.pid) and not cleanup.leftovers
        child.kill()

    in_a_fork(trial)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_process_pool_in_use_makes_the_worker_unfit(method):
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
        assert not [child for child in children.descendants() if child.pid not in children.trackers()], "it started others"

    in_a_fork(trial)


def test_the_fork_server_is_stopped_with_the_environment_it_was_started_in():
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

    in_a_fork(trial)


# ---- files and memory


class Batch:
    pass


def test_garbage_is_collected():
    def leave():
        gc.disable()
        batch = Batch()
        batch.itself = batch
        return weakref.ref(batch)

    def trial():
        clean = CleanState.take()
        batch = leave()
        assert batch() is not None
        clean.restore()
        assert batch() is None and gc.isenabled()

    in_a_fork(trial)


def test_open_files_are_counted_and_said_once():
    def trial():
        clean = CleanState.take()
        for _ in range(memory.MANY_FILES + 400):  # the collection in between may close some of the test run's own
            os.open(os.devnull, os.O_RDONLY)
        cleanup = clean.restore()
        (said,) = cleanup.leftovers
        assert said.endswith(" more files and sockets are open than before") and cleanup.fit
        assert not clean.restore().leftovers

    in_a_fork(trial)


def test_a_process_that_runs_out_of_files_is_unfit():
    def trial():
        before = list(map(int, os.listdir("/proc/self/fd")))  # other tests may have left some open in this process
        limit = 100 + max(before)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        clean = CleanState.take()
        opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(limit - len(before) - 5)]
        reason = clean.restore().reason
        for number in opened:
            os.close(number)
        assert reason.endswith(f"of at most {limit} files are open")

    in_a_fork(trial)


def test_memory_is_told_and_what_was_freed_does_not_count():
    def trial():
        clean = CleanState.take()
        first = clean.restore().rss_mb
        hoard = [bytes(2000) for _ in range(300 * 2**20 // 2000)]
        KEPT.append(bytes(2000))  # above the others: the C library gives back nothing of its own accord
        assert clean.restore().rss_mb > first + 250
        del hoard
        assert clean.restore().rss_mb < first + 50

    in_a_fork(trial)
