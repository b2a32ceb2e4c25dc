"""From a config to a run: its data, its model and the training that it describes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedkeel.errors import refuse
from fedkeel.runs.config import OWN_DATA, PRETRAINED, PYTHON, SPLIT_OPTIONS, RunConfig, missing_lora_options, resolve
from fedkeel.runs.saved_config import saved_config

if TYPE_CHECKING:
    from torch import nn

    from fedkeel.data.federation import Dataset, Federation
    from fedkeel.engine.result import Run


def load_data(config: RunConfig) -> Dataset | Federation:
    """The data that a config names, before they are split. A user's function may return them split."""
    from fedkeel.data.load import HUB, load_any

    given = {name: getattr(config, name) for name in OWN_DATA if getattr(config, name) is not None}
    renamed = {"image_size": "size"} | ({"label": "y"} if config.data.startswith(HUB) else {})
    return load_any(
        config.data, config.data_dir, config.augment, **{renamed.get(name, name): value for name, value in given.items()}
    )


def federation(config: RunConfig, data: Dataset | Federation | None = None) -> Federation:
    """The clients of a run and their data. data: the data that the config names, if they are loaded already."""
    from fedkeel.data.federation import Federation

    if config.data.startswith(PYTHON):
        raise ValueError(f"data: {config.data!r} was a Python object; go on with the Python code that made it")
    options = {key: getattr(config, key) for key in SPLIT_OPTIONS if getattr(config, key) is not None}
    data = data or load_data(config)
    if isinstance(data, Federation):
        if len(data) != config.clients:
            raise refuse("clients", config.clients, f"{len(data)}, as many as {config.data} returns")
        return data
    return data.split(config.split, clients=config.clients, seed=config.split_seed, **options)


def task(config: RunConfig, fed: Federation | None = None) -> tuple[Callable[[], nn.Module], Federation]:
    """A function that makes the model, and the federation as that model reads it. fed: the config's data, if loaded.

    The model is made once here, so that a wrong name or size is an error before anything is trained.
    """
    make, fed = _parts(config, fed)
    make()
    return make, fed


def _parts(config: RunConfig, fed: Federation | None) -> tuple[Callable[[], nn.Module], Federation]:
    from fedkeel.data.texts import Texts
    from fedkeel.models import model_for

    if config.model.startswith(PYTHON):
        raise ValueError(f"model: {config.model!r} was a Python object; go on with the Python code that made it")
    fed, adapters = fed or federation(config), None
    if not config.model.startswith(PRETRAINED) and not isinstance(fed.x, Texts):
        return model_for(fed, config.model), fed
    from fedkeel.runs.named_model import named_model

    if config.model.startswith(PRETRAINED):
        from fedkeel.models.pretrained.backbone import need_extra

        need_extra()
        from fedkeel.models.pretrained.classifier import Lora

        config = config.changed(**missing_lora_options(config))
        adapters = Lora(config.lora_rank, config.lora_alpha, config.lora_targets, config.lora_layers)  # type: ignore[arg-type]
    return named_model(config.model, fed, config.length, adapters=adapters)


def train(
    config: RunConfig,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool | Callable[[dict[str, Any]], None] = True,
    *,
    fresh: bool = False,
    fed: Federation | None = None,
    model: nn.Module | Callable[[], nn.Module] | None = None,
    keywords: Mapping[str, Any] | None = None,
) -> Run:
    """Trains as the config says.  fresh: replace a run in `out`.  fed: the config's data, if they are loaded already.

    model: a Python object in place of the named model. Then keywords are further arguments of `fk.train`, such as loss.
    """
    from torch.nn.functional import mse_loss

    from fedkeel.engine.loop import INTERRUPTED, run_training
    from fedkeel.engine.objective import seeded
    from fedkeel.engine.own_code import OwnCode
    from fedkeel.engine.state import directory

    config = resolve(config)
    directory.check_out(out, resume)
    if model is not None:
        from fedkeel.engine.train import train as train_objects

        fed = fed or federation(config)
        if out is not None and fresh:
            directory.clear(Path(out))
        given = config.keywords() | dict(keywords or {})
        place: dict[str, Any] = {"out": out, "resume": resume, "progress": progress, "config": config.as_dict()}
        run = train_objects(model, fed, config.method, **given, **place)
        if run.stopped == INTERRUPTED:  # a study must not take it for a complete run
            raise KeyboardInterrupt
        return run
    make, fed = _parts(config, fed)
    # An error in the model's name or size must come before the old run is removed.
    made = seeded(make, config.seed)
    if out is not None and fresh:
        directory.clear(Path(out))
    # Numbers are predicted, not classes.
    own = OwnCode(mse_loss) if fed.y is not None and fed.y.is_floating_point() else OwnCode()
    return run_training(made, fed, config.method, config, config.as_dict(), own, out=out, resume=resume, progress=progress)


def continues(shorter: RunConfig, longer: RunConfig) -> bool:
    """Is a longer run the same as a shorter one in the rounds that both have?

    It is not if the hyper-parameters or the learning rates of a round follow from the number of rounds.
    """
    from fedkeel.core.algorithm import Plan

    if getattr(longer, "lr_schedule", None) not in (None, "constant"):
        return False
    planned = []
    for config in (resolve(shorter), resolve(longer)):
        S = config.largest_cohort(config.clients)
        planned.append(config.method.plan(Plan(N=config.clients, S=S, K=config.local_steps or 1, T=config.rounds)))
    return bool(planned[0] == planned[1])


def resume(path: str | Path, *, progress: bool | Callable[[dict[str, Any]], None] = True, **changes: Any) -> Run:
    """Goes on with the run in a directory, e.g. `fk.resume("runs/x", rounds=200)`. A complete run is read back.

    changes: new values of rounds, evaluate_every or of the engine's settings. Other changes would make another run.
    """
    return train(saved_config(path).changed(**changes), path, resume=True, progress=progress)
