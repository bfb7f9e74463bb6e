# SPDX-License-Identifier: Apache-2.0
"""The kernels of repro for GPUs without a GPU: what they compile to, and what Triton's interpreter
says of their order."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

triton = pytest.importorskip("triton")

INTEGERS = "m n k batches splits a_batch a_row b_batch b_k"


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "triton"))


def ptx(name, kinds, constants, home=None):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from pytest_udftorch.swap.contract import triton_kernels

    function = getattr(home or triton_kernels, name)
    signature = {n: kinds.get(n, "constexpr") for n in function.arg_names}
    return triton.compile(
        ASTSource(function, signature, constexprs=constants),
        target=GPUTarget("cuda", 90, 32),
        options={"enable_fp_fusion": False, "num_warps": 4},
    ).asm["ptx"]


def instructions(text):
    """Return the kinds of float32 instructions that add or multiply, and of tensor cores."""
    return set(re.findall(r"\b(?:(?:fma|mul|add|mad|div|sqrt)\.\S*f32|w?g?mma\S*)", text))


def test_products_are_fused_multiply_adds_without_tensor_cores():
    kinds = {**dict.fromkeys(("a", "b", "c", "waiting"), "*fp32"),
             **dict.fromkeys(INTEGERS.split(), "i32")}  # fmt: skip
    constants = {"LEVELS": 4, "CHUNK": 64, "ROWS": 64, "COLUMNS": 64, "STEP": 32,
                 "WHOLE": True, "TILED": True, "a_k": 1, "b_column": 1}  # fmt: skip
    text = ptx("products", kinds, constants)
    assert instructions(text) == {"fma.rn.f32", "add.rn.f32"}
    # 64 × 64 results of 128 threads, each with 32 factors.
    assert text.count("fma.rn.f32") == 64 * 64 // 128 * 32


def test_sums_only_add():
    integers = "n lanes groups blocks x_group x_lane x_term y_group y_block y_lane"
    kinds = {"x": "*fp32", "y": "*fp32", **dict.fromkeys(integers.split(), "i32")}
    assert instructions(ptx("sums", kinds, {"LANES": 8, "LOG": 6})) == {"add.rn.f32"}


def test_normal_variates_take_no_approximation():
    from pytest_udftorch.swap.cuda import philox

    constants = {"SCALED": False, "SHIFTED": False, "WHOLE": True, "BLOCK": 256}
    kinds = {"y": "*fp32", "n": "i32", "key": "i64", "a": "fp32", "b": "fp32"}
    text = ptx("normals_of_places", kinds, constants, philox)
    assert not re.search(r"(lg2|sin|cos)\.approx", text)
    assert "call.uni" not in text
    # The reciprocal that Newton's steps begin with.
    assert "rsqrt.approx" in text
    assert "div." not in text
    assert "fma.rn.f64" in text
    assert "sqrt.rn.f32" in text


#: How many radii, cosines and sines differ from the CPU's: every so manieth of the fractions.
VARIATES = """
import math, sys
import torch, triton
import triton.language as tl
from pytest_udftorch import patched
from pytest_udftorch.swap.contract.sums import root
from pytest_udftorch.swap.cuda import philox

@triton.jit
def variates(u, v, x, y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    one, other = philox.normals_of_words(
        tl.load(u + at).to(tl.uint32, bitcast=True), tl.load(v + at).to(tl.uint32, bitcast=True)
    )
    tl.store(x + at, one)
    tl.store(y + at, other)

k = torch.arange(0, 1 << 24, int(sys.argv[1]))
fraction = k.float() * 2.0**-24
with patched("repro"):
    radius = root((1 - fraction).log_().mul_(-2))
    angle = fraction * (2 * math.pi)
    cosine, sine = angle.cos(), angle.sin()
words = (k << 8).to(torch.int32)
still = torch.zeros_like(words)
x, y = (torch.empty(len(k)) for _ in range(2))
BLOCK = min(len(k), 1 << 18)

def wrong(u, v, *wanted):
    variates[(len(k) // BLOCK,)](u, v, x, y, BLOCK=BLOCK)
    return [int((a.view(torch.int32) != b.view(torch.int32)).sum())
            for a, b in zip((x, y), wanted)]

far = radius[-1]
def told():
    turned = wrong(still + words[-1], words, far * cosine, far * sine)
    print(wrong(words, still, radius)[0], *turned)

told()
# The control: another coefficient.
philox._K.COS0 = tl.constexpr(philox._K.COS0.value * (1 + 2.0**-20))
told()
"""


@pytest.mark.parametrize("every", ["1024", pytest.param("1", marks=pytest.mark.slow)])
def test_the_functions_of_variates_are_right_for_all_their_arguments(every):
    made = subprocess.run(
        [sys.executable, "-c", VARIATES, every], env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    # Radii, first and second variates that differ from the CPU's.
    wrong, control = ([int(n) for n in line.split()] for line in made.stdout.splitlines())
    assert wrong == [0, 0, 0]
    # The interpreter does not fuse, which changes none of these results.
    assert control[1:] != [0, 0]


ROUNDINGS = {
    "hardsigmoid": {"add.rn.f32", "div.rn.f32"},
    "divided": {"div.rn.f32"},
    "root": {"sqrt.rn.f32"},
    "one over the root": {"sqrt.rn.f32", "div.rn.f32"},
    "add": {"fma.rn.f32"},
    "lerp": {"fma.rn.f32", "add.rn.f32"},
    "addcmul": {"mul.rn.f32", "fma.rn.f32"},
    "addcdiv": {"mul.rn.f32", "div.rn.f32", "add.rn.f32"},
}


@pytest.mark.parametrize("kind", ROUNDINGS)
def test_single_elements_have_the_roundings_of_the_contract(kind):
    kinds = {**dict.fromkeys(("x", "y", "z", "out"), "*fp32"), "n": "i32", "a": "fp32"}
    text = ptx("elements", kinds, {"KIND": kind, "DTYPE": "float32", "BLOCK": 256})
    assert {i.replace("mul.f32", "mul.rn.f32") for i in instructions(text)} == ROUNDINGS[kind]


NORMS = {
    "layer_norm": "x weight bias y mean rstd",
    "layer_norm_backward": "x grad weight mean rstd y products",
    "channel_rows": "x grad mean rstd out",
    "channel_statistics": "total squares mean rstd running_mean running_var",
    "channels_mapped": "x grad mean rstd weight bias sums y",
    "channel_norm": "x weight bias running_mean running_var y mean rstd",
    "channel_norm_backward": "x grad weight mean rstd y sums",
}


@pytest.mark.parametrize("name", NORMS)
def test_norms_fuse_nothing(name):
    from pytest_udftorch.swap.contract import triton_kernels

    constants = {"LANES": 8, "LOG": 6, "KIND": 2, "BLOCK": 128, "SAMPLES": 2}
    arguments = getattr(triton_kernels, name).arg_names
    floats = {"count", "eps", "keep", "momentum"}.intersection(arguments)
    integers = {"rows", "n", "channels", "blocks", "size", "samples"}.intersection(arguments)
    kinds = {**dict.fromkeys(NORMS[name].split(), "*fp32"), **dict.fromkeys(floats, "fp32"),
             **dict.fromkeys(integers, "i32")}  # fmt: skip
    found = instructions(ptx(name, kinds, {n: constants[n] for n in constants if n in arguments}))
    assert found
    assert not {i for i in found if i.startswith(("fma", "mad")) or ".approx" in i}


INTERPRETED = """
import math
from itertools import product
import torch
import triton.language as tl
from torch.utils._python_dispatch import TorchDispatchMode
from pytest_udftorch.swap.contract import (
    cuda_elements,
    gpu,
    launches,
    norms,
    sums,
    triton_kernels,
    upsampling,
)
from pytest_udftorch.swap.contract.native import contract
from pytest_udftorch.swap.library.description import find_library

# Single elements are overridden in 16 bits, of which there are none here.
overridden = {
    udf.name for those in find_library("repro").operators.values() for udf in those
    if not hasattr(cuda_elements, udf.function)
}

class Watch(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        # One that calls this method would call itself. Integers are left to stock.
        name = func.name()
        kernel = "aten::_" + name[6:].removesuffix("_") + "_impl_"
        floats = any(isinstance(a, torch.Tensor) and a.is_floating_point() for a in args)
        assert not floats or {name, kernel}.isdisjoint(overridden), name
        return func(*args, **(kwargs or {}))

def launch(self, tensors, numbers):
    getattr(triton_kernels, self.name)[(self.programs,)](*tensors, *numbers, **self.constants)

def same(a, b):
    assert a.shape == b.shape and a.dtype == b.dtype
    bits = {2: torch.int16, 4: torch.int32}[a.element_size()]
    a, b = (torch.where(x.isnan(), math.nan, x).view(bits) for x in (a, b))
    assert torch.equal(a, b)

launches.Launch.run = launch
# The interpreter knows this sum, and is slow with others. Its own of two -0 is +0, though.
triton_kernels._plus = tl.standard._sum_combine
gpu._resident, gpu._copies = lambda device: 7, lambda device: False
cpu, it = contract(), gpu.GPU
torch.manual_seed(0)
for shape, dim in (((7,), 0), ((5000,), 0), ((3, 2049), 1), ((4, 70, 9), 1), ((2, 700, 3), 1)):
    x = torch.randn(shape)
    same(it.sums(x, dim), cpu.sums(x, dim))
for shape, dim in (((100,), 0), ((4, 70, 3), 1)):
    x = torch.randn(shape)
    same(it.prefixes(x, dim), cpu.prefixes(x, dim))
for n, rows, inner in ((100, 7, 5), (64, 1, 3), (90, 50, 130)):
    to, x, y = torch.randint(0, rows, (n,)), torch.randn(n, inner), torch.randn(rows, inner)
    same(it.scatter(y.clone(), to, x), cpu.scatter(y.clone(), to, x))
for key in (0x1234567890ABCDEF, 0xF234567890ABCDEF):
    words = cpu.words(5001, key)
    for count in (5001, 5000):
        assert torch.equal(it.words(count, key, torch.device("cpu")), words[:count])
    for bits in (8, 24):
        upper = (words.long() & 0xFFFFFFFF) >> 32 - bits
        for count in (5001, 5000):
            want = (upper.float() / 2**bits)[:count]
            same(it.fractions(torch.empty(count), key, bits), want)
            same(it.fractions(torch.empty(count), key, bits, 3.7, -1.3), want.mul(3.7).add(-1.3))
    for count in (5001, 5000):
        want = (upper.float() / 2**bits < 0.3)[:count].float()
        same(it.below(torch.empty(count), key, 0.3), want)
        x, noise = torch.randn(count), want.div(0.3)
        x[:2] = torch.tensor([math.inf, -0.0])
        y, mask = it.dropped(x, key, 0.3)
        same(y, x * noise)
        assert torch.equal(mask, noise != 0)
        same(it.kept(x.flip(0), mask, 0.3), x.flip(0) * noise)
# Weights of an upsampling by 2 have products that are exact.
how = upsampling.Direction(7, 14, upsampling.Kind.LINEAR)
for gradient, shape in ((False, (2, 3, 5, 7)), (True, (2, 3, 5, 14))):
    x = torch.randn(shape).bfloat16().float()
    padded = upsampling._padded(cpu, how, gradient, x.device)
    want = upsampling.upsample(cpu, x.view(2, -1, shape[-1]), [how], gradient=gradient)
    same(it.chains(x, 3, *padded).view(want.shape), want)
    same(it.chains(x.mT, 2, *padded).mT.reshape(want.shape), want)
with Watch():
    it.chains(x, 3, *padded)
    it.sums(torch.randn(4, 70, 9), 1), it.prefixes(torch.randn(100, 3), 0)
    it.scatter(torch.zeros(7, 5), torch.randint(0, 7, (100,)), torch.randn(100, 5), each=5)
    it.mm(torch.randn(3, 300), torch.randn(300, 4)), it.roots(torch.rand(9))
    it.words(99, 5, torch.device("cpu"))
for m, n, k in ((3, 4, 5), (17, 33, 64), (20, 40, 65), (4, 4, 9000), (65, 70, 129), (64, 128, 96)):
    # The interpreter does not fuse: each chunk has one product, which is exact.
    a, b = torch.zeros(m, k), torch.randn(k, n).bfloat16().float()
    at = (torch.arange(0, k, 64) + torch.randint(0, 64, (-(-k // 64),))).clamp(max=k - 1)
    a[:, at] = torch.randn(m, len(at)).bfloat16().float()
    same(it.mm(a, b), cpu.mm(a, b))
for rows, n in ((5, 64), (33, 100), (7, 1), (3, 2000)):
    x, g = torch.randn(2, rows, n)
    same(it.row_parts("less", x), x - x.amax(1, keepdim=True))
    same(it.row_parts("over", x), x / cpu.sums(x, 1)[:, None])
    same(it.row_parts("gradient", x, g), (g - cpu.sums(g * x, 1)[:, None]) * x)
for rows, n in ((5, 64), (33, 100), (7, 1), (3, 2000)):
    x, g, w, b = torch.randn(rows, n), torch.randn(rows, n), torch.randn(n), torch.randn(n)
    for weight, bias in ((w, b), (None, None), (w, None)):
        made = sums.layer_norm(x, (n,), weight, bias, 1e-5)
        for one, other in zip(it.layer_norm(x, weight, bias, 1e-5), made):
            same(one.flatten(), other.flatten())
        mean, rstd = made[1:]
        wanted = sums.layer_norm_backward(g, x, (n,), mean, rstd, weight, bias, [True] * 3)
        y, products = torch.empty(2, rows, n)
        it.layer_norm_backward(x, g, weight, mean, rstd, y, products)
        same(y, wanted[0])
        if weight is not None:
            same(it.sums(products, 0), wanted[1])
for shape, gpu._CHANNEL in product(((4, 3, 5, 5), (2, 5, 50, 50), (7, 4), (1, 3, 9)), (14, 0)):
    x, g, c = torch.randn(shape), torch.randn(shape), shape[1]
    w, b, mean, var = (torch.rand(c) for _ in range(4))
    for weight in (w, None):
        here, there = ((mean.clone(), var.clone()) for _ in range(2))
        made = norms.batch_norm(x, weight, b, *here, True, 0.1, 1e-5)
        for one, other in zip(it.batch_norm(x, weight, b, there, 0.1, 1e-5) + there, made + here):
            same(one, other)
        wanted = norms.batch_norm_backward(
            g, x, weight, None, None, *made[1:], True, 1e-5, [True] * 3
        )
        for one, other in zip(it.batch_norm_backward(x, g, weight, *made[1:], wanted=True), wanted):
            same(one, other)
launches.stream = lambda index: 0
kinds = (("add", 2), ("divided", 1), ("lerp", 2), ("addcmul", 3), ("addcdiv", 3))
# The interpreter does not round to bfloat16 to nearest.
narrow = (torch.float16,)
for (kind, count), dtype in product(kinds, (torch.float32, *narrow)):
    groups = [[(torch.rand(n) + 0.5).to(dtype) for _ in range(count)] for n in (1, 5, 3000, 7)]
    for numbers in ([0.1, 2.0, -0.7, 3.5], [0.1] * 4):
        into = [torch.empty_like(g[0]) for g in groups]
        it.lists(kind, groups, numbers, into)
        for given, number, y in zip(groups, numbers, into):
            same(y, it.elements(kind, given, number))
            wide = it.elements(kind, [g.float() for g in given], number)
            same(y, wide.to(dtype))
for name, dtype in product(("hardswish", "hardsigmoid"), (torch.float32, *narrow)):
    x = (torch.randn(3000) * 4).to(dtype)
    x[:5] = torch.tensor([math.nan, math.inf, -math.inf, -0.0, -3.0])
    same(it.elements(name, [x], 0.0), getattr(torch.nn.functional, name)(x))
a, b = torch.randn(9, 400), torch.randn(400, 9)
whole = it.mm(a, b)
gpu._chunk = 128
assert not torch.equal(it.mm(a, b), whole)
print("the same")
"""


@pytest.mark.slow
def test_the_interpreter_gives_the_bits_of_the_cpu():
    made = subprocess.run(
        [sys.executable, "-c", INTERPRETED],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert made.stdout.strip().endswith("the same"), made.stderr


CONVOLVED = """
import torch
import triton.language as tl
from pytest_udftorch.swap.contract import (
    cuda_windows,
    gpu,
    launches,
    products,
    triton_kernels,
    windows,
)
from pytest_udftorch.swap.contract.native import contract

def launch(self, tensors, numbers):
    getattr(triton_kernels, self.name)[(self.programs,)](*tensors, *numbers, **self.constants)

launches.Launch.run = launch
gpu._resident = lambda device: 7
made = contract()
torch.manual_seed(0)

def same(a, b):
    assert a.shape == b.shape and torch.equal(a.view(torch.int32), b.view(torch.int32))

def short(*shape):
    return torch.randn(shape).bfloat16().float()

def sparse(shape, along):
    # The interpreter does not fuse: each chunk has one product, which is exact.
    k = torch.Size(shape[along:]).numel()
    x = torch.zeros(*shape[:along], k)
    at = (torch.arange(0, k, 64) + torch.randint(0, 64, (-(-k // 64),))).clamp(max=k - 1)
    x[..., at] = short(*shape[:along], len(at))
    return x.view(shape)

def compare(shape, rows, taps, stride, padding, dilation, groups):
    x, bias = short(*shape), short(rows)
    w = sparse((rows, shape[1] // groups, *taps), 1).unflatten(0, (groups, -1))
    how = products._geometry(x, taps, stride, padding, dilation)
    want = windows.convolve(made, x, w, bias, how)
    same(cuda_windows.convolve(x, w, bias, how), want)
    grad = sparse(want.shape, 2)
    same(cuda_windows.weight_gradient(x, grad, how, groups),
         windows.weight_gradient(made, x, grad, how, groups))
    # The gradient of the input: gaps of strides, and taps in reverse order.
    turned = sparse((groups, shape[1] // groups, rows // groups, *taps), 2)
    before = tuple(d * (k - 1) - p for d, k, p in zip(dilation, taps, padding))
    room = tuple(n + d * (k - 1) for n, d, k in zip(shape[2:], dilation, taps))
    back = windows.Geometry(before, room, taps, (1,) * len(taps), dilation, stride)
    grad = short(*want.shape)
    same(cuda_windows.convolve(grad, turned, None, back, turned=True),
         windows.convolve(made, grad, turned, None, back, turned=True))

compare((2, 3, 9, 8), 5, (3, 3), (1, 1), (1, 1), (1, 1), 1)
compare((3, 4, 11, 9), 6, (3, 3), (2, 1), (1, 2), (1, 2), 1)
compare((3, 8, 8, 9), 20, (3, 2), (1, 1), (0, 0), (1, 1), 2)
compare((3, 4, 50), 6, (5,), (1,), (0,), (1,), 1)
compare((2, 3, 5, 6, 7), 4, (2, 3, 3), (1, 2, 1), (1, 0, 1), (1, 1, 1), 1)
compare((2, 32, 6, 6), 18, (3, 3), (1, 1), (1, 1), (1, 1), 1)
compare((1, 80, 5, 5), 3, (5, 5), (1, 1), (2, 2), (1, 1), 1)
cuda_windows._MOST, cuda_windows._ROOM = 60, 10
compare((5, 4, 6, 6), 3, (3, 3), (1, 1), (1, 1), (1, 1), 1)
print("the same")
"""


@pytest.mark.slow
def test_the_interpreter_convolves_as_the_cpu_does():
    made = subprocess.run(
        [sys.executable, "-c", CONVOLVED],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert made.stdout.strip().endswith("the same"), made.stderr


#: What exact products launch goes to the interpreter.
LAUNCHED = """
import math, os, sys
import torch
import triton.language as tl
from pytest_udftorch.swap.contract import attention, cuda_attention, cuda_exact, gpu, launches
from pytest_udftorch.swap.contract import triton_kernels
from pytest_udftorch.swap.contract.native import contract

def launch(self, tensors, numbers):
    launches._kernel(self.name)[(self.programs,)](*tensors, *numbers, **self.constants)

launches.Launch.run = launch
triton_kernels._plus = tl.standard._sum_combine
gpu._resident = cuda_exact.processors = lambda device: 7
cuda_exact._is_hopper = gpu._copies = lambda device: False
torch.manual_seed(0)
"""

EXACT = """
made = contract()

def same(a, b):
    assert a.shape == b.shape and a.dtype == b.dtype
    a, b = (torch.where(x.isnan(), math.nan, x).view(torch.int32) for x in (a, b))
    assert torch.equal(a, b)

def factors(m, n, k):
    a, b = torch.randn(m, k).bfloat16(), torch.randn(k, n).bfloat16()
    a[-1] *= 2.0**-130
    b[:, -1] *= 2.0**120
    a[0, 3], b[k - 1, 1] = math.nan, math.inf
    return a, b

# Results stay in float32: the interpreter does not round to bfloat16 to nearest.
for m, n, k in eval(sys.argv[1]):
    a, b = factors(m, n, k)
    bias, want = torch.randn(n), made.mm(a, b)
    for unit in cuda_exact.UNITS:
        os.environ[cuda_exact.UNIT] = unit
        same(cuda_exact.mm(a, b, wide=True), want)
    turned = a.t().contiguous().t(), b.t().contiguous().t()
    same(cuda_exact.mm(*turned, bias, wide=True), want + bias)
a, b = (torch.stack([x, x.flip(0)]) for x in factors(3, 10, 520))
same(cuda_exact.product(a, b, wide=True), made.products(a, b))
same(cuda_exact.product(a[..., :0], b[:, :0]), torch.zeros(2, 3, 10).bfloat16())
a, b = (x[None] for x in factors(3, 10, 520))
before = cuda_exact.product(a, b, wide=True)
usual, cuda_exact._chunk = cuda_exact._chunk, 256
assert not torch.equal(cuda_exact.product(a, b, wide=True)[:, 1:-1, 2:-1], before[:, 1:-1, 2:-1])
cuda_exact._chunk = usual
print("multiplied")
"""

#: Few rows, few columns, splits of k, and tiles that are not full.
SHAPES = (
    "(2, 33, 513), (33, 2, 520)",
    "(2, 33, 700), (16, 40, 1100), (40, 2, 513), (20, 40, 1700), (33, 70, 512), (70, 66, 3000)",
)


ATTENTION = """
def rounded(self, tensors, numbers):
    # The interpreter does not round to bfloat16 to nearest: torch does, when it copies.
    at = {"attention_values": 7, "sums": 1}.get(self.name)
    if at is None or tensors[at].dtype is not torch.bfloat16:
        return launch(self, tensors, numbers)
    wide = tensors[at].float()
    launch(self, [*tensors[:at], wide, *tensors[at + 1 :]], numbers)
    tensors[at].copy_(wide)

launches.Launch.run = rounded

def same(a, b):
    assert a.shape == b.shape
    return torch.equal(*(torch.where(x.isnan(), math.nan, x.float()).view(torch.int32)
                         for x in (a, b)))

def compared(heads, shared, queries, keys, size, causal, wild=False):
    q, g = (torch.randn(2, heads, queries, size).bfloat16() for _ in range(2))
    k, v = (torch.randn(2, shared, keys, size).bfloat16() for _ in range(2))
    if wild:
        q *= 40.0  # some exponentials are subnormal
        v[0, :, ::2] *= 2.0**-115
        v[1] *= 2.0**70
        v[:, :, 1::4] = g[:, :, ::3] = 0.0
        g[1] *= 2.0**-90
    q[1, 0, queries // 2, 0] = math.nan
    k[0, 0, -1, 1] = v[1, 0, -1, 2] = math.inf
    want = attention.attention(q, k, v, 0.0, causal)
    wanted = attention.attention_backward(g, q, k, v, None, None, 0.0, causal)
    factor = 1 / math.sqrt(size)
    out, logs = cuda_attention.attention(q, k, v, causal, factor)
    found = cuda_attention.gradients(g, q, k, v, causal, factor)
    found = [attention._gathered(x, like) for x, like in zip(found, (q, k, v))]
    pairs = zip((out, logs, *found), (want[0].bfloat16(), want[1], *wanted))
    return [same(a, b) for a, b in pairs]

for case in eval(sys.argv[2]):
    for cuda_attention._scores in (cuda_attention.SCORES, 7 * case[3])[: 1 if case[6:] else 2]:
        assert compared(*case) == [True] * 5, (case, compared(*case))
cuda_exact._chunk = 32
assert compared(2, 1, 40, 40, 16, True) != [True] * 5
print("attended")
"""

#: Heads, those of keys, queries, keys, their size, and whether a query sees no later key.
HEADS = (
    "(2, 1, 9, 9, 16, True), (1, 1, 3, 17, 16, False), (2, 1, 40, 40, 16, True, True)",
    "(2, 1, 20, 20, 16, True), (2, 2, 9, 33, 16, False), (2, 1, 3, 600, 32, False),"
    " (1, 1, 530, 530, 16, True), (1, 1, 70, 150, 16, False, True), (2, 2, 33, 520, 160, True)",
)


@pytest.mark.parametrize("size", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_interpreter_multiplies_and_attends_exactly_as_the_cpu_does(size):
    made = subprocess.run(
        [sys.executable, "-c", LAUNCHED + EXACT + ATTENTION, SHAPES[size], HEADS[size]],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert made.stdout.split("\n") == ["multiplied", "attended", ""], made.stderr


def test_factors_are_copied_by_fours_where_four_lie_side_by_side():
    from pytest_udftorch.swap.contract.gpu import Factor

    def wide(rows, *where):
        return Factor(*where).words("A", rows)

    along, across = {"A_ALONG": True, "A_WIDE": True}, {"A_ALONG": False, "A_WIDE": True}
    assert wide(7, 0, 768, 1, True) == along
    assert wide(64, 4096, 1, 768, True) == across
    narrow = (7, 0, 768, 1, False), (7, 0, 767, 1, True), (7, 6, 768, 1, True)
    assert all(wide(*given) == {**along, "A_WIDE": False} for given in narrow)
    narrow = (64, 0, 1, 767, True), (63, 0, 1, 768, True), (64, 0, 2, 768, True)
    assert all(wide(*given) == {**across, "A_WIDE": False} for given in narrow)


def test_sums_over_few_chunks_have_no_parts():
    from pytest_udftorch.swap.contract import gpu

    assert gpu._split(48, 1024, gpu._UNSPLIT) == (4, 1)
    assert gpu._split(48, 1024, gpu._PART) == (3, 2)
    assert gpu._split(48, 3072, gpu._UNSPLIT) == (3, 6)
    assert gpu._split(4096, 3072, gpu._UNSPLIT) == (6, 1)


def test_an_unknown_unit_of_exact_products_is_refused(monkeypatch):
    from pytest_udftorch.errors import CudaFormError
    from pytest_udftorch.swap.contract import cuda_exact

    monkeypatch.setenv(cuda_exact.UNIT, "int4")
    with pytest.raises(CudaFormError, match=r"int8 .* half .* plain"):
        cuda_exact.unit()


#: Kinds of arguments of kernels of digits.
DIGITS = {
    **dict.fromkeys(("ah", "al", "bh", "bl"), "*i8"), "ua": "*fp32", "ub": "*fp32", "c": "*bf16",
    "waiting": "*fp32", **dict.fromkeys(["m", "n", "padded", "chunks", "batches", "splits"], "i32"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("unit", "tensor"),
    [("int8", "s32.s8.s8"), ("half", "f32.f16.f16"), ("plain", None)],
)
def test_digits_are_multiplied_by_the_unit_of_choice(unit, tensor):
    from pytest_udftorch.swap.contract import triton_exact

    side = 64 if unit == "int8" else 32
    constants = {"bias": None, "LEVELS": 3, "CHUNK": 512, "ROWS": side, "COLUMNS": side, "STEP": 64,
                 "TILED": True, "KIND": unit, "SLACK": 128}  # fmt: skip
    text = ptx("exact_products", DIGITS, constants, triton_exact)
    kinds = set(re.findall(r"\bw?g?mma\S*", text))
    assert all(tensor in kind for kind in kinds if "mma" in kind and "sync.aligned.m" in kind)
    assert any(tensor and tensor in kind for kind in kinds) == (tensor is not None)


HOPPER = """
import re
import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
from pytest_udftorch.swap.contract import cuda_exact, gluon_exact

tile = cuda_exact._HOPPER
layout = gl.NVMMASharedLayout(swizzle_byte_width=tile.step, element_bitwidth=8, rank=2)
kinds = {"a": f"tensordesc<i8[{tile.rows}, {tile.step}],{layout!r}>",
         "b": f"tensordesc<i8[{tile.columns}, {tile.step}],{layout!r}>",
         "ua": "*fp32", "ub": "*fp32", "c": "*bf16", "waiting": "*fp32",
         **dict.fromkeys("m n padded chunks batches splits".split(), "i32")}
kernel = gluon_exact.tiled_products
constants = {"bias": None, "LEVELS": 3, "CHUNK": 512, "STAGES": tile.stages,
             "SLOTS": tile.slots,
             "SLACK": 128, "WARPS": tile.warps}
signature = {name: kinds.get(name, "constexpr") for name in kernel.arg_names}
made = triton.compile(
    GluonASTSource(kernel, signature, constants), target=GPUTarget("cuda", 90, 32),
    options={"enable_fp_fusion": False, "num_warps": tile.warps},
)
text = made.asm["ptx"]
# In the loop two products of this step may be under way, behind it none.
assert re.findall(r"wgmma.wait_group.sync.aligned\\s+(\\d)", text) == ["2", "0"]
# A product takes both digits of the columns.
assert f"m64n{2 * tile.columns}k32.s32.s8.s8" in text
assert made.metadata.shared * tile.resident <= 227 * 1024
print("compiled")
"""


COPIED = """
import re
import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource
from pytest_udftorch.swap.contract import gpu, gluon_products

kernel = gluon_products.copied_products

def compiled(architecture, tile, a_along, b_along, wide):
    strides = {"a_k": a_along, "a_row": not a_along, "b_k": b_along, "b_column": not b_along}
    constants = {
        "bias": None, "LEVELS": 3, "CHUNK": gpu.CHUNK, "ROWS": tile.side, "COLUMNS": tile.side,
        "STEP": gpu._STEP, "STAGES": gpu._HELD, "SLOTS": gpu._SLOTS, "WARPS": tile.warps,
        "A_ALONG": a_along, "B_ALONG": b_along, "A_WIDE": wide, "B_WIDE": wide, "WHOLE": wide,
        "TILED": wide, **{name: 1 for name, near in strides.items() if near},
    }
    kinds = dict.fromkeys(kernel.arg_names, "i32")
    kinds |= dict.fromkeys(kernel.arg_names[:4], "*fp32") | dict.fromkeys(constants, "constexpr")
    pointers = {(n,): [["tt.divisibility", 16]] for n in range(4)}
    return triton.compile(
        GluonASTSource(kernel, kinds, constants, pointers),
        target=GPUTarget("cuda", architecture, 32),
        options={"enable_fp_fusion": False, "num_warps": tile.warps, "maxnreg": gpu._REGISTERS},
    )

def copied(text):
    return set(re.findall(r"cp\\.async\\.\\S+ .*(0x\\w+);", text))

for architecture, tile in zip((80, 90), gpu._TILES):
    for a_along, b_along in ((True, True), (True, False), (False, False)):
        made = compiled(architecture, tile, a_along, b_along, True)
        text = made.asm["ptx"]
        # A thread takes one multiply-add for each of its results and each place of k.
        results = tile.side**2 // (32 * tile.warps)
        assert len(re.findall(r"fma\\.rn\\.f32", text)) == results * gpu._STEP
        assert not re.search(r"mma|\\.ftz|fma\\.rz", text)
        assert copied(text) == {"0x10"}
        assert made.metadata.shared * tile.resident <= 227 * 1024
    assert copied(compiled(architecture, tile, True, True, False).asm["ptx"]) == {"0x4"}
print("compiled")
"""


@pytest.mark.parametrize("source", ["HOPPER", "COPIED"])
def test_kernels_in_gluon_compile_to_what_they_are_written_for(source):
    # In a process of its own: what Triton 3.9 leaks of Gluon it names at the end.
    pytest.importorskip("triton.experimental.gluon")
    made = subprocess.run(
        [sys.executable, "-c", globals()[source]], capture_output=True, text=True, check=False
    )
    assert made.stdout.strip() == "compiled", made.stderr
