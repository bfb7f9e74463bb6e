# SPDX-License-Identifier: Apache-2.0
"""The plugin's options, frozen once into one dataclass."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, get_args

import pytest

MARKER: Final = "udf_lib"

#: The name of a test's figures among the user properties of its report.
PROFILE: Final = "udf_profile"

#: What a run is told that asks for strictness and has nothing to be strict about.
NOTHING_CHECKED: Final = (
    "udftorch: udf_strict is on, but no test ran under a library, so nothing was checked. Choose "
    "one with udf_lib, or with the marker."
)

_PROFILE: Final = "--udf-profile"
_DEPTH: Final = "counters"


@dataclass(frozen=True)
class Options:
    """What the command line and the ini file say about UDF libraries.

    Attributes:
        libraries: names, or absolute paths of folders, in the order given.
        functions: torch's names of the functions to swap, or None for all of a library's.
        cpu_level: ``baseline``, ``avx2``, ``avx512``, or None for the best of this CPU.
        cuda_form: ``double``, ``float-float``, ``auto``, or None for what
            ``UDFTORCH_CUDA_FORM`` says.
        profile: ``counters``, ``timed``, ``events``, or None for no profile.
        profile_out: the folder for profiles and their report, as an absolute path, or None.
        strict: whether ranks of a process group that differ are an error, and a test that calls
            a function which its library does not reach fails.
        failing: the kinds of values, of ``nan`` and ``inf``, that fail a test in which an operator
            makes one: ``error`` if it reaches a result, ``made`` in any case.
        coverage: whether the profile says what share of the evaluations is swapped.
        exclusive: whether sessions switch while no thread is in an operator.
        save: the name under which the run's figures are kept, or None.
        compare: the name of the baseline that the run is compared with, or None.
        compare_fail: limits on changes, such as ``time:10%,ulp:1``.
        storage: the folder of baselines, as an absolute path.
        composites: whether activations are correctly rounded as a whole.
        golden_update: whether the fixture ``udf_golden`` stores values instead of checking them.
        models: the subjects whose ways of running are tested, as ``udftorch same`` names them.
    """

    libraries: tuple[str | Path, ...] = ()
    functions: tuple[str, ...] | None = None
    cpu_level: str | None = None
    cuda_form: str | None = None
    profile: str | None = None
    profile_out: Path | None = None
    strict: bool = False
    failing: Mapping[Literal["nan", "inf"], str] = field(default_factory=dict)
    coverage: bool = False
    exclusive: bool = False
    composites: bool = False
    save: str | None = None
    compare: str | None = None
    compare_fail: tuple[str, ...] = ()
    storage: Path = Path()
    golden_update: bool = False
    models: tuple[str, ...] = ()

    @property
    def guarded(self) -> bool:
        """Whether the run is saved or compared."""
        return self.save is not None or self.compare is not None


def add_options(parser: pytest.Parser) -> None:
    """Declare the command line options and the ini values of the same names."""
    group = parser.getgroup("udftorch", "other math libraries inside PyTorch (pytest_udftorch)")
    group.addoption(
        "--udf-lib",
        action="append",
        metavar="NAME_OR_PATH",
        help="Run with the math functions of this UDF library inside PyTorch: std, corem, "
        "an installed library, or ./folder. With several, joined by commas or in options of their "
        "own, each test runs under each.",
    )
    group.addoption(
        "--udf-functions",
        action="append",
        metavar="NAMES",
        help="Swap only these functions (exp,log,...). Default: all that the library has.",
    )
    group.addoption(
        "--udf-cpu-level",
        metavar="LEVEL",
        help="Build for baseline, avx2 or avx512. Default: the best of this CPU.",
    )
    group.addoption(
        "--udf-cuda-form",
        metavar="FORM",
        help="How GPUs compute the functions: double, float-float (the same bits, for GPUs with "
        "weak double precision), or auto (default: chosen by the GPUs of the machine).",
    )
    group.addoption(
        _PROFILE,
        nargs="?",
        const=_DEPTH,
        metavar="DEPTH",
        help="Count what the functions do: counters (default), timed, or events. Without "
        "--udf-lib, watch the stock functions.",
    )
    group.addoption(
        "--udf-profile-out",
        metavar="DIR",
        help="Write the profiles and report.html into this folder; those of an earlier run "
        "in it are replaced.",
    )
    group.addoption(
        "--udf-profile-coverage",
        action="store_true",
        default=None,
        help="Say in the profile what share of the evaluations in tests is swapped, by the "
        "definitions of the operators called. Turns --udf-profile on.",
    )
    group.addoption(
        "--udf-strict",
        action="store_true",
        default=None,
        help="Fail a test that calls a function which its library does not reach; fail, instead "
        "of warning, if the ranks of a distributed run have different libraries.",
    )
    group.addoption(
        "--udf-exclusive",
        action="store_true",
        default=None,
        help="Switch only while no thread is in an operator, so that no result mixes two "
        "libraries; for tests that leave threads running.",
    )
    group.addoption(
        "--udf-composites",
        action="store_true",
        default=None,
        help="Compute sigmoid, silu, gelu and other activations on the CPU by one correctly "
        "rounded function each, where the library has such functions.",
    )
    for kind, what in (("nan", "a NaN"), ("inf", "an infinity")):
        group.addoption(
            f"--udf-{kind}",
            metavar="WHAT",
            help=f"error: fail a test in which an operator turns numbers into {what} that "
            "reaches a result, a gradient or a parameter, and name it, its line, its layer and the "
            "values; made: also if torch masks it later. Turns --udf-profile on. Default: "
            "ignore.",
        )
    group.addoption(
        "--udf-model",
        action="append",
        metavar="SUBJECT",
        help="Test, without a test file, that the ways of running this model agree: "
        "hf-tiny:CLASS, hf:DIR, timm:NAME, torchvision:NAME or model.py:make. Tests in files run "
        "too if their paths are given.",
    )
    _add_baseline_options(group)
    parser.addini("udf_storage", "as --udf-storage, relative to the ini file", default="")
    parser.addini("udf_lib", "as --udf-lib, one library per line", type="linelist")
    parser.addini("udf_functions", "as --udf-functions", type="linelist")
    for name in ("udf_cpu_level", "udf_cuda_form", "udf_profile", "udf_nan", "udf_inf"):
        parser.addini(name, f"as --{name.replace('_', '-')}", default="")
    for name in ("udf_strict", "udf_exclusive", "udf_composites", "udf_profile_coverage"):
        parser.addini(name, f"as --{name.replace('_', '-')}", type="bool", default=False)


def _add_baseline_options(group: pytest.OptionGroup) -> None:
    group.addoption(
        "--udf-save",
        metavar="NAME",
        help="Keep what the functions did in each test as the baseline NAME: calls, ranges, NaNs "
        "and infinities made, some results, and times with --udf-profile=timed. Turns "
        "--udf-profile on.",
    )
    group.addoption(
        "--udf-compare", metavar="NAME", help="Say what has changed since the baseline NAME."
    )
    group.addoption(
        "--udf-compare-fail",
        action="append",
        metavar="LIMITS",
        help="Fail the run if a change is beyond a limit, such as time:10%%,ulp:1,range:0.5,"
        "count:0,nan:0,inf:0. Time is per element over all tests, a range in binades.",
    )
    group.addoption(
        "--udf-storage",
        metavar="DIR",
        help="The folder of baselines. Default: .udftorch in pytest's root.",
    )
    group.addoption(
        "--udf-golden-update",
        action="store_true",
        help="Let the fixture udf_golden store the values that it would check.",
    )


def release_paths(config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    """Write out the depth where a path follows ``--udf-profile``, which would be taken for it.

    Args:
        config: with what pytest knows of the command line before it loads the conftest files.
        parser: pytest's.
        args: the arguments, with those of ``addopts``; changed in place.
    """
    known = config.known_args_namespace
    path = known.udf_profile
    if path is None:
        return
    _require_numpy()
    if not _is_path(path, config.invocation_params.dir):
        return
    changed = False
    for here, text in enumerate(args[:-1]):
        if text == _PROFILE and _is_path(args[here + 1], config.invocation_params.dir):
            args[here] = f"{_PROFILE}={_DEPTH}"
            changed = True
    if changed:
        again = parser.parse_known_args(args, namespace=copy.copy(config.option))
        known.udf_profile, known.file_or_dir = again.udf_profile, again.file_or_dir


def _is_path(text: str, folder: Path) -> bool:
    """Say whether an argument names tests: a path that exists, before any ``::``."""
    from pytest_udftorch.swap.records.layout import DEPTHS

    path = text.partition("::")[0].partition("[")[0]
    return text not in DEPTHS and bool(path) and os.path.exists(folder / path)


def freeze(config: pytest.Config) -> Options:
    """Read the options; the command line replaces an ini value of the same name.

    A path on the command line, also after ``-o``, is relative to the folder in which pytest was
    started, one in an ini file to the folder of that file.

    Raises:
        pytest.UsageError: an empty name, ``--udf-functions`` or ``--udf-strict`` on the command
            line without any library, an unknown depth or form on GPUs, a word other than
            ``error``, ``made`` and ``ignore`` for ``--udf-nan``, ``--udf-profile-out`` without a
            profile, or limits with nothing to compare with.
    """
    given, folder = config.getoption("udf_lib"), config.invocation_params.dir
    if given is None:
        given = config.getini("udf_lib")
        if not _overridden(config, "udf_lib"):
            folder = config.inipath.parent if config.inipath else config.rootpath
    libraries = _libraries(given, folder) if given else ()
    if "" in libraries:
        raise pytest.UsageError(
            "--udf-lib (or udf_lib in the ini file) has an empty value. Give the name of a UDF "
            "library (std, corem, ...) or the path of its folder (./my_udfs)."
        )
    failing = _failing(config)
    baseline = _baseline(config)
    guarded = any(baseline[name] is not None for name in ("save", "compare"))
    coverage = bool(_given(config, "udf_profile_coverage"))
    implied = bool(failing) or guarded or coverage
    if implied or _given(config, "udf_profile") is not None:
        _require_numpy()
    profile = _depth(config) or ("counters" if implied else None)
    if profile is not None and not libraries:
        libraries = ("std",)
    functions = config.getoption("udf_functions")
    if functions is not None and not libraries:
        raise pytest.UsageError(
            f"--udf-functions={','.join(functions)} names functions, but no library is chosen "
            "to take them from. Add --udf-lib=NAME_OR_PATH, for instance --udf-lib=corem."
        )
    if config.getoption("udf_strict") and not libraries:
        raise pytest.UsageError(
            "--udf-strict fails tests that call what a library does not reach, but no library is "
            "chosen, so every test would pass. Add --udf-lib=NAME_OR_PATH, for instance "
            "--udf-lib=corem. If only markers choose libraries, write udf_strict = true in the ini "
            "file instead."
        )
    functions = _given(config, "udf_functions")
    return Options(
        libraries=libraries,
        functions=None if functions is None else _names(functions),
        cpu_level=_given(config, "udf_cpu_level") or None,
        cuda_form=_cuda_form(config),
        profile=profile,
        profile_out=_out(config, profile),
        strict=bool(_given(config, "udf_strict")),
        exclusive=bool(_given(config, "udf_exclusive")),
        composites=bool(_given(config, "udf_composites")),
        failing=failing,
        coverage=coverage,
        models=tuple(config.getoption("udf_model") or ()),
        **baseline,
    )


def _overridden(config: pytest.Config, name: str) -> bool:
    """Tell whether the command line gives an ini value (``-o udf_lib=./mine``)."""
    given = config.getoption("override_ini") or ()
    return any(text.partition("=")[0].strip() == name for text in given)


def _baseline(config: pytest.Config) -> dict[str, Any]:
    save, compare = config.getoption("udf_save"), config.getoption("udf_compare")
    limits = config.getoption("udf_compare_fail")
    if limits and compare is None:
        raise pytest.UsageError(
            f"--udf-compare-fail={','.join(limits)} limits changes, but there is nothing to "
            "compare with. Add --udf-compare=NAME."
        )
    storage = config.getoption("udf_storage")
    folder = config.invocation_params.dir
    if storage is None:
        storage = config.getini("udf_storage") or ".udftorch"
        folder = config.inipath.parent if config.inipath else config.rootpath
    return {
        "save": save,
        "compare": compare,
        "compare_fail": tuple(limits or ()),
        "storage": Path(folder, os.path.expanduser(storage)),
        "golden_update": config.getoption("udf_golden_update"),
    }


def _libraries(given: Iterable[str], folder: Path) -> tuple[str | Path, ...]:
    from pytest_udftorch.swap.session.option_values import as_path_or_name, separated

    return tuple(as_path_or_name(text, folder) for text in separated(given, folder))


def _given(config: pytest.Config, name: str) -> Any:
    """Return an option, or else the ini value of its name; None if neither is given."""
    option = config.getoption(name)
    return option if option is not None else config.getini(name) or None


def _require_numpy() -> None:
    from pytest_udftorch.base.optional import require
    from pytest_udftorch.errors import PackageMissingError

    try:
        require(["numpy"], "A profile (--udf-profile)")
    except PackageMissingError as error:
        raise pytest.UsageError(str(error)) from None


def _depth(config: pytest.Config) -> str | None:
    depth: str | None = _given(config, "udf_profile")
    if depth is None:
        return None
    from pytest_udftorch.swap.records.layout import DEPTHS

    if depth not in DEPTHS:
        raise pytest.UsageError(
            f"--udf-profile (or udf_profile in the ini file) is {depth!r}, which is not a depth of "
            f"profiling. Write --udf-profile={DEPTHS[0]}, ={DEPTHS[1]} or ={DEPTHS[2]}, with the "
            "sign =, so that the next argument is not taken for the depth."
        )
    return depth


def _failing(config: pytest.Config) -> dict[Literal["nan", "inf"], str]:
    kinds: dict[Literal["nan", "inf"], str] = {}
    for kind in get_args(Literal["nan", "inf"]):
        what = _given(config, f"udf_{kind}")
        if what not in (None, "error", "made", "ignore"):
            raise pytest.UsageError(
                f"--udf-{kind} (or udf_{kind} in the ini file) is {what!r}. Write "
                f"--udf-{kind}=error to fail the test if one reaches a result, =made to fail it "
                "if one is made at all, or =ignore."
            )
        if what in ("error", "made"):
            kinds[kind] = what
    return kinds


def _cuda_form(config: pytest.Config) -> str | None:
    form: str | None = _given(config, "udf_cuda_form")
    if form is None:
        return None
    from pytest_udftorch.errors import CudaFormError
    from pytest_udftorch.swap.toolchain.cuda_form import asked_form

    try:
        return asked_form(form)
    except CudaFormError as error:
        raise pytest.UsageError(f"--udf-cuda-form (or udf_cuda_form): {error}") from None


def _out(config: pytest.Config, profile: str | None) -> Path | None:
    text = config.getoption("udf_profile_out")
    if text is None:
        return None
    if profile is None:
        raise pytest.UsageError(
            f"--udf-profile-out={text} says where profiles go, but none is made. Add --udf-profile."
        )
    if not text.strip():
        raise pytest.UsageError("--udf-profile-out is empty. Name a folder: --udf-profile-out=out.")
    return Path(config.invocation_params.dir, os.path.expanduser(text))


def _names(values: Iterable[str]) -> tuple[str, ...]:
    from pytest_udftorch.errors import UnknownFunctionError
    from pytest_udftorch.swap.session.option_values import names_in

    try:
        return names_in(values)
    except UnknownFunctionError as error:
        raise pytest.UsageError(str(error)) from None
