"""How the ranks of a trial find each other for Torch's process group: through one store for all trials of their processes.

`env://` opens a store for each group: rank 0 looks for the others every 10 ms, and Torch looks up the names of the peers'
addresses, which takes 5 s whenever a name server does not answer. A store that is kept costs neither.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from datetime import timedelta
from functools import cache
from itertools import count
from typing import Any

LISTENS_S = 5.0  # longest that a rank waits for rank 0; Torch itself waits on


@cache
def address() -> str:
    """What to pass to `init_process_group` in the place of `env://`.

    Ranks count the groups alike, because workers that have missed one are replaced together.
    """
    from torch import distributed

    kept: list[Any] = []
    groups = count()

    def meet(url: str, timeout: timedelta = distributed.default_pg_timeout, **options: Any) -> Iterator[tuple[Any, int, int]]:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if not kept:
            host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            if rank:
                _wait_for(host, port)
            kept.append(distributed.TCPStore(host, port, size, rank == 0, timeout, wait_for_workers=False, multi_tenant=True))
        yield distributed.PrefixStore(f"group-{next(groups)}", kept[0]), rank, size

    distributed.register_rendezvous_handler("tunelab", meet)
    return "tunelab://"


def _wait_for(host: str, port: int) -> None:
    """Wait until rank 0 listens. All ranks are told to connect at once, and Torch's client, where it comes first, sleeps
    for 0.3 s and more before it tries again.
    """
    until = time.monotonic() + LISTENS_S
    while time.monotonic() < until:
        try:
            socket.create_connection((host, port), timeout=LISTENS_S).close()
            return
        except OSError:
            time.sleep(0.001)
