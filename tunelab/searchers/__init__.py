"""Searchers choose the next configuration to try. A new one is a file here, a line in `TABLE` and an example.

Nothing is imported before it is asked for: `import tunelab.searchers` loads no Optuna.
"""

from tunelab.core.family import Family

TABLE = {
    "random": "tunelab.searchers.random:Random",
    "grid": "tunelab.searchers.grid:Grid",
    "tpe": "tunelab.searchers.optuna:TPE",
}

_family = Family("searcher", TABLE)
names, load = _family.names, _family.load
