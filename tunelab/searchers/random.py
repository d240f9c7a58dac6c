"""Random search: uniform over the space (Bergstra and Bengio 2012), without repeating itself where the space is small."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tunelab.core.experiment import Objective
from tunelab.core.space import Space
from tunelab.core.trial import Config, Trial, derive_seed

REDRAWS = 20  # draws that may repeat a trial before the untried configurations are listed


@dataclass(frozen=True)
class Random:
    """Draws each configuration uniformly over the space, on each parameter's scale.

    A configuration that was tried, in whatever state its trial is, is drawn again; when a finite space is used up, there is no
    proposal. In a continuous or very large space a repetition is possible in principle.
    """

    name: ClassVar[str] = "random"

    def problems(self) -> list[str]:
        return []

    def propose(self, number: int, *, space: Space, objective: Objective, history: Sequence[Trial], seed: int) -> Config | None:
        """The configuration for trial `number`: depends on (seed, number) and on which configurations were tried."""
        return untried(space, history, np.random.default_rng(derive_seed(seed, "random", number)))


def untried(space: Space, history: Sequence[Trial], rng: np.random.Generator) -> Config | None:
    """A random configuration that no trial in `history` has, or None when there is none left."""
    configs = [trial.config for trial in history]
    for _ in range(REDRAWS):
        config = space.sample(rng)
        if config not in configs:  # cheap: dictionaries mostly differ in their first value
            return config
    tried = {space.key(config) for config in configs}
    count = space.count()
    if count is None or count > 2 * len(tried) + 1000:  # endless, or so large that the next draw is almost surely new
        return config
    left = [config for config in space.enumerate() if space.key(config) not in tried]
    return left[int(rng.integers(len(left)))] if left else None
