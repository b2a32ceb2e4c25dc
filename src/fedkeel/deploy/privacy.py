"""Which methods allow that the server sees sums of uploads only, and which allow noise on uploads.

No method declares this; `core/sums.py` finds it out from the method's code. Both functions return the reason against
it as words for an error message, or None if the method allows it.
"""

from __future__ import annotations

import torch

from fedkeel.core.algorithm import Algorithm, Plan
from fedkeel.core.records import Record, exchanges_of, small_layers, trial_upload
from fedkeel.core.sums import only_plain, sums_asked

LAYERS = small_layers(2)


def why_sums_are_not_enough(method: Algorithm) -> str | None:
    """Why the server needs single uploads. None: sums are enough, so secure aggregation would be valid."""
    method = _planned(method)
    for stage in exchanges_of(method):
        if not only_plain(sums_asked(method, stage, LAYERS)):
            up = _upload(method, stage)
            return f"its server step looks at each client's {' and '.join(up._fields)}, not just at their weighted sums"
    return None


def why_noise_is_not_allowed(method: Algorithm) -> str | None:
    """Why a client must not clip its upload and add noise to it. None: it may.

    Flower's modifiers protect one array, the model: they change its difference from the model that the server
    sent.
    """
    if why := why_sums_are_not_enough(method):
        return why
    method = _planned(method)
    if exchanges_of(method) != ["client"]:
        return "its clients also send gradients, in a separate exchange, and the modifier does not protect those"
    sent = _upload(method, "client")._fields
    if sent != ("dx",):
        return f"its clients send {' and '.join(sent)}; the modifier protects a change of the model, dx, and nothing else"
    if method.init(torch.zeros(sum(LAYERS.sizes)))[1] is not None:
        return "its clients keep records, which would go on as if uploads had arrived without clipping and noise"
    return None


def _planned(method: Algorithm) -> Algorithm:
    """The method for the smallest run: one client, one round."""
    return method.plan(Plan(N=1, S=1, K=1.0, T=1, layers=LAYERS))


def _upload(method: Algorithm, stage: str) -> Record:
    return trial_upload(method, stage, LAYERS, torch.float32)
