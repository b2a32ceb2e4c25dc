"""What every reader returns: arrays with fixed names. Also the two steps that several readers share."""

from __future__ import annotations

import numpy as np

# x, y: training samples and labels.  test_x, test_y: the same for testing.  key: the owner of every training sample.
# mean, std: of every image channel.  Texts have x.bytes and x.offsets in the place of x.
Arrays = dict[str, np.ndarray]

TEST_SHARE = 0.2  # of a set that is published without a test part


def held_out(x: np.ndarray, y: np.ndarray, key: np.ndarray | None = None) -> Arrays:
    """Makes a fifth of the samples the test part. They are drawn at random, but always the same ones."""
    order = np.random.default_rng(0).permutation(len(y))
    test, train = np.sort(order[: int(TEST_SHARE * len(y))]), np.sort(order[int(TEST_SHARE * len(y)) :])
    arrays = {"x": x[train], "y": y[train].astype(np.int64), "test_x": x[test], "test_y": y[test].astype(np.int64)}
    return arrays if key is None else arrays | {"key": key[train].astype(np.int64)}


def with_channel_statistics(arrays: Arrays) -> Arrays:
    """Adds mean and deviation of every channel of the training images, for pixels in [0, 1]. Other data stay as they are."""
    x = arrays.get("x")
    if x is None or x.dtype != np.uint8 or x.ndim != 4:
        return arrays
    counts = np.stack([np.bincount(x[:, c].reshape(-1), minlength=256) for c in range(x.shape[1])])
    share, values = counts / counts.sum(1, keepdims=True), np.arange(256) / 255
    mean = share @ values
    std = np.sqrt(np.maximum(share @ values**2 - mean**2, 0))
    return arrays | {"mean": mean, "std": np.where(std > 0, std, 1)}
