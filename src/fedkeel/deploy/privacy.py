"""Which methods allow that the server sees sums of uploads only, and which allow noise on uploads.

No method declares this; `core/sums.py` finds it out from the method's code. Both functions return the reason against
it as words for an error message, or None if the method allows it.
"""

from __future__ import annotations

import torch

from fedkeel.channel.validity import LAYERS, planned, why_sums_are_not_enough
from fedkeel.core.algorithm import Algorithm
from fedkeel.core.records import Record, exchanges_of, trial_upload


def why_noise_is_not_allowed(method: Algorithm) -> str | None:
    """Why a client must not clip its upload and add noise to it. None: it may.

    Flower's modifiers protect one array, the model: they change its difference from the model that the server
    sent.
    """
    if why := why_sums_are_not_enough(method):
        return why
    method = planned(method)
    if exchanges_of(method) != ["client"]:
        return "its clients also send gradients, in a separate exchange, and the modifier does not protect those"
    sent = _upload(method, "client")._fields
    if sent != ("dx",):
        return f"its clients send {' and '.join(sent)}; the modifier protects a change of the model, dx, and nothing else"
    if method.init(torch.zeros(sum(LAYERS.sizes)))[1] is not None:
        return "its clients keep records, which would go on as if uploads had arrived without clipping and noise"
    return None


def _upload(method: Algorithm, stage: str) -> Record:
    return trial_upload(method, stage, LAYERS, torch.float32)
