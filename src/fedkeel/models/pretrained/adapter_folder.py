"""Adapters and head of a text classifier as a folder of peft, which computes the same scores with them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import save
from torch import Tensor

from fedkeel.files import write_atomically
from fedkeel.models.pretrained.backbone import load_tokenizer

if TYPE_CHECKING:
    from fedkeel.models.pretrained.classifier import TextClassifier

ADAPTER = "default"  # the name that peft gives the adapters of a model in memory; its files leave it out
README = """\
---
base_model: {base}
library_name: peft
---
Adapters (LoRA) and classification head, trained with fedkeel.

```python
from peft import PeftModel
from transformers import AutoModelForSequenceClassification, AutoTokenizer

base = AutoModelForSequenceClassification.from_pretrained("{base}", num_labels={classes}, pad_token_id={pad})
model = PeftModel.from_pretrained(base, "this folder").eval()
tokenizer = AutoTokenizer.from_pretrained("this folder")
```
"""


def save_adapters(model: TextClassifier, folder: Path) -> None:
    reader, last = model
    weights = {}
    for name, z in model.state_dict().items():
        weights[_place(model, name)] = z.detach().cpu().contiguous().clone()
    pretrained: Any = reader.model
    config = copy.copy(pretrained.peft_config[ADAPTER])
    config.task_type, config.inference_mode, config.base_model_name_or_path = "SEQ_CLS", True, model.name
    # Layers that are trained whole: the head, and layers that the files of the pretrained model do not hold.
    config.modules_to_save = sorted({place.rpartition(".")[0] for place in weights if ".lora_" not in place})
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(str(folder))
    named: dict[str, Tensor] = {f"base_model.model.{place}": z for place, z in weights.items()}
    write_atomically(folder / "adapter_model.safetensors", save(named, {"format": "pt"}))
    load_tokenizer(model.name).tokenizer.save_pretrained(str(folder))
    facts = {"base": model.name, "classes": last.out_features, "pad": reader.pad}
    write_atomically(folder / "README.md", README.format(**facts).encode())


def _place(model: TextClassifier, name: str) -> str:
    """Where a parameter is in the pretrained model, as peft's files write it."""
    part, _, inside = name.partition(".")
    if part == "1":  # the last layer
        return f"{model.head}.{inside}"
    return inside.removeprefix("model.").replace(f".{ADAPTER}.", ".")
