# SPDX-License-Identifier: Apache-2.0
"""Packages that not everybody needs: imported on first use, and asked for before work starts."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Any, Final

from pytest_udftorch.errors import PackageMissingError

#: Package -> the extra of this one that brings it.
_EXTRAS: Final = {
    "accelerate": "trainers",
    "argcomplete": "completion",
    "dask": "verify",
    "distributed": "verify",
    "gmpy2": "verify",
    "lightning": "trainers",
    "numba": "python-udf",
    "numpy": "profile",
    "pandas": "profile",
    "pyarrow": "profile",
    "timm": "models",
    "torch": "torch",
    "torchvision": "torch",
    "transformers": "models",
    "trl": "trainers",
    "xxhash": "torch",
    "z3": "rewrite",
    "egglog": "rewrite",
}

#: Package -> the distribution that has it, where the names differ.
_INSTALLED_AS: Final = {"z3": "z3-solver"}


def _missing(name: str, what: str, why: str) -> PackageMissingError:
    root = name.partition(".")[0]
    wheel = _INSTALLED_AS.get(root, root)
    return PackageMissingError(
        f"{what} needs the package {root}, which cannot be imported ({why}). Install it: pip "
        f"install 'pytest_udftorch[{_EXTRAS[root]}]', or pip install {wheel}."
    )


def package(name: str, what: str) -> Any:
    """Import an optional package that ``what`` needs.

    Raises:
        PackageMissingError: it cannot be imported.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise _missing(name, what, str(error)) from error


def require(names: Iterable[str], what: str) -> None:
    """Check that packages are installed, without importing them.

    Raises:
        PackageMissingError: the first one that is not.
    """
    for name in names:
        if name in sys.modules and sys.modules[name] is not None:
            continue
        try:
            found = importlib.util.find_spec(name)
        except ValueError:  # None stands in sys.modules
            found = None
        if found is None:
            raise _missing(name, what, f"No module named '{name}'")
