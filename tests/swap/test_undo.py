# SPDX-License-Identifier: Apache-2.0
"""An Undo takes back what was changed through it, also after an interrupt."""

import pytest

from pytest_udftorch.swap.overrides.undo import Undo


class Base:
    inherited = "base"


class Owner(Base):
    own = "own"


def test_everything_is_taken_back_in_reverse_order():
    undo, table, owner = Undo(), {"a": 1, "b": 2}, Owner()
    undo.set(owner, "own", 1)
    undo.set_own(Owner, "own", 2)
    undo.set_own(Owner, "inherited", 3)
    undo.set_item(table, "a", 4)
    undo.set_item(table, "a", 5)
    undo.set_item(table, "new", 6)
    undo.drop_item(table, "b")
    undo.drop_item(table, "missing")
    assert (owner.own, Owner.own, Owner.inherited) == (1, 2, 3)
    assert table == {"a": 5, "new": 6}
    undo.run()
    assert (owner.own, Owner.own, Owner.inherited) == ("own", "own", "base")
    assert "inherited" not in vars(Owner)
    assert table == {"a": 1, "b": 2}


def test_a_step_that_fails_stays_to_be_run_again():
    undo, table, tries = Undo(), {"a": 1}, []

    def step():
        tries.append(1)
        if len(tries) == 1:
            raise KeyboardInterrupt

    undo.set_item(table, "a", 2)
    undo.later(step)
    with pytest.raises(KeyboardInterrupt):
        undo.run()
    assert table == {"a": 2}
    undo.run()
    assert table == {"a": 1}
    assert len(tries) == 2


def test_a_change_that_fails_is_recorded_before():
    class Stubborn(dict):
        def __setitem__(self, key, value):
            super().__setitem__(key, value)
            if value == "bad":
                raise KeyboardInterrupt

    undo, table = Undo(), Stubborn(a=1)
    with pytest.raises(KeyboardInterrupt):
        undo.set_item(table, "a", "bad")
    undo.run()
    assert table == {"a": 1}


def test_a_step_for_the_end_runs_unless_it_is_recorded_again():
    undo, done = Undo(), []
    first, second = (lambda: done.append("first")), (lambda: done.append("second"))
    undo.at_last(first)
    undo.at_last(second)
    undo.run()
    assert done == []
    undo.at_last(second)
    undo.finish()
    assert done == ["first"]
    undo.run()
    undo.finish()
    undo.finish()
    assert done == ["first", "second"]


def test_a_step_for_the_end_that_fails_stays():
    undo, done = Undo(), []

    def step():
        done.append(len(done))
        if len(done) == 1:
            raise KeyboardInterrupt

    undo.at_last(step)
    undo.run()
    with pytest.raises(KeyboardInterrupt):
        undo.finish()
    undo.finish()
    assert done == [0, 1]


@pytest.mark.parametrize("within", [False, True])
def test_a_signal_handler_may_take_everything_back_in_between(within):
    """A session that opens and closes inside of a step does so."""
    undo, table, seen = Undo(), {"a": 1}, []

    def handler():
        undo.run()
        undo.set_item(table, "a", 3)
        undo.run()
        undo.finish()

    def step():
        seen.append(table["a"])
        if len(seen) == 1 and not within:
            handler()

    def last():
        seen.append("last")
        if seen.count("last") == 1 and within:
            handler()

    undo.set_item(table, "a", 2)
    undo.later(step)
    undo.at_last(last)
    undo.run()
    assert table == {"a": 1}
    undo.finish()
    # A step may run more than once.
    assert seen == ([2, "last", "last"] if within else [2, 2, "last"])
    seen.clear()
    undo.run()
    undo.finish()
    assert not seen
