"""fANOVA (Hutter et al. 2014, "An Efficient Approach for Assessing Hyperparameter Importance"): main effects, in numpy.

A regression forest is fitted to (configuration, objective). A tree is constant on boxes, so its mean over all other parameters
is a sum over boxes, and exact: no sampling is involved. The share of a parameter is the variance of that mean along the
parameter, as a part of the tree's variance over the whole space, averaged over trees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

TREES = 32
SPLIT_FROM = 4  # rows; boxes with fewer are not split: what they differ by is mostly noise
SAME = 1e-9  # of a parameter's range: no split between two values as close as that


Column = tuple[Sequence[float], int | None]


def shares(columns: Mapping[str, Column], objective: Sequence[float], *, trees: int = TREES, seed: int = 0) -> dict[str, float]:
    """Each parameter's part of what the parameters explain by themselves; the parts add up to 1.

    Args:
        columns: Parameter -> (a number for each trial, None), or (the index of each trial's option, how many options it has).
            On a logarithmic scale give logarithms. Each column needs two different values.
        objective: A finite number for each trial.
        trees: Size of the forest.
        seed: Of the forest's bootstrap samples and of ties between equally good splits.
    """
    encoded, places = _encode(list(columns.values()))
    y = np.asarray(objective, float)
    y = y / (np.abs(y).max() or 1.0)  # shares do not depend on the unit; rounding and overflow would
    y = (y - y.mean()) / (np.abs(y - y.mean()).max() or 1.0)
    rng, found = np.random.default_rng(seed), []
    for _ in range(trees):
        rows = rng.integers(0, len(y), len(y))
        parts = _main_effects(*_grow(encoded, y, rows, rng), places)
        if parts is not None:
            found.append(parts)
    mean = np.mean(found, axis=0) if found else np.zeros(len(columns))
    mean = mean / mean.sum() if mean.sum() > 0 else np.full(len(columns), 1 / len(columns))  # nothing by themselves
    return dict(zip(columns, mean.tolist(), strict=True))


def _encode(columns: Sequence[Column]) -> tuple[np.ndarray, list[slice]]:
    """The forest's input, every entry in [0, 1], and where each parameter lies in it: options have a 0-1 column each."""
    encoded: list[np.ndarray] = []
    places = []
    for given, options in columns:
        values = np.asarray(given, float)
        if options is None:
            low, high = values.min(), values.max()
            added = [(values - low) / (high - low)]
        else:
            added = [(values == option).astype(float) for option in range(options)]
        places.append(slice(len(encoded), len(encoded) + len(added)))
        encoded += added
    return np.stack(encoded, axis=1), places


def _grow(
    x: np.ndarray, y: np.ndarray, rows: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A regression tree on `rows`: for each leaf its value, and the lower and upper bounds of its box."""
    values, lows, highs = [], [], []
    open_boxes = [(rows, np.zeros(x.shape[1]), np.ones(x.shape[1]))]
    while open_boxes:
        rows, low, high = open_boxes.pop()
        split = _best_split(x[rows], y[rows], rng) if len(rows) >= SPLIT_FROM else None
        if split is None:
            values.append(y[rows].mean())
            lows.append(low)
            highs.append(high)
            continue
        column, threshold = split
        left = x[rows, column] <= threshold
        left_high, right_low = high.copy(), low.copy()
        left_high[column] = right_low[column] = threshold
        open_boxes += [(rows[left], low, left_high), (rows[~left], right_low, high)]
    return np.array(values), np.array(lows), np.array(highs)


def _best_split(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> tuple[int, float] | None:
    """Column and threshold that leave the least squared error, ties at random; None where nothing can be told apart."""
    y = y - y.mean()
    if not np.any(np.abs(y) > 1e-12):
        return None
    count = len(y)
    order = x.argsort(axis=0)
    ordered = np.take_along_axis(x, order, axis=0)
    left = y[order].cumsum(axis=0)[:-1]  # y adds up to 0, so what lies right of the cut adds up to -left
    number = np.arange(1, count)[:, None]
    score = left * left * (1 / number + 1 / (count - number))
    score[ordered[1:] - ordered[:-1] < SAME] = -1.0
    of_column = score.max(axis=0)
    best = of_column.max()
    if best < 0:
        return None
    column = int(rng.choice(np.flatnonzero(of_column >= best * (1 - 1e-9))))
    at = int(score[:, column].argmax())
    return column, float((ordered[at, column] + ordered[at + 1, column]) / 2)


def _main_effects(values: np.ndarray, lows: np.ndarray, highs: np.ndarray, places: Sequence[slice]) -> np.ndarray | None:
    """Each parameter's part of the tree's variance, or None for a tree that is constant."""
    weights, inside = [], []  # of each parameter: the sizes of its cells, and which leaves hold which cell
    for place in places:
        low, high = lows[:, place], highs[:, place]
        if place.stop - place.start == 1:
            edges = np.unique(np.concatenate([low[:, 0], high[:, 0]]))
            middles = (edges[1:] + edges[:-1]) / 2
            weights.append(np.diff(edges))
            inside.append((low <= middles) & (middles <= high))
        else:
            options = np.eye(place.stop - place.start)  # a leaf holds the options whose 0-1 columns all lie in its bounds
            weights.append(np.full(len(options), 1 / len(options)))
            inside.append(np.all((low[:, None] <= options) & (options <= high[:, None]), axis=2))
    sizes = np.stack([cells @ weight for cells, weight in zip(inside, weights, strict=True)])
    volumes = sizes.prod(axis=0)
    mean = volumes @ values
    variance = volumes @ (values - mean) ** 2
    if variance <= 0:
        return None
    parts = []
    for cells, weight, size in zip(inside, weights, sizes, strict=True):
        along = (values * volumes / size) @ cells  # the tree's mean over all other parameters, in each cell
        parts.append(weight @ (along - mean) ** 2 / variance)
    return np.array(parts)
