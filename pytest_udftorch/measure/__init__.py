# SPDX-License-Identifier: Apache-2.0
"""How long does it take, and what is faster?"""

from typing import TYPE_CHECKING

from pytest_udftorch.base.package import names_from

if TYPE_CHECKING:
    from pytest_udftorch.measure.planning.executor import Executor as Executor
    from pytest_udftorch.measure.planning.executors import register_executor as register_executor
    from pytest_udftorch.measure.planning.executors import (
        unregister_executor as unregister_executor,
    )
    from pytest_udftorch.measure.planning.pairs import ModelPair as ModelPair
    from pytest_udftorch.measure.planning.pairs import model_pair as model_pair
    from pytest_udftorch.measure.planning.plan_search import Plan as Plan
    from pytest_udftorch.measure.planning.plan_search import oracle as oracle
    from pytest_udftorch.measure.planning.sizes import BySize as BySize
    from pytest_udftorch.measure.planning.sizes import by_size as by_size
    from pytest_udftorch.measure.rewrite.backends import recording as recording
    from pytest_udftorch.measure.rewrite.boxes import Equivalence as Equivalence
    from pytest_udftorch.measure.rewrite.boxes import assert_equivalent as assert_equivalent
    from pytest_udftorch.measure.rewrite.boxes import equivalence as equivalence
    from pytest_udftorch.measure.rewrite.fusion.sparse import fused as fused
    from pytest_udftorch.measure.rewrite.report import GraphReport as GraphReport
    from pytest_udftorch.measure.rewrite.taso.generator import generate_rules as generate_rules
    from pytest_udftorch.measure.rewrite.taso.rules import Rule as Rule
    from pytest_udftorch.measure.rewrite.taso.rules import judge_rule as judge_rule
    from pytest_udftorch.measure.rewrite.taso.rules import read_rules as read_rules
    from pytest_udftorch.measure.rewrite.taso.scale import judge_rules as judge_rules
    from pytest_udftorch.measure.rewrite.tiled.backend import tiled as tiled
    from pytest_udftorch.measure.timing.layers import LayerReport as LayerReport
    from pytest_udftorch.measure.timing.layers import instrument_overhead as instrument_overhead
    from pytest_udftorch.measure.timing.layers import layer_profile as layer_profile
    from pytest_udftorch.measure.timing.layers import layer_subtraction as layer_subtraction
    from pytest_udftorch.measure.timing.layers import layer_times as layer_times
    from pytest_udftorch.measure.timing.timers import Comparison as Comparison
    from pytest_udftorch.measure.timing.timers import SyncTimer as SyncTimer
    from pytest_udftorch.measure.timing.timers import Timing as Timing
    from pytest_udftorch.measure.timing.timers import sync_timer as sync_timer
else:
    __all__, __getattr__, __dir__ = names_from(
        __name__,
        {
            "measure.planning.executor": ["Executor"],
            "measure.planning.executors": ["register_executor", "unregister_executor"],
            "measure.planning.pairs": ["ModelPair", "model_pair"],
            "measure.planning.plan_search": ["Plan", "oracle"],
            "measure.planning.sizes": ["BySize", "by_size"],
            "measure.rewrite.backends": ["recording"],
            "measure.rewrite.boxes": ["Equivalence", "assert_equivalent", "equivalence"],
            "measure.rewrite.fusion.sparse": ["fused"],
            "measure.rewrite.report": ["GraphReport"],
            "measure.rewrite.taso.generator": ["generate_rules"],
            "measure.rewrite.taso.rules": ["Rule", "judge_rule", "read_rules"],
            "measure.rewrite.taso.scale": ["judge_rules"],
            "measure.rewrite.tiled.backend": ["tiled"],
            "measure.timing.layers": [
                "LayerReport",
                "instrument_overhead",
                "layer_profile",
                "layer_subtraction",
                "layer_times",
            ],
            "measure.timing.timers": ["Comparison", "SyncTimer", "Timing", "sync_timer"],
        },
    )
