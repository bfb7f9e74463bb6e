# SPDX-License-Identifier: Apache-2.0
"""UDF libraries: a folder with a ``udf.toml`` and C sources.

A library has the path of its folder. It has a name too if this package ships it, or if another
installed package offers it through the entry point group ``pytest_udftorch.libraries``.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import stat
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from pytest_udftorch import errors
from pytest_udftorch.base import package, plain_data
from pytest_udftorch.base.open_files import refuse_too_few
from pytest_udftorch.swap.library.symbols import DTYPES, FUNCTIONS, KNOWN, PROCESSORS

ENTRY_POINT_GROUP: Final = "pytest_udftorch.libraries"
DESCRIPTION_FILE: Final = "udf.toml"

#: Dtypes that a UDF at operator level can be limited to.
OPERATOR_DTYPES: Final = (
    "float32", "float64", "bfloat16", "float16", "complex64", "complex128",
    "uint8", "int8", "int16", "int32", "int64", "bool",
)  # fmt: skip

#: CPU levels that may have a quick path of their own.
QUICK_LEVELS: Final = ("avx2", "avx512")

_TOP_KEYS: Final = {"library", "functions", "operators"}
_LIBRARY_KEYS: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("name", "version", "description", "claim", "golden", "sixteen"), str),
    **dict.fromkeys(("float_float", "composites", "inherit"), str),
    "stock": bool,
    "max_ulp": (int, float),  # positive and finite
    "include_dirs": list,
    "defines": list,
}
_FUNCTION_KEYS: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("source", "scalar", "quick", "fast", "accurate", "claim", "hard_cases"), str),
    **dict.fromkeys(("short", "short_source", "gpu", "gpu_source"), str),
    **{f"quick_{level}{end}": str for level in QUICK_LEVELS for end in ("", "_source")},
    "quick_levels": list,
    "max_ulp": (int, float),  # positive and finite
}
_OPERATOR_KEYS: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("source", "python", "function"), str),
    **dict.fromkeys(("dispatch_keys", "dtypes"), list),
}
_OWN_QUICK: Final = tuple(f"quick_{level}" for level in QUICK_LEVELS)
_C_NAMES: Final = ("scalar", "short", "quick", *_OWN_QUICK, "fast", "accurate", "gpu")
#: Sources that are compiled together with ``source``, which is then in C.
_BESIDE: Final = ("short_source", *(f"{name}_source" for name in _OWN_QUICK))
#: What names a folder of the build cache and stands in every message.
_SHORT: Final = {"name": 100, "version": 100}
#: What keys name folders; the others name files.
_FOLDER_KEYS: Final = ("include_dirs", "float_float", "composites", "inherit")
_DEFINE = re.compile(r"[A-Za-z_]\w*(=[\w.+-]*)?", re.ASCII)
_OPERATOR_NAME = re.compile(r"[A-Za-z_]\w*::\w+(\.\w+)?", re.ASCII)


@dataclass(frozen=True)
class UdfFunction:
    """One function of a library.

    Attributes:
        name: torch's name (``exp``).
        dtype: ``float32`` or ``float64``.
        source: absolute path of the C source.
        scalar: C name of the scalar UDF, or None if ``fast`` and ``accurate`` are given.
        short: C name of a cheaper path that the scalar form tries before ``fast``, or None.
        short_source: absolute path of the C source of ``short``, or None if ``source`` has it.
        quick: C name of a cheaper path that the vector and array forms try before ``fast``
            where the CPU has fused multiply-add, or None.
        quick_levels: the CPU levels at which they try it, or None for all.
        quick_avx2: C name of what they try at the level ``avx2`` instead, or None.
        quick_avx2_source: absolute path of the C source that has ``quick_avx2``, or None.
        quick_avx512: C name of what they try at the level ``avx512`` instead, or None.
        quick_avx512_source: absolute path of the C source that has ``quick_avx512``, or None.
        fast: C name of the branch-free fast path, or None.
        accurate: C name of the accurate path for hard-to-round inputs, or None.
        gpu: C name of a cheaper path that kernels of GPUs try before ``fast``, or None.
        gpu_source: absolute path of the C source that has it and includes ``source``, or None.
        max_ulp: the author's claim in ULP (0.5: correctly rounded), or None.
        claim: the author's words, where they differ from the library's; else "".
        hard_cases: file of hard-to-round encodings, or None.
    """

    name: str
    dtype: str
    source: Path
    scalar: str | None = None
    short: str | None = None
    short_source: Path | None = None
    quick: str | None = None
    quick_levels: tuple[str, ...] | None = None
    quick_avx2: str | None = None
    quick_avx2_source: Path | None = None
    quick_avx512: str | None = None
    quick_avx512_source: Path | None = None
    fast: str | None = None
    accurate: str | None = None
    gpu: str | None = None
    gpu_source: Path | None = None
    max_ulp: float | None = None
    claim: str = ""
    hard_cases: Path | None = None

    def quick_at(self, cpu_level: str) -> str | None:
        """Return the name of the quick path that the forms of a CPU level try, or None.

        The baseline lacks the fused multiply-adds that a quick path relies on.
        """
        if cpu_level == "baseline":
            return None
        own = self.own_quick(cpu_level)
        if own is not None:
            return own[0]
        return self.quick if self.quick_levels is None or cpu_level in self.quick_levels else None

    def own_quick(self, cpu_level: str) -> tuple[str, Path] | None:
        """Return the name and the source of the quick path of a CPU level alone, or None."""
        name, source = {
            "avx2": (self.quick_avx2, self.quick_avx2_source),
            "avx512": (self.quick_avx512, self.quick_avx512_source),
        }.get(cpu_level, (None, None))
        return None if name is None or source is None else (name, source)

    def before(self, cpu_level: str) -> tuple[Path, ...]:
        """Return the sources that are compiled in front of ``source`` for a CPU level."""
        own = self.own_quick(cpu_level)
        return tuple(path for path in (self.short_source, own and own[1]) if path is not None)


@dataclass(frozen=True)
class UdfOperator:
    """A UDF at operator level: a whole ATen operator at some dispatch keys.

    Attributes:
        name: the operator and its overload (``aten::log.out``). ``aten::log`` is the overload
            without a name; if the function has the type of ``log.out``, it also stands for
            ``log_`` and ``log.out``.
        function: name of the author's function in the source (in C++ also ``space::function``).
        source: absolute path of the C++ source, or None.
        python: absolute path of the Python source, or None.
        dispatch_keys: torch's names of the backends (``CPU``).
        dtypes: torch's names; a call with a tensor of another dtype goes to the stock kernel.
            Empty for all dtypes.
        call: the function, if it was given as an object instead of a path.
    """

    name: str
    function: str
    source: Path | None = None
    python: Path | None = None
    dispatch_keys: tuple[str, ...] = ("CPU",)
    dtypes: tuple[str, ...] = ()
    call: Callable[..., Any] | None = None


def check_names(names: object) -> None:
    """Check that ``names`` is a sequence of names.

    Raises:
        UnknownFunctionError: it is a string, no sequence, or a sequence of something else.
    """
    if isinstance(names, str):
        raise errors.UnknownFunctionError(
            f"functions={names!r} is a string. Give a sequence: functions=({names!r},)."
        )
    if not isinstance(names, Collection) or not all(isinstance(n, str) for n in names):
        raise errors.UnknownFunctionError(
            f"functions={names!r} is not a sequence of names. Give torch's names: "
            'functions=("exp", "log").'
        )


@dataclass(frozen=True)
class UdfLibrary:
    """A UDF library as its ``udf.toml`` describes it; nothing is compiled yet.

    Attributes:
        stock: True for the baseline ``std``, which swaps nothing and has all functions of
            libtorch.
        defines: macros for the compiler (``BITS=12``).
        float_float: folder of a library that computes the same bits in float-float, for GPUs
            with weak double precision; or None.
        composites: folder of a library with activations as functions of one float32, which
            sessions take with ``composites=True``; or None.
        golden: file with the results of its functions at known inputs; or None.
        sixteen: file with the inputs in bfloat16 and half for which rounding the float32 result
            again would be wrong; or None.
        inherited: folders of the libraries that it inherits from, the nearest first.
        functions: (torch's name, dtype) -> the function.
        operators: name -> UDFs at operator level, one for each set of dispatch keys.
    """

    name: str
    version: str
    folder: Path
    description: str = ""
    claim: str = ""
    stock: bool = False
    include_dirs: tuple[Path, ...] = ()
    defines: tuple[str, ...] = ()
    float_float: Path | None = None
    composites: Path | None = None
    golden: Path | None = None
    sixteen: Path | None = None
    inherited: tuple[Path, ...] = ()
    functions: Mapping[tuple[str, str], UdfFunction] = field(default_factory=dict)
    operators: Mapping[str, tuple[UdfOperator, ...]] = field(default_factory=dict)

    @property
    def function_names(self) -> tuple[str, ...]:
        """Names of the functions, each once, in the order of ``udf.toml``."""
        if self.stock:
            return tuple(FUNCTIONS)
        return tuple(dict.fromkeys(name for name, _ in self.functions))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the functions, then of the operators."""
        return (*self.function_names, *self.operators)

    def select(self, names: Sequence[str] | None) -> tuple[str, ...]:
        """Return the names, each once, if the library has them; None selects all that it has.

        The stock library has every operator.

        Raises:
            UnknownFunctionError: the library does not have a name, or there is no name.
        """
        if names is None:
            return self.names
        check_names(names)
        if not names:
            raise errors.UnknownFunctionError(
                "An empty selection of functions would swap nothing. Leave it out to swap "
                "all of them, or use the library 'std' for the stock functions."
            )
        for name in names:
            if name not in self.names and not (self.stock and is_operator(name)):
                kind = "operator" if is_operator(name) else "function"
                raise errors.UnknownFunctionError(
                    f"UDF library {self.name!r} has no {kind} {name!r}. "
                    f"{errors.nearest(name, self.names)}"
                )
        return tuple(dict.fromkeys(names))

    def description_files(self) -> list[str]:
        """Return the path of its ``udf.toml``, and of those that it inherits from."""
        return [str(folder / DESCRIPTION_FILE) for folder in (self.folder, *self.inherited)]

    def source_files(self) -> list[str]:
        """Return the paths of every C source and header that a build may read, sorted."""
        found = {str(f.source) for f in self.functions.values()}
        for f in self.functions.values():
            found |= {str(path) for path in (getattr(f, key) for key in _BESIDE) if path}
        for folder in (self.folder, *self.include_dirs):
            found.update(files_below(folder, (".c", ".h")))
        return sorted(found)


@dataclass(frozen=True)
class PythonLibrary(UdfLibrary):
    """A library of one Python function, which a call of the library still calls.

    Attributes:
        source: the function as it was written.
    """

    source: Callable[..., Any] = field(kw_only=True, compare=False)

    @classmethod
    def of(cls, library: UdfLibrary, source: Callable[..., Any]) -> PythonLibrary:
        """Return a library that also calls ``source``."""
        return cls(**{f.name: getattr(library, f.name) for f in fields(library)}, source=source)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the function returns, as Python computes it."""
        return self.source(*args, **kwargs)


def files_below(folder: Path, endings: tuple[str, ...]) -> Iterator[str]:
    """Yield the files of a folder that end so, as far as a compiler could include them.

    Left out are hidden files, such as the locks of editors, dangling links, pipes and devices.
    """
    for root, _, names in os.walk(folder):
        for name in names:
            path = f"{root}/{name}"
            if name.endswith(endings) and not name.startswith(".") and os.path.isfile(path):
                yield path


def is_operator(name: str) -> bool:
    """Tell whether a name is an operator's (``aten::log``) and not a function's."""
    return "::" in name


def described_operator(udf: UdfOperator) -> UdfOperator:
    """Check a UDF at operator level as far as possible without torch.

    Returns:
        The UDF, with the name that torch's dispatcher gives the operator.

    Raises:
        LibraryError: the operator's name is malformed, there is no such dtype, or the
            dispatch keys are not names or one of them occurs twice.
    """
    where = f'operators."{udf.name}"'
    if not _OPERATOR_NAME.fullmatch(udf.name):
        raise errors.LibraryError(
            f"[{where}] is not the name of an operator. Write namespace, name and overload in "
            'quotes, as torch does: [operators."aten::log.out"].'
        )
    keys = udf.dispatch_keys
    named = bool(keys) and all(isinstance(k, str) and k for k in keys)
    if not named or len(set(keys)) < len(keys):
        raise errors.LibraryError(
            f"dispatch_keys of [{where}] must be names, each once: {list(keys)!r}."
        )
    for dtype in udf.dtypes:
        if dtype not in OPERATOR_DTYPES:
            raise errors.LibraryError(
                f"dtypes of [{where}]: there is no dtype {dtype!r}. "
                f"{errors.nearest(str(dtype), OPERATOR_DTYPES)}"
            )
    # torch.ops calls the overload without a name "default".
    return replace(udf, name=udf.name.removesuffix(".default"))


@functools.cache
def shipped_folder() -> Path:
    """Return the folder with the libraries that come with this package."""
    homes = package.folders()
    # In a checkout people edit the sources beside the package. The copy that an editable install
    # made must not shadow them.
    checkouts = [h.parent for h in homes if (h.parent / "pyproject.toml").is_file()]
    for folder in (*checkouts, *homes):
        if (folder / "udfs").is_dir():
            return folder / "udfs"
    raise errors.UnknownLibraryError(
        "The folder 'udfs' of pytest_udftorch is missing from its installation. "
        "Reinstall the package."
    )


def available_libraries() -> dict[str, Path | None]:
    """Return name -> folder of the shipped and the installed libraries.

    This runs no code of the packages that offer libraries. The folder is None where only such code
    could tell it; ``find_library`` runs the code of the library that it is asked for.
    """
    root = shipped_folder()
    found: dict[str, Path | None] = {
        p.parent.name: p.parent for p in sorted(root.glob(f"*/{DESCRIPTION_FILE}"))
    }
    for entry in _entry_points():
        found.setdefault(entry.name, _package_folder(entry.value))
    return found


def _entry_points() -> Iterable[metadata.EntryPoint]:
    """Return what the installed packages offer.

    Raises:
        LibraryError: the entry points of a package cannot be read.
    """
    try:
        return metadata.entry_points(group=ENTRY_POINT_GROUP)
    except Exception as error:  # importlib checks nothing
        raise errors.LibraryError(
            f"The entry points of {_damaged_package()} cannot be read, so it is not known which "
            f"libraries are installed: {plain_data.shown(error)}. Reinstall or remove it."
        ) from error


def _damaged_package() -> str:
    for found in metadata.distributions():
        try:
            found.entry_points  # noqa: B018 - reads the file
        except Exception:
            return f"the installed package {plain_data.shown(found.metadata['Name'])}"
    return "an installed package"


def _package_folder(value: str) -> Path | None:
    """Return the folder that a package has, without importing it; None if that is unknown."""
    top, *below = value.strip().split(".")
    if not all(part.isidentifier() for part in (top, *below)):
        return None
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    for home in (spec.submodule_search_locations or ()) if spec is not None else ():
        folder = Path(home, *below)
        if (folder / DESCRIPTION_FILE).is_file():
            return folder
    return None


def _installed_folder(name: str) -> Path | None:
    """Return the folder of an installed library; None if no package offers the name."""
    for entry in _entry_points():
        if entry.name == name:
            return _package_folder(entry.value) or _entry_folder(entry)
    return None


def _entry_folder(entry: metadata.EntryPoint) -> Path:
    try:
        value = entry.load()
        if callable(value):
            value = value()
        elif hasattr(value, "__path__"):
            value = next(iter(value.__path__))
        return Path(value)
    except Exception as error:
        raise errors.LibraryError(
            f"Entry point {entry.name!r} = {entry.value!r} in group {ENTRY_POINT_GROUP!r} gives no "
            f"folder: {error!r}. It must name a package that holds {DESCRIPTION_FILE}, a path, or "
            "a function that returns one."
        ) from error


def find_library(which: str | Path | UdfLibrary) -> UdfLibrary:
    """Find a UDF library by name or by the path of its folder.

    A string that contains a slash or begins with a dot is a path; any other is a name.

    Raises:
        UnknownLibraryError: there is no such name or folder.
        LibraryError: the folder is not a valid library.
    """
    if isinstance(which, UdfLibrary):
        return which
    if not isinstance(which, (str, os.PathLike)):
        raise errors.UnknownLibraryError(
            f"{plain_data.shown(which)} is not a UDF library. Give a name, the path of a folder, "
            "or a UdfLibrary."
        )
    text = os.fsdecode(which)
    shown = plain_data.shown(text)
    if isinstance(which, os.PathLike) or "/" in text or text.startswith("."):
        folder = user_path(text)
        if not os.path.isdir(folder):
            beside = "" if os.path.isabs(text) else f" (relative to {os.path.abspath('.')})"
            raise errors.UnknownLibraryError(
                f"No folder {shown}{beside}. A UDF library given by path is a folder that holds "
                f"{DESCRIPTION_FILE}."
            )
        return load_library(folder)
    shipped = shipped_folder() / text
    if os.path.isfile(shipped / DESCRIPTION_FILE):
        return load_library(shipped)
    installed = _installed_folder(text)
    if installed is None:
        hint = f" To use the folder of that name, write './{text}'." if os.path.isdir(text) else ""
        raise errors.UnknownLibraryError(
            f"No UDF library is called {shown}. {errors.nearest(text, available_libraries())}{hint}"
        )
    return load_library(installed)


def user_path(text: str) -> Path:
    """Return a path as a user writes it, with ``~`` for a home.

    The path stays as it is if there is no such home. Then there is no such folder either, and the
    error about that names what the user wrote.
    """
    return Path(os.path.expanduser(text))


def load_library(folder: Path) -> UdfLibrary:
    """Read and check ``folder/udf.toml``, and those of the libraries that it inherits from.

    Raises:
        LibraryError: a file is missing, has a syntax error, an unknown or missing key, a
            value of the wrong type, or an unknown function or dtype, or names a missing file; or
            a library inherits from itself, or from one that swaps nothing.
    """
    return _joined(tuple(_line(folder)))


#: A ``udf.toml``, and the state in which it was found.
_Seen = tuple[Path, tuple[int, ...]]


def _line(folder: Path) -> Iterator[_Seen]:
    """Yield the ``udf.toml`` of a library, and of those that it inherits from in turn."""
    seen: list[Path] = []
    heir: Path | None = None
    following: Path | None = folder
    while following is not None:
        try:
            path, state = _found(following)
            described = _read(path, state)
        except errors.LibraryError as error:
            if heir is None:
                raise
            raise errors.LibraryError(
                f"{heir}: it inherits from {following}, which cannot be used. {error}"
            ) from error
        if heir is not None and described.library.stock:
            raise errors.LibraryError(
                f"{heir}: it inherits from {following}, which has stock = true and therefore no "
                "functions. Name another library, or remove inherit."
            )
        if path in seen:
            circle = " -> ".join(str(p.parent) for p in (*seen[seen.index(path) :], path))
            raise errors.LibraryError(
                f"{seen[0]}: inherit leads in a circle: {circle}. Remove the key from one of them."
            )
        seen.append(path)
        yield path, state
        heir, following = path, described.inherit


def _found(folder: Path) -> _Seen:
    """Return the ``udf.toml`` of a folder, and its state."""
    path = folder / DESCRIPTION_FILE
    try:
        path = Path(os.path.realpath(folder), DESCRIPTION_FILE)
        state = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise errors.LibraryError(
            f"The folder {path.parent} holds no {DESCRIPTION_FILE}, so it is not a UDF library. "
            "CONTRIBUTING, 'How to add a UDF', shows a minimal one."
        ) from None
    except (OSError, ValueError) as error:
        raise errors.LibraryError(
            f"{plain_data.shown(str(path))} cannot be read: {error}. Check the path and its "
            "permissions."
        ) from None
    return path, (state.st_mtime_ns, state.st_size, state.st_ino)


@dataclass(frozen=True)
class _Described:
    """What one ``udf.toml`` says, or several of which each inherits from the next.

    Attributes:
        library: what it gives; functions that claim nothing of their own have no ``max_ulp``.
        given: its keys of ``[library]``.
        inherit: the folder of the library that has the rest, or None.
        max_ulp: the claim of those functions, or None.
    """

    library: UdfLibrary
    given: Collection[str]
    inherit: Path | None
    max_ulp: float | None

    def over(self, base: _Described) -> _Described:
        """Return it with what it inherits.

        What is said of a library as a whole is not inherited: what it claims, what its bits were
        compared with, and which other libraries have the same bits.
        """
        own, other = self.library, base.library
        return replace(
            self,
            library=replace(
                own,
                include_dirs=own.include_dirs
                if "include_dirs" in self.given
                else (other.folder, *other.include_dirs),
                defines=own.defines if "defines" in self.given else other.defines,
                inherited=(other.folder, *other.inherited),
                functions={**other.functions, **own.functions},
                operators={**other.operators, **own.operators},
            ),
            max_ulp=base.max_ulp if self.max_ulp is None else self.max_ulp,
        )

    def whole(self) -> UdfLibrary:
        """Return the library, whose functions all claim something if any claim is for all."""
        functions = {
            key: replace(f, max_ulp=self.max_ulp) if f.max_ulp is None else f
            for key, f in self.library.functions.items()
        }
        return replace(self.library, functions=functions)


@functools.lru_cache(maxsize=64)
def _joined(line: tuple[_Seen, ...]) -> UdfLibrary:
    """Return the library of the first ``udf.toml``, which inherits from the others."""
    # From the far end, so that each has what it inherits before the next one inherits from it.
    files = [_read(*seen) for seen in reversed(line)]
    return functools.reduce(lambda base, heir: heir.over(base), files).whole()


@functools.lru_cache(maxsize=64)
def _read(path: Path, state: tuple[int, ...]) -> _Described:
    # Every test may enter a session. ``state`` is in the key because files are edited meanwhile.
    try:
        data = plain_data.parse_toml(plain_data.read_file(path))
    except OSError as error:
        refuse_too_few(error)
        raise errors.LibraryError(
            f"{path} cannot be read: {error}. Check the file and its permissions."
        ) from error
    except plain_data.Malformed as error:
        raise errors.LibraryError(f"{path} is not valid TOML: {error}") from error
    return _Reader(path).described(data)


class _Reader:
    """Checks the tables of one ``udf.toml``; every error names the file and the key."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = path.parent
        #: Paths that may be named, by name and whether a folder is wanted: many rows name one file.
        self._paths: dict[tuple[str, bool], Path] = {}

    def fail(self, what: str) -> errors.LibraryError:
        return errors.LibraryError(f"{self.path}: {what}")

    def table(self, data: Mapping[str, Any], key: str) -> dict[str, Any]:
        value = data.get(key)
        if not isinstance(value, dict):
            raise self.fail(f"the table [{key}] is missing.")
        return value

    def check(self, table: Mapping[str, Any], known: Mapping[str, Any], where: str) -> None:
        for key, value in table.items():
            if key not in known:
                raise self.fail(f"unknown key {key!r} in [{where}]. {errors.nearest(key, known)}")
            # TOML tells true and false from numbers; Python counts them among the whole numbers.
            if not isinstance(value, known[key]) or (
                isinstance(value, bool) and known[key] is not bool
            ):
                shown = plain_data.shown(value)
                raise self.fail(f"{key} in [{where}] has the wrong type: {shown}.")
            if isinstance(value, str):
                self.words(key, value, where)
            if key == "max_ulp" and not 0 < value <= sys.float_info.max:
                raise self.fail(
                    f"max_ulp in [{where}] is {value}. A claim is a positive number of ULPs; "
                    "leave the key out to claim nothing."
                )

    def words(self, key: str, value: str, where: str) -> None:
        try:
            plain_data.text()(value, f"{key} in [{where}]")
        except plain_data.Malformed as error:
            raise self.fail(f"{error}.") from None
        if key in _C_NAMES and not (value.isidentifier() and value.isascii()):
            raise self.fail(
                f"{key} in [{where}] is {plain_data.shown(value)}, not the name of a C function."
            )
        if len(value) > _SHORT.get(key, len(value)) or (key in _SHORT and "\n" in value):
            raise self.fail(f"{key} in [{where}] is longer than {_SHORT[key]} letters or a line.")

    def described(self, data: Mapping[str, Any]) -> _Described:
        for key in data:
            if key not in _TOP_KEYS:
                raise self.fail(f"unknown table [{key}]. {errors.nearest(key, _TOP_KEYS)}")
        head = self.table(data, "library")
        self.check(head, _LIBRARY_KEYS, "library")
        for key in ("name", "version"):
            if not head.get(key):
                raise self.fail(f"[library] needs a {key}.")
        stock = head.get("stock", False)
        for key in ("functions", "operators"):
            if stock and key in data:
                raise self.fail(f"a library with stock = true swaps nothing: remove [{key}].")
        functions, operators = {}, {}
        if "operators" in data:
            operators = dict(self.operators(self.table(data, "operators")))
        if "functions" in data or not (stock or operators or "inherit" in head):
            functions = dict(self.functions(self.table(data, "functions")))
            if not functions:
                raise self.fail("[functions] is empty.")
        paths = {
            "folder": self.folder,
            "include_dirs": tuple(
                self.path_of(d, "include_dirs") for d in head.get("include_dirs", ())
            ),
            "float_float": self.other_library(head, "float_float", stock),
            "composites": self.other_library(head, "composites", stock),
            **{
                key: self.path_of(head[key], key) if key in head else None
                for key in ("golden", "sixteen")
            },
        }
        inherit = self.other_library(head, "inherit", stock)
        max_ulp = head.get("max_ulp")
        own = {key: value for key, value in head.items() if key not in ("inherit", "max_ulp")}
        own |= {**paths, "defines": tuple(map(self.define, head.get("defines", ())))}
        library = UdfLibrary(**own, functions=functions, operators=operators)
        return _Described(library, tuple(head), inherit, max_ulp)

    def define(self, macro: object) -> str:
        """Return a macro for the compiler's ``-D``."""
        if not isinstance(macro, str) or not _DEFINE.fullmatch(macro):
            raise self.fail(
                f"defines: {plain_data.shown(macro)} is no macro such as BITS=12: a name, and "
                "after = a number or a word."
            )
        return macro

    def other_library(self, head: Mapping[str, Any], key: str, stock: bool) -> Path | None:
        if key not in head:
            return None
        if stock:
            raise self.fail(f"a library with stock = true has no functions: remove {key}.")
        folder = self.path_of(head[key], key)
        if folder == self.folder:
            raise self.fail(f"{key} names the library itself: name another, or remove it.")
        return folder

    def path_of(self, relative: object, where: str) -> Path:
        """Return the path of a file or folder that the description may name."""
        shown = plain_data.shown(relative)
        if not isinstance(relative, str):
            raise self.fail(f"{where}: {shown} is not a path.")
        known = self._paths.get((relative, where in _FOLDER_KEYS))
        if known is not None:
            return known
        try:
            path = Path(os.path.realpath(self.folder / relative))
            kind = path.stat().st_mode
        except (OSError, ValueError) as error:
            why = "does not exist" if isinstance(error, FileNotFoundError) else f"fails: {error}"
            raise self.fail(f"{where} names {shown}, which {why}.") from None
        wanted, is_wanted = "file", stat.S_ISREG(kind)
        if where in _FOLDER_KEYS:
            wanted, is_wanted = "folder", stat.S_ISDIR(kind)
        if not is_wanted:
            raise self.fail(f"{where} names {shown}, which is not a {wanted}.")
        homes = (path, *path.parents)
        if self.folder not in homes and not any((h / DESCRIPTION_FILE).is_file() for h in homes):
            raise self.fail(
                f"{where} names {shown}, which lies outside this library and every other. What a "
                f"library names lies in a folder that has a {DESCRIPTION_FILE}: copy it there."
            )
        self._paths[relative, where in _FOLDER_KEYS] = path
        return path

    def functions(self, table: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], UdfFunction]]:
        for name, dtypes in table.items():
            if name not in KNOWN:
                raise self.fail(
                    f"[functions.{name}]: PyTorch has no such function to swap. "
                    f"{errors.nearest(name, KNOWN)}"
                )
            if not isinstance(dtypes, dict) or not dtypes:
                raise self.fail(f"[functions.{name}] needs a table per dtype: {', '.join(DTYPES)}.")
            for dtype, keys in dtypes.items():
                if dtype not in DTYPES or not isinstance(keys, dict):
                    raise self.fail(
                        f"[functions.{name}.{dtype}]: the tables of a function are called "
                        f"{' and '.join(DTYPES)} (bfloat16 and half go through float32)."
                    )
                yield (name, dtype), self.function(name, dtype, keys)

    def function(self, name: str, dtype: str, keys: Mapping[str, Any]) -> UdfFunction:
        where = f"functions.{name}.{dtype}"
        self.check(keys, _FUNCTION_KEYS, where)
        if "source" not in keys:
            raise self.fail(f"[{where}] needs a source.")
        paths = {"fast", "accurate"} & set(keys)
        if len(paths) == 1 or ("scalar" in keys) == bool(paths):
            raise self.fail(
                f"[{where}] needs either scalar, or fast and accurate together; it has "
                f"{', '.join(sorted(paths | ({'scalar'} & set(keys)))) or 'none of them'}."
            )
        self._check_paths(where, keys)
        if "quick_levels" in keys:
            keys = {**keys, "quick_levels": tuple(keys["quick_levels"])}
        files = {
            key: self.path_of(keys[key], f"[{where}] {key}")
            for key in ("source", *_BESIDE, "gpu_source", "hard_cases")
            if key in keys
        }
        for key in _BESIDE:
            if key in files and files["source"].suffix == ".ll":
                raise self.fail(
                    f"[{where}] has {key}, which is compiled together with a source in C; the "
                    f"source is LLVM text: put the path into it, and leave out {key}."
                )
        return UdfFunction(name, dtype, **{**keys, **files})

    def _check_paths(self, where: str, keys: Mapping[str, Any]) -> None:
        """Refuse keys of paths that do not belong together."""
        for first in ("short", "quick", *_OWN_QUICK):
            if first in keys and "fast" not in keys:
                raise self.fail(
                    f"[{where}] has {first}, which goes before fast and accurate: add them."
                )
        if "short_source" in keys and "short" not in keys:
            raise self.fail(f"[{where}] has short_source, the file of short: add short.")
        for own in _OWN_QUICK:
            if (own in keys) != (f"{own}_source" in keys):
                raise self.fail(f"[{where}] needs {own} and {own}_source together; or neither.")
        if ("gpu" in keys) != ("gpu_source" in keys) or ("gpu" in keys and "fast" not in keys):
            raise self.fail(
                f"[{where}] needs gpu and gpu_source together, beside fast and accurate, before "
                "which GPUs try gpu; or neither."
            )
        levels = keys.get("quick_levels")
        if levels is None:
            return
        known = {level for p in PROCESSORS.values() for level in p.cpu_levels} - {"baseline"}
        unknown = [v for v in levels if not isinstance(v, str) or v not in known]
        if unknown or not levels or "quick" not in keys:
            raise self.fail(
                f"quick_levels in [{where}] lists the CPU levels at which the forms try quick, "
                f"some of {', '.join(sorted(known))}; it is {plain_data.shown(levels)}"
                f"{'' if 'quick' in keys else ', and there is no quick'}."
            )

    def operators(self, table: Mapping[str, Any]) -> Iterator[tuple[str, tuple[UdfOperator, ...]]]:
        if not table:
            raise self.fail("[operators] is empty.")
        seen: set[str] = set()
        for written, value in table.items():
            where = f'operators."{written}"'
            # Several for one operator, at different dispatch keys, are an array of tables.
            tables = value if isinstance(value, list) else [value]
            if not tables or not all(isinstance(keys, dict) for keys in tables):
                raise self.fail(f"[{where}] is not a table.")
            found = tuple(self.operator(written, where, keys) for keys in tables)
            every = [key for udf in found for key in udf.dispatch_keys]
            if len(set(every)) < len(every):
                raise self.fail(f"[{where}] has a dispatch key twice.")
            name = found[0].name
            if name in seen:
                raise self.fail(f"[{where}] is there twice: as {name} and as {name}.default.")
            seen.add(name)
            yield name, found

    def operator(self, name: str, where: str, keys: Mapping[str, Any]) -> UdfOperator:
        # An unquoted name makes a chain of tables. Then the error is about the name.
        if _OPERATOR_NAME.fullmatch(name):
            self.check(keys, _OPERATOR_KEYS, where)
        else:
            keys = {}
        try:
            udf = described_operator(
                UdfOperator(
                    name,
                    keys.get("function", ""),
                    dispatch_keys=tuple(keys.get("dispatch_keys", ("CPU",))),
                    dtypes=tuple(keys.get("dtypes", ())),
                )
            )
        except errors.LibraryError as error:
            raise self.fail(str(error)) from None
        if ("source" in keys) == ("python" in keys):
            raise self.fail(f"[{where}] needs either a source in C++ or a file python.")
        parts = udf.function.split("::") if "source" in keys else [udf.function]
        if not all(part.isidentifier() and part.isascii() for part in parts):
            raise self.fail(f"[{where}] needs a function, by its name in the source.")
        kind = "source" if "source" in keys else "python"
        path: dict[str, Any] = {kind: self.path_of(keys[kind], f"[{where}] {kind}")}
        return replace(udf, **path)
