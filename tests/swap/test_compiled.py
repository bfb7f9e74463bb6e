# SPDX-License-Identifier: Apache-2.0
"""torch.compile and AOTInductor under a session: the UDFs' bits inside, nothing mixed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch._inductor.cpu_vec_isa import pick_vec_isa
from torch.nn import functional as F

import pytest_udftorch
from pytest_udftorch.base import compat
from pytest_udftorch.errors import SessionBusyError, SessionStateError
from pytest_udftorch.swap.compiled import dynamo
from pytest_udftorch.swap.compiled.follower import STOCK, follower
from pytest_udftorch.swap.compiled.inductor import METADATA
from pytest_udftorch.swap.cpu.operators import cpu_operators
from pytest_udftorch.swap.library.description import find_library
from pytest_udftorch.swap.session.session import patched
from pytest_udftorch.swap.toolchain.bitcode import targets

UNARY = tuple(
    name for name in find_library("corem").function_names if name not in ("pow", "atan2", "hypot")
)
DOMAIN = {"acosh": (1.0, 90.0), "asin": (-1, 1), "acos": (-1, 1), "atanh": (-0.99, 0.99)}
POSITIVE = ("log", "log2", "log10", "log1p")


@pytest.fixture(autouse=True)
def _caches(tmp_path_factory, monkeypatch):
    """Inductor's caches of one folder for the module; what was compiled goes away after."""
    folder = tmp_path_factory.getbasetemp() / "inductor"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def inputs(function: str, n: int) -> torch.Tensor:
    low, high = DOMAIN.get(function, (0.01, 60.0) if function in POSITIVE else (-12.0, 12.0))
    return torch.linspace(low, high, n)


def everything(*rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(getattr(torch, f)(x) for f, x in zip(UNARY, rows, strict=True))


def differing(got, want) -> dict[str, int]:
    return {
        name: n
        for name, g, w in zip(UNARY, got, want, strict=True)
        if (n := int((g.view(torch.int32) != w.view(torch.int32)).sum()))
    }


def test_compiled_functions_give_the_udfs_bits_at_every_length():
    compiled = torch.compile(everything, dynamic=True)
    rows = [inputs(f, 1000) for f in UNARY]
    with patched("corem"):
        got, want = compiled(*rows), everything(*rows)
        assert differing(got, want) == {}
        for n in range(2, 66):
            some = [row[7 : 7 + n] for row in rows]
            assert differing(compiled(*some), [w[7 : 7 + n] for w in want]) == {}
    # Outside, the same object is compiled anew, and as it was before: the stock bits, which
    # are other ones for functions that the stock library rounds wrongly.
    stock = compiled(*rows)
    assert len(differing(stock, want)) > 5
    with patched("corem"):
        assert differing(compiled(*rows), want) == {}


def test_each_thread_keeps_a_partial_sum_of_its_own():
    """torch's libgomp and the libomp of clang's code both number threads."""
    x = inputs("exp", 400_000)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with patched("corem"), torch.no_grad():
            compiled = torch.compile(lambda x: x.exp().sum(), dynamic=False)
            got, want = compiled(x), x.double().exp().sum()
    finally:
        torch.set_num_threads(threads)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=0)


def softmax(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(2 * x + 1, -1) * torch.exp(y)


def test_a_library_that_is_wrong_on_purpose_is_inside_and_gone_again():
    compiled = torch.compile(softmax)
    x, y = torch.zeros(3, 37), torch.zeros(3, 37)
    before = compiled(x, y)
    with patched("canary"):
        wrong = compiled(x, y)
    assert not torch.equal(wrong, before)
    assert torch.equal(compiled(x, y), before)


def test_sixteen_bit_types_go_through_the_float32_function():
    compiled = torch.compile(torch.exp, dynamic=True)
    for dtype in (torch.bfloat16, torch.float16):
        x = torch.linspace(-5, 5, 77).to(dtype)
        with patched("corem"):
            want = torch.exp(x.float()).to(dtype)
            assert torch.equal(compiled(x), want)


def test_composed_operators_have_the_bits_of_the_eager_kernels():
    def composed(x):
        smooth = F.softplus(x, 1.3, 5.0), F.softplus(x)
        return F.gelu(x, approximate="tanh"), *smooth, F.celu(x, 0.7)

    compiled = torch.compile(composed, dynamic=True)
    x = torch.cat([torch.randn(4099) * 4, torch.tensor([0.0, -0.0, torch.inf, 1e-42])])
    stock, wanted = compiled(x)[0], composed(x)[0]
    assert not torch.equal(stock, wanted)
    with patched("corem"):
        for dtype in (torch.float32, torch.bfloat16):
            y = x.to(dtype)
            for got, want in zip(compiled(y), composed(y), strict=True):
                assert got.dtype == dtype
                assert torch.equal(got.view(torch.int16), want.view(torch.int16))
        torch.testing.assert_close(compiled(x.double()), composed(x.double()))


@pytest.mark.slow
def test_a_frozen_model_computes_its_activation_by_the_session():
    """Inductor gives the product of a frozen model to oneDNN, with the activation behind it."""
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Tanh()).eval()
    x = torch.linspace(-3, 3, 5 * 3 * 32 * 32).view(5, 3, 32, 32)
    # Exact sums: oneDNN may add in another order where channels come last.
    x = x.mul_(16).round_().div_(16)
    for p in model.parameters():
        p.detach().mul_(8).round_().div_(8)

    def both():
        torch._dynamo.reset()
        with torch.no_grad(), torch._inductor.config.patch(freezing=True):
            return model(x), torch.compile(model)(x)

    with patched("canary"):
        eager, frozen = both()
        assert torch.equal(frozen, eager)
    eager, frozen = both()
    assert not torch.equal(frozen, eager)  # oneDNN's tanh, which is what the session left out


@pytest.mark.slow
def test_the_gradient_of_a_composed_operator_is_still_inductors():
    x = torch.linspace(-4, 4, 77, requires_grad=True)
    with patched("corem"):
        got = torch.compile(lambda x: F.gelu(x, approximate="tanh"))(x)
        want = F.gelu(x, approximate="tanh")
    assert torch.equal(got, want)
    grads = [torch.autograd.grad(y.sum(), x)[0] for y in (got, want)]
    torch.testing.assert_close(*grads)


@pytest.mark.slow
def test_only_the_chosen_functions_are_replaced():
    def both(x):
        return torch.exp(x), torch.sin(x)

    compiled = torch.compile(both)
    x = torch.linspace(-12, 12, 4099)
    stock = compiled(x)
    with patched("corem", functions=("exp",)):
        got = compiled(x)
        assert torch.equal(got[0], torch.exp(x))
    assert torch.equal(got[1], stock[1])
    assert not torch.equal(got[0], stock[0])


@pytest.mark.slow
def test_nested_sessions_compile_with_both_libraries():
    def both(x):
        return torch.exp(x), torch.cos(x)

    compiled = torch.compile(both)
    x = torch.zeros(33)
    with patched("corem"), patched("canary", functions=("cos",)):
        exp, cos = compiled(x)
    assert torch.equal(exp, torch.ones(33))
    assert not torch.equal(cos, torch.ones(33))


def test_an_aot_package_runs_only_under_its_own_functions(tmp_path):
    x, y = torch.zeros(4, 16), torch.ones(4, 16)

    class Model(torch.nn.Module):
        def forward(self, x, y):
            return softmax(x, y)

    program = torch.export.export(Model(), (x, y))
    with patched("corem"):
        want = softmax(x, y)
        path = torch._inductor.aoti_compile_and_package(
            program, package_path=str(tmp_path / "corem.pt2")
        )
        model = torch._inductor.aoti_load_package(path)
        assert model.get_metadata()[METADATA] == follower.active.id
        assert torch.allclose(model(x, y), want, rtol=1e-6)
    with pytest.raises(SessionStateError, match=r"\(corem .*inside a session of the library"):
        model(x, y)
    with (
        patched("canary"),
        pytest.raises(SessionStateError, match=r"\(canary .*compile it again"),
    ):
        model(x, y)
    with patched("corem"):
        model(x, y)


def test_a_session_is_refused_while_another_thread_compiles():
    from torch._dynamo.convert_frame import compile_lock

    held, done = threading.Event(), threading.Event()

    def compiling():
        with compile_lock:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=compiling)
    thread.start()
    try:
        assert held.wait(60)
        x = torch.linspace(-3, 3, 50)
        before = torch.exp(x)
        with pytest.raises(SessionBusyError, match="Open the session before"):
            patched("canary").__enter__()
        assert torch.equal(torch.exp(x), before)
        assert follower.active.id == STOCK
    finally:
        done.set()
        thread.join()


def test_a_session_within_a_compile_is_refused():
    errors = []

    def backend(graph, inputs):
        with pytest.raises(SessionBusyError, match="in this thread") as caught:
            patched("canary").__enter__()
        errors.append(caught.value)
        return graph.forward

    x = torch.linspace(-3, 3, 50)
    before = torch.exp(x)
    assert torch.equal(torch.compile(lambda x: torch.exp(x), backend=backend)(x), before)
    assert len(errors) == 1
    assert torch.equal(torch.exp(x), before)
    assert follower.active.id == STOCK
    with patched("canary"):
        assert not torch.equal(torch.exp(x), before)


def test_the_config_is_as_before_after_an_exception():
    import torch._inductor.config as config
    from torch._inductor.codegen.cpp import CppVecOverrides
    from torch._inductor.decomposition import decompositions
    from torch._inductor.lowering import lowerings

    def state():
        return (
            config.cpp.cxx,
            config.aot_inductor.metadata,
            CppVecOverrides.__dict__["asinh"],
            config.eager_numerics.division_rounding,
            lowerings.get(torch.ops.aten.gelu.default),
            decompositions[torch.ops.aten.gelu.default],
        )

    def fail():
        with patched("corem"):
            inside.append(state())
            raise ZeroDivisionError

    inside, before = [], state()
    with pytest.raises(ZeroDivisionError):
        fail()
    assert all(a != b for a, b in zip(inside[0], before, strict=True))
    assert state() == before


LATE = """
import sys
import pytest_udftorch
with pytest_udftorch.patched("canary", functions=("exp",)):
    import torch
    assert "torch._inductor.config" not in sys.modules, "nothing is imported ahead of need"
    x = torch.zeros(40)
    got = torch.compile(torch.exp)(x)
    assert torch.equal(got, torch.exp(x))
    assert not torch.equal(got, torch.ones(40))
import torch._inductor.config as config
assert "udf" not in str(config.cpp.cxx)
"""


@pytest.mark.slow
def test_a_compiler_that_is_imported_inside_the_session_is_reached_too():
    # Inductor would try every vector ISA anew, by compiling and loading a library for each.
    tried = {"TORCHINDUCTOR_VEC_ISA_OK": str(int(bool(pick_vec_isa())))}
    run = subprocess.run(
        [sys.executable, "-c", LATE], capture_output=True, text=True, check=False,
        env={**os.environ, **tried, "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr


def test_a_library_changed_under_an_open_session_is_an_error_of_the_compiler(tmp_path):
    from pytest_udftorch.swap.toolchain.bitcode import compiler_for, make_bitcode
    from pytest_udftorch.swap.toolchain.selection import Part

    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "udf.toml").write_text(
        '[library]\nname = "mine"\nversion = "1"\n'
        '[functions.exp.float32]\nsource = "e.c"\nscalar = "my_expf"\n'
    )
    (folder / "e.c").write_text("float my_expf(float x) { return 1 + x; }\n")
    build = pytest_udftorch.build_library(folder)
    compiler = compiler_for((Part(build, (("exp", "float32"),)),))
    (folder / "e.c").write_text("float my_expf(float x) { return 2 + x; }\n")
    with pytest.raises(pytest_udftorch.UdfError, match="was changed while a session"):
        make_bitcode(compiler.parent)


@pytest.mark.parametrize("name", ["udf.bc", "map.json"])
def test_damaged_bitcode_is_made_again_by_the_compiler(tmp_path, name):
    from pytest_udftorch.swap.toolchain.bitcode import compiler_for
    from pytest_udftorch.swap.toolchain.selection import Part

    (tmp_path / "udf.toml").write_text(
        '[library]\nname = "mine"\nversion = "1"\n'
        '[functions.exp.float32]\nsource = "e.c"\nscalar = "my_expf"\n'
    )
    (tmp_path / "e.c").write_text("float my_expf(float x) { return 1 + x; }\n")
    build = pytest_udftorch.build_library(tmp_path)
    compiler = compiler_for((Part(build, (("exp", "float32"),)),))
    (tmp_path / "x.cpp").write_text("#include <cmath>\nfloat f(float x) { return std::exp(x); }\n")
    command = [compiler, "-O1", "-c", tmp_path / "x.cpp", "-o", tmp_path / "x.o"]
    subprocess.run(command, check=True)
    made = (tmp_path / "x.o").read_bytes()
    damaged = compiler.parent / "bitcode" / name
    content = damaged.read_bytes()
    damaged.write_bytes(content[: len(content) // 2])
    subprocess.run(command, check=True)
    assert damaged.read_bytes() == content
    assert (tmp_path / "x.o").read_bytes() == made


def test_a_library_of_the_same_content_elsewhere_has_a_compiler_of_its_own(tmp_path):
    from pytest_udftorch.swap.toolchain.bitcode import compiler_for
    from pytest_udftorch.swap.toolchain.selection import Part, selection_id

    parts = []
    for name in ("here", "there"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "udf.toml").write_text(
            '[library]\nname = "mine"\nversion = "1"\n'
            '[functions.exp.float32]\nsource = "e.c"\nscalar = "my_expf"\n'
        )
        (folder / "e.c").write_text("float my_expf(float x) { return 1 + x; }\n")
        build = pytest_udftorch.build_library(folder)
        parts.append((Part(build, (("exp", "float32"),)),))
    assert selection_id(parts[0]) == selection_id(parts[1])
    assert compiler_for(parts[0]) != compiler_for(parts[1])
    assert compiler_for(parts[0]) == compiler_for(parts[0])


def test_targets_name_libm_sleef_and_intrinsics():
    found = targets("exp", "float32", "avx512")
    assert found["expf"] == found["llvm.exp.f32"] == "__udf_expf"
    assert found["Sleef_expf16_u10"] == found["llvm.exp.v16f32"] == "__udf_expf_v16"
    assert "vmsExp" not in found
    assert set(targets("erf", "float32", "baseline")) == {"erff"}


def test_compiled_code_counts_under_a_profiled_session():
    model = torch.nn.Sequential(torch.nn.ELU(), torch.nn.Tanh())
    x = torch.linspace(-4, 4, 64 * 16).reshape(64, 16)
    compiled = torch.compile(model)
    with patched("corem", profile=True) as session, torch.no_grad():
        compiled(x)  # warm-up compiles, and may try operators
        before = session.profile.to_pandas().groupby("function").elements.sum()
        for _ in range(3):
            compiled(x)
        after = session.profile.to_pandas().groupby("function").elements.sum()
    assert (after - before)["expm1"] == 3 * x.numel()
    assert (after - before)["tanh"] == 3 * x.numel()


def graphs_between(session):
    """The calls in each graph that Dynamo makes of a function with a break in its middle."""
    x, graphs = torch.linspace(0.1, 2, 64), []

    def backend(module, inputs):
        graphs.append([str(n.target) for n in module.graph.nodes if n.op.startswith("call")])
        return module.forward

    @torch._dynamo.disable(recursive=False)  # frames that it enters are compiled
    def between(x):
        return F.gelu(x[::2]) + x[::2] ** 2.5 + x.sum()

    with session:
        expected = between(x) + 1
        torch._dynamo.reset()
        assert torch.equal(torch.compile(lambda x: between(x) + 1, backend=backend)(x), expected)
    return graphs


def test_dynamo_leaves_the_kernels_of_a_session_alone(monkeypatch):
    """They are frames of Python that no user wrote, between the graphs of one."""
    rules = sys.modules["torch._dynamo.trace_rules"]
    before = list(rules.SKIP_DIRS)
    assert len(graphs_between(patched("corem"))) == 1
    assert before == rules.SKIP_DIRS  # given back
    assert len(graphs_between(patched("repro"))) == 1
    with patched("corem"):
        if triton := importlib.util.find_spec("triton"):  # it launches kernels
            launching = Path(triton.origin).parent / "compiler" / "compiler.py"
            assert rules.check_file(str(launching)).skipped
    monkeypatch.setattr(dynamo, "_paths", tuple)  # the negative control
    cpu_operators.forget()  # its kernels run without Python already
    with pytest.warns(UserWarning, match="does not know how to trace"):
        assert len(graphs_between(patched("corem"))) > 1


@pytest.mark.parametrize(("left_alone", "count"), [(True, 1), (False, 2)])
def test_dynamo_sees_nothing_of_what_is_left_alone(left_alone, count):
    """Neither the function nor what it calls becomes a graph, as a kernel of Triton would."""
    graphs = []

    def backend(module, inputs):
        graphs.append(module)
        return module.forward

    def inner(x):
        return x.sin() + 1

    def outer(x):
        return inner(x) * 2

    call = compat.uncompiled(outer) if left_alone else outer

    @torch._dynamo.disable(recursive=False)  # frames that it enters are compiled
    def between(x):
        return call(x)

    x = torch.linspace(0, 1, 8)
    found = torch.compile(lambda x: between(x) - 1, backend=backend)(x)
    assert torch.equal(found, outer(x) - 1)
    assert len(graphs) == count


def test_choices_of_functions_leave_few_files_behind():
    """Each choice has a compiler with an open file and a folder, while its session is open."""
    import itertools
    import os

    import torch._inductor.compile_fx  # noqa: F401

    from pytest_udftorch.swap.toolchain import bitcode, cache

    # No other test, which may run beside this one, chooses these.
    names = ("acosh", "asinh", "atanh", "erfc", "sinh")
    choices = [c for size in (2, 3) for c in itertools.combinations(names, size)]
    folders, before = [], len(os.listdir("/proc/self/fd"))
    for choice in choices:
        with patched("corem", choice):
            held = [f for f in cache._used if f.name.startswith("compiler-") and f.exists()]
            folders.append(held[-1])
    assert len(set(folders)) == len(choices)
    assert len(os.listdir("/proc/self/fd")) <= before + bitcode._MOST_LEFT + 4
    assert len(bitcode._left) <= bitcode._MOST_LEFT
    unused = [f for f in folders[: -bitcode._MOST_LEFT] if not (f / "bitcode").exists()]
    assert not any(f.exists() for f in unused)
    # A choice that comes back has its compiler again.
    with patched("corem", choices[0]):
        assert folders[0].exists()
