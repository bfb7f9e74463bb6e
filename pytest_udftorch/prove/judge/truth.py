# SPDX-License-Identifier: Apache-2.0
"""The true result of one call, and how far rounding alone may bring a result from it.

The truth is the operator repeated in float64 on the recorded inputs; MPFR decides for operators
that are one function. The bound follows the stated error model of ``judge.error_model``, call
by call, for ``u`` half the machine epsilon of the operator's numbers:

* operators that move or select numbers have none;
* operators that IEEE 754 rounds once (add, multiply, divide, square root): half an ULP;
* sums of products: ``6 sqrt(n) u`` times the sum of the products' magnitudes, which holds with
  probability 1 - 2 exp(-18) if rounding errors are independent (Higham and Mary, SIAM J. Sci.
  Comput. 41(5), 2019, theorem 3.1), and the error of factors that ``fp32_precision`` lets be
  rounded;
* batch norms: the errors of the sums, the root and the folded form (``judge.batch_norm``);
* operators with a decomposition in torch: ``SPREAD`` times the spread of results when every
  operator of the decomposition gets the errors of the error model (Monte Carlo arithmetic);
* any other: 4 ULP, and what an error of 2 ``u`` in each input makes of it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from pytest_udftorch.base import compat
from pytest_udftorch.base.tensor_contents import contents, is_plain, is_real
from pytest_udftorch.prove.judge.batch_norm import BATCH_NORMS, batch_norm_bound
from pytest_udftorch.prove.judge.definitions import by_definition
from pytest_udftorch.swap.observe.recorder import Kept
from pytest_udftorch.swap.observe.recording import draws, effects, results, strided_copy
from pytest_udftorch.swap.operators.overload import is_exact, name_of
from pytest_udftorch.swap.operators.row import Kind
from pytest_udftorch.swap.operators.rows import find

#: Standard deviations within which rounding explains a result.
SPREAD: Final = 16.0

#: Runs of a decomposition with different errors.
_DRAWS: Final = 8

#: Most elements that MPFR is asked about.
_MPFR: Final = 512

#: Elements that are looked at together, so that what is made of them beside the truth stays small.
_PART: Final = 1 << 17

#: The ratio of two errors from which one counts as larger.
_CLEARLY: Final = 1.05

#: Units of the norm from which on an error is more than what an operator rounds off otherwise.
_CANCELS: Final = 64

Nearer = Literal["a", "b", "both alike"]


@dataclass(frozen=True)
class Error:
    """How far a side's output is from the truth.

    Attributes:
        ulp: of the worst element, in ULPs of the output's type.
        relative: norm of the error over norm of the truth.
        beyond: how many elements lie outside of the bound; None if there is no bound.
        excess: the worst error over its bound; at most 1 if rounding explains all; or None.
    """

    ulp: float
    relative: float
    beyond: int | None
    excess: float | None


@dataclass(frozen=True)
class Truth:
    """Both sides beside the true result of a call.

    Attributes:
        method: ``float64`` or ``MPFR``.
        bound: what the bound rests on, in words.
        a: the error of a's output.
        b: the error of b's.
        eps: of the output's type.
    """

    method: str
    bound: str
    a: Error
    b: Error
    eps: float = 0.0

    @property
    def nearer(self) -> Nearer:
        """Which side's output is nearer the truth, by its norm, or else by its worst element."""
        for first, second in ((self.a.relative, self.b.relative), (self.a.ulp, self.b.ulp)):
            if _clearly(first, second):
                return "a" if first < second else "b"
        return "both alike"

    @property
    def by_norm(self) -> bool:
        """Whether the norm of the errors decides which side is nearer."""
        return _clearly(self.a.relative, self.b.relative)

    @property
    def cancels(self) -> bool:
        """Whether so much of the norm is lost that numbers have cancelled inside the operator."""
        return bool(self.eps) and max(self.a.relative, self.b.relative) > _CANCELS * self.eps

    @property
    def explained(self) -> bool | None:
        """Whether rounding explains both sides; None without a bound."""
        if self.a.beyond is None or self.b.beyond is None:
            return None
        return not self.a.beyond and not self.b.beyond


def _clearly(first: float, second: float) -> bool:
    """Say whether one of two errors is clearly larger."""
    return min(first, second) * _CLEARLY < max(first, second)


def judged(kept: Kept, a: Any, b: Any, index: int, places: Any = None) -> Truth | None:
    """Judge both sides' outputs of a call.

    Args:
        kept: the call with its inputs.
        a: a's output, of floating-point numbers.
        b: b's output, of the same shape.
        index: which of the call's outputs it is.
        places: positions of the elements that a and b hold; by default they hold all.

    Returns:
        None if the operator draws random numbers or does not run in float64, if it is a kernel
        that a compiler generated, or if a tensor is not of real numbers or not plain.
    """
    import torch

    if isinstance(kept.operator, str):
        return None
    tensors = compat.pytree().tree_leaves((kept.args, kept.kwargs))
    odd = any(isinstance(t, torch.Tensor) and not is_plain(t) for t in tensors)
    if odd or draws(kept.operator, kept.args, kept.kwargs) or not is_real(a):
        return None
    wide = _wide_call(kept)
    exact = _repeated(kept.operator, *wide)
    if exact is None or index >= len(exact) or not is_plain(exact[index]):
        return None
    if exact[index].dtype is not torch.float64:
        return None
    if places is None and exact[index].shape != a.shape:
        return None
    truth = exact[index].double().cpu()
    words, bound = _bound(kept, wide, exact, index, a)
    if places is not None:
        truth = truth.reshape(-1)[places]
        bound = None if bound is None else bound.reshape(-1)[places]
    errors = []
    method = "float64"
    for value in (a, b):
        by_mpfr = _mpfr_ulp(kept, value, truth, a, b) if places is None else None
        method = "float64" if by_mpfr is None else "MPFR"
        errors.append(_error(value, truth, bound, by_mpfr))
    return Truth(method, words, errors[0], errors[1], torch.finfo(a.dtype).eps)


# The truth ---------------------------------------------------------------------------


def _wide_call(kept: Kept) -> tuple[Any, Any]:
    """Return a call's arguments in float64, on the CPU where its operator has a kernel there."""
    import torch

    def wide(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            value = value.cpu()
            return value.double() if value.is_floating_point() else value
        if isinstance(value, torch.dtype) and value.is_floating_point:
            return torch.float64
        return torch.device("cpu") if isinstance(value, torch.device) else value

    found: tuple[Any, Any] = compat.pytree().tree_map(wide, (kept.args, kept.kwargs))
    return found


def _repeated(operator: Any, args: Any, kwargs: Any) -> list[Any] | None:
    """Call an operator on its arguments, or on copies of those that it writes into.

    Returns:
        None if it does not run on them.
    """
    import torch

    args, kwargs = unwritten(operator, args, kwargs)
    with compat.no_modes(), torch.no_grad(), _double_by_default():
        try:
            returned = operator(*args, **kwargs)
        except Exception:
            try:
                returned = by_definition(operator, args, kwargs)
            except Exception:
                return None
    return None if returned is NotImplemented else results(operator, args, kwargs, returned)


@contextlib.contextmanager
def _double_by_default() -> Iterator[None]:
    """Let functions of integers give float64, which would give float32."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def unwritten(operator: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Return arguments of which an operator may write into each that it writes into."""
    written = {p.name for p in effects(operator).written}
    if not written:
        return args, kwargs
    names = [argument.name for argument in compat.overload_schema(operator).arguments]
    copied = compat.pytree().tree_map
    own = tuple(
        copied(strided_copy, a) if n in written else a for n, a in zip(names, args, strict=False)
    )
    return own, {n: copied(strided_copy, a) if n in written else a for n, a in kwargs.items()}


def _mpfr_ulp(kept: Kept, value: Any, truth: Any, a: Any, b: Any) -> float | None:
    """Return the worst error in ULPs by MPFR where the sides differ; None if MPFR cannot say."""
    import torch

    from pytest_udftorch.errors import PackageMissingError
    from pytest_udftorch.prove.exact.rounding import ulp_error
    from pytest_udftorch.swap.library.symbols import FUNCTIONS

    name = name_of(kept.operator).removesuffix("_")
    tensors = [t for t in compat.pytree().tree_leaves((kept.args, kept.kwargs))]
    arity = FUNCTIONS[name].arity if name in FUNCTIONS else 0
    if len(tensors) != arity or not all(
        isinstance(t, torch.Tensor) and t.dtype == value.dtype and t.shape == value.shape
        for t in tensors
    ):
        return None
    apart = (a.cpu() != b.cpu()).reshape(-1).nonzero().reshape(-1)[:_MPFR]
    if not arity or not apart.numel():
        return None
    inputs = tuple(t.cpu().reshape(-1)[apart] for t in tensors)
    got = value.cpu().reshape(-1)[apart]
    try:
        errors = ulp_error(got, inputs if arity > 1 else inputs[0], function=name)
    except (PackageMissingError, TypeError):
        return None
    return float(errors.max())


def _error(value: Any, truth: Any, bound: Any, by_mpfr: float | None) -> Error:
    import torch

    got = value.detach().cpu().reshape(-1)
    parts = torch.arange(0, got.numel(), _PART).tolist()
    truth = truth.reshape(-1)
    bound = None if bound is None else bound.expand(value.shape).reshape(-1)
    worst = squares = norm = excess = 0.0
    beyond, equal = 0, True
    for begin in parts:
        here = slice(begin, begin + _PART)
        part = _error_of_part(got[here], truth[here], None if bound is None else bound[here])
        worst = max(worst, part.ulp)
        squares, norm = squares + part.squares, norm + part.norm
        beyond, excess = beyond + part.beyond, max(excess, part.excess)
        equal = equal and part.equal
    relative = math.sqrt(squares / norm) if norm else (0.0 if equal else math.inf)
    worst = worst if by_mpfr is None else by_mpfr
    return Error(worst, relative, *((None, None) if bound is None else (beyond, excess)))


class _PartOfError(NamedTuple):
    ulp: float
    squares: float
    norm: float
    beyond: int
    excess: float
    equal: bool


def _error_of_part(value: Any, truth: Any, bound: Any) -> _PartOfError:
    import torch

    got = value.double()
    same = (got == truth) | (got.isnan() & truth.isnan())
    apart = torch.where(same, 0.0, (got - truth).abs()).nan_to_num(math.inf, math.inf, math.inf)
    ulps = apart / _ulp(truth, value.dtype)
    finite = torch.where(truth.isfinite(), truth, 0.0)
    beyond, excess = 0, 0.0
    if bound is not None:
        # What is infinite or no number has to be so exactly.
        bound = torch.where(truth.isfinite(), bound, 0.0).nan_to_num(0.0)
        # Overflow of the type counts as its largest number.
        largest = torch.finfo(value.dtype).max
        over = (truth.abs() >= largest * (1 - torch.finfo(value.dtype).eps)) & got.isinf()
        held = torch.where(over | same, 0.0, apart)
        beyond = int((held > bound).sum())
        excess = float(torch.where(held > 0, held / bound.clamp_min(1e-300), 0.0).max())
    squares, norm = float(apart.square().sum()), float(finite.square().sum())
    return _PartOfError(float(ulps.max()), squares, norm, beyond, excess, bool(same.all()))


def _ulp(truth: Any, dtype: Any) -> Any:
    """Return the ULP of each number in a type."""
    import torch

    info = torch.finfo(dtype)
    found = torch.empty_like(truth, memory_format=torch.contiguous_format)
    numbers, flat = truth.reshape(-1), found.view(-1)
    for begin in range(0, flat.numel(), _PART):
        here = slice(begin, begin + _PART)
        _, exponent = torch.frexp(
            numbers[here].abs().nan_to_num(0.0, 0.0, 0.0).clamp_min(info.tiny)
        )
        # frexp's significands lie in [0.5, 1)
        flat[here] = torch.ldexp(torch.full_like(numbers[here], info.eps), exponent - 1)
    return found


# The bound ---------------------------------------------------------------------------


def _bound(kept: Kept, wide: tuple[Any, Any], exact: list[Any], index: int, like: Any) -> Any:
    """Return what the bound rests on, and the bound of every element; None if there is none."""
    import torch

    row = find(name_of(kept.operator))
    truth = exact[index].double().cpu()
    unit = _unit(kept, like)
    half = _ulp(truth, like.dtype).mul_(0.5)
    casts = row is not None and row.rounds_if == "casts"
    if is_exact(kept.operator, kept.args, kept.kwargs) and not casts:
        return "the operator computes nothing", torch.zeros_like(truth)
    if row is not None and row.roundings == 1 and _plain(kept, like):
        # float64 has more than twice the digits, so rounding it again gives the same number.
        return "IEEE 754 rounds the result once", (truth.to(like.dtype).double() - truth).abs()
    if row is not None and row.kind in (Kind.PRODUCTS, Kind.SUMS):
        found = _of_products(kept, wide, index, unit)
        if found is not None:
            return "sums of products (Higham and Mary 2019)", found.add_(half)
    if name_of(kept.operator) in BATCH_NORMS:
        found = batch_norm_bound(kept.operator, *wide, index, unit)
        if found is not None:
            return "errors of the sums and the root of a batch norm", found + half
    spread = _of_definition(kept, wide, exact, index, unit)
    if spread is not None:
        return "rounding in the operator's definition", SPREAD * spread + 8 * half
    return "4 ULP, and rounded inputs", SPREAD * _of_inputs(
        kept, wide, exact, index, unit
    ) + 8 * half


def _kind(kept: Kept) -> Kind | None:
    row = find(name_of(kept.operator))
    return None if row is None else row.kind


def _plain(kept: Kept, like: Any) -> bool:
    """Tell whether a call has operands of the result's type alone, so that it rounds once."""
    import torch

    if kept.kwargs.get("alpha", 1) != 1 or len(kept.args) > 2:
        return False
    left_out = compat.overload_schema(kept.operator).arguments[len(kept.args) :]
    if any(isinstance(a.default_value, float) for a in left_out):  # a kernel rounds it first
        return False
    casts = name_of(kept.operator) in ("_to_copy", "copy_")
    for value in kept.args:
        if isinstance(value, torch.Tensor):
            same = casts or value.dtype == like.dtype
        else:
            # A kernel rounds a number first, and may multiply by its reciprocal.
            divides = name_of(kept.operator).startswith("div")
            same = isinstance(value, int | float) and np.float32(value) == value and not divides
        if not same:
            return False
    return True


def _unit(kept: Kept, like: Any) -> float:
    """Return the unit roundoff of the shortest type among a call's numbers."""
    import torch

    tensors = compat.pytree().tree_leaves((kept.args, kept.kwargs))
    types = {t.dtype for t in tensors if isinstance(t, torch.Tensor) and t.is_floating_point()}
    return max(torch.finfo(t).eps / 2 for t in {*types, like.dtype})


def _of_products(kept: Kept, wide: tuple[Any, Any], index: int, unit: float) -> Any:
    import torch

    from pytest_udftorch.prove.judge.error_model import factor_unit

    def positive(value: Any) -> Any:
        floats = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.abs() if floats else value

    args, kwargs = compat.pytree().tree_map(positive, wide)
    found = _repeated(kept.operator, args, kwargs)
    if found is None:
        return None
    magnitudes = found[index].double()
    del found, args, kwargs
    terms = _terms(kept, magnitudes)
    name = name_of(kept.operator)
    factors = 0.0
    if _kind(kept) is Kind.PRODUCTS:
        device = next(
            t.device for t in compat.pytree().tree_leaves(kept.args) if isinstance(t, torch.Tensor)
        )
        factors = factor_unit("convolution" if "conv" in name else "mm", device)
    return magnitudes.mul_(6 * math.sqrt(terms + 2) * unit + 2 * factors)


def _terms(kept: Kept, result: Any) -> float:
    """Return how many numbers are added up for an element of the result, at most."""
    import torch

    sizes = [
        t.numel() for t in compat.pytree().tree_leaves((kept.args, kept.kwargs))
        if isinstance(t, torch.Tensor) and t.is_floating_point()
    ]  # fmt: skip
    name = name_of(kept.operator)
    if _kind(kept) is Kind.SUMS:
        return max(1.0, max(sizes) if name == "cumsum" else sizes[0] / max(1, result.numel()))
    if name in ("mm", "bmm", "mv", "dot"):
        return float(kept.args[0].shape[-1])
    # A product has as many factors of each kind as elements of the result times terms, or fewer.
    return max(1.0, *(size / max(1, min(result.shape or (1,))) for size in sizes))


def _of_definition(
    kept: Kept, wide: tuple[Any, Any], exact: list[Any], index: int, unit: float
) -> Any:
    """Return the spread of a call's result by its decomposition under the error model's errors."""
    import torch

    from pytest_udftorch.prove.judge.error_model import perturbing

    truth = exact[index].double()
    generators = {torch.device("cpu"): torch.Generator().manual_seed(0)}

    def draw() -> Any:
        args, kwargs = compat.pytree().tree_map(strided_copy, wide)
        table = compat.decompositions()
        definition = table.get(kept.operator, kept.operator.decompose)
        with compat.no_modes(), torch.no_grad(), perturbing(unit, generators, cancelling=True):
            returned = definition(*args, **kwargs)
        if returned is NotImplemented:
            return None
        return results(kept.operator, args, kwargs, returned)

    return _spread(draw, truth, index)


def _spread(draw: Callable[[], Sequence[Any] | None], truth: Any, index: int) -> Any:
    import torch

    total = torch.zeros_like(truth)
    with contextlib.suppress(Exception):
        for _ in range(_DRAWS):
            made = draw()
            if made is None or index >= len(made) or made[index].shape != truth.shape:
                return None
            total += (made[index].double() - truth).nan_to_num(0.0, 0.0, 0.0).square()
        return (total / _DRAWS).sqrt()
    return None


def _of_inputs(kept: Kept, wide: tuple[Any, Any], exact: list[Any], index: int, unit: float) -> Any:
    """Return what errors of 2 u in the inputs make of a result."""
    import torch

    generator = torch.Generator().manual_seed(0)
    truth = exact[index].double()

    def shaken(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        noise = torch.rand(value.shape, generator=generator, dtype=torch.float64) - 0.5
        return value * (1 + 4 * unit * noise)

    def draw() -> Any:
        return _repeated(kept.operator, *compat.pytree().tree_map(shaken, wide))

    found = _spread(draw, truth, index)
    return torch.zeros_like(truth) if found is None else found


# Distances ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Apart:
    """How far an output of one side lies from the other's.

    Attributes:
        output: which of the operator's outputs.
        elements: how many there are.
        differ: how many of them differ.
        ulp: of the worst element, in steps from number to number; None where one side is a NaN
            or the types differ.
        relative: norm of the difference over the larger norm.
        worst: index of the worst element, with a's and b's value.
        sampled: whether only samples of the output were compared.
    """

    output: int
    elements: int
    differ: int
    ulp: int | None
    relative: float
    worst: tuple[tuple[int, ...], float, float]
    sampled: bool = False


def apart(a: Any, b: Any, output: int, of: tuple[int, ...] | None = None) -> Apart:
    """Compare an output of the two sides, of one shape.

    Args:
        a: the output of one side, or its samples.
        b: likewise of the other.
        output: which of the operator's outputs it is.
        of: the shape of the output whose samples are given.
    """
    from pytest_udftorch.swap.observe.digests import sample_places

    total, elements = _Distances(), 0
    mine, theirs = _numbers(a), _numbers(b)
    for part, other in zip(mine, theirs, strict=True):
        first, second = _of_one_length(part.cpu().reshape(-1), other.cpu().reshape(-1))
        for begin in range(0, first.numel(), _PART):
            end = begin + _PART
            total.add(elements + begin, first[begin:end], second[begin:end])
        elements += first.numel()
    shape = of or (tuple(mine[0].shape) if len(mine) == 1 else (elements,))
    place: tuple[int, ...] = ()
    if elements and shape:
        at = sample_places(of)[total.at] if of else total.at
        place = tuple(int(i) for i in np.unravel_index(at, shape))
    worst = (place, *total.values)
    return Apart(
        output, elements, total.differ, total.steps, total.relative(), worst, of is not None
    )


def _numbers(tensor: Any) -> list[Any]:
    """Return the plain tensors that a tensor consists of, with complex numbers as pairs."""
    import torch

    parts = [p.detach().resolve_conj() for p in contents(tensor) or ()]
    return [torch.view_as_real(p) if p.is_complex() else p for p in parts]


def _of_one_length(first: Any, second: Any) -> tuple[Any, Any]:
    """Return flat tensors with zeros behind the shorter one: one sparse tensor may have more."""
    import torch

    more = first.numel() - second.numel()
    if more < 0:
        first = torch.nn.functional.pad(first, (0, -more))
    elif more > 0:
        second = torch.nn.functional.pad(second, (0, more))
    return first, second


@dataclass
class _Distances:
    """What is known of two tensors' elements so far.

    Attributes:
        differ: how many differ.
        at: the worst one's position.
        values: of that one in each tensor.
        order: how far that one lies from the other; -1 if all are equal.
        steps: that in steps from number to number, or None.
        squares: the sum of the squares of the finite differences.
        norms: of the finite elements of each tensor.
        finite: whether all elements that differ are finite.
    """

    differ: int = 0
    at: int = 0
    values: tuple[float, float] = (0.0, 0.0)
    order: float = -1.0
    steps: int | None = None
    squares: float = 0.0
    norms: tuple[float, float] = (0.0, 0.0)
    finite: bool = True

    def add(self, begin: int, first: Any, second: Any) -> None:
        """Look at elements, of which the first one has this position."""
        from pytest_udftorch.prove.exact.rounding import ulp_distance

        x, y = first.double().numpy(), second.double().numpy()
        # Two NaNs are the same number, +0 and -0 are not.
        same = ((x == y) & (np.signbit(x) == np.signbit(y))) | (np.isnan(x) & np.isnan(y))
        steps = None
        if first.dtype == second.dtype and first.is_floating_point() and first.element_size() > 1:
            steps = ulp_distance(first, second)
            order = steps.astype(np.float64)
        else:
            with np.errstate(invalid="ignore"):
                order = np.abs(np.nan_to_num(x - y, nan=math.inf))
        order = np.where(same, -1.0, order)
        at = int(np.argmax(order))
        if order[at] > self.order or not begin:
            self.at, self.order = begin + at, float(order[at])
            self.values = float(first[at]), float(second[at])
            far = None if steps is None else int(steps[at])
            self.steps = None if far == 2**64 - 1 else far
        self.differ += int(x.size - same.sum())
        equal = same | (x == y)
        self.finite = self.finite and bool((np.isfinite(x) & np.isfinite(y))[~equal].all())
        both = np.isfinite(x) & np.isfinite(y)
        apart = np.where(both, x, 0.0) - np.where(both, y, 0.0)
        self.squares += float(np.dot(apart, apart))
        own, other = np.where(both, x, 0.0), np.where(both, y, 0.0)
        self.norms = (
            self.norms[0] + float(np.dot(own, own)), self.norms[1] + float(np.dot(other, other))
        )  # fmt: skip

    def relative(self) -> float:
        """Return the norm of the difference over the larger norm."""
        if not self.finite:
            return math.inf
        return math.sqrt(self.squares / max(self.norms)) if self.squares else 0.0
