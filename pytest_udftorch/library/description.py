# SPDX-License-Identifier: Apache-2.0
"""UDF libraries: a folder with a ``udf.toml`` and C sources.

A library has the path of its folder. It has a name too if this package ships it, or if another
installed package offers it through the entry point group ``pytest_udftorch.libraries``.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from pytest_udftorch import errors
from pytest_udftorch.compat import require_host
from pytest_udftorch.library.symbols import DTYPES, FUNCTIONS

try:
    import tomllib
except ImportError:  # Python 3.10
    require_host()
    raise

ENTRY_POINT_GROUP: Final = "pytest_udftorch.libraries"
DESCRIPTION_FILE: Final = "udf.toml"

#: Dtypes that a UDF at operator level can be limited to.
OPERATOR_DTYPES: Final = (
    "float32", "float64", "bfloat16", "float16", "complex64", "complex128",
    "uint8", "int8", "int16", "int32", "int64", "bool",
)  # fmt: skip

_TOP_KEYS: Final = {"library", "functions", "operators"}
_LIBRARY_KEYS: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("name", "version", "description", "claim", "float_float"), str),
    "stock": bool,
    "include_dirs": list,
}
_FUNCTION_KEYS: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("source", "scalar", "quick", "fast", "accurate", "claim", "hard_cases"), str),
    "max_ulp": (int, float),
}
_OPERATOR_KEYS: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("source", "python", "function"), str),
    **dict.fromkeys(("dispatch_keys", "dtypes"), list),
}
_OPERATOR_NAME = re.compile(r"[A-Za-z_]\w*::\w+(\.\w+)?", re.ASCII)


@dataclass(frozen=True)
class UdfFunction:
    """One function of a library.

    Attributes:
        name: torch's name (``exp``).
        dtype: ``float32`` or ``float64``.
        source: absolute path of the C source.
        scalar: C name of the scalar UDF, or None if ``fast`` and ``accurate`` are given.
        quick: C name of a cheaper path that the vector and array forms try before ``fast``
            where the CPU has fused multiply-add, or None.
        fast: C name of the branch-free fast path, or None.
        accurate: C name of the accurate path for hard-to-round inputs, or None.
        max_ulp: the author's claim in ULP (0.5: correctly rounded), or None.
        claim: the author's words, where they differ from the library's; else "".
        hard_cases: file of hard-to-round encodings, or None.
    """

    name: str
    dtype: str
    source: Path
    scalar: str | None = None
    quick: str | None = None
    fast: str | None = None
    accurate: str | None = None
    max_ulp: float | None = None
    claim: str = ""
    hard_cases: Path | None = None


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
        float_float: folder of a library that computes the same bits in float-float, for GPUs
            with weak double precision; or None.
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
    float_float: Path | None = None
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

    def source_files(self) -> list[str]:
        """Return the paths of every C source and header that a build may read, sorted."""
        found = {str(f.source) for f in self.functions.values()}
        for folder in (self.folder, *self.include_dirs):
            for root, _, names in os.walk(folder):
                paths = (f"{root}/{n}" for n in names if n.endswith((".c", ".h")))
                found.update(filter(os.path.isfile, paths))  # an editor's lock is a dangling link
        return sorted(found)


def is_operator(name: str) -> bool:
    """Tell whether a name is an operator's (``aten::log``) and not a function's."""
    return "::" in name


def described_operator(udf: UdfOperator) -> UdfOperator:
    """Check a UDF at operator level as far as possible without torch.

    Returns:
        The UDF, with the name that torch's dispatcher gives the operator.

    Raises:
        LibraryFormatError: the operator's name is malformed, there is no such dtype, or the
            dispatch keys are not names or one of them occurs twice.
    """
    where = f'operators."{udf.name}"'
    if not _OPERATOR_NAME.fullmatch(udf.name):
        raise errors.LibraryFormatError(
            f"[{where}] is not the name of an operator. Write namespace, name and overload in "
            'quotes, as torch does: [operators."aten::log.out"].'
        )
    keys = udf.dispatch_keys
    if not keys or len(set(keys)) < len(keys) or not all(isinstance(k, str) and k for k in keys):
        raise errors.LibraryFormatError(
            f"dispatch_keys of [{where}] must be names, each once: {list(keys)!r}."
        )
    for dtype in udf.dtypes:
        if dtype not in OPERATOR_DTYPES:
            raise errors.LibraryFormatError(
                f"dtypes of [{where}]: there is no dtype {dtype!r}. "
                f"{errors.nearest(str(dtype), OPERATOR_DTYPES)}"
            )
    # torch.ops calls the overload without a name "default".
    return replace(udf, name=udf.name.removesuffix(".default"))


@functools.cache
def shipped_folder() -> Path:
    """Return the folder with the libraries that come with this package."""
    import pytest_udftorch

    homes = [Path(entry) for entry in pytest_udftorch.__path__]
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


def available_libraries() -> dict[str, Path]:
    """Return name -> folder of the shipped and the installed libraries.

    Raises:
        LibraryFormatError: an entry point cannot be loaded or names no folder.
    """
    root = shipped_folder()
    found = {p.parent.name: p.parent for p in sorted(root.glob(f"*/{DESCRIPTION_FILE}"))}
    for entry in metadata.entry_points(group=ENTRY_POINT_GROUP):
        if entry.name not in found:
            found[entry.name] = _entry_folder(entry)
    return found


def _entry_folder(entry: metadata.EntryPoint) -> Path:
    try:
        value = entry.load()
        if callable(value):
            value = value()
        elif hasattr(value, "__path__"):
            value = next(iter(value.__path__))
        return Path(value)
    except Exception as error:
        raise errors.LibraryFormatError(
            f"Entry point {entry.name!r} = {entry.value!r} in group {ENTRY_POINT_GROUP!r} gives no "
            f"folder: {error!r}. It must name a package that holds {DESCRIPTION_FILE}, a path, or "
            "a function that returns one."
        ) from error


def find_library(which: str | Path | UdfLibrary) -> UdfLibrary:
    """Find a UDF library by name or by the path of its folder.

    A string that contains a slash or begins with a dot is a path; any other is a name.

    Raises:
        UnknownLibraryError: there is no such name or folder.
        LibraryFormatError: the folder is not a valid library.
    """
    if isinstance(which, UdfLibrary):
        return which
    text = str(which)
    if isinstance(which, Path) or "/" in text or text.startswith("."):
        folder = Path(which).expanduser()
        if not folder.is_dir():
            raise errors.UnknownLibraryError(
                f"No folder {text!r} (relative to {Path.cwd()}). A UDF library given by "
                f"path is a folder that holds {DESCRIPTION_FILE}."
            )
        return load_library(folder)
    shipped = shipped_folder() / text
    if (shipped / DESCRIPTION_FILE).is_file():
        return load_library(shipped)
    known = available_libraries()
    if text not in known:
        hint = f" To use the folder of that name, write './{text}'." if Path(text).is_dir() else ""
        raise errors.UnknownLibraryError(
            f"No UDF library is called {text!r}. {errors.nearest(text, known)}{hint}"
        )
    return load_library(known[text])


def load_library(folder: Path) -> UdfLibrary:
    """Read and check ``folder/udf.toml``.

    Raises:
        LibraryFormatError: the file is missing, has a syntax error, an unknown or missing key, a
            value of the wrong type, or an unknown function or dtype, or names a missing file.
    """
    path = folder.resolve() / DESCRIPTION_FILE
    try:
        state = path.stat()
    except FileNotFoundError:
        raise errors.LibraryFormatError(
            f"The folder {path.parent} holds no {DESCRIPTION_FILE}, so it is not a UDF library. "
            "CONTRIBUTING, 'How to add a UDF', shows a minimal one."
        ) from None
    return _read(path, (state.st_mtime_ns, state.st_size, state.st_ino))


@functools.lru_cache(maxsize=64)
def _read(path: Path, state: tuple[int, ...]) -> UdfLibrary:
    # Every test may enter a session. ``state`` is in the key because files are edited meanwhile.
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise errors.LibraryFormatError(f"{path} is not valid TOML: {error}") from error
    return _Reader(path).library(data)


class _Reader:
    """Checks the tables of one ``udf.toml``; every error names the file and the key."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = path.parent

    def fail(self, what: str) -> errors.LibraryFormatError:
        return errors.LibraryFormatError(f"{self.path}: {what}")

    def table(self, data: Mapping[str, Any], key: str) -> dict[str, Any]:
        value = data.get(key)
        if not isinstance(value, dict):
            raise self.fail(f"the table [{key}] is missing.")
        return value

    def check(self, table: Mapping[str, Any], known: Mapping[str, Any], where: str) -> None:
        for key, value in table.items():
            if key not in known:
                raise self.fail(f"unknown key {key!r} in [{where}]. {errors.nearest(key, known)}")
            if not isinstance(value, known[key]):
                raise self.fail(f"{key} in [{where}] has the wrong type: {value!r}.")

    def library(self, data: Mapping[str, Any]) -> UdfLibrary:
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
        if "functions" in data or not (stock or operators):
            functions = dict(self.functions(self.table(data, "functions")))
            if not functions:
                raise self.fail("[functions] is empty.")
        paths = {
            "folder": self.folder,
            "include_dirs": tuple(
                self.file(d, "include_dirs") for d in head.get("include_dirs", ())
            ),
            "float_float": self.float_float(head, stock),
        }
        return UdfLibrary(**{**head, **paths}, functions=functions, operators=operators)

    def float_float(self, head: Mapping[str, Any], stock: bool) -> Path | None:
        if "float_float" not in head:
            return None
        if stock:
            raise self.fail("a library with stock = true has no functions: remove float_float.")
        folder = self.file(head["float_float"], "float_float")
        if folder == self.folder:
            raise self.fail("float_float names the library itself: name another, or remove it.")
        return folder

    def file(self, relative: object, where: str) -> Path:
        if not isinstance(relative, str):
            raise self.fail(f"{where}: {relative!r} is not a path.")
        path = (self.folder / relative).resolve()
        if not path.exists():
            raise self.fail(f"{where} names {relative!r}, which does not exist.")
        return path

    def functions(self, table: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], UdfFunction]]:
        for name, dtypes in table.items():
            if name not in FUNCTIONS:
                raise self.fail(
                    f"[functions.{name}]: PyTorch has no such function to swap. "
                    f"{errors.nearest(name, FUNCTIONS)}"
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
        if "quick" in keys and "fast" not in keys:
            raise self.fail(f"[{where}] has quick, which goes before fast and accurate: add them.")
        files = {
            key: self.file(keys[key], f"[{where}] {key}")
            for key in ("source", "hard_cases")
            if key in keys
        }
        return UdfFunction(name, dtype, **{**keys, **files})

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
        if is_operator(name):
            self.check(keys, _OPERATOR_KEYS, where)
        try:
            udf = described_operator(
                UdfOperator(
                    name,
                    keys.get("function", ""),
                    dispatch_keys=tuple(keys.get("dispatch_keys", ("CPU",))),
                    dtypes=tuple(keys.get("dtypes", ())),
                )
            )
        except errors.LibraryFormatError as error:
            raise self.fail(str(error)) from None
        if ("source" in keys) == ("python" in keys):
            raise self.fail(f"[{where}] needs either a source in C++ or a file python.")
        parts = udf.function.split("::") if "source" in keys else [udf.function]
        if not all(part.isidentifier() and part.isascii() for part in parts):
            raise self.fail(f"[{where}] needs a function, by its name in the source.")
        kind = "source" if "source" in keys else "python"
        path: dict[str, Any] = {kind: self.file(keys[kind], f"[{where}] {kind}")}
        return replace(udf, **path)
