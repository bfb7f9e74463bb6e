# SPDX-License-Identifier: Apache-2.0
"""Expected results of a computation, judged by the truth and by what rounding explains."""

from typing import TYPE_CHECKING

from pytest_udftorch import names_from

if TYPE_CHECKING:
    from pytest_udftorch.golden.check import Judgement, check_golden, store_golden
    from pytest_udftorch.golden.file import Golden, Output

__all__ = ["Golden", "Judgement", "Output", "check_golden", "store_golden"]
__getattr__ = names_from(
    __name__,
    dict.fromkeys(("Judgement", "check_golden", "store_golden"), "check")
    | dict.fromkeys(("Golden", "Output"), "file"),
)
