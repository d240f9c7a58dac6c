"""A worker process runs trial after trial. This puts it back as it was before the first one.

    clean = CleanState.take()          # in the main thread, after the train loop's modules are imported, before it runs
    ...
    reasons = frameworks.reset_loaded()
    cleanup = clean.restore()          # after each trial, in the main thread
    if reasons or not cleanup.fit:     # start another process

What a trial may leave behind is a list of small classes, `_LASTING`, each of which notes its part of the process and puts it
back. Threads, child processes and memory cannot be put back; they are ended, or the process is not fit for another trial.

Nothing can undo what a trial did to objects of modules that stay imported: patched functions, filled caches, registered
classes, `pandas` options. Nor what has no way to be read: a thread's signal mask, functions given to `atexit`. Seeds need no
care, as each trial is seeded anew. Libraries' own settings are reset by `tunelab.frameworks`.
"""

from __future__ import annotations

import ctypes
import errno
import faulthandler
import gc
import importlib
import locale
import logging
import multiprocessing
import os
import resource
import signal
import socket
import sys
import sysconfig
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import thread as pool_threads
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

END_S = 1.0  # how long threads and children may take to end by themselves
MANY_FILES = 64  # open files that a trial may leave before it is mentioned
MANY_THREADS = 32  # background threads that libraries may leave in all; more are a leak
BLOATED_MB = 1024  # growth since the first trial beyond which the process is replaced, if it has also doubled


@dataclass(frozen=True, kw_only=True)
class Cleanup:
    """What `CleanState.restore` found and did.

    Args:
        fit: Whether the process may run another trial.
        reason: Why not, in a sentence; "" if it may.
        leftovers: What the trial's author may want to know, a sentence each.
        restored: What was put back as a matter of routine: `environment variable LR_DEBUG`, `working directory`.
        rss_mb: Memory that the process holds now.
        open_files: Files and sockets that it holds open.
    """

    fit: bool
    reason: str = ""
    leftovers: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()
    rss_mb: float = 0.0
    open_files: int = 0


class CleanState:
    """The process as it was before its first trial."""

    def __init__(self) -> None:
        self._parts: list[Any] = [part() for part in _LASTING]
        self._threads = set(threading.enumerate())
        self._children = {child.pid for child in _children()}
        self._open_files = _open_files()
        self._rss_mb: float | None = None  # after the first trial: imports and pools are paid for by then
        self._frozen_modules = 0
        gc.collect()
        self._freeze()

    @classmethod
    def take(cls) -> CleanState:
        """Note the state of this process, which from now on adopts the orphans of its children so that they can be found.

        Call it in the main thread, when the train loop's modules have been imported: whatever a library sets up later,
        during a trial, is taken for the trial's.
        """
        _adopt_orphans()
        _installed()  # it imports, which a trial may have made impossible
        return cls()

    def restore(self) -> Cleanup:
        """Put back what can be, end what still runs, and say whether that is enough. Milliseconds, unless something must be
        waited for: then up to a few times `END_S`. Never raises.
        """
        self.restored: list[str] = []
        self.leftovers: list[str] = []
        self.reasons: list[str] = []
        gc.collect()  # first: pools and loaders that nothing refers to any more end their threads and processes
        self._freeze()
        for what, step in (("threads", self._end_threads), ("child processes", self._end_children)):
            self._try(what, step)
        for part in self._parts:
            self._try(part.what, lambda: self.restored.extend(part.restore()))  # noqa: B023
        self._try("memory", self._measure)
        return Cleanup(
            fit=not self.reasons,
            reason="; ".join(self.reasons),
            leftovers=tuple(self.leftovers),
            restored=tuple(self.restored),
            rss_mb=_rss_mb(),
            open_files=_open_files(),
        )

    def _try(self, what: str, step: Callable[[], object]) -> None:
        try:
            step()
        except Exception as error:
            self.reasons.append(f"{what} cannot be put back: {type(error).__name__}: {error}")

    def _freeze(self) -> None:
        """Exempt what is alive from garbage collection: the modules, above all, which stay. A pass over torch's takes 0.1 s.

        Only after many imports, which means once or twice in a process, as what a trial left alive is exempted with them.
        """
        if len(sys.modules) > self._frozen_modules + 50:
            gc.freeze()
            self._frozen_modules = len(sys.modules)

    def _end_threads(self) -> None:
        """Threads cannot be killed. Those that run the user's code, or that would keep the process alive, make it unfit."""
        until = time.monotonic() + END_S
        while disturbing := [thread for thread in self._new_threads() if _disturbs(thread)]:
            if time.monotonic() > until:
                names = ", ".join(sorted(thread.name for thread in disturbing))
                runs = "thread still runs" if len(disturbing) == 1 else "threads still run"
                self.leftovers.append(f"{len(disturbing)} {runs}: {names}")
                self.reasons.append(self.leftovers[-1])
                return
            time.sleep(0.002)
        background = len(self._new_threads())
        if background > MANY_THREADS:
            self.reasons.append(f"libraries have left {background} threads in the background")

    def _new_threads(self) -> list[threading.Thread]:
        here = threading.current_thread()
        return [thread for thread in threading.enumerate() if thread not in self._threads and thread is not here]

    def _end_children(self) -> None:
        _stop_fork_server()
        spared = self._children | _trackers()
        pooled = {process.pid for process in multiprocessing.active_children()}
        found = [child for child in _children() if child.pid not in spared]
        alive = [child for child in found if not child.ended]
        self.leftovers += [f"child process {child.pid} ({child.command}) still ran and was ended" for child in alive]
        if pooled & {child.pid for child in alive}:
            # Whoever started them still holds on to them, and would fail or hang when the next trial used it.
            self.reasons.append("a multiprocessing pool or process of the trial's was still in use")
            _stop_pools()
        for _ in range(3):  # one may have started another in the meantime
            _end(found)
            found = [child for child in _children() if child.pid not in spared and _is_alive(child)]
        if found:
            self.reasons.append(f"{len(found)} child processes cannot be ended or come back")

    def _measure(self) -> None:
        _return_free_memory()
        rss_mb, open_files = _rss_mb(), _open_files()
        if open_files > self._open_files + MANY_FILES:
            self.leftovers.append(f"{open_files - self._open_files} more files and sockets are open than before")
            self._open_files = open_files  # say it once
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if most != resource.RLIM_INFINITY and open_files > 0.8 * most:
            self.reasons.append(f"{open_files} of at most {most} files are open")
        if self._rss_mb is None:
            self._rss_mb = rss_mb
        if rss_mb > max(2 * self._rss_mb, self._rss_mb + BLOATED_MB):
            self.reasons.append(f"it has grown from {self._rss_mb:.0f} to {rss_mb:.0f} MB since its first trial")


# ---- what lasts in a process and can be put back: noted when made, `restore` names what had changed


class _Environment:
    what = "environment variables"

    def __init__(self) -> None:
        self._clean = dict(os.environ)

    def restore(self) -> Iterator[str]:
        now = dict(os.environ)
        if now == self._clean:
            return
        for name in sorted(now.keys() | self._clean.keys()):
            if now.get(name) != self._clean.get(name):
                if name in self._clean:
                    os.environ[name] = self._clean[name]
                else:
                    del os.environ[name]
                yield f"environment variable {name}"
        if now.get("TZ") != self._clean.get("TZ"):
            time.tzset()


class _Folder:
    what = "working directory"

    def __init__(self) -> None:
        try:
            self._clean = os.getcwd()
        except FileNotFoundError:  # it was deleted
            self._clean = tempfile.gettempdir()

    def restore(self) -> Iterator[str]:
        try:
            changed = os.getcwd() != self._clean
        except FileNotFoundError:
            changed = True
        if changed:
            os.chdir(self._clean)
            yield self.what


class _Lists:
    """Lists and dictionaries are put back in place: others hold the same objects."""

    what = "import paths"
    _NAMES = ("path", "argv", "meta_path", "path_hooks", "warnoptions")

    def __init__(self) -> None:
        self._clean = {name: list(getattr(sys, name)) for name in self._NAMES}
        self._objects = {name: getattr(sys, name) for name in self._NAMES}

    def restore(self) -> Iterator[str]:
        for name in self._NAMES:
            if getattr(sys, name) is not self._objects[name] or self._objects[name] != self._clean[name]:
                self._objects[name][:] = self._clean[name]
                setattr(sys, name, self._objects[name])
                yield f"sys.{name}"


class _Attributes:
    """Attributes of modules that hold for the whole process."""

    what = "attributes of the standard library"
    _NAMES = (
        (sys, "excepthook"), (sys, "unraisablehook"), (sys, "displayhook"), (sys, "stdin"), (sys, "stdout"), (sys, "stderr"),
        (sys, "dont_write_bytecode"), (sys, "pycache_prefix"), (threading, "excepthook"), (tempfile, "tempdir"),
        (warnings, "formatwarning"), (logging, "raiseExceptions"), (logging, "lastResort"),
    )  # fmt: skip

    def __init__(self) -> None:
        self._clean = [getattr(module, name) for module, name in self._NAMES]

    def restore(self) -> Iterator[str]:
        for (module, name), clean in zip(self._NAMES, self._clean, strict=True):
            if getattr(module, name) is not clean:
                setattr(module, name, clean)
                yield f"{module.__name__}.{name}"


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


_LIMITS = tuple(getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_"))


def _limits() -> list[tuple[int, tuple[int, int]]]:
    return [(kind, resource.getrlimit(kind)) for kind in _LIMITS]


def _affinity() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def _stack_size() -> int:
    size = threading.stack_size()  # which sets it to the default
    threading.stack_size(size)
    return size


def _set_limits(limits: list[tuple[int, tuple[int, int]]]) -> None:
    for kind, limit in limits:
        resource.setrlimit(kind, limit)


class _Settings:
    """What is read by one function and written by another."""

    what = "settings of the standard library"
    _TABLE: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
        "umask": (_umask, os.umask),
        "locale": (lambda: locale.setlocale(locale.LC_ALL), lambda clean: locale.setlocale(locale.LC_ALL, clean)),
        "recursion limit": (sys.getrecursionlimit, sys.setrecursionlimit),
        "switch interval": (sys.getswitchinterval, sys.setswitchinterval),
        "tracing of threads": (threading.gettrace, threading.settrace),
        "profiling of threads": (threading.getprofile, threading.setprofile),
        "stack size of threads": (_stack_size, threading.stack_size),
        "socket timeout": (socket.getdefaulttimeout, socket.setdefaulttimeout),
        "garbage collection": (gc.isenabled, lambda clean: gc.enable() if clean else gc.disable()),
        "garbage collection's thresholds": (gc.get_threshold, lambda clean: gc.set_threshold(*clean)),
        "garbage collection's debugging": (gc.get_debug, gc.set_debug),
        "multiprocessing's start method": (
            lambda: multiprocessing.get_start_method(allow_none=True),
            lambda clean: multiprocessing.set_start_method(clean, force=True),
        ),
        "faulthandler": (
            faulthandler.is_enabled,
            lambda clean: faulthandler.enable(2) if clean else faulthandler.disable(),
        ),
        "priority": (
            lambda: os.getpriority(os.PRIO_PROCESS, 0),
            lambda clean: os.setpriority(os.PRIO_PROCESS, 0, clean),
        ),
        "limits": (_limits, _set_limits),
        "CPU affinity": (_affinity, lambda clean: os.sched_setaffinity(0, clean)),
        "timer": (lambda: signal.getitimer(signal.ITIMER_REAL)[0] > 0, lambda clean: signal.setitimer(signal.ITIMER_REAL, 0)),
    }

    def __init__(self) -> None:
        self._clean = {name: read() for name, (read, _) in self._TABLE.items()}

    def restore(self) -> Iterator[str]:
        for name, (read, write) in self._TABLE.items():
            if read() != self._clean[name]:
                write(self._clean[name])
                yield name


class _Warnings:
    what = "warnings"

    def __init__(self) -> None:
        self._enter()

    def _enter(self) -> None:
        """Leaving the context puts filters and `showwarning` back, whatever happened in between."""
        self._context = warnings.catch_warnings()
        self._context.__enter__()
        self._clean = (list(warnings.filters), warnings.showwarning)

    def restore(self) -> Iterator[str]:
        if (list(warnings.filters), warnings.showwarning) != self._clean:
            if warnings.showwarning is not self._clean[1]:
                logging.captureWarnings(False)  # it keeps books of its own
            self._context.__exit__(None, None, None)
            self._enter()
            yield self.what


_LoggerState = tuple[tuple[logging.Handler, ...], tuple[Any, ...], int, bool, bool]


class _Logging:
    """Handlers, levels and filters of all loggers. A handler that a trial added is removed and closed.

    A logger of a library that was first imported during a trial keeps its level, and handlers that write to this process's own
    output: libraries set them once, when they are imported, and what the trial made of them cannot be told apart.
    """

    what = "logging"

    def __init__(self) -> None:
        self._switches = (logging.root.manager.disable, logging.getLoggerClass(), logging.getLogRecordFactory())
        self._modules = set(sys.modules)
        self._clean = {name: _logger_state(logger) for name, logger in _loggers()}
        self._handlers = {handler: _handler_state(handler) for state in self._clean.values() for handler in state[0]}

    def restore(self) -> Iterator[str]:
        if (logging.root.manager.disable, logging.getLoggerClass(), logging.getLogRecordFactory()) != self._switches:
            logging.disable(self._switches[0])
            logging.setLoggerClass(self._switches[1])
            logging.setLogRecordFactory(self._switches[2])
            yield "logging's switches"
        removed: set[logging.Handler] = set()
        for name, logger in _loggers():
            now = _logger_state(logger)
            clean = self._clean.get(name)
            if clean is None:
                clean = self._first_seen(name, now)
                self._clean[name] = clean
                self._handlers.update({handler: _handler_state(handler) for handler in clean[0]})
            if now != clean:
                removed.update(handler for handler in now[0] if handler not in clean[0])
                logger.handlers[:], logger.filters[:] = clean[0], clean[1]
                logger.setLevel(clean[2])
                logger.propagate, logger.disabled = clean[3], clean[4]
                yield f"logger {name or 'root'}"
        for handler, state in self._handlers.items():
            if _handler_state(handler) != state:
                handler.setLevel(state[0])
                handler.setFormatter(state[1])
                handler.filters[:] = state[2]
                yield f"handler {type(handler).__name__}"
        for handler in removed - self._handlers.keys():
            with suppress(Exception):
                handler.close()

        self._modules.update(sys.modules)

    def _first_seen(self, name: str, now: _LoggerState) -> _LoggerState:
        owner = name
        while owner and owner not in sys.modules:
            owner = owner.rpartition(".")[0]
        if not owner or owner in self._modules or not _is_library(_file_of(sys.modules[owner])):
            return ((), (), logging.NOTSET, True, False)
        return (tuple(handler for handler in now[0] if _writes_to_output(handler)), *now[1:])


class _Signals:
    """Handlers. Python lets only the main thread set them, so a trial can change them only through a callback."""

    what = "signal handlers"

    def __init__(self) -> None:
        self._clean = {number: signal.getsignal(number) for number in signal.valid_signals()}

    def restore(self) -> Iterator[str]:
        for number, clean in self._clean.items():
            if signal.getsignal(number) is not clean and signal.getsignal(number) != clean:
                if clean is None:
                    raise RuntimeError(f"{signal.Signals(number).name} was handled outside of Python")
                signal.signal(number, clean)
                yield f"handler of {signal.Signals(number).name}"


class _NumPy:
    """Error handling, print options and the global generator; not if NumPy was loaded later than this."""

    what = "NumPy's settings"

    def __init__(self) -> None:
        numpy = self._numpy = sys.modules.get("numpy")
        if numpy is not None:
            self._clean = (numpy.geterr(), numpy.geterrcall(), numpy.get_printoptions())
            self._generator = numpy.random.get_bit_generator()

    def restore(self) -> Iterator[str]:
        numpy = self._numpy
        if numpy is None:
            return
        if (numpy.geterr(), numpy.geterrcall(), numpy.get_printoptions()) != self._clean:
            numpy.seterr(**self._clean[0])
            numpy.seterrcall(self._clean[1])
            numpy.set_printoptions(**self._clean[2])
            yield self.what
        if numpy.random.get_bit_generator() is not self._generator:
            numpy.random.set_bit_generator(self._generator)
            yield "NumPy's global generator"


class _Modules:
    """Modules from folders that only the trial had on its path: the next one may mean others by the same names."""

    what = "modules"

    def __init__(self) -> None:
        self._path = set(sys.path)
        self._known = set(sys.modules)

    def restore(self) -> Iterator[str]:
        """Runs before the path itself is put back."""
        with suppress(FileNotFoundError):
            foreign = {os.path.abspath(folder) for folder in sys.path if not folder or folder not in self._path} - self._path
            new = sys.modules.keys() - self._known
            forgotten = sorted(name for name in new if _root_of(name) in foreign)
            for name in forgotten:
                del sys.modules[name]
            self._known.update(new.difference(forgotten))
            if forgotten:
                importlib.invalidate_caches()
                yield f"modules {', '.join(forgotten)}"


def _root_of(name: str) -> str | None:
    """The folder on the path from which a module of the user's comes."""
    file = _file_of(sys.modules.get(name))
    if file is None or not file.endswith(".py") or _is_library(file):
        return None
    folder = Path(os.path.abspath(file)).parent
    levels = name.count(".") + (Path(file).name == "__init__.py")
    return str(folder.parents[levels - 1] if levels else folder)


_LASTING: tuple[type, ...] = (
    _Modules, _Environment, _Folder, _Lists, _Attributes, _Settings, _Warnings, _Logging, _Signals, _NumPy,
)  # fmt: skip


def _loggers() -> Iterator[tuple[str, logging.Logger]]:
    yield "", logging.root
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger):
            yield name, logger


def _logger_state(logger: logging.Logger) -> _LoggerState:
    return tuple(logger.handlers), tuple(logger.filters), logger.level, logger.propagate, logger.disabled


def _handler_state(handler: logging.Handler) -> tuple[int, Any, tuple[Any, ...]]:
    return handler.level, handler.formatter, tuple(handler.filters)


def _writes_to_output(handler: logging.Handler) -> bool:
    if isinstance(handler, logging.NullHandler):
        return True
    return getattr(handler, "stream", None) in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)


# ---- threads


def _disturbs(thread: threading.Thread) -> bool:
    """Whether a thread keeps the process from being as good as new.

    A library's thread in the background, such as a progress bar's, does not, nor a pool's that has nothing to do. All others
    do: they run the user's code, or would hold up the end of the process, or nobody can tell whose they are. Threads that a
    trial starts are daemons, because its own thread is one, so that alone says nothing.
    """
    frame = sys._current_frames().get(thread.ident or 0)
    if frame is None:
        return False  # it has ended
    if thread in pool_threads._threads_queues:
        waits = frame.f_code is pool_threads._worker.__code__ and frame.f_locals.get("work_item") is None
        return not (waits and pool_threads._threads_queues[thread].empty())
    target = getattr(thread, "_target", None) or getattr(thread, "function", None)  # of Thread, of Timer
    code = getattr(target, "__code__", None)
    files = [] if code is None else [code.co_filename]
    while frame is not None:
        files.append(frame.f_code.co_filename)
        frame = frame.f_back
    return not (thread.daemon and all(map(_is_library, files)) and any(_in_folder(file, _THREADED) for file in files))


_SITE = ("site-packages", "dist-packages")
_THREADED = (*_SITE, "multiprocessing", "concurrent", "asyncio")  # the standard library's that do their work in threads


def _is_library(file: str | None) -> bool:
    """Whether code is installed, built in, or tunelab's, and so not the user's."""
    return file is None or file.startswith(("<frozen", *_installed())) or _in_folder(file, _SITE)


def _in_folder(file: str, names: tuple[str, ...]) -> bool:
    return any(f"{os.sep}{name}{os.sep}" in file for name in names)


@cache
def _installed() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = [paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [os.path.dirname(os.__file__), os.path.dirname(os.path.realpath(os.__file__))]
    return tuple(f"{folder}{os.sep}" for folder in [*folders, str(Path(__file__).parents[1])])


def _file_of(module: Any) -> str | None:
    file = getattr(module, "__file__", None)
    return file if isinstance(file, str) else None


# ---- child processes


@dataclass(frozen=True)
class _Child:
    """A descendant. Its start tells it from a later process of the same number."""

    pid: int
    started: str
    command: str
    ended: bool  # and only waits to be asked how


def _children(of: int | None = None) -> list[_Child]:
    """All descendants, parents before children. Linux alone tells; elsewhere none are found."""
    found = []
    for pid in _child_pids("self" if of is None else str(of)):
        if (child := _look(pid)) is not None:
            found += [child, *_children(pid)]
    return found


def _child_pids(of: str) -> list[int]:
    pids: list[int] = []
    with suppress(OSError):  # no /proc, or the process has just ended
        for thread in os.listdir(f"/proc/{of}/task"):
            with suppress(OSError), open(f"/proc/{of}/task/{thread}/children") as file:
                pids += map(int, file.read().split())
    return pids


def _look(pid: int) -> _Child | None:
    try:
        with open(f"/proc/{pid}/stat") as file:
            name, _, fields = file.read().partition("(")[2].rpartition(") ")
        with open(f"/proc/{pid}/cmdline") as file:
            command = " ".join(file.read().replace("\0", " ").split())
    except OSError:
        return None
    state, started = fields.split()[0], fields.split()[19]
    return _Child(pid, started, _short(command or name), ended=state in "ZX")


def _short(text: str, length: int = 60) -> str:
    return text if len(text) <= length else f"{text[: length - 3]}..."


def _end(children: list[_Child]) -> None:
    """Ask them to end; after `END_S`, kill them. Waits until they are gone, for as long again at most."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for child in children:
            if _is_alive(child):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(child.pid, number)
        until = time.monotonic() + END_S
        while sum(map(_is_alive, children)):  # not `any`, so that all are reaped
            if time.monotonic() > until:
                break
            time.sleep(0.005)
        else:
            return


def _is_alive(child: _Child) -> bool:
    """Reaps it if it has ended and is this process's own."""
    now = _look(child.pid)
    if now is None or now.started != child.started:
        return False
    if now.ended:
        with suppress(ChildProcessError):
            os.waitpid(child.pid, os.WNOHANG)
        return False
    return True


def _trackers() -> set[int]:
    """multiprocessing's resource tracker: started once, holds nothing of a trial's, and is missed when it is gone."""
    tracker = sys.modules.get("multiprocessing.resource_tracker")
    pid = getattr(getattr(tracker, "_resource_tracker", None), "_pid", None)
    return set() if pid is None else {pid}


def _stop_fork_server() -> None:
    """It hands the environment of the trial that started it to all processes that it forks. It starts again when needed."""
    server = getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", None)
    if server is not None and server._forkserver_pid is not None:
        server._stop()


def _stop_pools() -> None:
    """Keep pools from starting new processes in place of those that are ended."""
    pools = sys.modules.get("multiprocessing.pool")
    for thread in threading.enumerate():
        if pools is not None and getattr(thread, "_target", None) == pools.Pool._handle_workers:
            setattr(thread, "_state", pools.TERMINATE)  # noqa: B010


def _adopt_orphans() -> None:
    """Make the kernel hand the children of dead children to this process instead of to init."""
    if sys.platform == "linux":
        PR_SET_CHILD_SUBREAPER = 36
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


# ---- measures


def _open_files() -> int:
    try:
        return len(os.listdir("/proc/self/fd" if sys.platform == "linux" else "/dev/fd"))
    except OSError as error:
        if error.errno == errno.EMFILE:
            return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return 0


def _rss_mb() -> float:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize() / 2**20
    except OSError:  # not Linux: the most that it ever was
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def _return_free_memory() -> None:
    """glibc keeps what is freed. Without this, memory would seem to grow with the largest trial so far."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
