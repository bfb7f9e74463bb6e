# SPDX-License-Identifier: Apache-2.0
"""Overrides of CUDA operators, as far as they can be seen without a GPU."""

from __future__ import annotations

import importlib
import inspect
import re

import pytest
import torch
from parameters import mostly_slow

from pytest_udftorch.swap.cuda import launcher
from pytest_udftorch.swap.cuda.launcher import Launcher
from pytest_udftorch.swap.cuda.operators import CudaOperators, Registration, kernels
from pytest_udftorch.swap.operators.table import OPERATORS, overloads
from pytest_udftorch.swap.overrides import dispatcher
from pytest_udftorch.swap.overrides.active import Active
from pytest_udftorch.swap.overrides.dispatcher import Role, Spec
from pytest_udftorch.swap.overrides.python_override import PythonOverride
from pytest_udftorch.swap.overrides.switchboard import switchboard
from pytest_udftorch.swap.overrides.undo import Undo

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

pytestmark = pytest.mark.skipif(
    not torch._C._dispatch_has_kernel_for_dispatch_key("aten::exp", "CUDA"),
    reason="torch is a CPU build",
)


class Chosen(Active):
    """Functions without a build."""

    @property
    def functions(self):
        return frozenset(self.id.split())


def kernel(name: str) -> str:
    return switchboard.called(f"aten::{name}", "CUDA")


def test_operators_are_overridden_and_given_back():
    names = overloads(frozenset(("exp", "expm1", "log", "pow", "erf")))
    for name in ("exp", "exp_", "exp.out", "_softmax", "elu_backward", "_foreach_exp_", "silu"):
        assert name in names
    assert "sin" not in names
    before = {name: kernel(name) for name in (*names, "sin")}
    assert set(before.values()) == {"stock"}
    Registration(Chosen("exp expm1 log pow erf")).register()
    try:
        for name in names:
            assert kernel(name) != before[name], name
        assert kernel("sin") == before["sin"]
    finally:
        dispatcher.overrides.serve("cuda", None)
    assert {name: kernel(name) for name in before} == before


def test_an_operator_with_a_udf_of_its_own_is_left_to_it():
    spec = Spec("aten::exp", "aten::exp", "CUDA", Role.AS_IS, "aten::exp")
    mine = PythonOverride(spec, lambda x: x)
    stock = {name: kernel(name) for name in ("exp", "exp_")}
    dispatcher.overrides.push(mine, [mine])
    try:
        with_udf = kernel("exp")
        assert with_udf == "Python"
        Registration(Chosen("exp")).register()
        assert kernel("exp") == with_udf
        assert kernel("exp_") != stock["exp_"]
    finally:
        dispatcher.overrides.serve("cuda", None)
        dispatcher.overrides.remove(mine)
    assert {name: kernel(name) for name in stock} == stock


@pytest.mark.parametrize("functions", ["exp", "log", "log1p", "pow", "sin erf", "tanh atan2"])
def test_the_table_says_what_is_overridden(functions):
    chosen = frozenset(functions.split())
    made = kernels(Launcher(Chosen(functions)), chosen)
    assert sorted(made) == overloads(chosen)


def test_every_overload_that_is_overridden_exists_for_cuda():
    every = overloads(frozenset(f for op in OPERATORS for f in op.functions))
    assert len(every) > 120
    for name in every:
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CUDA"), name


def test_nothing_is_registered_before_cuda_is_used():
    if torch.cuda.is_initialized():
        pytest.skip("this process uses CUDA already")
    cuda_operators = CudaOperators()
    queue = torch.cuda._queued_calls
    queued = len(queue)
    stock = kernel("exp")
    undo = Undo()
    try:
        cuda_operators.change(torch.cuda, Chosen("exp"), undo)
        assert kernel("exp") == stock
        undo.run()
        undo.finish()
        cuda_operators.change(torch.cuda, Chosen("exp"), undo)
        (started,) = (call for call, _ in queue[queued:])
        started()
        assert kernel("exp") != stock
        undo.run()
        undo.finish()
        assert kernel("exp") == stock
        started()
        assert kernel("exp") == stock
        cuda_operators.change(torch.cuda, Chosen("exp"), undo)
        started()
        assert kernel("exp") != stock
    finally:
        cuda_operators.reset()
    assert kernel("exp") == stock


def test_a_session_without_float32_functions_overrides_nothing():
    stock = kernel("exp")
    undo = Undo()
    CudaOperators().change(torch.cuda, Chosen(""), undo)
    assert kernel("exp") == stock
    undo.run()


# Kernels, compiled for a GPU that need not be there ------------------------------------

SCALARS = {"a": "fp32", "b": "fp32", "c": "fp32"}

#: The parameter of each kernel that says where to count.
ROW = {"unary": "row", "binary": "row", "softmax_rows": "seen", "softmax_tiles": "seen"}


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "triton"))


def ptx(kernel, signature, constants, *, counts=False):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from pytest_udftorch.swap.cuda import kernels as cuda_kernels

    named = {k: getattr(cuda_kernels, v) for k, v in constants.items() if isinstance(v, str)}
    constants = {**constants, **named}
    function = getattr(cuda_kernels, kernel) if isinstance(kernel, str) else kernel
    if counts:
        signature = {**signature, ROW[kernel]: "*i64"}
    elif kernel in ROW:
        constants = {ROW[kernel]: None, **constants}
    source = ASTSource(
        function,
        {**signature, **dict.fromkeys(constants, "constexpr")},
        constexprs=constants,
        attrs={
            (i,): [["tt.divisibility", 16]]
            for i, kind in enumerate(signature.values())
            if kind.startswith("*")
        },
    )
    return triton.compile(
        source, target=GPUTarget("cuda", 90, 32), options={"enable_fp_fusion": False}
    ).asm["ptx"]


def approximations(text, kinds=(64,)):
    """Return approximate instructions, and those that flush denormals.

    Divisions and roots in fast paths start with one of these and go on from there.
    """
    found = re.findall(r"\S*(?:approx|\.ftz)\S*", text)
    starts = [f"{name}.approx.ftz.f{bits}" for name in ("rcp", "rsqrt") for bits in kinds]
    return [i for i in found if i not in starts]


def elementwise(formula, dtype="fp32", *, counts=False):
    two = formula.endswith(("backward", "_input", "_result", "backward_erf", "backward_tanh"))
    two |= formula in ("pow", "atan2", "hypot")
    names = ("x1", "x2", "y") if two else ("x", "y")
    return ptx(
        "binary" if two else "unary",
        {**{n: f"*{dtype}" for n in names}, "n": "i32", **SCALARS},
        {"F": formula, "BLOCK": 1024},
        counts=counts,
    )


@pytest.mark.parametrize(
    "formula",
    mostly_slow([
        "exp", "erf", "asin", "pow", "silu", "elu", "elu_of_ones", "gelu_tanh", "softplus",
        "softplus_of_one", "mish", "silu_backward", "gelu_backward_tanh", "mish_backward",
        "logsigmoid_backward", "special_log_ndtr",
    ], ["exp", "pow", "elu_of_ones", "gelu_backward_tanh"]),
)  # fmt: skip
def test_elementwise_kernels_hold_the_functions_exactly(formula):
    from pytest_udftorch import patched

    with patched("corem"):
        text = elementwise(formula)
    assert approximations(text, (32, 64)) == []
    assert "fma.rn.f64" in text
    # The functions are inside: what is called is their rare accurate path.
    assert "(retval0), __udf_" not in text
    # Without .rn, the assembler may fuse.
    assert not any(f"\t{op}.f{bits} " in text for op in ("mul", "add", "sub") for bits in (32, 64))
    fused = (
        "special_log_ndtr",
        "silu_backward",
        "gelu_tanh",
        "gelu_backward_tanh",
        "mish_backward",
    )
    # Of canary's functions no step is fused or approximate in float, as in corem's for GPUs.
    with patched("canary"):
        formula_alone = elementwise(formula)
    assert approximations(formula_alone) == []
    assert ("fma.rn.f32" in formula_alone) == (formula in fused)
    assert "ld.global.v4.b32" in text
    assert "st.global.v4.b32" in text


#: Kernels that are neither of elements nor of rows: their pointers, integers and constants.
OTHERS = {
    ("cells", "lstm_cell"): ("x h of_x of_h c hy cy kept", "size n", {}, 2),
    ("cells", "gru_cell"): ("x h state y kept", "size n", {"of_x": None, "of_h": None}, 2),
    ("philox", "normal_variates"): ("y", "n pairs seed offset threads", {"LOG": False}, 4),
}


@pytest.mark.parametrize(("home", "name"), OTHERS)
def test_kernels_of_cells_and_variates_hold_the_functions_exactly(home, name):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from pytest_udftorch import patched

    pointers, integers, constants, warps = OTHERS[home, name]
    constants = {"BLOCK": 256, "row": None, **constants}
    kinds = {**dict.fromkeys(pointers.split(), "*fp32"), **dict.fromkeys(integers.split(), "i32"),
             **dict.fromkeys("ab", "fp32")}  # fmt: skip
    with patched("corem"):
        module = importlib.import_module(f"pytest_udftorch.swap.cuda.{home}")
        function = getattr(module, name)
        signature = {n: kinds.get(n, "constexpr") for n in function.arg_names}
        text = triton.compile(
            ASTSource(function, signature, constexprs=constants),
            target=GPUTarget("cuda", 90, 32),
            options={"enable_fp_fusion": False, "num_warps": warps},
        ).asm["ptx"]
    assert approximations(text) == []
    assert "fma.rn.f64" in text
    assert ("sqrt.rn.f32" in text) == (home == "philox")


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_short_dtypes_are_computed_in_float32(dtype):
    from pytest_udftorch import patched

    with patched("corem"):
        text = elementwise("exp", dtype)
    assert "fma.rn.f64" in text
    assert {"bf16": "cvt.rn.bf16", "fp16": "cvt.rn.f16"}[dtype] in text


@pytest.mark.parametrize("log", [False, True])
def test_softmax_kernels(log):
    from pytest_udftorch import patched

    rows = {"x": "*bf16", "y": "*fp32", "rows": "i32", "n": "i32"}
    tiles = {"x": "*fp32", "y": "*fp32", "n": "i32", "inner": "i32", "blocks": "i32"}
    with patched("corem"):
        texts = (
            ptx("softmax_rows", rows, {"LOG": log, "BLOCK": 256, "ROWS": 2}),
            ptx("softmax_tiles", tiles, {"LOG": log, "TILE": 32, "COLUMNS": 16}),
        )
    for text in texts:
        assert approximations(text) == []
        assert "fma.rn.f64" in text
        assert ("div.rn.f32" in text) != log


# Kernels that count ---------------------------------------------------------------------


@triton.jit(do_not_specialize=["n"])
def plain(x, y, n, a, b, c, F: tl.constexpr, BLOCK: tl.constexpr):
    """What ``unary`` is without any of its code for counting."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    x += start
    y += start
    at = tl.arange(0, BLOCK)
    if n - start >= BLOCK:
        tl.store(y + at, F(tl.load(x + at).to(tl.float32)).to(y.dtype.element_ty))
    else:
        inside = at < n - start
        value = F(tl.load(x + at, inside, other=0.0).to(tl.float32))
        tl.store(y + at, value.to(y.dtype.element_ty), inside)


def plain_function(name):
    from pytest_udftorch.swap.cuda import kernels as cuda_kernels

    # Some functions branch after two elements, the others after four.
    two = f"_{name}_by_two" in cuda_kernels._OPERATIONS
    mapped, pack = (f"_{name}_by_two", 2) if two else (f"_{name}", 4)
    inner = inspect.getclosurevars(cuda_kernels._OPERATIONS[mapped].fn).nonlocals["inner"]
    pack = tl.constexpr(pack)

    def whole(x):
        return tl.map_elementwise(inner, x, pack=pack)[0]

    return triton.jit(whole)


def code(text):
    """PTX without comments, places in sources, and the kernel's name."""
    text = re.sub(r"//.*", "", text[: text.index(".section")])
    text = re.sub(r"^\s*(\.loc|\.file|\$L__(tmp|func)).*$", "", text, flags=re.M)
    text = re.sub(r"\b(plain|unary)\b|\b(plain|unary)_param", "kernel", text)
    return [line.rstrip() for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize(
    "formula", ["exp", *(pytest.param(f, marks=pytest.mark.slow) for f in ("exp2", "log"))]
)
def test_a_kernel_that_does_not_count_is_as_if_nothing_knew_of_counting(
    formula, tmp_path, monkeypatch
):
    from pytest_udftorch import patched

    # Triton's cache tells kernels apart by their source, which is the same for all functions here.
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    signature = {"x": "*fp32", "y": "*fp32", "n": "i32", **SCALARS}
    with patched("corem"):
        without = code(ptx(plain, signature, {"F": plain_function(formula), "BLOCK": 1024}))
        off = code(elementwise(formula))
        on = code(elementwise(formula, counts=True))
    assert off == without
    assert on != without  # what is compared can differ


def test_a_kernel_that_counts_takes_one_more_pointer_and_adds_to_it():
    from pytest_udftorch import patched

    with patched("corem"):
        off, on = elementwise("silu"), elementwise("silu", counts=True)
        tiles = ptx(
            "softmax_tiles",
            {"x": "*fp32", "y": "*fp32", "n": "i32", "inner": "i32", "blocks": "i32"},
            {"LOG": True, "TILE": 32, "COLUMNS": 16},
            counts=True,
        )
    assert not re.search(r"\b(atom|red)\.", off)
    assert "globaltimer" not in off
    for text in (on, tiles):
        assert re.search(r"(atom|red)\S*global\S*add\S*64", text)
        assert re.search(r"(atom|red)\S*global\S*min\S*s64", text)
        assert "globaltimer" in text
        assert approximations(text) == []
    # Subnormal numbers are told from zeros.
    assert "setp" in on
    assert ".ftz" not in on.replace("rcp.approx.ftz.f64", "")
    pointers = [len(re.findall(r"\.param \.u64 \.ptr", t)) for t in (off, on)]
    assert pointers[1] == pointers[0] + 1


def test_every_kernel_is_where_the_launcher_looks_for_it():
    for kernel in ("softmax_rows", *launcher._HOMES):
        assert callable(getattr(launcher._home(kernel), kernel)), kernel
