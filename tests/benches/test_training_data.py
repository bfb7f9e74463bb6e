# SPDX-License-Identifier: Apache-2.0
"""What the profiler's benches train on: photographs, CIFAR-10 from a folder, text."""

from __future__ import annotations

import builtins
import pickle

import numpy as np
import pytest
import torch

from benches.data import characters, photographs
from benches.data.mnist import DataError
from benches.data.models.resnet import ResNet18
from benches.data.models.transformer import Transformer
from benches.experiments import training


@pytest.fixture(scope="module")
def stand_in():
    return photographs.load()


def test_the_stand_in_has_the_shape_of_cifar10_and_says_what_it_is(stand_in):
    assert stand_in.train_inputs.shape == (1800, 3, 32, 32)
    assert stand_in.test_inputs.shape == (450, 3, 32, 32)
    assert stand_in.train_inputs.dtype == torch.float32
    assert torch.equal(stand_in.test_targets.bincount(), torch.full((10,), 45))
    assert "stand-in" in str(stand_in)
    assert "stand-in" in training.resnet().samples.source


def test_the_stand_in_is_the_same_at_every_call(stand_in):
    again = photographs.load()
    assert torch.equal(again.train_inputs, stand_in.train_inputs)
    assert torch.equal(again.test_inputs, stand_in.test_inputs)


def test_no_pixel_is_trained_on_and_tested_on():
    """On a picture whose pixels are all different, as two bytes of their number."""
    for rows, columns in ((300, 451), (427, 640)):
        numbers = np.arange(rows * columns).reshape(rows, columns)
        picture = np.stack([numbers >> 16, numbers >> 8 & 255, numbers & 255], 2).astype(np.uint8)
        train, test = (
            (c.astype(int) @ [65536, 256, 1]).reshape(-1) for c in photographs.crops(picture, 3)
        )
        assert len(np.unique(train)) == photographs.TRAIN_CELLS * photographs.CELL**2
        assert len(np.unique(test)) == photographs.TEST_CELLS * photographs.CELL**2
        assert not np.isin(test, train).any()


def test_every_photograph_gives_enough_cells():
    found = photographs.photographs()
    assert len(found) == 10
    assert all(p.shape[2] == 3 and p.dtype == np.uint8 for p in found.values())


def test_cifar10_is_read_from_a_folder(tmp_path, monkeypatch):
    """The layout of the real one, with few images; torchvision checks the real ones' MD5."""
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (6, 2, 3072), dtype=np.uint8)
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    for name, data in zip(names, pixels, strict=True):
        content = {"data": data, "labels": [3, 7]}
        (folder / name).write_bytes(pickle.dumps(content))
    labels = {"label_names": [str(i) for i in range(10)]}
    (folder / "batches.meta").write_bytes(pickle.dumps(labels))
    with pytest.raises(DataError, match="cifar-10-batches-py"):
        photographs.load(tmp_path)
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *_: True)
    found = photographs.load(tmp_path)
    assert "stand-in" not in str(found)
    assert str(found) == "CIFAR-10: 10 for training, 2 for testing"
    expected = (pixels[5, 1].reshape(3, 32, 32) / 255.0 - 0.5) / 0.25
    assert found.test_inputs[1].numpy() == pytest.approx(expected, abs=1e-6)
    assert found.test_targets.tolist() == [3, 7]


def test_a_folder_without_cifar10_is_an_error(tmp_path):
    with pytest.raises(DataError, match=r"No folder.*--cifar"):
        photographs.load(tmp_path / "missing")
    with pytest.raises(DataError, match=r"no CIFAR-10.*Nothing is downloaded"):
        photographs.load(tmp_path)


@pytest.mark.parametrize("package", ["skimage", "sklearn.datasets"])
def test_photographs_without_their_package_are_an_error(package, monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name == package:
            raise ImportError(f"no {name}")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(DataError, match=r"pip install scikit-image.*--cifar"):
        photographs.load()


def test_a_target_is_the_character_after_its_input():
    found, text = characters.load(10), characters.text()
    index = {c: i for i, c in enumerate(characters.symbols())}
    assert found.train_inputs[0].tolist() == [index[c] for c in text[:10]]
    assert found.train_targets[1].tolist() == [index[c] for c in text[11:21]]
    assert torch.equal(found.test_inputs[:, 1:], found.test_targets[:, :-1])
    assert found.train_inputs.numel() + found.test_inputs.numel() <= len(text)
    assert len(text) > 300_000


def test_the_models_are_what_they_are_called():
    # ResNet-18 in its 32x32 form with ten classes.
    assert sum(p.numel() for p in ResNet18().parameters()) == 11_173_962
    convolutions = [m for m in ResNet18().modules() if isinstance(m, torch.nn.Conv2d)]
    assert sum(m.kernel_size == (3, 3) for m in convolutions) + 1 == 18
    assert not [m for m in ResNet18().modules() if isinstance(m, torch.nn.ReLU)]
    model = Transformer(symbols=7, length=6, size=8, heads=2, layers=1)
    windows = torch.randint(7, (3, 6), generator=torch.Generator().manual_seed(1))
    found = model(windows)
    assert found.exp().sum(-1).flatten().tolist() == pytest.approx([1.0] * 18, abs=1e-5)
    # A position sees nothing that comes after it.
    changed = windows.clone()
    changed[:, 3] = (changed[:, 3] + 1) % 7
    different = (model(changed) != found).any(-1).any(0)
    assert different.tolist() == [False] * 3 + [True] * 3


@pytest.mark.parametrize("make", [training.lenet, training.resnet, training.transformer])
def test_a_training_learns(make):
    task = make(width=4, batch=20) if make is training.resnet else make()
    model, batches = training.Training(task, seed=0), task.batches(0)
    first = next(batches)
    before = float(model.loss(first).detach())
    for _ in range(20):
        model.step(first)
    assert float(model.loss(first).detach()) < 0.9 * before
    predictions, loss = model.test()
    assert predictions.shape == task.samples.test_targets.shape
    assert loss > 0
