# SPDX-License-Identifier: Apache-2.0
"""Graphs that are rewritten, and the test that two programs are equal: see docs/rewriting.md."""

from pytest_udftorch.errors import EquivalenceError, RewriteError, RuleError
from pytest_udftorch.rewrite.backends import recording
from pytest_udftorch.rewrite.boxes import Box, Equivalence, assert_equivalent, equivalence
from pytest_udftorch.rewrite.fusion.sparse import fused
from pytest_udftorch.rewrite.report import Counts, GraphReport, Picture
from pytest_udftorch.rewrite.taso.generate import Funnel, enumerate_pairs, generate
from pytest_udftorch.rewrite.taso.rules import Proof, Rule, judge, read
from pytest_udftorch.rewrite.taso.scale import judge_all
from pytest_udftorch.rewrite.templates import TEMPLATES, Firing
from pytest_udftorch.rewrite.tiled.backend import tiled

__all__ = [
    "TEMPLATES",
    "Box",
    "Counts",
    "Equivalence",
    "EquivalenceError",
    "Firing",
    "Funnel",
    "GraphReport",
    "Picture",
    "Proof",
    "RewriteError",
    "Rule",
    "RuleError",
    "assert_equivalent",
    "enumerate_pairs",
    "equivalence",
    "fused",
    "generate",
    "judge",
    "judge_all",
    "read",
    "recording",
    "tiled",
]
