"""Unusual models, losses and labels: all engines give the same result, or refuse them."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import fedkeel as fk
from tests.reference import fedbn
from tests.reference.network import flat

D, CLASSES = 6, 3
SIZES = (20, 29, 8, 23)


def clients(classes: int = CLASSES, dtype: torch.dtype = torch.int64, test: bool = True) -> fk.Federation:
    torch.manual_seed(0)
    data = [(torch.randn(n, D).double(), torch.randint(0, classes, (n,)).to(dtype)) for n in SIZES]
    return fk.Federation.from_arrays(
        data, test=(torch.randn(30, D).double(), torch.randint(0, classes, (30,))) if test else None
    )


def train(model: Any, fed: fk.Federation | None = None, algorithm: Any = "fedavg", **kw: Any) -> fk.Run:
    settings = {"rounds": 3, "cohort": 3, "batch_size": 8, "engine": "sequential", "dtype": torch.float64} | kw
    return fk.train(model, fed or clients(), algorithm, progress=False, **settings)


def close(one: fk.Run, two: fk.Run) -> None:
    torch.testing.assert_close(one.params, two.params, rtol=1e-9, atol=1e-11)
    losses = [[row["train_loss"] for row in run.history] for run in (one, two)]
    np.testing.assert_allclose(*losses, rtol=1e-9)


def mlp(outputs: int = CLASSES) -> nn.Module:
    return nn.Sequential(nn.Linear(D, 5), nn.Tanh(), nn.Linear(5, outputs))


# Losses ---------------------------------------------------------------------------------------------------------------


LOSSES = {
    "weighted": nn.CrossEntropyLoss(weight=torch.tensor([0.1, 1.0, 10.0]).double()),
    "ignoring": nn.CrossEntropyLoss(ignore_index=2),
    "of shape [1]": lambda o, y: functional.cross_entropy(o, y).reshape(1),
    "of the whole batch": lambda o, y: functional.cross_entropy(o - o.mean(0), y),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("algorithm", ["fedavg", "mime", "fedsps", "fedmlb"])
@pytest.mark.parametrize("batch_size", [8, None])
def test_a_loss_that_is_not_a_mean_over_samples(loss: str, algorithm: str, batch_size: int | None) -> None:
    runs = [
        train(mlp, algorithm=algorithm, loss=LOSSES[loss], batch_size=batch_size, engine=e)
        for e in ("sequential", "vectorized")
    ]
    close(*runs)


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        (functools.partial(functional.cross_entropy, reduction="none"), "it must be one number, the mean over the batch"),
        (lambda output: output.sum(), "it must take two arguments, output and target: too many"),
        (lambda output, y: float(functional.cross_entropy(output, y)), "it returns a float; it must be a tensor"),
        (lambda output, y: functional.cross_entropy(output.detach(), y), "it does not depend on the trained parameters"),
    ],
)
def test_a_loss_that_cannot_be_trained_is_refused_before_any_work(loss: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"loss: {why}"):
        train(mlp, loss=loss, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_a_loss_that_is_one_number_only_for_two_samples(engine: str) -> None:
    def loss(output: Tensor, y: Tensor) -> Tensor:
        each = functional.cross_entropy(output, y, reduction="none")
        return each.mean() if len(y) == 2 else each

    with pytest.raises(RuntimeError, match="it must be one number, the mean over the batch"):
        train(mlp, loss=loss, engine=engine)


def test_a_loss_that_fails_on_two_samples_may_be_right_for_more() -> None:
    def loss(output: Tensor, y: Tensor) -> Tensor:
        if len(y) < 3:
            raise ArithmeticError("no median")
        return functional.cross_entropy(output, y)

    def draws(output: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(output + 0 * torch.rand(1), y)

    fed = clients()
    assert torch.isfinite(train(mlp, fed=fed, loss=loss, batch_size=None).params).all()
    state = torch.get_rng_state()
    train(mlp, fed=fed, loss=draws)
    assert torch.equal(state, torch.get_rng_state()), "the caller's random numbers are the caller's"


def test_a_full_gradient_leaves_no_sample_alone() -> None:
    """1025 samples are one more than a forward pass takes, and BatchNorm refuses a single sample."""
    torch.manual_seed(0)
    fed = fk.Federation.from_arrays([(torch.randn(1025, D).double(), torch.randint(0, CLASSES, (1025,)))])
    model = nn.Sequential(nn.Linear(D, 5), nn.BatchNorm1d(5), nn.Linear(5, CLASSES))
    row = train(model, fed, "mime", rounds=1, cohort=1, local_steps=2).history[0]
    assert not row["faults"]


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_weight_decay_beside_the_mix_of_fedcm(engine: str) -> None:
    """alpha (g + (decay / alpha) w) = alpha g + decay w."""
    beside = fk.algorithm("fedcm", alpha=0.2, wd_outside_mix=True)
    torch.manual_seed(0)
    model = mlp()
    one = train(model, algorithm=beside, weight_decay=0.01, engine=engine)
    close(one, train(model, algorithm=fk.algorithm("fedcm", alpha=0.2), weight_decay=0.05, engine=engine))
    assert (one.params - train(model, algorithm=beside, weight_decay=0.0, engine=engine).params).norm() > 1e-3


# Models ---------------------------------------------------------------------------------------------------------------


class Twice(nn.Module):
    """The same layers under two names."""

    def __init__(self, alias: bool = True) -> None:
        super().__init__()
        self.body, self.last = nn.Sequential(nn.Linear(D, 5), nn.Tanh()), nn.Linear(5, CLASSES)
        if alias:
            self.also = self.body

    def forward_features(self, x: Tensor) -> Tensor:
        return self.body(x)

    def forward_head(self, z: Tensor) -> Tensor:
        return self.last(z)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.body(x))


class Tied(nn.Module):
    """Two layers share their weights, and one of the layers occurs twice."""

    def __init__(self) -> None:
        super().__init__()
        one, two = nn.Linear(D, D), nn.Linear(D, D)
        two.weight = one.weight
        self.blocks = nn.ModuleList([nn.Sequential(one, nn.Tanh(), two, nn.Tanh(), one), nn.Linear(D, CLASSES)])

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks[1](self.blocks[0](x))


@pytest.mark.parametrize("algorithm", ["fedavg", "moon"])
@pytest.mark.parametrize("engine", ["sequential", "vectorized", "processes", "auto"])
def test_a_module_under_two_names(algorithm: str, engine: str) -> None:
    torch.manual_seed(1)
    state = Twice(alias=False).state_dict()

    def made(alias: bool) -> nn.Module:
        model = Twice(alias)
        model.load_state_dict(state, strict=False)
        return model

    close(train(made(alias=False), algorithm=algorithm), train(made(alias=True), algorithm=algorithm, engine=engine))


@pytest.mark.parametrize("algorithm", ["fedavg", "moon", "fedmlb"])
def test_tied_weights(algorithm: str) -> None:
    runs = [train(Tied, algorithm=algorithm, engine=e) for e in ("sequential", "vectorized", "processes")]
    close(*runs[:2])
    close(runs[0], runs[2])


class Centre(nn.Module):
    """Replaces its buffer by a new tensor in every pass."""

    centre: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(D, CLASSES)
        self.register_buffer("centre", torch.zeros(D))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.centre = 0.9 * self.centre + 0.1 * x.mean(0).detach()
        return self.last(x - self.centre)


class CentreInPlace(Centre):
    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.centre.mul_(0.9).add_(0.1 * x.mean(0).detach())
        return self.last(x - self.centre.clone())


@pytest.mark.parametrize("engine", ["sequential", "processes"])
def test_a_buffer_that_is_replaced(engine: str) -> None:
    runs = [train(CentreInPlace), train(Centre, engine=engine)]
    close(*runs)
    assert runs[1].model.centre.abs().max() > 0.01
    torch.testing.assert_close(runs[0].model.centre, runs[1].model.centre, rtol=1e-9, atol=1e-12)


def test_a_run_does_not_resume_with_other_frozen_weights(tmp_path: Path) -> None:
    def made(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        model = mlp()
        model[0].requires_grad_(False)
        return model

    train(made(0), out=tmp_path, rounds=2)
    with pytest.raises(ValueError, match="the frozen parameters differ from those of the checkpoint"):
        train(made(1), out=tmp_path, resume=True)
    close(train(made(0), out=tmp_path, resume=True), train(made(0)))


def test_normalisation_over_the_batch_is_refused_for_many_clients_at_once() -> None:
    def normalised() -> nn.Module:
        return nn.Sequential(nn.Linear(D, 5), nn.BatchNorm1d(5, track_running_stats=False), nn.Linear(5, CLASSES))

    with pytest.raises(ValueError, match="'vectorized' cannot run this model: BatchNorm1d would see the padding"):
        train(normalised, engine="vectorized")
    private = nn.Sequential(nn.Unflatten(1, (2, 3)), nn.InstanceNorm1d(2, affine=True), nn.Flatten(), nn.Linear(D, CLASSES))
    with pytest.raises(ValueError, match="its normalisation layers stay with the clients"):
        train(private, algorithm="fedbn", engine="vectorized")


class Keeps(nn.Module):
    """Keeps what it computed last."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(D, 5), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        self.h = self.first(x).relu()
        return self.last(self.h)


def test_a_model_that_keeps_what_it_computed() -> None:
    run = train(Keeps, clients(test=False))
    assert isinstance(run.model, Keeps)


def test_one_output_has_no_accuracy() -> None:
    run = train(
        lambda: nn.Linear(D, 1),
        clients(classes=2),
        loss=lambda o, y: functional.binary_cross_entropy_with_logits(o[:, 0], y.to(o.dtype)),
    )
    assert run.history[-1]["test_accuracy"] is None
    assert run.history[-1]["test_loss"] > 0


@pytest.mark.parametrize("algorithm", ["mime", "mimelite", "fedavg"])
@pytest.mark.parametrize("inputs", [5, 13, 61])
def test_the_place_of_samples_in_an_array_does_not_matter(algorithm: str, inputs: int) -> None:
    """A client's data in the middle of an array, or alone on its machine: the same bits."""
    data = [(torch.randn(n, inputs), torch.randint(0, CLASSES, (n,))) for n in SIZES]
    fed, moved = fk.Federation.from_arrays(data), fk.Federation.from_arrays(data)
    moved.x = torch.cat([torch.zeros(1, inputs), moved.x])[1:]
    made = functools.partial(nn.Linear, inputs, CLASSES)
    runs = [train(made, one, algorithm, dtype=torch.float32) for one in (fed, moved)]
    assert torch.equal(runs[0].params, runs[1].params)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: nn.LazyLinear(CLASSES), "lazy layers have no shape yet"),
        (
            lambda: nn.Sequential(nn.Linear(D, 4).double(), nn.Linear(4, CLASSES)),
            r"several dtypes, torch.float32, torch.float64",
        ),
    ],
)
def test_models_that_are_refused(model: Any, message: str) -> None:
    with pytest.raises(ValueError, match=rf"^model: its .*{message}"):
        train(model, dtype=None)


# Labels and settings --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", [torch.int32, torch.int16, torch.uint8, torch.bool, torch.uint16, torch.uint32, torch.uint64]
)
@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("model", [mlp, lambda: nn.Sequential(nn.Linear(D, 4), nn.ReLU(), nn.Linear(4, 3))])
def test_labels_of_any_whole_numbers(dtype: torch.dtype, engine: str, model: Any) -> None:
    close(train(model, clients(2, dtype), engine=engine), train(model, clients(2)))


@pytest.mark.parametrize("cohort", [np.int64(2), np.array([[0, 2], [1, 2], [0, 3]]), [range(2), (1, 3), np.array([0, 1])]])
def test_cohorts_of_numpy(cohort: Any, tmp_path: Path) -> None:
    plain = cohort if not isinstance(cohort, np.generic | np.ndarray) else cohort.tolist()
    plain = plain if isinstance(plain, int) else [list(map(int, ids)) for ids in plain]
    close(train(mlp, cohort=cohort, out=tmp_path), train(mlp, cohort=plain))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("workers", -3),
        ("workers", 0),
        ("workers", 2.0),
        ("timeout", -1.0),
        ("timeout", "5"),
        ("timeout", float("inf")),
        ("store", "nonsense"),
        ("loss", "mse"),
        ("metrics", None),
        ("metrics", "train"),
        ("metrics", [3]),
        ("device", 1.5),
        ("device", True),
        ("out", 3),
        ("batch_size", 2**70),
        ("local_steps", 2**70),
        ("local_epochs", 2**70),
        ("seed", 2**64),
        ("cohort", [[0.2, 0.7]] * 3),
        ("cohort", "all"),
        ("cohort", True),
    ],
)
@pytest.mark.parametrize("engine", ["auto", "sequential"])
def test_wrong_settings(name: str, value: Any, engine: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name} = .* is not allowed; it must be"):
        train(mlp, engine=engine, **{name: value})


@pytest.mark.parametrize("engine", [None, 3, ["sequential"]])
def test_an_engine_has_a_name(engine: Any) -> None:
    with pytest.raises(ValueError, match=r"^engine = .* is not allowed; it must be one of auto, sequential"):
        train(mlp, engine=engine)


def test_resume_needs_a_directory() -> None:
    with pytest.raises(ValueError, match=r"^resume = True is not allowed without out"):
        train(mlp, resume=True)


def test_settings_of_numpy(tmp_path: Path) -> None:
    """They are stored as Python numbers, so a run resumes with either kind."""
    half, two = np.float32(0.5), np.int64(2)
    ours = {"weight_decay": half, "lr_decay": half, "clip": two, "local_epochs": two, "seed": np.uint64(2)}
    ours |= {"batch_size": np.int16(8), "rounds": np.int32(2), "min_clients": np.int8(1)}
    plain: dict[str, Any] = {name: value.item() for name, value in ours.items()}
    theirs, mine = fk.algorithm("fedavg", lr=half), fk.algorithm("fedavg", lr=0.5)
    run = train(mlp, None, theirs, out=tmp_path, engine="processes", workers=two, timeout=np.float32(60), **ours)
    close(run, train(mlp, None, mine, **plain))
    plain["rounds"] = 3
    close(train(mlp, None, mine, out=tmp_path, resume=True, **plain), train(mlp, None, mine, **plain))


def scaled(x: Tensor, factor: float) -> Tensor:
    return x * factor


class Shift:
    def __call__(self, x: Tensor) -> Tensor:
        return x + 1


@pytest.mark.parametrize("prepare", [functools.partial(scaled, factor=2.0), Shift()])
def test_a_run_with_a_directory_takes_any_function_that_prepares_data(prepare: Any, tmp_path: Path) -> None:
    fed = clients()
    fed.prepare = prepare
    train(mlp, fed, out=tmp_path, rounds=2)
    close(train(mlp, fed, out=tmp_path, resume=True), train(mlp, fed))


def test_dropped_clients_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """The last batch of the third client has one sample, and BatchNorm cannot normalise a single sample."""
    model = nn.Sequential(nn.Linear(D, 5), nn.BatchNorm1d(5), nn.Linear(5, CLASSES)).double()
    data = [(torch.randn(n, D).double(), torch.randint(0, CLASSES, (n,))) for n in (16, 24, 9)]
    fk.train(model, fk.Federation.from_arrays(data), "fedavg", rounds=2, cohort=3, batch_size=8, engine="sequential")
    printed = "".join(capsys.readouterr().err.split("\n"))
    assert printed.count("round 1, client 2 dropped: ValueError: Expected more than 1 value per channel") == 1


def test_decay_and_clip_act_on_private_layers() -> None:
    """FedBN against its reference with weight decay. A clip near 0 keeps all parameters where they were."""
    fed, decay = clients(), 0.5

    def model() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(D, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, CLASSES)).double()

    cohorts = [[0, 1, 3]] * 3
    settings = {"batch_size": None, "local_steps": 4, "cohort": cohorts}
    run = train(model(), fed, fk.algorithm("fedbn", lr=0.1), weight_decay=decay, **settings)
    whole = [{i: [(fed[i].x.numpy(), fed[i].y.numpy())] * 4 for i in cohorts[0]}] * 3
    x0 = [p.detach().numpy().copy() for p in model().parameters()]
    *_, (expected, norms) = fedbn.rounds(x0, whole, cohorts, lr=0.1, weight_decay=decay)
    np.testing.assert_allclose(run.params.numpy(), flat([expected[j] for j in fedbn.SHARED]), rtol=1e-9)
    for i, norm in norms.items():
        np.testing.assert_allclose(run.clients[i].values[:10].numpy(), flat([norm.gamma, norm.beta]), rtol=1e-9, atol=1e-12)
    still = train(model(), fed, fk.algorithm("fedbn", lr=0.1), clip=1e-6, **settings)
    assert (still.clients[0].values[:10] - torch.tensor([1.0] * 5 + [0.0] * 5)).abs().max() < 1e-5


# What torch allows, and a federation may not ---------------------------------------------------------------------


def test_a_layer_in_evaluation_mode_stays_in_it() -> None:
    """Such as frozen normalisation in a pretrained model. If the whole model is in evaluation mode, it is trained."""
    model = nn.Sequential(nn.Linear(D, 5), nn.BatchNorm1d(5), nn.Linear(5, CLASSES))
    model[1].eval()
    run = train(model, rounds=2)
    assert int(run.model[1].num_batches_tracked) == 0
    assert int(train(model.eval(), rounds=2, cohort=4, local_steps=3).model[1].num_batches_tracked) == 6


def test_a_model_that_was_called_before_and_keeps_what_it_computed() -> None:
    model = Keeps().double()
    model(torch.ones(2, D).double())
    assert train(model).params.isfinite().all()


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_sparse_gradients_give_the_same_result_as_dense_ones(algorithm: str) -> None:
    torch.manual_seed(0)
    words = [(torch.randint(0, 9, (12, 4)), torch.randint(0, CLASSES, (12,))) for _ in range(4)]

    def bag(sparse: bool) -> nn.Module:
        torch.manual_seed(0)
        return nn.EmbeddingBag(9, CLASSES, sparse=sparse)

    fed = fk.Federation.from_arrays(words)
    one, two = (train(bag(sparse), fed, algorithm, weight_decay=0.01) for sparse in (True, False))
    assert torch.equal(one.params, two.params)


def test_an_embedding_that_changes_itself_is_refused() -> None:
    model = nn.Sequential(nn.Embedding(9, 4, max_norm=1.0), nn.Flatten(), nn.Linear(16, CLASSES))
    fed = fk.Federation.from_arrays([(torch.randint(0, 9, (12, 4)), torch.randint(0, CLASSES, (12,)))])
    with pytest.raises(ValueError, match="model: an embedding with max_norm changes its own weights"):
        train(model, fed, cohort=1)


def test_inference_mode_is_refused() -> None:
    with torch.inference_mode(), pytest.raises(ValueError, match=r"inside torch\.inference_mode"):
        train(mlp)


def test_a_time_limit_needs_worker_processes() -> None:
    with pytest.raises(ValueError, match=r"timeout = 5\.0 is not allowed with engine = 'vectorized'; it is for 'processes'"):
        train(mlp, engine="vectorized", timeout=5.0)
    assert train(mlp, engine="auto", timeout=60.0).engine == "processes"


class Counting(nn.Module):
    """A model that draws numbers and changes a buffer and an attribute, also when it is evaluated."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(64, 10), 0
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen += torch.rand(3)
        return self.layer(x.flatten(1))


def test_the_check_before_a_run_leaves_no_trace() -> None:
    from fedkeel.core.flat import FlatModel
    from fedkeel.engine.objective import check_fit
    from fedkeel.engine.own_code import OwnCode
    from tests.tasks import digits_fed

    fed, model = digits_fed(clients=4), FlatModel(Counting())
    state = torch.random.get_rng_state()
    check_fit(model, fed, (fed.x, fed.y), OwnCode())
    assert torch.equal(torch.random.get_rng_state(), state)
    assert (model.module.calls, model.module.seen.tolist()) == (0, [0.0] * 3)


@pytest.mark.parametrize(
    ("buffer", "why"), [(torch.zeros(2, dtype=torch.complex64), "is complex"), (torch.tensor([2**53 + 1]), "beyond 2")]
)
def test_buffers_that_would_lose_information_are_refused(buffer: torch.Tensor, why: str) -> None:
    from fedkeel.core.flat import FlatModel

    module = nn.Linear(2, 2)
    module.register_buffer("table", buffer)
    with pytest.raises(ValueError, match=f"its buffer table .*{why}"):
        FlatModel(module)
