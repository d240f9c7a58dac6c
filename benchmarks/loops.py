"""A train loop with real work, the same under tunelab and under torchrun: some steps of a small DDP model, in epochs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH, BATCH = 256, 256


def ddp(config: Mapping[str, Any], report: Callable[[dict[str, Any]], object]) -> None:
    """Train for `config["epochs"]` epochs of `config["steps"]` steps, with a report after each.

    Each rank writes `<config["out"]>/rank<n>.json`: seconds in the loop and in `report`, CPU-seconds of the process meanwhile.
    """
    torch.manual_seed(0)
    rank = dist.get_rank()
    began, cpu_began, reporting_s = time.perf_counter(), time.process_time(), 0.0
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = torch.randn(BATCH, WIDTH), torch.randint(0, 10, (BATCH,))
    for epoch in range(1, config["epochs"] + 1):
        for _ in range(config["steps"]):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        asked = time.perf_counter()
        report({"step": epoch, "score": -loss.item()})
        reporting_s += time.perf_counter() - asked
    said = {
        "loop_s": time.perf_counter() - began,
        "reporting_s": reporting_s,
        "cpu_s": time.process_time() - cpu_began,
        "process_cpu_s": time.process_time(),
    }
    folder = Path(config["out"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"rank{rank}.json").write_text(json.dumps(said))


def read(out: Path) -> list[dict[str, float]]:
    """What each rank has written, by rank."""
    return [json.loads(file.read_text()) for file in sorted(out.glob("rank*.json"))]
