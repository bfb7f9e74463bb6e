# SPDX-License-Identifier: Apache-2.0
"""exp and exp2 rounded to 16 bits are the session's, rounded, for every float32."""

import pytest
import torch

from pytest_udftorch.swap.session.session import patched

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]
triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

if torch.cuda.is_available():
    from pytest_udftorch.swap.cuda.sixteen import exp2_rounded, exp_rounded

    @triton.jit
    def rounded(
        x, y, TWO: tl.constexpr, DTYPE: tl.constexpr, PACK: tl.constexpr, BLOCK: tl.constexpr
    ):
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        if TWO:
            found = exp2_rounded(tl.load(x + at), DTYPE, PACK)
        else:
            found = exp_rounded(tl.load(x + at), (None, None), DTYPE, True, PACK)
        tl.store(y + at, found)


STEP = 1 << 28
FUNCTIONS = {"exp": torch.exp, "exp2": torch.exp2}


def differences(library, function, dtype, pack=32, chunks=range(16), right="corem"):
    """Return how many of some chunks of all encodings differ from ``right``'s rounded results."""
    kind = {torch.bfloat16: tl.bfloat16, torch.half: tl.float16}[dtype]
    wrong, block = 0, 128 * pack
    for chunk in chunks:
        first = chunk * STEP - (1 << 31)
        bits = torch.arange(first, first + STEP, dtype=torch.int32, device="cuda")
        x = bits.view(torch.float32)
        y = torch.empty(STEP, dtype=dtype, device="cuda")
        with patched(library):
            rounded[(STEP // block,)](
                x, y, function == "exp2", kind, pack, block, num_warps=4, enable_fp_fusion=False
            )
        with patched(right):
            want = FUNCTIONS[function](x).to(dtype)
        wrong += int(((y != want) & ~(y.isnan() & want.isnan())).sum())
    return wrong


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.half], ids=str)
def test_every_float32(function, dtype):
    assert differences("corem", function, dtype) == 0


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("pack", [8, 16])
def test_fewer_elements_at_a_time(function, pack):
    assert differences("corem", function, torch.bfloat16, pack, chunks=(2, 12)) == 0


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_difference_in_the_last_bit_shows(function):
    # Arguments from -2 to -2^-63: results of some are next to a boundary.
    assert differences("canary", function, torch.half, chunks=(2, 3)) > 0
    assert differences("canary", function, torch.half, chunks=(2, 3), right="canary") == 0
