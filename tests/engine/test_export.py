"""The model of a run in other formats computes the same outputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fedkeel as fk


def small_run() -> tuple[fk.Run, torch.Tensor]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 30, 4)).astype(np.float32)
    fed = fk.Federation.from_arrays([(z, (z[:, 0] > 0).astype(np.int64)) for z in x])
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))
    run = fk.train(model, fed, "fedavg", rounds=4, cohort=3, local_steps=5, validation=0.2, progress=False)
    return run, fed.x


def test_safetensors(tmp_path: Path) -> None:
    run, x = small_run()
    other = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2)).eval()
    for which, model in (("final", run.model), ("best", run.best)):
        other.load_state_dict(load_file(run.export(tmp_path / f"{which}.safetensors", which=which)))
        assert torch.equal(other(x), model(x))
    with pytest.raises(ValueError, match=r"safetensors or \.onnx"):
        run.export(tmp_path / "model.h5")
    with pytest.raises(ValueError, match="which"):
        run.export(tmp_path / "model.safetensors", which="last")
    with pytest.raises(ValueError, match="Hugging Face"):
        run.export(tmp_path / "folder")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_onnx(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    run, x = small_run()
    with pytest.raises(ValueError, match="example"):
        run.export(tmp_path / "model.onnx")
    path = run.export(tmp_path / "model.onnx", example=x[:3])
    session = onnxruntime.InferenceSession(str(path))
    (found,) = session.run(None, {session.get_inputs()[0].name: x[:7].numpy()})
    torch.testing.assert_close(torch.from_numpy(found), run.model(x[:7]).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_folder_of_hugging_face(tmp_path: Path) -> None:
    from transformers import BertConfig, BertForSequenceClassification

    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    net = BertForSequenceClassification(BertConfig(vocab_size=20, num_labels=2, **size))
    x, y = torch.randint(0, 20, (4, 12, 6)), torch.randint(0, 2, (4, 12))
    fed = fk.Federation.from_arrays(list(zip(x, y, strict=True)))

    def step(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        loss: torch.Tensor = model(input_ids=batch[0], labels=batch[1]).loss
        return loss

    run = fk.train(net, fed, "fedavg", step=step, rounds=2, cohort=2, local_steps=2, progress=False)
    run.export(tmp_path / "bert")
    loaded = BertForSequenceClassification.from_pretrained(tmp_path / "bert").eval()
    assert torch.equal(loaded(x[0]).logits, run.model(x[0]).logits)
