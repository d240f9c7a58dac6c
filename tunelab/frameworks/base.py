"""What all frameworks have in common, and what is true of one that says nothing else.

The contract is `tunelab.core.protocols.Framework`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, ClassVar

from tunelab.core.experiment import Export


class Base:
    """Defaults: runs in any trainer, needs no reset, joins nothing, and reads no checkpoint by itself."""

    name: ClassVar[str]
    libraries: ClassVar[tuple[str, ...]] = ()
    trainers: ClassVar[tuple[str, ...]] = ()
    preload: ClassVar[bool] = True

    def loaded(self) -> bool:
        """Whether this process has imported one of the framework's libraries."""
        return any(library in sys.modules for library in self.libraries)

    def refuse(self, trainer: Any) -> list[str]:
        return []

    def prepare(self, trainer: Any) -> Any:
        return trainer

    def joined(self) -> int | None:
        return None

    def seed(self, seed: int) -> None:
        """Nothing: there is no generator for the whole process."""

    def remember(self) -> None:
        """Nothing: there are no settings for the whole process."""

    def reset(self) -> str | None:
        return None

    def explain(self, error: BaseException) -> str | None:
        return None

    def reads(self, checkpoint: Path, hooks: Export | None) -> bool:
        return False


def has_hooks(hooks: Export | None) -> bool:
    """Whether the user says how a checkpoint becomes a model, so that it need not describe itself."""
    return hooks is not None and (hooks.build is not None or hooks.load is not None)
