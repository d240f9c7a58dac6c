"""Whether the kernel has killed a process for want of memory. The process cannot tell, and others only see that it is gone."""

from __future__ import annotations

from pathlib import Path


def kernel_kills(vmstat: Path = Path("/proc/vmstat")) -> int | None:
    """How many processes the kernel has killed on this machine for want of memory, of the machine's or of a container's, since
    it started; None where it does not say.
    """
    try:
        for line in vmstat.read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    except (OSError, ValueError):
        pass
    return None


def killed_since(before: int | None) -> bool:
    """Whether that has happened since the count was `before`. Never where it is not known."""
    now = kernel_kills()
    return before is not None and now is not None and now > before
