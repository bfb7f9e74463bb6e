"""Eager CUDA under a session: operators overridden through the dispatcher.

ATen's CUDA kernels are machine code, so a session that swaps functions registers kernels of
its own (``cuda_kernels``, written in Triton) for the operators made of them, under the
dispatch key CUDA, and takes them back on exit. Autograd, autocast and CUDA graphs lie above
that key and see nothing of it.

The kernels handle float32, bfloat16 and half in memory without gaps. Whatever else an
operator can be called with goes to the stock kernel first, so that promotion, strides,
resizing, warnings and errors are torch's own; where the function is one of float32, its
values are then overwritten. Other dtypes (float64, complex) stay stock.

Nothing is registered before the process uses CUDA, and triton is imported with the first call.

The functions of a profiled session count in rows of ``cuda_counters``.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pytest_udftorch.compiled.follower import Active, Change
from pytest_udftorch.errors import (
    CudaGraphCaptureError,
    LibdeviceError,
    SwapMismatchError,
    SwapReachedNothingError,
)
from pytest_udftorch.overrides import canary, dispatcher

#: Functions of one argument whose operator has the same name.
BARE: Final = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "sinh",
    "cosh", "tanh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "erf", "erfc",
)  # fmt: skip

#: Those, and sigmoid, that have operators on lists of tensors.
_FOREACH: Final = (*(f for f in BARE if f not in {"exp2", "asinh", "acosh", "atanh"}), "sigmoid")

#: Elements of a program, of 4 warps, and the most registers of a thread (0: as many as the
#: compiler takes), measured on an H200 with 2^26 elements; and for others.
_SETTINGS: Final = {
    "exp": (1024, 40),
    "exp2": (1024, 40),
    "expm1": (1024, 40),
    "log": (1024, 48),
    "log2": (1024, 48),
    "log10": (1024, 48),
    "log1p": (2048, 64),
    "cos": (1024, 48),
    "acos": (1024, 48),
    "erf": (2048, 0),
    "erfc": (2048, 0),
    "tanh": (2048, 0),
    "sigmoid": (2048, 64),
    "elu_of_ones": (1024, 48),
    "gelu_erf": (2048, 0),
}
_SETTING: Final = (1024, 0)
_WARPS: Final = 4

#: Of kernels that count, whose cost is one of each program more than of its elements.
_COUNTING_SETTING: Final = (2048, 0)

#: Below so many elements a GPU has more multiprocessors than there are large blocks.
_FEW: Final = 1 << 18
_FEW_SETTING: Final = (512, 0)

#: Options of all kernels; see cuda_kernels.
_OPTIONS: Final[dict[str, Any]] = {"enable_fp_fusion": False}

#: Elements of a program that has several short rows, and of a thread in any.
_ROW_ELEMENTS: Final = 512
_ROW_PER_THREAD: Final = 16

#: Rows up to this length stay in registers.
_ROW_IN_REGISTERS: Final = 32768

#: A formula in cuda_kernels and its three scalars.
Formula = tuple[str, float, float, float]


def _f32(value: Any) -> float:
    return ctypes.c_float(float(value)).value


def _fixed(formula: str) -> Callable[..., Formula]:
    return lambda: (formula, 0.0, 0.0, 0.0)


def _elu(alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Formula:
    scalars = _f32(_f32(alpha) * _f32(scale)), _f32(scale), _f32(input_scale)
    return "elu_of_ones" if scalars == (1.0, 1.0, 1.0) else "elu", *scalars


def _elu_backward(alpha: Any, scale: Any, input_scale: Any, is_result: bool) -> Formula:
    _, a, b, c = _elu(alpha, scale, input_scale)
    return f"elu_backward_{'result' if is_result else 'input'}", a, b, c


def _gelu(*, approximate: str = "none") -> Formula:
    return {"none": "gelu_erf", "tanh": "gelu_tanh"}[approximate], 0.0, 0.0, 0.0


def _gelu_backward(*, approximate: str = "none") -> Formula:
    return f"gelu_backward_{'erf' if approximate == 'none' else approximate}", 0.0, 0.0, 0.0


def _softplus(beta: Any = 1, threshold: Any = 20) -> Formula:
    return "softplus", _f32(beta), _f32(threshold), 0.0


def _softplus_backward(beta: Any, threshold: Any) -> Formula:
    return "softplus_backward", _f32(beta), _f32(threshold), 0.0


@dataclass(frozen=True)
class Pointwise:
    """An operator that maps elements.

    Attributes:
        name: of the operator in ATen.
        needs: the functions in it.
        arity: how many tensors it takes.
        formula: from the operator's scalars to the formula.
        out: overload that writes into a tensor of the caller's, and that tensor's name;
            empty if there is none.
        inplace: the operator that writes into its first tensor; empty if there is none.
        places: positions of the tensors among the arguments.
        overload: of the one that returns a new tensor; empty for the default one.
    """

    name: str
    needs: frozenset[str]
    arity: int
    formula: Callable[..., Formula]
    out: tuple[str, str] | None
    inplace: str = ""
    places: tuple[int, ...] = (0,)
    overload: str = ""

    @property
    def functional(self) -> str:
        """The overload's name."""
        return f"{self.name}.{self.overload}" if self.overload else self.name


def _unary(name: str, needs: Sequence[str], formula: Callable[..., Formula] | None = None,
           *, inplace: bool = True) -> Pointwise:  # fmt: skip
    return Pointwise(
        name, frozenset(needs), 1, formula or _fixed(name), (f"{name}.out", "out"),
        f"{name}_" if inplace else "",
    )  # fmt: skip


def _backward(name: str, needs: Sequence[str], formula: Callable[..., Formula] | None = None,
              places: tuple[int, int] = (0, 1), *, out: bool = True) -> Pointwise:  # fmt: skip
    return Pointwise(
        name, frozenset(needs), 2, formula or _fixed(name),
        (f"{name}.grad_input", "grad_input") if out else None, places=places,
    )  # fmt: skip


POINTWISE: Final[tuple[Pointwise, ...]] = (
    *(_unary(name, (name,)) for name in BARE),
    _unary("sigmoid", ("exp",)),
    _unary("silu", ("exp",)),
    _unary("elu", ("expm1",), _elu),
    _unary("gelu", ("erf", "tanh"), _gelu),
    _unary("softplus", ("exp", "log1p"), _softplus, inplace=False),
    _unary("mish", ("exp", "log1p", "tanh")),
    _backward("silu_backward", ("exp",)),
    _backward("elu_backward", ("exp",), _elu_backward, (0, 5)),
    _backward("gelu_backward", ("exp", "erf", "tanh"), _gelu_backward),
    _backward("softplus_backward", ("exp",), _softplus_backward),
    _backward("mish_backward", ("exp", "log1p", "tanh"), out=False),
    Pointwise("atan2", frozenset({"atan2"}), 2, _fixed("atan2"), ("atan2.out", "out"), "atan2_",
              (0, 1)),
    Pointwise("hypot", frozenset({"hypot"}), 2, _fixed("hypot"), ("hypot.out", "out"), "hypot_",
              (0, 1)),
    Pointwise("pow", frozenset({"pow"}), 2, _fixed("pow"), ("pow.Tensor_Tensor_out", "out"),
              "pow_.Tensor", (0, 1), "Tensor_Tensor"),
)  # fmt: skip


_SOFTMAX: Final = {
    "_softmax": frozenset(("exp",)),
    "_log_softmax": frozenset(("exp", "log")),
    "_log_softmax_backward_data": frozenset(("exp",)),
}
_LOG_SIGMOID: Final = (
    "log_sigmoid_forward", "log_sigmoid_forward.output", "log_sigmoid_backward",
    "log_sigmoid_backward.grad_input",
)  # fmt: skip
_POW_OF_NUMBERS: Final = (
    "pow.Tensor_Scalar", "pow.Tensor_Scalar_out", "pow_.Scalar", "pow.Scalar", "pow.Scalar_out",
)  # fmt: skip


def reached() -> dict[str, frozenset[str]]:
    """Return every overload of ATen's that can be overridden -> the functions it holds."""
    found: dict[str, frozenset[str]] = {}
    for op in POINTWISE:
        names = (op.functional, op.inplace, op.out[0] if op.out else "")
        found |= dict.fromkeys(filter(None, names), op.needs)
        if op.name in _FOREACH:
            found |= dict.fromkeys((f"_foreach_{op.name}", f"_foreach_{op.name}_"), op.needs)
    for name, needs in _SOFTMAX.items():
        found |= {name: needs, f"{name}.out": needs}
    found |= dict.fromkeys(_LOG_SIGMOID, frozenset(("exp", "log1p")))
    return found | dict.fromkeys(_POW_OF_NUMBERS, frozenset(("pow",)))


def overloads(functions: frozenset[str]) -> list[str]:
    """Return the names of ATen's overloads that a session of these functions overrides."""
    return sorted(name for name, needs in reached().items() if needs & functions)


# What is registered -------------------------------------------------------------------


class _State:
    """The kernels of one set of active functions, from their registration on."""

    def __init__(self, active: Active) -> None:
        self.active = active
        self.launchers: dict[Any, Any] = {}
        self.checked = False
        #: Functions that a profiled session counts.
        self.counted = frozenset(
            name
            for part in active.parts
            if part.build.profiled
            for name, dtype in part.functions
            if dtype == "float32"
        )
        self._wanted: dict[str, frozenset[str]] = {}
        self._rows: Any = None  # cuda_counters, which brings numpy, where it is needed
        self._checking = False
        self._library: Any = None
        self._hooks: Any = None
        self._stream: Any = None
        self._device: Any = None

    def register(self) -> None:
        """Override the operators that hold one of the functions.

        Those that have a UDF at operator level are left to it.
        """
        import torch

        if self.counted:
            self._rows = importlib.import_module("pytest_udftorch.cuda.counters")
            self._rows.counters.prepare(torch.cuda.current_device())
        own = {o.spec.operator for o in dispatcher.overrides.registered() if o.spec.key == "CUDA"}
        kernels = _kernels(self, self.active.functions)
        self._library = dispatcher.implement(
            "aten", "CUDA", {n: k for n, k in kernels.items() if f"aten::{n}" not in own}
        )

    def close(self) -> None:
        """Give the operators back their stock kernels."""
        library, self._library = self._library, None
        if library is not None:
            library._destroy()

    def row(self, device: int, kernel: str, operator: str) -> Any:
        """Return the row of ``cuda_counters`` that a launch counts in, or None.

        Args:
            device: index of the current GPU.
            kernel: a key of ``cuda_counters.CALLS``.
            operator: ATen's name without ``aten::``.
        """
        if self._rows is None or not self._rows.counters.active or self._checking:
            return None
        wanted = self._wanted.get(kernel)
        if wanted is None:
            wanted = self._wanted[kernel] = self._rows.layout(kernel, self.counted)
        return self._rows.counters.row(device, kernel, wanted, operator) if wanted else None

    def launch(self, key: Any, kernel: str, grid: int, arguments: tuple[Any, ...],
               constants: dict[str, Any], warps: int, registers: int = 0) -> None:  # fmt: skip
        """Launch a kernel of ``cuda_kernels`` on the current device and stream.

        Args:
            key: of all that Triton specialises this kernel on.
            kernel: its name.
            grid: how many programs.
            arguments: in order.
            constants: compile-time arguments by name, in order; ``F`` by its name.
            warps: of a program.
            registers: the most that a thread may have, or 0.
        """
        try:
            run, fixed, rest = self.launchers[key]
        except KeyError:
            if not self.checked:
                self._check()
            self._compile(key, kernel, grid, arguments, constants, warps, registers)
            return
        # As triton.runtime.jit launches a kernel that it has found in its cache.
        hooks = self._hooks
        enter = hooks.launch_enter_hook
        stream = self._stream(self._device())
        compiled, function, packed = fixed
        metadata = (
            None
            if enter is None
            else compiled.launch_metadata((grid, 1, 1), stream, *arguments, *rest)
        )
        run(grid, 1, 1, stream, function, packed, metadata, enter, hooks.launch_exit_hook,
            *arguments, *rest)  # fmt: skip

    def _compile(self, key: Any, kernel: str, grid: int, arguments: tuple[Any, ...],
                 constants: dict[str, Any], warps: int, registers: int) -> None:  # fmt: skip
        import torch

        kernels = importlib.import_module("pytest_udftorch.cuda.kernels")
        self._hooks = importlib.import_module("triton").knobs.runtime
        self._stream = torch._C._cuda_getCurrentRawStream
        self._device = torch._C._cuda_getDevice
        rest = tuple(getattr(kernels, v) if k == "F" else v for k, v in constants.items())
        jit = getattr(kernels, kernel)
        options = {**_OPTIONS, "maxnreg": registers} if registers else _OPTIONS
        compiled = jit[(grid,)](*arguments, *rest, num_warps=warps, **options)
        fixed = compiled, compiled.function, compiled.packed_metadata
        self.launchers[key] = compiled.run, fixed, rest

    def _check(self) -> None:
        """See once that Triton compiles the UDF's bits and not the stock function's."""
        import torch

        try:
            importlib.import_module("triton")
        except ImportError as error:
            raise LibdeviceError(
                "A session swaps functions of CUDA operators by Triton kernels, and triton "
                f"cannot be imported: {error}. Install it (pip install triton), or leave CUDA "
                "tensors out of the session."
            ) from error
        if torch.cuda.is_current_stream_capturing():
            return  # A capture cannot wait for a result.
        self.checked = self._checking = True
        try:
            for part in self.active.parts:
                for function, dtype in part.functions:
                    if function in BARE and dtype == "float32":
                        self._check_one(torch, part.build, function)
                        return
        except BaseException:
            self.checked = False
            raise
        finally:
            self._checking = False

    def _check_one(self, torch: Any, build: Any, function: str) -> None:
        known = canary.case(build, function, "float32")
        x = known.layouts["contiguous"][0].cuda()
        y = torch.empty_like(x)
        try:
            _run_dense(self, function, (x,), y, (function, 0.0, 0.0, 0.0))
        except Exception as error:
            if "__nv_udf_" not in str(error):
                raise
            raise SwapReachedNothingError(
                f"Triton cannot link the functions of {build.library.name!r} into a kernel: "
                f"{error}\nIt does not use the libdevice that the session gives it. Unset "
                "knobs.nvidia.libdevice_path of your own, and report triton's version."
            ) from error
        got = y.cpu()
        different = got.view(torch.int32) != known.encodings
        if bool(different.any()):
            at = int(different.to(torch.uint8).argmax())
            raise SwapMismatchError(
                f"The Triton kernel of {function} for eager CUDA gives "
                f"{float(got[at]).hex()} for {float(known.layouts['contiguous'][0][at]).hex()} "
                f"where the UDF gives {float(known.expected[at]).hex()}: Triton did not link the "
                "library of the session, or compiled it otherwise. Report triton's version, and "
                "keep CUDA tensors out of the session."
            )


_lock = threading.Lock()
_waiting: _State | None = None
_queued = False


def _set_operators(cuda: Any, active: Active) -> Callable[[], None]:
    """Override the operators now, or when the process begins to use CUDA."""
    global _waiting, _queued
    if not active.functions or not hasattr(cuda, "_lazy_call"):
        return lambda: None
    state = _State(active)
    with _lock:
        _waiting = state
        if cuda.is_initialized():
            state.register()
        elif not _queued:
            _queued = True
            cuda._lazy_call(_started)

    def restore() -> None:
        global _waiting
        with _lock:
            if _waiting is state:
                _waiting = None
            state.close()

    return restore


def _started() -> None:
    with _lock:
        if _waiting is not None:
            _waiting.register()


def refuse_capture() -> None:
    """Raise if the calling thread is capturing a CUDA graph.

    Raises:
        CudaGraphCaptureError: it is.
    """
    import torch

    cuda: Any = torch.cuda
    if cuda.is_initialized() and cuda.is_current_stream_capturing():
        raise CudaGraphCaptureError(
            "A CUDA graph is being captured: a session opened now would give the graph some "
            "kernels of one library and some of another. Open the session before the capture, "
            "or when it has ended. Nothing was changed."
        )


# Kernels for the dispatcher -----------------------------------------------------------


def _stock(name: str) -> Callable[..., Any]:
    import torch

    kernel = torch.library.get_kernel(f"aten::{name}", "CUDA")
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)

    def call(*args: Any, **kwargs: Any) -> Any:
        return kernel.call_boxed(keys, *args, **kwargs)

    return call


def _kernels(state: _State, functions: frozenset[str]) -> dict[str, Callable[..., Any]]:
    """Return overload -> kernel for every operator that holds one of the functions."""
    found: dict[str, Callable[..., Any]] = {}
    for op in POINTWISE:
        if op.needs & functions:
            found |= _pointwise_kernels(state, op)
    for name in _FOREACH:
        if name in found:
            found |= _foreach_kernels(found[name], found[f"{name}_"], name)
    if functions & {"exp", "log1p"}:
        found |= _log_sigmoid_kernels(state)
    if _SOFTMAX["_softmax"] & functions:
        found |= _softmax_kernels(state, "_softmax", log=False)
    if _SOFTMAX["_log_softmax"] & functions:
        found |= _softmax_kernels(state, "_log_softmax", log=True)
    if _SOFTMAX["_log_softmax_backward_data"] & functions:
        found |= _log_softmax_backward_kernels(state)
    if "pow" in functions:
        found |= _pow_scalar_kernels(state)
    return found


def _handled() -> frozenset[Any]:
    import torch

    return frozenset((torch.float32, torch.bfloat16, torch.float16))


def _is_dense(tensor: Any) -> bool:
    """Return whether the elements fill their memory, each once, in any order of dimensions."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


@contextlib.contextmanager
def _on(device: Any) -> Iterator[None]:
    import torch

    with torch.cuda.device(device):
        yield


def _run_dense(state: _State, operator: str, inputs: tuple[Any, ...], y: Any,
               formula: Formula) -> None:  # fmt: skip
    """Compute dense tensors of one dtype and the same strides for an operator."""
    import torch

    n = y.numel()
    if n == 0:
        return
    index = y.get_device()
    if index != torch._C._cuda_getDevice():
        with _on(y.device):
            _run_dense(state, operator, inputs, y, formula)
        return
    function, a, b, c = formula
    address = y.data_ptr()
    for x in inputs:
        address |= x.data_ptr()
    row = state.row(index, function, operator)
    if n < _FEW:
        block, registers = _FEW_SETTING
    elif row is not None:
        block, registers = _COUNTING_SETTING
    else:
        block, registers = _SETTINGS.get(function, _SETTING)
    # Triton tells aligned pointers and 64-bit numbers from others.
    key = (function, y.dtype, address & 15 == 0, n >= 2**31, index, block, row is None)
    state.launch(
        key, "unary" if len(inputs) == 1 else "binary", -(-n // block),
        (*inputs, y, n, a, b, c, row), {"F": function, "BLOCK": block}, _WARPS, registers,
    )  # fmt: skip


def _overwrite(state: _State, op: Pointwise, inputs: tuple[Any, ...], y: Any,
               formula: Formula) -> None:  # fmt: skip
    """Put the function's values where the stock operator has put its own.

    Inputs of any dtype, strides and broadcastable shapes; ``y`` of any strides.
    """
    import torch

    dtype = _common(inputs)
    if dtype not in _handled():
        return
    moved = [
        x.to(device=y.device, dtype=dtype).expand(y.shape).contiguous() for x in inputs
    ]  # fmt: skip
    direct = y.dtype == dtype and y.is_contiguous()
    result = y if direct else torch.empty(y.shape, dtype=dtype, device=y.device)
    _run_dense(state, op.name, tuple(moved), result, formula)
    if not direct:
        y.copy_(result)


def _common(inputs: tuple[Any, ...]) -> Any:
    """Return the dtype that the stock operator computes in."""
    import torch

    dtype = inputs[0].dtype
    if len(inputs) == 2:
        dtype = torch.result_type(*inputs)
    if not (dtype.is_floating_point or dtype.is_complex):
        dtype = torch.get_default_dtype()
    return dtype


def _pointwise_kernels(state: _State, op: Pointwise) -> dict[str, Callable[..., Any]]:
    import torch

    handled = _handled()
    stock = _stock(op.functional)
    scalars_at = [i for i in range(8) if i not in op.places]

    def split(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], Formula]:
        tensors = tuple(args[i] for i in op.places)
        return tensors, op.formula(*(args[i] for i in scalars_at if i < len(args)), **kwargs)

    def functional(*args: Any, **kwargs: Any) -> Any:
        tensors, formula = split(args, kwargs)
        first = tensors[0]
        if first.dtype in handled and _alike(tensors):
            y = torch.empty_like(first)
            _run_dense(state, op.name, tensors, y, formula)
            return y
        y = stock(*args, **kwargs)
        _overwrite(state, op, tensors, y, formula)
        return y

    found: dict[str, Callable[..., Any]] = {op.functional: functional}
    if op.arity == 1 and len(op.needs) == 1 and op.name in (*BARE, "sigmoid", "silu"):
        found[op.functional] = _short(state, op, stock)
    if op.out is not None:
        stock_out = _stock(op.out[0])
        out_name = op.out[1]

        def into(*args: Any, **kwargs: Any) -> Any:
            out = kwargs.pop(out_name)
            tensors, formula = split(args, kwargs)
            # The stock kernel judges the call; it must not spoil what we compute from.
            kept = tuple(t.clone() if _may_share(t, out) else t for t in tensors)
            stock_out(*args, **kwargs, **{out_name: out})
            _overwrite(state, op, kept, out, formula)
            return out

        def out_kernel(*args: Any, **kwargs: Any) -> Any:
            out = kwargs[out_name]
            tensors = tuple(args[i] for i in op.places)
            if (
                out.dtype in handled
                and _alike((out, *tensors))
                and not any(_may_share(t, out) for t in tensors)
            ):
                plain = {k: v for k, v in kwargs.items() if k != out_name}
                _run_dense(state, op.name, tensors, out, split(args, plain)[1])
                return out
            return into(*args, **kwargs)

        found[op.out[0]] = out_kernel
    if op.inplace:
        stock_inplace = _stock(op.inplace)

        def inplace(*args: Any, **kwargs: Any) -> Any:
            tensors, formula = split(args, kwargs)
            x = tensors[0]
            if (
                x.dtype in handled
                and _alike(tensors)
                and not any(_may_share(t, x) for t in tensors[1:])
            ):
                _run_dense(state, op.name, tensors, x, formula)
                return x
            kept = tuple(t.clone() for t in tensors)
            stock_inplace(*args, **kwargs)
            _overwrite(state, op, kept, x, formula)
            return x

        found[op.inplace] = inplace
    return found


def _short(state: _State, op: Pointwise, stock: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return the kernel of an operator without scalars; it is the shortest path to a launch."""
    import torch

    handled = _handled()
    formula = op.formula()
    empty_like = torch.empty_like

    def functional(x: Any) -> Any:
        if x.dtype in handled and _is_dense(x):
            y = empty_like(x)
            _run_dense(state, op.name, (x,), y, formula)
            return y
        y = stock(x)
        _overwrite(state, op, (x,), y, formula)
        return y

    return functional


def _alike(tensors: Sequence[Any]) -> bool:
    """Return whether tensors are dense and alike in dtype, device, shape and strides."""
    first = tensors[0]
    for other in tensors[1:]:
        if (
            other.dtype != first.dtype
            or other.device != first.device
            or other.shape != first.shape
            or other.stride() != first.stride()
        ):
            return False
    return _is_dense(first)


def _may_share(a: Any, b: Any) -> bool:
    return bool(a.is_cuda and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr())


def _foreach_kernels(functional: Callable[..., Any], inplace: Callable[..., Any],
                     name: str) -> dict[str, Callable[..., Any]]:  # fmt: skip
    def several(tensors: Sequence[Any]) -> list[Any]:
        return [functional(t) for t in tensors]

    def several_inplace(tensors: Sequence[Any]) -> None:
        for t in tensors:
            inplace(t)

    return {f"_foreach_{name}": several, f"_foreach_{name}_": several_inplace}


def _pow_scalar_kernels(state: _State) -> dict[str, Callable[..., Any]]:
    """Make pow with a number: exponents that ATen computes without pow stay with it.

    With a number as base, ATen would call pow with a tensor that Python cannot be given.
    """
    import torch

    (op,) = (p for p in POINTWISE if p.name == "pow")
    plain = frozenset((0.0, 0.5, 1.0, 2.0, 3.0, -0.5, -1.0, -2.0))

    def wrap(name: str) -> Callable[..., Any]:
        stock = _stock(name)

        def kernel(x: Any, exponent: Any, **kwargs: Any) -> Any:
            if isinstance(exponent, complex) or float(exponent) in plain:
                return stock(x, exponent, **kwargs)
            dtype = torch.result_type(x, exponent)
            kept = x.to(dtype, copy=True) if name == "pow_.Scalar" or kwargs else x.to(dtype)
            y = stock(x, exponent, **kwargs)
            if dtype in _handled():
                pair = (kept, torch.full_like(kept, exponent))
                _overwrite(state, op, pair, y, ("pow", 0.0, 0.0, 0.0))
            return y

        return kernel

    def of_number(base: Any, x: Any, **kwargs: Any) -> Any:
        dtype = torch.result_type(base, x)
        return torch.pow(torch.full((), base, dtype=dtype, device=x.device), x, **kwargs)

    return {
        **{n: wrap(n) for n in ("pow.Tensor_Scalar", "pow.Tensor_Scalar_out", "pow_.Scalar")},
        "pow.Scalar": of_number,
        "pow.Scalar_out": of_number,
    }


def _log_sigmoid_kernels(state: _State) -> dict[str, Callable[..., Any]]:
    """log_sigmoid returns a buffer besides, which CUDA leaves empty, and takes it back."""
    import torch

    handled = _handled()
    formulas = {"forward": _fixed("logsigmoid")(), "backward": _fixed("logsigmoid_backward")()}

    def after(name: str, count: int, outputs: tuple[str, ...]) -> Callable[..., Any]:
        stock = _stock(name)
        formula = formulas["forward" if count == 1 else "backward"]
        op = _unary(name.partition(".")[0], ("exp", "log1p"))

        def kernel(*args: Any, **kwargs: Any) -> Any:
            inputs = tuple(args[:count])
            if outputs:
                inputs = tuple(
                    t.clone() if any(_may_share(t, kwargs[o]) for o in outputs) else t
                    for t in inputs
                )
            result = stock(*args, **kwargs)
            y = result[0] if isinstance(result, tuple) else result
            _overwrite(state, op, inputs, y, formula)
            return result

        return kernel

    forward_after = after("log_sigmoid_forward", 1, ())
    backward_after = after("log_sigmoid_backward", 2, ())

    def forward(x: Any) -> Any:
        if x.dtype not in handled or not _is_dense(x):
            return forward_after(x)
        y = torch.empty_like(x)
        _run_dense(state, "log_sigmoid_forward", (x,), y, formulas["forward"])
        return y, x.new_empty(0)

    def backward(grad: Any, x: Any, buffer: Any) -> Any:
        if x.dtype not in handled or not _alike((grad, x)):
            return backward_after(grad, x, buffer)
        gx = torch.empty_like(grad)
        _run_dense(state, "log_sigmoid_backward", (grad, x), gx, formulas["backward"])
        return gx

    return {
        "log_sigmoid_forward": forward,
        "log_sigmoid_forward.output": after("log_sigmoid_forward.output", 1, ("output", "buffer")),
        "log_sigmoid_backward": backward,
        "log_sigmoid_backward.grad_input": after(
            "log_sigmoid_backward.grad_input", 2, ("grad_input",)
        ),
    }


# Softmax ------------------------------------------------------------------------------


def _power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def _run_rows(state: _State, operator: str, name: str, tensors: tuple[Any, ...], dim: int,
              constants: dict[str, Any]) -> None:  # fmt: skip
    """Run an operator's kernel over the rows along ``dim`` of contiguous tensors of one shape."""
    import torch

    y = tensors[-1]
    if y.numel() == 0:
        return
    index = y.get_device()
    if index != torch._C._cuda_getDevice():
        with _on(y.device):
            _run_rows(state, operator, name, tensors, dim, constants)
        return
    n = y.shape[dim] if y.dim() else 1
    inner = math.prod(y.shape[dim + 1 :]) if y.dim() else 1
    outer = y.numel() // (n * inner)
    address = 0
    for t in tensors:
        address |= t.data_ptr()
    dtypes = tuple(t.dtype for t in tensors)
    short = inner == 1 and n <= _ROW_IN_REGISTERS
    calls = f"{'log_' if constants.get('LOG') else ''}{name}_{'rows' if short else 'tiles'}"
    row = state.row(index, calls, operator)
    shared = (name, dtypes, address & 15 == 0, n % 16 == 0, n == 1, n >= 2**31, index,
              row is None, *constants.values())  # fmt: skip
    if short:
        block = _power_of_two(n)
        rows = max(1, _ROW_ELEMENTS // block)
        warps = min(32, max(1, rows * block // (32 * _ROW_PER_THREAD)))
        state.launch(
            (*shared, block, outer >= 2**31), f"{name}_rows", -(-outer // rows),
            (*tensors, outer, n, row), {**constants, "BLOCK": block, "ROWS": rows}, warps,
        )  # fmt: skip
        return
    columns = min(_power_of_two(inner), 64)
    most = 8192 // columns if inner == 1 else 2048 // columns
    tile = max(min(_power_of_two(n), most), 256 // columns)
    blocks = -(-inner // columns)
    warps = min(16, max(1, tile * columns // 256))
    state.launch(
        (*shared, columns, tile, inner % 16 == 0, inner == 1, inner >= 2**31, blocks >= 2**31),
        f"{name}_tiles", outer * blocks, (*tensors, n, inner, blocks, row),
        {**constants, "TILE": tile, "COLUMNS": columns}, warps,
    )  # fmt: skip


def _softmax_kernels(state: _State, name: str, *, log: bool) -> dict[str, Callable[..., Any]]:
    import torch

    stock, stock_out = _stock(name), _stock(f"{name}.out")
    handled = _handled()

    def fill(x: Any, dim: int, y: Any) -> None:
        direct = y.is_contiguous()
        target = y if direct else torch.empty(y.shape, dtype=y.dtype, device=y.device)
        _run_rows(
            state, name, "softmax", (x.contiguous(), target), dim % max(x.dim(), 1), {"LOG": log}
        )  # fmt: skip
        if not direct:
            y.copy_(target)

    def functional(x: Any, dim: int, half_to_float: bool) -> Any:
        usual = x.dtype in handled and not half_to_float and x.is_contiguous()
        if usual and -x.dim() <= dim < x.dim():
            y = torch.empty_like(x)
            fill(x, dim, y)
            return y
        y = stock(x, dim, half_to_float)
        if x.dtype in handled:
            fill(x, dim, y)
        return y

    def into(x: Any, dim: int, half_to_float: bool, *, out: Any) -> Any:
        kept = x.clone() if _may_share(x, out) else x
        stock_out(x, dim, half_to_float, out=out)
        if x.dtype in handled:
            fill(kept, dim, out)
        return out

    return {name: functional, f"{name}.out": into}


def _log_softmax_backward_kernels(state: _State) -> dict[str, Callable[..., Any]]:
    import torch

    name = "_log_softmax_backward_data"
    stock, stock_out = _stock(name), _stock(f"{name}.out")
    handled = _handled()
    # The dispatcher hands a dtype on as the number that c10::ScalarType gives it.
    codes = {torch.float16: 5, torch.float32: 6, torch.bfloat16: 15}

    def fill(grad: Any, output: Any, dim: int, gx: Any) -> None:
        direct = gx.is_contiguous()
        target = gx if direct else torch.empty(gx.shape, dtype=gx.dtype, device=gx.device)
        _run_rows(
            state, name, "log_softmax_backward", (grad.contiguous(), output.contiguous(), target),
            dim % max(grad.dim(), 1), {},
        )  # fmt: skip
        if not direct:
            gx.copy_(target)

    def functional(grad: Any, output: Any, dim: int, input_dtype: Any) -> Any:
        if (
            output.dtype in handled
            and input_dtype in (output.dtype, codes[output.dtype])
            and _alike((grad, output))
            and grad.is_contiguous()
            and -grad.dim() <= dim < grad.dim()
        ):
            gx = torch.empty_like(grad)
            fill(grad, output, dim, gx)
            return gx
        gx = stock(grad, output, dim, input_dtype)
        if output.dtype in handled:
            fill(grad, output, dim, gx)
        return gx

    def into(grad: Any, output: Any, dim: int, input_dtype: Any, *, out: Any) -> Any:
        kept = [t.clone() if _may_share(t, out) else t for t in (grad, output)]
        stock_out(grad, output, dim, input_dtype, out=out)
        if output.dtype in handled:
            fill(kept[0], kept[1], dim, out)
        return out

    return {name: functional, f"{name}.out": into}


CHANGES: Final[dict[str, Change]] = {"torch.cuda": _set_operators}
