"""Who is alive: locks that the operating system gives back when their holder dies, however it dies."""

from __future__ import annotations

import fcntl  # POSIX, like Ray Train's own workers
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OWNER = ".owner"
_AGE_S = 10.0  # between making the file and holding its lock there is a moment


def held(file: Path) -> bool:
    """Whether a living process holds the lock on `file`. Looks without taking it: a shared lock, given back at once."""
    try:
        with file.open("rb") as opened:
            try:
                fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            fcntl.flock(opened, fcntl.LOCK_UN)
    except OSError:
        return False
    return False


@contextmanager
def scratch(prefix: str) -> Iterator[str]:
    """A temporary folder that is removed at the end; one that a killed process leaves can be told from one in use.

    Its owner holds a lock in it, which `abandoned` looks at.

    Args:
        prefix: Of the folder's name, such as `tunelab-tune-`.
    """
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as folder:
        with Path(folder, OWNER).open("wb") as owner:
            fcntl.flock(owner, fcntl.LOCK_EX)
            yield folder


def abandoned(folder: Path) -> bool:
    """Whether this is a folder of `scratch` whose owner is dead. False for any other folder."""
    owner = folder / OWNER
    if folder.is_symlink() or owner.is_symlink() or not owner.is_file():
        return False
    return time.time() - owner.stat().st_mtime > _AGE_S and not held(owner)
