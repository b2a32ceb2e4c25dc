"""Flower's Grid without processes: messages go through Flower's own serialisation to ClientApps in this process."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity


class HereGrid(Grid):
    """Nodes are pairs of an app and a context. `spoil(node, reply)` may change a node's reply; None drops it."""

    def __init__(self, nodes: dict[int, tuple[ClientApp, Context]]) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # otherwise Flower makes no message
        self.nodes = nodes
        self.replies: dict[str, Message] = {}
        self.count = itertools.count()
        self.sent: list[Message] = []  # messages to nodes, in order
        self.spoil: Callable[[int, Message], Message | None] = lambda node, reply: reply

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            ids.append(f"message-{next(self.count)}")
            message.metadata.__dict__["_message_id"] = ids[-1]
            self.sent.append(message)
            app, context = self.nodes[message.metadata.dst_node_id]
            reply = app(on_the_wire(message), context)
            if (reply := self.spoil(message.metadata.dst_node_id, reply)) is not None:
                self.replies[ids[-1]] = on_the_wire(reply)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(z) for z in list(message_ids) if z in self.replies]

    def set_run(self, run: Any) -> None: ...
    def run(self) -> Any: ...
    def create_message(self, *args: Any, **kwargs: Any) -> Any: ...
    def get_nodes(self) -> Any: ...
    def send_and_receive(self, *args: Any, **kwargs: Any) -> Any: ...
    def close(self) -> None: ...


def on_the_wire(message: Message) -> Message:
    back = message_from_proto(message_to_proto(message))
    back.metadata.__dict__["_message_id"] = message.metadata.message_id
    return back


def context(number: int, folder: Any, **config: Any) -> Context:
    node_config = {"partition-id": number, "state": str(folder), **config}
    return Context(run_id=1, node_id=100 + number, node_config=node_config, state=RecordDict(), run_config={})
