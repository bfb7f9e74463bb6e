"""Triton under a session: libdevice with the UDFs inside, kernels cached apart.

``libdevice.exp`` and its kin reach the functions through the library that Triton links
(``bitcode.libdevice_for``). Triton's own ``tl.exp`` and ``tl.exp2`` are approximations in PTX
that no library reaches, so for float32 the builtins are made to call libdevice. A kernel
compiled with one set of functions is kept apart from the others by Triton's own hook for
changed pipelines, both in memory and on disk.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.bitcode import libdevice_for
from pytest_udftorch.build import cache_folder
from pytest_udftorch.compilers import Active, Change
from pytest_udftorch.errors import LibdeviceError, SourceCompileError, UdfError

_VARIABLE: Final = "TRITON_LIBDEVICE_PATH"

#: Builtins of triton.language that have a function of the same name in libdevice.
_BUILTINS: Final = ("exp", "exp2", "log", "log2", "sin", "cos", "erf")


def stock_libdevice(triton_file: str) -> Path:
    """Return the libdevice that the installed triton ships.

    Raises:
        LibdeviceError: it is not where triton 3.6 to 3.9 have it.
    """
    path = Path(triton_file).parent / "backends" / "nvidia" / "lib" / "libdevice.10.bc"
    if not path.is_file():
        raise LibdeviceError(
            f"triton has no {path}. Its wheels from 3.6 on ship it there; reinstall triton, or "
            "open the session before triton is imported and use no Triton kernel in it."
        )
    return path


def _set_knobs(knobs: Any, active: Active) -> Callable[[], None]:
    if not active.functions:
        return lambda: None
    if not hasattr(knobs.runtime, "add_stages_inspection_hook"):
        raise LibdeviceError(
            "This triton has no knobs.runtime.add_stages_inspection_hook, without which its "
            "caches would mix kernels of different libraries. Use triton 3.6 or newer."
        )
    nvidia, runtime = knobs.nvidia, knobs.runtime
    try:
        path = str(libdevice_for(active.parts, stock_libdevice(knobs.__file__)))
    except (LibdeviceError, SourceCompileError) as error:
        return _refuse_kernels(knobs, active, error)
    restore_path = _remember_path(nvidia)
    earlier = runtime.add_stages_inspection_hook
    nvidia.libdevice_path = path
    # Inductor hands the variable on, and sets the knob from it.
    os.environ[_VARIABLE] = path

    def inspect(*args: Any, **kwargs: Any) -> Any:
        if args or kwargs:
            return earlier(*args, **kwargs) if earlier is not None else None
        key, digest = earlier() if earlier is not None else ("", "")
        return f"{key}-{active.id}", f"{digest}-{active.id}"

    runtime.add_stages_inspection_hook = inspect

    def restore() -> None:
        runtime.add_stages_inspection_hook = earlier
        restore_path()

    return restore


def _remember_path(nvidia: Any) -> Callable[[], None]:
    """Return what puts back the path of libdevice; setting the knob sets the variable too."""
    own_path = nvidia.__dict__.get("libdevice_path")
    own_variable = os.environ.get(_VARIABLE)

    def restore() -> None:
        if own_path is None:
            nvidia.__dict__.pop("libdevice_path", None)
        else:
            nvidia.__dict__["libdevice_path"] = own_path
        if own_variable is None:
            os.environ.pop(_VARIABLE, None)
        else:
            os.environ[_VARIABLE] = own_variable

    return restore


def _refuse_kernels(knobs: Any, active: Active, error: UdfError) -> Callable[[], None]:
    """Let whoever uses no Triton go on; a kernel inside the session is the error."""
    nvidia, runtime = knobs.nvidia, knobs.runtime
    earlier = runtime.add_stages_inspection_hook
    restore_path = _remember_path(nvidia)
    # Triton 3.6 asks the hook after it has looked for the kernel on disk, under the hash of
    # this file: no kernel of another library may be found.
    refused = cache_folder() / f"refused-{active.id}"
    refused.parent.mkdir(parents=True, exist_ok=True)
    refused.write_text(f"{active.id} has no libdevice\n", encoding="utf-8")
    nvidia.libdevice_path = str(refused)

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise error

    runtime.add_stages_inspection_hook = refuse

    def restore() -> None:
        runtime.add_stages_inspection_hook = earlier
        restore_path()

    return restore


def _set_keys(jit: Any, active: Active) -> Callable[[], None]:
    """Keep kernels of different functions apart in memory.

    Triton 3.6 does not ask the hook for a key; later ones do, and two keys do no harm.
    """
    if not active.functions:
        return lambda: None
    stock = getattr(jit, "compute_cache_key", None)
    if stock is None:
        raise LibdeviceError(
            "triton.runtime.jit has no compute_cache_key as in triton 3.6 to 3.9, so kernels of "
            "different libraries would be mixed in memory. Report triton's version, and import "
            "no triton in sessions."
        )

    def key(*args: Any, **kwargs: Any) -> str:
        return f"{stock(*args, **kwargs)}-{active.id}"

    jit.compute_cache_key = key

    def restore() -> None:
        jit.compute_cache_key = stock

    return restore


def _set_builtins(math: Any, active: Active) -> Callable[[], None]:
    changed: list[tuple[Any, Any]] = []

    def restore() -> None:
        for function, code in changed:
            function.__code__ = code
            del function.__globals__[_global_name(function)]

    for name in active.functions.intersection(_BUILTINS):
        function = inspect.unwrap(getattr(math, name))
        own = function.__code__
        if own.co_freevars or own.co_varnames[: own.co_argcount] != ("x", "_semantic"):
            restore()
            raise LibdeviceError(
                f"triton.language.math.{name} is not built as in triton 3.6 to 3.9, so it "
                "cannot be sent through libdevice. Leave the function out of the session, or "
                "report triton's version."
            )
        stock = types.FunctionType(own, function.__globals__, name, function.__defaults__)
        function.__globals__[_global_name(function)] = functools.partial(
            _through_libdevice, name, stock
        )
        scope: dict[str, Any] = {}
        exec(
            f"def {name}(x, _semantic=None):\n    return {_global_name(function)}(x, _semantic)\n",
            scope,
        )
        # The code inside the function and not the name in the module: users' kernels and
        # triton's tensor class hold the function itself.
        function.__code__ = scope[name].__code__
        changed.append((function, own))
    return restore


def _global_name(function: Any) -> str:
    return f"_udftorch_{function.__name__}"


def _through_libdevice(name: str, stock: Any, x: Any, semantic: Any) -> Any:
    libdevice = importlib.import_module("triton.language.extra.cuda.libdevice")
    x = semantic.to_tensor(x)
    if not x.dtype.scalar.is_fp32():
        return stock(x, _semantic=semantic)
    return getattr(libdevice, name)(x, _semantic=semantic)


CHANGES: Final[dict[str, Change]] = {
    "triton.knobs": _set_knobs,
    "triton.runtime.jit": _set_keys,
    "triton.language.math": _set_builtins,
}
