# SPDX-License-Identifier: Apache-2.0
"""ctc_loss on a GPU against stock in float64."""

import pytest
import torch
from torch.nn import functional as F

from pytest_udftorch import patched
from pytest_udftorch.swap.cuda.launcher import launched

pytest.importorskip("triton")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]


def problem(steps=40, lines=5, classes=12, longest=9, *, equal=False, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(steps, lines, classes, generator=generator).cuda()
    targets = torch.randint(1, classes, (lines, longest), generator=generator)
    targets[0, 1:4] = targets[0, 0]  # repeated labels need a blank between them
    if equal:
        lengths = torch.full((lines,), longest)
        of_steps = torch.full((lines,), steps)
    else:
        lengths = torch.randint(1, longest + 1, (lines,), generator=generator)
        of_steps = torch.randint(steps // 2 + 4, steps + 1, (lines,), generator=generator)
    return x, targets, of_steps, lengths


def losses(x, targets, steps, lengths, **given):
    leaf = x.detach().requires_grad_()
    loss = F.ctc_loss(leaf.log_softmax(-1), targets, steps, lengths, **given)
    (grad,) = torch.autograd.grad(loss.sum(), leaf)
    return loss.detach(), grad


def judge(*args, **given):
    """Both no farther than stock from stock in float64, or than a few roundings."""
    x, *rest = args
    # cuDNN takes lengths on the CPU; the launch below has to show that nobody asked it.
    stock = losses(x, *rest, **given)
    exact = losses(x.double(), *rest, **given)
    with patched("corem"):
        launched()
        ours = losses(x, *rest, **given)
        assert {"alignments", "alignments_backward"} <= launched()
    for mine, theirs, best in zip(ours, stock, exact, strict=True):
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        assert torch.equal(mine.isfinite(), theirs.isfinite())
        seen = best.isfinite()
        if seen.any():
            far = (mine.double() - best)[seen].abs().max()
            scale = best[seen].abs().max().clamp(min=1e-3)
            assert far <= 1.5 * (theirs.double() - best)[seen].abs().max() + 2e-6 * scale


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_losses_and_gradients(reduction, where):
    x, targets, steps, lengths = problem()
    judge(x, targets.to(where).cuda(), steps.to(where), lengths.to(where), reduction=reduction)


def test_compiled_code_takes_the_kernels():
    x, targets, steps, lengths = problem(steps=20, lines=2)
    targets, steps, lengths = targets.cuda(), steps.cuda(), lengths.cuda()

    def loss(x):
        return F.ctc_loss((2 * x).log_softmax(-1), targets, steps, lengths)

    def both(call):
        leaf = x.detach().requires_grad_()
        made = call(leaf)
        return made.detach(), *torch.autograd.grad(made, leaf)

    with patched("corem"):
        eager = both(loss)
        torch.compiler.reset()
        compiled = both(torch.compile(loss))
    for one, other in zip(compiled, eager, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_targets_side_by_side_and_as_int32():
    x, targets, steps, lengths = problem(seed=2)
    flat = torch.cat([t[:n] for t, n in zip(targets, lengths, strict=True)])
    judge(x, flat.cuda(), steps, lengths)
    judge(x, flat.cuda().int(), tuple(steps.tolist()), tuple(lengths.tolist()), blank=0)


def test_what_cudnn_would_take():
    """Targets on the CPU, and lengths as numbers."""
    x, targets, steps, lengths = problem(equal=True)
    args = targets.flatten().int(), tuple(steps.tolist()), tuple(lengths.tolist())
    stock = losses(x, *args)
    with patched("corem"):
        launched()
        ours = losses(x, *args)
        assert {"alignments", "alignments_backward"} <= launched()
    for mine, theirs in zip(ours, stock, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_another_blank_and_long_targets():
    x, targets, steps, lengths = problem(steps=700, classes=30, longest=300, seed=4)
    judge(x, (targets % 29).cuda(), steps, lengths, blank=29)


@pytest.mark.parametrize("zero_infinity", [False, True])
def test_impossible_and_empty_lines(zero_infinity):
    x, targets, steps, lengths = problem(seed=5)
    steps[1] = 3
    lengths[1] = 9
    lengths[2] = 0
    args = x, targets.cuda(), steps.cuda(), lengths.cuda()
    given = {"reduction": "none", "zero_infinity": zero_infinity}
    stock = losses(*args, **given)
    with patched("corem"):
        ours = losses(*args, **given)
    for mine, theirs in zip(ours, stock, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_gradients_of_either_side():
    """A graph of stock in a session, and of a session after it."""
    x, targets, steps, lengths = problem(seed=6)
    leaf = x.requires_grad_()

    def forward():
        return F.ctc_loss(leaf.log_softmax(-1), targets.cuda(), steps.cuda(), lengths.cuda())

    outside = forward()
    (stock,) = torch.autograd.grad(outside, leaf, retain_graph=True)
    with patched("corem"):
        inside = forward()
        (first,) = torch.autograd.grad(outside, leaf)
    (second,) = torch.autograd.grad(inside, leaf)
    for found in (first, second):
        torch.testing.assert_close(found, stock, rtol=1e-4, atol=1e-6)


def test_errors_and_float64_are_stocks():
    x, targets, steps, lengths = problem()
    wide = x.double().log_softmax(-1), targets.cuda(), steps.cuda(), lengths.cuda()
    before = F.ctc_loss(*wide)
    with patched("corem"):
        assert torch.equal(F.ctc_loss(*wide), before)
        with pytest.raises(RuntimeError, match="blank must be in label range"):
            F.ctc_loss(x, targets.cuda(), steps, lengths, blank=99)
        with pytest.raises(RuntimeError, match="input_lengths"):
            F.ctc_loss(x, targets.cuda(), steps[:2], lengths)


def test_evaluations_are_counted():
    x, targets, steps, lengths = problem()
    log_p = x.log_softmax(-1)
    with patched("corem", profile=True, profile_stride=1) as session:
        F.ctc_loss(log_p, targets.cuda(), steps.cuda(), lengths.cuda())
    rows = session.profile.rows("function", "operator", "device")
    counted = {
        r.key["function"]: r.elements for r in rows if r.key["operator"] == "aten::_ctc_loss"
    }
    states = sum(
        (s - 1) * (2 * n + 1) for s, n in zip(steps.tolist(), lengths.tolist(), strict=True)
    )
    assert counted["log"] >= states
    assert counted["exp"] >= 3 * states
