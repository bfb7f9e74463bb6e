# SPDX-License-Identifier: Apache-2.0
"""Exclusive sessions: no result mixes two libraries, nothing stands still, all is put back."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections import OrderedDict

import pytest
import torch

from benches.experiments.exclusive import Callers
from pytest_udftorch import patched
from pytest_udftorch.errors import NativeError, SessionBusyError, SessionStateError
from pytest_udftorch.swap.session import exclusive
from pytest_udftorch.swap.session.binder import binder
from pytest_udftorch.swap.session.exclusive import TIMEOUT, gate
from pytest_udftorch.swap.toolchain import torch_part

X = torch.linspace(-5.0, 5.0, 1001)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    made = []
    for name, shift in (("one", 100), ("two", 300)):
        folder = tmp_path_factory.mktemp(name)
        (folder / "u.c").write_text(f"float e(float x) {{ return x + {shift}; }}\n")
        (folder / "udf.toml").write_text(
            f'[library]\nname = "{name}"\nversion = "1"\n'
            '[functions.exp.float32]\nsource = "u.c"\nscalar = "e"\n'
        )
        with patched(folder, exclusive=True):  # built before threads run
            pass
        made.append(folder)
    return made


@pytest.fixture(autouse=True)
def as_before():
    stock = torch.exp(X)
    yield
    assert not binder().owners()
    assert not gate.is_active
    assert torch.equal(torch.exp(X), stock)
    assert [t for t in threading.enumerate() if t.name.startswith("caller")] == []


def exp():
    # Large enough for OpenMP's workers, and for a switch to fall into one.
    x = torch.full((200_000,), 2.5)
    return lambda: torch.exp(x)


def gradient():
    x = torch.full((200_000,), 2.5, requires_grad=True)
    # torch differentiates exp as grad * result.
    return lambda: torch.autograd.grad(torch.exp(x).exp().sum(), x)[0]


def switch(libraries, callers: Callers, enough, **options) -> int:
    """Open and close sessions in turns until there is enough; return how many."""
    done = 0
    deadline = time.monotonic() + 120
    while not enough(done):
        assert time.monotonic() < deadline, (done, callers.operators, callers.mixed)
        with patched(libraries[done % 2], **options):
            operators = callers.operators
            while callers.operators == operators:
                time.sleep(0.0005)
        done += 1
    return done


@pytest.mark.parametrize("inner", [{"exclusive": True}, {}], ids=["each", "around"])
def test_no_result_mixes_two_libraries(libraries, inner):
    with Callers(3, exp) as callers:
        # The negative control: without it, results are mixed.
        alone = switch(libraries, callers, lambda _: len(callers.mixed) >= 3)
        callers.settle()
        held, before, mixed = gate.held, callers.operators, len(callers.mixed)
        with contextlib.ExitStack() as stack:
            if not inner:
                stack.enter_context(patched("std", exclusive=True))
            switch(libraries, callers, lambda done: done >= alone, **inner)
        assert callers.operators > before
        assert callers.mixed[mixed:] == []
        assert gate.held > held
        # The control again: the gate has left nothing behind that keeps them apart.
        switch(libraries, callers, lambda _: len(callers.mixed) > mixed)


def test_gradients_and_small_operators_do_not_stop_a_switch(libraries):
    with Callers(2, gradient) as callers, patched("std", exclusive=True):
        switch(libraries, callers, lambda done: done >= 10)


def test_workers_of_a_data_loader_run_through_switches(libraries):
    data = torch.utils.data.TensorDataset(X)
    with patched(libraries[0], exclusive=True):
        loader = torch.utils.data.DataLoader(data, batch_size=100, num_workers=2)
        rows = []
        for (row,) in loader:
            with patched(libraries[1], exclusive=True):
                rows.append(torch.exp(row))
    assert torch.equal(torch.cat(rows), X + 300)


# Operators that take long -------------------------------------------------------------


@pytest.fixture(scope="module")
def operator():
    """``run(f)``: an operator written in Python, which calls ``f`` and returns exp of its input."""
    work = {}
    library = torch.library.Library("udftorch_exclusive", "FRAGMENT")
    library.define("call(Tensor x) -> Tensor")

    def call(x):
        first = torch.exp(x)
        work["now"]()
        return torch.stack([first, torch.exp(x)])

    library.impl("call", call, "CPU")

    def run(function):
        work["now"] = function
        return torch.ops.udftorch_exclusive.call(X[:1])

    yield run
    library._destroy()


class Inside:
    """A thread that stays in an operator until it is told to leave."""

    def __init__(self, operator) -> None:
        self.entered, self.leave = threading.Event(), threading.Event()
        self.result = None
        self._operator = operator
        self._thread = threading.Thread(target=self._run, name="caller inside")

    def _run(self) -> None:
        def stay() -> None:
            self.entered.set()
            self.leave.wait(60)

        self.result = self._operator(stay)

    def __enter__(self) -> Inside:
        self._thread.start()
        assert self.entered.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self.leave.set()
        self._thread.join()


@pytest.mark.parametrize("counted", [True, False], ids=["counted", "began before"])
def test_an_operator_that_does_not_end_is_named(libraries, operator, monkeypatch, counted):
    monkeypatch.setenv(TIMEOUT, "0.3")
    with contextlib.ExitStack() as stack:
        if counted:
            stack.enter_context(patched("std", exclusive=True))
        inside = stack.enter_context(Inside(operator))
        stock = torch.exp(X)
        with pytest.raises(SessionBusyError, match="caller inside") as error:
            patched(libraries[0], exclusive=True).__enter__()
        assert "Nothing was changed" in str(error.value)
        assert torch.equal(torch.exp(X), stock)
        assert len(binder().owners()) == counted
        inside.leave.set()
        inside._thread.join()
        assert torch.equal(inside.result[0], inside.result[1])
        monkeypatch.setenv(TIMEOUT, "30")
        with patched(libraries[0], exclusive=True):
            assert torch.equal(torch.exp(X), X + 100)


def test_a_thread_that_sleeps_outside_of_operators_is_not_in_the_way(libraries, monkeypatch):
    """The control of the test above: the same thread, and no operator around its wait."""
    monkeypatch.setenv(TIMEOUT, "10")
    with Inside(lambda stay: stay()), patched(libraries[0], exclusive=True):
        assert torch.equal(torch.exp(X), X + 100)


def test_a_close_that_waits_too_long_restores(libraries, operator, monkeypatch):
    monkeypatch.setenv(TIMEOUT, "0.3")
    stock = torch.exp(X)
    session = patched(libraries[0], exclusive=True).__enter__()
    with Inside(operator):
        with pytest.raises(SessionBusyError, match="restored all the same"):
            session.close()
        assert not session.is_open
        assert torch.equal(torch.exp(X), stock)
        session.close()


@pytest.mark.parametrize("closing", [False, True], ids=["opening", "closing"])
def test_an_interrupt_ends_the_wait(libraries, operator, closing):
    stock = torch.exp(X)
    session = patched(libraries[0], exclusive=True)
    if closing:
        session.__enter__()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with Inside(operator):
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(KeyboardInterrupt):
                session.close() if closing else session.__enter__()
            assert torch.equal(torch.exp(X), stock)
            assert not session.is_open
    finally:
        signal.signal(signal.SIGALRM, before)


def test_an_operator_may_wait_for_an_operator_of_another_thread(libraries, operator):
    def ask_another() -> None:
        started.set()
        time.sleep(0.3)
        other = threading.Thread(target=lambda: torch.exp(X), name="caller other")
        other.start()
        other.join()

    started = threading.Event()
    with patched("std", exclusive=True):
        thread = threading.Thread(target=operator, args=(ask_another,), name="caller asking")
        thread.start()
        assert started.wait(60)
        with patched(libraries[0]):
            assert not thread.is_alive()
            assert torch.equal(torch.exp(X), X + 100)
        thread.join()


def test_an_operator_may_open_sessions(libraries, operator):
    """Its own result is its own affair; it waits for nobody who waits for it."""

    def open_one() -> None:
        started.set()
        time.sleep(0.2)
        with patched(libraries[1], exclusive=True):
            seen.append(torch.exp(X))

    started, seen = threading.Event(), []
    with patched("std", exclusive=True):
        thread = threading.Thread(target=operator, args=(open_one,), name="caller opening")
        thread.start()
        assert started.wait(60)
        with patched(libraries[0], exclusive=True):
            assert torch.equal(torch.exp(X), X + 100)
        thread.join()
    assert torch.equal(seen[0], X + 300)


def test_a_thread_that_holds_the_lock_of_logging_may_wait_for_sessions(
    libraries, operator, monkeypatch
):
    """A log handler, or the collector while something is logged. Dynamo logs, too."""
    import torch._dynamo as dynamo

    def open_one() -> None:
        started.set()
        assert go.wait(60)
        with patched(libraries[1], exclusive=True):
            seen.append(torch.exp(X))

    def reset() -> None:
        if threading.current_thread() is thread:
            logs.set()
        real()

    real, started, go, logs, seen = dynamo.reset, *(threading.Event() for _ in range(3)), []
    monkeypatch.setattr(dynamo, "reset", reset)
    monkeypatch.setenv(TIMEOUT, "2")
    with patched("std", exclusive=True):
        thread = threading.Thread(target=operator, args=(open_one,), name="caller opening")
        thread.start()
        assert started.wait(60)
        with logging._lock:
            go.set()
            with pytest.raises(SessionBusyError, match="caller opening"):
                patched(libraries[0], exclusive=True).__enter__()
            assert logs.wait(60), "the thread waits for the lock of logging"
            assert thread.is_alive()
        thread.join()
    assert torch.equal(seen[0], X + 300)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_while_a_switch_waits_leaves_the_child_free(libraries, operator):
    failed = []

    def open_one() -> None:
        try:
            with patched(libraries[0], exclusive=True):
                pass
        except BaseException as error:
            failed.append(error)

    with Inside(operator):
        thread = threading.Thread(target=open_one, name="caller waiting")
        thread.start()
        while not gate.is_active:
            time.sleep(0.001)
        time.sleep(0.05)
        child = os.fork()
        if not child:
            ok = False
            try:
                torch.set_num_threads(1)
                ok = not gate.is_active and not torch.equal(torch.exp(X), X + 100)
                for library, shift in zip(libraries, (100, 300), strict=True):
                    with patched(library, exclusive=True):
                        ok = ok and torch.equal(torch.exp(X), X + shift)
            finally:
                os._exit(0 if ok else 1)
        assert os.waitpid(child, 0)[1] == 0
    thread.join()
    assert not failed


def test_an_exception_in_the_body_restores(libraries):
    with pytest.raises(ZeroDivisionError), patched(libraries[0], exclusive=True):
        _ = 1 / 0


def test_sessions_close_in_any_order(libraries):
    with Callers(1, exp):
        first = patched(libraries[0], exclusive=True).__enter__()
        second = patched(libraries[1], exclusive=True).__enter__()
        first.close()
        assert gate.is_active
        assert torch.equal(torch.exp(X), X + 300)
        second.close()


def test_bad_arguments(libraries, monkeypatch):
    with pytest.raises(SessionStateError, match="exclusive='yes'"):
        patched(libraries[0], exclusive="yes")
    monkeypatch.setenv(TIMEOUT, "soon")
    with pytest.raises(SessionStateError, match="UDFTORCH_EXCLUSIVE_TIMEOUT='soon'"):
        patched(libraries[0], exclusive=True).__enter__()


def test_a_gate_that_does_not_compile_says_why(libraries, tmp_path, monkeypatch):
    broken = tmp_path / "gate.cpp"
    broken.write_text("#include <no/such/header.h>\n")
    monkeypatch.setenv("UDFTORCH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(exclusive, "_native", exclusive._native.__wrapped__)
    monkeypatch.setattr(torch_part, "native_file", lambda _: broken)
    with pytest.raises(NativeError, match="no/such/header"):
        patched(libraries[0], exclusive=True).__enter__()


def test_an_operator_that_waits_too_long_goes_on_and_the_switch_says_so(libraries, monkeypatch):
    """What a switch does while the gate is closed must not stop the process for ever."""
    monkeypatch.setattr(exclusive, "_LONGER", 0.0)
    monkeypatch.setenv(TIMEOUT, "0.5")
    with Callers(1, exp) as callers, patched("std", exclusive=True):
        session = patched(libraries[0])

        def slow(bound) -> None:
            before = callers.operators
            while callers.operators < before + 2:
                time.sleep(0.01)

        monkeypatch.setattr(session, "_verify", slow)
        monkeypatch.setattr("pytest_udftorch.swap.session.session._plans", OrderedDict())
        with pytest.raises(SessionBusyError, match="went on without it"):
            session.__enter__()
        assert not session.is_open


class Deep(torch.autograd.Function):
    """Its backward runs a backward of its own, and so on; from some depth on in a new thread."""

    @staticmethod
    def forward(ctx, x, depth):
        ctx.depth = depth
        ctx.save_for_backward(x)
        return x.detach().exp()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        if ctx.depth:
            with torch.enable_grad():
                inner = x.detach().requires_grad_()
                Deep.apply(inner, ctx.depth - 1).sum().backward()
        return gradient, None


def test_threads_of_autograd_that_wait_for_work_are_not_in_the_way(libraries, monkeypatch):
    threads = len(os.listdir("/proc/self/task"))
    Deep.apply(torch.ones(3, requires_grad=True), 70).sum().backward()
    assert len(os.listdir("/proc/self/task")) > threads
    monkeypatch.setenv(TIMEOUT, "10")
    with patched(libraries[0], exclusive=True):
        assert torch.equal(torch.exp(X), X + 100)
