"""Plain data and contracts: the standard library and numpy only. Start with `protocols.py`."""
