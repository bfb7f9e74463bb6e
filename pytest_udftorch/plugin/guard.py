# SPDX-License-Identifier: Apache-2.0
"""Baselines of a pytest run: saved, compared with, and a reason to fail.

The figures of a test ride on its report, so a controller of xdist has those of all workers.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from pytest_udftorch.base.units import tests_text
from pytest_udftorch.errors import CompareError, UdfError
from pytest_udftorch.plugin.options import PROFILE
from pytest_udftorch.swap.library.description import UdfLibrary, find_library
from pytest_udftorch.swap.native.machine import cpu_model
from pytest_udftorch.watch.compare import baseline, change, outputs
from pytest_udftorch.watch.compare import views as show

if TYPE_CHECKING:
    from pytest_udftorch.plugin.options import Options
    from pytest_udftorch.plugin.switcher import Switcher

#: What this run is called in tables.
_THIS: Final = "this run"


@dataclass(frozen=True)
class _Asked:
    """What the options ask for, checked before any test runs."""

    save: Path | None
    against: str
    known: baseline.Baseline | None
    limits: tuple[change.Limit, ...]


def _asked(options: Options) -> _Asked:
    try:
        limits = change.limits_of(options.compare_fail)
        save = known = None
        if options.save is not None:
            save = baseline.path_of(options.save, options.storage)
        if options.compare is not None:
            known = baseline.load(baseline.path_of(options.compare, options.storage))
            _refuse_untimed(limits, known, options)
    except UdfError as error:
        raise pytest.UsageError(str(error)) from None
    return _Asked(save, options.compare or "", known, limits)


def _refuse_untimed(
    limits: Iterable[change.Limit], known: baseline.Baseline, options: Options
) -> None:
    """Refuse a limit on times that one of the two runs does not take.

    Raises:
        CompareError: there is one.
    """
    for limit in (limit for limit in limits if limit.word == "time"):
        start = f"The limit {limit} needs times, and "
        end = "Add --udf-profile=timed."
        if options.profile == "counters":
            raise CompareError(f"{start}this run takes none. {end}")
        if known.about.get("depth") == "counters":
            raise CompareError(
                f"{start}the baseline {options.compare} was saved without. Save it again with "
                "--udf-profile=timed."
            )


class Guard:
    """Gathers the figures of a run; saves them and compares them at its end."""

    def __init__(self, config: pytest.Config, options: Options, switcher: Switcher) -> None:
        self._asked = _asked(options)
        self._options = options
        self._switcher = switcher
        self._seen = baseline.Baseline({"cpu": cpu_model()})
        self._lines: list[tuple[str, change.Mark]] = []
        self._failures: list[str] = []

    def pytest_report_header(self) -> str:
        """State what is saved and compared."""
        parts = [f"compared with {self._asked.against}"] if self._asked.known else []
        parts += [f"saved as {self._asked.save}"] if self._asked.save else []
        return f"udftorch: baseline: {', '.join(parts)}"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the figures of a test that passed; a run after a failed one replaces them."""
        if report.when != "call" or not report.passed:
            return
        summary = dict(report.user_properties).get(PROFILE)
        if isinstance(summary, Mapping):
            self._seen.tests.pop(report.nodeid, None)
            self._seen.add(report.nodeid, summary)

    # Innermost but for the profile, which it closes: the summary is printed outside of this.
    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None]:
        """Compare and save, unless the run was broken off; fail the run if a limit is passed."""
        yield
        if session.exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            self._lines.append(("The run did not end as usual: nothing is saved or compared.", ""))
            return
        try:
            # What is tried out here is no part of the profile.
            self._switcher.close()
            self._compare()
            self._save(complete=session.exitstatus == pytest.ExitCode.OK)
        except UdfError as error:
            self._failures.append(str(error))
        if self._failures:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _compare(self) -> None:
        known = self._asked.known
        if known is None:
            return
        here = baseline.Baseline(self._seen.about, self._seen.tests)
        here.outputs = self._outputs(outputs.probes(here.functions))
        # The whole of two runs can be compared only over the tests that both have.
        both = known.tests.keys() & here.tests.keys()
        files = (known.figures(self._asked.against, both), here.figures(_THIS, both))
        comparison = change.compare(files, self._asked.limits)
        self._lines += comparison.lines()
        self._failures += comparison.failures

    def _save(self, *, complete: bool) -> None:
        path = self._asked.save
        if path is None:
            return
        if not complete:
            self._lines.append((f"Tests failed: {path} is not written.", ""))
            return
        self._seen.outputs = self._outputs(outputs.probes(self._seen.functions))
        self._seen.save(path)
        count = tests_text(len(self._seen.tests))
        self._lines.append((f"saved the figures of {count}: {path}", ""))

    def _outputs(self, wanted: Mapping[str, Iterable[str]]) -> dict[str, dict[str, str]]:
        found = {}
        libraries = dict(self._libraries())
        for name, arguments in wanted.items():
            label, function, dtype = name.split(" ")
            library = libraries.get(label)
            if library is not None and (function in library.function_names):
                found[name] = outputs.outputs(library, function, dtype, arguments)
        return found

    def _libraries(self) -> Iterable[tuple[str, UdfLibrary]]:
        for which in self._options.libraries:
            library = find_library(which)
            yield library.name, library

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the table of changes, and what is beyond a limit."""
        terminalreporter.section("udftorch baseline")
        for line, mark in self._lines:
            colour = show.COLOURS[mark][0]
            terminalreporter.write_line(line, **({colour: True} if colour else {}))
        for sentence in self._failures:
            terminalreporter.write_line(f"FAILED: {sentence}", red=True)
