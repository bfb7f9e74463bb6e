# SPDX-License-Identifier: Apache-2.0
"""Kernels for the dispatcher: operators that map elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from pytest_udftorch.swap.cuda.launcher import Launcher, handled, on_device, stock_kernel
from pytest_udftorch.swap.library import sixteen
from pytest_udftorch.swap.operators.calls import WHOLE, Applied, plain
from pytest_udftorch.swap.operators.row import Operator, Pointwise
from pytest_udftorch.swap.operators.scalars import MULTIPLIED_OUT
from pytest_udftorch.swap.operators.table import BARE
from pytest_udftorch.swap.operators.tensors import alignment, alike, is_dense, may_share

#: Elements of a program, its warps, and the most registers of a thread (0: as many as the
#: compiler takes). Chosen by measurements with 2^26 elements on an H200.
_SETTINGS: Final = {
    "exp": (1024, 2, 80),
    "exp2": (1024, 4, 40),
    "expm1": (1024, 4, 40),
    "log": (1024, 4, 48),
    "log2": (1024, 4, 48),
    "log10": (1024, 4, 48),
    "log1p": (1024, 2, 72),
    "sin": (1024, 2, 80),
    "cos": (1024, 4, 48),
    "tan": (4096, 8, 64),
    "sinh": (1024, 2, 72),
    "cosh": (1024, 2, 72),
    "asin": (1024, 2, 64),
    "acos": (1024, 2, 64),
    "atan": (1024, 2, 64),
    "asinh": (1024, 4, 56),
    "acosh": (2048, 4, 56),
    "atanh": (1024, 2, 64),
    "erf": (1024, 2, 64),
    "erfc": (1024, 2, 72),
    "tanh": (1024, 2, 64),
    "pow": (2048, 4, 80),
    "atan2": (1024, 2, 96),
    "sigmoid": (1024, 2, 64),
    "silu": (1024, 2, 64),
    "elu": (2048, 4, 80),
    "elu_of_ones": (1024, 2, 64),
    "gelu_erf": (1024, 2, 72),
    "softplus_of_one": (2048, 4, 80),
    "logsigmoid": (2048, 4, 80),
}
#: For all other formulas.
_SETTING: Final = (1024, 4, 0)

#: Elements of a program that looks results up, its warps, and bytes of an element.
_LOOKUP: Final = 1024
_LOOKUP_WARPS: Final = 4
_SHORT: Final = 2

#: For kernels that count: counting costs more for each program than for each element.
_COUNTING_SETTING: Final = (2048, 4, 0)

#: With fewer elements than this, large blocks would leave multiprocessors idle.
FEW: Final = 1 << 18
_FEW_SETTING: Final = (512, 4, 0)


def run_dense(launcher: Launcher, operator: str, inputs: tuple[Any, ...], y: Any,
               formula: Applied) -> None:  # fmt: skip
    """Compute ``y`` from dense tensors of the same dtype and strides."""
    n = y.numel()
    if n == 0:
        return
    index = y.get_device()
    if index != launcher.current_device():
        with on_device(y.device):
            run_dense(launcher, operator, inputs, y, formula)
        return
    row = launcher.row(index, formula[0], operator)
    if len(inputs) == 1 and y.element_size() == _SHORT:
        table = _table(launcher, formula[0], y)
        if table is not None:
            _look_up(launcher, row, inputs[0], y, *table)
            return
    launch_dense(launcher, row, inputs, y, formula)


def _table(launcher: Launcher, function: str, y: Any) -> Any:
    """Return a formula's results for all numbers of ``y``'s dtype, or None.

    They are twofold: as encodings of that dtype, and as float32 before they are rounded.

    None stands for a formula that the rounding of float32 results gives rightly.
    """
    name = function.removeprefix(WHOLE)
    library = launcher.corrected.get(name)
    if library is None or (name == function and name not in BARE):
        return None
    key = function, y.dtype, y.get_device()
    if key not in launcher.tables:
        words = sixteen.words(library, str(y.dtype).removeprefix("torch."))
        at, right = words.get(name, ([], []))
        launcher.tables[key] = _results(launcher, function, y, at, right) if at else None
    return launcher.tables[key]


def _results(launcher: Launcher, function: str, y: Any, at: list[int], right: list[int]) -> Any:
    """Compute all numbers of a dtype, and correct the results of those ``at``."""
    import torch

    with torch.inference_mode(False), torch.no_grad():
        every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
        x = every.to(y.device).view(y.dtype).float()
        wide = torch.empty_like(x)
        launch_dense(launcher, None, (x,), wide, plain(function))
        found = wide.to(y.dtype).view(torch.int16)
        found[torch.tensor(at, device=y.device)] = torch.tensor(
            right, dtype=torch.int32, device=y.device
        ).to(torch.int16)
        return found, wide


def _look_up(launcher: Launcher, row: Any, x: Any, y: Any, table: Any, wide: Any) -> None:
    """Compute ``y`` from a tensor of the same dtype of 16 bits, by a table of results."""
    import torch

    n, kind = y.numel(), str(y.dtype).removeprefix("torch.")
    x, y = x.view(torch.int16), y.view(torch.int16)
    key = ("lookup", kind, alignment((x, y)), n >= 2**31, y.get_device(), row is None)
    block = _LOOKUP
    launcher.launch(
        key, "lookup", -(-n // block), (x, y, table, None if row is None else wide, n, row),
        {"KIND": kind, "BLOCK": block}, _LOOKUP_WARPS,
    )  # fmt: skip


def launch_dense(launcher: Launcher, row: Any, inputs: tuple[Any, ...], y: Any,
                 formula: Applied) -> None:  # fmt: skip
    """Compute ``y`` on the current GPU, and count in a row of ``counters`` unless it is None."""
    function, a, b, c = formula
    n, index = y.numel(), y.get_device()
    if n < FEW:
        block, warps, registers = _FEW_SETTING
    elif row is not None:
        block, warps, registers = _COUNTING_SETTING
    else:
        block, warps, registers = _SETTINGS.get(function, _SETTING)
    # Triton specialises on aligned pointers and on 64-bit numbers.
    key = (function, y.dtype, alignment((*inputs, y)), n >= 2**31, index, block, row is None)
    launcher.launch(
        key, "unary" if len(inputs) == 1 else "binary", -(-n // block),
        (*inputs, y, n, a, b, c, row), {"F": function, "BLOCK": block}, warps, registers,
    )  # fmt: skip


def overwrite(launcher: Launcher, operator: str, inputs: tuple[Any, ...], y: Any,
              formula: Applied) -> None:  # fmt: skip
    """Overwrite the values that the stock operator has computed.

    The inputs may have any dtypes, strides and broadcastable shapes; ``y`` may have any strides.
    """
    import torch

    dtype = common_dtype(inputs)
    if dtype not in handled():
        return
    moved = [
        x.to(device=y.device, dtype=dtype).expand(y.shape).contiguous() for x in inputs
    ]  # fmt: skip
    direct = y.dtype == dtype and y.is_contiguous()
    result = y if direct else torch.empty(y.shape, dtype=dtype, device=y.device)
    run_dense(launcher, operator, tuple(moved), result, formula)
    if not direct:
        y.copy_(result)


def common_dtype(inputs: tuple[Any, ...]) -> Any:
    """Return the dtype that the stock operator of one tensor or two computes in."""
    import torch

    dtype = inputs[0].dtype
    if len(inputs) == 2:
        dtype = torch.result_type(*inputs)
    if not (dtype.is_floating_point or dtype.is_complex):
        dtype = torch.get_default_dtype()
    return dtype


def pointwise_kernels(launcher: Launcher, op: Pointwise) -> dict[str, Callable[..., Any]]:
    """Return overload -> kernel of an operator that maps elements."""
    import torch

    dtypes = handled()
    stock = stock_kernel(op.functional)
    scalars_at = [i for i in range(8) if i not in op.places]

    def split(
        args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], Applied | None]:
        tensors = tuple(args[i] for i in op.places)
        return tensors, op.formula(*(args[i] for i in scalars_at if i < len(args)), **kwargs)

    def functional(*args: Any, **kwargs: Any) -> Any:
        tensors, formula = split(args, kwargs)
        if formula is None:
            return stock(*args, **kwargs)
        first = tensors[0]
        if first.dtype in dtypes and alike(tensors):
            y = torch.empty_like(first)
            run_dense(launcher, op.name, tensors, y, formula)
            return y
        y = stock(*args, **kwargs)
        overwrite(launcher, op.name, tensors, y, formula)
        return y

    found: dict[str, Callable[..., Any]] = {op.functional: functional}
    if len(op.places) == 1 and not op.has_scalars:
        found[op.functional] = _short(launcher, op, stock)
    if op.out is not None:
        stock_out = stock_kernel(op.out[0])
        out_name = op.out[1]

        def into(*args: Any, **kwargs: Any) -> Any:
            out = kwargs.pop(out_name)
            tensors, formula = split(args, kwargs)
            if formula is None:
                return stock_out(*args, **kwargs, **{out_name: out})
            # The stock kernel checks the call, but must not overwrite inputs that we read later.
            kept = tuple(t.clone() if may_share(t, out) else t for t in tensors)
            stock_out(*args, **kwargs, **{out_name: out})
            overwrite(launcher, op.name, kept, out, formula)
            return out

        def out_kernel(*args: Any, **kwargs: Any) -> Any:
            out = kwargs[out_name]
            tensors = tuple(args[i] for i in op.places)
            if (
                out.dtype in dtypes
                and alike((out, *tensors))
                and not any(may_share(t, out) for t in tensors)
            ):
                others = {k: v for k, v in kwargs.items() if k != out_name}
                if (formula := split(args, others)[1]) is not None:
                    run_dense(launcher, op.name, tensors, out, formula)
                    return out
            return into(*args, **kwargs)

        found[op.out[0]] = out_kernel
    if op.inplace:
        stock_inplace = stock_kernel(op.inplace)

        def inplace(*args: Any, **kwargs: Any) -> Any:
            tensors, formula = split(args, kwargs)
            if formula is None:
                return stock_inplace(*args, **kwargs)
            x = tensors[0]
            if (
                x.dtype in dtypes
                and alike(tensors)
                and not any(may_share(t, x) for t in tensors[1:])
            ):
                run_dense(launcher, op.name, tensors, x, formula)
                return x
            kept = tuple(t.clone() for t in tensors)
            stock_inplace(*args, **kwargs)
            overwrite(launcher, op.name, kept, x, formula)
            return x

        found[op.inplace] = inplace
        if op.foreach:
            found |= _foreach_kernels(found[op.functional], inplace, op.name)
    return found


def _short(launcher: Launcher, op: Pointwise, stock: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return the kernel of an operator without scalars: the shortest path to a launch."""
    import torch

    dtypes = handled()
    formula = op.formula()
    assert formula is not None  # it has no scalars that could make it another operator
    empty_like = torch.empty_like

    def functional(x: Any) -> Any:
        if x.dtype in dtypes and is_dense(x):
            y = empty_like(x)
            run_dense(launcher, op.name, (x,), y, formula)
            return y
        y = stock(x)
        overwrite(launcher, op.name, (x,), y, formula)
        return y

    return functional


def pow_of_lists_kernels(launcher: Launcher, op: Operator) -> dict[str, Callable[..., Any]]:
    """Return overload -> kernel of pow of lists: pow of each tensor.

    Lists that stock refuses go to stock, for its words.
    """
    import torch

    def wrap(name: str) -> Callable[..., Any]:
        stock = stock_kernel(name)
        one: Any = (lambda x, y: x.pow_(y)) if "_." in name else torch.pow

        def kernel(bases: Any, exponents: Any) -> Any:
            given = bases, exponents
            counts = {len(v) for v in given if isinstance(v, list | tuple)}
            count = min(counts)
            if not count or len(counts) > 1:
                return stock(*given)
            of_each = (v if isinstance(v, list | tuple) else [v] * count for v in given)
            found = [one(*pair) for pair in zip(*of_each, strict=True)]
            return None if "_." in name else found

        return kernel

    return {name: wrap(name) for name in op.overloads}


def _foreach_kernels(functional: Callable[..., Any], inplace: Callable[..., Any],
                     name: str) -> dict[str, Callable[..., Any]]:  # fmt: skip
    def several(tensors: Sequence[Any]) -> list[Any]:
        return [functional(t) for t in tensors]

    def several_inplace(tensors: Sequence[Any]) -> None:
        for t in tensors:
            inplace(t)

    return {f"_foreach_{name}": several, f"_foreach_{name}_": several_inplace}


def pow_scalar_kernels(launcher: Launcher, op: Operator) -> dict[str, Callable[..., Any]]:
    """Return overload -> kernel of pow with a number.

    ATen computes some exponents without pow, and these stay stock. For a number as the base, ATen
    calls pow with a tensor that it cannot pass to Python.
    """
    import torch

    def wrap(name: str) -> Callable[..., Any]:
        stock = stock_kernel(name)

        def kernel(x: Any, exponent: Any, **kwargs: Any) -> Any:
            if isinstance(exponent, complex) or float(exponent) in MULTIPLIED_OUT:
                return stock(x, exponent, **kwargs)
            dtype = torch.result_type(x, exponent)
            kept = x.to(dtype, copy=True) if name == "pow_.Scalar" or kwargs else x.to(dtype)
            y = stock(x, exponent, **kwargs)
            if dtype in handled():
                pair = (kept, torch.full_like(kept, exponent))
                overwrite(launcher, op.name, pair, y, plain("pow"))
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


def log_sigmoid_kernels(launcher: Launcher, op: Operator) -> dict[str, Callable[..., Any]]:
    """Return overload -> kernel of log_sigmoid.

    The operator also returns a buffer, which its gradient takes. On CUDA the buffer is empty.
    """
    import torch

    dtypes = handled()
    formulas = dict(zip(("forward", "backward"), map(plain, op.kernels), strict=True))
    if "logsigmoid" in launcher.composites:
        formulas["forward"] = plain(f"{WHOLE}logsigmoid")

    def after(name: str, count: int, outputs: tuple[str, ...]) -> Callable[..., Any]:
        stock = stock_kernel(name)
        formula = formulas["forward" if count == 1 else "backward"]
        operator = name.partition(".")[0]

        def kernel(*args: Any, **kwargs: Any) -> Any:
            inputs = tuple(args[:count])
            if outputs:
                inputs = tuple(
                    t.clone() if any(may_share(t, kwargs[o]) for o in outputs) else t
                    for t in inputs
                )
            result = stock(*args, **kwargs)
            y = result[0] if isinstance(result, tuple) else result
            overwrite(launcher, operator, inputs, y, formula)
            return result

        return kernel

    forward_after = after("log_sigmoid_forward", 1, ())
    backward_after = after("log_sigmoid_backward", 2, ())

    def forward(x: Any) -> Any:
        if x.dtype not in dtypes or not is_dense(x):
            return forward_after(x)
        y = torch.empty_like(x)
        run_dense(launcher, "log_sigmoid_forward", (x,), y, formulas["forward"])
        return y, x.new_empty(0)

    def backward(grad: Any, x: Any, buffer: Any) -> Any:
        if x.dtype not in dtypes or not alike((grad, x)):
            return backward_after(grad, x, buffer)
        gx = torch.empty_like(grad)
        run_dense(launcher, "log_sigmoid_backward", (grad, x), gx, formulas["backward"])
        return gx

    return {
        "log_sigmoid_forward": forward,
        "log_sigmoid_forward.output": after("log_sigmoid_forward.output", 1, ("output", "buffer")),
        "log_sigmoid_backward": backward,
        "log_sigmoid_backward.grad_input": after(
            "log_sigmoid_backward.grad_input", 2, ("grad_input",)
        ),
    }
