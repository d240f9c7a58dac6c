"""What a clean-up says of itself: `Found` while it goes on, `Cleanup` at its end."""

from __future__ import annotations

from dataclasses import dataclass, field


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


@dataclass
class Found:
    """Collects, as `Cleanup` names them, what the parts of a clean-up have to say; `reasons` are why the process is not fit."""

    restored: list[str] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
