# SPDX-License-Identifier: Apache-2.0
"""Swap the transcendental functions inside an unmodified PyTorch.

``patched`` binds a UDF library into the loaded libtorch and restores it; ``trace`` counts
which math symbols an operator calls. Importing this package imports neither torch nor
anything else that is heavy: names are loaded when they are first used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"


def names_from(
    package: str, homes: Mapping[str, Iterable[str]]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__all__``, ``__getattr__`` and ``__dir__`` of a package that offers names.

    The module behind a name is loaded when the name is used.

    Args:
        package: the package.
        homes: modules, without ``pytest_udftorch.`` in front, with the names that each defines.
    """
    home = {name: module for module, names in homes.items() for name in names}

    def find(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{home[name]}"), name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home})

    return sorted(home), find, names


if TYPE_CHECKING:
    from pytest_udftorch.errors import UdfError as UdfError
    from pytest_udftorch.prove.exact.approx import approx as approx
    from pytest_udftorch.swap.library.description import UdfLibrary as UdfLibrary
    from pytest_udftorch.swap.library.description import available_libraries as available_libraries
    from pytest_udftorch.swap.library.description import find_library as find_library
    from pytest_udftorch.swap.overrides.operator_udfs import operator_udf as operator_udf
    from pytest_udftorch.swap.overrides.python_override import stock as stock
    from pytest_udftorch.swap.session.session import Session as Session
    from pytest_udftorch.swap.session.session import patched as patched
    from pytest_udftorch.swap.session.session import trace as trace
    from pytest_udftorch.swap.toolchain.python_udf import udf as udf
    from pytest_udftorch.swap.toolchain.shared_library import Build as Build
    from pytest_udftorch.swap.toolchain.shared_library import build_library as build_library
else:
    __all__, __getattr__, __dir__ = names_from(
        __name__,
        {
            "errors": ["UdfError"],
            "prove.exact.approx": ["approx"],
            "swap.library.description": ["UdfLibrary", "available_libraries", "find_library"],
            "swap.overrides.operator_udfs": ["operator_udf"],
            "swap.overrides.python_override": ["stock"],
            "swap.session.session": ["Session", "patched", "trace"],
            "swap.toolchain.python_udf": ["udf"],
            "swap.toolchain.shared_library": ["Build", "build_library"],
        },
    )
