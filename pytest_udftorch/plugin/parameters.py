# SPDX-License-Identifier: Apache-2.0
"""Tests under several libraries: parametrised, or repeated where pytest cannot do that."""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pytest

from pytest_udftorch.errors import UdfError
from pytest_udftorch.plugin.targets import Target, Targets

#: The fixture that several libraries parametrise.
FIXTURE: Final = "udf_session"

#: The target of a collected test.
TARGET = pytest.StashKey[Target]()


class _Parameter(str):
    """The id of a target as a test's parameter; a string, since other plugins report it."""


class Parametrizer:
    """Gives each test the targets that it runs under."""

    def __init__(self, targets: Targets) -> None:
        self._targets = targets

    def owns(self, parameter: object) -> bool:
        """Tell whether a fixture parameter is one of ours."""
        return isinstance(parameter, _Parameter)

    def parametrize(self, metafunc: pytest.Metafunc) -> None:
        """Give a test function one parameter set for each of several libraries."""
        try:
            targets = self._targets.of(metafunc.definition)
        except UdfError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None
        if len(targets) < 2:
            return
        names = metafunc.fixturenames
        # pytest parametrizes only what a function asks for. One that does not ask for the
        # session still runs under it, without the fixture being set up.
        asked = FIXTURE in names
        if not asked:
            names.append(FIXTURE)
        parameters = [_Parameter(name) for name in targets]
        metafunc.parametrize(FIXTURE, parameters, ids=parameters, indirect=True, scope="session")
        if not asked:
            names.remove(FIXTURE)

    def expand(self, report: pytest.CollectReport) -> None:
        """Note each collected item's target; repeat those that are not parametrized."""
        try:
            report.result = list(self._expanded(report.result))
        except UdfError as error:
            report.outcome = "failed"
            report.longrepr = str(error)
            report.result = []

    def _expanded(
        self, nodes: Iterable[pytest.Item | pytest.Collector]
    ) -> Iterator[pytest.Item | pytest.Collector]:
        for node in nodes:
            # The session's own report repeats the items that the command line names.
            if not isinstance(node, pytest.Item) or TARGET in node.stash:
                yield node
                continue
            targets = self._targets.of(node)
            parameters = node.callspec.params if hasattr(node, "callspec") else {}
            if self.owns(parameters.get(FIXTURE)):
                node.stash[TARGET] = targets[parameters[FIXTURE]]
                yield node
            elif len(targets) < 2:
                for target in targets.values():
                    node.stash[TARGET] = target
                yield node
            else:
                for name, target in targets.items():
                    repeated = _repeated(node, name)
                    repeated.stash[TARGET] = target
                    yield repeated

    # Last, after pytest's own reordering.
    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Put the tests of one library together, keeping their order."""
        if len(self._targets.chosen) < 2:
            return
        order = {target: i for i, target in enumerate(self._targets.chosen.values())}
        for item in items:
            order.setdefault(item.stash[TARGET], len(order))
        items.sort(key=lambda item: order[item.stash[TARGET]])


# Items that pytest cannot parametrize ------------------------------------------------


def _repeated(item: pytest.Item, name: str) -> pytest.Item:
    """Return a new item that runs the same test, with ``[name]`` after its name and id."""
    import doctest

    unittest = sys.modules.get("unittest")
    parent: Any = item.parent
    new: Any
    if isinstance(item, pytest.DoctestItem):
        old = item.dtest
        # A doctest runner clears the globals of a test that it has run.
        dtest = doctest.DocTest(
            old.examples, old.globs, old.name, old.filename, old.lineno, old.docstring
        )
        new = type(item).from_parent(parent, name=item.name, runner=item.runner, dtest=dtest)
    elif isinstance(item, pytest.Function):
        kind: Any = type(item)
        if unittest is not None and isinstance(item.instance, unittest.TestCase):
            kind = _case_type(kind)
        new = kind.from_parent(parent, name=item.name, originalname=item.originalname)
    else:
        new = copy.copy(item)
        new.__dict__.pop("location", None)  # cached by pytest; it holds the name
    markers, extra = list(item.own_markers), set(item.extra_keyword_matches)
    keywords = {key: item.keywords[key] for key in item.keywords if key != item.name}
    # The constructors of items derive the id from the name, and the test from it too.
    # Hence the name is given afterwards, through the constructor they all share.
    pytest.Item.__init__(
        new, f"{item.name}[{name}]", parent=parent, nodeid=f"{item.nodeid}[{name}]"
    )
    new.own_markers.extend(markers)
    new.keywords.update(keywords)
    new.extra_keyword_matches.update(extra)
    return new  # type: ignore[no-any-return]


@functools.cache
def _case_type(base: type) -> type:
    """Return a subclass of pytest's item for TestCase methods whose name may have a suffix.

    pytest makes the TestCase instance from the item's name, which must be the method's.
    """

    def instance(self: Any) -> Any:
        shown, self.name = self.name, self.originalname
        try:
            return super(kind, self).instance
        finally:
            self.name = shown

    kind: Any = type(base)(base.__name__, (base,), {"instance": property(instance)})
    return kind  # type: ignore[no-any-return]
