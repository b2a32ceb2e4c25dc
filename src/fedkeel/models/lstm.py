"""Recurrent networks for token ids [n, L]."""

from __future__ import annotations

from torch import Tensor, nn

from fedkeel.models.length_buckets import PADDING, in_buckets


class TextReader(nn.Module):
    """Embedding and LSTM: [n, L] -> [n, hidden], the mean of the outputs over all tokens except the padding."""

    def __init__(self, vocabulary: int, embedding: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=PADDING)
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        return in_buckets(self._read, tokens)

    def _read(self, tokens: Tensor) -> Tensor:
        real = tokens != PADDING
        outputs, _ = self.lstm(self.embedding(tokens))
        total: Tensor = (outputs * real.unsqueeze(-1)).sum(1)
        return total / real.sum(1, keepdim=True).clamp_min(1)


class CharacterReader(nn.Module):
    """Embedding and two-layer LSTM: [n, L] -> [n, hidden], the last output. Id 0 is a character, not padding."""

    def __init__(self, vocabulary: int, embedding: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, num_layers=2, batch_first=True)

    def forward(self, characters: Tensor) -> Tensor:
        outputs: Tensor = self.lstm(self.embedding(characters))[0]
        return outputs[:, -1]


def lstm(vocabulary: int, classes: int, embedding: int = 100, hidden: int = 128) -> nn.Module:
    """LSTM for text classification (PAdaMFed, IMDB). 1,118,018 parameters for 10,000 tokens and 2 classes.

    Differs from the paper: it says "LSTM" and nothing else. We chose the sizes, and the mean over the text instead of the
    last state: with the mean, the model learns reviews of some hundred words much sooner.
    """
    return nn.Sequential(TextReader(vocabulary, embedding, hidden), nn.Linear(hidden, classes))


def char_lstm(vocabulary: int, classes: int, embedding: int = 8, hidden: int = 256) -> nn.Module:
    """Next character of Shakespeare's plays: embedding 8 and two layers of 256, as in FedAvg's paper and LEAF.

    819,920 parameters for 80 characters. torch's LSTM has two bias vectors per layer, though one would be enough.
    """
    return nn.Sequential(CharacterReader(vocabulary, embedding, hidden), nn.Linear(hidden, classes))
