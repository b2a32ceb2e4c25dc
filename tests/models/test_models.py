"""Models by name: published sizes and costs, shapes, gradients, engines, and models that users write."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

import fedkeel as fk
from fedkeel.engine.runners.vectorized import cannot_vectorize
from fedkeel.models import DENSE, IMAGES, MODELS, TEXT, make_model, model_function
from fedkeel.models.lenet import SMU
from fedkeel.models.max_pool import MaxPool
from fedkeel.models.resnet import Residual, two_groups
from fedkeel.runs import from_config
from fedkeel.runs.config import RunConfig

MNIST, CIFAR, TINY, IMAGENET = (1, 28, 28), (3, 32, 32), (3, 64, 64), (3, 224, 224)
HEAVY = ("vgg11", "resnet20", "resnet18-gn", "resnet18-bn", "resnet18-gn-7x7")


def heavy_is_slow(names: Any) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.slow) if name in HEAVY else name for name in names]


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def on_meta(name: str, shape: tuple[int, ...], classes: int, vocabulary: int | None = None) -> nn.Module:
    """The model without its memory."""
    with torch.device("meta"):
        return make_model(name, shape, classes, vocabulary)


def docstring(name: str) -> str:
    return model_function(name).__doc__ or ""


def small(name: str) -> tuple[tuple[int, ...], int | None]:
    """Shape and vocabulary of the smallest samples that the model takes."""
    if name in TEXT:
        return (7,), 11
    return ((3, IMAGES[name][1], IMAGES[name][1]) if name in IMAGES else (2, 3)), None


def samples(name: str, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    shape, vocabulary = small(name)
    x = rng.integers(0, vocabulary, (n, *shape)) if vocabulary else rng.normal(size=(n, *shape)).astype(np.float32)
    return torch.as_tensor(x), torch.as_tensor(rng.integers(0, 3, n))


def federation(name: str) -> fk.Federation:
    fed = fk.Federation.from_arrays([samples(name, 4, seed) for seed in range(2)], test=samples(name, 4, 9))
    fed.vocabulary = small(name)[1]
    return fed


# Sizes ----------------------------------------------------------------------------------------------------------------


def conv(inputs: int, outputs: int, side: int, bias: bool = True) -> int:
    return outputs * (inputs * side**2 + bias)


def dense(*widths: int) -> int:
    return sum((a + 1) * b for a, b in pairwise(widths))


def recurrent(inputs: int, hidden: int) -> int:
    return 4 * hidden * (inputs + hidden + 2)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "wanted"),
    [
        ("logistic", MNIST, 10, 7850),
        ("mlp", MNIST, 10, dense(784, 200, 10)),
        ("mlp2", MNIST, 10, 199_210),  # McMahan et al. 2017, section 3
        ("mlp3", MNIST, 10, dense(784, 200, 200, 200, 10)),
        ("mlp-bn", MNIST, 10, dense(784, 200, 100, 10) + 2 * (200 + 100)),
        ("cnn", MNIST, 10, conv(1, 16, 3) + conv(16, 32, 3) + dense(32 * 7 * 7, 10)),
        ("cnn3", MNIST, 47, conv(1, 32, 3) + conv(32, 64, 3) + conv(64, 64, 3) + dense(64 * 3 * 3, 128, 47)),
        ("cnn-lamb", MNIST, 10, conv(1, 10, 5) + conv(10, 20, 5) + dense(20 * 4 * 4, 50, 10)),
        ("lenet5", MNIST, 10, 61_706),  # ReLU, full second convolution: the usual modern count
        ("lenet5", CIFAR, 10, 62_006),  # the same with three channels
        ("lenet", CIFAR, 10, conv(3, 64, 5) + conv(64, 64, 5) + dense(64 * 5 * 5, 384, 192, 10)),
        ("vgg11", CIFAR, 10, 9_231_114),  # batch normalisation, one linear layer
        ("resnet20", CIFAR, 10, 272_474),  # He et al.'s 0.27 M, with 1 x 1 shortcuts
        ("resnet20", TINY, 200, 272_474 + 65 * 190),
        ("resnet18-gn", CIFAR, 10, 11_173_962),
        ("resnet18-bn", CIFAR, 10, 11_173_962),
        ("resnet18-gn", CIFAR, 100, 11_173_962 + 513 * 90),
        ("resnet18-gn", TINY, 200, 11_173_962 + 513 * 190),
        ("resnet18-gn-7x7", CIFAR, 10, 11_689_512 - 513 * 990),  # 11,689,512: the 1000-class network of ImageNet
    ],
)
def test_published_parameter_counts(name: str, shape: tuple[int, int, int], classes: int, wanted: int) -> None:
    assert count(on_meta(name, shape, classes)) == wanted
    assert f"{wanted:,}" in docstring(name)


def test_parameter_counts_of_text_models() -> None:
    assert count(make_model("lstm", (200,), 2, 10_000)) == 10_000 * 100 + recurrent(100, 128) + dense(128, 2) == 1_118_018
    two_layers = recurrent(8, 256) + recurrent(256, 256)
    assert count(make_model("char-lstm", (80,), 80, 80)) == 80 * 8 + two_layers + dense(256, 80) == 819_920
    assert "1,118,018" in docstring("lstm")
    assert "819,920" in docstring("char-lstm")


def test_the_convolutions_of_vgg11_are_the_original_ones() -> None:
    found = sum(count(part) for part in on_meta("vgg11", CIFAR, 10).modules() if isinstance(part, nn.Conv2d))
    assert found == 132_863_336 - dense(512 * 7 * 7, 4096, 4096, 1000)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "wanted"),
    [
        ("resnet18-gn-7x7", IMAGENET, 1000, 1.814e9),
        ("resnet18-gn", CIFAR, 10, 0.5554e9),
        ("resnet20", CIFAR, 10, 40.8e6),
        ("vgg11", CIFAR, 10, 152.9e6),
        ("lenet5", CIFAR, 10, 651_720),  # 28 x 28 x 6 x 75 + 10 x 10 x 16 x 150 + 400 x 120 + 120 x 84 + 84 x 10
    ],
)
def test_published_multiplications(name: str, shape: tuple[int, int, int], classes: int, wanted: float) -> None:
    """Counts of multiplications also depend on strides and pooling; counts of parameters do not."""
    model = on_meta(name, shape, classes)
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, *shape, device="meta"))
    assert counter.get_total_flops() / 2 == pytest.approx(wanted, rel=0.005)


@pytest.mark.parametrize("name", [*DENSE, *IMAGES])
def test_output_shapes(name: str) -> None:
    for shape in (MNIST, CIFAR, TINY, (3, 40, 33)):
        assert on_meta(name, shape, 7)(torch.zeros(3, *shape, device="meta")).shape == (3, 7)


# What they compute ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", heavy_is_slow(MODELS))
def test_a_gradient_step_lowers_the_loss(name: str) -> None:
    torch.manual_seed(0)
    shape, vocabulary = small(name)
    model, (x, y) = make_model(name, shape, 3, vocabulary), samples(name, 6)

    def loss() -> Tensor:
        torch.manual_seed(1)  # the same dropout
        return functional.cross_entropy(model(x), y)

    before = loss()
    grads = torch.autograd.grad(before, list(model.parameters()))
    length = sum(float(g.square().sum()) for g in grads)
    with torch.no_grad():
        for p, g in zip(model.parameters(), grads, strict=True):
            p -= 0.1 * before / length * g  # if the loss were linear, the step would lower it by a tenth
        assert 0.8 * before < loss() < 0.99 * before


@pytest.mark.parametrize("name", ["resnet18-gn", "resnet18-gn-7x7"])
def test_two_groups_are_normalised(name: str) -> None:
    model = on_meta(name, CIFAR, 10)
    norms = [part for part in model.modules() if "Norm" in type(part).__name__]
    assert len(norms) == 20
    assert {(type(part), part.num_groups) for part in norms} == {(nn.GroupNorm, 2)}
    z = two_groups(6)(torch.randn(2, 6, 4, 4) + torch.arange(6.0).view(6, 1, 1))
    for half in z.split(3, dim=1):
        assert half.mean((1, 2, 3)).abs().max() < 1e-5
    assert z.mean((2, 3)).abs().max() > 0.1  # a single channel is not


@pytest.mark.parametrize(("inputs", "stride"), [(4, 1), (2, 2)])
def test_a_residual_unit_follows_its_paper(inputs: int, stride: int) -> None:
    torch.manual_seed(0)
    unit, x = Residual(inputs, 4, stride, two_groups), torch.randn(2, inputs, 6, 6)
    weights = [p for p in unit.parameters() if p.dim() == 4]
    z = functional.group_norm(functional.conv2d(x, weights[0], stride=stride, padding=1), 2).relu()
    z = functional.group_norm(functional.conv2d(z, weights[1], padding=1), 2)
    skip = x if stride == 1 else functional.group_norm(functional.conv2d(x, weights[2], stride=2), 2)
    torch.testing.assert_close(unit(x), (z + skip).relu())


@pytest.mark.parametrize("sides", [(28, 28), (7, 5), (2, 3)])
def test_pooling_is_that_of_torch(sides: tuple[int, int]) -> None:
    """Whole numbers, so that windows contain ties; one window has a nan, and one is all minus infinity."""
    x = torch.randint(-3, 4, (5, 3, *sides), generator=torch.Generator().manual_seed(0)).float()
    x[0, 0, 1, 1] = torch.nan
    x[1, 1, :2, :2] = -torch.inf
    wanted = functional.max_pool2d(x, 2)
    with torch.no_grad():
        torch.testing.assert_close(MaxPool()(x), wanted, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(MaxPool()(x.requires_grad_()), wanted, rtol=0, atol=0, equal_nan=True)


def test_smooth_activations() -> None:
    x = torch.linspace(-3, 3, 61)
    torch.testing.assert_close(SMU(2**-0.5)(x), functional.gelu(x))  # Table 8 of FedLADA: GeLU without the tanh form
    torch.testing.assert_close(SMU(1e4)(x), x.relu())
    kinds = {name: {type(part) for part in on_meta(f"lenet{name}", CIFAR, 10).modules()} for name in ("", "-gelu", "-smu")}
    assert nn.ReLU in kinds[""]
    assert nn.GELU in kinds["-gelu"]
    assert SMU in kinds["-smu"]
    assert nn.ReLU not in kinds["-gelu"] | kinds["-smu"]


def test_padding_does_not_change_what_an_lstm_reads() -> None:
    torch.manual_seed(0)
    model = make_model("lstm", (5,), 2, 11)
    text = torch.tensor([[3, 7, 2, 9, 4]])
    padded = torch.cat([text, torch.zeros(1, 6, dtype=torch.long)], dim=1)
    torch.testing.assert_close(model(padded), model(text))
    assert not torch.allclose(model(text), model(text.flip(1)))
    assert model(torch.zeros(1, 5, dtype=torch.long)).isfinite().all()


def test_the_last_character_counts() -> None:
    torch.manual_seed(0)
    model = make_model("char-lstm", (4,), 11, 11)
    assert not torch.allclose(model(torch.tensor([[1, 2, 3, 0]])), model(torch.tensor([[1, 2, 3, 4]])))


# In the engines -------------------------------------------------------------------------------------------------------


def run(name: str, algorithm: str, engine: str, **options: Any) -> fk.Run:
    shape, vocabulary = small(name)
    settings = {"rounds": 2, "cohort": 2, "local_steps": 1, "batch_size": 3, "progress": False} | options
    return fk.train(
        lambda: make_model(name, shape, 3, vocabulary),
        federation(name),
        algorithm,
        engine=engine,
        **settings,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("name", heavy_is_slow(MODELS))
def test_every_model_runs_in_the_engines_and_shows_its_features(name: str) -> None:
    plain = run(name, "fedavg", "sequential")
    assert torch.equal(plain.params, run(name, "fedavg", "processes").params)
    for result in (plain, run(name, "moon", "sequential"), run(name, "fedmlb", "sequential")):
        assert result.history[-1]["dropped"] == 0
        # The features of logistic regression are its inputs, which no method can change.
        assert torch.allclose(result.params, plain.params, atol=1e-6) == (result is plain or name == "logistic")


@pytest.mark.parametrize("name", heavy_is_slow(["mlp3", "cnn3", "lenet5", "lenet-smu", "resnet18-gn"]))
@pytest.mark.parametrize("algorithm", ["fedavg", "fedmlb"])
def test_vectorized_agrees_to_rounding(name: str, algorithm: str) -> None:
    options = {"dtype": torch.float64, "rounds": 1}
    one, many = (run(name, algorithm, engine, **options) for engine in ("sequential", "vectorized"))
    torch.testing.assert_close(one.params, many.params, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("lstm", "torch has no batching rule for LSTM layers"),
        ("resnet20", "it has buffers (normalisation statistics)"),
        ("cnn-lamb", "its dropout would draw other numbers"),
    ],
)
def test_models_that_cannot_be_vectorized_say_why(name: str, reason: str) -> None:
    for engine in ("vectorized", "compiled"):
        with pytest.raises(ValueError, match=re.escape(f"engine: '{engine}' cannot run this model: {reason}")) as caught:
            run(name, "fedavg", engine)
        assert "\n" not in str(caught.value)
    assert run(name, "fedavg", "auto", rounds=1).engine in ("sequential", "processes")


def test_all_others_can_be_vectorized() -> None:
    able = [name for name in (*DENSE, *IMAGES) if cannot_vectorize(on_meta(name, CIFAR, 10)) is None]
    assert {*DENSE, *IMAGES} - {*able} == {"mlp-bn", "cnn-lamb", "vgg11", "resnet20", "resnet18-bn"}


# Names and shapes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape", "vocabulary", "message"),
    [
        ("resnet18-ng", CIFAR, None, "model: unknown name 'resnet18-ng'; did you mean resnet18-gn"),
        ("transformer", CIFAR, None, "model: unknown name 'transformer'; known: char-lstm, cnn, cnn-lamb"),
        (
            "lenet5",
            (784,),
            None,
            "model: 'lenet5' needs images [C, H, W] of at least 12 x 12 pixels, the data have",
        ),
        ("vgg11", (3, 16, 32), None, "model: 'vgg11' needs images [C, H, W] of at least 17 x 17 pixels"),
        ("lstm", CIFAR, None, "model: 'lstm' needs token ids [L] and their vocabulary, the data have shape [3, 32, 32]"),
        ("lstm", (80,), None, "model: 'lstm' needs token ids [L] and their vocabulary"),
        (
            "mlp",
            (80,),
            90,
            "model: 'mlp' does not read text, the data have shape [80] and a vocabulary of 90; use lstm",
        ),
    ],
)
def test_wrong_names_and_shapes(name: str, shape: tuple[int, ...], vocabulary: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make_model(name, shape, 10, vocabulary)


@pytest.mark.parametrize("name", IMAGES)
def test_the_smallest_images_are_taken_and_smaller_ones_refused(name: str) -> None:
    least = IMAGES[name][1]
    model = on_meta(name, (1, least, least), 2)
    assert model(torch.zeros(1, 1, least, least, device="meta")).shape == (1, 2)  # one sample, while training
    with pytest.raises(ValueError, match=f"at least {least} x {least}"):
        make_model(name, (1, least - 1, least), 2)


def test_a_federation_knows_its_vocabulary_and_classes() -> None:
    fed = federation("lstm")
    fed.classes = 5
    make, _ = from_config.task(RunConfig(model="lstm"), fed)
    assert make()[0].embedding.num_embeddings == 11
    assert make()[1].out_features == 5
    fed.classes = None
    assert from_config.task(RunConfig(model="lstm"), fed)[0]()[1].out_features == int(fed.y.max()) + 1


# Models that users write ------------------------------------------------------------------------------------------------

MINE = """
from torch import nn

def sized(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))

def fixed(width=4):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

def named(shape=(1, 2, 2), classes=3, width=8):
    return sized(shape, classes)

def text(shape, classes, vocabulary):
    return nn.Embedding(vocabulary, classes)

class Net(nn.Linear):
    def __init__(self, shape, classes):
        super().__init__(shape[-1], classes)

def odd(a, b, c, d): ...
def only_names(*, width): ...
def wrong(shape, classes): return "a model"
def broken(shape, classes): raise RuntimeError("no weights")
number = 3
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the current directory, which is not on the path."""
    import sys

    (tmp_path / "my_nets.py").write_text(MINE)
    (tmp_path / "my_faults.py").write_text("import no_such_package")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    monkeypatch.delitem(sys.modules, "my_nets", raising=False)
    return "my_nets"


@pytest.mark.parametrize(
    ("factory", "wanted"), [("sized", 65 * 10), ("fixed", 65 * 4 + 50), ("named", 65 * 10), ("text", 70), ("Net", 90)]
)
def test_factories_get_the_arguments_of_their_signature(mine: str, factory: str, wanted: int) -> None:
    assert count(make_model(f"{mine}:{factory}", (1, 8, 8), 10, 7)) == wanted


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_nests:sized", "model: cannot import 'my_nests' (from "),
        ("my_faults:sized", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("my_nets:size", "model: 'my_nets' has no 'size'; did you mean sized?"),
        ("my_nets:number", "model: my_nets:number is a int; it must be a function or class that makes a model"),
        ("my_nets:wrong", "model: my_nets:wrong returned a str, not a torch.nn.Module"),
        ("my_nets:broken", "model: my_nets:broken failed: RuntimeError: no weights"),
        ("my_nets:odd", "model: my_nets:odd(a, b, c, d) cannot be called; it must take nothing, or (shape, classes)"),
        ("my_nets:only_names", "model: my_nets:only_names(*, width) cannot be called"),
        ("my_nets:", "model: 'my_nets:' is not allowed; it must be a name, or package.module:factory"),
    ],
)
def test_faulty_factories(mine: str, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        make_model(name, (1, 8, 8), 10)
    assert str(caught.value).startswith("model: ")


def test_a_user_model_runs_and_resumes_by_name(mine: str, tmp_path: Path) -> None:
    plan = RunConfig(model="my_nets:sized", clients=5, cohort=2, rounds=1, local_steps=1, engine="sequential")
    from_config.train(plan, tmp_path / "run", progress=False)
    again = fk.resume(tmp_path / "run", rounds=2, progress=False)
    assert len(again.history) == 2
    assert len(again.params) == 650
