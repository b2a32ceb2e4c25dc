"""A secret for the Ray clusters that fedkeel starts.

Ray listens on all interfaces. Without a secret, anybody who can reach this machine may join the cluster and run code as you.
With one, Ray refuses whoever does not know it. Workers inherit it through the environment.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable

MODE, TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"  # Ray's variables
log = logging.getLogger("fedkeel")


def protect_new_cluster() -> Callable[[], None]:
    """Call it before Ray starts a cluster on this machine. Returns a function that forgets the secret; call it afterwards.

    If you have chosen a mode yourself (RAY_AUTH_MODE), nothing changes.
    """
    if MODE in os.environ:
        return lambda: None
    try:
        from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]
    except ImportError:  # before version 2.52
        log.warning("this version of Ray has no tokens: whoever reaches this machine may run code in the cluster")
        return lambda: None

    def read_again() -> None:  # Ray has read the environment when it was imported
        AuthenticationTokenLoader.instance().reset_cache()
        Config.initialize("")

    def forget() -> None:
        for name in (MODE, TOKEN):
            os.environ.pop(name, None)
        read_again()

    os.environ |= {MODE: "token", TOKEN: secrets.token_hex(32)}
    read_again()
    return forget
