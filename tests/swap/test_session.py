# SPDX-License-Identifier: Apache-2.0
"""Sessions on the real libtorch: swap, nest, restore, and every way an entry can fail."""

import dataclasses
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import scipy.special
import torch

import pytest_udftorch
from pytest_udftorch import patched, trace
from pytest_udftorch.errors import (
    CpuLevelError,
    RestoreError,
    SessionStateError,
    SwapError,
    UnknownFunctionError,
    UnknownLibraryError,
)
from pytest_udftorch.swap.library.symbols import this_processor
from pytest_udftorch.swap.native.runtime import runtime
from pytest_udftorch.swap.session import session as session_module
from pytest_udftorch.swap.session.binder import Binder, binder

X = torch.linspace(-5.0, 5.0, 1001)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().numpy().tobytes()


def write_library(folder: Path, name: str, functions: dict[str, str], source: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "u.c").write_text(source)
    tables = "".join(f'[functions.{f}]\nsource = "u.c"\n{keys}\n' for f, keys in functions.items())
    (folder / "udf.toml").write_text(f'[library]\nname = "{name}"\nversion = "1"\n{tables}')
    return folder


@pytest.fixture(scope="module")
def shifted(tmp_path_factory):
    """A library whose results nobody can mistake: exp(x) = x + 100, log(x) = x + 200."""
    return write_library(
        tmp_path_factory.mktemp("shifted"),
        "shifted",
        {"exp.float32": 'scalar = "e"', "log.float32": 'scalar = "l"'},
        "float e(float x) { return x + 100; }\nfloat l(float x) { return x + 200; }\n",
    )


@pytest.fixture(scope="module")
def doubled(tmp_path_factory):
    """A library with a float64 function: exp(x) = 2x for both dtypes."""
    return write_library(
        tmp_path_factory.mktemp("doubled"),
        "doubled",
        {"exp.float32": 'scalar = "f"', "exp.float64": 'scalar = "d"'},
        "float f(float x) { return 2 * x; }\ndouble d(double x) { return 2 * x; }\n",
    )


@pytest.fixture(autouse=True)
def _restored():
    """Every test, whatever it does, leaves each slot as it found it."""
    bound = binder()
    before = bound.native.read(bound.slots)
    stock = bits(torch.exp(X)), bits(torch.softmax(X, 0)), bits(torch.sin(X))
    yield
    after = bound.native.read(bound.slots)
    # The loader itself may have bound a slot lazily since: then it is the stock function.
    for slot, old, new in zip(bound.slots, before, after, strict=True):
        assert new == old or new == bound.native.resolve(slot), slot
    assert stock == (bits(torch.exp(X)), bits(torch.softmax(X, 0)), bits(torch.sin(X)))


def test_swap_and_restore(shifted):
    stock = torch.exp(X)
    with patched(shifted) as s:
        assert s.is_open
        assert torch.equal(torch.exp(X), X + 100)
        assert torch.equal(torch.log(X), X + 200)
        assert s.reached["exp"]
    assert not s.is_open
    assert bits(torch.exp(X)) == bits(stock)


def test_only_the_chosen_functions(shifted):
    with patched(shifted, functions=("log",)):
        assert bits(torch.exp(X)) != bits(X + 100)
        assert torch.equal(torch.log(X), X + 200)


def test_double_precision_stays_unless_the_library_has_it(shifted, doubled):
    wide = X.double()
    stock = torch.exp(wide)
    with patched(shifted):
        assert bits(torch.exp(wide)) == bits(stock)
    with patched(doubled):
        assert torch.equal(torch.exp(wide), 2 * wide)
        assert torch.equal(torch.exp(wide[::3]), 2 * wide[::3])
        assert torch.equal(torch.exp(X), 2 * X)


def test_every_form_that_sigmoid_calls_is_swapped(shifted):
    """Vector body and scalar tail alike: each element is 1 / (1 + exp(-x)) with our exp."""
    with patched(shifted, functions=("exp",)), trace(["exp"]) as calls:
        assert torch.equal(torch.sigmoid(X), 1 / (1 + (100 - X)))
        assert torch.equal(torch.sigmoid(X[::3]), 1 / (1 + (100 - X[::3])))
    assert calls


def test_restored_after_an_exception(shifted):
    def fail() -> None:
        assert torch.equal(torch.exp(X), X + 100)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), patched(shifted):
        fail()


def test_nested_sessions_layer(shifted, doubled):
    stock = bits(torch.exp(X))
    with patched(shifted):
        with patched(doubled):
            assert torch.equal(torch.exp(X), 2 * X)
            assert torch.equal(torch.log(X), X + 200)
            with patched("std"):
                assert bits(torch.exp(X)) == stock
                with patched(shifted, functions=("exp",)):
                    assert torch.equal(torch.exp(X), X + 100)
                assert bits(torch.exp(X)) == stock
        assert torch.equal(torch.exp(X), X + 100)
    assert bits(torch.exp(X)) == stock


def test_sessions_closed_out_of_order(shifted, doubled):
    first, second = patched(shifted), patched(doubled)
    first.__enter__()
    second.__enter__()
    first.close()
    assert torch.equal(torch.exp(X), 2 * X)
    assert not torch.equal(torch.log(X), X + 200)
    second.close()
    second.close()


def test_switching_back_and_forth(shifted, doubled):
    for _ in range(5):
        with patched(shifted):
            assert torch.equal(torch.exp(X), X + 100)
        with patched(doubled):
            assert torch.equal(torch.exp(X), 2 * X)


def test_numpy_and_scipy_keep_their_bits(shifted):
    a = np.linspace(-5, 5, 1001, dtype=np.float32)
    before = np.exp(a).tobytes(), scipy.special.expit(a).tobytes(), np.log(np.abs(a) + 1).tobytes()
    with patched(shifted):
        assert before == (
            np.exp(a).tobytes(),
            scipy.special.expit(a).tobytes(),
            np.log(np.abs(a) + 1).tobytes(),
        )


def test_other_threads_see_the_swap(shifted):
    results = []
    with patched(shifted):
        thread = threading.Thread(target=lambda: results.append(torch.exp(X)))
        thread.start()
        thread.join()
    assert torch.equal(results[0], X + 100)


def test_threads_that_call_while_sessions_come_and_go(shifted):
    stop = threading.Event()
    stock, swapped = bits(torch.exp(X)), bits(X + 100)
    seen: set[bytes] = set()

    def call() -> None:
        while not stop.is_set():
            seen.add(bits(torch.exp(X)))

    threads = [threading.Thread(target=call) for _ in range(2)]
    for t in threads:
        t.start()
    for _ in range(50):
        with patched(shifted):
            seen.add(bits(torch.exp(X)))
    stop.set()
    for t in threads:
        t.join()
    assert seen <= {stock, swapped}


def test_sessions_opened_by_several_threads(shifted, doubled):
    errors: list[BaseException] = []

    def work(library: Path) -> None:
        try:
            for _ in range(20):
                with patched(library):
                    pass
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(lib,)) for lib in (shifted, doubled)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert errors == []


def run_script(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def test_late_imports_forks_and_a_session_left_open(shifted):
    """In one process, which is left with a session open.

    Torch may be imported inside of a session, which has it then. A child forked inside a session
    works on its own copy: its exit does not touch the parent's swap. One forked while another
    thread holds the lock opens sessions all the same.
    """
    code = f"""
from pytest_udftorch import patched
with patched({str(shifted)!r}):
    import torch
    print("late", torch.exp(torch.zeros(1)).item())
import os, threading, warnings
from pytest_udftorch.swap.session.binder import binder
warnings.simplefilter("ignore")
x = torch.linspace(-5, 5, 64)
stock = torch.exp(x)
with patched({str(shifted)!r}) as s:
    child = os.fork()
    if child == 0:
        ok = torch.equal(torch.exp(x), x + 100)
        s.close()
        ok = ok and torch.equal(torch.exp(x), stock)
        with patched({str(shifted)!r}):
            ok = ok and torch.equal(torch.exp(x), x + 100)
        os._exit(0 if ok else 1)
    print("inside", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    assert torch.equal(torch.exp(x), x + 100)
assert torch.equal(torch.exp(x), stock)
held, done = threading.Event(), threading.Event()
def hold():
    with binder().lock:
        held.set()
        done.wait()
t = threading.Thread(target=hold); t.start(); held.wait()
child = os.fork()
if child == 0:
    with patched({str(shifted)!r}):
        os._exit(0 if torch.equal(torch.exp(x), x + 100) else 1)
print("held", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
done.set(); t.join()
left = patched({str(shifted)!r}).__enter__()
print("left", torch.exp(torch.zeros(1)).item())
"""
    run = run_script(code)
    said = "late 100.0\ninside 0\nheld 0\nleft 100.0\n"
    assert (run.returncode, run.stdout) == (0, said), run.stderr


def _kill_and_wait() -> None:
    assert torch.equal(torch.exp(X), X + 100)
    os.kill(os.getpid(), signal.SIGUSR1)
    threading.Event().wait(5)


def test_signal_inside_a_session(shifted):
    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt), patched(shifted):
            _kill_and_wait()
    finally:
        signal.signal(signal.SIGUSR1, old)


@pytest.mark.parametrize(
    "context",
    [
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        lambda: torch.device("meta"),
        lambda: torch._subclasses.fake_tensor.FakeTensorMode(),
    ],
    ids=["no_grad", "inference", "autocast", "meta device", "fake tensors"],
)
def test_entry_works_inside_torchs_own_contexts(shifted, context):
    with context(), patched(shifted) as s:
        assert s.is_open


def test_entry_leaves_the_random_state_and_defaults_alone(shifted):
    torch.manual_seed(1)
    state = torch.get_rng_state()
    with patched(shifted):
        assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("capability", ["avx2", pytest.param("default", marks=pytest.mark.slow)])
def test_lower_cpu_capabilities(shifted, capability):
    run = run_script(
        f"import torch\nfrom pytest_udftorch import patched\nx = torch.linspace(-5, 5, 101)\n"
        f"with patched({str(shifted)!r}) as s:\n"
        " assert torch.equal(torch.exp(x), x + 100)\n"
        " y = torch.sigmoid(x); assert torch.equal(y, 1 / (1 + (100 - x))), (y, x)\n"
        "print(torch.backends.cpu.get_cpu_capability())",
        ATEN_CPU_CAPABILITY=capability,
    )
    assert run.stdout.strip() in {"AVX2", "DEFAULT"}, run.stderr


def test_kernels_for_sve_are_refused(monkeypatch):
    # This CPU cannot make torch say so.
    monkeypatch.setattr(session_module, "torch_summary", lambda: ("2.15.0", "SVE256"))
    monkeypatch.setattr(session_module, "_plans", OrderedDict())
    with (
        pytest.raises(CpuLevelError, match=r"its SVE256 kernels.*ATEN_CPU_CAPABILITY=default"),
        patched("corem", functions=("exp",)),
    ):
        pass
    assert binder().owners() == []


def test_a_file_has_the_slots_of_the_loaded_object():
    bound = binder()
    loaded = [slot for slot in bound.slots if slot.object == "libtorch_cpu.so"]
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    processor, slots = bound.native.find_in_file(path, list(bound.symbols))
    assert processor is this_processor()

    def facts(found):
        return sorted((s.address, s.symbol, s.kind, s.relro, s.version) for s in found)

    base = {a.address - b.address for a, b in zip(loaded, slots, strict=True)}
    assert len(base) == 1
    moved = [dataclasses.replace(s, address=s.address + base.copy().pop()) for s in slots]
    assert facts(moved) == facts(loaded)


def test_trace_counts_stock_symbols():
    with trace(["exp"]) as calls:
        torch.exp(X)
        torch.sigmoid(X)
    assert calls["vmsExp"] == 1
    assert sum(calls.values()) > 1
    with trace(["log"]) as none:
        torch.exp(X)
    assert none == {}


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ("exp", "is a string"),
        (["exxp"], "no function 'exxp' to trace. Did you mean 'exp'"),
        ([], "would count nothing"),
        ([None], "not a sequence of names"),
    ],
)
def test_a_trace_of_nothing_is_refused(names, says):
    with pytest.raises(UnknownFunctionError, match=says), trace(names):
        pass


def test_trace_is_restored_after_an_exception():
    with pytest.raises(ValueError, match="mine"), trace():
        raise ValueError("mine")
    with trace(["sin"]) as calls:
        torch.exp(X)
    assert calls == {}


# Errors ------------------------------------------------------------------------------


def test_unknown_library_and_function(shifted):
    with pytest.raises(UnknownLibraryError):
        patched("corme")
    with pytest.raises(UnknownFunctionError, match="no function 'sin'"):
        patched(shifted, functions=("sin",))


def test_a_session_is_used_once(shifted):
    s = patched(shifted)
    with s, pytest.raises(SessionStateError, match="entered before"):
        s.__enter__()
    with pytest.raises(SessionStateError, match="call patched"):
        s.__enter__()


def test_forms_that_disagree_are_refused(tmp_path):
    """The canary compares what the operator gives with what the library gives directly."""
    library = write_library(
        tmp_path / "moody",
        "moody",
        {"exp.float32": 'scalar = "e"'},
        "static int n; float e(float x) { return x + (n++ / 64); }\n",
    )
    with pytest.raises(SwapError, match=r"torch\.exp on float32 went through .*0x"):
        patched(library).__enter__()


def test_a_swap_that_reaches_nothing_is_an_error(shifted, monkeypatch):
    """Slots are rebound, but the operator goes another way: here, exp is asked on sin's slots."""
    bound = binder()
    wrong = [s for s in bound.slots if bound.symbols[s.symbol].function == "sin"]
    monkeypatch.setattr(bound, "slots", wrong)
    monkeypatch.setattr(bound, "_steps", OrderedDict())
    monkeypatch.setattr(session_module, "_plans", OrderedDict())
    with pytest.raises(SwapError, match=r"torch\.exp .* did not call any rebound"):
        patched(shifted).__enter__()


def test_a_libtorch_without_the_symbols(shifted, monkeypatch):
    """libc10 is a real part of torch that calls log in double precision and nothing else."""
    lean = Binder(runtime(), ("libc10.so",))
    assert {s.symbol for s in lean.slots} <= {"log", "exp", "pow"}
    monkeypatch.setattr("pytest_udftorch.swap.session.binder._binder", lean)
    monkeypatch.setattr(session_module, "_plans", OrderedDict())
    with pytest.raises(UnknownFunctionError, match=re.escape("calls float32 'exp'")):
        patched(shifted).__enter__()


def test_another_library_of_the_same_file_name_is_left_alone(shifted, tmp_path):
    """It may be unloaded while torch goes on."""
    (tmp_path / "c.c").write_text(
        "#include <math.h>\nfloat call(float x) { return expf(x); }\n"
        "float (*volatile pointer)(float) = expf;\n"
    )
    build = ["cc", "-O0", "-fPIC", "-shared", "c.c", "-o", "libc10.so", "-lm", "-fno-builtin"]
    subprocess.run(build, cwd=tmp_path, check=True)
    code = f"""
import ctypes, _ctypes
import torch
x = torch.linspace(-5, 5, 64)
foreign = ctypes.CDLL({str(tmp_path / "libc10.so")!r})
foreign.call.restype, foreign.call.argtypes = ctypes.c_float, [ctypes.c_float]
from pytest_udftorch import patched
from pytest_udftorch.swap.session.binder import TORCH_OBJECTS, binder
named = binder().native.find(list(binder().symbols), TORCH_OBJECTS)
print(len(named) - len(binder().slots))
with patched({str(shifted)!r}):
    print(foreign.call(0.0), torch.equal(torch.exp(x), x + 100))
_ctypes.dlclose(foreign._handle)
with patched({str(shifted)!r}):
    print(torch.equal(torch.exp(x), x + 100))
"""
    run = run_script(code)
    assert run.stdout == "2\n1.0 True\nTrue\n", run.stderr


def test_vectors_narrower_than_torchs_are_refused(shifted):
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        pytest.skip("torch calls no vector forms on this machine")
    with pytest.raises(CpuLevelError, match=r"the swap would be partial.*ATEN_CPU_CAPABILITY"):
        patched(shifted, cpu_level="baseline").__enter__()


def test_another_tool_that_rebinds_a_slot_is_reported_and_left_alone(shifted):
    bound = binder()
    slot = bound.slots_of("exp", "float32")[0]
    stock = bound.native.read([slot])[0]
    foreign = bound.native.trampoline(bound.native.trampoline_count - 1)
    s = patched(shifted)
    s.__enter__()
    ours = bound.native.read([slot])
    bound.native.exchange([slot], ours, [foreign])
    with pytest.raises(RestoreError, match=slot.symbol):
        s.close()
    assert bound.native.read([slot]) == [foreign]
    bound.native.exchange([slot], [foreign], [stock])


def test_public_names():
    for name in pytest_udftorch.__all__:
        assert getattr(pytest_udftorch, name)
    assert set(pytest_udftorch.__all__) <= set(dir(pytest_udftorch))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        pytest_udftorch.nothing  # noqa: B018


# As a decorator -----------------------------------------------------------------------


def test_a_decorated_function_runs_under_a_session_of_its_own_each_time():
    x = torch.zeros(33)
    stock = torch.exp(x)

    @patched("canary", functions=("exp",))
    def inside(values, *, add=0):
        """Return exp."""
        if add:
            raise ValueError("from within")
        return torch.exp(values)

    assert (inside.__name__, inside.__doc__) == ("inside", "Return exp.")
    for _ in range(2):
        assert not torch.equal(inside(x), stock)
        assert torch.equal(torch.exp(x), stock)
    with pytest.raises(ValueError, match="from within"):
        inside(x, add=1)
    assert torch.equal(torch.exp(x), stock)


def test_what_runs_after_its_call_cannot_be_decorated():
    async def coroutine():
        pass

    def generator():
        yield

    for function in (coroutine, generator, dict):
        with pytest.raises(SessionStateError, match="its code runs after the call"):
            patched("canary")(function)
    with patched("canary", functions=("exp",)) as session:
        pass
    with pytest.raises(SessionStateError, match="cannot decorate"):
        session(print)


def test_a_process_that_may_open_no_more_files_is_told_so(tmp_path):
    """At each number of files that are left, a session opens or says what to do."""
    (tmp_path / "it.py").write_text(
        textwrap.dedent("""
        import contextlib, os, resource, torch
        from pytest_udftorch import patched
        from pytest_udftorch.errors import CacheError

        @contextlib.contextmanager
        def left(room):
            # Take all descriptors but so many.
            taken = []
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.open("/dev/null", os.O_RDONLY))
            for _ in range(room):
                os.close(taken.pop())
            try:
                yield
            finally:
                for descriptor in taken:
                    os.close(descriptor)

        with patched("corem", ["exp"]):
            pass
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 4096))
        ends = []
        for room in range(8):
            with left(room):
                try:
                    with patched("corem", ["log"]):
                        pass
                    ends.append("open")
                except CacheError as error:
                    ends.append(str(error))
        assert "its limit is 64 at once" in ends[0], ends
        assert "ulimit -n, at most 4,096 here" in ends[0], ends
        assert ends[-1] == "open", ends
        # A library that was not read before is not called unreadable.
        with left(0):
            try:
                patched("canary")
            except CacheError as error:
                told = str(error)
        assert "its limit is 64 at once" in told, told
        patched("canary")
        """)
    )
    done = subprocess.run(
        [sys.executable, str(tmp_path / "it.py")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
