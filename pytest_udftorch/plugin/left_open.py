# SPDX-License-Identifier: Apache-2.0
"""Sessions that a test opens itself and does not close.

Every run of pytest loads this module, so it imports nothing beyond pytest. PYTEST_DONT_REWRITE:
nothing here asserts.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from pytest_udftorch.swap.session.session import Session

_OPENED = pytest.StashKey["list[Session]"]()


class LeftOpen:
    """Closes the sessions that a test has left open, and names the test."""

    #: Whoever opens sessions around single operators of a test (blame) runs pytest without it.
    NAME: Final = "udftorch-left-open"

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Note the sessions that a test opens itself and does not close."""
        __tracebackhide__ = True
        before = _open_sessions()
        try:
            return (yield)
        finally:
            opened = [one for one in _open_sessions() if one not in before]
            if opened:
                item.stash[_OPENED] = opened

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Close the sessions that a test has left open, and fail it."""
        __tracebackhide__ = True
        try:
            result = yield
        finally:
            left = [one for one in item.stash.get(_OPENED, []) if one in _open_sessions()]
            for session in reversed(left):
                session.close()
        if left:
            names = " and ".join(dict.fromkeys(one.library.name for one in left))
            pytest.fail(
                f"{item.nodeid} left a session of {names} open, under which the tests after it "
                "would run. It is closed now. Write `with patched(...):` in the test, or use the "
                "fixture patched_libtorch.",
                pytrace=False,
            )
        return result


def _open_sessions() -> list[Session]:
    """Return the open sessions, without loading anything."""
    module = sys.modules.get("pytest_udftorch.swap.session.session")
    return module.open_sessions() if module is not None else []
