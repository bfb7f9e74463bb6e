# SPDX-License-Identifier: Apache-2.0
"""Which operator makes two runs differ."""

from typing import TYPE_CHECKING

from pytest_udftorch import names_from

if TYPE_CHECKING:
    from pytest_udftorch.diff.compiled import Bisection, ResultError
    from pytest_udftorch.diff.drawn import save_page
    from pytest_udftorch.diff.find import first_difference
    from pytest_udftorch.diff.found import Difference, Finding, LayerDistance, Proof
    from pytest_udftorch.diff.graph import Node
    from pytest_udftorch.diff.origin import Input, Origin, first_origin
    from pytest_udftorch.diff.record_file import Record
    from pytest_udftorch.diff.recorded import record
    from pytest_udftorch.diff.reproducer import save_reproducer
    from pytest_udftorch.diff.sides import Side, side
    from pytest_udftorch.diff.truth import Apart, Error, Truth

__all__ = [
    "Apart",
    "Bisection",
    "Difference",
    "Error",
    "Finding",
    "Input",
    "LayerDistance",
    "Node",
    "Origin",
    "Proof",
    "Record",
    "ResultError",
    "Side",
    "Truth",
    "first_difference",
    "first_origin",
    "record",
    "save_page",
    "save_reproducer",
    "side",
]
__getattr__ = names_from(
    __name__,
    {"first_difference": "find", "Side": "sides", "side": "sides", "save_reproducer": "reproducer"}
    | dict.fromkeys(("Difference", "Finding", "LayerDistance", "Proof"), "found")
    | {"Node": "graph", "save_page": "drawn"}
    | {"record": "recorded", "Record": "record_file"}
    | dict.fromkeys(("Bisection", "ResultError"), "compiled")
    | dict.fromkeys(("Input", "Origin", "first_origin"), "origin")
    | dict.fromkeys(("Apart", "Error", "Truth"), "truth"),
)
