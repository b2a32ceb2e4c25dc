"""`flower-superlink` and `flower-supernode` that wait longer for the processes that they start.

    python tests/deploy/flower_patient.py flower-superlink ARGUMENT ...

Flower gives a server's or client's process 30 s for its first heartbeat and 60 s for every other one. Then it ends the run
as failed. On a busy machine, tests would fail for that reason. The limits for nodes are separate: tests rely on them, and
they stay.
"""

from __future__ import annotations

import importlib.metadata
import sys

SECONDS = 900


def main() -> None:
    from flwr.supercore.corestate import in_memory_corestate, sql_corestate

    for module in (in_memory_corestate, sql_corestate):
        assert module.HEARTBEAT_DEFAULT_INTERVAL == 30, "another release of Flower: look where it has the limit now"
        module.HEARTBEAT_DEFAULT_INTERVAL = SECONDS
    del sys.argv[0]
    importlib.metadata.entry_points(group="console_scripts")[sys.argv[0]].load()()


if __name__ == "__main__":
    main()
