# SPDX-License-Identifier: Apache-2.0
"""Eager CUDA under a session: operators overridden through the dispatcher.

ATen's CUDA kernels are machine code. For the operators made of the functions that a session swaps
(``table``), the boards (``overrides.switchboard``) therefore call kernels of its own (``kernels``,
written in Triton), at the dispatch key CUDA. Autograd, autocast and CUDA graphs work above that key
and notice nothing.

The kernels handle float32, bfloat16 and half in memory without gaps. Any other call goes to the
stock kernel first, so that promotion, strides, resizing, warnings and errors are torch's own. If
that call computes in one of these dtypes, the kernels then overwrite its values. float64 goes to
``doubles`` where the session has such functions; other dtypes (complex) stay stock.

Nothing is made before the process uses CUDA, and triton is imported with the first call.

The functions of a profiled session count in rows of ``counters``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from pytest_udftorch.base import compat
from pytest_udftorch.base.newest import Newest
from pytest_udftorch.errors import SessionBusyError, SwapError
from pytest_udftorch.swap.cuda import (
    alignments,
    attention,
    composites,
    direct,
    distances,
    doubles,
    losses,
    pointwise,
    recurrent,
    softmax,
    special,
    variates,
)
from pytest_udftorch.swap.cuda.launcher import Launcher
from pytest_udftorch.swap.operators import table
from pytest_udftorch.swap.operators.calls import plain
from pytest_udftorch.swap.operators.row import Operator
from pytest_udftorch.swap.overrides import canary, dispatcher
from pytest_udftorch.swap.overrides.active import Active, Change
from pytest_udftorch.swap.overrides.switchboard import switchboard
from pytest_udftorch.swap.overrides.tape import recorded
from pytest_udftorch.swap.overrides.undo import Undo

_Maker = Callable[[Launcher, Any], dict[str, Callable[..., Any]]]


def kernels(launcher: Launcher, functions: frozenset[str]) -> dict[str, Callable[..., Any]]:
    """Return overload -> kernel for every operator that holds one of the functions."""
    found: dict[str, Callable[..., Any]] = {}
    for op in table.OPERATORS:
        if op.functions & functions:
            make: _Maker = _MAKERS.get(op, pointwise.pointwise_kernels)
            found |= make(launcher, op)
    for op in composites.whole_operators(launcher.composites, functions):
        found |= pointwise.pointwise_kernels(launcher, op)
    if "logsigmoid" in launcher.composites:
        every = pointwise.log_sigmoid_kernels(launcher, table.LOG_SIGMOID)
        found |= {n: every[n] for n in composites.LOG_SIGMOID_OVERLOADS}
    return found


#: Operators that do not map elements one by one -> what makes their kernels.
_MAKERS: Final[dict[Operator, _Maker]] = {
    table.LOG_SIGMOID: pointwise.log_sigmoid_kernels,
    table.POW_OF_NUMBERS: pointwise.pow_scalar_kernels,
    table.GLU: losses.glu_kernels,
    table.GLU_BACKWARD: losses.glu_backward_kernels,
    table.BINARY_CROSS_ENTROPY: losses.binary_cross_entropy_kernels,
    table.ATTENTION: attention.attention_kernels,
    table.SOFTMAX: softmax.softmax_kernels,
    table.LOG_SOFTMAX: softmax.softmax_kernels,
    table.LOG_SOFTMAX_BACKWARD: softmax.log_softmax_backward_kernels,
    table.POLYGAMMA: special.polygamma_kernels,
    **dict.fromkeys(table.SCALED, special.scaled_kernels),
    table.LOG_CUMULATIVE: special.log_cumulative_kernels,
    table.POW_OF_LISTS: pointwise.pow_of_lists_kernels,
    table.DISTANCES: distances.distance_kernels,
    table.NORM: distances.norm_kernels,
    table.RECURRENT: recurrent.recurrent_kernels,
    **dict.fromkeys(table.VARIATES, variates.variate_kernels),
    table.ALIGNMENTS: alignments.alignment_kernels,
}


#: Operators whose kernels depend on their arguments alone, and draw by torch's operators.
_RECORDED: Final = (
    table.ATTENTION, table.GLU, table.GLU_BACKWARD, table.BINARY_CROSS_ENTROPY, table.SOFTMAX,
    table.LOG_SOFTMAX, table.LOG_SOFTMAX_BACKWARD,
)  # fmt: skip


class Registration:
    """The kernels of one set of active functions."""

    def __init__(self, active: Active) -> None:
        self.launcher = Launcher(active, check)
        self._made: dispatcher.Kernels | None = None

    def register(self) -> None:
        """Let the boards of operators that hold one of the functions call them.

        An operator that has a UDF of its own keeps that UDF.
        """
        self.launcher.prepare()
        if self._made is None:
            made = kernels(self.launcher, self.launcher.active.functions)
            made |= doubles.double_kernels(self.launcher, made)
            every = {("CUDA", name): kernel for name, kernel in made.items()}
            if recurrent.LAYERS in made:
                above = recurrent.layers_above()
                every |= {("AutogradCUDA", name): kernel for name, kernel in above.items()}
            cpp = direct.load()
            if cpp is not None:
                cpp.sizes(pointwise.FEW, softmax.ROW_IN_REGISTERS)
                self.launcher.direct = cpp
            recordable = {n for op in _RECORDED for n in op.overloads}
            targets = []
            for (key, name), kernel in every.items():
                place = f"aten::{name}", key
                target = switchboard.python(place, kernel)
                if name in recordable and not self.launcher.counted:
                    target = recorded(target)
                if cpp is not None and key == "CUDA":
                    target = switchboard.above(place, target, cpp.target)
                targets.append(target)
            self._made = dispatcher.Kernels(tuple(targets))
        dispatcher.overrides.serve("cuda", self._made)


#: So many sets of functions keep their kernels.
_SETS: Final = 16


class CudaOperators:
    """What boards of CUDA call for the open sessions; the one instance is ``cuda_operators``."""

    def __init__(self) -> None:
        self._registration: Registration | None = None
        self._made: Newest[object, Registration] = Newest(_SETS)
        self._queued = False

    def change(self, cuda: Any, active: Active, undo: Undo) -> None:
        """Override the operators now, or when the process begins to use CUDA.

        Args:
            cuda: the module ``torch.cuda``.
            active: the functions.
            undo: gives the operators back their stock kernels.
        """
        if not active.functions | active.doubles and not active.composites:
            return
        registration = self._made.get(active.key)
        if registration is None:
            registration = self._made[active.key] = Registration(active)
        undo.at_last(self.reset)
        self._registration = registration
        if cuda.is_initialized():
            registration.register()
        elif not self._queued:
            compat.when_cuda_starts(cuda, self._started)
            self._queued = True

    @property
    def launcher(self) -> Launcher | None:
        """What launches the functions of the open session, once CUDA is in use."""
        found = self._registration
        if found is None or found.launcher.current_device is None:
            return None
        return found.launcher

    def forget(self) -> None:
        """Make the kernels anew for the next session."""
        self._made.clear()

    def reset(self) -> None:
        """Give the operators back their stock kernels, whatever sessions are open."""
        self._registration = None
        dispatcher.overrides.serve("cuda", None)

    def _started(self) -> None:
        if self._registration is not None:
            self._registration.register()


#: The overrides of this process.
cuda_operators: Final = CudaOperators()

CHANGES: Final[dict[str, Change]] = {"torch.cuda": cuda_operators.change}


def refuse_capture() -> None:
    """Raise if the calling thread is capturing a CUDA graph.

    Raises:
        SessionBusyError: it is.
    """
    import torch

    cuda: Any = torch.cuda
    if cuda.is_initialized() and cuda.is_current_stream_capturing():
        raise SessionBusyError(
            "A CUDA graph is being captured: a session opened now would give the graph some "
            "kernels of one library and some of another. Open the session before the capture, "
            "or when it has ended. Nothing was changed."
        )


def check(launcher: Launcher) -> None:
    """Check that a kernel compiled by Triton gives the UDF's bits.

    Raises:
        SwapError: Triton does not use the session's libdevice; the kernel gives other bits.
    """
    for part in launcher.active.parts:
        for function, dtype in part.functions:
            if function in table.BARE and dtype == "float32":
                _check_one(launcher, part.build, function)
                return


def _check_one(launcher: Launcher, build: Any, function: str) -> None:
    import torch

    known = canary.case(build, function, "float32")
    x = known.layouts["contiguous"][0].cuda()
    y = torch.empty_like(x)
    try:
        pointwise.run_dense(launcher, function, (x,), y, plain(function))
    except Exception as error:
        if "__nv_udf_" not in str(error):
            raise
        raise SwapError(
            f"Triton cannot link the functions of {build.library.name!r} into a kernel: "
            f"{error}\nIt does not use the libdevice that the session gives it. Unset your own "
            "knobs.nvidia.libdevice_path, or report triton's version."
        ) from error
    got = y.cpu()
    different = got.view(torch.int32) != known.encodings
    if bool(different.any()):
        at = int(different.to(torch.uint8).argmax())
        raise SwapError(
            f"The Triton kernel of {function} for eager CUDA gives "
            f"{float(got[at]).hex()} for {float(known.layouts['contiguous'][0][at]).hex()} "
            f"where the UDF gives {float(known.expected[at]).hex()}: Triton did not link the "
            "library of the session, or changed its results. Report triton's version, and "
            "keep CUDA tensors out of the session."
        )
