# SPDX-License-Identifier: Apache-2.0
"""The bench that counts sets of bits sees a difference where there is one."""

from __future__ import annotations

import json

import pytest
import torch

from benches.experiments import same_bits
from benches.render import cuda as render_cuda


def sets(library, names):
    found = same_bits.run("eager-cpu", library, names, 1)
    return {n: len(set().union(*kinds.values())) for n, kinds in found.items()}


def test_every_way_covers_the_whole_pool_in_order():
    numbers = same_bits.pool()
    kinds = {}
    for kind, way in same_bits.ways(numbers):
        for (y,) in way(lambda x, z: [x + 0]):
            assert same_bits.digest(y) == same_bits.digest(numbers[0] + 0)
            kinds[kind] = kinds.get(kind, 0) + 1
    assert kinds == {"lengths": 65, "offsets": 16, "strides": 4, "threads": 2 * same_bits.REPEATED}


def test_a_result_that_depends_on_the_length_makes_more_sets(monkeypatch):
    monkeypatch.setattr(
        same_bits,
        "functions",
        lambda context: {"length": (lambda x: x.nan_to_num(0.0) * 0 + len(x), 1)},
    )
    # 65 lengths, and those of offsets, strides and threads; pieces at the end are shorter.
    assert sets("std", []) == {"length": 65 + 2}


def test_corem_has_one_set_on_the_cpu():
    assert sets("corem", ["log", "hypot", "silu"]) == {"log": 1, "hypot": 1, "silu": 1}


def test_parts_are_put_together(tmp_path):
    parts = []
    for number, name in enumerate(("exp", "log")):
        part = tmp_path / f"{number}.json"
        arguments = ["run", "--context", "eager-cpu", "--library", "std", "--functions", name]
        assert same_bits.main([*arguments, "--out", str(part)]) == 0
        parts.append(str(part))
    whole, again = tmp_path / "whole.json", tmp_path / "again.json"
    assert same_bits.main(["merge", "--store", str(whole), *parts]) == 0
    assert same_bits.main(["merge", "--store", str(again), str(whole)]) == 0
    document = json.loads(again.read_text())
    assert document == json.loads(whole.read_text())
    (context,) = document["contexts"].values()
    assert set(context["std"]["functions"]) == {"exp", "log"}
    text = render_cuda.same_bits(document)
    assert "| log |" in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_gpu_half_needs_a_gpu(tmp_path):
    with pytest.raises((RuntimeError, AssertionError), match=r"NVIDIA|CUDA"):
        same_bits.main(["run", "--context", "eager-cuda", "--out", str(tmp_path / "x.json")])
