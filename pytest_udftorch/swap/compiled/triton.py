# SPDX-License-Identifier: Apache-2.0
"""Triton under a session: libdevice with the UDFs inside, and kernels cached separately.

``libdevice.exp`` and the like reach the functions through the library that Triton links
(``libdevice.libdevice_for``). Triton's own ``tl.exp`` and ``tl.exp2`` are approximations in PTX
that no library replaces, so the session makes the builtins call libdevice for float32, as they do
for float64. The keys
of Triton's caches, in memory and on disk, keep the kernels of different sets of functions apart.

Where there is no GPU, libdevice is made when the first kernel is compiled: most sessions of such a
process compile none.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.base import compat
from pytest_udftorch.errors import (
    CompilerNotFoundError,
    CudaFormError,
    SourceError,
    UdfError,
)
from pytest_udftorch.swap.compiled.follower import follower
from pytest_udftorch.swap.overrides.active import Active, Change
from pytest_udftorch.swap.overrides.undo import Undo
from pytest_udftorch.swap.toolchain.cuda_form import gpus
from pytest_udftorch.swap.toolchain.libdevice import libdevice_for
from pytest_udftorch.swap.toolchain.selection import cuda_id

_VARIABLE: Final = "TRITON_LIBDEVICE_PATH"

#: Module -> the functions with which triton 3.6 to 3.9 make the keys of their caches.
_KEYS_OF: Final = {
    compat.TRITON_JIT: ("compute_cache_key", "get_cache_key"),
    compat.TRITON_COMPILER: ("get_cache_key",),
}

#: What Triton's ``compile`` calls before it reads the options, among them the path of libdevice.
_BACKEND: Final = "make_backend"

#: Builtins of triton.language that have a function of the same name in libdevice.
_BUILTINS: Final = ("exp", "exp2", "log", "log2", "sin", "cos", "erf")


def stock_libdevice(triton_file: str) -> Path:
    """Return the libdevice that the installed triton ships.

    Raises:
        CudaFormError: it is not in the place where triton 3.6 to 3.9 have it.
    """
    path = Path(triton_file).parent / "backends" / "nvidia" / "lib" / "libdevice.10.bc"
    if not path.is_file():
        raise CudaFormError(
            f"triton has no {path}. Its wheels from 3.6 on ship it there; reinstall triton, or "
            "open the session before triton is imported and use no Triton kernel in it."
        )
    return path


#: What ``_libdevice`` returned, by ``cuda_id`` and triton's own libdevice.
_made: dict[tuple[str, Path], Path | UdfError] = {}


def _libdevice(active: Active) -> Path | UdfError:
    """Return the libdevice of the active functions, or why they cannot be in one."""
    stock = stock_libdevice(sys.modules[compat.TRITON_KNOBS].__file__ or "")
    key = (cuda_id(active.parts), stock)
    if key not in _made:
        try:
            _made[key] = libdevice_for(active.parts, stock)
        except (CudaFormError, SourceError, CompilerNotFoundError) as error:
            _made[key] = error
    path = _made[key]
    if isinstance(path, Path) and not path.is_file():  # the cache has been emptied since
        del _made[key]
        return _libdevice(active)
    return path


def _set_knobs(knobs: Any, active: Active, undo: Undo) -> None:
    if not active.functions | active.doubles:
        return
    undo.keep_item(os.environ, _VARIABLE)
    undo.keep_own(knobs.nvidia, "libdevice_path")
    if gpus():
        # A session without Triton kernels works. The first kernel compiled in it raises the error.
        with contextlib.suppress(CudaFormError, SourceError, CompilerNotFoundError):
            _link(active, _needed(active))


def _needed(active: Active) -> Path:
    path = _libdevice(active)
    if isinstance(path, UdfError):
        raise path
    return path


def _link(active: Active, path: Path) -> None:
    """Make Triton link this libdevice, if the functions are still the active ones."""
    if follower.active is active:
        # Inductor passes the variable to its workers, and sets the knob from it.
        os.environ[_VARIABLE] = str(path)
        sys.modules[compat.TRITON_KNOBS].nvidia.libdevice_path = str(path)


def _set_keys(module: Any, active: Active, undo: Undo) -> None:
    """Keep kernels apart: in memory by ``compute_cache_key``, on disk by ``get_cache_key``.

    Triton's own knob for changed pipelines is part of the keys only from 3.7 on. Before it reads
    the path of libdevice it calls ``compute_cache_key`` or ``make_backend``.
    """
    if not active.functions | active.doubles:
        return
    names = _KEYS_OF[module.__name__]
    if missing := [name for name in names if not hasattr(module, name)]:
        raise CudaFormError(
            f"{module.__name__} has no {', '.join(missing)}, which triton 3.6 to 3.9 have. Without "
            "it Triton's caches would mix kernels of different libraries. Open the session "
            "before triton is imported and use no Triton kernel in it, or report its version."
        )
    mark = cuda_id(active.parts)
    provided = False

    def after_libdevice(call: Callable[..., Any], mark: str = "") -> Callable[..., Any]:
        @functools.wraps(call)
        def after(*args: Any, **kwargs: Any) -> Any:
            nonlocal provided
            if not provided:
                path = _needed(active)
                if not gpus():  # else it was linked when the session opened
                    _link(active, path)
                provided = True
            made = call(*args, **kwargs)
            return f"{made}-{mark}" if mark else made

        return after

    for name in names:
        undo.set(module, name, after_libdevice(getattr(module, name), mark))
    if hasattr(module, _BACKEND):
        undo.set(module, _BACKEND, after_libdevice(getattr(module, _BACKEND)))


def _set_builtins(math: Any, active: Active, undo: Undo) -> None:
    functions = [inspect.unwrap(getattr(math, n)) for n in _BUILTINS if n in active.functions]
    for function in functions:
        code = function.__code__
        if code.co_freevars or code.co_varnames[: code.co_argcount] != ("x", "_semantic"):
            raise CudaFormError(
                f"triton.language.math.{function.__name__} is not built as in triton 3.6 to 3.9, "
                "so it cannot be made to call libdevice. Leave the function out of the session, "
                "or report triton's version."
            )
    for function in functions:
        name, scope = function.__name__, function.__globals__
        stock = types.FunctionType(function.__code__, scope, name, function.__defaults__)
        # The new code calls this global, so it has to be there first and go last.
        call = f"_udftorch_{name}"
        undo.set_item(scope, call, functools.partial(_through_libdevice, name, stock))
        own: dict[str, Any] = {}
        exec(f"def {name}(x, _semantic=None):\n    return {call}(x, _semantic)\n", own)
        # Replace the code of the function, not the name in the module: users' kernels and
        # triton's tensor class hold the function itself.
        undo.set(function, "__code__", own[name].__code__)


def _through_libdevice(name: str, stock: Any, x: Any, semantic: Any) -> Any:
    libdevice = importlib.import_module("triton.language.extra.cuda.libdevice")
    x = semantic.to_tensor(x)
    if not x.dtype.scalar.is_fp32():
        return stock(x, _semantic=semantic)
    return getattr(libdevice, name)(x, _semantic=semantic)


CHANGES: Final[dict[str, Change]] = {
    compat.TRITON_KNOBS: _set_knobs,
    **dict.fromkeys(_KEYS_OF, _set_keys),
    compat.TRITON_MATH: _set_builtins,
}
