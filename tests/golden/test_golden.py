"""No numbers changed: every method ends with the same weights and records as before.

On a processor and torch release that are known, the bits are compared. Elsewhere rounding may differ, so the same runs in
float64 are compared to 1e-6. `python -m tests.golden` writes the files (tests/golden/__main__.py).
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedkeel as fk
from tests.golden.__main__ import NUMBERS, digest_file, read
from tests.golden.tasks import MODELS, digests, finished_run, numbers

KNOWN = read(digest_file())
CLOSE = read(NUMBERS)


@pytest.mark.parametrize("task", MODELS)
@pytest.mark.parametrize("method", fk.algorithms())
def test_a_run_ends_as_it_did_before(method: str, task: str) -> None:
    case = f"{method} {task}"
    assert case in CLOSE, f"a new method: run `python -m tests.golden {method}`, which only adds lines"
    if case in KNOWN:  # a method may be newer than the digests of this processor
        assert digests(finished_run(method, task, torch.float32)) == KNOWN[case]
        return
    found = numbers(finished_run(method, task, torch.float64))
    assert found.keys() == CLOSE[case].keys()
    for name, expected in CLOSE[case].items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-6, atol=1e-6, err_msg=name)
