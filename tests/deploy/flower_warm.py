"""Replaces the commands `flwr-clientapp`, `flwr-serverapp` and `flwr-simulation`, which Flower starts for every message or
run. It forks a process that has loaded torch and flwr, because loading them takes longer than the tests themselves.

    python tests/deploy/flower_warm.py FIFO        # reads lines `COMMAND ARGUMENT ...` and runs each in a new process
"""

from __future__ import annotations

import importlib.metadata
import os
import signal
import sys
import threading

COMMANDS = ("flwr-clientapp", "flwr-serverapp", "flwr-simulation")


def main() -> None:
    import fedkeel.deploy.flower
    import fedkeel.deploy.privacy  # noqa: F401

    scripts = importlib.metadata.entry_points(group="console_scripts")
    entries = {name: scripts[name].load() for name in COMMANDS}
    assert threading.active_count() == 1, "only a process of one thread may fork"
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with os.fdopen(os.open(sys.argv[1], os.O_RDWR), "r") as orders:  # open for writing too, so that reading never ends
        print("ready for orders", flush=True)
        for line in orders:
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                sys.argv = line.split()
                try:
                    entries[sys.argv[0]]()
                except SystemExit:
                    pass
                finally:
                    sys.stdout.flush()
                    os._exit(0)


if __name__ == "__main__":
    main()
