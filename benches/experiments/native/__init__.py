# SPDX-License-Identifier: Apache-2.0
"""The loops in C and C++ that experiments time or follow."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from pathlib import Path

from pytest_udftorch.swap.toolchain.compiler import find_compiler


def load(source: str, *flags: str) -> ctypes.CDLL:
    """Compile a file of this folder for this machine, and load it.

    Raises:
        CompilerNotFoundError: there is no clang.
    """
    path = Path(__file__).parent / source
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / f"{path.stem}.so"
        command = [str(find_compiler().path), "-fPIC", "-shared", str(path), *flags]
        subprocess.run([*command, "-o", str(library)], check=True)
        return ctypes.CDLL(str(library))
