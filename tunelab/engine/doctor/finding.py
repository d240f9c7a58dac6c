"""What the doctor says: one line a finding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be.

    Args:
        kind: `process`, `temporary`, `half-written`, `checkpoint`, `tracking`, `journal`, `folder`,
            `placement group` or `unfinished`.
        where: A sweep's id, or a path.
        what: What is wrong.
        remedy: What `--fix` does about it, such as `removes it`; empty where it can do nothing.
        items: The paths, processes or runs that it is about, for programs.
        repair: Does it and returns whether it is out of the way; None where nothing can be done.
        counts: Whether it makes the exit status 1.
    """

    kind: str
    where: str
    what: str
    remedy: str = ""
    items: tuple[str, ...] = ()
    repair: Callable[[], bool] | None = field(default=None, compare=False, repr=False)
    counts: bool = True
