"""fedkeel: federated optimizers for clients that differ and come and go."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Looked up on first use, so that `import fedkeel` and `fedkeel --help` do not wait for torch.
_PUBLIC = {
    "ALIE": "fedkeel.channel.attacks:ALIE",
    "CentredClipping": "fedkeel.channel.aggregation:CentredClipping",
    "GeometricMedian": "fedkeel.channel.aggregation:GeometricMedian",
    "InnerProduct": "fedkeel.channel.attacks:InnerProduct",
    "Krum": "fedkeel.channel.aggregation:Krum",
    "LabelFlip": "fedkeel.channel.attacks:LabelFlip",
    "LowRank": "fedkeel.channel.compression:LowRank",
    "Median": "fedkeel.channel.aggregation:Median",
    "ModelReplacement": "fedkeel.channel.attacks:ModelReplacement",
    "MultiKrum": "fedkeel.channel.aggregation:MultiKrum",
    "NormBound": "fedkeel.channel.aggregation:NormBound",
    "Privacy": "fedkeel.channel.privacy:Privacy",
    "Quantize": "fedkeel.channel.compression:Quantize",
    "RandK": "fedkeel.channel.compression:RandK",
    "RandomUpload": "fedkeel.channel.attacks:RandomUpload",
    "Sign": "fedkeel.channel.compression:Sign",
    "SignFlip": "fedkeel.channel.attacks:SignFlip",
    "TopK": "fedkeel.channel.compression:TopK",
    "TrimmedMean": "fedkeel.channel.aggregation:TrimmedMean",
    "Algorithm": "fedkeel.core.algorithm:Algorithm",
    "Dataset": "fedkeel.data.federation:Dataset",
    "EarlyStopping": "fedkeel.engine.callbacks:EarlyStopping",
    "Federation": "fedkeel.data.federation:Federation",
    "Fleet": "fedkeel.engine.fleet:Fleet",
    "RoundError": "fedkeel.errors:RoundError",
    "Schema": "fedkeel.data.schema:Schema",
    "Run": "fedkeel.engine.result:Run",
    "StudyResult": "fedkeel.study.study_result:StudyResult",
    "algorithm": "fedkeel.core.algorithm:make",
    "algorithms": "fedkeel.core.algorithm:algorithms",
    "check": "fedkeel.laws.method_laws:check",
    "choose": "fedkeel.study.choose:choose",
    "compare": "fedkeel.study.compare:compare",
    "from_csv": "fedkeel.data.readers.csv_table:from_csv",
    "from_folder": "fedkeel.data.readers.picture_folder:from_folder",
    "from_hub": "fedkeel.data.readers.hub:from_hub",
    "from_lightning": "fedkeel.engine.own_training_code:from_lightning",
    "from_trainer": "fedkeel.engine.own_training_code:from_trainer",
    "load": "fedkeel.data.load:load",
    "load_schema": "fedkeel.data.schema:load_schema",
    "lora": "fedkeel.runs.named_model:lora",
    "model": "fedkeel.runs.named_model:model",
    "open": "fedkeel.engine.run_files:open_run",
    "participation": "fedkeel.engine.participation:participation",
    "reproduce": "fedkeel.study.compare:reproduce",
    "resume": "fedkeel.runs.from_config:resume",
    "sweep": "fedkeel.study.compare:sweep",
    "train": "fedkeel.engine.train:train",
}
__all__ = sorted(_PUBLIC)

if TYPE_CHECKING:
    from fedkeel.channel.aggregation import CentredClipping, GeometricMedian, Krum, Median, MultiKrum, NormBound, TrimmedMean
    from fedkeel.channel.attacks import ALIE, InnerProduct, LabelFlip, ModelReplacement, RandomUpload, SignFlip
    from fedkeel.channel.compression import LowRank, Quantize, RandK, Sign, TopK
    from fedkeel.channel.privacy import Privacy
    from fedkeel.core.algorithm import Algorithm, algorithms
    from fedkeel.core.algorithm import make as algorithm
    from fedkeel.data.federation import Dataset, Federation
    from fedkeel.data.load import load
    from fedkeel.data.readers.csv_table import from_csv
    from fedkeel.data.readers.hub import from_hub
    from fedkeel.data.readers.picture_folder import from_folder
    from fedkeel.data.schema import Schema, load_schema
    from fedkeel.engine.callbacks import EarlyStopping
    from fedkeel.engine.fleet import Fleet
    from fedkeel.engine.own_training_code import from_lightning, from_trainer
    from fedkeel.engine.participation import participation
    from fedkeel.engine.result import Run
    from fedkeel.engine.run_files import open_run as open
    from fedkeel.engine.train import train
    from fedkeel.errors import RoundError
    from fedkeel.laws.method_laws import check
    from fedkeel.runs.from_config import resume
    from fedkeel.runs.named_model import lora, model
    from fedkeel.study.choose import choose
    from fedkeel.study.compare import compare, reproduce, sweep
    from fedkeel.study.study_result import StudyResult


class _OldModule(ModuleType):
    """A module of version 0.1.0 that is gone. `old_paths` knows where its names are now."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        from fedkeel.old_paths import moved

        return moved(self.__name__, name)


for _name in ("config", "core.rules", "data.hub", "data.own", "data.sources", "engine.faults", "engine.run"):
    sys.modules[f"fedkeel.{_name}"] = _OldModule(f"fedkeel.{_name}")
    sys.modules[f"fedkeel.{_name}"].__file__ = __file__  # `inspect` asks every module for its file


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'fedkeel' has no attribute {name!r}")
    module, _, attribute = _PUBLIC[name].partition(":")
    value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *_PUBLIC]
