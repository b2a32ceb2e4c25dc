"""Messages over Flower's Grid: send them, then look for replies until all are here or the time is over."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from flwr.app import Message
from flwr.serverapp import Grid

PAUSES = (0.01, 1.0)  # seconds between two looks for replies: the first and the longest


def send(grid: Grid, message: Message) -> str | None:
    """Sends one message. Returns its id, or None if the SuperLink did not take it.

    One message at a time: Flower's grids differ in how they report which of several messages were not taken.
    """
    return next(iter(grid.push_messages([message])), None)


def send_all(grid: Grid, messages: Sequence[Message], timeout: float) -> Iterator[tuple[int, Message | Exception]]:
    """Sends messages and yields (index of the message, its reply or an error) as replies arrive."""
    waiting: dict[str, int] = {}  # message id -> index
    for index, message in enumerate(messages):
        if message_id := send(grid, message):
            waiting[message_id] = index
        else:
            yield index, ConnectionError("the SuperLink did not take the message to this client")
    end, pause = time.monotonic() + timeout, PAUSES[0]
    while waiting and time.monotonic() < end:
        time.sleep(pause)
        pause = min(1.2 * pause, PAUSES[1])  # grows slowly: at most a sixth of the waiting time is wasted
        for message_id, reply in replies(grid, list(waiting)):
            if message_id in waiting:
                yield waiting.pop(message_id), reply


def replies(grid: Grid, message_ids: Sequence[str]) -> Iterator[tuple[str, Message | Exception]]:
    """(message id, its reply) for the messages that have a reply by now.

    Flower reads all replies together, so one damaged reply makes all of them fail. Then each is read alone.
    """
    try:
        pulled = list(grid.pull_messages(message_ids)) if message_ids else []
        yield from ((reply.metadata.reply_to_message_id, reply) for reply in pulled)
    except Exception as error:
        if len(message_ids) == 1:
            yield message_ids[0], error
        else:
            for message_id in message_ids:
                yield from replies(grid, [message_id])
