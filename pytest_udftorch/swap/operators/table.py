# SPDX-License-Identifier: Apache-2.0
"""The overrides that the rows name: which overloads a session can override, by which kernels.

``cuda.operators`` and ``cpu.operators`` register them. This module needs neither torch nor Triton.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pytest_udftorch.swap.library.symbols import FUNCTIONS
from pytest_udftorch.swap.operators.calls import Applied
from pytest_udftorch.swap.operators.row import Operator, Pointwise
from pytest_udftorch.swap.operators.rows import BY_NAME, ROWS

_ALL: Final = tuple(op for row in ROWS for op in row.cuda)

#: Those that map elements.
POINTWISE: Final = tuple(op for op in _ALL if isinstance(op, Pointwise))

#: Functions of one argument whose operator has the same name.
BARE: Final = tuple(n for n in BY_NAME if n in FUNCTIONS and FUNCTIONS[n].arity == 1)

#: What a session can override on CUDA.
OPERATORS: Final = (*POINTWISE, *(op for op in _ALL if not isinstance(op, Pointwise)))


def _other(name: str) -> Operator:
    """Return the override of a row that does not map elements one by one."""
    return next(op for op in BY_NAME[name].cuda if not isinstance(op, Pointwise))


LOG_SIGMOID: Final = _other("log_sigmoid_forward")
POW_OF_NUMBERS: Final = _other("pow")
GLU: Final = _other("glu")
GLU_BACKWARD: Final = _other("glu_backward")
BINARY_CROSS_ENTROPY: Final = _other("binary_cross_entropy")
POLYGAMMA: Final = _other("polygamma")
#: Operator -> stock's function without its factor.
SCALED: Final = {_other(row.name): row.unscaled for row in ROWS if row.unscaled}
LOG_CUMULATIVE: Final = _other("_logcumsumexp")
POW_OF_LISTS: Final = _other("_foreach_pow")
DISTANCES: Final = _other("_cdist_forward")
NORM: Final = _other("linalg_vector_norm")
RECURRENT: Final = _other("_cudnn_rnn")
VARIATES: Final = tuple(
    _other(name) for name in ("normal", "log_normal", "exponential", "geometric", "cauchy")
)
ALIGNMENTS: Final = _other("_ctc_loss")
SOFTMAX: Final = _other("_softmax")
LOG_SOFTMAX: Final = _other("_log_softmax")
LOG_SOFTMAX_BACKWARD: Final = _other("_log_softmax_backward_data")
ATTENTION: Final = _other("scaled_dot_product_attention")

#: Overload -> a function of a call's scalars. It returns the formula that a compiler uses, or None
#: where the compiler keeps its own code.
COMPILED: Final[dict[str, Callable[..., Applied | None]]] = {
    f"aten::{row.name}": row.compiled for row in ROWS if row.compiled is not None
}


def reached() -> dict[str, frozenset[str]]:
    """Return overload -> the functions it calls, for every overload that can be overridden."""
    return {overload: op.functions for op in OPERATORS for overload in op.overloads}


def overloads(functions: frozenset[str]) -> list[str]:
    """Return the names of the overloads that a session of these functions overrides."""
    return sorted(name for name, held in reached().items() if held & functions)
