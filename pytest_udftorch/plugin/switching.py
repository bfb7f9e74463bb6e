"""Which library each test runs under, and the switching between them during a run.

Loaded by the plugin once a library is chosen. One library for the whole run is one session
around everything, collection included. With several, or with a marker, the session belongs
to the tests: it is opened in the setup phase of the first one that needs it, stays open as
long as the next test needs the same, and is closed in the teardown phase of the last one.
So whatever goes wrong is an error of a phase of that test, and ``-x``, reports and exit
codes need no care of their own.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import re
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_udftorch.build.cuda_form import AUTO, DOUBLE, asked_form, gpus
from pytest_udftorch.build.selection import Part, cuda_forms
from pytest_udftorch.build.shared import Build, build_library
from pytest_udftorch.build.toolchain import resolve_cpu_level
from pytest_udftorch.compat import torch_summary
from pytest_udftorch.errors import ProfileFileError, UdfError
from pytest_udftorch.library.description import UdfLibrary, find_library, is_operator
from pytest_udftorch.overrides.operator_udfs import prepare
from pytest_udftorch.plugin.options import MARKER, Options, as_path_or_name
from pytest_udftorch.session.session import Session, patched

# pytest's option names of runs that execute no test and hence open no session.
_DRY_RUNS = ("collectonly", "setupplan", "showfixtures", "show_fixtures_per_test")

_FIXTURE = "udf_session"


# Compared by identity: equal targets are made one.
@dataclass(frozen=True, eq=False)
class Target:
    """A library and the functions of it that a test runs under.

    Attributes:
        library: the UDF library.
        functions: torch's names, or None for all that the library has.
        path: the folder as an absolute path if the library was chosen by path.
    """

    library: UdfLibrary
    functions: tuple[str, ...] | None
    path: Path | None

    def open(
        self, options: Options, profile: str | None = None, out: Path | None = None
    ) -> Session:
        """Return a session of this target, not yet entered."""
        depth: Any = profile or False
        form: Any = options.cuda_form
        return patched(
            self.library,
            self.functions,
            cpu_level=options.cpu_level,
            profile=depth,
            profile_out=out,
            cuda_form=form,
        )


_TARGET = pytest.StashKey[Target]()


class _Parameter(str):
    """The id of a target as parameter of a test; a string, as others put it into reports."""


class Switcher:
    """Resolves what the user chose, and opens and closes the sessions of a run.

    Attributes:
        chosen: id -> target, from the command line or the ini file.
        profiled: the sessions so far that have a profile.
        profile_out: the folder that their files go to, or None.
        notes: about files of profiles that could not be made.
    """

    def __init__(self, config: pytest.Config, options: Options) -> None:
        self.config = config
        self.options = options
        self.chosen: dict[str, Target] = {}
        self.profiled: list[Session] = []
        self.profile_out = options.profile_out
        self.notes: list[str] = []
        self._targets: dict[tuple[Path, tuple[str, ...] | None], Target] = {}
        self._builds: dict[Target, Build | None] = {}
        self._torch: tuple[str, str] | None = None
        self._failures: dict[Target, str] = {}
        self._base: Session | None = None
        self._paused: Target | None = None
        self._active: tuple[Target, Session] | None = None
        self._sessions = contextlib.ExitStack()
        self._live: dict[pytest.FixtureDef[Any], Any] = {}
        config.add_cleanup(self.close)

    @property
    def session(self) -> Session | None:
        """The open session of the running test, or None."""
        return self._base if self._active is None else self._active[1]

    def owns(self, parameter: object) -> bool:
        """Tell whether a fixture parameter is one of ours."""
        return isinstance(parameter, _Parameter)

    # ---------------------------------------------------------------------------------
    # Start and end of the run

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionstart(self) -> Generator[None]:
        """Find, build and check the chosen libraries, before the header is printed.

        Raises:
            pytest.UsageError: what the package says is wrong with one of them.
        """
        try:
            self._choose()
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
                base, self._base = self._base, None
                stack.callback(base.close)
            self._paused = None
            stack.callback(self._leave)

    @property
    def dry(self) -> bool:
        """Whether this run executes no test."""
        return any(self.config.getoption(name, False) for name in _DRY_RUNS)

    def _choose(self) -> None:
        targets = [self._target(find_library(x), x, None) for x in self.options.libraries]
        names = self.options.functions
        if names is not None:
            for target in targets:
                target.library.select(names)
            targets = [self._target(t.library, t.path, names) for t in targets]
        if self.options.cpu_level is not None:
            resolve_cpu_level(self.options.cpu_level)
        self.chosen = _by_id(targets)

    def _start(self) -> None:
        targets = list(self.chosen.values())
        if hasattr(self.config, "workerinput"):
            # The controller of xdist has built and reported already. What goes wrong only
            # in a worker is told by its tests: a worker that fails to start is restarted.
            if len(targets) == 1:
                with contextlib.suppress(UdfError):
                    self._open_base(targets[0])
            return
        for target in targets:
            if not self.config.pluginmanager.hasplugin("dsession"):
                if len(targets) == 1:
                    self._open_base(target)
                else:
                    # Once for nothing, so that a library that cannot be used ends the run
                    # here, with one message, and not in each of its tests.
                    with target.open(self.options, self.options.profile) as session:
                        self._builds[target] = session.build
            elif not target.library.stock:
                self._prebuild(target)
        self._torch = torch_summary()

    def _prebuild(self, target: Target) -> None:
        """Compile for the workers of xdist, which then find it in the cache."""
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
        """Return an open session; with its profile, if one is asked for."""
        depth = self.options.profile
        try:
            session = target.open(self.options, depth, self.profile_out).__enter__()
        except ProfileFileError as error:
            # The folder was good at the start: a test is not to fail because it is gone.
            self.notes.append(str(error))
            session = target.open(self.options, depth).__enter__()
        if depth is not None:
            self.profiled.append(session)
        return session

    def pytest_report_header(self) -> list[str]:
        """State library, version, claim, build, CPU level, functions and torch."""
        lines = []
        for name, target in self.chosen.items():
            label = "udftorch" if len(self.chosen) == 1 else f"udftorch [{name}]"
            lines.append(f"{label}: {self._describe(target)}")
        if self._torch is not None:
            lines.append("udftorch: torch {}, CPU capability {}".format(*self._torch))
        return lines

    def _describe(self, target: Target) -> str:
        library = target.library
        build = self._builds.get(target)
        if library.stock:
            how = "nothing swapped" + (", but watched" if self.options.profile else "")
        elif build is not None:
            how = f"build {build.build_id}, CPU level {build.cpu_level}"
            how += self._on_gpus(target, build)
        elif all(map(is_operator, target.functions or library.names)):
            how = "operators only"
        else:
            how = "not built, as no test is run"
        if target.functions is None and library.stock:
            functions = "all"
        else:
            functions = ", ".join(target.functions or library.names)
        text = f"{library.name} {library.version}"
        text += f" ({library.claim})" if library.claim else ""
        text += f" from {target.path}" if target.path is not None else ""
        return f"{text}; {how}; functions: {functions}"

    def _on_gpus(self, target: Target, build: Build) -> str:
        """Return which form GPUs get, if there are any or one was asked for."""
        asked = asked_form(self.options.cuda_form)
        if asked == AUTO and not gpus():
            return ""
        names = target.functions or target.library.function_names
        keys = tuple((n, "float32") for n in names if (n, "float32") in target.library.functions)
        forms = cuda_forms(Part(build, keys, asked))
        double = [name for name, form in forms.items() if form == DOUBLE]
        if len(double) == len(forms):
            return ", on GPUs double"
        rest = f" (double: {', '.join(double)})" if double else ""
        return f", on GPUs float-float{rest}"

    # ---------------------------------------------------------------------------------
    # Which tests run under what

    def _target(
        self, library: UdfLibrary, which: str | Path | None, functions: tuple[str, ...] | None
    ) -> Target:
        """Return the one target of a folder and a selection of functions."""
        path = which if isinstance(which, Path) else None
        return self._targets.setdefault(
            (library.folder, functions), Target(library, functions, path)
        )

    def _targets_for(self, item: pytest.Item) -> Mapping[str, Target]:
        """Return id -> target for a test: what its closest marker says, or the options.

        Raises:
            UdfError: the marker is wrong; the message names the test.
        """
        mark = item.get_closest_marker(MARKER)
        if mark is None:
            return self.chosen
        try:
            return self._marked(mark, item.path.parent)
        except UdfError as error:
            raise UdfError(
                f"{item.nodeid}: the marker {MARKER} cannot be used. {error}\n"
                f'Its form is @pytest.mark.{MARKER}("corem") or '
                f'@pytest.mark.{MARKER}("corem", functions=("exp", "log")).'
            ) from None

    def _marked(self, mark: pytest.Mark, folder: Path) -> Mapping[str, Target]:
        if not mark.args:
            raise UdfError("It names no library.")
        unknown = set(mark.kwargs) - {"functions"}
        if unknown:
            raise UdfError(
                f"It has no keyword {', '.join(map(repr, sorted(unknown)))}; the only one is "
                "'functions'."
            )
        targets = []
        for which in mark.args:
            if isinstance(which, str) and which.strip():
                which = as_path_or_name(which, folder)
            elif isinstance(which, Path):
                which = folder / which
            elif isinstance(which, UdfLibrary):
                raise UdfError(
                    f"{which.name!r} was made in Python, and the marker takes names and paths. "
                    "Give it to the fixture patched_libtorch in the test."
                )
            else:
                raise UdfError(f"{which!r} is neither the name nor the path of a library.")
            library = find_library(which)
            names = mark.kwargs.get("functions")
            if names is not None:
                names = library.select(_checked(names))
            targets.append(self._target(library, which, names))
        return _by_id(targets)

    def parametrize(self, metafunc: pytest.Metafunc) -> None:
        """Give a test function one parameter set for each of several libraries."""
        try:
            targets = self._targets_for(metafunc.definition)
        except UdfError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None
        if len(targets) < 2:
            return
        names = metafunc.fixturenames
        # pytest parametrizes only what a function asks for. One that does not ask for the
        # session still runs under it, without the fixture being set up.
        asked = _FIXTURE in names
        if not asked:
            names.append(_FIXTURE)
        parameters = [_Parameter(name) for name in targets]
        metafunc.parametrize(_FIXTURE, parameters, ids=parameters, indirect=True, scope="session")
        if not asked:
            names.remove(_FIXTURE)

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
            if not isinstance(node, pytest.Item) or _TARGET in node.stash:
                yield node
                continue
            targets = self._targets_for(node)
            parameters = node.callspec.params if hasattr(node, "callspec") else {}
            if self.owns(parameters.get(_FIXTURE)):
                node.stash[_TARGET] = targets[parameters[_FIXTURE]]
                yield node
            elif len(targets) < 2:
                for target in targets.values():
                    node.stash[_TARGET] = target
                yield node
            else:
                for name, target in targets.items():
                    repeated = _repeated(node, name)
                    repeated.stash[_TARGET] = target
                    yield repeated

    # Last, after pytest's own reordering.
    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Put the tests of one library together, keeping their order."""
        if len(self.chosen) < 2:
            return
        order = {target: i for i, target in enumerate(self.chosen.values())}
        for item in items:
            order.setdefault(item.stash[_TARGET], len(order))
        items.sort(key=lambda item: order[item.stash[_TARGET]])

    # ---------------------------------------------------------------------------------
    # Switching

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Open the session of a test, after marks that skip it had their say."""
        if self.dry:
            return
        target = item.stash.get(_TARGET, None)
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
        """Close the session after the last test that needs it, behind its fixtures."""
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

        With several libraries chosen for the run these are all: what a fixture computed
        under one library must not be taken for the result of another. A marker concerns
        single tests, and those who set it know it: there ``udf_session`` is enough, whose
        dependents pytest tears down with it.
        """
        if fixturedef.argname == _FIXTURE or (
            len(self.chosen) > 1 and fixturedef.scope != "function"
        ):
            self._live[fixturedef] = request
            fixturedef.addfinalizer(functools.partial(self._live.pop, fixturedef, None))
        return (yield)

    def _override(self, item: pytest.Item) -> Target | None:
        """Return the target a test needs a session of its own for, or None."""
        target = item.stash.get(_TARGET, None)
        if len(self.chosen) == 1 and target in self.chosen.values():
            return None
        return target

    def _enter(self, target: Target) -> None:
        self._drop_fixtures()
        try:
            with contextlib.ExitStack() as stack:
                if self._base is not None and self.options.profile:
                    # There is one set of counters: the run's session makes room.
                    base, self._base = self._base, None
                    self._paused = next(iter(self.chosen.values()))
                    base.close()
                elif self._base is not None:
                    # A marker replaces what is chosen for the run: functions that it
                    # leaves out are the stock ones.
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
        try:
            self._drop_fixtures()
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
        with contextlib.ExitStack() as stack:
            for fixturedef, request in self._live.items():
                stack.callback(fixturedef.finish, request)


def _checked(names: object) -> tuple[str, ...]:
    if isinstance(names, str):
        raise UdfError(f"functions={names!r} is a string; give a sequence: ({names!r},).")
    if not isinstance(names, Sequence) or not all(isinstance(n, str) for n in names):
        raise UdfError(f"functions={names!r} is not a sequence of torch's function names.")
    return tuple(names)


def _by_id(targets: Iterable[Target]) -> dict[str, Target]:
    """Return id -> target; the id is the library's name, numbered from the second on."""
    found: dict[str, Target] = {}
    unique = list(dict.fromkeys(targets))
    names = [re.sub(r"[^A-Za-z0-9_.+-]", "_", t.library.name) for t in unique]
    for name, target in zip(names, unique, strict=True):
        key, number = name, 2
        while key in found or (number > 2 and key in names):
            key, number = f"{name}.{number}", number + 1
        found[key] = target
    return found


# --------------------------------------------------------------------------------------
# Items that pytest cannot parametrize


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
