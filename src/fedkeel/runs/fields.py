"""The settings of a run: what each means, what is allowed, an example. Study files, command line and errors read it here.

Plain data, so that help need not wait for pydantic; `config.RunConfig` gives them their types.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Setting(NamedTuple):
    default: Any  # None: optional, or filled in by `config.resolve`
    group: str  # heading in the help
    allowed: str  # ends the error message of a wrong value
    doc: str
    example: Any


LOCAL_STEPS = 10  # if neither local_steps nor local_epochs is given

SETTINGS = {
    "data": Setting("digits", "Data", "a name", "Data set; `fedkeel datasets` lists them.", "digits"),
    "data_dir": Setting(
        None,
        "Data",
        "a folder",
        "Folder of the data sets' files (default: the environment variable FEDKEEL_DATA).",
        "~/data",
    ),
    "augment": Setting(
        None, "Data", "'crop-flip'", "Random changes of training images: crop-flip, or none (default).", "crop-flip"
    ),
    "split": Setting(
        "dirichlet_per_class",
        "Data",
        "a name",
        "How samples are dealt out: iid, quantity, dirichlet_per_class, dirichlet_per_client, beta, shards or by_key.",
        "iid",
    ),
    "clients": Setting(100, "Data", "a whole number >= 1", "Number of clients.", 20),
    "concentration": Setting(
        None,
        "Data",
        "a number > 0",
        "Dirichlet and quantity splits: smaller is less alike (default 0.1).",
        0.5,
    ),
    "sizes": Setting(
        None,
        "Data",
        "'equal' or 'unequal'",
        "Dirichlet splits: sizes of the clients (default: unequal per class, equal per client).",
        "equal",
    ),
    "beta_a": Setting(
        None,
        "Data",
        "a number > 0",
        "Split beta: the second class's share at a client is Beta(a, b); a (default 2).",
        1.5,
    ),
    "beta_b": Setting(None, "Data", "a number > 0", "Split beta: b (default 5).", 1.5),
    "per_client": Setting(None, "Data", "a whole number >= 1", "Split shards: shards per client (default 2).", 3),
    "split_seed": Setting(
        0,
        "Data",
        "a whole number >= 0",
        "Seed of the split alone: `seed` changes initial weights, sampling and batches, never who owns which samples.",
        1,
    ),
    "model": Setting(
        "mlp",
        "Method",
        "a name",
        "Model: logistic, mlp, mlp2, mlp3 (hidden layers), mlp-bn (two, normalised); cnn, cnn3, cnn-lamb, lenet5, lenet, "
        "lenet-gelu, lenet-smu, vgg11, resnet20, resnet18-gn, resnet18-bn, resnet18-gn-7x7 (images); lstm, char-lstm "
        "(token ids); hf:NAME_OR_FOLDER, a pretrained language model for texts; or one of your own, package.module:factory, "
        "which is called as factory(shape, classes) or factory().",
        "resnet18-gn",
    ),
    "length": Setting(128, "Text", "a whole number >= 1", "Tokens of a text; what is longer is cut off.", 256),
    "lora_rank": Setting(None, "Text", "a whole number >= 1", "Models hf:NAME: rank of the adapters (default 16).", 8),
    "lora_alpha": Setting(None, "Text", "a number > 0", "An adapter counts lora_alpha / lora_rank (default 16).", 32),
    "lora_targets": Setting(
        None,
        "Text",
        "names joined by commas, or auto",
        "Modules that get an adapter (default auto: the usual ones of the architecture).",
        "query,value",
    ),
    "lora_layers": Setting(
        None,
        "Text",
        "a whole number >= 1",
        "Adapters in the last so many blocks only (default: in all); what comes before is then computed once per text.",
        2,
    ),
    "algorithm": Setting("fedavg", "Method", "a name", "Method; `fedkeel algorithms` lists them.", "fedlada"),
    "hyperparameters": Setting(
        {}, "Method", "a table of numbers, words, true or false", "The method's own settings.", {"lr": 0.01}
    ),
    "rounds": Setting(100, "Training", "a whole number >= 1", "Rounds of communication.", 200),
    "cohort": Setting(
        10, "Training", "a count (10) or a fraction (0.1)", "Clients of a round: a count (10) or a fraction (0.1).", 0.1
    ),
    "local_steps": Setting(
        None, "Training", "a whole number >= 1", "Mini-batch steps of a client in a round (default 10).", 20
    ),
    "local_epochs": Setting(
        None, "Training", "a whole number >= 1", "Passes over the client's data, instead of local steps.", 1
    ),
    "batch_size": Setting(
        20, "Training", "a whole number >= 1, or 'all'", "Samples of a step; all: all local data in every step.", 50
    ),
    "weight_decay": Setting(0.0, "Training", "a number >= 0", "L2 coefficient, added to every gradient.", 0.0001),
    "lr_decay": Setting(
        1.0, "Training", "a number > 0 and <= 1", "The local learning rate of round t is lr * lr_decay^t.", 0.998
    ),
    "clip": Setting(None, "Training", "a number > 0", "Norm limit of a step's direction (default: none).", 10),
    "weights": Setting(
        "uniform", "Training", "'uniform' or 'samples'", "How clients are weighed: uniform, or by their samples.", "samples"
    ),
    "seed": Setting(0, "Training", "a whole number >= 0", "Seed of initial weights, sampling and batches.", 1),
    "evaluate_every": Setting(1, "Training", "a whole number >= 0", "Rounds between evaluations; 0: only at the end.", 10),
    "metrics": Setting(
        [],
        "Training",
        "a list of names: train, gradient_norm, consistency, drift, tracking, qp",
        "Further measurements at every evaluation, all costly: train (loss and accuracy on all training data), "
        "gradient_norm, consistency and drift of local models, tracking (error of control variates), qp (GradMA).",
        ["train", "drift"],
    ),
    "engine": Setting(
        "auto",
        "Engine",
        "a name",
        "Who runs the clients: auto (measures and chooses), sequential, vectorized, compiled, processes or ray.",
        "processes",
    ),
    "device": Setting("auto", "Engine", "a name", "Where the model lives: auto, cpu or cuda.", "cpu"),
    "workers": Setting(None, "Engine", "a whole number >= 1", "Worker processes (default: one per core).", 4),
    "timeout": Setting(
        None, "Engine", "a number > 0", "Seconds until a client of a worker process is dropped (default: never).", 60
    ),
    "ray_address": Setting(
        "local",
        "Engine",
        "a text",
        "Engine ray: local starts Ray on this machine, auto joins the cluster that runs here, or host:port of one.",
        "10.0.0.1:6379",
    ),
    "min_clients": Setting(1, "Engine", "a whole number >= 1", "A round with fewer good answers stops the run.", 5),
}
