"""Where the parts meet: a sweep's loop, its budgets, its interruption and its retries.

`conductor.py` decides what happens next and writes the journal; `ray/` makes it happen on a cluster; `sweeping.py` puts a
sweep together: folder, lock, tracker, signals.
"""
