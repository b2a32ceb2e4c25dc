"""Errors of a deployed run, and the codes with which a client's error travels to the server."""

from __future__ import annotations

from flwr.app import Error, Message

from fedkeel.errors import describe

APP_RAISED = 2  # Flower's code for an exception in a ClientApp
WRONG_CLIENT = 1001  # fedkeel's code for WrongClient. Flower's codes are small numbers.


class InvalidMessage(ValueError):
    """A message, or a record in it, is not what the receiver expects."""


class WrongClient(InvalidMessage):
    """The message is for another client than the one that this node is."""


class ClientFailed(RuntimeError):
    """A client replied with an error."""


def error_reply(message: Message, error: Exception) -> Message:
    """A reply that carries the error, in words and with its code."""
    code = WRONG_CLIENT if isinstance(error, WrongClient) else APP_RAISED
    return Message(Error(code, describe(error)), reply_to=message)
