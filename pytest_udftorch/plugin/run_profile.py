# SPDX-License-Identifier: Apache-2.0
"""The profile of a pytest run: split by test, merged, and shown at the end.

The plugin loads this module when profiling is on. The switcher owns the sessions. This module
reads and zeroes their counters between tests, so that minima and maxima belong to one test too.
Under xdist the workers write files, which the controller reads.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from pytest_udftorch.base.whole_file import TemporaryFolder
from pytest_udftorch.errors import NoProfileError, SessionStateError, UdfError
from pytest_udftorch.plugin.options import PROFILE as PROPERTY
from pytest_udftorch.plugin.options import Options
from pytest_udftorch.swap.counting.forks import SPOOL_PREFIX
from pytest_udftorch.swap.records import file as record
from pytest_udftorch.swap.records import runs
from pytest_udftorch.swap.records.export import write_text
from pytest_udftorch.swap.records.profile import Profile, by_library, load_profiles
from pytest_udftorch.watch.profile import report
from pytest_udftorch.watch.profile.tables import TestFigures

if TYPE_CHECKING:
    from pytest_udftorch.diagnose.diff.origin import Watched
    from pytest_udftorch.plugin.switcher import Switcher
    from pytest_udftorch.swap.counting.collection import Collector
    from pytest_udftorch.swap.reach.evaluations import Evaluations

_WORKER_INPUT: Final = "udf_profile_out"

#: The name, among the user properties of a report, of what its test evaluates by definition.
COUNTED: Final = "udf_evaluations"


def _shared() -> bool:
    """Tell whether ranks of a distributed run share the folder; then none of them may empty it."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


@dataclass
class _Counted:
    """What the tests of a library evaluate by definition, and what of it is swapped."""

    asked: Counter[str] = field(default_factory=Counter)
    had: Counter[str] = field(default_factory=Counter)
    unknown: set[str] = field(default_factory=set)

    def add(self, asked: Mapping[str, int], had: Mapping[str, int], unknown: Sequence[str]) -> None:
        self.asked.update(asked)
        self.had.update(had)
        self.unknown.update(unknown)

    def line(self) -> str:
        from pytest_udftorch.swap.reach.evaluations import sentence

        return sentence(self.asked, self.had, sorted(self.unknown))


class RunProfile:
    """The profile of a run, and the fixture ``udf_profile``."""

    def __init__(self, config: pytest.Config, options: Options, switcher: Switcher) -> None:
        self._config = config
        self._depth = options.profile
        self._switcher = switcher
        self._failing = options.failing
        self._coverage = options.coverage
        self._counted: dict[str, _Counted] = {}
        self._out = options.profile_out
        self._is_worker = hasattr(config, "workerinput")
        self._scopes: Counter[str] = Counter()
        self._shown: list[Profile] = []
        self._remarks: list[str] = []
        self._figures: dict[str, TestFigures] = {}

    # The fixture ---------------------------------------------------------------------

    @property
    def test(self) -> Profile:
        """What was counted in the running test so far, its fixtures included; no events.

        Raises:
            SessionStateError: the test runs under no library.
        """
        return self._open_collector().part()

    @property
    def run(self) -> Profile:
        """What was counted in this process under the library of the running test.

        Raises:
            SessionStateError: the test runs under no library.
        """
        label = self._open_collector().meta["library"]
        return next(p for p in self._own_profiles() if p.label == label)

    @property
    def _is_controller(self) -> bool:
        return self._config.pluginmanager.hasplugin("dsession")

    def _open_collector(self) -> Collector:
        session = self._switcher.session
        if session is None:
            raise SessionStateError(
                "No profiled session is open: the test runs under no library of this run."
            )
        return session.collector

    def _own_profiles(self) -> list[Profile]:
        return by_library(s.profile for s in self._switcher.profiled)

    # Start and end of the run --------------------------------------------------------

    # Before the switcher opens its session.
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionstart(self) -> Generator[None]:
        """Make the folder ready.

        Raises:
            pytest.UsageError: profiles cannot be written into it.
        """
        if self._is_worker:
            given = getattr(self._config, "workerinput")  # noqa: B009
            self._switcher.profile_out = Path(given[_WORKER_INPUT])
            runs.belong_to(given["testrunuid"])
        else:
            try:
                if self._out is not None and not _shared():
                    record.remove_earlier(self._out)
            except UdfError as error:
                raise pytest.UsageError(f"--udf-profile-out: {error}") from error
            if self._is_controller and self._out is None:
                spool = TemporaryFolder(SPOOL_PREFIX)
                self._config.add_cleanup(spool.remove)
                self._switcher.profile_out = spool.path
        return (yield)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker of xdist the folder."""
        node.workerinput[_WORKER_INPUT] = str(self._switcher.profile_out)

    def pytest_report_header(self) -> str:
        """State the depth and the folder."""
        where = f", written to {self._out}" if self._out is not None else ""
        return f"udftorch: profile: {self._depth}{where}"

    # Innermost: pytest prints the summary, and an xdist worker signs off, outside of this.
    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self) -> Generator[None]:
        """Merge the run's profile and write the page; a failure here never fails the run."""
        if self._is_worker:
            # The controller reads the file as soon as this worker is done.
            self._switcher.close()
            return (yield)
        try:
            self._shown = self._profiles()
            if self._out is not None and self._shown:
                title = f"Math functions in {self._config.rootpath.name}"
                path = self._out / "report.html"
                tests = list(self._figures.values())
                write_text(path, report.profiles_html(self._shown, title=title, tests=tests))
                self._remarks.append(f"report: {path}")
        except (UdfError, OSError) as error:
            self._remarks.append(f"The profile cannot be shown in full: {error}")
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what a test called, for the page; workers of xdist send it with the report."""
        properties: dict[str, Any] = {str(k): v for k, v in report.user_properties}
        if report.when == "call" and COUNTED in properties and not self._is_worker:
            label, *figures = properties[COUNTED]
            self._counted.setdefault(label, _Counted()).add(*figures)
        summary = properties.get(PROPERTY)
        if report.when == "call" and isinstance(summary, dict) and self._out is not None:
            self._figures[report.nodeid] = TestFigures(report.nodeid, report.outcome, summary)

    def _profiles(self) -> list[Profile]:
        if not self._is_controller:
            return self._own_profiles()
        try:
            # The folder was emptied when the run began, unless ranks share it. A worker that
            # replaces one that died does not meet it.
            alone = not _shared()
            return load_profiles([self._switcher.profile_out or Path()], add_runs=alone)
        except NoProfileError:
            return []

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the short form."""
        terminalreporter.section("udftorch profile")
        text = report.terminal(self._shown) if self._shown else "nothing was profiled"
        terminalreporter.write_line(text)
        for label, counted in sorted(self._counted.items()):
            terminalreporter.write_line(f"{label}: {counted.line()}")
        for session in self._switcher.profiled:
            writer = session.collector.writer
            if writer is not None and writer.loss:
                self._remarks.append(
                    f"{writer.path.name} is not complete: {writer.loss.records} records and "
                    f"{writer.loss.events} events are lost ({writer.loss.reason})."
                )
        for remark in (*self._switcher.notes, *self._remarks):
            terminalreporter.write_line(remark)

    # Tests ---------------------------------------------------------------------------

    # Before the test's fixtures.
    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None]:
        """Keep what was counted before the test, such as in collection, out of the test."""
        __tracebackhide__ = True
        self._take_rest("(before the tests)")
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        """Attach the figures of setup and call to the report, even if the test fails.

        With ``--udf-nan`` or ``--udf-inf``, fail a test in which an operator made one.
        """
        __tracebackhide__ = True
        passed = False
        origins: dict[str, Watched] = {}
        run: Evaluations | None = None
        try:
            with contextlib.ExitStack() as stack:
                if self._failing:
                    from pytest_udftorch.diagnose.diff.origin import watching

                    origins |= {k: stack.enter_context(watching(k)) for k in self._failing}
                if self._coverage:
                    from pytest_udftorch.swap.reach.evaluations import evaluations

                    run = stack.enter_context(evaluations())
                result = yield
            passed = True
            return result
        finally:
            session = self._switcher.session
            if session is not None:
                part = session.collector.take(self._scope(item.nodeid))
                if run is not None:
                    part = run.noted(part)
                    asked = {name: sum(c.values()) for name, c in run.operators.items()}
                    counted = part.label, asked, run.swapped(part), sorted(run.unknown)
                    item.user_properties.append((COUNTED, counted))
                summary = part.summary()
                item.user_properties.append((PROPERTY, summary))
                _to_benchmark(item, summary)
                if passed:
                    self._refuse(item.nodeid, part, origins)

    def _refuse(self, test: str, part: Profile, origins: Mapping[str, Watched]) -> None:
        """Fail the test if an operator made a value of a kind that is an error.

        By default one that torch masks away again is none. What only the functions' counters have
        seen, such as a value made in another thread, may end anywhere and is one.
        """
        for kind, word in self._failing.items():
            first, made = part.first(kind), origins[kind].made()
            origin = made if word == "made" else origins[kind].reached()
            if origin is None and (first is None or made is not None):
                continue
            value = {"nan": "NaN", "inf": "infinity"}[kind]
            lines = [] if origin is None else [origin.text()]
            if first is not None:
                lines.append(
                    f"The first {value} that a function of {part.label} made, from arguments "
                    f"that held none: {first}."
                )
            lines.append(f"--udf-{kind}={word} is on, in {test}.")
            pytest.fail("\n".join(lines), pytrace=False)

    # Inside the switcher's hook, which may close the session.
    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None]:
        """Keep what the teardown counts out of the next test."""
        __tracebackhide__ = True
        try:
            return (yield)
        finally:
            self._take_rest(f"{item.nodeid} (teardown)")

    def _take_rest(self, scope: str) -> None:
        session = self._switcher.session
        if session is not None and len(session.collector.cells()):
            session.collector.take(self._scope(scope))

    def _scope(self, name: str) -> str:
        """Return a name that no part of the run has yet: a test may run several times."""
        self._scopes[name] += 1
        count = self._scopes[name]
        return name if count == 1 else f"{name}#{count}"


def _to_benchmark(item: pytest.Item, summary: dict[str, Any]) -> None:
    """Put the figures into the ``extra_info`` of pytest-benchmark's fixture, if it is used."""
    fixture: Any = getattr(item, "funcargs", {}).get("benchmark")
    if type(fixture).__module__.partition(".")[0] == "pytest_benchmark":
        fixture.extra_info[PROPERTY] = summary
