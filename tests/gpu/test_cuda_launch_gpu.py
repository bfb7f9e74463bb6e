# SPDX-License-Identifier: Apache-2.0
"""Eager CUDA kernels launched from C++: which calls are, and that nothing else changes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
import torch
from torch.nn import functional as F

from pytest_udftorch.swap.cuda import direct
from pytest_udftorch.swap.session.session import patched

pytest.importorskip("triton")

pytestmark = [
    pytest.mark.gpu,
    # What torch imports with its compiler.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture(scope="module")
def fresh():
    """Whether nothing was launched from C++ before: so no kind of a call is known."""
    torch.cuda.init()
    found = direct.load()
    return found is not None and not found.launches()


@pytest.fixture
def cpp():
    """The launcher. The first call of a kind in a process goes through Python."""
    torch.cuda.init()
    found = direct.load()
    assert found is not None, "compile it: udftorch doctor says why it is missing"
    with patched("corem"):
        yield found


def launches(cpp, call):
    """Call; return the result, and how many kernels C++ launched for it."""
    before = cpp.launches()
    result = call()
    return result, cpp.launches() - before


def bits(x):
    return x.view(torch.int32 if x.dtype == torch.float32 else torch.int16)


def same(a, b):
    return a.stride() == b.stride() and a.dtype == b.dtype and torch.equal(bits(a), bits(b))


def numbers(*shape, dtype=torch.float32):
    generator = torch.Generator("cuda").manual_seed(1)
    return torch.randn(*shape, generator=generator, device="cuda").to(dtype)


aten = torch.ops.aten
CALLS = {
    "exp": torch.exp,
    "log": lambda x: torch.log(x.abs()),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "mish": F.mish,
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "elu": lambda x: F.elu(x, 0.7),
    "elu of ones": F.elu,
    "softplus": lambda x: F.softplus(x, 1.3, 5.0),
    "logsigmoid": F.logsigmoid,
    "atan2": lambda x: torch.atan2(x, x * 0.5),
    "pow": lambda x: torch.pow(x.abs(), x),
    "softmax": lambda x: torch.softmax(x, -1),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "softmax of columns": lambda x: torch.softmax(x, 0),
    "exp out": lambda x: torch.exp(x, out=torch.empty_like(x)),
    "exp in place": lambda x: x.clone().exp_(),
    "silu backward": lambda x: aten.silu_backward(x, x * 2),
    "gelu backward": lambda x: aten.gelu_backward(x, x * 2, approximate="tanh"),
    "elu backward": lambda x: aten.elu_backward(x, 0.7, 1, 1, False, x * 2),
    "elu backward of result": lambda x: aten.elu_backward(x, 0.7, 1, 1, True, x * 2),
    "softplus backward": lambda x: aten.softplus_backward(x, x * 2, 1, 20),
    "log_softmax backward": lambda x: aten._log_softmax_backward_data(x, x * 2, 1, x.dtype),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CALLS)
def test_the_second_call_of_a_kind_is_launched_from_cpp_with_the_same_bits(fresh, cpp, name, dtype):
    x = numbers(33, 47, dtype=dtype)
    first, early = launches(cpp, lambda: CALLS[name](x))
    second, late = launches(cpp, lambda: CALLS[name](x))
    assert (early, late) == (0 if fresh else early, 1)  # else another file may have called it
    assert same(first, second)
    other = numbers(20, 40, dtype=dtype) + 0.25  # the kind is the same, except for softmax's
    after, _ = launches(cpp, lambda: CALLS[name](other))
    again, count = launches(cpp, lambda: CALLS[name](other))
    assert count == 1
    assert same(after, again)


def test_scalars_tell_kinds_apart(cpp):
    x = numbers(1000)
    for alpha in (0.5, 1.0, 2.0):
        expected = F.elu(x.cpu(), alpha)
        for _ in range(2):
            assert torch.equal(F.elu(x, alpha).cpu(), expected)


@pytest.mark.parametrize("n", [1, 3, 16, 17, 31, 32, 33, 64, 1000, 1008, 1024, 1025, 40000])
def test_rows_of_every_length(cpp, n):
    for rows in (1, 5, 300):
        x = numbers(rows, n)
        for _ in range(2):
            expected = torch.softmax(x.double(), -1)
            torch.testing.assert_close(
                torch.softmax(x, -1).double(), expected, rtol=2e-6, atol=1e-9
            )
            torch.testing.assert_close(
                torch.log_softmax(x, -1).double(), expected.log(), rtol=1e-5, atol=1e-5
            )


def test_sizes_on_both_sides_of_the_classes(cpp):
    for n in (1, 511, 512, 513, (1 << 18) - 1, 1 << 18, (1 << 18) + 1, 1 << 20):
        x = numbers(n)
        one = torch.exp(x)
        assert same(one, torch.exp(x))
        assert torch.equal(one.cpu(), torch.exp(x.cpu()))


def test_dense_layouts_keep_their_strides(cpp):
    x = numbers(2, 3, 4, 5)
    for y in (x.contiguous(memory_format=torch.channels_last), x.permute(3, 1, 0, 2)):
        expected = torch.exp(y)
        got, count = launches(cpp, lambda y=y: torch.exp(y))
        assert count == 1
        assert same(got, expected)
        assert torch.equal(got.cpu(), torch.exp(y.cpu()))


def test_what_cpp_does_not_take_goes_through_python_and_is_right(cpp):
    x = numbers(64, 64)
    torch.exp(x), torch.exp(x), torch.atan2(x, x), torch.atan2(x, x), torch.softmax(x, 1)
    cases = {
        "gaps": lambda d: torch.exp(x.to(d)[:, ::2]),
        "expanded": lambda d: torch.exp(x.to(d)[:1].expand(64, 64)),
        "broadcast": lambda d: torch.atan2(x.to(d), x.to(d)[0]),
        "mixed dtypes": lambda d: torch.atan2(x.to(d), x.to(d).half()),
        "integers": lambda d: torch.exp(torch.arange(9, device=d)),
        "out of another dtype": lambda d: torch.exp(
            x.to(d), out=torch.empty(64, 64, dtype=torch.float64, device=d)
        ),
        "out that is the input": lambda d: (lambda y: torch.exp(y, out=y))(x.to(d).clone()),
        "empty": lambda d: torch.exp(x.to(d)[:0]),
        "float64": lambda d: torch.exp(x.to(d).double()),
    }
    for name, call in cases.items():
        got, count = launches(cpp, lambda call=call: call("cuda"))
        assert count == 0, name
        rtol = 1e-12 if got.dtype == torch.float64 and name == "float64" else 0
        torch.testing.assert_close(got.cpu(), call("cpu"), rtol=rtol, atol=0, msg=name)


def test_errors_are_torch_s(cpp):
    x = numbers(8, 8)
    torch.exp(x), torch.softmax(x, 1)
    with pytest.raises(IndexError, match="Dimension out of range"):
        torch.softmax(x, 2)
    with pytest.raises(RuntimeError, match="must match the size"):
        torch.atan2(x, x[:, :3])
    with pytest.raises(RuntimeError, match="approximate argument must be"):
        F.gelu(x, approximate="other")


def test_autograd_autocast_and_functorch_work_above(cpp):
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.SiLU()).cuda()
    x = numbers(4, 16)
    for _ in range(2):
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.softmax(model(x), -1).log().sum()
        loss.backward()
    assert loss.dtype == torch.float32
    y = numbers(5, 7)
    for _ in range(2):
        found = torch.vmap(torch.func.grad(lambda r: F.silu(r).sum()))(y)
    leaf = y.clone().requires_grad_()
    F.silu(leaf).sum().backward()
    torch.testing.assert_close(found, leaf.grad)  # functorch composes the gradient otherwise
    with torch.inference_mode():
        assert torch.exp(y).is_inference()


def test_a_graph_is_captured_and_replayed(cpp):
    x = numbers(1000)
    y = torch.zeros_like(x)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            y.copy_(torch.softmax(torch.exp(x), 0))
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    before = cpp.launches()
    with torch.cuda.graph(graph):
        y.copy_(torch.softmax(torch.exp(x), 0))
    assert cpp.launches() - before == 2
    x.copy_(numbers(1000) * 0.5)
    y.zero_()
    graph.replay()
    assert same(y, torch.softmax(torch.exp(x), 0))


def test_the_kernel_runs_on_the_current_stream(cpp):
    x = numbers(1 << 20)
    expected = torch.exp(x)
    torch.exp(x)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        late = torch.zeros_like(x)
        torch.cuda._sleep(50_000_000)
        late.copy_(x)
        got = torch.exp(late)  # must wait for the copy
    side.synchronize()
    assert same(got, expected)


def test_threads_that_never_called_cuda(cpp):
    x = numbers(5000)
    expected = torch.exp(x)
    found = []

    def work():
        found.extend(torch.exp(x) for _ in range(50))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 200
    assert all(same(y, expected) for y in found)


def test_a_session_inside_uses_its_own_functions(cpp):
    x = numbers(4096)
    corem = torch.exp(x)
    torch.exp(x)
    with patched("canary"):
        first, second = torch.exp(x), torch.exp(x)
    assert same(first, second)
    assert not same(first, corem)
    assert same(torch.exp(x), corem)
    with patched("std", functions=("exp",)):
        before = cpp.launches()
        stock = torch.exp(x)
        torch.exp(x)
        assert cpp.launches() == before
    assert not same(stock, corem)
    assert same(torch.exp(x), corem)


def test_a_profile_counts_what_cpp_launches():
    torch.cuda.init()
    cpp = direct.load()
    assert cpp is not None
    x = numbers(1000)

    class Two(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = torch.nn.SiLU(), torch.nn.SiLU()

        def forward(self, x):
            return self.other(self.one(x))

    model = Two()
    with patched("corem", profile=True) as session:
        before = cpp.launches()
        for _ in range(5):
            model(x)
        assert cpp.launches() - before == 8  # the first of each layer publishes
    rows = {row.key["module"]: row for row in session.profile.rows("device", "module")}
    assert sorted(rows) == ["Two.one", "Two.other"]
    assert [row.calls for row in rows.values()] == [5, 5]
    assert [row.elements for row in rows.values()] == [5000, 5000]


def test_python_launches_where_it_is_asked_to(tmp_path):
    import subprocess
    import sys

    code = (
        "import torch, pytest_udftorch\n"
        "from pytest_udftorch.errors import CompilerNotFoundError\n"
        "x = torch.ones(10, device='cuda')\n"
        "with pytest_udftorch.patched('corem'):\n"
        "    torch.exp(x); print(torch.exp(x)[0].item())\n"
        "from pytest_udftorch.swap.cuda import direct\n"
        "print(direct.loaded())\n"
    )
    import os

    out = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, direct.VARIABLE: "python"},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert out.split() == ["2.7182817459106445", "None"]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_other_devices_than_the_current_one(cpp):
    x = numbers(1000).to("cuda:1")
    for _ in range(2):
        y = torch.exp(x)
    assert y.device == x.device
    assert same(y.to("cuda:0"), torch.exp(x.to("cuda:0")))


def test_a_machine_without_a_c_compiler_is_told_what_triton_needs(tmp_path):
    code = (
        "import torch, pytest_udftorch\n"
        "from pytest_udftorch.errors import CompilerNotFoundError\n"
        "x = torch.ones(8, device='cuda')\n"
        "stock = torch.exp(x)\n"
        "try:\n"
        "    with pytest_udftorch.patched('corem'):\n"
        "        torch.exp(x)\n"
        "except CompilerNotFoundError as error:\n"
        "    print(error)\n"
        "assert torch.equal(torch.exp(x), stock)\n"
    )
    hidden = {"CC": "no-such-compiler", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **hidden}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "no-such-compiler" in done.stdout
    assert "apt-get install gcc" in done.stdout
