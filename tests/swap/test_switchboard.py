# SPDX-License-Identifier: Apache-2.0
"""The switchboard: boards registered once, tables exchanged, nothing left and nobody disturbed."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import weakref

import pytest
import torch
from torch.nn import functional as F

from pytest_udftorch import operator_udf, patched, stock
from pytest_udftorch.swap.compiled.follower import follower
from pytest_udftorch.swap.overrides import dispatcher
from pytest_udftorch.swap.overrides.switchboard import native, switchboard

X = torch.linspace(-3.0, 3.0, 8)
M = torch.linspace(-1.0, 1.0, 16).reshape(4, 4)

#: Operators of all kinds that sessions override, in the dtypes of their kernels.
CALLS = {
    "exp": lambda: torch.exp(X),
    "exp in half": lambda: torch.exp(X.half()),
    "erf in bfloat16": lambda: torch.erf(X.bfloat16()),
    "gelu": lambda: F.gelu(X),
    "sigmoid": lambda: torch.sigmoid(X),
    "product": lambda: M @ M,
    "softmax": lambda: X.softmax(0),
    "sum": lambda: M.sum(1),
    "layer_norm": lambda: F.layer_norm(M, (4,)),
    "convolution": lambda: F.conv1d(M.reshape(2, 2, 4), M[:, :2].reshape(2, 2, 2)),
}


def bits(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def add_300(self):
    return self + 300


# Registered once ---------------------------------------------------------------------------


def test_a_process_has_no_board_before_its_first_session_and_all_from_then_on():
    """In a process of its own: a UDF of another test gets a board of its own."""
    code = (
        "import torch\n"
        "from pytest_udftorch import patched\n"
        "from pytest_udftorch.swap.overrides.switchboard import native, places, switchboard\n"
        "session = patched('corem', functions=('exp',))\n"
        "torch.exp(torch.ones(3))\n"
        "assert not switchboard.is_used\n"
        "assert 'board of pytest_udftorch' not in torch._C._dispatch_dump('aten::exp')\n"
        "with session:\n"
        "    pass\n"
        "assert 'board of pytest_udftorch' in torch._C._dispatch_dump('aten::exp')\n"
        "boards = set(switchboard._boards)\n"
        "x = torch.linspace(-3, 3, 16).reshape(4, 4)\n"
        "with patched('corem', composites=True), patched('repro'), patched('canary'):\n"
        "    (torch.nn.functional.gelu(x @ x).softmax(0).half().exp().sum(), torch.randn(20))\n"
        "assert set(switchboard._boards) == boards, set(switchboard._boards) - boards\n"
        "assert boards <= set(places()), boards - set(places())\n"
        "assert all(native().typed(name.encode()) for name, _ in boards)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_boards_stay_and_call_the_stock_kernels():
    before = {name: bits(call()) for name, call in CALLS.items()}
    with patched("repro"):
        dump = torch._C._dispatch_dump("aten::mm")
        assert switchboard.called("aten::mm", "CPU") != "stock"
    assert torch._C._dispatch_dump("aten::mm") == dump
    assert switchboard.called("aten::mm", "CPU") == "stock"
    assert {name: bits(call()) for name, call in CALLS.items()} == before


# Freed when nobody is inside ---------------------------------------------------------------


def test_a_target_lives_as_long_as_a_thread_is_inside():
    entered, leave, found = threading.Event(), threading.Event(), []

    def slow(self):
        entered.set()
        leave.wait(60)
        return self + 300

    gone = weakref.ref(slow)
    leave.set()
    thread = threading.Thread(target=lambda: found.append(torch.log(X + 4)))
    with patched(operator_udf("aten::log")(slow), ranks="ignore"):
        entered.clear()  # the canary has been there
        leave.clear()
        thread.start()
        assert entered.wait(60)
    other = torch.log(X + 4)  # stock, while the thread is still inside
    del slow
    forget()
    assert gone() is not None
    leave.set()
    thread.join()
    assert torch.equal(found[0], X + 304)
    assert not torch.equal(other, found[0])
    native().collect()
    gc.collect()
    assert gone() is None


def forget():
    """Drop what is kept for the next session of the same selection."""
    from pytest_udftorch.swap.session import session
    from pytest_udftorch.swap.toolchain import file_states

    file_states._known.clear()
    session._plans.clear()
    session._actives.clear()
    switchboard.forget()
    gc.collect()


def test_sessions_of_ever_new_functions_leave_nothing_behind():
    def one(number):
        with patched(operator_udf("aten::log")(lambda self: self + number)):
            assert torch.equal(torch.log(X), X + number)

    one(0)
    forget()
    left, descriptors = native().collect(), len(os.listdir("/proc/self/fd"))
    boards = len(switchboard._boards)
    for number in range(60):
        one(number)
    forget()
    assert native().collect() <= left
    assert len(switchboard._boards) == boards
    assert len(os.listdir("/proc/self/fd")) == descriptors


# Threads -----------------------------------------------------------------------------------


def of_libraries():
    """The bits of each call under each library, and under none."""
    found = {name: {bits(call())} for name, call in CALLS.items()}
    for chosen in SELECTIONS:
        with chosen():
            for name, call in CALLS.items():
                found[name].add(bits(call()))
    return found


@operator_udf("aten::sigmoid")
def moved_sigmoid(self):
    return self + 300


#: What sessions are opened of, in turn.
SELECTIONS = (
    lambda: patched("corem"),
    lambda: patched("repro"),
    lambda: patched("canary"),
    lambda: patched("corem", composites=True),
    lambda: patched(moved_sigmoid, ranks="ignore"),
)


def held():
    """What a process holds on to: descriptors, mappings, and its memory in MB."""
    with open("/proc/self/maps") as maps, open("/proc/self/statm") as statm:
        pages = int(statm.read().split()[1])
        return len(os.listdir("/proc/self/fd")), sum(1 for _ in maps), pages >> 8


@pytest.mark.parametrize(
    ("switches", "workers"), [(50, 3), pytest.param(20_000, 16, marks=pytest.mark.slow)]
)
@pytest.mark.timeout(5400)
def test_threads_run_operators_while_sessions_open_and_close(switches, workers):
    known, stop, wrong = of_libraries(), threading.Event(), []

    def work():
        while not stop.is_set():
            for name, call in CALLS.items():
                try:
                    if (name.partition(" ")[0] in WHOLE) and bits(call()) not in known[name]:
                        wrong.append(name)
                    leaf = M.clone().requires_grad_()
                    (leaf @ leaf).sum().backward()
                except Exception as error:
                    wrong.append(f"{name}: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    before = None
    try:
        open_now = []
        for number in range(switches):
            if len(open_now) > 2:
                open_now.pop(number % 2).__exit__(None, None, None)
            session = SELECTIONS[number % len(SELECTIONS)]()
            session.__enter__()
            open_now.append(session)
            if number == switches // 2:
                before = held()
        after = held()
    finally:
        while open_now:
            open_now.pop().__exit__(None, None, None)
        stop.set()
        for thread in threads:
            thread.join()
    assert not wrong, wrong[:5]
    # Threads of Python and their arenas come and go.
    assert after[0] <= before[0]
    assert after[1] <= before[1] + 20
    assert after[2] <= before[2] + 60


#: Calls that one kernel computes: a switch comes before or after it.
WHOLE = frozenset(("gelu", "product", "sum", "erf"))


def test_a_board_that_mixes_libraries_would_be_seen():
    """The negative control: the libraries give other bits than stock."""
    known = of_libraries()
    assert len(known["gelu"]) > 1
    assert bits(F.gelu(X) + 1) not in known["gelu"]


# Moments -----------------------------------------------------------------------------------


def holder():
    with patched("canary"):
        yield


def ours(call, library):
    with patched(library):
        return bits(call())


def test_a_session_may_open_and_close_at_any_moment_of_anothers_switch():
    """A signal handler runs between any two lines of a switch."""
    want = ours(CALLS["exp"], "corem")
    plain, seen = bits(torch.exp(X)), []

    def open_one(*_):
        with patched("canary"):
            seen.append(bits(torch.exp(X)))

    before = signal.signal(signal.SIGALRM, open_one)
    try:
        for number in range(60):
            signal.setitimer(signal.ITIMER_REAL, 2e-5 + 1.1e-5 * number)
            with patched("corem", functions=("exp",)):
                got = bits(torch.exp(X))
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert got == want
            assert bits(torch.exp(X)) == plain
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert seen
    assert set(seen) == {ours(CALLS["exp"], "canary")}
    assert not dispatcher.overrides.registered()


def test_the_collector_may_end_a_session_while_another_opens():
    plain = bits(torch.exp(X))
    threshold = gc.get_threshold()
    try:
        for number in range(40):
            held = holder()
            next(held)
            cycle = [held]
            cycle.append(cycle)  # only the collector can end it
            del held, cycle
            gc.set_threshold(1 + 37 * number % 900)
            with patched("corem"):
                pass
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert bits(torch.exp(X)) == plain


def test_another_session_that_closes_leaves_no_moment_of_stock(monkeypatch):
    """Kernels of other functions are exchanged below a session whose functions stay."""
    x, seen = torch.linspace(-9, 9, 4099), []

    def gelu():
        seen.append(bits(F.gelu(x)))

    def look(*given):
        # Between the old kernels and the new ones.
        thread = threading.Thread(target=gelu)
        thread.start()
        thread.join()
        change(*given)

    change, plain = follower._changes["torch.library"], bits(F.gelu(x))
    below = patched("canary", functions=("log",))
    below.__enter__()
    with patched("corem", functions=("erf",), composites=True):
        want = bits(F.gelu(x))
        monkeypatch.setitem(follower._changes, "torch.library", look)
        below.close()
        assert seen == [want]
        gelu()
        assert set(seen) == {want}
    assert want != plain
    assert bits(F.gelu(x)) == plain


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_that_is_forked_inside_an_operator_can_switch():
    """Its parent's threads are gone, also those that were inside of a board."""
    entered, leave = threading.Event(), threading.Event()

    def slow(self):
        entered.set()
        leave.wait(60)
        return self + 300

    leave.set()
    with patched(operator_udf("aten::log")(slow), ranks="ignore"):
        entered.clear()  # the canary has been there
        leave.clear()
        thread = threading.Thread(target=lambda: torch.log(X + 4))
        thread.start()
        assert entered.wait(60)
        child = os.fork()
        if not child:
            with patched(operator_udf("aten::sigmoid")(add_300), ranks="ignore"):
                right = torch.equal(torch.sigmoid(X), X + 300)
            forget()
            os._exit(0 if right and not native().collect() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        leave.set()
        thread.join()


# What a kernel in Python does not see ------------------------------------------------------


def test_a_kernel_in_python_is_called_without_modes_and_overrides():
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Functions(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(getattr(func, "__name__", str(func)))
            return func(*args, **(kwargs or {}))

    class Operators(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with patched(operator_udf("aten::log")(add_300)), Functions(), Operators():
        got = torch.log(X)
    assert torch.equal(got, X + 300)
    assert seen == ["log", "aten.log.default"]


def test_a_kernel_in_python_may_enter_a_mode_of_its_own():
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Operators(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    def log(self):
        with Operators():
            return self + 300

    with patched(operator_udf("aten::log")(log)):
        seen.clear()
        assert torch.equal(torch.log(X), X + 300)
    assert seen == ["aten.add.Tensor"]


@pytest.mark.filterwarnings("ignore:.torch.jit.trace")
def test_a_graph_that_is_traced_has_the_operator_and_not_its_inside():
    def log(self):
        assert isinstance(self.shape[0], int)  # no number of the tracer's
        return (self.abs() + 1).cumsum(0)

    with patched(operator_udf("aten::log")(log)):
        traced = torch.jit.trace(torch.log, X, check_trace=False)
        assert torch.equal(traced(X), torch.log(X))
    assert "aten::log" in str(traced.graph)
    assert "cumsum" not in str(traced.graph)
    assert torch.equal(traced(X + 4), torch.log(X + 4))


def test_errors_of_a_kernel_in_python_keep_their_class():
    class Mine(Exception):
        pass

    def log(self):
        if self.numel() == 3:
            raise Mine("from inside")
        return stock(self)

    with patched(operator_udf("aten::log")(log)):
        with pytest.raises(Mine, match="from inside"):
            torch.log(torch.ones(3))
        assert torch.equal(torch.log(torch.ones(4)), torch.zeros(4))
        leaf = torch.ones(4).requires_grad_()
        torch.log(leaf).sum().backward()
    assert torch.equal(leaf.grad, torch.ones(4))


@pytest.mark.parametrize("wrong", [3, (1, 2), "text"])
def test_results_that_are_no_tensors_are_errors(wrong):
    def log(self):
        return wrong if self.numel() == 3 else stock(self)

    with patched(operator_udf("aten::log")(log)), pytest.raises(Exception, match="Tensor"):
        torch.log(torch.ones(3))
