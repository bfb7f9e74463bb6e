# SPDX-License-Identifier: Apache-2.0
"""Swap the transcendental functions inside an unmodified PyTorch.

``patched`` binds a UDF library into the loaded libtorch and restores it; ``trace`` counts
which math symbols an operator calls. Importing this package imports neither torch nor
anything else that is heavy: names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

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
    _HOMES = {
        "errors": ["UdfError"],
        "prove.exact.approx": ["approx"],
        "swap.library.description": ["UdfLibrary", "available_libraries", "find_library"],
        "swap.overrides.operator_udfs": ["operator_udf"],
        "swap.overrides.python_override": ["stock"],
        "swap.session.session": ["Session", "patched", "trace"],
        "swap.toolchain.python_udf": ["udf"],
        "swap.toolchain.shared_library": ["Build", "build_library"],
    }
    __all__ = sorted(name for names in _HOMES.values() for name in names)

    # Whoever loads the plugin loads this module, and nothing else until a name is used.
    def __getattr__(name: str) -> Any:
        from pytest_udftorch.base.package import names_from

        return names_from(__name__, _HOMES)[1](name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
