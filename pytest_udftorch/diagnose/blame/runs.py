# SPDX-License-Identifier: Apache-2.0
"""What a search may ask for: runs under a, under b, the units of both, and trials between them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Literal

from pytest_udftorch.diagnose.blame.trial import Outcome
from pytest_udftorch.diagnose.runs.switch import Pair, Scout, Unit, units_by_place, with_units

What = Literal["a", "b", "units", "trial"]


@dataclass(frozen=True)
class Order:
    """A run.

    Attributes:
        what: a session of a or b, the units that both call, or a trial.
        chosen: of a trial: what gets the functions of b.
        known: all units.
    """

    what: What
    chosen: tuple[Unit, ...] = ()
    known: tuple[Unit, ...] = ()


Run = Callable[[], Outcome]


def done(pair: Pair, run: Run, order: Order) -> tuple[Outcome, list[Unit]]:
    """Do what an order says; return what came of it, and the units if they were asked for."""
    if order.what == "units":
        return _units(pair, run)
    with _under(pair, order):
        return run(), []


@contextlib.contextmanager
def _under(pair: Pair, order: Order) -> Iterator[None]:
    if order.what == "b":
        with pair.opened(pair.b):
            yield
        return
    with pair.opened(pair.a), contextlib.ExitStack() as stack:
        if order.what == "trial":
            stack.enter_context(with_units(pair, order.chosen, order.known))
        yield


def _units(pair: Pair, run: Run) -> tuple[Outcome, list[Unit]]:
    # Another library may lead to other operators.
    scout = Scout(pair.names)
    for one in (pair.a, pair.b):
        with pair.opened(one), scout.active():
            outcome = run()
    return outcome, units_by_place(scout.units)


def as_plain(units: Sequence[Unit]) -> list[list[str]]:
    """Return units as plain data."""
    return [list(astuple(u)) for u in units]


def units_from(plain: Any) -> tuple[Unit, ...]:
    """Return units of plain data."""
    return tuple(Unit(*u) for u in plain)
