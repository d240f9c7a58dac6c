"""What becomes of metrics that ranks report differently."""

from __future__ import annotations

import math

import pytest

from tunelab.core.reduce import merge
from tunelab.errors import BadInputError


@pytest.mark.parametrize(("how", "value"), [("mean", 2.0), ("sum", 6.0), ("min", 1.0), ("max", 3.0)])
def test_a_metric_is_made_of_all_ranks_values(how, value):
    by_rank = [{"loss": 3, "own": 0}, {"loss": 1.0, "own": 1}, {"loss": 2.0, "own": 2}]
    assert merge(by_rank, {"loss": how}) == {"loss": value, "own": 0}


def test_a_nan_on_any_rank_is_kept():
    assert math.isnan(merge([{"loss": 1.0}, {"loss": math.nan}], {"loss": "min"})["loss"])


def test_a_metric_that_no_rank_reports_is_left_out():
    assert merge([{"a": 1}, {"a": 2}], {"b": "mean"}) == {"a": 1}


@pytest.mark.parametrize("other", [{}, {"loss": "low"}, {"loss": None}])
def test_a_rank_without_a_number_is_named(other):
    with pytest.raises(BadInputError, match=r"reduce=\{'loss': 'mean'\} needs a number from every rank.*rank 1"):
        merge([{"loss": 1.0}, other], {"loss": "mean"})
