# SPDX-License-Identifier: Apache-2.0
"""Whatever is opened and closed, in whatever order, the process is afterwards as it was."""

import contextlib
import functools
import importlib
import inspect
import logging
import os
import random
import sys
from pathlib import Path

import pytest
import torch

from benches.experiments import interrupts
from pytest_udftorch import operator_udf, patched, trace
from pytest_udftorch.base import compat
from pytest_udftorch.errors import SessionBusyError
from pytest_udftorch.swap.compiled.follower import STOCK, follower
from pytest_udftorch.swap.counting import forks
from pytest_udftorch.swap.overrides import dispatcher
from pytest_udftorch.swap.session.binder import binder
from pytest_udftorch.swap.session.exclusive import gate

X = torch.linspace(-5.0, 5.0, 1001)
PACKAGE = str(Path(dispatcher.__file__).parents[1])


@pytest.fixture(scope="module")
def shifted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shifted")
    (folder / "u.c").write_text("float e(float x) { return x + 100; }\n")
    (folder / "udf.toml").write_text(
        '[library]\nname = "shifted"\nversion = "1"\n'
        '[functions.exp.float32]\nsource = "u.c"\nscalar = "e"\n'
    )
    return folder


@operator_udf("aten::log")
def python_log(self, *, out):
    return torch.add(self, 300, out=out)


@pytest.fixture
def as_before():
    """What the owners of state hold after the test is what they held before it."""
    bound = binder()
    slots = [*bound.slots, *bound.parallel_slots]
    values = bound.native.read(slots)
    call, stock = torch.nn.Module.__call__, (torch.exp(X), torch.log(X.abs()))
    yield
    for slot, old, new in zip(slots, values, bound.native.read(slots), strict=True):
        # The loader itself may have bound a slot since: then it is the stock function.
        assert new == old or new == bound.native.resolve(slot), slot
    assert not bound.owners()
    assert not dispatcher.overrides.registered()
    assert follower.active.id == STOCK
    assert forks.active.collector is None
    assert not gate.is_active
    assert not logging._lock._is_owned()
    assert torch.nn.Module.__call__ is call
    assert torch.is_grad_enabled()
    assert dispatcher.mode_now() is dispatcher.Mode.NORMAL
    assert torch.equal(torch.exp(X), stock[0])
    assert torch.equal(torch.log(X.abs()), stock[1])


@pytest.mark.parametrize("seed", range(6))
def test_sessions_traces_profiles_and_overrides_in_any_order(shifted, as_before, seed):
    kinds = {
        "functions": lambda: patched(shifted),
        "exclusive": lambda: patched(shifted, exclusive=True),
        "stock": lambda: patched("std", ("exp", "aten::log")),
        "profile": lambda: patched(shifted, profile=True),
        "events": lambda: patched("std", ("exp", "aten::log"), profile="events"),
        "operator": lambda: patched(python_log),
        "trace": lambda: trace(("exp", "log")),
    }
    stock, stock_log = torch.exp(X), torch.log(X.abs())
    choose = random.Random(seed)
    opened = []
    for _ in range(30):
        if opened and choose.random() < 0.45:
            _, scope = opened.pop(choose.randrange(len(opened)))
            scope.__exit__(None, None, None)
        else:
            kind = choose.choice(sorted(kinds))
            scope = kinds[kind]()
            if kind in ("profile", "events") and forks.active.collector is not None:
                with pytest.raises(SessionBusyError, match="open in this process"):
                    scope.__enter__()
            else:
                scope.__enter__()
                opened.append((kind, scope))
        swapping = ("functions", "exclusive", "profile")
        on_exp = [k for k, _ in opened if k in (*swapping, "stock", "events")]
        shifts = bool(on_exp) and on_exp[-1] in swapping
        assert torch.equal(torch.exp(X), X + 100 if shifts else stock)
        on_log = [k for k, _ in opened if k in ("operator", "stock", "events")]
        overridden = bool(on_log) and on_log[-1] == "operator"
        assert torch.equal(torch.log(X.abs()), X.abs() + 300 if overridden else stock_log)
    while opened:
        _, scope = opened.pop(choose.randrange(len(opened)))
        scope.__exit__(None, None, None)


def test_each_owner_can_be_reset(shifted, as_before):
    sessions = [patched(shifted), patched(python_log), patched("std", profile=True)]
    for session in sessions:
        session.__enter__()
    counting = trace()
    counting.__enter__()
    forks.active.reset()
    dispatcher.overrides.reset()
    binder().reset()
    follower.reset()
    for scope in (*sessions, counting):
        scope.__exit__(None, None, None)


class _Interrupt(BaseException):
    pass


def _interrupted_after(count: int, run, *, begun: bool = False) -> bool:
    """Raise where Python runs signal handlers; tell whether there was such a place.

    Python looks for signals where a function begins and where a call of a C function ends.

    Args:
        count: how many of these places in the package are passed over.
        run: what is interrupted.
        begun: count from the start, and not from where restoring begins.
    """
    left = count
    hit = False

    def interrupt(frame, event, argument):
        nonlocal left, begun, hit
        if frame.f_code.co_name in ("_restore", "leave"):
            begun = True
        elif begun and event in ("call", "c_return") and PACKAGE in frame.f_code.co_filename:
            left -= 1
            if left < 0 and not hit:
                hit = True
                raise _Interrupt

    sys.setprofile(interrupt)
    try:
        run()
    except _Interrupt:
        assert hit
    finally:
        sys.setprofile(None)
    return hit


@pytest.mark.parametrize(
    ("what", "stride"),
    [
        ("functions", 1),
        ("exclusive", 17),
        ("nested", 11),
        ("trace", 1),
        pytest.param("exclusive", 3, marks=pytest.mark.slow),
    ],
)
def test_an_interrupt_waits_until_everything_is_restored(shifted, as_before, what, stride):
    stock = torch.exp(X)
    count = 0
    while True:
        if what == "nested":
            with patched(shifted):
                inner = patched("std").__enter__()
                hit = _interrupted_after(count, inner.close)
                assert torch.equal(torch.exp(X), X + 100)
        elif what == "trace":
            scope = trace(("exp",))
            scope.__enter__()
            leave = functools.partial(scope.__exit__, None, None, None)
            hit = _interrupted_after(count, leave)
        else:
            session = patched(shifted, exclusive=what == "exclusive").__enter__()
            hit = _interrupted_after(count, session.close)
            assert not session.is_open
        bound = binder()
        exp = [s for s in bound.slots_of("exp", "float32")]
        if what != "nested":
            assert bound.native.read(exp) == [bound.native.resolve(s) for s in exp]
        assert torch.equal(torch.exp(X), stock)
        if not hit:
            break
        count += stride
    assert count > 20


# An interrupt inside os.walk leaves its iterator to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_timer_that_raises_leaves_nothing_swapped(as_before):
    hits = 0
    for seed in range(10):
        found = interrupts.interrupted(200, seed)
        assert not found["left_swapped"]
        assert not found["left_changed"]
        assert not found["other_errors"]
        hits += found["interrupted"]
        if hits > 50:
            break
    assert hits > 50


def _compilers() -> dict[str, object]:
    """What a session changes in the compilers of this process."""
    config = importlib.import_module(compat.INDUCTOR_CONFIG)
    cpp = importlib.import_module(compat.INDUCTOR_CPP)
    on_gpu = importlib.import_module(compat.INDUCTOR_TRITON)
    found = {
        "cxx": config.cpp.cxx,
        "metadata": config.aot_inductor.metadata,
        "threads": config.compile_threads,
        "rounding": config.eager_numerics.division_rounding,
        "vectors": dict(vars(cpp.CppVecOverrides)),
        "kernels": dict(vars(on_gpu.TritonKernelOverrides)),
        "lowerings": dict(importlib.import_module(compat.INDUCTOR_LOWERING).lowerings),
        "decomposed": dict(importlib.import_module(compat.INDUCTOR_DECOMPOSITION).decompositions),
        "shims": dict(importlib.import_module(compat.INDUCTOR_SHIMS).inductor_fallback_ops),
        "environment": dict(os.environ),
    }
    with contextlib.suppress(ImportError):
        math = importlib.import_module(compat.TRITON_MATH)
        found["builtins"] = [inspect.unwrap(getattr(math, n)).__code__ for n in ("exp", "erf")]
        found["globals"] = set(inspect.unwrap(math.exp).__globals__)
        found["knob"] = importlib.import_module(compat.TRITON_KNOBS).nvidia.libdevice_path
        jit = importlib.import_module(compat.TRITON_JIT)
        found["keys"] = (jit.compute_cache_key, jit.get_cache_key)
    return found


# An interrupt in a generator that is being closed is swallowed by Python, with this warning.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("when", "stride"),
    [
        ("opening", 43),
        ("closing", 3),  # where changes are taken back
        pytest.param("opening", 9, marks=pytest.mark.slow),
    ],
)
def test_an_interrupt_leaves_no_change_in_a_compiler(as_before, when, stride):
    wanted = functools.partial(patched, "corem", functions=("exp", "erf"))
    importlib.import_module(compat.DYNAMO_FRAMES)
    _compilers()  # imports them
    with wanted():  # builds what is compiled once, and lets Inductor wrap its operations
        changed = _compilers()
    before = _compilers()
    assert {k for k in before if before[k] != changed[k]} >= {"cxx", "rounding", "vectors"}
    stock = torch.exp(X)
    count, hit, still_open = 0, True, 0
    while hit:
        session = wanted()
        if when == "opening":
            hit = _interrupted_after(count, lambda s=session: _leave(s), begun=True)
        else:
            hit = _interrupted_after(count, session.__enter__().close)
        if session.is_open:
            # Between the end of __enter__ and the begin of closing, Python lets no one step in.
            still_open += 1
            session.close()
        assert _compilers() == before
        assert torch.equal(torch.exp(X), stock)
        count += stride
    assert count > 100
    assert still_open < 3


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("stride", [139, pytest.param(29, marks=pytest.mark.slow)])
def test_an_interrupt_while_an_exclusive_session_opens_leaves_nothing(shifted, as_before, stride):
    stock = torch.exp(X)
    count, hit, still_open = 0, True, 0
    while hit:
        session = patched(shifted, exclusive=True)
        hit = _interrupted_after(count, lambda s=session: _leave(s), begun=True)
        if session.is_open:
            still_open += 1
            session.close()
        assert not gate.is_active
        assert torch.equal(torch.exp(X), stock)
        count += stride
    assert count > 100
    assert still_open < 3


@pytest.mark.parametrize("when", ["opening", "closing"])
def test_an_interrupt_leaves_the_lock_of_logging_free(shifted, as_before, monkeypatch, when):
    """It comes where the call ends by which Python up to 3.12 takes the lock."""
    dynamo = importlib.import_module(compat.DYNAMO)
    monkeypatch.setattr(dynamo, "reset", lambda: logging.getLogger(f"of {when}").debug("reset"))

    def interrupt(frame, event, argument):
        if event == "c_return" and frame.f_code.co_name == "_acquireLock":
            sys.setprofile(None)
            raise _Interrupt

    session = patched(shifted)
    if when == "closing":
        session.__enter__()
    sys.setprofile(interrupt)
    try:
        session.__enter__() if when == "opening" else session.close()
    except _Interrupt:
        assert sys.version_info < (3, 13)
    finally:
        sys.setprofile(None)
    session.close()
    assert not logging._lock._is_owned()


def _leave(session) -> None:
    with session:
        pass
