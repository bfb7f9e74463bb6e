# SPDX-License-Identifier: Apache-2.0
"""The fixture ``udf_same``, and the tests of ``--udf-model``: one for each way of running."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from pytest_udftorch.errors import UdfError
from pytest_udftorch.reproduce.agreement.result import Sameness
from pytest_udftorch.reproduce.agreement.sameness import same, subject_of
from pytest_udftorch.reproduce.agreement.subject import Subject
from pytest_udftorch.reproduce.agreement.ways import chosen


def assert_same(
    subject: str | Any,
    inputs: Any = (),
    ways: Sequence[str] | None = None,
    *,
    dtype: str | None = None,
) -> Sameness:
    """Assert that ways of running a model give the same bits, under the library of the test.

    The arguments are those of :func:`pytest_udftorch.reproduce.same`.

    Raises:
        AssertionError: a way differs; the message is the table.
        UdfError: as from :func:`same`.
    """
    __tracebackhide__ = True
    found = same(subject, inputs, libraries=None, ways=ways, dtype=dtype)
    if not found.equal:
        raise AssertionError(found.text())
    return found


class ModelCollector(pytest.Collector):
    """The tests of a model that no file holds."""

    subject: Subject

    def collect(self) -> Iterator[pytest.Item]:
        """Make the model, and yield a test for each way of running it.

        Raises:
            pytest.Collector.CollectError: there is no such model.
        """
        from pytest_udftorch.diagnose.runs.work import seeded

        try:
            with seeded(0):
                self.subject = subject_of(self.name)
                ways = chosen(self.subject, None)
        except UdfError as error:
            raise self.CollectError(str(error)) from error
        for way in ways:
            yield WayItem.from_parent(self, name=way.name)


class WayItem(pytest.Item):
    """Asserts that one way of running a model gives the bits of the evaluation of the batch."""

    def runtest(self) -> None:
        """Run the model both ways.

        Raises:
            AssertionError: they differ; the message says by which operator.
        """
        collector: Any = self.parent
        # A test under several libraries has the library's name behind that of its way.
        assert_same(collector.subject, ways=[self.name.partition("[")[0]])

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the table, without the frames of this package."""
        if excinfo.errisinstance((AssertionError, UdfError)):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Any, None, str]:
        """Return where it is from: no line of any file."""
        return self.path, None, self.name


def collected(session: pytest.Session, names: Sequence[str]) -> list[pytest.Item]:
    """Return the tests of models.

    Raises:
        pytest.UsageError: there is no such model.
    """
    items: list[pytest.Item] = []
    for name in names:
        collector = ModelCollector.from_parent(session, name=name, nodeid=name)
        report = collector.ihook.pytest_make_collect_report(collector=collector)
        if report.failed:
            raise pytest.UsageError(f"--udf-model={name}: {report.longreprtext}")
        items += report.result
    return items
