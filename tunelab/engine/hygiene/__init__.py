"""A worker process runs trial after trial. This puts it back as it was before the first one.

    clean = CleanState.take()          # in the main thread, after the train loop's modules are imported, before it runs
    ...
    reasons = frameworks.reset_loaded()
    cleanup = clean.restore()          # after each trial, in the main thread
    if reasons or not cleanup.fit:     # start another process

What a trial may leave behind is a list of small classes, each of which notes its part of the process and puts it back; they are
in `interpreter`, `settings`, `logs`, `numerics` and `modules`. Threads, child processes and memory cannot be put back; they are
ended, or the process is not fit for another trial: `threads`, `children`, `memory`. `state` holds all of it together.

Nothing can undo what a trial did to objects of modules that stay imported: patched functions, filled caches, registered
classes, `pandas` options. Nor what has no way to be read: a thread's signal mask, functions given to `atexit`. Seeds need no
care, as each trial is seeded anew. Libraries' own settings are reset by `tunelab.frameworks`.
"""

from tunelab.engine.hygiene.cleanup import Cleanup
from tunelab.engine.hygiene.state import CleanState

__all__ = ["CleanState", "Cleanup"]
