"""A run that goes on from its checkpoint."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from fedkeel.core.algorithm import defaults
from fedkeel.core.device import to_device
from fedkeel.engine.best_round import BestRound
from fedkeel.engine.state.checkpoint import Checkpoint, check_same, server_from

if TYPE_CHECKING:
    from fedkeel.engine.loop import Trainer


def restore(trainer: Trainer, saved: Checkpoint, history: list[dict[str, Any]]) -> None:
    """Sets a new run back to the state of a checkpoint, after a check that the checkpoint belongs to this run.

    Raises Damaged if client memory is damaged. Then you may call it again with an older checkpoint.
    """
    state, settings, tensors, facts = trainer.state, trainer.settings, saved.tensors, saved.facts
    state.t, state.history = saved.t, history
    then = facts["identity"]
    if then["data"] != trainer.fingerprint and trainer.fed.had_fingerprint(then["data"]):
        then["data"] = trainer.fingerprint
    left_to_method = [name for name, value in dataclasses.asdict(trainer.given).items() if value is None]  # type: ignore[call-overload]
    # A checkpoint of an older version may lack hyper-parameters that the method has now: they had their defaults.
    then |= {"algorithm": defaults(type(trainer.algo)) | then["algorithm"]}
    check_same(then, trainer.identity(), left_to_method)
    if state.t > settings.rounds:
        raise ValueError(f"resume: the checkpoint is at round {state.t}, beyond rounds = {settings.rounds}")
    device = trainer.model.device
    state.server = server_from(tensors, state.server, device)
    state.buffers = to_device(tensors["buffers"], state.buffers.device)
    trainer.store.restore(tensors)
    if trainer.attendance is not None:
        trainer.attendance.replay(history)
    for name, part in trainer.parts.items():
        if name in saved.parts:
            part.restore(saved.parts[name])
    state.warmed_up, state.warmup_columns = True, facts["warmup"]
    if facts.get("rounds") == settings.rounds:  # with more rounds, a run that was stopped goes on
        state.stopped = facts["stopped"]
    if "best" in facts:
        state.best = BestRound.restored(facts["best"], tensors, device)
    if trainer.exchanges.time is not None:
        trainer.exchanges.time.restore(state.t, history, tensors, trainer.exchanges.sent())
    if trainer.engine.name == "auto":
        trainer.engine.name, trainer.engine.why = facts["engine"], facts["why"]
