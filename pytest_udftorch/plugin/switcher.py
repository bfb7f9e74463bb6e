# SPDX-License-Identifier: Apache-2.0
"""The sessions of a run: opened for the tests that need them, and closed after them.

The plugin loads this module once a library is chosen. One library for the whole run is one session
around everything, collection included. With several, or with a marker, the session belongs to the
tests. It is opened in the setup phase of the first test that needs it, stays open as long as the
next test needs the same, and is closed in the teardown phase of the last one. A failure is then an
error in a phase of that test, so ``-x``, reports and exit codes need no care of their own.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Generator
from typing import Any

import pytest

from pytest_udftorch.base.compat import torch_summary
from pytest_udftorch.errors import ProfileFileError, UdfError
from pytest_udftorch.plugin.header import describe
from pytest_udftorch.plugin.options import Options
from pytest_udftorch.plugin.parameters import FIXTURE, TARGET, Parametrizer
from pytest_udftorch.plugin.targets import Target, Targets
from pytest_udftorch.swap.library.description import is_operator
from pytest_udftorch.swap.overrides.operator_udfs import prepare
from pytest_udftorch.swap.session.binder import binder
from pytest_udftorch.swap.session.session import Session, patched
from pytest_udftorch.swap.toolchain.agenda import agenda
from pytest_udftorch.swap.toolchain.shared_library import Build, build_library

# pytest's option names of runs that execute no test and hence open no session.
_DRY_RUNS = ("collectonly", "setupplan", "showfixtures", "show_fixtures_per_test")


class Switcher:
    """Opens and closes the sessions of a run.

    Attributes:
        targets: what the user chose.
        tests: gives each test its targets.
        profiled: the sessions so far that have a profile.
        profile_out: the folder that their files go to, or None.
        notes: about files of profiles that could not be made.
        sights: whether operators and layers of what is called are noted, as ``--udf-strict`` asks.
        no_sights: why that is impossible here.
    """

    def __init__(self, config: pytest.Config, options: Options) -> None:
        self.config = config
        self.options = options
        self.targets = Targets(options)
        self.tests = Parametrizer(self.targets)
        self.profiled: list[Session] = []
        self.profile_out = options.profile_out
        self.notes: list[str] = []
        self.sights = False
        self.no_sights = ""
        self._builds: dict[Target, Build | None] = {}
        self._torch: tuple[str, str] | None = None
        self._failures: dict[Target, str] = {}
        self._base: Session | None = None
        self._paused: Target | None = None
        self._active: tuple[Target, Session] | None = None
        self._sessions = contextlib.ExitStack()
        self._marks = contextlib.ExitStack()
        self._marking = False
        self._live: dict[pytest.FixtureDef[Any], Any] = {}
        config.add_cleanup(self.close)
        capture = config.pluginmanager.getplugin("capturemanager")
        if capture is not None:
            # A marker may choose a library whose builds are missing in the midst of the tests.
            agenda.aside = capture.global_and_fixture_disabled
            config.add_cleanup(functools.partial(setattr, agenda, "aside", contextlib.nullcontext))

    @property
    def session(self) -> Session | None:
        """The open session of the running test, or None."""
        return self._base if self._active is None else self._active[1]

    # Start and end of the run --------------------------------------------------------

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionstart(self) -> Generator[None]:
        """Find, build and check the chosen libraries, before the header is printed.

        Raises:
            pytest.UsageError: one of them cannot be used; the message says why.
        """
        try:
            self.targets.choose()
            if not self.dry:
                self._start()
        except UdfError as error:
            raise pytest.UsageError(str(error)) from error
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self) -> Generator[None]:
        """Restore libtorch after everything else, the summary included."""
        try:
            return (yield)
        finally:
            try:
                self.close()
            except UdfError as error:
                pytest.exit(str(error), returncode=pytest.ExitCode.INTERNAL_ERROR)

    def close(self) -> None:
        """Close whatever session is still open."""
        with contextlib.ExitStack() as stack:
            if self._base is not None:
                stack.callback(self._base.close)
            self._base = self._paused = None
            stack.callback(self._leave)
            stack.callback(self.mark, False)

    def mark(self, wanted: bool) -> None:
        """Send libtorch's calls through marking trampolines, or no longer.

        A change of sessions stops it. Otherwise a slot that something else has rebound would
        come to light only at the end of the run.
        """
        if wanted and not self._marking:
            self._marks.enter_context(binder().marking())
            if self.options.strict:
                self._sight()
        self._marking = wanted
        if not wanted:
            self._marks.close()

    def _sight(self) -> None:
        """Find out as well in which operator and layer symbols are called."""
        from pytest_udftorch.swap.counting.sights import sighting

        try:
            self._marks.enter_context(sighting())
        except UdfError as error:
            self.no_sights = str(error)
        else:
            self._marks.callback(setattr, self, "sights", False)
            self.sights = True

    @property
    def dry(self) -> bool:
        """Whether this run executes no test."""
        return any(self.config.getoption(name, False) for name in _DRY_RUNS)

    def _start(self) -> None:
        targets = list(self.targets.chosen.values())
        if hasattr(self.config, "workerinput"):
            # The controller of xdist has built and reported already. If only a worker fails, its
            # tests say so: xdist would restart a worker that cannot start.
            if len(targets) == 1:
                with contextlib.suppress(UdfError):
                    self._open_base(targets[0])
            return
        for target in targets:
            if not self.config.pluginmanager.hasplugin("dsession"):
                if len(targets) == 1:
                    self._open_base(target)
                else:
                    # Opened once without a test: a library that cannot be used ends the run here,
                    # with one message, instead of failing each of its tests.
                    with target.open(self.options, self.options.profile) as session:
                        self._builds[target] = session.build
            elif not target.library.stock:
                self._prebuild(target)
        self._torch = torch_summary()

    def _prebuild(self, target: Target) -> None:
        """Compile for the workers of xdist, which then find it in the cache."""
        # Workers would all wait for one of them, and nobody sees what they write.
        with contextlib.suppress(UdfError):  # said by whoever needs it
            session = target.open(self.options, self.options.profile)
            session.prepare(watching=self.options.strict)
        names = target.library.select(target.functions)
        level, profiled = self.options.cpu_level, self.options.profile is not None
        if not all(map(is_operator, names)):
            self._builds[target] = build_library(target.library, level, profiled=profiled)
        prepare(target.library, [n for n in names if is_operator(n)], level)

    def _open_base(self, target: Target) -> None:
        try:
            session = self._entered(target)
        except UdfError as error:
            self._failures[target] = str(error)
            raise
        self._base = session
        self._builds[target] = session.build

    def _entered(self, target: Target) -> Session:
        """Return an open session, profiled if a profile is asked for."""
        depth = self.options.profile
        try:
            session = target.open(self.options, depth, self.profile_out).__enter__()
        except ProfileFileError as error:
            # The folder was usable at the start. A test must not fail because it is gone now.
            self.notes.append(str(error))
            session = target.open(self.options, depth).__enter__()
        if depth is not None:
            self.profiled.append(session)
        return session

    def pytest_report_header(self) -> list[str]:
        """State library, version, claim, build, CPU level, functions and torch."""
        lines = []
        for name, target in self.targets.chosen.items():
            label = "udftorch" if len(self.targets.chosen) == 1 else f"udftorch [{name}]"
            lines.append(f"{label}: {describe(target, self._builds.get(target), self.options)}")
        if self._torch is not None:
            lines.append("udftorch: torch {}, CPU capability {}".format(*self._torch))
        return lines

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Name what kept the stock functions."""
        if self.dry or self.config.pluginmanager.hasplugin("dsession"):
            return
        from pytest_udftorch.plugin.gaps import notes

        for note in notes():
            terminalreporter.write_line(f"udftorch: {note}", yellow=True)

    # Switching -----------------------------------------------------------------------

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Open the session of a test, after pytest has looked for marks that skip it."""
        if self.dry:
            return
        target = item.stash.get(TARGET, None)
        if target in self._failures:
            pytest.fail(self._failures[target], pytrace=False)
        target = self._override(item)
        if self._active is not None and self._active[0] is not target:
            self._leave()
        if self._active is None and target is not None:
            self._enter(target)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None]:
        """Close the session after the last test that needs it, once its fixtures are gone."""
        __tracebackhide__ = True
        try:
            return (yield)
        finally:
            following = None if nextitem is None else self._override(nextitem)
            if self._active is not None and self._active[0] is not following:
                self._leave()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: Any
    ) -> Generator[None, Any, Any]:
        """Note the fixtures whose values must not outlive a switch.

        With several libraries chosen for the run, these are all fixtures: what one computed under
        one library must not pass for the result of another. A marker concerns single tests, and
        its author knows of the switch. There ``udf_session`` is enough: pytest tears down its
        dependents with it.
        """
        __tracebackhide__ = True
        if fixturedef.argname == FIXTURE or (
            len(self.targets.chosen) > 1 and fixturedef.scope != "function"
        ):
            self._live[fixturedef] = request
            fixturedef.addfinalizer(functools.partial(self._live.pop, fixturedef, None))
        return (yield)

    def _override(self, item: pytest.Item) -> Target | None:
        """Return the target if a test needs a session of its own, else None."""
        target = item.stash.get(TARGET, None)
        if len(self.targets.chosen) == 1 and target in self.targets.chosen.values():
            return None
        return target

    def _enter(self, target: Target) -> None:
        self.mark(False)
        self._drop_fixtures()
        try:
            with contextlib.ExitStack() as stack:
                if self._base is not None and self.options.profile:
                    # There is only one set of counters, so the run's session closes first.
                    base, self._base = self._base, None
                    self._paused = next(iter(self.targets.chosen.values()))
                    base.close()
                elif self._base is not None:
                    # A marker replaces what is chosen for the run. Functions that it
                    # leaves out become the stock ones.
                    stack.enter_context(patched("std"))
                session = self._entered(target)
                stack.callback(session.close)
                self._sessions = stack.pop_all()
        except UdfError as error:
            self._resume()
            self._failures[target] = (
                f"UDF library {target.library.name!r} cannot be used for this test. {error}"
            )
            raise pytest.fail.Exception(self._failures[target], pytrace=False) from None
        self._active = (target, session)

    def _leave(self) -> None:
        __tracebackhide__ = True
        try:
            self._drop_fixtures()
            self.mark(False)
        finally:
            self._active = None
            self._sessions.close()
            self._resume()

    def _resume(self) -> None:
        if self._paused is not None:
            target, self._paused = self._paused, None
            self._open_base(target)

    def _drop_fixtures(self) -> None:
        """Tear down, in reverse order, the fixtures that belong to the current library."""
        __tracebackhide__ = True
        with contextlib.ExitStack() as stack:
            for fixturedef, request in self._live.items():
                stack.callback(fixturedef.finish, request)
