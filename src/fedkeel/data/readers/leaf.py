"""Samples with known owners: LEAF's JSON files (FEMNIST, Shakespeare), and plays by speaking role."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedkeel.data.arrays import Arrays
from fedkeel.data.readers.file_contents import broken, contents, json_objects, reading

LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"  # LEAF's 80
WINDOW = 80  # the number of characters in a sample of Shakespeare
OTHERS = LETTERS.index(" ")  # the code of every other character


def _users(folder: Path) -> dict[str, dict[str, list[Any]]]:
    """All users in the JSON files of a folder, each with {x, y}."""
    users: dict[str, dict[str, list[Any]]] = {}
    for path in sorted(folder.glob("*.json*")):
        with reading(path):
            found = json.loads(contents(path))["user_data"]
            for user, z in found.items():
                if len(z["x"]) != len(z["y"]):
                    raise ValueError(f"user {user} has {len(z['x'])} inputs but {len(z['y'])} targets")
        users |= found
    return users


def _leaf(train: Path, test: Path, code_x: Callable[[Any], np.ndarray], code_y: Callable[[Any], np.ndarray]) -> Arrays:
    arrays: Arrays = {}
    for part, folder in (("", train), ("test_", test)):
        users = {user: z for user, z in _users(folder).items() if z["y"]}
        if not users:
            raise broken(folder, "it holds no users")
        with reading(folder):
            arrays[f"{part}x"] = np.concatenate([code_x(z["x"]) for z in users.values()])
            arrays[f"{part}y"] = np.concatenate([code_y(z["y"]) for z in users.values()])
        if not part:
            arrays["key"] = np.repeat(np.arange(len(users)), [len(z["y"]) for z in users.values()])
    return arrays


def femnist(train: Path, test: Path) -> Arrays:
    """Images as 784 numbers from 0 (ink) to 1 (paper)."""
    return _leaf(
        train,
        test,
        lambda x: np.round(255 * np.array(x, dtype=np.float32)).astype(np.uint8).reshape(-1, 1, 28, 28),
        lambda y: np.array(y, dtype=np.int64),
    )


def shakespeare(train: Path, test: Path) -> Arrays:
    """80 characters, and the next one as the label."""
    return _leaf(
        train,
        test,
        lambda x: np.stack([coded(text) for text in x]),
        lambda y: coded("".join(z[0] for z in y)).astype(np.int64),
    )


def coded(text: str) -> np.ndarray:
    """Characters as their places in LETTERS, uint8."""
    table = np.full(128, OTHERS, dtype=np.uint8)
    for place, letter in enumerate(LETTERS):
        table[ord(letter)] = place
    points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    return np.where(points < 128, table[np.minimum(points, 127)], np.uint8(OTHERS))


def roles(path: Path) -> Arrays:
    """One JSON object per line with play, role and speeches. Every window of 80 characters in a role's text is a sample.

    The last fifth of each role's text is for testing. Roles with fewer than 81 characters to train on are left out.
    """
    with reading(path):
        texts = [coded("\n".join(row["speeches"])) for row in json_objects(path)]
    parts: dict[str, list[np.ndarray]] = {"x": [], "y": [], "test_x": [], "test_y": []}
    sizes = []
    for text in texts:
        cut = int(0.8 * len(text))  # no window crosses it, so no test sample is seen in training
        if cut <= WINDOW:
            continue
        for part, piece in (("", text[:cut]), ("test_", text[cut:])):
            if len(piece) > WINDOW:
                windows = np.lib.stride_tricks.sliding_window_view(piece, WINDOW + 1)
                parts[f"{part}x"].append(windows[:, :WINDOW])
                parts[f"{part}y"].append(windows[:, WINDOW])
        sizes.append(cut - WINDOW)
    if not sizes or not parts["test_x"]:
        raise broken(path, "no role speaks long enough")
    arrays = {name: np.concatenate(z) for name, z in parts.items()}
    arrays |= {name: arrays[name].astype(np.int64) for name in ("y", "test_y")}
    return arrays | {"key": np.repeat(np.arange(len(sizes)), sizes)}
