# SPDX-License-Identifier: Apache-2.0
"""Which tests the functions of a library ran in, and what the tests called besides.

While tests run, libtorch's calls go through marking trampolines, which say that a symbol was
called and cost a call about a nanosecond. Tests that measure time run without them. What a test
called rides on its report as a user property, so that it survives xdist and reaches JUnit files.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pytest

from pytest_udftorch.base.compat import INDUCTOR_CODECACHE
from pytest_udftorch.base.units import tests_text
from pytest_udftorch.plugin.options import NOTHING_CHECKED, PROFILE, Options
from pytest_udftorch.plugin.parameters import TARGET
from pytest_udftorch.swap.counting import sights
from pytest_udftorch.swap.session.binder import Symbol, binder

if TYPE_CHECKING:
    from pytest_udftorch.plugin.switcher import Switcher
    from pytest_udftorch.swap.session.session import Session

#: The name of what a test called among the user properties of its report.
PROPERTY: Final = "udf_reached"

#: The name of the library's id among them.
LIBRARY: Final = "udf_lib"

# Fixtures of tests that measure time: pytest-benchmark's, CodSpeed's and this package's.
_MEASURE: Final = frozenset(
    {"benchmark", "codspeed_benchmark", "sync_timer", "model_pair", "oracle"}
)

# How many tests a line of the summary names.
_NAMED: Final = 5

#: What a test is counted as. The later name wins if phases differ.
_OUTCOMES: Final = ("passed", "skipped", "failed")


class _Json(dict[str, Any]):
    """A property that junitxml, which writes ``str(value)``, writes as JSON."""

    def __str__(self) -> str:
        return json.dumps(self, sort_keys=True)


@dataclass
class _Library:
    """What the tests of one library did."""

    outcomes: dict[str, str] = field(default_factory=dict)
    tests: int = 0
    ran: Counter[str] = field(default_factory=Counter)
    reached: int = 0
    missed: dict[str, list[str]] = field(default_factory=dict)


class Reached:
    """Marks what each test calls, and tells at the end what the library's functions ran in."""

    def __init__(self, config: pytest.Config, options: Options, switcher: Switcher) -> None:
        self._config = config
        self._options = options
        self._switcher = switcher
        self._libraries: dict[str, _Library] = {}
        self._compiled = False

    # Tests ---------------------------------------------------------------------------

    # The switcher, which is registered later, has opened the session. pytest sets up after this.
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Mark the calls of a test and of its fixtures, unless it measures time."""
        target = item.stash.get(TARGET, None)
        if self._switcher.dry:
            return
        self._switcher.mark(target is not None and not _measures(item))
        if target is None:
            return
        _taken()
        if self._switcher.sights:
            sights.forget()
        name = next((n for n, t in self._switcher.targets.of(item).items() if t is target), "")
        item.user_properties.append((LIBRARY, name))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        """Note what setup and call have called.

        With ``--udf-strict``, fail a test that called what its library did not reach, or what is
        outside of its contract.
        """
        __tracebackhide__ = True
        passed = False
        benchmark: Any = getattr(item, "funcargs", {}).get("benchmark")
        if hasattr(benchmark, "extra_info"):
            benchmark.extra_info[LIBRARY] = dict(item.user_properties).get(LIBRARY)
        try:
            with self._contract():
                result = yield
            passed = True
            return result
        finally:
            session = self._switcher.session
            if session is not None and not session.library.stock and not _measures(item):
                symbols, overrides = _taken()
                called = _called(session, symbols, overrides)
                item.user_properties.append((PROPERTY, called))
                if passed and self._options.strict and called["missed"]:
                    pytest.fail(self._refusal(session, symbols, called["missed"]), pytrace=False)

    def _contract(self) -> AbstractContextManager[object]:
        """With ``--udf-strict``, refuse operators outside of the contract of a library with one."""
        session = self._switcher.session
        if not self._options.strict or session is None or session.library.name != "repro":
            return nullcontext()
        from pytest_udftorch.swap.contract.outside import within_contract

        return within_contract(strict=True)

    def _refusal(self, session: Session, symbols: Sequence[Symbol], missed: list[str]) -> str:
        """Return what a test is told that called functions which its library did not reach."""
        where, lines = [], dict[str, None]()
        for text in missed if self._switcher.sights else ():
            indices = [s.index for s in symbols if f"{s.dtype} {s.function}" == text]
            found = sights.places(indices)
            calls = "call" if len(found) > 1 else "calls"
            where.append(f"{_list(found) or 'Code outside of operators'} {calls} {text}")
            lines |= dict.fromkeys(sights.lines(indices))
        places = "".join(f"\n  at {line}" for line in lines) + ("\n" if lines else " ")
        if self._switcher.no_sights:
            places += f"In which operator and layer is not known here: {self._switcher.no_sights} "
        # The operator first: pytest's summary shows no more.
        who = "; ".join(where) or f"The test called {_list(missed)}"
        return (
            f"{who}, which {session.library.name} did not reach, and --udf-strict is on.{places}"
            "Choose a library that has the function in this dtype, or leave it out with "
            "--udf-functions. The page that the test writes with --udf-lib=std --udf-profile "
            "--udf-profile-out=DIR shows each operator and layer that calls it."
        )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Name the library in the summary line of a failure."""
        report = yield
        crash = getattr(report.longrepr, "reprcrash", None)
        name = dict(item.user_properties).get(LIBRARY)
        if crash is not None and name and report.failed:
            crash.message = f"[{name}] {crash.message}"
        return report

    # Results -------------------------------------------------------------------------

    # Before junitxml, which writes the properties as text.
    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a test to the summary."""
        if hasattr(self._config, "workerinput"):
            return
        properties: dict[str, Any] = {str(k): v for k, v in report.user_properties}
        report.user_properties = [
            (str(k), _Json(properties[str(k)]) if k in (PROPERTY, PROFILE) else v)
            for k, v in report.user_properties
        ]
        if LIBRARY not in properties:
            return
        outcome: str = report.outcome if report.when == "call" or not report.passed else "passed"
        if outcome not in _OUTCOMES:
            return  # of another plugin, such as "rerun": the test has an outcome still to come
        name = properties[LIBRARY]
        library = self._libraries.setdefault(name, _Library())
        test = _without(report.nodeid, name)
        before = library.outcomes.get(test, "passed")
        library.outcomes[test] = max(before, outcome, key=_OUTCOMES.index)
        if report.when == "call" and PROPERTY in properties:
            self._add(library, report.nodeid, properties[PROPERTY])

    def _add(self, library: _Library, nodeid: str, called: dict[str, Any]) -> None:
        library.tests += 1
        library.reached += bool(called["ran"])
        library.ran.update(called["ran"])
        for text in called["missed"]:
            library.missed.setdefault(text, []).append(nodeid)
        self._compiled |= called["compiled"]

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_update_machine_info(
        self, config: pytest.Config, machine_info: dict[str, Any]
    ) -> None:
        """State the libraries beside the machine of pytest-benchmark's results."""
        machine_info["udftorch"] = self._switcher.pytest_report_header()

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Tell which tests the functions ran in, and where libraries differ."""
        if self._options.strict and not self._libraries:
            terminalreporter.write_line(NOTHING_CHECKED, yellow=True)
        for name, library in sorted(self._libraries.items()):
            for line, loud in self._lines(name, library):
                terminalreporter.write_line(f"udftorch: {line}", yellow=loud)
        for line, loud in _differences(self._libraries):
            terminalreporter.write_line(f"udftorch: {line}", yellow=loud)

    def _lines(self, name: str, library: _Library) -> Iterable[tuple[str, bool]]:
        if not library.tests:
            return
        text = f"{name}'s functions ran in {library.reached} of {tests_text(library.tests)}"
        ran = ", ".join(f"{f} in {n}" for f, n in library.ran.most_common())
        aside = " (calls inside compiled code do not show here)" if self._compiled else ""
        yield f"{text}{': ' if ran else ''}{ran}{aside}", not library.reached
        for functions, tests in sorted(_grouped(library.missed).items(), key=lambda m: -len(m[1])):
            plural = "s" if "," in functions or " and " in functions else ""
            yield (
                f"{functions} kept the stock function{plural} in {tests_text(len(tests))}: "
                f"{_some(tests)}",
                True,
            )


def _grouped(missed: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return missed functions -> tests, those of float64 in one: few libraries have them."""
    wide = {text: tests for text, tests in missed.items() if text.startswith("float64 ")}
    if len(wide) < 2:
        return missed
    names = [text.removeprefix("float64 ") for text in sorted(wide)]
    every = list(dict.fromkeys(test for tests in wide.values() for test in tests))
    return {k: v for k, v in missed.items() if k not in wide} | {f"float64 {_list(names)}": every}


def _measures(item: pytest.Item) -> bool:
    return not _MEASURE.isdisjoint(getattr(item, "fixturenames", ()))


def _taken() -> tuple[list[Symbol], set[str]]:
    """Return the symbols and the functions of overrides that were called since the last time."""
    from pytest_udftorch.swap.cpu.loops import called
    from pytest_udftorch.swap.cuda.launcher import launched
    from pytest_udftorch.swap.operators.calls import calls

    overrides = called() | {call.function for kernel in launched() for call in calls(kernel)}
    return binder().marked(), overrides


def _called(session: Session, symbols: Sequence[Symbol], overrides: set[str]) -> dict[str, Any]:
    """Return what a test called, as plain data.

    A function counts as missed if the stock library computed it although the user did not leave
    it out: in another dtype, or because the library lacks it.
    """
    held = binder().held(session)
    ran = {s.function for s in symbols if s.name in held}
    chosen = set(session.functions)
    ran |= overrides & (chosen | set(session.composites))
    every = session.wants_every_function
    missed = {
        f"{s.dtype} {s.function}"
        for s in symbols
        if s.name not in held and (every or s.function in chosen)
    }
    return {
        "ran": sorted(ran),
        "missed": sorted(missed),
        "compiled": INDUCTOR_CODECACHE in sys.modules,
    }


def _without(nodeid: str, name: str) -> str:
    """Return the id of a test without that of its library."""
    for inside, rest in ((f"[{name}]", ""), (f"[{name}-", "[")):
        if inside in nodeid:
            return nodeid.replace(inside, rest, 1)
    return nodeid


def _differences(libraries: dict[str, _Library]) -> Iterable[tuple[str, bool]]:
    """Yield a line for each way in which tests that ran under several libraries ended."""
    ends: dict[str, dict[str, str]] = {}
    for name, library in libraries.items():
        for test, outcome in library.outcomes.items():
            ends.setdefault(test, {})[name] = outcome
    ways: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for test, end in ends.items():
        if len(end) > 1:
            ways.setdefault(tuple(sorted(end.items())), []).append(test)
    for way, tests in sorted(ways.items(), key=lambda found: -len(found[1])):
        outcomes = {outcome for _, outcome in way}
        if len(outcomes) == 1:
            names = _list([name for name, _ in way])
            yield f"{tests_text(len(tests))} {outcomes.pop()} under {names}", False
        else:
            how = ", ".join(f"{outcome} under {name}" for name, outcome in way)
            yield f"{tests_text(len(tests))} {how}: {_some(tests)}", True


def _list(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _some(tests: Sequence[str]) -> str:
    more = f" and {len(tests) - _NAMED} more" if len(tests) > _NAMED else ""
    return ", ".join(tests[:_NAMED]) + more
