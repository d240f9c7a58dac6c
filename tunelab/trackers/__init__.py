"""Trackers record a sweep somewhere people look: a process that reads the journal, off the driver's interpreter.

    driver: journal.append --> TrackerProcess.poke            (process.py: never blocks, never raises)
    tracker process: read_events --> Projection --> Tracker    (follow.py, projection.py, mlflow.py)

To add one: a file with a class that has the methods of `follow.Tracker`, and a line in `TABLE`.
"""

from tunelab.core.family import Family

TABLE = {"mlflow": "tunelab.trackers.mlflow:MlflowTracker"}

_family = Family("tracker", TABLE)
names, load = _family.names, _family.load
