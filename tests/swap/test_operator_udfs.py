# SPDX-License-Identifier: Apache-2.0
"""UDFs at operator level: registered for a session, checked, profiled, and gone afterwards."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from pytest_udftorch import operator_udf, patched, stock
from pytest_udftorch.errors import (
    CompilerNotFoundError,
    LibraryError,
    OperatorError,
    ProfileError,
    SessionStateError,
    SourceError,
    SwapError,
    UnknownFunctionError,
)
from pytest_udftorch.swap.compiled.follower import STOCK, follower
from pytest_udftorch.swap.overrides import dispatcher, operator_udfs, schemas
from pytest_udftorch.swap.overrides.switchboard import switchboard
from pytest_udftorch.swap.records.profile import Profile
from pytest_udftorch.swap.session import session
from pytest_udftorch.swap.toolchain import job
from pytest_udftorch.watch.profile import report

X = torch.linspace(0.1, 5.0, 1001)

# One source for all tests: compiling against torch's headers takes a while.
SOURCE = """
#include <ATen/ATen.h>
#include <ATen/TensorIterator.h>
#include <ATen/native/cpu/Loops.h>

namespace mine {
at::Tensor &log_out(const at::Tensor &self, at::Tensor &out) {
  auto iter = at::TensorIterator::unary_float_op(out, self);
  AT_DISPATCH_FLOATING_TYPES(iter.common_dtype(), "mine", [&] {
    at::native::cpu_kernel(iter, [](scalar_t x) -> scalar_t { return x + 200; });
  });
  return out;
}
} // namespace mine

at::Tensor exp_plain(const at::Tensor &self) { return self + 100; }

at::Tensor &sin_out(const at::Tensor &self, at::Tensor &out) {
  udf::stock<sin_out>(self, out);
  return out.add_(300);
}

at::Tensor elu(const at::Tensor &self, const at::Scalar &alpha, const at::Scalar &scale,
               const at::Scalar &input_scale) {
  return self * alpha.toDouble() + 7;
}

at::Tensor &pow_out(const at::Tensor &self, const at::Tensor &other, at::Tensor &out) {
  return at::add_out(out, self, other);
}

at::Tensor recurses(const at::Tensor &self) { return at::cos(self); }
at::Tensor &recurses_out(const at::Tensor &self, at::Tensor &out) {
  return out.copy_(at::tan(self));
}
at::Tensor sum(const at::Tensor &self) { return self.sum(); }
at::Tensor fails(const at::Tensor &self) { TORCH_CHECK(false, "not today"); }
at::Tensor two_arguments(const at::Tensor &self, double other) { return self; }
at::Tensor by_value(at::Tensor self) { return self; }
"""
OPERATORS = {
    "aten::log": "mine::log_out",
    "aten::exp": "exp_plain",
    "aten::sin.out": "sin_out",
    "aten::elu": "elu",
    "aten::pow.Tensor_Tensor_out": "pow_out",
    "aten::cos": "recurses",
    "aten::tan": "recurses_out",
    "aten::neg": "sum",
    "aten::abs": "fails",
    "aten::tanh": "two_arguments",
    "aten::erf": "by_value",
}


def write_library(folder: Path, tables: str, **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    (folder / "udf.toml").write_text(f'[library]\nname = "{folder.name}"\nversion = "1"\n{tables}')
    return folder


@pytest.fixture(scope="module")
def cpp(tmp_path_factory):
    """A library in C++, log(x) = x + 200 in three overloads, and some that are wrong."""
    tables = "".join(
        f'[operators."{name}"]\nsource = "ops.cpp"\nfunction = "{function}"\n'
        for name, function in OPERATORS.items()
    )
    return write_library(tmp_path_factory.mktemp("made") / "cpp", tables, ops_cpp=SOURCE)


@operator_udf("aten::log")
def python_log(self, *, out):
    return torch.add(self, 300, out=out)


@pytest.fixture(autouse=True)
def _as_before():
    """Every test leaves the dispatcher, and so the bits, as it found them."""
    names = [n for n in (*OPERATORS, "aten::log_", "aten::log.out", "aten::gelu")]
    bits = [f(X).numpy().tobytes() for f in (torch.log, torch.exp, torch.sin, torch.cos)]
    yield
    assert dispatcher.overrides.registered() == []
    assert {switchboard.called(n, "CPU") for n in names} == {"stock"}
    assert bits == [f(X).numpy().tobytes() for f in (torch.log, torch.exp, torch.sin, torch.cos)]
    assert follower.active.id == STOCK


def log_forms(x: torch.Tensor) -> list[torch.Tensor]:
    """The results of all three overloads of log, and of out= on a tensor that has to grow."""
    out = torch.empty_like(x)
    return [torch.log(x), x.clone().log_(), torch.log(x, out=out), torch.log(x, out=x.new_empty(0))]


@pytest.mark.parametrize("kind", ["cpp", "python"])
def test_a_function_of_outs_type_stands_for_three_overloads(cpp, kind):
    library, shift = (cpp, 200) if kind == "cpp" else (python_log, 300)
    layouts = (X, X.reshape(7, 143).t(), X[::3], X[:0], X[0], X.double())
    strides = [[y.stride() for y in log_forms(x)] for x in layouts]
    with patched(library, functions=("aten::log",)) as s:
        assert s.operators == ("aten::log",)
        assert s.functions == ()
        assert s.reached == {
            "aten::log": {"aten::log CPU": 1, "aten::log_ CPU": 1, "aten::log.out CPU": 1}
        }
        for x, stock_strides in zip(layouts, strides, strict=True):
            found = log_forms(x)
            assert all(torch.equal(y, x + shift) for y in found)
            assert [y.stride() for y in found] == stock_strides
        # What torch does around a kernel stays torch's.
        assert torch.log(torch.arange(3)).dtype == torch.float32
        assert torch.equal(torch.log(torch.arange(3)), torch.arange(3) + float(shift))
        wide = torch.log(X, out=torch.empty(1001, dtype=torch.float64))
        assert torch.equal(wide, (X + shift).double())
        with pytest.raises(RuntimeError, match="can't be cast"):
            torch.log(X, out=torch.empty(1001, dtype=torch.int64))
        with pytest.raises(RuntimeError, match="can't be cast"):
            torch.arange(3).log_()


@pytest.mark.parametrize("kind", ["cpp", "python"])
def test_autograd_above_stays_torchs(cpp, kind):
    x = X.clone().requires_grad_()
    with patched(cpp if kind == "cpp" else python_log, functions=("aten::log",)):
        y = torch.log(x)
        assert torch.equal(y.detach(), X + (200 if kind == "cpp" else 300))
        y.sum().backward()
    assert torch.equal(x.grad, 1 / X)


def test_an_overload_is_an_operator_of_its_own(cpp):
    exp, sin = torch.exp(X), torch.sin(X)
    with patched(cpp, functions=("aten::exp", "aten::sin.out")) as s:
        assert list(s.reached) == ["aten::exp", "aten::sin.out"]
        assert torch.equal(torch.exp(X), X + 100)
        assert torch.equal(X.clone().exp_(), exp)
        assert torch.equal(torch.exp(X, out=torch.empty_like(X)), exp)
        assert torch.equal(torch.sin(X), sin)
        # udf::stock calls the kernel that is overridden.
        assert torch.equal(torch.sin(X, out=torch.empty_like(X)), sin + 300)


def test_arguments_that_are_no_tensors(cpp):
    with patched(cpp, functions=("aten::elu", "aten::pow.Tensor_Tensor_out")):
        assert torch.equal(nn.functional.elu(X, alpha=2.0), X * 2 + 7)
        assert torch.equal(torch.pow(X, X, out=torch.empty_like(X)), X + X)


def test_defaults_of_the_schema_reach_a_python_function():
    seen = []

    @operator_udf("aten::gelu")
    def gelu(self, *, approximate):
        seen.append(approximate)
        return self + 1

    with patched(gelu):
        assert torch.equal(nn.functional.gelu(X), X + 1)
        nn.functional.gelu(X, approximate="tanh")
    assert seen[-2:] == ["none", "tanh"]


def test_keywords_reach_a_function_of_outs_type():
    @operator_udf("aten::addcmul")
    def addcmul(self, tensor1, tensor2, *, value=1, out):
        return torch.mul(tensor1, value, out=out)

    x = torch.ones(3)
    with patched(addcmul):
        assert torch.equal(torch.addcmul(x, x, x, value=5), x * 5)
        assert torch.equal(torch.addcmul(x, x, x, value=5, out=torch.empty(3)), x * 5)
        assert torch.equal(x.clone().addcmul_(x, x, value=5), x * 5)
        assert torch.equal(torch.addcmul(x, x, x), x)


def test_numbers_in_place_of_tensors_promote_as_torchs_do():
    @operator_udf("aten::div.Tensor")
    def div(self, other):
        seen.append(other)
        return stock(self, other)

    seen = []
    whole, part = torch.arange(3), torch.tensor([1.0, 2.0])
    calls = [
        lambda: whole / 3, lambda: whole / 0.1, lambda: part.half() / 0.1, lambda: part / True,
        lambda: part[0] / 0.1, lambda: part / 0.1, lambda: part / 3j, lambda: whole[0] / 2,
    ]  # fmt: skip
    want = [call() for call in calls]
    with patched(div):
        got = [call() for call in calls]
    assert [y.dtype for y in got] == [y.dtype for y in want]
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert len(seen) == len(calls) + 1  # and the canary's
    assert all(isinstance(other, torch.Tensor) for other in seen)


def test_in_place_and_out_by_name_return_what_torch_does():
    @operator_udf("aten::log_")
    def in_place(self):
        self.fill_(7)

    @operator_udf("aten::exp.out")
    def out(self, *, out):
        out.fill_(8)

    with patched(in_place), patched(out):
        x, y = X.clone(), torch.empty_like(X)
        assert x.log_() is x
        assert torch.exp(X, out=y) is y
        assert (x == 7).all()
        assert (y == 8).all()


def test_a_source_file_that_changed_since_it_was_read_does_no_harm(tmp_path):
    path = tmp_path / "changed.py"
    scope = {"torch": torch, "operator_udf": operator_udf}
    code = '@operator_udf("aten::log")\ndef zeros(x):\n    return torch.zeros_like(x)\n'
    exec(compile(code, str(path), "exec"), scope)
    path.write_text('\n"""\n')
    with patched(scope["zeros"]):
        assert torch.equal(torch.log(torch.ones(3)), torch.zeros(3))


def test_dtypes_that_are_not_named_go_to_the_stock_kernel(tmp_path):
    library = write_library(
        tmp_path / "narrow",
        '[operators."aten::log"]\npython = "ops.py"\nfunction = "log"\ndtypes = ["float32"]\n',
        ops_py="def log(self, *, out):\n    return out.copy_(self.double().log() + 400)\n",
    )
    wide = torch.log(X.double())
    with patched(library):
        # Inside, log of float64 is the stock kernel's and no recursion.
        assert torch.equal(torch.log(X), (wide + 400).float())
        assert torch.equal(torch.log(X.double()), wide)
        mixed = torch.log(X, out=torch.empty(1001, dtype=torch.float64))
        assert not torch.equal(mixed, (wide + 400).float().double())


def test_stock_in_python(tmp_path):
    @operator_udf("aten::log")
    def log(self, *, out):
        # The stock kernel, and what that calls in turn, is not the UDF again.
        return stock(self, out=out).add_(1)

    before = torch.log(X)
    with patched(log):
        assert torch.equal(torch.log(X), before + 1)
    with pytest.raises(SessionStateError, match="no UDF at operator level runs"):
        stock(X)


def test_nested_sessions_layer(cpp):
    before = torch.log(X)
    with patched(cpp, functions=("aten::log", "aten::exp")):
        with patched(python_log):
            assert torch.equal(torch.log(X), X + 300)
            assert torch.equal(torch.exp(X), X + 100)
            with patched("std", functions=("aten::log",)):
                assert torch.equal(torch.log(X), before)
                assert torch.equal(torch.exp(X), X + 100)
            with patched("std"):
                assert torch.equal(torch.log(X), before)
                with patched(cpp, functions=("aten::log",)):
                    assert torch.equal(torch.log(X), X + 200)
                assert torch.equal(torch.log(X), before)
            assert torch.equal(torch.log(X), X + 300)
        assert torch.equal(torch.log(X), X + 200)
    with pytest.raises(OperatorError, match="aten::lg"):
        patched("std", functions=("aten::lg",)).__enter__()


def test_sessions_closed_out_of_order(cpp):
    first = patched(cpp, functions=("aten::log",)).__enter__()
    second = patched(python_log).__enter__()
    first.close()
    assert torch.equal(torch.log(X), X + 300)
    second.close()


def test_functions_under_an_overridden_operator_are_still_proved(cpp):
    """The canary of exp goes past the override of aten::exp, in either order."""
    with patched(cpp, functions=("aten::exp",)), patched("corem", functions=("exp",)) as s:
        assert s.reached["exp"]
        assert torch.equal(torch.exp(X), X + 100)


def test_restored_after_an_exception(cpp):
    def fail() -> None:
        assert torch.equal(torch.log(X), X + 200)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), patched(cpp, functions=("aten::log",)):
        fail()


def test_other_threads_see_the_override(cpp):
    results: list[bool] = []

    def work():
        results.append(all(torch.equal(torch.log(X), X + 200) for _ in range(50)))

    with patched(cpp, functions=("aten::log",)):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == [True] * 4


def test_a_forked_child_closes_its_own(cpp):
    before = torch.log(X)
    with patched(cpp, functions=("aten::log",)) as s:
        child = os.fork()
        if child == 0:
            torch.set_num_threads(1)  # the OpenMP threads of the parent do not exist here
            good = torch.equal(torch.log(X), X + 200)
            s.close()
            good &= torch.equal(torch.log(X), before)
            os._exit(0 if good else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert torch.equal(torch.log(X), X + 200)


def test_compiled_code_calls_the_operator():
    """Inductor's own code for log and elu gives way, and comes back."""

    @operator_udf("aten::elu")
    def elu(self, alpha, scale, input_scale):
        return self + 100

    def function(x):
        return torch.log(x) * 2 + nn.functional.elu(x)

    compiled = torch.compile(function)
    with patched(python_log), patched(elu):
        assert torch.equal(compiled(X), (X + 300) * 2 + (X + 100))
    assert torch.allclose(compiled(X), function(X))
    torch._dynamo.reset()


# Profiles ----------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ELU()

    def forward(self, x):
        return torch.log(self.inner(x))


@pytest.mark.parametrize("kind", ["cpp", "python"])
def test_calls_are_profiled_as_those_of_functions(cpp, kind, tmp_path):
    which = cpp if kind == "cpp" else python_log
    with patched(which, functions=("aten::log",), profile="events", profile_out=tmp_path) as s:
        before = time.time_ns()
        Net()(X)
        torch.log(X[:10])
        X.clone().log_()
        torch.log(X[:0])
        after = time.time_ns()
    profile = s.profile
    rows = {r.key["function"]: r for r in profile.rows("function", "dtype", "form")}
    assert list(rows) == ["aten::log", "aten::log_"]
    row = rows["aten::log"]
    assert row.key["form"] == "operator"
    assert (row.calls, row.elements, row.operator_calls) == (3, 1011, 3)
    assert row.limits("in") is None
    assert row.time_ns > 0
    layers = {(r.key["module"], r.key["function"]): r.calls for r in profile.layers()}
    assert layers["Net", "aten::log"] == 1
    assert layers["", "aten::log"] == 2
    assert [r.key["operator"] for r in profile.rows("operator")] == ["aten::log", "aten::log_"]
    # Events go to the file, where there is one.
    loaded = Profile.load(tmp_path)
    assert (loaded.cells["calls"] == profile.cells["calls"]).all()
    events = loaded.events
    assert events["elements"].tolist() == [1001, 10, 1001, 0]
    assert (events["end_ns"] > events["start_ns"]).all()
    assert before < events["start_ns"][0] < events["end_ns"][-1] < after
    assert loaded.strings[int(events["function"][2])] == "aten::log_"
    loaded.save_trace(tmp_path / "trace.json")
    assert profile.meta["functions"] == ["aten::log"]
    assert profile.meta["build_id"]
    # Everything that reads profiles takes them.
    assert "aten::log" in report.terminal([profile])
    assert "aten::log" in report.profiles_html([profile])
    assert set(profile.to_pandas()["form"]) == {"operator"}


def test_depths(cpp):
    for depth, timed in (("counters", False), ("timed", True)):
        with patched(cpp, functions=("aten::log",), profile=depth) as s:
            torch.log(X)
        (row,) = s.profile.rows("function")
        assert (row.calls, row.elements) == (1, 1001)
        assert (row.time_ns > 0) == timed
        assert not len(s.profile.events)


def test_a_profile_has_room_for_so_many_overloads(monkeypatch):
    monkeypatch.setattr(operator_udfs, "OPERATOR_UDFS", 2)
    with pytest.raises(ProfileError, match=r"room for 2 overloads.*overrides 3"):
        enter(python_log, profile=True)
    with patched(python_log):
        pass


def test_threads_and_stock_calls_are_counted_right(cpp):
    narrow = operator_udf("aten::exp", dtypes=("float64",))(lambda self: self + 1)
    with patched(narrow, profile=True) as s:
        threads = [threading.Thread(target=torch.exp, args=(X.double(),)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        torch.exp(X)  # the stock kernel's
        # An inner session has no profile, so what it decides is not counted.
        with patched(cpp, functions=("aten::exp",)):
            torch.exp(X.double())
    (row,) = [r for r in s.profile.rows("function") if r.key["function"] == "aten::exp"]
    assert (row.calls, row.elements) == (3, 3003)


# Mistakes ----------------------------------------------------------------------------


def enter(library, *names: str, **options):
    """Open a session that shall fail; one that does not is closed, and changes no other test."""
    with patched(library, names or None, **options):
        pass


def test_without_a_compiler_the_library_and_its_source_are_named(cpp, monkeypatch):
    def no_compiler():
        raise CompilerNotFoundError("There is no clang here. Install it.")

    monkeypatch.setattr(operator_udfs, "find_compiler", no_compiler)
    session._plans.clear()  # an earlier test has opened it
    said = r"^The operators of UDF library '.+' in ops\.cpp are C\+\+.* There is no clang"
    with pytest.raises(CompilerNotFoundError, match=said):
        enter(cpp, "aten::log")


def test_unknown_operators_and_overloads():
    def udf(name: str):
        return operator_udf(name)(lambda self: self)

    with pytest.raises(OperatorError, match=r"'aten::logg'.*Did you mean .*'aten::log'"):
        enter(udf("aten::logg"))
    with pytest.raises(OperatorError, match=r"overloads of aten::log: aten::log, aten::log"):
        enter(udf("aten::log.outt"))
    with pytest.raises(OperatorError, match=r"none without a name.*aten::add\.Tensor"):
        enter(udf("aten::add"))
    with pytest.raises(OperatorError, match=r"must be imported before"):
        enter(udf("zzzzzzzzzz::qqqqqqqqqq"))


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("CPUU", "no dispatch key 'CPUU'. Did you mean 'CPU'"),
        ("AutogradCPU", "does not belong to a backend .*stay torch's"),
        ("CompositeImplicitAutograd", "does not belong to a backend"),
    ],
)
def test_dispatch_keys_that_cannot_be(key, message):
    with pytest.raises(OperatorError, match=message):
        enter(operator_udf("aten::log", dispatch_keys=(key,))(lambda self: self))


@pytest.mark.skipif(torch.cuda.is_available(), reason="the machine has such a device")
def test_a_dispatch_key_without_a_device():
    def log(self):
        return self + 1

    with pytest.raises(OperatorError, match="no device of CUDA"):
        enter(operator_udf("aten::log", dispatch_keys=("CUDA",))(log))
    with patched(operator_udf("aten::log", dispatch_keys=("CUDA", "CPU"))(log)) as s:
        assert s.reached == {"aten::log": {"aten::log CPU": 1}}


@pytest.mark.skipif(torch.cuda.is_available(), reason="the machine has such a device")
def test_an_operator_for_another_device_is_left_out(tmp_path):
    (tmp_path / "ops.py").write_text("def same(self):\n    return self.clone()\n")
    (tmp_path / "udf.toml").write_text(
        '[library]\nname = "two"\nversion = "1"\n'
        '[operators."aten::log"]\npython = "ops.py"\nfunction = "same"\n'
        '[operators."aten::exp"]\npython = "ops.py"\nfunction = "same"\n'
        'dispatch_keys = ["CUDA"]\n'
    )
    with patched(tmp_path) as s:
        assert list(s.reached) == ["aten::log"]
    with pytest.raises(OperatorError, match="aten::exp: this machine has no device of CUDA"):
        enter(tmp_path, "aten::exp")


def test_an_operator_that_torch_computes_by_others():
    with pytest.raises(OperatorError, match=r"softmax\.int by other operators"):
        enter(operator_udf("aten::softmax.int")(lambda self, dim, dtype: self))


def test_recursion_is_found_on_entry(cpp):
    for name in ("aten::cos", "aten::tan"):
        with pytest.raises(OperatorError, match=rf"{name}, .*udf::stock<function>"):
            enter(cpp, name)

    @operator_udf("aten::log")
    def log(self):
        return torch.log(self) + 1

    with pytest.raises(OperatorError, match=r"pytest_udftorch\.stock"):
        enter(log)


def test_recursion_is_found_in_a_run():
    """What the canary does not come by is found when it is reached."""

    @operator_udf("aten::log")
    def log(self):
        return self + 1 if self.numel() < 100 else torch.log(self.clone())

    with patched(log):
        assert torch.equal(torch.log(X[:9]), X[:9] + 1)
        with pytest.raises(OperatorError, match=r"pytest_udftorch\.stock"):
            torch.log(X)
        assert torch.equal(torch.log(X[:9]), X[:9] + 1)


def test_a_signals_handler_may_call_what_it_interrupts():
    found = []

    @operator_udf("aten::log")
    def log(self):
        if not found:
            found.append(None)
            signal.raise_signal(signal.SIGUSR1)
        return self + 1

    before = signal.signal(signal.SIGUSR1, lambda *_: found.append(torch.log(X)))
    try:
        with patched(log):
            found.clear()  # the canary has called it
            assert torch.equal(torch.log(X[:9]), X[:9] + 1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert torch.equal(found[1], X + 1)


def test_operators_that_are_not_pointwise_are_only_reached_on_entry():
    """Their arguments cannot be made up; the first call shows what the UDF does."""

    @operator_udf("aten::_softmax")
    def softmax(self, dim, half_to_float):
        return torch.softmax(self, dim)

    with patched(softmax) as s:
        assert s.reached == {"aten::_softmax": {"aten::_softmax CPU": 1}}
        with pytest.raises(OperatorError, match=r"pytest_udftorch\.stock"):
            torch.softmax(X, 0)
    # A division by its zero groups would end the process.
    with patched(operator_udf("aten::native_channel_shuffle")(lambda self, groups: self)):
        pass


def test_functions_that_do_not_fit_the_schema(cpp):
    with pytest.raises(
        SourceError, match=r"(?s)two_arguments of .*aten::tanh\(Tensor self\).*2 vs 1"
    ):
        enter(cpp, "aten::tanh")
    with pytest.raises(SourceError, match=r"(?s)by_value.*aten::erf"):
        enter(cpp, "aten::erf")
    with pytest.raises(SourceError, match="missing a required argument"):
        enter(operator_udf("aten::log")(lambda self, other: self))


def test_results_of_another_kind(cpp):
    with pytest.raises(OperatorError, match=r"float32\[\] .*where the stock .*\[67\]"):
        enter(cpp, "aten::neg")
    with pytest.raises(OperatorError, match=r"failed on .*not today"):
        enter(cpp, "aten::abs")
    with pytest.raises(OperatorError, match="float64"):
        enter(operator_udf("aten::log")(lambda self: self.double()))


def test_an_operator_is_overridden_once(tmp_path):
    table = '[operators."{}"]\npython = "ops.py"\nfunction = "log"\n'
    library = write_library(
        tmp_path / "twice",
        table.format("aten::log") + table.format("aten::log.out"),
        ops_py="def log(self, *, out):\n    return out\n",
    )
    with pytest.raises(SourceError, match=r"aten::log\.out at CPU twice"):
        enter(library)
    with patched(library, functions=("aten::log.out",)):
        pass


def test_python_files_that_cannot_be_used(tmp_path):
    table = '[operators."aten::log"]\npython = "ops.py"\nfunction = "log"\n'
    broken = write_library(tmp_path / "broken", table, ops_py="import no_such_module_anywhere\n")
    with pytest.raises(SourceError, match=r"(?s)ops\.py cannot be imported.*no_such_module"):
        enter(broken)
    empty = write_library(tmp_path / "empty", table, ops_py="x = 1\n")
    with pytest.raises(SourceError, match="does not define the function 'log'"):
        enter(empty)
    # An edited file is read again.
    (empty / "ops.py").write_text("def log(self):\n    return self + 500\n")
    with patched(empty):
        assert torch.equal(torch.log(X), X + 500)


@pytest.mark.slow  # another compilation of torch's headers; of C: test_build.py
def test_sources_that_do_not_compile(tmp_path):
    table = '[operators."aten::log"]\nsource = "ops.cpp"\nfunction = "log_out"\n'
    broken = write_library(tmp_path / "broken", table, ops_cpp="at::Tensor log_out(;\n")
    with pytest.raises(SourceError, match=r"(?s)ops\.cpp does not compile.*expected"):
        enter(broken)


@pytest.mark.slow  # another compilation of torch's headers
def test_a_source_without_the_function(tmp_path):
    table = '[operators."aten::log"]\nsource = "ops.cpp"\nfunction = "log_out"\n'
    other = write_library(tmp_path / "other", table, ops_cpp="at::Tensor log2_out();\n")
    with pytest.raises(SourceError, match="does not define log_out"):
        enter(other)


def test_a_build_is_taken_from_the_cache(cpp, monkeypatch):
    with patched(cpp, functions=("aten::log",)):
        pass
    operator_udfs._modules.clear()

    def compile_again(*_):
        raise AssertionError

    monkeypatch.setattr(job, "_make", compile_again)
    with patched(cpp, functions=("aten::log",)):
        assert torch.equal(torch.log(X), X + 200)
    # Another level is another build.
    with pytest.raises(AssertionError):
        enter(cpp, "aten::log", cpu_level="baseline")


def test_a_session_that_reached_nothing_is_an_error(monkeypatch):
    """The negative control of the canary: an override that is not put in."""
    monkeypatch.setattr(dispatcher.Overrides, "_targets", lambda self: iter(()))
    with pytest.raises(SwapError, match=r"aten::log .*did not reach the UDF"):
        enter(operator_udf("aten::log")(lambda self, *, out: torch.add(self, 300, out=out)))


def test_unknown_selections(cpp):
    with pytest.raises(UnknownFunctionError, match="no operator 'aten::log_'"):
        patched(cpp, functions=("aten::log_",))


def test_an_overload_that_is_loaded_late_is_found():
    late = torch.library.Library("udftorch_late", "DEF")
    assert not schemas.overloads("udftorch_late::f")
    late.define("f.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")
    assert schemas.overloads("udftorch_late::f") == ["udftorch_late::f.out"]
    assert not schemas.has_overload("udftorch_late::f")
    late.define("f(Tensor x) -> Tensor")
    assert schemas.has_overload("udftorch_late::f")
    assert schemas.overloads("udftorch_late::f") == ["udftorch_late::f", "udftorch_late::f.out"]


def test_the_list_of_operators_is_not_read_for_what_cannot_be_in_it(monkeypatch):
    assert "aten::log.out" in schemas.overloads("aten::log")

    def again():
        pytest.fail("the dispatcher's list was read again")

    monkeypatch.setattr(schemas.compat, "operator_names", again)
    assert schemas.overloads("aten::sum.dim_IntList") == []
    assert not schemas.has_overload("aten::log.no_such_one")
    assert schemas.has_overload("aten::sum.dim_IntList")


def test_an_operator_without_a_stock_kernel_has_nothing_to_fall_back_to():
    with pytest.raises(SwapError, match="torch has no kernel of aten::_cudnn_ctc_loss at CPU"):
        enter(operator_udf("aten::_cudnn_ctc_loss")(lambda *given: given))


def test_no_random_numbers_are_used_up_by_the_canary():
    @operator_udf("aten::bernoulli_.float")
    def bernoulli(self, p, *, generator):
        return self.fill_(1)

    torch.manual_seed(0)
    state = torch.get_rng_state()
    with patched(bernoulli):
        assert torch.equal(torch.get_rng_state(), state)


# pytest ------------------------------------------------------------------------------


def test_the_plugin_shows_and_selects_operators(tmp_path):
    library = write_library(
        tmp_path / "mine",
        '[operators."aten::log"]\npython = "ops.py"\nfunction = "log"\n'
        '[operators."aten::exp"]\npython = "ops.py"\nfunction = "log"\n',
        ops_py="def log(self):\n    return self + 500\n",
    )
    (tmp_path / "test_it.py").write_text(
        "import torch\n"
        "def test_it(udf_session):\n"
        "    assert udf_session.operators == ('aten::log',)\n"
        "    assert torch.log(torch.ones(1)).item() == 501\n"
        "    assert torch.exp(torch.zeros(1)).item() == 1\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:benchmark",
         "-p", "no:hypothesispytest", f"--udf-lib={library}", "--udf-functions=aten::log",
         str(tmp_path)],
        capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "operators only; functions: aten::log\n" in done.stdout


def test_a_decorator_without_its_arguments_is_refused():
    with pytest.raises(LibraryError, match=r"write @operator_udf\(.aten::log.out.\) above"):
        operator_udf(torch.log)
    with pytest.raises(LibraryError, match=r"dispatch_keys=.CPU. is a string.*\('CPU',\)"):
        operator_udf("aten::log", dispatch_keys="CPU")
    with pytest.raises(LibraryError, match=r"dtypes=.float32. is a string"):
        operator_udf("aten::log", dtypes="float32")
