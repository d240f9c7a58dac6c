"""Grid search: every combination, in a fixed order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tunelab.core.experiment import Objective
from tunelab.core.space import Space
from tunelab.core.trial import Config, Trial


@dataclass(frozen=True)
class Grid:
    """Tries all configurations like nested loops, the first parameter slowest; skips those tried, the baseline included.

    Args:
        points: Values taken from each continuous parameter (`Float` without a step), both ends included, evenly spaced on its
            scale. At least 1 (the middle). None when there is no continuous parameter.

    The order does not depend on the seed. Conditions and constraints hold: an off parameter multiplies nothing.
    """

    points: int | None = None

    name: ClassVar[str] = "grid"

    def problems(self) -> list[str]:
        if self.points is None or (isinstance(self.points, int) and not isinstance(self.points, bool) and self.points >= 1):
            return []
        return [f"Grid needs points >= 1 or None, got points={self.points!r}."]

    def space_problems(self, space: Space) -> list[str]:
        """Why the space cannot be searched with this grid; empty when it can."""
        if self.points is not None:
            return []
        endless = [name for name, parameter in space.parameters.items() if parameter.size() is None]
        if not endless:
            return []
        return [f"Grid needs points=..., such as Grid(points=5), or a step, because {', '.join(endless)} is continuous."]

    def propose(self, number: int, *, space: Space, objective: Objective, history: Sequence[Trial], seed: int) -> Config | None:
        """The first configuration that no trial has, or None after the last.

        Raises:
            InvalidExperimentError: The space has a continuous parameter and `points` is None.
        """
        tried = {space.key(trial.config) for trial in history}
        return next((config for config in space.enumerate(self.points) if space.key(config) not in tried), None)
