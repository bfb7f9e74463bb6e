# SPDX-License-Identifier: Apache-2.0
"""CIFAR-10 from the user's folder, or a stand-in: crops of ten photographs, of the same size.

Nothing is downloaded. The photographs are those that scikit-image and scikit-learn ship.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from benches.data.mnist import DataError, from_torchvision
from benches.data.samples import Samples

#: Side of an image, and of the square cells that a photograph is divided into.
SIDE, CELL = 32, 64
#: Crops of one cell start at these rows and columns of it.
OFFSETS = (0, 16, 32)
#: Cells of each photograph that are trained on and tested on.
TRAIN_CELLS, TEST_CELLS = 20, 5

STAND_IN = "stand-in for CIFAR-10"


def load(folder: Path | None = None) -> Samples:
    """Return images (n, 3, 32, 32) float32 with ten classes.

    Args:
        folder: as torchvision.datasets.CIFAR10 lays it out, with cifar-10-batches-py in it;
            by default the stand-in, whose ``source`` says so.

    Raises:
        DataError: the folder or a file in it is missing, or a package is not installed.
    """
    return stand_in() if folder is None else _cifar(folder)


def _images(pixels: np.ndarray) -> torch.Tensor:
    """Return normalised images (n, 3, 32, 32) of pixels (n, 32, 32, 3), uint8."""
    scaled = torch.from_numpy(pixels).permute(0, 3, 1, 2).to(torch.float32) / 255.0
    return ((scaled - 0.5) / 0.25).contiguous()


def _cifar(folder: Path) -> Samples:
    from torchvision.datasets import CIFAR10

    train, test = from_torchvision(
        "CIFAR-10",
        CIFAR10,
        folder,
        f"Put the six batches and batches.meta into {folder.name}/cifar-10-batches-py",
        "leave out --cifar to use the stand-in",
    )
    return Samples(
        "CIFAR-10",
        _images(train.data),
        torch.tensor(train.targets),
        _images(test.data),
        torch.tensor(test.targets),
    )


def photographs() -> dict[str, np.ndarray]:
    """Return the ten photographs, (rows, columns, 3) uint8, in the order of their classes.

    Raises:
        DataError: scikit-image or scikit-learn is not installed.
    """
    try:
        from skimage import data
        from sklearn.datasets import load_sample_images
    except ImportError as error:
        raise DataError(
            f"The photographs come with scikit-image and scikit-learn: {error}. Install them "
            "(pip install scikit-image scikit-learn), or name a folder with CIFAR-10 by --cifar."
        ) from error
    found = {
        "astronaut": data.astronaut(),
        "cat": data.chelsea(),
        "coffee": data.coffee(),
        "galaxies": data.hubble_deep_field(),
        "tissue": data.immunohistochemistry(),
        "retina": data.retina(),
        "rocket": data.rocket(),
        "motorcycle": data.stereo_motorcycle()[0],
    }
    samples = load_sample_images()
    found |= {
        Path(name).stem: pixels
        for name, pixels in zip(samples.filenames, samples.images, strict=True)
    }
    return found


def crops(photograph: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the crops of one photograph for training and for testing, (n, 32, 32, 3).

    A crop lies within one cell, and the crops of a cell are all for training or all for testing, so
    no pixel is in both.
    """
    rows, columns, _ = photograph.shape
    cells = [
        (top, left)
        for top in range(0, rows - CELL + 1, CELL)
        for left in range(0, columns - CELL + 1, CELL)
    ]
    order = np.random.default_rng(seed).permutation(len(cells))[: TRAIN_CELLS + TEST_CELLS]
    parts = order[:TRAIN_CELLS], order[TRAIN_CELLS:]
    train, test = (
        np.stack(
            [
                photograph[top + down : top + down + SIDE, left + right : left + right + SIDE]
                for top, left in (cells[i] for i in part)
                for down in OFFSETS
                for right in OFFSETS
            ]
        )
        for part in parts
    )
    return train, test


def stand_in() -> Samples:
    """Return the stand-in, which is the same at every call."""
    parts = [crops(pixels, label) for label, pixels in enumerate(photographs().values())]
    train, test = (np.stack([part[i] for part in parts]) for i in (0, 1))

    def labels(pixels: np.ndarray) -> torch.Tensor:
        return torch.arange(len(parts)).repeat_interleave(pixels.shape[1])

    return Samples(
        STAND_IN,
        _images(train.reshape(-1, SIDE, SIDE, 3)),
        labels(train),
        _images(test.reshape(-1, SIDE, SIDE, 3)),
        labels(test),
    )
