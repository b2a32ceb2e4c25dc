"""Who is there: which SuperNode is which client, and how to talk to several of them at once, all by Flower's Grid."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedkeel.deploy.messages import Hello, Refused
from fedkeel.errors import describe

POLL = (0.01, 1.0)  # seconds between two looks for answers: at first, and at most
MOST = 1 << 40  # samples of a client; with a larger number the sum over all could overflow
HELLO = f"{MessageType.QUERY}.hello"


class Roster:
    """Clients and their nodes, learnt from the nodes themselves. A node is asked whenever it connects, and nobody waits for
    its answer."""

    def __init__(self, grid: Grid, N: int, say: Callable[[str], None]) -> None:
        self.grid, self.N, self.say = grid, N, say
        self.node_of: dict[int, int] = {}  # client -> node
        self.samples: dict[int, int] = {}  # client -> n, as it said first
        self._asked: dict[int, str] = {}  # node -> the message that asks it
        self._answered: set[int] = set()

    def look(self) -> dict[int, int]:
        """The clients that are connected now -> their nodes."""
        present = set(self.grid.get_node_ids())
        self._answered &= present  # a node that comes back may have been restarted as another client
        self._asked = {node: sent for node, sent in self._asked.items() if node in present}
        self._ask(sorted(present - self._answered - set(self._asked)))
        nodes = {sent: node for node, sent in self._asked.items()}
        for sent, reply in answers(self.grid, list(nodes)):
            del self._asked[nodes[sent]]
            self._answered.add(nodes[sent])
            self._hear(nodes[sent], reply)
        return {client: node for client, node in self.node_of.items() if node in present}

    def forget(self, client: int) -> None:
        """Asks again who the client's node is: it has said that it is another."""
        self._answered.discard(self.node_of.pop(client))

    def wait(self, seconds: float) -> None:
        """Until every client of the run has said hello."""
        end = time.monotonic() + seconds
        while len(self.look()) < self.N:
            if time.monotonic() > end:
                missing = sorted(set(range(self.N)) - set(self.node_of))
                raise RuntimeError(
                    f"{self.N - len(missing)} of {self.N} clients are connected after {seconds:g} s; missing: {missing[:20]}"
                )
            time.sleep(POLL[1])

    def _ask(self, nodes: Sequence[int]) -> None:
        for node in nodes:
            if sent := push(self.grid, Message(RecordDict(), node, HELLO)):
                self._asked[node] = sent

    def _hear(self, node: int, reply: Message | Exception) -> None:
        try:
            if isinstance(reply, Exception):
                raise reply
            if reply.has_error():
                raise Refused(reply.error.reason)
            told = Hello.read(reply.content)
            if not 0 <= told.client < self.N:
                raise Refused(f"it says that it is client {told.client}; they go from 0 to {self.N - 1}")
            if not 0 < told.samples <= MOST:
                raise Refused(f"it says that client {told.client} has {told.samples} samples")
            if self.samples.setdefault(told.client, told.samples) != told.samples:
                raise Refused(
                    f"it says that client {told.client} has {told.samples} samples, not {self.samples[told.client]}"
                )
        except Exception as error:
            return self.say(f"node {node} is not used: {describe(error)}")
        if (before := self.node_of.get(told.client, node)) != node:
            self.say(f"client {told.client} is now node {node}, it was {before}")
        self.node_of = {client: z for client, z in self.node_of.items() if z != node} | {told.client: node}


def exchange(grid: Grid, messages: Sequence[Message], timeout: float) -> Iterator[tuple[int, Message | Exception]]:
    """Sends messages and yields (number of the message, answer or why there is none) as they come in, until all are there
    or the time is over."""
    waiting: dict[str, int] = {}
    for number, message in enumerate(messages):
        if sent := push(grid, message):
            waiting[sent] = number
        else:
            yield number, ConnectionError("the SuperLink did not take the message to it")
    end, pause = time.monotonic() + timeout, POLL[0]
    while waiting and time.monotonic() < end:
        time.sleep(pause)
        pause = min(1.2 * pause, POLL[1])  # so that it waits a sixth too long at most
        for sent, reply in answers(grid, list(waiting)):
            if sent in waiting:
                yield waiting.pop(sent), reply


def answers(grid: Grid, ids: Sequence[str]) -> Iterator[tuple[str, Message | Exception]]:
    """(message, its answer) for those that have one; an answer that cannot be read harms no other."""
    try:
        replies = list(grid.pull_messages(ids)) if ids else []
        yield from ((reply.metadata.reply_to_message_id, reply) for reply in replies)
    except Exception as error:
        if len(ids) == 1:
            yield ids[0], error
        else:
            for sent in ids:
                yield from answers(grid, [sent])


def push(grid: Grid, message: Message) -> str | None:
    """The name of the message that was sent; None if it was not taken. One at a time, since Flower's grids differ in how
    they tell which of several were not."""
    return next(iter(grid.push_messages([message])), None)
