"""How often a train loop waits for a decision.

A conversation (worker, trial actor, driver, and back) costs some milliseconds. A loop that reports every few seconds waits at
each report. One that reports a thousand boosting rounds a second would do little else, so it waits only now and then, and at
each step at which the scheduler has something to say; what it reports in between is passed on in order, without waiting.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

WORTH_S = 0.02  # reports further apart than this wait for the decision each
BATCH_S = 0.1  # a loop that reports faster waits about this often
LARGEST = 10_000


class Pace:
    """Follows the reports of one attempt and says after how many more of them the loop is to wait.

    Args:
        mode: `"lockstep"` waits at each report; `"coalesced"` about every `BATCH_S`; `"auto"` at each unless they come
            faster than every `WORTH_S`.
        step: Key of the step in the metrics, or None when reports are counted.
        clock: Monotonic seconds.
    """

    def __init__(self, mode: str, step: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._mode, self._key, self._clock = mode, step, clock
        self.until = math.inf  # the step at which the scheduler next has something to say
        self._step, self._stride = 0.0, 0.0
        self._count = 0  # reports since the last answer
        self._batch = 1
        self._answered_at = self._reported_at = clock()

    @property
    def soon(self) -> bool:
        """Whether the loop is sure to wait again within moments, because it was told to make several reports first."""
        return self._batch > 1

    def saw(self, metrics: Mapping[str, Any]) -> None:
        """A report was made."""
        self._count += 1
        self._reported_at = self._clock()
        said = metrics.get(self._key) if self._key is not None else None
        step = float(said) if isinstance(said, (int, float)) and math.isfinite(said) else self._step + 1
        self._stride, self._step = step - self._step, step

    def batch(self) -> int:
        """The loop is about to be answered: how many reports it makes until it waits again. At least 1.

        All ranks are told the same number, so it must not depend on anything that differs between them.
        """
        interval = (self._reported_at - self._answered_at) / max(1, self._count)
        self._count, self._answered_at = 0, self._clock()
        self._batch = self._next(interval)
        return self._batch

    def _next(self, interval: float) -> int:
        if self._mode == "lockstep" or (self._mode == "auto" and interval > WORTH_S):
            return 1
        batch = min(LARGEST, BATCH_S / max(interval, 1e-6))
        if math.isfinite(self.until) and self._stride > 0:
            batch = min(batch, math.ceil((self.until - self._step) / self._stride - 1e-9))
        return max(1, int(batch))
