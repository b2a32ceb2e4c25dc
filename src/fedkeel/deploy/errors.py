"""Errors of a deployed run, and the codes with which a client's error travels to the server."""

from __future__ import annotations

import logging

from flwr.app import Error, Message

from fedkeel.errors import NotFinite, OutOfRange, describe

APP_RAISED = 2  # Flower's code for an exception in a ClientApp
WRONG_CLIENT = 1001  # fedkeel's code for WrongClient. Flower's codes are small numbers.


class InvalidMessage(ValueError):
    """A message, or a record in it, is not what the receiver expects."""


class WrongClient(InvalidMessage):
    """The message is for another client than the one that this node is."""


class WrongNodeConfig(ValueError):
    """The node-config of a SuperNode has a value that is not allowed."""


class ClientFailed(RuntimeError):
    """A client replied with an error."""


WITHOUT_DATA = (InvalidMessage, WrongNodeConfig, NotFinite, OutOfRange)  # errors whose texts say nothing about a site's data
log = logging.getLogger("fedkeel")


def error_reply(message: Message, error: BaseException) -> Message:
    """A reply that carries the error with its code.

    The text of an error may contain data of the site: a cell of a table, a name of a file. So the server gets only its
    class, unless fedkeel wrote the text; the site's log has all of it.
    """
    log.error("this site could not reply: %s", describe(error))
    code = WRONG_CLIENT if isinstance(error, WrongClient) else APP_RAISED
    reason = describe(error) if isinstance(error, WITHOUT_DATA) else type(error).__name__
    return Message(Error(code, reason), reply_to=message)
