# SPDX-License-Identifier: Apache-2.0
"""Whatever is opened and closed, in whatever order, the process is afterwards as it was."""

import functools
import random
import sys
from pathlib import Path

import pytest
import torch

from pytest_udftorch import operator_udf, patched, trace
from pytest_udftorch.compiled.follower import STOCK, Follower, follower
from pytest_udftorch.errors import ProfileBusyError
from pytest_udftorch.overrides import dispatcher, stacked
from pytest_udftorch.profile import forks
from pytest_udftorch.session.binder import binder

X = torch.linspace(-5.0, 5.0, 1001)
PACKAGE = str(Path(dispatcher.__file__).parents[1])
#: An interrupt inside a change of a compiler's own tables is not healed yet.
SPARED = Follower.follow.__code__


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
    assert torch.nn.Module.__call__ is call
    assert torch.equal(torch.exp(X), stock[0])
    assert torch.equal(torch.log(X.abs()), stock[1])


@pytest.mark.parametrize("seed", range(6))
def test_sessions_traces_profiles_and_overrides_in_any_order(shifted, as_before, seed):
    kinds = {
        "functions": lambda: patched(shifted),
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
                with pytest.raises(ProfileBusyError):
                    scope.__enter__()
            else:
                scope.__enter__()
                opened.append((kind, scope))
        on_exp = [k for k, _ in opened if k in ("functions", "profile", "stock", "events")]
        shifts = bool(on_exp) and on_exp[-1] in ("functions", "profile")
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


def _interrupted_after(count: int, leave) -> bool:
    """Raise where Python runs signal handlers, once restoring has begun; tell whether it did.

    Python looks for signals where a function begins and where a call of a C function ends.
    """
    left = count
    begun = hit = False
    spared = 0

    def interrupt(frame, event, argument):
        nonlocal left, begun, hit, spared
        if frame.f_code is SPARED and event in ("call", "return"):
            spared += 1 if event == "call" else -1
        if frame.f_code is stacked.insist.__code__:
            begun = True
        elif (
            begun
            and event in ("call", "c_return")
            and PACKAGE in frame.f_code.co_filename
            and not spared
        ):
            left -= 1
            if left < 0 and not hit:
                hit = True
                raise _Interrupt

    sys.setprofile(interrupt)
    try:
        leave()
    except _Interrupt:
        assert hit
    finally:
        sys.setprofile(None)
    return hit


@pytest.mark.parametrize("what", ["functions", "nested", "trace"])
def test_an_interrupt_waits_until_everything_is_restored(shifted, as_before, what):
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
            session = patched(shifted).__enter__()
            hit = _interrupted_after(count, session.close)
            assert not session.is_open
        bound = binder()
        exp = [s for s in bound.slots_of("exp", "float32")]
        if what != "nested":
            assert bound.native.read(exp) == [bound.native.resolve(s) for s in exp]
        assert torch.equal(torch.exp(X), stock)
        if not hit:
            break
        count += 1
    assert count > 20
