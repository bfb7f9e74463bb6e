# SPDX-License-Identifier: Apache-2.0
"""UDFs written in Python, which Numba compiles to LLVM's text, and which are built like others.

The modules that Numba makes are linked, everything but the function becomes internal, and LLVM
removes what nothing calls. What is left is one scalar function in LLVM's text form, the source of
a library in the build cache. LLVM's tools do so if clang is there, and otherwise llvmlite, which
also makes the library's forms then (``llvmlite_forms``).
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import math
import os
import re
import weakref
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.errors import CompilerNotFoundError, SourceError, UnknownFunctionError, nearest
from pytest_udftorch.swap.library.description import DESCRIPTION_FILE, PythonLibrary, load_library
from pytest_udftorch.swap.library.symbols import C_TYPES, DTYPES, FUNCTIONS
from pytest_udftorch.swap.toolchain import cache, llvmlite_forms
from pytest_udftorch.swap.toolchain.cache import cache_folder, fill, opened
from pytest_udftorch.swap.toolchain.compiler import Compiler, find_compiler, tool
from pytest_udftorch.swap.toolchain.job import Step, run_stages

# What LLVM before 21 cannot read, and its older spelling.
_NEWER: Final = ((" captures(none)", " nocapture"), ("icmp samesign ", "icmp "))

#: Numba's compiled function -> the text of its modules before LLVM changed them. Numba compiles a
#: function that others call only once in a process.
_recorded: Final[MutableMapping[Any, list[str]]] = weakref.WeakKeyDictionary()


def udf(
    function: str, *, dtype: str = "float32", max_ulp: float | None = None
) -> Callable[[Callable[..., Any]], PythonLibrary]:
    """Make a UDF library of a numeric Python function.

    >>> @udf("exp", max_ulp=1e5)  # doctest: +SKIP
    ... def rough_exp(x):
    ...     return (1 + x / 256) ** 256
    >>> with patched(rough_exp):  # doctest: +SKIP
    ...     torch.exp(torch.ones(3))

    Numba compiles the function for float32 or float64 arguments. Python's literals are float64,
    so a float32 UDF computes in double unless it says otherwise. It may use what Numba can compile
    without Python objects: arithmetic, branches, loops, ``math``. Division by zero gives an
    infinity or NaN; where the function raises, the result is NaN.

    Args:
        function: torch's name of the function that it stands for.
        dtype: ``float32`` or ``float64``.
        max_ulp: its claim, in ULP, for ``udftorch verify``.

    Returns:
        A decorator that gives a ``UdfLibrary`` with the function's name. A call of the
        library calls the Python function.

    Raises:
        UnknownFunctionError: libtorch has no such function to swap, or no such dtype.
        SourceError: Numba is missing or cannot compile the function, or the claim is not a
            number of ULP.
        CompilerNotFoundError: ``UDFTORCH_CLANG`` names no clang that can be used. Without the
            variable none is needed.
        CacheError: the cache folder cannot be written.
    """
    if not isinstance(function, str):
        raise UnknownFunctionError(
            f"udf was given {type(function).__name__}, but it takes torch's name of the function "
            'that the UDF stands for: write @udf("exp") above the UDF.'
        )
    if function not in FUNCTIONS:
        raise UnknownFunctionError(
            f"PyTorch has no function {function!r} to swap. {nearest(function, FUNCTIONS)}"
        )
    if dtype not in DTYPES:
        raise UnknownFunctionError(f"Unknown dtype {dtype!r}. {nearest(str(dtype), DTYPES)}")
    if max_ulp is not None and not _is_claim(max_ulp):
        raise SourceError(
            f"max_ulp={max_ulp!r} is not a claim. A claim is a positive number of ULP, 0.5 for "
            "correctly rounded. Leave max_ulp out to claim nothing."
        )

    def make(source: Callable[..., Any]) -> PythonLibrary:
        _check_plain(source, function)
        symbol = f"udf_{FUNCTIONS[function].c_name(dtype)}"
        text = _llvm(source, symbol, dtype, FUNCTIONS[function].arity)
        name = getattr(source, "__name__", "python_udf")
        lines = [
            "[library]", f"name = {json.dumps(name)}", 'version = "1"',
            'description = "written in Python"',
            f"[functions.{function}.{dtype}]", f'source = "{function}.ll"',
            f'scalar = "{symbol}"', *([] if max_ulp is None else [f"max_ulp = {float(max_ulp)}"]),
        ]  # fmt: skip
        files = {f"{function}.ll": text, DESCRIPTION_FILE: "\n".join(lines)}
        key = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()[:16]
        folder = cache_folder() / f"python-{key}"

        def write(scratch: Path) -> dict[str, str]:
            for file, content in files.items():
                (scratch / file).write_text(content, encoding="utf-8")
            return {}

        fill(folder, write)
        return PythonLibrary.of(load_library(folder), source)

    return make


def _is_claim(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return 0 < value < math.inf


def _check_plain(source: object, function: str) -> None:
    if not inspect.isfunction(source):
        raise SourceError(
            f"A UDF is a plain Python function, but {type(source).__name__} was given for "
            f"{function!r}. Write def or lambda. If Numba has compiled the function already, pass "
            "its py_func."
        )
    arity = FUNCTIONS[function].arity
    if source.__code__.co_argcount != arity:
        raise SourceError(
            f"{_name(source)} has {source.__code__.co_argcount} parameters, but {function!r} is a "
            f"function of {arity}. Write other numbers as constants in the function, or as "
            "variables around it."
        )


def _llvm(source: Callable[..., Any], symbol: str, dtype: str, arity: int) -> str:
    """Return LLVM text in which ``symbol`` is the only visible definition."""
    modules, inner = _numba_modules(source, dtype, arity)
    try:
        compiler = find_compiler()
        tools = [tool(compiler, name) for name in ("llvm-link", "opt")]
    except CompilerNotFoundError:
        if os.environ.get("UDFTORCH_CLANG"):  # it alone is wanted
            raise
        text = _linked_by_llvmlite(modules, inner, symbol, dtype, arity)
    else:
        text = _linked_by_tools(modules, inner, symbol, C_TYPES[dtype], arity, compiler, tools)
    return _checked(_plain(text), source)


def _linked_by_llvmlite(
    modules: Sequence[str], inner: str, symbol: str, dtype: str, arity: int
) -> str:
    """Return what :func:`_linked_by_tools` does, where there are no tools."""
    llvm = llvmlite_forms.binding()
    real = C_TYPES[dtype]
    given = ", ".join(f"{real} %x{i}" for i in range(arity))
    wrapper = (
        "declare double @ldexp(double, i32)\n"
        "define double @numba_ldexp(double %x, i32 %e) {\n"
        "  %y = call double @ldexp(double %x, i32 %e)\n"
        "  ret double %y\n"
        "}\n"
        f'declare i32 @"{inner}"(ptr, ptr, {", ".join([real] * arity)})\n'
        f"define {real} @{symbol}({given}) {{\n"
        f"  %y = alloca {real}\n"
        "  %error = alloca ptr\n"
        "  store ptr null, ptr %error\n"
        f'  %status = call i32 @"{inner}"(ptr %y, ptr %error, {given})\n'
        "  %well = icmp eq i32 %status, 0\n"
        f"  %value = load {real}, ptr %y\n"
        f"  %result = select i1 %well, {real} %value, {real} 0x7FF8000000000000\n"
        f"  ret {real} %result\n"
        "}\n"
    )
    machine = llvm.Target.from_default_triple().create_target_machine(reloc="pic")
    module = llvm.parse_assembly(wrapper)
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    for text in modules:
        module.link_in(llvm.parse_assembly(text))
    for value in (*module.functions, *module.global_variables):
        if not value.is_declaration and value.name != symbol:
            value.linkage = "internal"
    llvmlite_forms.optimize(module, machine, 2)
    return str(module)


def _linked_by_tools(
    modules: Sequence[str],
    inner: str,
    symbol: str,
    real: str,
    arity: int,
    compiler: Compiler,
    tools: Sequence[Path],
) -> str:
    """Return LLVM text of the modules in which ``symbol`` is the only visible definition."""
    parameters = ", ".join(f"{real} x{i}" for i in range(arity))
    passed = ", ".join(f"x{i}" for i in range(arity))
    # Numba's functions return the result by pointer, and a status that is 0 unless they raised.
    # math.ldexp calls a function of Numba's runtime.
    wrapper = (
        "double numba_ldexp(double x, int e) { return __builtin_ldexp(x, e); }\n"
        f"int inner({real} *, void **, {', '.join([real] * arity)}) __asm__({json.dumps(inner)});\n"
        f"{real} {symbol}({parameters}) {{\n"
        f"  {real} y; void *error = 0;\n"
        f'  return inner(&y, &error, {passed}) == 0 ? y : ({real})__builtin_nan("");\n'
        "}\n"
    )
    place = cache_folder() / f"python-{os.getpid()}"
    with opened(place), cache.scratch(place) as scratch:
        pieces = {f"{i}.ll": _older(text, compiler) for i, text in enumerate(modules)}
        bare = Step(
            compiler.path,
            ("-O1", "-Xclang", "-disable-llvm-passes", "-ffp-contract=off", "-fPIC", "-emit-llvm",
             "-S", "wrapper.c", "-o", "wrapper.ll"),
        )  # fmt: skip
        link = Step(tools[0], ("-S", "wrapper.ll", *pieces, "-o", "linked.ll"))
        shrink = Step(
            tools[1],
            ("-S", f"--internalize-public-api-list={symbol}",
             "-passes=internalize,default<O2>,globaldce", "linked.ll", "-o", "out.ll"),
        )  # fmt: skip
        run_stages([[bare], [link], [shrink]], {"wrapper.c": wrapper, **pieces}, scratch, _failed)
        return (scratch / "out.ll").read_text(encoding="utf-8")


def _plain(text: str) -> str:
    """Return a module's text without what differs between processes; the build chooses the CPU."""
    text = re.sub(r' "(target-cpu|target-features|tune-cpu)"="[^"]*"', "", text)
    text = re.sub(r"^(; ModuleID|source_filename).*\n", "", text, flags=re.MULTILINE)
    return _renamed(text)


def _checked(text: str, source: Callable[..., Any]) -> str:
    """Return the text, or raise an error if it needs more than a build can have."""
    declared = re.findall(r"^declare .*@\"?([\w.]+)", text, re.MULTILINE)
    if ".numba.unresolved$" in text:
        raise SourceError(
            f"{_name(source)} calls itself, or functions in it call each other in a circle. Write "
            "it as a loop."
        )
    if re.search(r"inttoptr \(i64 \d+ to ptr\)", text):
        raise SourceError(
            f"{_name(source)} uses an address of this process (a function of ctypes, a large "
            "array), which the build in the cache outlives. Call Python functions instead, and "
            "write small tables as tuples."
        )
    runtime = sorted(n for n in declared if n.startswith(("Py", "numba_", "NRT_")))
    if runtime:
        raise SourceError(
            f"{_name(source)} needs Python's or Numba's runtime ({', '.join(runtime)}). A UDF "
            "computes only with numbers: leave out arrays, strings, lists and prints."
        )
    return text


def _renamed(text: str) -> str:
    """Number the names that Numba mangles, which count the functions of the process."""
    mangled = r"_ZN[\w$]+"
    numbers = {name: f"inner{i}" for i, name in enumerate(dict.fromkeys(re.findall(mangled, text)))}
    return re.sub(mangled, lambda match: numbers[match.group()], text)


def _numba_modules(source: Callable[..., Any], dtype: str, arity: int) -> tuple[list[str], str]:
    """Return the LLVM text of the modules that are needed, and the function's name in them."""
    try:
        import numba
        from numba.core import codegen
    except ImportError as error:
        raise SourceError(
            f"UDFs written in Python are compiled by Numba, which cannot be imported: {error}. "
            "Install it: pip install numba"
        ) from error
    real = getattr(numba, dtype)
    with _recording(codegen.CPUCodeLibrary):
        try:
            compiled = numba.njit(
                real(*(real,) * arity), error_model="numpy", fastmath=False, cache=False
            )(source)
        except Exception as error:  # not NumbaError alone
            raise SourceError(
                f"Numba cannot compile {_name(source)} for {dtype}:\n{error}"
            ) from error
    # Numba compiles a function that calls itself for other arguments too.
    result = compiled.overloads[(real,) * arity]
    modules: list[str] = []
    _collect(result.library, modules, set())
    return modules, result.fndesc.llvm_func_name


@contextlib.contextmanager
def _recording(kind: Any) -> Iterator[None]:
    """Record the modules that Numba makes before its own, newer LLVM rewrites their syntax."""
    own = kind.add_ir_module

    def add_ir_module(self: Any, module: Any) -> Any:
        _recorded.setdefault(self, []).append(str(module))
        return own(self, module)

    kind.add_ir_module = add_ir_module
    try:
        yield
    finally:
        kind.add_ir_module = own


def _collect(library: Any, modules: list[str], seen: set[int]) -> None:
    """Append the modules of a compiled function, and of those that it calls."""
    if id(library) in seen:
        return
    seen.add(id(library))
    if library not in _recorded:
        # The user had Numba compile it before. Its module also holds what it calls; these
        # definitions yield to others of the same name.
        modules.append(str(library._get_module_for_linking()))
        return
    modules += _recorded[library]
    for other in library._linking_libraries:
        _collect(other, modules, seen)


def _older(text: str, compiler: Compiler) -> str:
    if compiler.major < 21:
        for new, old in _NEWER:
            text = text.replace(new, old)
    return text


def _name(source: Callable[..., Any]) -> str:
    return f"the function {getattr(source, '__name__', source)!r}"


def _failed(step: Step, message: str) -> SourceError:
    return SourceError(
        f"{step.tool.name} cannot read what Numba made:\n{message}\n"
        "Use a Numba whose LLVM is nearer to the installed one, or write the UDF in C."
    )
