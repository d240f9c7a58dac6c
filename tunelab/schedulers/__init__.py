"""Schedulers decide whether a trial is worth going on with. A new one is a file here, a line in `TABLE` and an example.

Nothing is imported before it is asked for.
"""

from tunelab.core.family import Family

TABLE = {
    "fifo": "tunelab.schedulers.fifo:FIFO",
    "asha": "tunelab.schedulers.asha:ASHA",
}

_family = Family("scheduler", TABLE)
names, load = _family.names, _family.load
