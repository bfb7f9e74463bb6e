# SPDX-License-Identifier: Apache-2.0
"""exp rounded to 16 bits is the session's exp, rounded, for every float32."""

import pytest
import torch

from pytest_udftorch.session.session import patched

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]
triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

if torch.cuda.is_available():
    from pytest_udftorch.cuda.sixteen import exp_rounded

    @triton.jit
    def rounded(x, y, DTYPE: tl.constexpr, QUICK: tl.constexpr, BLOCK: tl.constexpr):
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + at, exp_rounded(tl.load(x + at), (None, None), DTYPE, QUICK))


STEP = 1 << 28


def differences(library, dtype, chunks=range(16), right="corem"):
    """Return how many of some chunks of all encodings differ from the rounded exp of ``right``."""
    kind = {torch.bfloat16: tl.bfloat16, torch.half: tl.float16}[dtype]
    wrong = 0
    for chunk in chunks:
        first = chunk * STEP - (1 << 31)
        bits = torch.arange(first, first + STEP, dtype=torch.int32, device="cuda")
        x = bits.view(torch.float32)
        y = torch.empty(STEP, dtype=dtype, device="cuda")
        with patched(library):
            rounded[(STEP // 1024,)](x, y, kind, True, 1024, enable_fp_fusion=False)
        with patched(right):
            want = torch.exp(x).to(dtype)
        wrong += int(((y != want) & ~(y.isnan() & want.isnan())).sum())
    return wrong


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.half], ids=str)
def test_every_float32(dtype):
    assert differences("corem", dtype) == 0


def test_a_difference_in_the_last_bit_shows():
    # Arguments from -2 to -2^-63: exp of some is next to a boundary.
    assert differences("canary", torch.half, chunks=(2, 3)) > 0
    assert differences("canary", torch.half, chunks=(2, 3), right="canary") == 0
