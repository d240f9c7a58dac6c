"""Turnaround of a two-worker Torch trial that trains for next to nothing: tunelab against stock Tune and Train."""

from __future__ import annotations

import statistics
import time
from itertools import pairwise

import peers
import ray.train
import torch
from harness import Figure, benchmark, cluster, events_of, experiment, note, sweep
from ray.train.torch import TorchTrainer, prepare_model

TARGET = 40.0


def train(config):
    """Three epochs of a small DDP model, some 10 ms in all, with a report each."""
    model = prepare_model(torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, 4):
        optimizer.zero_grad()
        loss = model(torch.ones(32, 16)).square().mean()
        loss.backward()
        optimizer.step()
        ray.train.report({"step": step, "score": -loss.item()})


def main() -> None:
    with benchmark(__file__, __doc__) as bench:
        trials, peer_trials = (5, 1) if bench.quick else (20, 3)
        with cluster(4, ours=True):
            note(f"tunelab, {trials} trials")
            trainer = TorchTrainer(train, scaling_config=ray.train.ScalingConfig(num_workers=2))
            folder = sweep(experiment("turnaround", trainer, trials=trials, last_step=3, concurrent=1), bench.home("runs"))
        began = events_of(folder, "session_started")[0].at
        ends = [event.at for event in events_of(folder, "finished")]
        with cluster(4, ours=False):
            note(f"stock, {peer_trials} trials")
            peer_began = time.time()
            clock = peers.torch_trials(train, {}, trials=peer_trials, folder=bench.folder / "stock")
        later = [end - before for before, end in pairwise(ends)]
        peer_first, peer_later = clock.ended[0] - peer_began, [end - before for before, end in pairwise(clock.ended)]
        peer = peer_later or [peer_first]
        ratio = statistics.median(peer) / statistics.median(later)
        figures = [
            Figure(f"turnaround, trials 2-{trials}", "s", later, peer, ratio, f">= {TARGET:g} times less", ratio >= TARGET),
            Figure("first trial, from the sweep's start", "s", [ends[0] - began], [peer_first], peer_first / (ends[0] - began)),
        ]
        sizes = {"trials": trials, "peer_trials": peer_trials, "workers": 2, "reports": 3, "ray_cpus": 4}
        samples = {"tunelab_ends": [end - began for end in ends], "peer_ends": [end - peer_began for end in clock.ended]}
        bench.finish(figures, sizes=sizes, samples=samples)


if __name__ == "__main__":
    main()
