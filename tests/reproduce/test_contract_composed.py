# SPDX-License-Identifier: Apache-2.0
"""Operators of the contract on the CPU that are composed of others in it.

Each is compared with float64 under stock, and with itself for fewer rows and on another number of
threads. Stock fails the comparison for at least one of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math

import numpy as np
import pytest
import torch
from levels import needs_avx512, said_at_both
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from pytest_udftorch import patched
from pytest_udftorch.reproduce import within_contract

ROWS = 6
LENGTHS = torch.tensor([19, 24, 7, 24, 12, 0])
LABELS = torch.tensor([5, 6, 3, 1, 0, 0])


def made(*shape, seed=0):
    """Numbers that no session changes."""
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype("f"))


def layer(kind, **options):
    """A recurrent layer of 37 states on rows of 23 steps."""
    torch.manual_seed(1)
    module = kind(20, 37, batch_first=True, **options)

    def run(rows, dtype):
        own = module.to(dtype)
        x = made(ROWS, 23, 20)[rows].to(dtype).requires_grad_()
        y, last = own(x)
        last = last if isinstance(last, tuple) else (last,)
        own.zero_grad()
        weights = [p for p in own.parameters()]
        (y.cos().sum() + sum(t.sin().sum() for t in last)).backward()
        return [y, x.grad], [p.grad for p in weights]

    return run


def sampled(mode, padding, corners, space=2):
    def run(rows, dtype):
        sizes = (9, 11, 6)[:space]
        image = made(ROWS, 70, *sizes, seed=2)[rows].to(dtype).requires_grad_()
        grid = made(ROWS, *(5, 7, 4)[:space], space, seed=3).mul(0.8)[rows]
        grid = grid.to(dtype).requires_grad_()
        y = F.grid_sample(image, grid, mode, padding, align_corners=corners)
        y.cos().sum().backward()
        return [y, image.grad, grid.grad], []

    return run


def bags(mode, weighted=False, **options):
    """Bags of 0 to 90 rows; each row of the batch is one."""
    sizes = (90, 0, 1, 33, 90, 7)
    parts = torch.randint(0, 50, (sum(sizes),), generator=torch.Generator().manual_seed(4))
    parts = parts.split(sizes)
    factors = made(sum(sizes), seed=5).split(sizes)

    def run(rows, dtype):
        chosen = torch.arange(ROWS)[rows].tolist()
        weight = made(50, 12, seed=6).to(dtype).requires_grad_()
        indices = torch.cat([parts[i] for i in chosen])
        counts = torch.tensor([len(parts[i]) for i in chosen])
        own = torch.cat([factors[i] for i in chosen]).to(dtype).requires_grad_()
        more = {"per_sample_weights": own} if weighted else {}
        y = F.embedding_bag(
            indices, weight, counts.cumsum(0) - counts, mode=mode, **more, **options
        )
        y.cos().sum().backward()
        return [y], [weight.grad, *([own.grad] if weighted else [])]

    return run


def aligned(tensors):
    def run(rows, dtype):
        labels = torch.randint(1, 5, (ROWS, 6), generator=torch.Generator().manual_seed(7))
        x = made(24, ROWS, 5, seed=8)[:, rows].to(dtype).requires_grad_()
        steps, lengths = LENGTHS[rows], LABELS[rows]
        if not tensors:
            steps, lengths = steps.tolist(), lengths.tolist()
        loss = F.ctc_loss(
            x.log_softmax(-1), labels[rows], steps, lengths, reduction="none", zero_infinity=True
        )
        loss.cos().sum().backward()
        return [loss, x.grad.transpose(0, 1)], []

    return run


def normed(dim):
    torch.manual_seed(1)
    module = parametrizations.weight_norm(nn.Conv1d(70, 9, 3), dim=dim)

    def run(rows, dtype):
        own = module.to(dtype)
        own.zero_grad()
        own(made(ROWS, 70, 8)[rows].to(dtype)).cos().sum().backward()
        return [], [own.weight, *(p.grad for p in own.parameters())]

    return run


CASES = {
    "lstm": layer(nn.LSTM),
    "lstm, both directions": layer(nn.LSTM, num_layers=2, bidirectional=True),
    "lstm without biases": layer(nn.LSTM, bias=False),
    "gru": layer(nn.GRU, bidirectional=True),
    "rnn": layer(nn.RNN),
    **{
        f"grid, {mode}, {padding}, {corners}": sampled(mode, padding, corners)
        for mode in ("bilinear", "nearest", "bicubic")
        for padding in ("zeros", "border", "reflection")
        for corners in (False, True)
    },
    "grid in space": sampled("bilinear", "zeros", False, 3),
    "grid in space, nearest": sampled("nearest", "reflection", True, 3),
    "bags": bags("sum"),
    "bags with weights": bags("sum", weighted=True),
    "bags, mean": bags("mean", padding_idx=3),
    "bags, largest": bags("max"),
    "bags by frequency": bags("sum", scale_grad_by_freq=True),
    "alignments": aligned(True),
    "alignments of lists": aligned(False),
    "weight norm": normed(0),
    "weight norm of the last": normed(2),
}


@contextlib.contextmanager
def threads(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def runs(name, library):
    """Return what a case gives for all rows, for each two of them, and on another thread."""
    run = CASES[name]
    with patched(library):
        with threads(2):
            whole = run(slice(None), torch.float32)
        with threads(1):
            alone = run(slice(None), torch.float32)
        parts = [run(slice(i, i + 2), torch.float32)[0] for i in range(0, ROWS, 2)]
    return whole, alone, parts


def differs(name, library):
    """Tell whether another thread, or fewer rows, give other bits."""
    whole, alone, parts = runs(name, library)
    merged = [torch.cat(each) for each in zip(*parts, strict=True)]
    pairs = [*zip(whole[0] + whole[1], alone[0] + alone[1], strict=True)]
    pairs += zip(whole[0], merged, strict=True)
    return not all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("name", CASES)
def test_neither_rows_nor_threads_change_a_bit(name):
    assert not differs(name, "repro")


def test_stock_does_not_have_the_property():
    assert any(differs(name, "std") for name in ("lstm", "alignments", "weight norm", "bags"))


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_float64_but_for_rounding(name):
    with patched("repro"), within_contract(strict=True):
        found = CASES[name](slice(None), torch.float32)
    true = CASES[name](slice(None), torch.float64)
    for a, b in zip(found[0] + found[1], true[0] + true[1], strict=True):
        scale = b.detach().abs().max().clamp(min=1e-3)
        assert ((a.double() - b).abs().max() / scale) < 3e-5
    for module in (c.cell_contents for c in CASES[name].__closure__ or ()):
        if isinstance(module, nn.Module):
            module.float()


def digests():
    """The SHA-256 of what each case gives under repro."""
    found = {}
    with patched("repro"):
        for name, run in CASES.items():
            tensors = [
                t.detach().contiguous() for each in run(slice(None), torch.float32) for t in each
            ]
            found[name] = hashlib.sha256(b"".join(t.numpy().tobytes() for t in tensors)).hexdigest()
    return found


@pytest.mark.slow
@needs_avx512
def test_the_levels_have_the_same_bits():
    found = said_at_both(__file__)
    assert found[0] == found[1]
    assert len(found[0]) == len(CASES)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lstm", "grid", "bags", "alignments", "norm", "attention"])
def test_compiled_code_has_the_same_bits(name):
    torch.manual_seed(0)
    lstm, conv = nn.LSTM(20, 37), parametrizations.weight_norm(nn.Conv1d(7, 9, 3))
    places = torch.arange(40) % 9, torch.tensor([0, 3, 9])
    chances, ends = made(9, 2, 5).log_softmax(-1), (torch.tensor([9, 7]), torch.tensor([3, 2]))
    heads = [made(2, 3, 20, n, seed=n) for n in (16, 16, 8)]
    calls = {
        "lstm": lambda: lstm(made(9, 2, 20))[0],
        "grid": lambda: F.grid_sample(made(2, 3, 9, 11), made(2, 5, 7, 2), align_corners=False),
        "bags": lambda: F.embedding_bag(places[0], made(50, 12), places[1], mode="sum"),
        "alignments": lambda: F.ctc_loss(chances, torch.tensor([[1, 2, 3], [4, 4, 1]]), *ends),
        "norm": lambda: conv(made(2, 7, 12)),
        "attention": lambda: F.scaled_dot_product_attention(*heads, is_causal=True),
    }
    with patched("repro"), torch.no_grad():
        assert torch.equal(torch.compile(calls[name])(), calls[name]())
    torch._dynamo.reset()


def test_a_layer_has_the_bits_of_its_cell():
    torch.manual_seed(0)
    lstm, cell = nn.LSTM(20, 37), nn.LSTMCell(20, 37)
    for name, parameter in cell.named_parameters():
        parameter.data = getattr(lstm, f"{name}_l0").data
    x = made(9, ROWS, 20)
    with patched("repro"), torch.no_grad():
        y, _ = lstm(x)
        state = None
        for step, own in zip(x, y, strict=True):
            state = cell(step, state)
            assert torch.equal(state[0], own)


def test_a_bag_is_the_sum_of_its_rows():
    weight, indices = made(50, 12), torch.arange(40) % 9
    with patched("repro"):
        found = F.embedding_bag(indices, weight, torch.tensor([0, 3]), mode="sum")
        assert torch.equal(found[1], weight[indices[3:]].sum(0))


def test_what_is_no_number_or_no_way_is_as_in_stock():
    image, grid = made(1, 2, 4, 4), made(1, 3, 3, 2)
    grid[0, 1, 1], grid[0, 2, 2] = math.nan, math.inf
    x = made(3, 1, 4).log_softmax(-1)
    labels, steps = torch.tensor([[1, 1, 1]]), torch.tensor([3])
    found = []
    for library in ("repro", "std"):
        with patched(library):
            found.append((
                F.grid_sample(image, grid, align_corners=True),
                F.grid_sample(image, grid, padding_mode="border", align_corners=False),
                F.ctc_loss(x, labels, steps, steps, reduction="none"),
            ))  # fmt: skip
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)


@pytest.mark.parametrize(
    ("call", "operator"),
    [
        (lambda: F.embedding_bag(torch.arange(4)[None], made(9, 3).double()), "_embedding_bag"),
        (lambda: F.grid_sample(made(1, 1, 3, 3).double(), made(1, 2, 2, 2).double()),
         "grid_sampler_2d"),
        pytest.param(
            lambda: nn.LSTM(3, 4).bfloat16()(made(2, 1, 3).bfloat16()), "mkldnn_rnn_layer",
            marks=pytest.mark.skipif(
                not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
                reason="oneDNN has no LSTM in bfloat16 for this CPU",
            ),
        ),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:Default grid_sample")
def test_other_numbers_are_outside(call, operator):
    with patched("repro"), within_contract() as found, torch.no_grad():
        call()
    assert any(operator in name for name in found.operators), found.operators


OP = torch.ops.aten
GRID = made(2, 4, 4, 2)
BAGS = torch.arange(60) % 7, torch.tensor([0, 25])
SIZES = torch.ops.aten._embedding_bag(torch.ones(9, 70), *BAGS, False, 1)[1:]
#: Calls on tensors in 16 bits; norms of weights are float32.
NARROW = {
    "grid": (lambda x, g: OP.grid_sampler_2d(x, g, 0, 0, False), [made(2, 3, 5, 5), GRID]),
    "grid's gradients": (
        lambda y, x, g: OP.grid_sampler_2d_backward(y, x, g, 2, 1, False, [True, True]),
        [made(2, 3, 4, 4, seed=1), made(2, 3, 5, 5), GRID],
    ),
    "bags": (
        lambda w, of: OP._embedding_bag(w, *BAGS, False, 0, False, of)[0], [made(9, 70), made(60)]
    ),
    "bags' gradient": (
        lambda g: OP._embedding_bag_backward(
            g, *BAGS, *SIZES, 9, False, 1, False, None
        ),
        [made(2, 70)],
    ),
    "weight norm": (lambda v, g: OP._weight_norm_interface(v, g, 0), [made(4, 70), made(4, 1)]),
    "weight norm's gradients": (
        lambda w, v, g: OP._weight_norm_interface_backward(w, v, g, v.float().norm(2, 1, True), 0),
        [made(4, 70, seed=1), made(4, 70), made(4, 1)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_16_bits_they_compute_in_float32_and_round_once(name, dtype):
    call, given = NARROW[name]
    narrow = [t.to(dtype) for t in given]

    def parts(tensors):
        found = call(*tensors)
        return found if isinstance(found, tuple) else (found,)

    stock = parts(narrow)
    with patched("repro"), within_contract(strict=True):
        found, wide = parts(narrow), parts([t.float() for t in narrow])
    for ours, theirs, want in zip(found, stock, wide, strict=True):
        assert ours.dtype is theirs.dtype
        assert torch.equal(ours, want.to(ours.dtype))
    if name == "bags' gradient":  # stock adds in 16 bits
        assert not torch.equal(stock[0], found[0])


if __name__ == "__main__":
    print(json.dumps(digests()))
