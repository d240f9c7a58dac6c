"""Sweeps on a simulated cluster of several nodes, each a raylet of its own on this machine, in a process of their own.

python several_nodes.py FOLDER      writes FOLDER/told.json
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import ray
from provoked import moving_trainer, notes
from ray.cluster_utils import Cluster
from ray.core.generated.autoscaler_pb2 import DrainNodeReason
from toys import FIFO, experiment

from tunelab.engine.sweeping import Plan, start
from tunelab.journal.home import Home
from tunelab.trackers.tracking import Tracking

HERE = Path(__file__).parent


class Scene:
    """A sweep during which something happens to a node, once epoch 2 is reported."""

    def __init__(self, cluster, folder, *, workers, saves=False, happens):
        self.cluster, self.folder, self.happens = cluster, folder, happens
        self.said, self.done = [], threading.Event()
        (folder / "notes").mkdir(parents=True)
        trainer = moving_trainer(folder / "notes", workers, saves=saves)
        made = experiment(trainer, trials=1, scheduler=FIFO(), last_step=5)
        self.outcome = start(Plan(made, HERE, Home(folder / "runs"), Tracking(kind="none", name="none"), watcher=self))

    def say(self, text):
        self.said.append(text)

    def changed(self, state, event):
        if event.kind == "reported" and event.data["step"] == 2 and not self.done.is_set():
            self.done.set()
            threading.Thread(target=self.happens, args=(self,), daemon=True).start()

    def node_of(self, rank):
        (told,) = notes(self.folder / "notes", attempt=1, rank=rank)
        return told["node"]

    def told(self):
        (trial,) = self.outcome.state.trials.values()
        attempts = [
            {"failure": one.failure, "outcome": one.outcome, "from_step": one.from_step, "message": one.message}
            for one in trial.attempts
        ]
        return {
            "attempts": attempts,
            "status": trial.status.value,
            "steps": [report.step for report in trial.reports],
            "journal": str(self.outcome.folder.journal),
            "notes": notes(self.folder / "notes"),
            "said": self.said,
        }


def remove(scene, rank):
    """The node of this rank is gone at once: its raylet is killed."""
    node = scene.node_of(rank)
    (found,) = [one for one in scene.cluster.worker_nodes if one.node_id == node]
    scene.cluster.remove_node(found, allow_graceful=False)


def remove_and_add(scene, rank):
    """The node of this rank is gone, there is no other, and then another comes."""
    remove(scene, rank)
    while not any("no room for a trial" in text for text in scene.said):
        time.sleep(0.1)
    scene.cluster._shutdown_at_exit = False  # it would handle signals, which only the main thread can
    scene.cluster.add_node(num_cpus=1)


def drain(scene, rank, seconds):
    """It is announced that the node of this rank will be taken away."""
    deadline = int((time.time() + seconds) * 1000)
    reason = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    gcs = ray._raylet.GcsClient(address=scene.cluster.address)
    accepted, why = gcs.drain_node(scene.node_of(rank), reason, "the provider wants it back", deadline)
    assert accepted, why


def main(folder):
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    told, seconds = {}, {}
    scenes = {
        "a worker's node is gone": {"nodes": 3, "workers": 2, "happens": lambda scene: remove(scene, 1)},
        "and there is no other": {"nodes": 2, "workers": 2, "happens": lambda scene: remove_and_add(scene, 1)},
        "the trial's own node is gone": {"nodes": 2, "workers": 1, "happens": lambda scene: remove(scene, 0)},
        "announced, and it saves": {"nodes": 2, "workers": 1, "saves": True, "happens": lambda scene: drain(scene, 0, 60)},
        "announced, and it does not": {"nodes": 2, "workers": 1, "happens": lambda scene: drain(scene, 0, 3)},
    }
    for number, (name, scene) in enumerate(scenes.items()):
        for _ in range(scene.pop("nodes")):
            cluster.add_node(num_cpus=1)
        began = time.monotonic()
        told[name] = Scene(cluster, folder / str(number), **scene).told()
        seconds[name] = time.monotonic() - began
        for node in [*cluster.worker_nodes]:
            cluster.remove_node(node, allow_graceful=True)
        (folder / "told.json").write_text(json.dumps({"told": told, "seconds": seconds}))
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
