# SPDX-License-Identifier: Apache-2.0
"""ATen operators computed in the field of the numbers modulo a prime, without rounding.

Elements are whole numbers in float64. The prime is so small that the largest sum of products in one
operator stays below 2**53, so torch's own kernels compute it exactly in any order; each operator's
result is then reduced. A Python number stands for the simplest fraction of its value: 1/9 for
``0.1111111111111111``. A tensor of constants stands for the exact values of its numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, Final

import torch

aten: Final[Any] = torch.ops.aten

#: Whole numbers up to here are exact in float64.
_EXACT: Final = 2**53
#: A Python number stands for a fraction with a denominator up to this.
_DENOMINATOR: Final = 2**20


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % d for d in range(2, math.isqrt(number) + 1))


def prime_for(summands: int) -> int:
    """Return the largest prime modulo which sums of this many products are exact."""
    number = math.isqrt(_EXACT // (summands + 2))
    while not _is_prime(number):
        number -= 1
    return number


class Field:
    """The numbers modulo a prime, and torch's operators over them.

    Args:
        prime: see :func:`prime_for`.
    """

    def __init__(self, prime: int) -> None:
        self.prime = prime
        self._operators: dict[str, Callable[..., Any]] = {
            "add": self._add,
            "sub": lambda a, b, alpha=1: self._add(a, b, -alpha),
            "rsub": lambda a, b, alpha=1: self._add(b, a, -alpha),
            "mul": lambda a, b: self.element(a) * self.element(b),
            "div": lambda a, b: self.element(a) * self.inverse(self.element(b)),
            "neg": lambda a: -a,
            "mean": self._mean,
            "addmm": self._addmm,
            "convolution": self._convolution,
            **dict.fromkeys(("avg_pool2d", "avg_pool3d"), self._average),
            "constant_pad_nd": lambda x, pad, value=0: aten.constant_pad_nd(
                x, pad, self.number(value)
            ),
            "full": lambda shape, value, **_: self._full(shape, value),
            "full_like": lambda x, value, **_: self._full(x.shape, value),
            "new_full": lambda x, shape, value, **_: self._full(shape, value),
            "new_ones": lambda x, shape, **_: self._full(shape, 1),
            "new_zeros": lambda x, shape, **_: self._full(shape, 0),
            "ones": lambda shape, **_: self._full(shape, 1),
            "ones_like": lambda x, **_: self._full(x.shape, 1),
            "zeros": lambda shape, **_: self._full(shape, 0),
            "zeros_like": lambda x, **_: self._full(x.shape, 0),
            # A copy that made an expanded tensor contiguous is left out, and a view needs it.
            **dict.fromkeys(("view", "_unsafe_view"), lambda x, shape: x.reshape(shape)),
            **dict.fromkeys(("_to_copy", "clone", "detach", "lift_fresh_copy"), lambda x, **_: x),
        }

    def random(self, shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
        """Return elements drawn uniformly."""
        drawn = torch.randint(self.prime, tuple(shape), generator=generator)
        return drawn.double()

    def reduced(self, values: torch.Tensor) -> torch.Tensor:
        """Return the elements that whole numbers below 2**53 in size stand for."""
        return values.remainder(self.prime)

    def number(self, value: Any) -> int:
        """Return the element that a Python number stands for."""
        if isinstance(value, int):
            return value % self.prime
        near = Fraction(value).limit_denominator(_DENOMINATOR)
        exact = near if float(near) == value else Fraction(value)
        return exact.numerator * pow(exact.denominator, -1, self.prime) % self.prime

    def constants(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the elements that a tensor's values stand for."""
        mantissas, exponents = torch.frexp(tensor.detach().cpu().double())
        whole = (mantissas * _EXACT).long() % self.prime
        table = {
            int(e): pow(2, int(e) - 53, self.prime)  # a negative exponent is an inverse
            for e in set(exponents.flatten().tolist())
        }
        powers = torch.tensor([table[int(e)] for e in exponents.flatten()], dtype=torch.float64)
        return self.reduced(whole.double() * powers.reshape(whole.shape))

    def element(self, value: Any) -> Any:
        """Return a tensor of elements as it is, and a Python number's element."""
        return value if isinstance(value, torch.Tensor) else self.number(value)

    def inverse(self, value: Any) -> Any:
        """Return the multiplicative inverse of each element.

        Raises:
            ZeroDivisionError: an element is 0.
        """
        if not isinstance(value, torch.Tensor):
            return self._inverse(value)
        found = {v: self._inverse(int(v)) for v in set(value.flatten().tolist())}
        flat = [found[v] for v in value.flatten().tolist()]
        return torch.tensor(flat, dtype=torch.float64).reshape(value.shape)

    def _inverse(self, value: int) -> int:
        if value % self.prime == 0:
            raise ZeroDivisionError("a divisor is 0")
        return pow(value, -1, self.prime)

    def call(self, name: str, target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Compute an operator of ATen; its tensors hold elements."""
        operator = self._operators.get(name)
        if operator is not None:
            return self.reduced(operator(*args, **kwargs))
        found = target(*args, **{k: v for k, v in kwargs.items() if k != "dtype"})
        return self.reduced(found) if isinstance(found, torch.Tensor) else found

    def _full(self, shape: Sequence[int], value: Any) -> torch.Tensor:
        return torch.full(tuple(shape), float(self.number(value)), dtype=torch.float64)

    def _add(self, a: Any, b: Any, alpha: Any = 1) -> Any:
        return self.element(a) + self.element(b) * self.number(alpha)

    def _mean(self, x: torch.Tensor, dim: Any = None, keepdim: bool = False, **_: Any) -> Any:
        total = self.reduced(x.sum(dim, keepdim=keepdim) if dim else x.sum())
        return total * self.number(Fraction(max(total.numel(), 1), x.numel()))

    def _addmm(self, c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
        product = self.reduced(a @ b)
        return self.reduced(product * self.number(alpha)) + c * self.number(beta)

    def _convolution(self, x: Any, w: Any, bias: Any, *rest: Any) -> Any:
        found = self.reduced(aten.convolution(x, w, None, *rest))
        return found if bias is None else found + bias.reshape(-1, *(1,) * (x.dim() - 2))

    def _average(
        self, x: Any, kernel: Any, stride: Any = (), padding: Any = 0, ceil: bool = False,
        padded: bool = True, divisor: int | None = None,
    ) -> Any:  # fmt: skip
        def added(values: Any) -> Any:
            call = aten.avg_pool2d if len(kernel) == 2 else aten.avg_pool3d
            return call(values, kernel, stride, padding, ceil, True, 1)

        total = self.reduced(added(x))
        if divisor is None and not padded:
            return total * self.inverse(added(torch.ones_like(x)))
        return total * self._inverse(divisor or math.prod(kernel))


def summands(name: str, args: Sequence[Any]) -> int:
    """Return how many products one element of an operator's result adds up."""
    shapes = [tuple(a.shape) for a in args if isinstance(a, torch.Tensor)]
    if name in ("mm", "bmm", "mv"):
        return int(shapes[0][-1])
    if name == "addmm":
        return int(shapes[1][-1])
    if name == "convolution":
        whole = math.prod(shapes[1][1:])
        # A transposed convolution adds over the input's channels.
        return max(whole, math.prod(shapes[1][2:]) * shapes[0][1])
    if name in ("sum", "mean"):
        # Sums of elements, not of products: far below the bound of as many products.
        return max(1, math.isqrt(math.prod(shapes[0])))
    return 1
