"""The one truth of a sweep: events, the SQLite file that holds them, and what they add up to.

`events.py` says what can happen, `store.py` keeps it durably, `state.py` adds it up.
"""

from tunelab.journal.events import Event
from tunelab.journal.state import SweepState, replay
from tunelab.journal.store import SCHEMA_VERSION, Journal, read_events

__all__ = ["SCHEMA_VERSION", "Event", "Journal", "SweepState", "read_events", "replay"]
