# SPDX-License-Identifier: Apache-2.0
"""The pytest plugin: options, ini values, the marker ``udf_lib``, fixtures.

pytest loads this module in every run of every suite on the machine, so it imports nothing
beyond pytest itself. The rest of the package, and torch, are loaded when an option, a
marker or a fixture asks for them. PYTEST_DONT_REWRITE: nothing here asserts.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import pytest

from pytest_udftorch.plugin.left_open import LeftOpen
from pytest_udftorch.plugin.options import (
    MARKER,
    NOTHING_CHECKED,
    Options,
    add_options,
    freeze,
    release_paths,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_udftorch.diagnose.diff.result import Difference
    from pytest_udftorch.diagnose.sensitivity.result import Sensitivity
    from pytest_udftorch.measure.planning.pairs import ModelPair
    from pytest_udftorch.measure.planning.plan_search import Plan
    from pytest_udftorch.measure.rewrite.boxes import Equivalence
    from pytest_udftorch.measure.timing.timers import SyncTimer
    from pytest_udftorch.plugin.golden import GoldenValues
    from pytest_udftorch.plugin.run_profile import RunProfile
    from pytest_udftorch.plugin.switcher import Switcher
    from pytest_udftorch.reproduce.agreement.result import Sameness
    from pytest_udftorch.reproduce.order.invariance import Invariance
    from pytest_udftorch.reproduce.order.tree import SummationTree
    from pytest_udftorch.swap.library.description import UdfLibrary
    from pytest_udftorch.swap.reach.coverage import Coverage
    from pytest_udftorch.swap.session.session import Session

_OPTIONS = pytest.StashKey[Options]()
_SWITCHER = pytest.StashKey["Switcher"]()
_PROFILE = pytest.StashKey["RunProfile"]()


class PatchedLibtorch(Protocol):
    """The type of the fixture ``patched_libtorch``."""

    def __call__(
        self,
        library: str | Path | UdfLibrary,
        functions: Sequence[str] | None = None,
        *,
        cpu_level: str | None = None,
        profile: bool | Literal["counters", "timed", "events"] = False,
        cuda_form: Literal["double", "float-float", "auto"] | None = None,
    ) -> Session:
        """Open a session that lasts until the end of the test."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> None:
    """Leave the path after ``--udf-profile`` to pytest."""
    release_paths(early_config, parser, args)


def pytest_configure(config: pytest.Config) -> None:
    """Freeze the options; prepare for switching if they choose a library."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(*libraries, functions=None, composites=False): run under this UDF library (a "
        "name, or a path relative to the test file) instead of the command line's; several: under "
        "each.",
    )
    options = config.stash[_OPTIONS] = freeze(config)
    if options.models:
        from pytest_udftorch.base.host import let_threads_sleep

        let_threads_sleep()
        if config.args_source is not pytest.Config.ArgsSource.ARGS:
            config.args.clear()
    # Before the switcher, to be inside of it: fixtures are gone by then, its session is still open.
    config.pluginmanager.register(LeftOpen(), LeftOpen.NAME)
    if options.libraries:
        switcher = _switcher(config)
        if options.profile is not None and not switcher.dry:
            from pytest_udftorch.plugin.run_profile import RunProfile

            if options.guarded and not hasattr(config, "workerinput"):
                from pytest_udftorch.plugin.guard import Guard

                # Before the profile: of two innermost hooks, the last registered is inside.
                guard = Guard(config, options, switcher)
                config.pluginmanager.register(guard, "udftorch-guard")
            profile = config.stash[_PROFILE] = RunProfile(config, options, switcher)
            config.pluginmanager.register(profile, "udftorch-profile")


def _switcher(config: pytest.Config) -> Switcher:
    if _SWITCHER not in config.stash:
        from pytest_udftorch.errors import UnsupportedHostError

        try:
            from pytest_udftorch.plugin.switcher import Switcher
        except UnsupportedHostError as error:
            raise pytest.UsageError(str(error)) from None

        switcher = config.stash[_SWITCHER] = Switcher(config, config.stash[_OPTIONS])
        from pytest_udftorch.plugin.reach_check import Reached

        # The last one registered is called first.
        reached = Reached(config, config.stash[_OPTIONS], switcher)
        config.pluginmanager.register(reached, "udftorch-reached")
        config.pluginmanager.register(switcher, "udftorch-switcher")
        config.pluginmanager.register(switcher.tests, "udftorch-parametrizer")
    return config.stash[_SWITCHER]


def _switcher_for(node: pytest.Item) -> Switcher | None:
    """Return the switcher if the command line or a marker of ``node`` needs it."""
    if _SWITCHER in node.config.stash or node.get_closest_marker(MARKER) is not None:
        return _switcher(node.config)
    return None


# First, so that the library comes first in the ids whatever else parametrizes.
@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize a test function if it runs under several libraries."""
    switcher = _switcher_for(metafunc.definition)
    if switcher is not None:
        switcher.tests.parametrize(metafunc)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add the tests of ``--udf-model``, which no file holds."""
    options = config.stash[_OPTIONS]
    if options.models:
        from pytest_udftorch.plugin.model import collected

        items += collected(session, options.models)


# Innermost, so that --last-failed and others see the items under their final ids.
@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Repeat the items that pytest cannot parametrize, once for each library."""
    __tracebackhide__ = True
    report = yield
    if report.passed:
        items = (node for node in report.result if isinstance(node, pytest.Item))
        switcher = next(filter(None, map(_switcher_for, items)), None)
        if switcher is not None:
            switcher.tests.expand(report)
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say so if a run was to be strict and no library was chosen; see also ``Reached``."""
    alone = not config.pluginmanager.hasplugin("dsession")
    if alone and config.stash[_OPTIONS].strict and _SWITCHER not in config.stash:
        terminalreporter.write_line(NOTHING_CHECKED, yellow=True)


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Say how far a result is from what ``approx`` allows."""
    for approx, got in ((right, left), (left, right)):
        if op == "==" and type(approx).__module__ == "pytest_udftorch.prove.exact.approx":
            lines: list[str] = approx.differences(got)  # type: ignore[attr-defined]
            return lines
    return None


@pytest.fixture(scope="session")
def udf_session(request: pytest.FixtureRequest) -> Session:
    """The open :class:`pytest_udftorch.Session` of the running test.

    It has the library, its build and the swapped functions. A fixture of any scope that
    depends on it is set up anew for each library. Fails if no library is chosen.
    """
    switcher = request.config.stash.get(_SWITCHER, None)
    if hasattr(request, "param") and (switcher is None or not switcher.tests.owns(request.param)):
        pytest.fail(
            f"udf_session cannot be parametrized (here with {request.param!r}): it is the "
            f'session of the library already chosen. Use @pytest.mark.{MARKER}("std", "corem") '
            "to run a test under several libraries.",
            pytrace=False,
        )
    session = None if switcher is None else switcher.session
    if session is None:
        from pytest_udftorch.swap.library.description import available_libraries

        pytest.fail(
            "The fixture udf_session needs a UDF library, and none is chosen for this test. "
            f"Choose one for the whole run with --udf-lib=NAME_OR_PATH (or {MARKER} in the ini "
            f'file), or for this test with @pytest.mark.{MARKER}("NAME"). '
            f"Libraries: {', '.join(sorted(available_libraries()))}.",
            pytrace=False,
        )
    return session


@pytest.fixture
def udf_profile(request: pytest.FixtureRequest) -> RunProfile:
    """What was counted so far: ``udf_profile.test`` in this test, ``udf_profile.run`` in the run.

    Each is a :class:`pytest_udftorch.watch.Profile` of the library of the running test.
    Fails if profiling is off.
    """
    profile = request.config.stash.get(_PROFILE, None)
    if profile is None:
        pytest.fail(
            "The fixture udf_profile needs profiling, and it is off. Turn it on for the run with "
            "--udf-profile (or udf_profile = counters in the ini file).",
            pytrace=False,
        )
    return profile


@pytest.fixture
def patched_libtorch(request: pytest.FixtureRequest) -> Generator[PatchedLibtorch]:
    """Factory of sessions that are closed when the test ends, the last one first.

    ``session = patched_libtorch("corem", functions=("exp",))`` takes the arguments of
    :func:`pytest_udftorch.patched` and raises its errors. It may be called several times:
    the latest session that names a function decides it.
    """
    from contextlib import ExitStack

    chosen = request.config.stash[_OPTIONS]
    with ExitStack() as stack:

        def open_session(*args: Any, **options: Any) -> Session:
            from pytest_udftorch.swap.session.session import patched

            for name in ("cpu_level", "cuda_form"):
                options[name] = options.get(name) or getattr(chosen, name)
            return stack.enter_context(patched(*args, **options))

        yield open_session


@pytest.fixture(scope="session")
def udf_coverage() -> Callable[..., Coverage]:
    """Count which evaluations of functions a session swaps: ``udf_coverage(step).share``.

    See :func:`pytest_udftorch.swap.coverage`. ``step`` runs what is to be judged; with
    ``compiled=True`` it runs compiled code.
    """
    from pytest_udftorch.swap.reach.coverage import coverage

    return coverage


@pytest.fixture(scope="session")
def udf_diff() -> Callable[..., Difference]:
    """Find the first operator that makes two runs differ: ``udf_diff(a, b, model, inputs)``.

    See :func:`pytest_udftorch.diagnose.first_difference`. A test may assert that the result is
    ``equal`` or ``explained``; its ``text()`` is the report.
    """
    from pytest_udftorch.diagnose.diff.comparison import first_difference

    return first_difference


@pytest.fixture(scope="session")
def udf_sensitivity() -> Callable[..., Sensitivity]:
    """Count the bits that rounding errors leave: ``udf_sensitivity(model, inputs).least``.

    See :func:`pytest_udftorch.diagnose.significant_bits`. ``losses`` are the operators that lose
    bits.
    """
    from pytest_udftorch.diagnose.sensitivity.experiment import significant_bits

    return significant_bits


@pytest.fixture
def udf_golden(request: pytest.FixtureRequest) -> GoldenValues:
    """Compare a computation with stored values: ``udf_golden(model, inputs)``.

    The values lie in ``golden`` beside the test's file; ``--udf-golden-update`` stores them. A
    result passes if it is as near to the float64 result as rounding explains. See
    :class:`pytest_udftorch.plugin.golden.GoldenValues`.
    """
    from pytest_udftorch.plugin.golden import GoldenValues

    switcher = request.config.stash.get(_SWITCHER, None)
    session = None if switcher is None else switcher.session
    library = "stock" if session is None else session.library.name
    return GoldenValues(request.node, library, update=request.config.stash[_OPTIONS].golden_update)


@pytest.fixture(scope="session")
def udf_same() -> Callable[..., Sameness]:
    """Assert that ways of running a model give the same bits: ``udf_same(model, inputs)``.

    They run under the library of the test. See :func:`pytest_udftorch.plugin.model.assert_same`.
    """
    from pytest_udftorch.plugin.model import assert_same

    return assert_same


@pytest.fixture(scope="session")
def summation_tree() -> Callable[..., SummationTree]:
    """Read the order of additions out of an operator: ``summation_tree(torch.mm, (2, 8), (8, 2))``.

    See :func:`pytest_udftorch.reproduce.summation_tree`.
    """
    from pytest_udftorch.reproduce.order.masking import summation_tree

    return summation_tree


@pytest.fixture(scope="session")
def assert_batch_invariant() -> Callable[..., Invariance]:
    """Assert that a row's result does not depend on how many rows there are.

    See :func:`pytest_udftorch.reproduce.assert_batch_invariant`.
    """
    from pytest_udftorch.reproduce.order.invariance import assert_batch_invariant

    return assert_batch_invariant


@pytest.fixture(scope="session")
def assert_position_invariant() -> Callable[..., Invariance]:
    """Assert that a row's result does not depend on its position in the batch.

    See :func:`pytest_udftorch.reproduce.assert_position_invariant`.
    """
    from pytest_udftorch.reproduce.order.invariance import assert_position_invariant

    return assert_position_invariant


@pytest.fixture(scope="session")
def assert_equivalent() -> Callable[..., Equivalence]:
    """Assert that two multi-linear programs are equal: ``assert_equivalent(f, g, shapes)``.

    See :func:`pytest_udftorch.measure.assert_equivalent`.
    """
    from pytest_udftorch.measure.rewrite.boxes import assert_equivalent

    return assert_equivalent


def _or_skip(module: str, name: str) -> Callable[..., Any]:
    """Return a function of the package that skips the test if its device is missing."""
    from functools import wraps
    from importlib import import_module

    try:
        function = getattr(import_module(f"pytest_udftorch.{module}"), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        pytest.fail(
            f"The fixture {name} needs torch, which is not installed: pip install torch.",
            pytrace=False,
        )
    from pytest_udftorch.errors import DeviceMissingError

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except DeviceMissingError as error:
            pytest.skip(str(error))

    return call


@pytest.fixture(scope="session")
def sync_timer() -> Callable[..., SyncTimer]:
    """Factory of synchronised timers, ``sync_timer(device="cpu", runs=20, rounds=10)``.

    See :func:`pytest_udftorch.measure.sync_timer`. ``.compare({name: call})`` times callables
    interleaved. Asking for CUDA on a machine without it skips the test and says why.
    """
    return _or_skip("measure.timing.timers", "sync_timer")


@pytest.fixture(scope="session")
def model_pair() -> Callable[..., ModelPair]:
    """Factory of interpreted and compiled forms, ``model_pair(model, inputs, executors=...)``.

    See :func:`pytest_udftorch.measure.model_pair`. ``device="cuda"`` on a machine without CUDA
    skips the test and says why.
    """
    return _or_skip("measure.planning.pairs", "model_pair")


@pytest.fixture(scope="session")
def oracle() -> Callable[..., Plan]:
    """Search for the fastest way to run a model: ``oracle(model, inputs)`` returns a ``Plan``.

    See :func:`pytest_udftorch.measure.oracle`. ``device="cuda"`` on a machine without CUDA
    skips the test and says why.
    """
    return _or_skip("measure.planning.plan_search", "oracle")
