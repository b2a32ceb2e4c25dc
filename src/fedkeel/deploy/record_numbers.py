"""What the server knows about the clients' records: the number of the record that each client starts from."""

from __future__ import annotations

import torch
from torch import Tensor


class RecordNumbers:
    """Takes the place of the engine's Store. A slot is the number of a record that stays with its client."""

    def __init__(self) -> None:
        self.live: dict[int, int] = {}  # client -> number of the record that it starts from

    def __contains__(self, client: int) -> bool:
        return False  # no record can be read on the server

    def commit(self, client: int, number: int) -> None:
        self.live[client] = number

    def discard(self, number: int) -> None:
        """Nothing to do: the server never asks a client to start from this record."""

    def index(self) -> dict[str, Tensor]:
        live = torch.tensor(list(self.live.items()), dtype=torch.int64).reshape(-1, 2)
        return {"elsewhere.clients": live[:, 0].contiguous(), "elsewhere.records": live[:, 1].contiguous()}

    def pin(self) -> None:
        """Nothing to do: clients keep their last few records, so a checkpoint needs no protection here."""

    def restore(self, index: dict[str, Tensor]) -> None:
        if "elsewhere.clients" not in index:
            raise ValueError("resume: this run was not deployed; its client records are in its directory")
        self.live = dict(zip(index["elsewhere.clients"].tolist(), index["elsewhere.records"].tolist(), strict=True))
