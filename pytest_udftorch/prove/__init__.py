# SPDX-License-Identifier: Apache-2.0
"""Is a function right, and how far may rounding lead?"""

from typing import TYPE_CHECKING

from pytest_udftorch.base.package import names_from

if TYPE_CHECKING:
    from pytest_udftorch.prove.exact.approx import approx
    from pytest_udftorch.prove.exact.formats import FORMATS
    from pytest_udftorch.prove.exact.rounding import (
        assert_bitwise_same,
        assert_correctly_rounded,
        assert_ulp,
        correctly_rounded,
        ulp_distance,
        ulp_error,
    )
    from pytest_udftorch.prove.exact.strategies import (
        by_encoding,
        float32_inputs,
        hard_cases,
        near_half_pi,
        near_thresholds,
        read_hard_cases,
        sample,
        structured,
        thresholds,
    )
    from pytest_udftorch.prove.verify.certificate import (
        Certificate,
        Run,
    )
    from pytest_udftorch.prove.verify.certificate_file import load, save
    from pytest_udftorch.prove.verify.export import fpcore, herbie_platform
    from pytest_udftorch.prove.verify.merge import comparison_table, merge
    from pytest_udftorch.prove.verify.reference.checker import (
        Inputs,
        LlvmLibc,
        generator,
        llvmlibc,
    )

__all__ = [
    "FORMATS",
    "Certificate",
    "Inputs",
    "LlvmLibc",
    "Run",
    "approx",
    "assert_bitwise_same",
    "assert_correctly_rounded",
    "assert_ulp",
    "by_encoding",
    "comparison_table",
    "correctly_rounded",
    "float32_inputs",
    "fpcore",
    "generator",
    "hard_cases",
    "herbie_platform",
    "llvmlibc",
    "load",
    "merge",
    "near_half_pi",
    "near_thresholds",
    "read_hard_cases",
    "sample",
    "save",
    "structured",
    "thresholds",
    "ulp_distance",
    "ulp_error",
]
__getattr__ = names_from(
    __name__,
    {
        "Certificate": "prove.verify.certificate",
        "FORMATS": "prove.exact.formats",
        "Inputs": "prove.verify.reference.checker",
        "LlvmLibc": "prove.verify.reference.checker",
        "Run": "prove.verify.certificate",
        "approx": "prove.exact.approx",
        "assert_bitwise_same": "prove.exact.rounding",
        "assert_correctly_rounded": "prove.exact.rounding",
        "assert_ulp": "prove.exact.rounding",
        "by_encoding": "prove.exact.strategies",
        "comparison_table": "prove.verify.merge",
        "correctly_rounded": "prove.exact.rounding",
        "float32_inputs": "prove.exact.strategies",
        "fpcore": "prove.verify.export",
        "generator": "prove.verify.reference.checker",
        "hard_cases": "prove.exact.strategies",
        "herbie_platform": "prove.verify.export",
        "llvmlibc": "prove.verify.reference.checker",
        "load": "prove.verify.certificate_file",
        "merge": "prove.verify.merge",
        "near_half_pi": "prove.exact.strategies",
        "near_thresholds": "prove.exact.strategies",
        "read_hard_cases": "prove.exact.strategies",
        "sample": "prove.exact.strategies",
        "save": "prove.verify.certificate_file",
        "structured": "prove.exact.strategies",
        "thresholds": "prove.exact.strategies",
        "ulp_distance": "prove.exact.rounding",
        "ulp_error": "prove.exact.rounding",
    },
)
