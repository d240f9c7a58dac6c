"""Three slots and short plain-function trials: how many actors are started, and how full the slots are kept."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import peers
import ray.train
from harness import Figure, benchmark, cluster, events_of, experiment, note, sweep

SLOTS, TRIAL_S, RUNNING = 3, 0.2, 2.7


def body():
    began = time.time()
    time.sleep(TRIAL_S)
    return {"step": 1, "score": 0.0, "pid": os.getpid(), "began": began, "ended": time.time()}


def train(config):
    ray.train.report(body())


def actors_started() -> int:
    """How many actors the cluster has ever started, dead ones included: here all are trial actors. Needs no dashboard."""
    import ray._private.state

    return len(ray._private.state.actors())


def average_running(spans: Sequence[tuple[float, float]], since: float, until: float) -> float:
    """How many of the spans cover a moment between `since` and `until`, on average."""
    return sum(max(0.0, min(end, until) - max(begin, since)) for begin, end in spans) / (until - since)


def main() -> None:
    with benchmark(__file__, __doc__) as bench:
        trials = 12 if bench.quick else 30
        with cluster(SLOTS, ours=True):
            note(f"tunelab, {trials} trials")
            folder = sweep(experiment("slots", train, trials=trials, last_step=1), bench.home("runs"))
            actors = actors_started()
        said = [event.data["metrics"] for event in events_of(folder, "reported")]
        loops = [(metrics["began"], metrics["ended"]) for metrics in said]
        first, last_proposal = min(loops)[0], events_of(folder, "proposed")[-1].at
        started = {event.trial: event.at for event in events_of(folder, "started")}
        finished = {event.trial: event.at for event in events_of(folder, "finished")}
        journalled = [(at, finished[trial]) for trial, at in started.items()]
        running = average_running(journalled, min(started.values()), last_proposal)
        training = average_running(loops, first, last_proposal)
        all_up = max(min(metrics["began"] for metrics in said if metrics["pid"] == pid) for pid in {m["pid"] for m in said})
        settled = average_running(loops, all_up, last_proposal)
        with cluster(SLOTS, ours=False):
            note(f"stock class trainable with reuse_actors, {trials} trials")
            _, peer_said = peers.class_trials(body, trials=trials, folder=bench.folder / "stock")
            peer_actors = actors_started()
        peer_loops = [(metrics["began"], metrics["ended"]) for metrics in peer_said]
        peer_training = average_running(peer_loops, min(peer_loops)[0], max(peer_loops)[0])
        pids, peer_pids = ({metrics["pid"] for metrics in found} for found in (said, peer_said))
        figures = [
            Figure("actors started", "", [float(actors)], [float(peer_actors)], None, f"= {SLOTS}", actors == SLOTS),
            Figure("processes that ran trials", "", [float(len(pids))], [float(len(peer_pids))]),
            Figure(
                "trials inside their function, on average", "", [training], [peer_training], None, f">= {RUNNING:g}",
                training >= RUNNING,
            ),
            Figure("the same, once every slot has begun its first", "", [settled]),
            Figure("trials running by the journal (started to finished)", "", [running]),
        ]  # fmt: skip
        sizes = {"trials": trials, "slots": SLOTS, "trial_s": TRIAL_S}
        samples = {
            "loops_s": [[begin - first, end - first] for begin, end in loops], "last_proposal_s": last_proposal - first,
            "peer_loops_s": [[begin - min(peer_loops)[0], end - min(peer_loops)[0]] for begin, end in sorted(peer_loops)],
        }  # fmt: skip
        bench.finish(figures, sizes=sizes, samples=samples)


if __name__ == "__main__":
    main()
