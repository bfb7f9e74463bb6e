# SPDX-License-Identifier: Apache-2.0
"""UDFs at operator level: compiled or imported, and checked against torch's schema.

Each C++ source is compiled into a shared library with ``native/operator/udf_operator.h`` and the
headers of the installed torch, and cached by content. torch's dispatcher calls the functions in it
directly. It calls a function in Python through
:class:`pytest_udftorch.swap.overrides.python_override.PythonOverride`.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import inspect
import re
import sys
import tokenize
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pytest_udftorch import errors
from pytest_udftorch.swap.library.description import (
    PythonLibrary,
    UdfLibrary,
    UdfOperator,
    described_operator,
    files_below,
)
from pytest_udftorch.swap.library.symbols import CPU_LEVELS, OPERATOR_UDFS
from pytest_udftorch.swap.native.runtime import load_built, native_file
from pytest_udftorch.swap.overrides import schemas
from pytest_udftorch.swap.overrides.dispatcher import Override, Role, Spec
from pytest_udftorch.swap.overrides.python_override import PythonOverride
from pytest_udftorch.swap.overrides.switchboard import Target, switchboard
from pytest_udftorch.swap.toolchain.cache import cache_folder, turn
from pytest_udftorch.swap.toolchain.compiler import (
    VALUE_FLAGS,
    Compiler,
    find_compiler,
    resolve_cpu_level,
    torch_flags,
)
from pytest_udftorch.swap.toolchain.job import Job, Step, compile_job

_FLAGS: Final = (
    "--driver-mode=g++", "-std=c++20", *VALUE_FLAGS, "-Wall", "-shared", "-Wl,--no-undefined",
)  # fmt: skip
_HEADERS: Final = ("udf_operator.h", "kernel_of.h", "udfprof.h")
_SOURCES: Final = (".c", ".cc", ".cpp", ".cxx", ".h", ".hh", ".hpp", ".hxx", ".inc")
_SHIM: Final = "udf_shim.cpp"


def operator_udf(
    operator: str, *, dispatch_keys: Sequence[str] = ("CPU",), dtypes: Sequence[str] = ()
) -> Callable[[Callable[..., Any]], PythonLibrary]:
    """Make a UDF library of a Python function that stands in for a whole operator.

    >>> @operator_udf("aten::log", dtypes=("float32",))  # doctest: +SKIP
    ... def log_udf(self, *, out):
    ...     return torch.mul(torch.log2(self), math.log(2), out=out)
    >>> with patched(log_udf):  # doctest: +SKIP
    ...     torch.log(torch.ones(3))

    The function takes the arguments of the overload by the names of torch's schema, and works
    below autograd. With the parameters of an ``out=`` overload it can stand for the functional, the
    in-place and the ``out=`` overload. Then ``operator`` is the name without an overload.

    Args:
        operator: name and overload: ``aten::log.out``.
        dispatch_keys: keys of the backends to override it for: ``CPU``, ``CUDA``.
        dtypes: torch's names; a call with a tensor of another dtype goes to the stock kernel.

    Returns:
        A decorator that gives a ``UdfLibrary`` with the function's name. A call of the
        library calls the Python function.

    Raises:
        LibraryError: ``operator`` cannot be the name of an operator, there is no such
            dtype, or the keys or dtypes are not a sequence of names.
    """
    if not isinstance(operator, str):
        raise errors.LibraryError(
            f"operator_udf was given {type(operator).__name__}, but it takes torch's name of the "
            'operator that the UDF stands for: write @operator_udf("aten::log.out") above the UDF.'
        )
    for what, names in (("dispatch_keys", dispatch_keys), ("dtypes", dtypes)):
        if isinstance(names, str):
            raise errors.LibraryError(
                f"{what}={names!r} is a string. Give a sequence: {what}=({names!r},)."
            )

    def make(function: Callable[..., Any]) -> PythonLibrary:
        name = getattr(function, "__name__", "operator_udf")
        keys = tuple(dispatch_keys)
        udf = UdfOperator(operator, name, dispatch_keys=keys, dtypes=tuple(dtypes), call=function)
        udf = described_operator(udf)
        try:
            folder = Path(inspect.getfile(function)).parent
        except TypeError:
            folder = Path.cwd()
        library = UdfLibrary(
            name, "1", folder, description="written in Python", operators={udf.name: (udf,)}
        )
        return PythonLibrary.of(library, function)

    return make


# C++ ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Module:
    """A compiled source. It is never unloaded: a thread may be inside it."""

    build_id: str
    lib: ctypes.CDLL
    functions: tuple[str, ...]


_modules: dict[tuple[object, ...], _Module] = {}


def _module(library: UdfLibrary, source: Path, level: str) -> _Module:
    """Compile a source of a library, or take it from the cache, and load it.

    All functions of the source are compiled, whether a session selects them or not.
    """
    udfs = (udf for those in library.operators.values() for udf in those)
    functions = tuple(dict.fromkeys(udf.function for udf in udfs if udf.source == source))
    try:
        compiler = find_compiler()
    except errors.CompilerNotFoundError as error:
        raise type(error)(
            f"The operators of UDF library {library.name!r} in {source.name} are C++, which has to "
            f"be compiled. {error}"
        ) from error
    files = _sources([source.parent, library.folder, *library.include_dirs])
    state = (
        source, functions, level, cache_folder(), compiler,
        *((f, (s := f.stat()).st_mtime_ns, s.st_size, s.st_ino) for f in files),
    )  # fmt: skip
    with turn():
        if state not in _modules:
            made = compile_job(_job(library, source, functions, level, compiler, files))
            lib = load_built(made.path)
            lib.udfoperator_make.restype = lib.udfoperator_kernel.restype = ctypes.c_void_p
            lib.udfoperator_recursions.restype = ctypes.c_uint64
            _modules[state] = _Module(made.build_id, lib, functions)
        return _modules[state]


def _sources(folders: Sequence[Path]) -> list[Path]:
    """Return every file that a source may include from the library's folders."""
    found: set[Path] = set()
    for folder in folders:
        found.update(Path(name) for name in files_below(folder, _SOURCES))
    return sorted(found)


def _job(
    library: UdfLibrary,
    source: Path,
    functions: Sequence[str],
    level: str,
    compiler: Compiler,
    files: Sequence[Path],
) -> Job:
    import torch

    headers = [native_file(name) for name in _HEADERS]
    entries = ", ".join(f"udf::detail::entry<{f}>()" for f in functions)
    shim = f'#include "udf_operator.h"\n#include "{source.name}"\nUDF_OPERATORS({entries})\n'
    flags = (*_FLAGS, *CPU_LEVELS[level][0])
    torch_has, libraries = torch_flags()
    folders = (source.parent, library.folder, *library.include_dirs, headers[0].parent)
    arguments = (
        *flags, *(f"-I{d}" for d in folders), *torch_has, _SHIM, "-o", "operator.so", *libraries,
    )  # fmt: skip
    return Job(
        kind="operator-",
        compiler=compiler,
        stages=((Step(compiler.path, arguments, source),),),
        output="operator.so",
        failed=functools.partial(_failed, functions),
        texts={_SHIM: shim},
        root=library.folder,
        inputs=[*headers, *files],
        covers=[torch.__version__, torch.version.git_version],
        facts={"torch": torch.__version__, "compiler": compiler.version, "flags": flags},
    )


def _failed(functions: Sequence[str], step: Step, said: str) -> errors.UdfError:
    unknown = re.search(rf"{re.escape(_SHIM)}:3:.*(undeclared identifier|no member named)", said)
    missing = [f for f in functions if unknown and f"'{f.split('::')[-1]}'" in said]
    if missing:
        return errors.SourceError(
            f"{step.source} does not define {', '.join(missing)}, which udf.toml names. The "
            f"compiler says:\n{said[-4000:]}"
        )
    return errors.SourceError(f"{step.source} does not compile. The compiler says:\n{said[-8000:]}")


def _message(call: Callable[..., Any], *args: Any) -> tuple[Any, str]:
    """Call an entry point; return its result, and its message if it failed."""
    text = ctypes.create_string_buffer(4096)
    result = call(*args, text, ctypes.c_size_t(len(text)))
    return result, text.value.decode(errors="replace")


class CppOverride:
    """An override by a compiled function."""

    def __init__(self, spec: Spec, lib: ctypes.CDLL, index: int) -> None:
        self.spec = spec
        self.counter = -1
        self._lib = lib
        self._index = index

    def target(self) -> Target:
        """Make what the override's board calls."""
        made = _made(self._lib, self._index, self.spec, self.counter)
        kernel = self._lib.udfoperator_kernel(ctypes.c_void_p(made))
        return switchboard.foreign((self.spec.operator, self.spec.key), kernel)

    def recursions(self) -> int:
        """Return how many calls of this thread were refused."""
        return int(self._lib.udfoperator_recursions())


@dataclass(frozen=True)
class _Function:
    """The author's function of a :class:`UdfOperator`.

    Attributes:
        what: the function, for messages.
        build_id: names what was compiled or imported.
        misfit: returns why the function does not fit an overload in a role, or "".
        override: makes an override by the function.
    """

    what: str
    build_id: str
    misfit: Callable[[Role, str], str]
    override: Callable[[Spec], Override]


def _cpp(udf: UdfOperator, module: _Module) -> _Function:
    lib, index = module.lib, module.functions.index(udf.function)

    def misfit(role: Role, operator: str) -> str:
        return _message(lib.udfoperator_fits, index, int(role), operator.encode())[1]

    def override(spec: Spec) -> Override:
        return CppOverride(spec, lib, index)

    return _Function(f"{udf.function} of {udf.source}", module.build_id, misfit, override)


@functools.cache
def _made(lib: ctypes.CDLL, index: int, spec: Spec, counter: int) -> int:
    # It lives as long as the process, so it is made only once.
    texts = (spec.operator, spec.key, spec.author, spec.meta, " ".join(spec.dtypes))
    stocks = (ctypes.c_void_p(switchboard.kernel(n, spec.key)) for n in texts[:3:2])
    made, message = _message(
        lib.udfoperator_make, index, int(spec.role), *(t.encode() for t in texts), *stocks,
        ctypes.c_int32(counter),
    )  # fmt: skip
    if not made:
        raise errors.SourceError(f"torch rejects a kernel of {spec.operator}: {message}")
    return int(made)


# Python ------------------------------------------------------------------------------


def _misfit(function: Callable[..., Any], role: Role, operator: str) -> str:
    if role in (Role.FUNCTIONAL, Role.IN_PLACE):
        return ""  # these are made from the out= overload, which is checked too
    arguments = schemas.schema(operator).arguments
    try:
        inspect.signature(function).bind(
            *(a.name for a in arguments if not a.kwarg_only),
            **{a.name: a for a in arguments if a.kwarg_only},
        )
    except TypeError as error:
        return str(error)
    except ValueError:  # a builtin, whose parameters only a call tells
        pass
    return ""


@functools.lru_cache(maxsize=256)
def _imported(path: Path, state: tuple[int, ...]) -> Any:
    # ``state`` is part of the key: an edited file is another module.
    name = f"udf_operators_{hashlib.sha256(f'{path}{state}'.encode()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise errors.SourceError(f"{path} is not a Python file: its name must end in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses and Triton look for it
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, Exception):
            raise
        said = "".join(traceback.format_exception(error, limit=-1)).strip()
        raise errors.SourceError(f"{path} cannot be imported: {said}") from error
    return module


def _python(udf: UdfOperator) -> _Function:
    function, path = udf.call, udf.python
    if function is not None:
        what = f"the function {udf.function!r}"
        try:
            text = inspect.getsource(function)
        except (OSError, TypeError, SyntaxError, tokenize.TokenError):
            # There is no file, or it has changed since Python read it.
            text = repr(function)
    else:
        assert path is not None
        found = path.stat()
        module = _imported(path, (found.st_mtime_ns, found.st_size, found.st_ino))
        function = getattr(module, udf.function, None)
        what, text = f"{udf.function} of {path}", path.read_text(encoding="utf-8")
    if not callable(function):
        raise errors.SourceError(
            f"{path} does not define the function {udf.function!r}, which udf.toml names."
        )
    return _Function(
        what,
        hashlib.sha256(text.encode()).hexdigest()[:16],
        functools.partial(_misfit, function),
        functools.partial(PythonOverride, function=function),
    )


# From a library to overrides ---------------------------------------------------------


@dataclass(frozen=True)
class Prepared:
    """The overrides that a session registers in the dispatcher.

    Attributes:
        overrides: one for each overload and dispatch key.
        build_id: 16 hex digits that name what was compiled or imported, or "".
    """

    overrides: tuple[Override, ...] = ()
    build_id: str = ""

    @property
    def operators(self) -> tuple[str, ...]:
        """Names of the overloads, each once."""
        return tuple(dict.fromkeys(o.spec.operator for o in self.overrides))


def prepare(
    library: UdfLibrary, names: Sequence[str], cpu_level: str | None, *, profiled: bool = False
) -> Prepared:
    """Compile and check UDFs at operator level; nothing is registered yet.

    Args:
        library: the library.
        names: names of operators in it.
        cpu_level: the level to compile C++ for; by default the best one of this CPU.
        profiled: count the calls; an override's counter is the index of its overload in
            :attr:`Prepared.operators`.

    Raises:
        OperatorError: torch has no such operator or overload; there is no such dispatch key, or
            this machine has no device of any that is named; torch computes the operator by calling
            others.
        SourceError: a function is missing, or its type does not fit torch's schema; a Python file
            cannot be imported.
        SourceError, CompilerNotFoundError: a source cannot be compiled.
        CacheError: the cache folder cannot be written.
        ProfileError: a profile has no room for so many overloads.
    """
    if not names:
        return Prepared()
    udfs = [udf for name in names for udf in library.operators[name]]
    for udf in udfs:  # before compiling, which can take minutes
        _check_name(udf.name)
        for key in udf.dispatch_keys:
            schemas.check_key(udf.name, key, udf.dispatch_keys)
    level = resolve_cpu_level(cpu_level)
    found: list[Override] = []
    parts: list[str] = []
    missing: list[UdfOperator] = []
    for udf in udfs:
        function = _cpp(udf, _module(library, udf.source, level)) if udf.source else _python(udf)
        these = _overrides(udf, function)
        if not these:
            missing.append(udf)
        found += these
        parts.append(f"{udf} {function.build_id}")
    if missing and not found:
        udf = missing[0]
        raise errors.OperatorError(
            f"{udf.name}: this machine has no device of {', '.join(udf.dispatch_keys)}, so "
            "the UDF could not be reached. Leave it out with functions=(...) or "
            "--udf-functions, or give it a dispatch key of this machine."
        )
    taken: dict[tuple[str, str], str] = {}
    for override in found:
        spec = override.spec
        other = taken.setdefault((spec.operator, spec.key), spec.declared)
        if other != spec.declared:
            raise errors.SourceError(
                f"UDF library {library.name!r} overrides {spec.operator} at {spec.key} twice: by "
                f"{other} and by {spec.declared}. Keep one."
            )
    made = Prepared(tuple(found), hashlib.sha256("".join(parts).encode()).hexdigest()[:16])
    if profiled:
        if len(made.operators) > OPERATOR_UDFS:
            raise errors.ProfileError(
                f"A profile has room for {OPERATOR_UDFS} overloads of operators, and "
                f"{library.name!r} overrides {len(made.operators)}. Choose some with functions=."
            )
        for override in found:
            override.counter = made.operators.index(override.spec.operator)
    return made


def _check_name(name: str) -> None:
    known = schemas.overloads(name)
    if known and not schemas.has_overload(name):  # a name without an overload
        raise errors.OperatorError(
            f"The operator {name} has several overloads and none without a name. Name one: "
            f"{', '.join(known)}."
        )
    schemas.schema(name)


def _overrides(udf: UdfOperator, function: _Function) -> list[Override]:
    author, roles = _roles(udf.name, function)
    specs = [
        Spec(
            udf.name, operator, key, role, author,
            "" if role is Role.AS_IS else udf.name, udf.dtypes,
        )
        for key in udf.dispatch_keys
        for role, operator in roles
        if schemas.check_key(operator, key, udf.dispatch_keys)
    ]  # fmt: skip
    return [function.override(spec) for spec in specs]


def _roles(name: str, function: _Function) -> tuple[str, list[tuple[Role, str]]]:
    """Return the overload whose type the function has, and what it overrides."""
    why = function.misfit(Role.AS_IS, name)
    if not why:
        return name, [(Role.AS_IS, name)]
    written = schemas.schema(name)
    if "." not in name:
        for out in _out_overloads(name):
            also = function.misfit(Role.OUT, out)
            if also:
                why += f"\nNor does it fit {out}, by which it could stand for all: {also}"
                continue
            roles = [(Role.FUNCTIONAL, name)]
            in_place = f"{name}_"
            if schemas.has_overload(in_place) and _same(name, in_place):
                roles.append((Role.IN_PLACE, in_place))
            roles.append((Role.OUT, out))
            bad = [m for r, o in roles if (m := function.misfit(r, o))]
            if not bad:
                return out, roles
            why = "\n".join(bad)
    raise errors.SourceError(
        f"{function.what} does not fit the operator {name}. torch's schema is\n  {written}\n"
        f"{why}\nGive the function the schema's parameters, in C++ in torch's own types "
        "(const Tensor& for Tensor, Tensor& for Tensor(a!), double for float, int64_t for int)."
    )


def _out_overloads(name: str) -> list[str]:
    """Return the ``out=`` overload of a functional one, if there is exactly one."""
    first = [str(a.type) for a in schemas.schema(name).arguments][:1]
    if first != ["Tensor"]:  # then nothing tells the device
        return []
    found = [
        o
        for o in schemas.overloads(name)
        if schemas.written_keyword(o) and _same(name, o, schemas.written_keyword(o))
    ]
    return found if len(found) == 1 else []


def _same(one: str, other: str, without: str = "") -> bool:
    """Tell whether two overloads have the same arguments, except the one to write to."""

    def arguments(name: str, leave: str) -> list[tuple[str, str]]:
        return [(a.name, str(a.type)) for a in schemas.schema(name).arguments if a.name != leave]

    return arguments(one, "") == arguments(other, without)
