"""Trackers record a sweep somewhere people look: a process that reads the journal, off the driver's interpreter.

    driver: journal.append --> TrackerProcess.poke             (process.py: never blocks, never raises)
    tracker process: read_events --> Projection --> Tracker     (run.py, follow.py, projection.py, mlflow.py)
    a later command: tracker.behind? --> a tracker process      (behind.py, process.py: for what a dead server has missed)

To add one: a file with a class that has the methods of `follow.Tracker` and is made of a `Tracking`, and a line in `TABLE`. A
configuration in `mlruns_config/` chooses it: `tracker = "mlflow"`.
"""

from tunelab.core.family import Family

TABLE = {"mlflow": "tunelab.trackers.mlflow:MlflowTracker"}

_family = Family("tracker", TABLE)
names, load = _family.names, _family.load
