"""What `load_data` of a site may return."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import fedkeel as fk
from fedkeel.deploy.local_data import as_federation

X, Y = torch.arange(12.0).view(6, 2), torch.tensor([0, 1, 0, 1, 1, 0])


@pytest.mark.parametrize("data", [(X, Y), fk.Dataset("site", X, Y), TensorDataset(X, Y)], ids=["pair", "Dataset", "torch"])
def test_the_site_has_its_own_number(data: object) -> None:
    fed = as_federation(data, client=3)
    assert (len(fed), fed.size(3)) == (4, 6)
    numbers = np.array([5, 0, 2])
    x, y = fed.take(3, numbers)
    assert torch.equal(x, X[numbers])
    assert torch.equal(y, Y[numbers])


def test_pictures_are_normalised_at_the_site() -> None:
    site = fk.Dataset("site", X.byte(), Y, prepare=torch.Tensor.float)
    assert as_federation(site, client=1).prepare is torch.Tensor.float
