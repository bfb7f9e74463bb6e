# SPDX-License-Identifier: Apache-2.0
"""The bench of pairs on a GPU: its inputs and its oracle are those of the CPU's certificates."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from benches.experiments import cuda_digests, cuda_pairs
from benches.render import cuda as render_cuda
from pytest_udftorch.prove.verify.reference.checker import generator
from pytest_udftorch.swap.session.session import patched


@pytest.fixture(scope="module")
def source():
    return generator()


def test_a_slab_is_the_pairs_in_order(source, monkeypatch):
    monkeypatch.setattr(cuda_pairs, "CHUNK_BITS", 6)
    with ThreadPoolExecutor(2) as threads:
        found = cuda_pairs.slab(source, threads, 5, 3, "cpu", 8)
    for tensor, column in zip(found, source.inputs(2, 5, 3 << 8, 1 << 8), strict=True):
        assert tensor.numpy().tobytes() == column.tobytes()


@pytest.mark.parametrize("name", cuda_pairs.PAIRS)
def test_a_chunk_has_the_certificates_digest_and_the_canarys_has_not(source, name):
    certificate, run = cuda_digests.certified(name)
    with ThreadPoolExecutor(1) as threads:
        pair = cuda_pairs.slab(source, threads, certificate.domain["seed"], 0, "cpu", 24)
    digests = []
    for library in ("corem", "canary"):
        with patched(library, functions=(name,)):
            encodings = cuda_digests.canonical(getattr(torch, name)(*pair))
        digests.append(cuda_digests._digest(encodings.numpy()).hex())
    assert [d == run.chunks[0][0] for d in digests] == [True, False]
    assert cuda_pairs.over_chunks([run.chunks[i][0] for i in sorted(run.chunks)]) == run.digest()


def test_slabs_are_taken_while_there_is_time():
    assert list(cuda_pairs.within(0.0, itertools.count())) == [0]
    assert list(cuda_pairs.within(1e9, iter(range(3)))) == [0, 1, 2]


@pytest.mark.parametrize("name", ["exp", *cuda_pairs.PAIRS])
def test_the_kernel_by_hand_holds_the_function(name, ptx):
    with patched("corem", functions=(name,)):
        text = ptx(cuda_digests.kernel(name), BLOCK=128)
    assert f"udf_{name}f" in text


def test_a_table_shows_how_many_pairs_were_run():
    entry = {
        "inputs": 1 << 28, "of": 1 << 30, "chunks": 16, "chunks_equal": 15,
        "digest": "d" * 64, "certificate": "c" * 64, "different": {"triton": 7, "compiled": 1234},
    }  # fmt: skip
    control = {"library": "canary", "function": "pow", "chunks": 16, "chunks_equal": 0}
    machine = {"gpu": "G", "multiprocessors": 1}
    versions = dict.fromkeys(("torch", "triton", "python"), "1")
    text = render_cuda.pairs(
        {
            "functions": {"pow": entry},
            "controls": [control],
            "command": "python -m benches.experiments.cuda_pairs",
            "device": {"machine": machine, "versions": versions, "driver": "1"},
            "environment": {"date": "2026-01-01"},
        }
    )
    row = "| pow | 268,435,456 | 1,073,741,824 | 16 | 15 | `dddddddddddddddd` | "
    assert f"{row}`cccccccccccccccc` | 7 | 1,234 |" in text
    assert "of 16 chunks of pow, 0 have the same digest under `canary`" in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_measured():
    with pytest.raises((RuntimeError, AssertionError), match=r"NVIDIA|CUDA"):
        cuda_pairs.main(["--functions", "pow"])
