# SPDX-License-Identifier: Apache-2.0
"""Whether a fresh process on a patch computes the library's bits."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.errors import PatchError
from pytest_udftorch.swap.library.symbols import FUNCTIONS, golden_points
from pytest_udftorch.swap.patch import fresh_process as fresh

#: Elements of each operator's input: blocks of 16 lanes, an odd tail, some for each thread.
_ELEMENTS: Final = 1027
#: A fresh process takes the best CPU level, whatever this one was told.
_UNSET: Final = ("UDFTORCH_CPU_LEVEL", "ATEN_CPU_CAPABILITY", "UDFTORCH_PATCH_REPORT")
_SECONDS: Final = 600
_REALS: Final = {"float32": ctypes.c_float, "float64": ctypes.c_double}


def check(folder: Path, library: Path, functions: Mapping[str, Sequence[str]]) -> None:
    """Run every patched function in a process that has nothing but the path set.

    Args:
        folder: the patch.
        library: the copy in it of the build that this CPU takes.
        functions: torch's name -> dtypes.

    Raises:
        PatchError: the process fails or loads another torch, a result differs from the
            library's own, or an operator calls no symbol that is bound.
    """
    keys = [(name, dtype) for name, dtypes in functions.items() for dtype in dtypes]
    build = ctypes.CDLL(os.fspath(library))
    environment = {k: v for k, v in os.environ.items() if k not in _UNSET}
    paths = [os.fspath(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment |= {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        run = subprocess.run(
            [sys.executable, "-P", fresh.__file__],
            input=json.dumps([_case(build, *key) for key in keys]),
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
        )
        told = json.loads(run.stdout) if run.returncode == 0 else {}
    except (subprocess.TimeoutExpired, ValueError) as error:
        raise _failed(folder, str(error)) from error
    if run.returncode != 0:
        raise _failed(folder, run.stderr.strip() or f"it ended with status {run.returncode}.")
    if not Path(told["torch"]).is_relative_to(folder) or told["early"]:
        raise _failed(folder, f"it loaded {told['torch']}, or this package before torch.")
    silent = [
        f"torch.{name} on {dtype} called none of its symbols."
        for name, dtype in keys
        if not any(told["calls"].get(s) for names in FUNCTIONS[name].symbols(dtype).values()
                   for s in names)
    ]  # fmt: skip
    if problems := [*told["wrong"], *silent]:
        raise _failed(folder, "\n".join(problems))


def _failed(folder: Path, why: str) -> PatchError:
    return PatchError(
        f"A fresh Python process with PYTHONPATH={folder} does not compute with the library's "
        f"functions:\n{why}\nIf it names functions, leave them out with --functions."
    )


def _case(build: ctypes.CDLL, function: str, dtype: str) -> dict[str, Any]:
    """Return inputs of a function, and the library's own results for them, in hex."""
    real, known = _REALS[dtype], FUNCTIONS[function]
    values = golden_points(known.arity * _ELEMENTS, *known.domain)
    array = real * _ELEMENTS
    rows = [array(*values[i :: known.arity]) for i in range(known.arity)]
    results = array()
    call = getattr(build, known.export(dtype, "array"))
    length, mode = ctypes.c_int64(_ELEMENTS), ctypes.c_int64(0)
    call(length, *map(ctypes.byref, (*rows, results)), mode)
    return {
        "function": function,
        "dtype": dtype,
        "inputs": [bytes(row).hex() for row in rows],
        "expected": bytes(results).hex(),
    }
