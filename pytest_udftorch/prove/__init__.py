# SPDX-License-Identifier: Apache-2.0
"""Is a function right, and how far may rounding lead?"""

from typing import TYPE_CHECKING

from pytest_udftorch.base.package import names_from

if TYPE_CHECKING:
    from pytest_udftorch.prove.exact.approx import approx as approx
    from pytest_udftorch.prove.exact.rounding import assert_bitwise_same as assert_bitwise_same
    from pytest_udftorch.prove.exact.rounding import (
        assert_correctly_rounded as assert_correctly_rounded,
    )
    from pytest_udftorch.prove.exact.rounding import assert_ulp as assert_ulp
    from pytest_udftorch.prove.exact.rounding import correctly_rounded as correctly_rounded
    from pytest_udftorch.prove.exact.rounding import ulp_distance as ulp_distance
    from pytest_udftorch.prove.exact.rounding import ulp_error as ulp_error
    from pytest_udftorch.prove.exact.strategies import by_encoding as by_encoding
    from pytest_udftorch.prove.exact.strategies import few_significand_bits as few_significand_bits
    from pytest_udftorch.prove.exact.strategies import float32_inputs as float32_inputs
    from pytest_udftorch.prove.exact.strategies import hard_cases as hard_cases
    from pytest_udftorch.prove.exact.strategies import near_half_pi as near_half_pi
    from pytest_udftorch.prove.exact.strategies import near_thresholds as near_thresholds
    from pytest_udftorch.prove.exact.strategies import sample_inputs as sample_inputs
    from pytest_udftorch.prove.verify.certificate import Certificate as Certificate
    from pytest_udftorch.prove.verify.certificate_file import load_certificate as load_certificate
    from pytest_udftorch.prove.verify.certificate_file import save_certificate as save_certificate
    from pytest_udftorch.prove.verify.export import fpcore as fpcore
    from pytest_udftorch.prove.verify.export import herbie_platform as herbie_platform
    from pytest_udftorch.prove.verify.merge import merge_certificates as merge_certificates
else:
    __all__, __getattr__, __dir__ = names_from(
        __name__,
        {
            "prove.exact.approx": ["approx"],
            "prove.exact.rounding": [
                "assert_bitwise_same",
                "assert_correctly_rounded",
                "assert_ulp",
                "correctly_rounded",
                "ulp_distance",
                "ulp_error",
            ],
            "prove.exact.strategies": [
                "by_encoding",
                "few_significand_bits",
                "float32_inputs",
                "hard_cases",
                "near_half_pi",
                "near_thresholds",
                "sample_inputs",
            ],
            "prove.verify.certificate": ["Certificate"],
            "prove.verify.certificate_file": ["load_certificate", "save_certificate"],
            "prove.verify.export": ["fpcore", "herbie_platform"],
            "prove.verify.merge": ["merge_certificates"],
        },
    )
