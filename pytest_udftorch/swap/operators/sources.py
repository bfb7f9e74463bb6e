# SPDX-License-Identifier: Apache-2.0
"""Rows of operators that make tensors, draw random numbers, or say nothing about numbers."""

from __future__ import annotations

from typing import Any, Final

from pytest_udftorch.swap.operators.row import (
    COMPOSED,
    MOVES,
    OWN,
    Contract,
    Held,
    Kind,
    Operator,
    Row,
    everywhere,
    row,
)

_DRAWS: Final = Kind.DRAWS
_ASKS: Final = Kind.ASKS


def _makes(name: str, **facts: Any) -> Row:
    return row(name, Kind.MAKES, exact=True, contract=MOVES, **facts)


_MADE: Final = (
    _makes("empty", values=False),
    _makes("empty_like", values=False),
    _makes("empty_permuted", values=False),
    _makes("empty_strided", values=False),
    _makes("new_empty", values=False),
    _makes("new_empty_strided", values=False),
    _makes("eye"),
    _makes("fill", overwrites=True),
    _makes("full"),
    _makes("full_like"),
    _makes("new_full"),
    _makes("new_ones"),
    _makes("new_zeros"),
    _makes("ones"),
    _makes("ones_like"),
    _makes("scalar_tensor"),
    _makes("zero", overwrites=True),
    _makes("zeros"),
    _makes("zeros_like"),
    row("arange", Kind.MAKES, exact=True, rounds_if="fractions", contract=Contract(Held.COMPOSED)),
    row("_efficientzerotensor", Kind.MAKES, exact=True),
    row("_nested_tensor_from_mask", Kind.MAKES),
    row("hamming_window", Kind.MAKES, "cos", leaf=True),
    row("kaiser_window", Kind.MAKES, "exp", leaf=True, stubs=True),
)

_OF_TENSORS: Final = ("normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor")

#: On CPUs torch composes it.
_DROPOUT: Final = Contract(Held.COMPOSED, cuda=Held.OWN, cuda16=Held.OWN)

#: Torch composes the overloads that the contract does not have of those that it has.
_WHOLE: Final = everywhere(Held.OWN, every_overload=True)

#: Normal variates stand for Box and Muller's method.
_DRAWN: Final = (
    row("normal", _DRAWS, "log cos", leaf=True, overwrites=True, contract=_WHOLE,
        stubs="normal_stub:normal_",
        cuda=Operator("normal_", ("normal_variates",),
                      ("normal_", *_OF_TENSORS, *(f"{n}_out" for n in _OF_TENSORS)),
                      launched_on_cpu=(("normal_", "make<Normal>"),))),
    row("log_normal", _DRAWS, "log cos exp", leaf=True, overwrites=True,
        stubs="log_normal_stub:log_normal_",
        cuda=Operator("log_normal_", ("log_normal_variates",), ("log_normal_",))),
    row("exponential", _DRAWS, "log", leaf=True, overwrites=True, contract=OWN,
        stubs="exponential_stub:exponential_",
        cuda=Operator("exponential_", ("exponential_variates",), ("exponential_",))),
    row("geometric", _DRAWS, "log", leaf=True, overwrites=True,
        stubs="geometric_stub:geometric_",
        cuda=Operator("geometric_", ("geometric_variates",), ("geometric_",))),
    row("cauchy", _DRAWS, "tan", leaf=True, overwrites=True, stubs="cauchy_stub:cauchy_",
        cuda=Operator("cauchy_", ("cauchy_variates",), ("cauchy_",))),
    row("_normal_functional", _DRAWS, "log cos", contract=COMPOSED),
    row("randn", _DRAWS, "log cos", leaf=True, contract=COMPOSED),
    row("randn_like", _DRAWS, "log cos", leaf=True, contract=COMPOSED),
    row("inductor_random", _DRAWS, "log cos", counted="drawn"),
    row("uniform", _DRAWS, overwrites=True, contract=OWN),
    row("rand", _DRAWS, contract=COMPOSED),
    row("rand_like", _DRAWS, contract=COMPOSED),
    row("bernoulli", _DRAWS, overwrites=True, contract=_WHOLE),
    row("randint", _DRAWS),
    row("random", _DRAWS, overwrites=True),
    row("randperm", _DRAWS, contract=Contract(Held.COMPOSED, cuda=Held.COMPOSED)),
    row("multinomial", _DRAWS, "log", counted="chosen", contract=OWN),
    row("native_dropout", _DRAWS, contract=_DROPOUT),
    row("native_dropout_backward", Kind.MAPS, contract=_DROPOUT),
    row("rrelu_with_noise", _DRAWS),
    row("rrelu_with_noise_backward", Kind.MAPS),
)  # fmt: skip

#: Operators whose results hold whatever lay in memory, or that say nothing about numbers.
_ASKED: Final = (
    row("_record_function_enter_new", _ASKS, values=False),
    row("_record_function_exit", _ASKS, values=False),
    row("is_same_size", _ASKS, values=False),
    row("record_stream", _ASKS, values=False),
    row("resize", _ASKS, exact=True, contract=MOVES, values=False, resizes=True),
    row("set", _ASKS, exact=True, contract=MOVES, values=False, resizes=True),
    row("_use_cudnn_ctc_loss", _ASKS),
    row("_use_miopen_ctc_loss", _ASKS),
)

ROWS: Final = (*_MADE, *_DRAWN, *_ASKED)
