# SPDX-License-Identifier: Apache-2.0
"""Where do two runs part, who is right, and does it matter?"""

from typing import TYPE_CHECKING

from pytest_udftorch.base.package import names_from

if TYPE_CHECKING:
    from pytest_udftorch.diagnose.blame.result import Blame as Blame
    from pytest_udftorch.diagnose.blame.search import smallest_cause as smallest_cause
    from pytest_udftorch.diagnose.diff.comparison import first_difference as first_difference
    from pytest_udftorch.diagnose.diff.drawing import save_difference_page as save_difference_page
    from pytest_udftorch.diagnose.diff.origin import Origin as Origin
    from pytest_udftorch.diagnose.diff.origin import first_origin as first_origin
    from pytest_udftorch.diagnose.diff.record import record_run as record_run
    from pytest_udftorch.diagnose.diff.reproducer import save_reproducer as save_reproducer
    from pytest_udftorch.diagnose.diff.result import Difference as Difference
    from pytest_udftorch.diagnose.golden.check import Judgement as Judgement
    from pytest_udftorch.diagnose.golden.check import check_golden as check_golden
    from pytest_udftorch.diagnose.golden.check import store_golden as store_golden
    from pytest_udftorch.diagnose.runs.record_file import Record as Record
    from pytest_udftorch.diagnose.runs.sides import Side as Side
    from pytest_udftorch.diagnose.runs.switch import assigned as assigned
    from pytest_udftorch.diagnose.sensitivity.experiment import significant_bits as significant_bits
    from pytest_udftorch.diagnose.sensitivity.result import Sensitivity as Sensitivity
    from pytest_udftorch.diagnose.sensitivity.seeds import stochastic as stochastic
    from pytest_udftorch.diagnose.tolerance.ladder import cheapest_libraries as cheapest_libraries
    from pytest_udftorch.diagnose.tolerance.result import Tolerance as Tolerance
else:
    __all__, __getattr__, __dir__ = names_from(
        __name__,
        {
            "diagnose.blame.result": ["Blame"],
            "diagnose.blame.search": ["smallest_cause"],
            "diagnose.diff.comparison": ["first_difference"],
            "diagnose.diff.drawing": ["save_difference_page"],
            "diagnose.diff.origin": ["Origin", "first_origin"],
            "diagnose.diff.record": ["record_run"],
            "diagnose.diff.reproducer": ["save_reproducer"],
            "diagnose.diff.result": ["Difference"],
            "diagnose.golden.check": ["Judgement", "check_golden", "store_golden"],
            "diagnose.runs.record_file": ["Record"],
            "diagnose.runs.sides": ["Side"],
            "diagnose.runs.switch": ["assigned"],
            "diagnose.sensitivity.experiment": ["significant_bits"],
            "diagnose.sensitivity.result": ["Sensitivity"],
            "diagnose.sensitivity.seeds": ["stochastic"],
            "diagnose.tolerance.ladder": ["cheapest_libraries"],
            "diagnose.tolerance.result": ["Tolerance"],
        },
    )
