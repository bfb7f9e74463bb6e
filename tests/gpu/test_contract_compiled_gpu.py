# SPDX-License-Identifier: Apache-2.0
"""Compiled code has the bits of eager code on GPUs, and those of the CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from pytest_udftorch import patched

pytest.importorskip("triton")
if not torch.cuda.is_available():  # the samples take long to import
    pytest.skip("torch sees no CUDA device", allow_module_level=True)

from tests.gpu.test_like_torch_gpu import gradients
from tests.operator_samples import EVERY, encodings
from tests.reproduce.test_contract_compiled_database import compare

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore"),
]

HEADS = torch.randn(3, 1, 2, 160, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_compiled_flex_attention(dtype):
    def call(q, k, v):
        mask = masks[q.device.type]
        return flex_attention(q, k, v, score_mod=lambda s, *at: torch.tanh(s), block_mask=mask)

    masks = {
        device: create_block_mask(lambda b, h, i, j: i >= j, 1, 1, 160, 160, device=device)
        for device in ("cpu", "cuda")
    }
    with patched("repro"):
        eager = encodings(gradients(call, *HEADS.to(dtype)))
        assert encodings(gradients(torch.compile(call), *HEADS.to(dtype))) == eager
        with torch.no_grad():  # torch has no gradient of it on CPUs
            on_cpu = encodings(call(*HEADS.to(dtype)))
        assert on_cpu == eager[:1]


SCRIPT = """
import torch
from torch.nn import functional as F
from pytest_udftorch import patched

x = torch.randn(3, 2, 2, 70, 32, generator=torch.Generator().manual_seed(0)).cuda()
compiled = torch.compile(lambda x: F.scaled_dot_product_attention(*x, is_causal=True))
def same():
    return torch.equal(compiled(x), F.scaled_dot_product_attention(*x, is_causal=True))
compiled(x)
for _ in range(2):
    with patched("repro"), torch.no_grad():
        print(same())
"""


def test_a_process_that_compiled_attention_before_its_first_session():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=Path(__file__).parent, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["True", "True"], done.stderr


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.heads, self.last = nn.RMSNorm(64), nn.Linear(64, 192), nn.Linear(64, 64)

    def forward(self, x):
        q, k, v = self.heads(self.norm(x)).unflatten(-1, (3, 2, 32)).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.last(F.silu(found.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune-no-cudagraphs"])
def test_training_steps_in_each_mode(mode, dtype):
    def trained(device, compiled):
        torch.manual_seed(0)
        model = nn.Sequential(Block(), Block()).to(device, dtype)
        run = torch.compile(model, mode=mode) if compiled else model
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        x = torch.randn(3, 40, 64, generator=torch.Generator().manual_seed(1)).to(device, dtype)
        for _ in range(4):
            optimizer.zero_grad()
            run(x).float().square().mean().backward()
            optimizer.step()
        return encodings(list(model.parameters()))

    with patched("repro"):
        eager = trained("cuda", compiled=False)
        assert trained("cuda", compiled=True) == eager
        assert trained("cpu", compiled=False) == eager


def test_a_compiled_optimizer_whose_lists_are_in_a_graph():
    def trained(compiled):
        torch.manual_seed(0)
        weights = [torch.randn(n, device="cuda", requires_grad=True) for n in (5, 300, 7, 4_000)]
        optimizer = torch.optim.SGD(weights, lr=0.1, momentum=0.9, foreach=True)
        step = torch.compile(optimizer.step, mode="reduce-overhead") if compiled else optimizer.step
        for turn in range(5):
            for w in weights:
                w.grad = (w.detach() * (turn + 1)).cos()
            step()
        return encodings(weights)

    with patched("repro"):
        assert trained(compiled=True) == trained(compiled=False)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", EVERY, ids=lambda op: op.formatted_name)
def test_each_operator_of_the_database(op, dtype):
    compare(op, dtype, "cuda")
