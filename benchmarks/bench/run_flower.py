"""Flower: a ServerApp and a ClientApp in its simulation, the end of FedAvg's round as the clock.  run_flower.py WORKLOAD

Ray, which runs the clients, has an actor with one thread per core.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

from clock import WARM_UP, Clock
from flower_client import client_app
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from workloads import WORKLOADS

NEVER = 10**9

name = sys.argv[1]
w = WORKLOADS[name]
clock = Clock(1 if w.rounds == 1 else WARM_UP)
server_app = ServerApp()


class Ticking(FedAvg):
    def aggregate_train(self, *given: Any) -> Any:
        arrays, metrics = super().aggregate_train(*given)
        if arrays is None:  # no client has answered: see the log
            os._exit(1)
        clock.tick()
        return arrays, metrics


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = Ticking(fraction_train=w.cohort / w.clients, fraction_evaluate=0.0, min_available_nodes=w.clients)
    first = ArrayRecord(w.module().state_dict())
    strategy.start(grid, first, num_rounds=NEVER, train_config=ConfigRecord({"workload": name}))


logging.getLogger("flwr").setLevel(logging.WARNING)
resources = {
    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    "init_args": {"address": "local", "num_cpus": len(os.sched_getaffinity(0))},  # not another program's Ray
}
run_simulation(server_app, client_app, num_supernodes=w.clients, backend_config=resources)
