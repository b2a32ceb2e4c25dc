"""Which SuperNode is which client, and how many samples each client has."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedkeel.deploy import polling
from fedkeel.deploy.audit import AuditLog
from fedkeel.deploy.errors import ClientFailed, InvalidMessage
from fedkeel.deploy.keys import fingerprint, introduction, is_signed
from fedkeel.deploy.limits import Limits
from fedkeel.deploy.messages import FIELDS, ClientInfo, Hello
from fedkeel.errors import describe

NO_LIMITS = Limits()
HELLO = f"{MessageType.QUERY}.hello"


class ClientNodes:
    """The node of every client. Each node introduces itself when it connects, and no round waits for that."""

    def __init__(
        self,
        grid: Grid,
        N: int,
        log: Callable[[str], None],
        limits: Limits = NO_LIMITS,
        keys: Mapping[int, Any] | None = None,
        audit: AuditLog | None = None,
    ) -> None:
        """keys: the public key of every client. Then a node is a client only if it has signed its introduction."""
        self.grid, self.N, self.log, self.limits, self.keys, self.audit = grid, N, log, limits, keys, audit
        self.hello = RecordDict({FIELDS: Hello(nonce=secrets.token_hex(16)).to_config()})
        self.node_of: dict[int, int] = {}  # client -> node
        self.samples: dict[int, int] = {}  # client -> number of samples; the first answer counts
        self._pending: dict[int, str] = {}  # node -> id of the unanswered message that asks who it is
        self._introduced: set[int] = set()  # nodes that have answered it

    @property
    def sizes(self) -> np.ndarray:
        """The number of samples of every client, [N]."""
        return np.array([self.samples[client] for client in range(self.N)])

    def connected(self) -> dict[int, int]:
        """The clients that are connected now -> their nodes."""
        present = set(self.grid.get_node_ids())
        self._introduced &= present  # a node that comes back may have been restarted as another client
        self._pending = {node: message_id for node, message_id in self._pending.items() if node in present}
        for node in sorted(present - self._introduced - set(self._pending)):
            if message_id := polling.send(self.grid, Message(self.hello, node, HELLO)):
                self._pending[node] = message_id
        nodes = {message_id: node for node, message_id in self._pending.items()}
        for message_id, reply in polling.replies(self.grid, list(nodes)):
            node = nodes[message_id]
            del self._pending[node]
            self._introduced.add(node)
            self._add(node, reply)
        return {client: node for client, node in self.node_of.items() if node in present}

    def forget(self, client: int) -> None:
        """Asks the client's node again who it is, because it says that it is another client now."""
        self._introduced.discard(self.node_of.pop(client))

    def wait_for_all(self, seconds: float) -> None:
        """Waits until all N clients are connected."""
        end = time.monotonic() + seconds
        while len(self.connected()) < self.N:
            if time.monotonic() > end:
                missing = sorted(set(range(self.N)) - set(self.node_of))
                raise RuntimeError(
                    f"{self.N - len(missing)} of {self.N} clients are connected after {seconds:g} s; missing: {missing[:20]}"
                )
            time.sleep(polling.PAUSES[1])

    def _add(self, node: int, reply: Message | Exception) -> None:
        try:
            info = self._checked(node, reply)
        except Exception as error:
            if self.audit is not None:
                self.audit.add("node refused", node=str(node), why=describe(error))
            return self.log(f"node {node} is not used: {describe(error)}")
        if self.audit is not None:
            whose = fingerprint(self.keys[info.client]) if self.keys else None
            self.audit.add("node", node=str(node), client=info.client, samples=info.samples, key=whose)
        if (before := self.node_of.get(info.client, node)) != node:
            self.log(f"client {info.client} is now node {node}, it was {before}")
        self.node_of = {client: z for client, z in self.node_of.items() if z != node} | {info.client: node}

    def _checked(self, node: int, reply: Message | Exception) -> ClientInfo:
        if isinstance(reply, Exception):
            raise reply
        if reply.has_error():
            raise ClientFailed(reply.error.reason)
        info = ClientInfo.read(reply.content)
        if not 0 <= info.client < self.N:
            raise InvalidMessage(f"it says that it is client {info.client}; clients go from 0 to {self.N - 1}")
        if self.keys is not None:
            nonce = str(self.hello.config_records[FIELDS]["nonce"])
            content = introduction(nonce, node, info.client, info.samples)
            if not is_signed(self.keys[info.client], info.signature, content):
                raise InvalidMessage(f"it says that it is client {info.client}, but did not sign with that client's key")
        most = self.limits.most_samples
        if not 0 < info.samples <= most:
            raise InvalidMessage(f"it says that client {info.client} has {info.samples} samples; 1 to {most} are allowed")
        if self.samples.setdefault(info.client, info.samples) != info.samples:
            raise InvalidMessage(
                f"it says that client {info.client} has {info.samples} samples, not {self.samples[info.client]}"
            )
        return info
