# SPDX-License-Identifier: Apache-2.0
"""Where do two runs part, who is right, and does it matter?"""

from typing import TYPE_CHECKING

from pytest_udftorch.base.package import names_from

if TYPE_CHECKING:
    from pytest_udftorch.diagnose.blame.result import Blame, Cause
    from pytest_udftorch.diagnose.blame.search import smallest_cause, units_of
    from pytest_udftorch.diagnose.blame.trial import Outcome
    from pytest_udftorch.diagnose.diff.comparison import first_difference
    from pytest_udftorch.diagnose.diff.compiler_bisection import Bisection, ResultError
    from pytest_udftorch.diagnose.diff.drawing import save_page
    from pytest_udftorch.diagnose.diff.graph import Node
    from pytest_udftorch.diagnose.diff.origin import Input, Origin, first_origin
    from pytest_udftorch.diagnose.diff.record import record
    from pytest_udftorch.diagnose.diff.reproducer import save_reproducer
    from pytest_udftorch.diagnose.diff.result import Difference, Finding, LayerDistance, Proof
    from pytest_udftorch.diagnose.golden.check import Judgement, check_golden, store_golden
    from pytest_udftorch.diagnose.golden.file import Golden, Output
    from pytest_udftorch.diagnose.runs.record_file import Record
    from pytest_udftorch.diagnose.runs.sides import Side, side
    from pytest_udftorch.diagnose.runs.switch import Site, Unit, assigned
    from pytest_udftorch.diagnose.sensitivity.digits import Bits
    from pytest_udftorch.diagnose.sensitivity.experiment import significant_bits
    from pytest_udftorch.diagnose.sensitivity.result import Digits, Sensitivity
    from pytest_udftorch.diagnose.sensitivity.seeds import stochastic
    from pytest_udftorch.diagnose.tolerance.ladder import LADDER, cheapest_libraries
    from pytest_udftorch.diagnose.tolerance.result import Need, Tolerance
    from pytest_udftorch.prove.judge.truth import Apart, Error, Truth

__all__ = [
    "LADDER",
    "Apart",
    "Bisection",
    "Bits",
    "Blame",
    "Cause",
    "Difference",
    "Digits",
    "Error",
    "Finding",
    "Golden",
    "Input",
    "Judgement",
    "LayerDistance",
    "Need",
    "Node",
    "Origin",
    "Outcome",
    "Output",
    "Proof",
    "Record",
    "ResultError",
    "Sensitivity",
    "Side",
    "Site",
    "Tolerance",
    "Truth",
    "Unit",
    "assigned",
    "cheapest_libraries",
    "check_golden",
    "first_difference",
    "first_origin",
    "record",
    "save_page",
    "save_reproducer",
    "side",
    "significant_bits",
    "smallest_cause",
    "stochastic",
    "store_golden",
    "units_of",
]
__getattr__ = names_from(
    __name__,
    {
        "Apart": "prove.judge.truth",
        "Bisection": "diagnose.diff.compiler_bisection",
        "Bits": "diagnose.sensitivity.digits",
        "Blame": "diagnose.blame.result",
        "Cause": "diagnose.blame.result",
        "Difference": "diagnose.diff.result",
        "Digits": "diagnose.sensitivity.result",
        "Error": "prove.judge.truth",
        "Finding": "diagnose.diff.result",
        "Golden": "diagnose.golden.file",
        "Input": "diagnose.diff.origin",
        "Judgement": "diagnose.golden.check",
        "LADDER": "diagnose.tolerance.ladder",
        "LayerDistance": "diagnose.diff.result",
        "Need": "diagnose.tolerance.result",
        "Node": "diagnose.diff.graph",
        "Origin": "diagnose.diff.origin",
        "Outcome": "diagnose.blame.trial",
        "Output": "diagnose.golden.file",
        "Proof": "diagnose.diff.result",
        "Record": "diagnose.runs.record_file",
        "ResultError": "diagnose.diff.compiler_bisection",
        "Sensitivity": "diagnose.sensitivity.result",
        "Side": "diagnose.runs.sides",
        "Site": "diagnose.runs.switch",
        "Tolerance": "diagnose.tolerance.result",
        "Truth": "prove.judge.truth",
        "Unit": "diagnose.runs.switch",
        "assigned": "diagnose.runs.switch",
        "cheapest_libraries": "diagnose.tolerance.ladder",
        "check_golden": "diagnose.golden.check",
        "first_difference": "diagnose.diff.comparison",
        "first_origin": "diagnose.diff.origin",
        "record": "diagnose.diff.record",
        "save_page": "diagnose.diff.drawing",
        "save_reproducer": "diagnose.diff.reproducer",
        "side": "diagnose.runs.sides",
        "significant_bits": "diagnose.sensitivity.experiment",
        "smallest_cause": "diagnose.blame.search",
        "stochastic": "diagnose.sensitivity.seeds",
        "store_golden": "diagnose.golden.check",
        "units_of": "diagnose.blame.search",
    },
)
