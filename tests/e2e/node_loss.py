"""Run a config on a Ray cluster of two working nodes, and kill the node on which a worker has come to the text PARK.

A process of its own: Ray's connection belongs to a process, and the tests' one has the session's cluster.

    python node_loss.py CONFIG FOLDER-OF-MARKS
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

from pipeline import config as configs
from pipeline import run as runs
from pipeline.opened import work_store
from stages import STAGES


def parked(config: configs.Config, mark: Path) -> str:
    """The id of the node whose worker is held up; waits for it."""
    notes = work_store(config).local_path("attempts")
    while True:
        if mark.exists() and (pid := mark.read_text()):
            for note in map(json.loads, (path.read_text() for path in notes.glob("*.json"))):
                if str(note["pid"]) == pid:
                    return str(note["node"])
        time.sleep(0.1)


def main() -> None:
    config = configs.load(sys.argv[1], STAGES)
    quick = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 500, "health_check_failure_threshold": 4}
    own = {"object_store_memory": 100_000_000}
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "include_dashboard": False, "_system_config": quick, **own},
    )
    nodes = [cluster.add_node(num_cpus=1, **own) for _ in range(2)]
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    cluster.wait_for_nodes()

    def kill() -> None:
        lost = parked(config, Path(sys.argv[2], "first"))
        cluster.remove_node(next(node for node in nodes if node.node_id == lost), allow_graceful=False)

    threading.Thread(target=kill, daemon=True).start()
    runs.run(config)
    alive = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    ray.shutdown()
    cluster.shutdown()
    sys.exit(0 if len(alive) == 1 else 9)


if __name__ == "__main__":
    main()
