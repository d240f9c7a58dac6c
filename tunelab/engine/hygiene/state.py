"""`CleanState`: all parts of the process together, and the order in which they are put back."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

from tunelab.engine.hygiene import children, interpreter, logs, memory, modules, numerics, ownership, settings, threads
from tunelab.engine.hygiene.cleanup import Cleanup, Found

# Modules come first: they are told by the path as the trial left it.
LASTING = (*modules.LASTING, *interpreter.LASTING, *settings.LASTING, *logs.LASTING, *numerics.LASTING)


class CleanState:
    """The process as it was before its first trial."""

    def __init__(self) -> None:
        self._parts = [part() for part in LASTING]
        self._threads = threads.Threads()
        self._children = children.Children()
        self._memory = memory.Memory()
        self._frozen_modules = 0
        gc.collect()
        self._freeze()

    @classmethod
    def take(cls) -> CleanState:
        """Note the state of this process, which from now on adopts the orphans of its children so that they can be found.

        Call it in the main thread, when the train loop's modules have been imported: whatever a library sets up later,
        during a trial, is taken for the trial's.
        """
        children.adopt_orphans()
        ownership.installed()  # it imports, which a trial may have made impossible
        return cls()

    def restore(self) -> Cleanup:
        """Put back what can be, end what still runs, and say whether that is enough. Milliseconds, unless something must be
        waited for: then up to a few times `END_S`. Never raises.
        """
        found = Found()
        gc.collect()  # first: pools and loaders that nothing refers to any more end their threads and processes
        self._freeze()
        _try("threads", lambda: self._threads.end(found), found)
        _try("child processes", lambda: self._children.end(found), found)
        for part in self._parts:
            _try(part.what, lambda: found.restored.extend(part.restore()), found)  # noqa: B023
        _try("memory", lambda: self._memory.measure(found), found)
        return Cleanup(
            fit=not found.reasons,
            reason="; ".join(found.reasons),
            leftovers=tuple(found.leftovers),
            restored=tuple(found.restored),
            rss_mb=memory.rss_mb(),
            open_files=memory.open_files(),
        )

    def _freeze(self) -> None:
        """Exempt what is alive from garbage collection: the modules, above all, which stay. A pass over torch's takes 0.1 s.

        Only after many imports, which means once or twice in a process, as what a trial left alive is exempted with them.
        """
        if len(sys.modules) > self._frozen_modules + 50:
            gc.freeze()
            self._frozen_modules = len(sys.modules)


def _try(what: str, step: Callable[[], object], found: Found) -> None:
    try:
        step()
    except Exception as error:
        found.reasons.append(f"{what} cannot be put back: {type(error).__name__}: {error}")
