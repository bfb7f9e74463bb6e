# SPDX-License-Identifier: Apache-2.0
"""UDFs of whole operators in Python, as the dispatcher calls them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pytest_udftorch.base import compat
from pytest_udftorch.errors import OperatorError, SessionStateError
from pytest_udftorch.swap.native.runtime import runtime
from pytest_udftorch.swap.overrides import tape
from pytest_udftorch.swap.overrides.dispatcher import Frame, Role, Spec, thread
from pytest_udftorch.swap.overrides.schemas import overload, schema, written_keyword
from pytest_udftorch.swap.overrides.switchboard import Target, native, stock_kernel, switchboard

# A union of types is made anew wherever it stands.
_NUMBERS: Final = (int, float, complex)
_LISTS: Final = (list, tuple)

#: So many layouts of results are kept for each override.
_LIKES: Final = 256

#: So deep a UDF may be inside of itself: a signal's handler may call what it interrupts.
_DEEP: Final = 8


def stock(*args: Any, **kwargs: Any) -> Any:
    """Call the stock kernel of the operator whose UDF is running, with the UDF's arguments.

    In C++ this is ``udf::stock<function>``.

    Raises:
        SessionStateError: no UDF at operator level that is written in Python is running on this
            thread.
    """
    if not thread.frames:
        raise SessionStateError(
            "pytest_udftorch.stock was called while no UDF at operator level runs on this "
            "thread. It calls the stock kernel of the operator whose UDF torch is calling; use it "
            "only in a UDF."
        )
    frame = thread.frames[-1]
    before, frame.stock = frame.stock, True
    paused = native().pause(1)
    try:
        return frame.override.author_stock(*args, **kwargs)
    finally:
        native().pause(paused)
        frame.stock = before


class PythonOverride:
    """An override by a Python function with the parameters of the overload ``spec.author``.

    The attribute ``above`` of a function, if it has one, takes the target that calls the function,
    and the names of its dtypes; it returns the target to use, whose kernel may be in C++.
    """

    def __init__(self, spec: Spec, function: Callable[..., Any]) -> None:
        import torch

        self.spec = spec
        self.counter = -1
        self.function = function
        self._likes: dict[Any, Any] = {}
        self._tensor = torch.Tensor
        self._dtypes = frozenset(getattr(torch, d) for d in spec.dtypes)
        written = schema(spec.operator)
        arguments = written.arguments
        self._positional = [a for a in arguments if not a.kwarg_only]
        self._keywords = [a for a in arguments if a.kwarg_only]
        self._defaults = [a.default_value for a in self._positional]
        self._keyword_defaults = {a.name: a.default_value for a in self._keywords}
        self._written = [
            a.name for a in arguments if written.returns and a.alias_info and a.alias_info.is_write
        ]
        self._out = written_keyword(spec.author)
        self._maps = torch.Tag.pointwise in overload(spec.meta).tags if spec.meta else False
        self._tensors_at = [i for i, a in enumerate(self._positional) if str(a.type) == "Tensor"]

    def target(self) -> Target:
        """Make what the override's board calls."""
        spec = self.spec
        self._stock = stock_kernel(spec.operator, spec.key)
        self.author_stock = stock_kernel(spec.author, spec.key)
        if spec.meta:
            self._meta = compat.stock_kernel(spec.meta, "Meta")
        made = switchboard.python((spec.operator, spec.key), self._call)
        # A profile counts the calls of the function itself.
        above = getattr(self.function, "above", None) if self.counter < 0 else None
        return made if above is None else above(made, spec.dtypes)

    def recursions(self) -> int:
        """Return how many calls of this thread were refused."""
        return thread.recursions

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        # torch leaves out arguments that have their default value.
        if len(args) < len(self._positional):
            args = (*args, *self._defaults[len(args) :])
        if len(kwargs) < len(self._keywords):
            kwargs = self._keyword_defaults | kwargs
        for i in self._tensors_at:
            if isinstance(args[i], _NUMBERS):
                args = _with_tensors(args, self._tensors_at)
                break
        if self._stays(args, kwargs):
            return self._stock(*args, **kwargs)
        match self.spec.role:
            case Role.FUNCTIONAL:
                like = self._like(args, kwargs)
                result = _empty(like, _tensors(args)[0].device)
                self._run(*args, **kwargs, **{self._out: result})
            case Role.IN_PLACE:
                result = args[0]
                self._into(result, self._like(args, kwargs), args, kwargs, resize=False)
            case Role.OUT:
                result = kwargs.pop(self._out)
                self._into(result, self._like(args, kwargs), args, kwargs, resize=True)
            case Role.AS_IS:
                result = self._run(*args, **kwargs)
                if len(self._written) == 1:  # such an overload returns what it wrote to
                    named = dict(zip((a.name for a in self._positional), args, strict=True))
                    result = (named | kwargs)[self._written[0]]
        return result

    def _stays(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Tell whether a call goes to the stock kernel; refuse a recursion."""
        if self._dtypes and not self._known((*args, *kwargs.values())):
            return True
        own = [f for f in thread.frames if f.override.function is self.function]
        if own and own[-1].stock:
            return True
        if len(own) < _DEEP:
            return False
        thread.recursions += 1
        raise OperatorError(
            f"The UDF of {own[-1].override.spec.operator} called {self.spec.operator}, which it "
            "replaces itself, so it would recurse without end. Call the stock kernel with "
            "pytest_udftorch.stock(...), or write the UDF without this operator."
        )

    def _known(self, values: Sequence[Any]) -> bool:
        """Tell whether all tensors have a dtype of the UDF."""
        tensor, dtypes = self._tensor, self._dtypes
        for value in values:
            if isinstance(value, tensor):
                if value.dtype not in dtypes:
                    return False
            elif isinstance(value, _LISTS):
                for v in value:
                    if isinstance(v, tensor) and v.dtype not in dtypes:
                        return False
        return True

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        cells = runtime().cells if self.counter >= 0 else None
        start = cells.ticks() if cells is not None else 0
        thread.frames.append(Frame(self))
        try:
            result = self.function(*args, **kwargs)
        finally:
            thread.frames.pop()
        if cells is not None:
            tensors = _tensors((*args, *kwargs.values()))
            cells.operator_udf(self.counter, tensors[0].numel() if tensors else 0, start)
        return result

    def _like(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the result without its data, on the device ``meta``."""
        if self._maps and (alike := _alike((*args, *kwargs.values()))) is not None:
            import torch

            return torch.empty_like(alike, device="meta")
        key = _layouts((*args, *kwargs.values()))
        if key is None:
            return self._meta(*map(_to_meta, args), **{n: _to_meta(a) for n, a in kwargs.items()})
        found = self._likes.get(key)
        if found is None:
            found = self._meta(*map(_to_meta, args), **{n: _to_meta(a) for n, a in kwargs.items()})
            if len(self._likes) >= _LIKES:
                self._likes.clear()
            self._likes[key] = found
        return found

    def _into(
        self, to: Any, like: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, resize: bool
    ) -> None:
        """Write the result into a tensor that may have another dtype or size."""
        import torch

        if not resize and like.shape != to.shape:
            raise RuntimeError(
                f"output with shape {list(to.shape)} doesn't match the broadcast shape "
                f"{list(like.shape)}"
            )
        if like.dtype == to.dtype:
            if resize:
                _resize(to, like)
            self._run(*args, **kwargs, **{self._out: to})
            return
        if not torch.can_cast(like.dtype, to.dtype):
            raise RuntimeError(
                f"result type {like.dtype} can't be cast to the desired output type {to.dtype}"
            )
        wide = _empty(like, to.device)
        self._run(*args, **kwargs, **{self._out: wide})
        if resize:
            _resize(to, like)
        to.copy_(wide)


def _tensors(values: Sequence[Any]) -> list[Any]:
    import torch

    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, _LISTS):
            found.extend(v for v in value if isinstance(v, torch.Tensor))
    return found


def _with_tensors(args: tuple[Any, ...], places: Sequence[int]) -> tuple[Any, ...]:
    """Put tensors where torch passes a Python number in place of one, of equal weight in promotion.

    Next to a tensor with dimensions, a tensor without any counts as its kind of number only.
    """
    import torch

    like = max(_tensors(args), key=lambda t: bool(t.dim()), default=None)

    def made(number: Any) -> Any:
        kind: Any = torch.get_default_dtype() if like is None else torch.result_type(like, number)
        if like is not None and like.dim() and kind == like.dtype:
            kind = {float: torch.float64, complex: torch.complex128}.get(type(number))
        return tape.number(number, kind)

    return tuple(
        made(a) if i in places and isinstance(a, _NUMBERS) else a for i, a in enumerate(args)
    )


def _alike(values: Sequence[Any]) -> Any:
    """Return a tensor laid out as an operator on elements lays out its result, if one surely is.

    torch's rules for that are in Python, and their first use imports its compiler.
    """
    import torch

    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    first = tensors[0]
    fits = first.is_floating_point() and not any(isinstance(v, complex) for v in values)
    same = (first.dtype, first.shape, first.stride())
    return first if fits and all((t.dtype, t.shape, t.stride()) == same for t in tensors) else None


def _layouts(values: Sequence[Any]) -> Any:
    """Return what a result's layout depends on if all arguments are tensors, or None if not."""
    import torch

    if not all(isinstance(v, torch.Tensor) for v in values):
        return None
    return tuple((v.shape, v.stride(), v.dtype) for v in values)


def _to_meta(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, list | tuple):
        return [_to_meta(v) for v in value]
    return value


def _empty(like: Any, device: Any) -> Any:
    import torch

    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=device)


def _resize(to: Any, like: Any) -> None:
    """Resize a tensor as torch's own kernels do; if the size changes, so do the strides."""
    if to.shape == like.shape:
        return
    if to.numel():
        warnings.warn(
            f"An output with one or more elements was resized: it had shape {list(to.shape)}, "
            f"which does not match the required output shape {list(like.shape)}.",
            stacklevel=2,
        )
    to.resize_(like.shape)
    to.as_strided_(like.shape, like.stride())
