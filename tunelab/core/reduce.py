"""One value of what every rank has reported."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from tunelab.errors import BadInputError

REDUCTIONS: dict[str, Callable[[Sequence[float]], float]] = {"mean": fmean, "sum": math.fsum, "min": min, "max": max}


def merge(by_rank: Sequence[Mapping[str, Any]], reduce: Mapping[str, str]) -> dict[str, Any]:
    """Rank 0's metrics, with those that `reduce` names made of all ranks' values. One that no rank reports is left out.

    Args:
        by_rank: What each rank has reported, rank 0 first.
        reduce: Metric -> a name in `REDUCTIONS`. A NaN on any rank makes it NaN.

    Raises:
        BadInputError: A rank does not report such a metric, or it is no number there.
    """
    merged = dict(by_rank[0])
    for name, how in reduce.items():
        values = [metrics.get(name) for metrics in by_rank]
        if all(value is None for value in values):
            continue
        numbers = [float(value) for value in values if isinstance(value, (int, float))]
        if len(numbers) < len(values):
            told = ", ".join(f"rank {rank}: {value!r}" for rank, value in enumerate(values))
            raise BadInputError(f"reduce={{'{name}': '{how}'}} needs a number from every rank, got {told}.")
        merged[name] = math.nan if any(map(math.isnan, numbers)) else REDUCTIONS[how](numbers)
    return merged
