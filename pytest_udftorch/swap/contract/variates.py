# SPDX-License-Identifier: Apache-2.0
"""Random numbers of docs/reproduce/contract.md: each element is a function of a key and a number.

A call draws one key from torch's generator, so seeds, states and forks of generators are torch's.
The words of the call are Philox's of that key.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from pytest_udftorch.base.newest import Newest
from pytest_udftorch.errors import OperatorError
from pytest_udftorch.swap.contract.gpu import GPU, signed
from pytest_udftorch.swap.contract.native import contract
from pytest_udftorch.swap.contract.outside import declined as stock
from pytest_udftorch.swap.contract.sums import root
from pytest_udftorch.swap.cuda.operators import cuda_operators
from pytest_udftorch.swap.cuda.variates import normals_of_places
from pytest_udftorch.swap.overrides.tape import recording

#: Seeds of generators on GPUs -> how many keys were drawn, and what draws the next ones.
_shadows: Final[Newest[int, tuple[int, Any]]] = Newest(64)

#: A generator of a GPU counts words of Philox in fours.
_WORDS: Final = 4


def key_of(generator: Any, device: Any) -> int:
    """Draw the key of a call.

    The generator that a seed made draws the same keys on every device. That of a GPU draws those
    of one on the CPU with its seed, and counts them as its own words. Without a generator, calls
    for all devices draw from that of the CPU, as long as the GPU's has the same seed.
    """
    import torch

    if device.type == "cuda":
        own = generator
        if generator is None:
            own = torch.cuda.default_generators[device.index]
        if generator is not None or own.initial_seed() != torch.initial_seed():
            return _key_of_gpu(own)
        if tapes := recording():
            return tapes.draw()
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator))


def _key_of_gpu(generator: Any) -> int:
    import torch

    state = generator.get_state()
    seed, offset = state.view(torch.int64).tolist()
    drawn, shadow = _shadows.pop(seed, (-1, None))
    if drawn != offset // _WORDS:
        shadow, drawn = torch.Generator().manual_seed(seed), offset // _WORDS
        torch.empty(drawn, dtype=torch.int64).random_(generator=shadow)
    key = int(torch.empty((), dtype=torch.int64).random_(generator=shadow))
    _shadows[seed] = drawn + 1, shadow
    state.view(torch.int64)[1] = (drawn + 1) * _WORDS
    generator.set_state(state)
    return key


def _words(count: int, generator: Any, device: Any) -> Any:
    return contract().words(count, key_of(generator, device), device)


#: A fraction has as many bits as the significand of its dtype, so that it is below 1.
_BITS: Final = {"torch.bfloat16": 8, "torch.float16": 11}

#: The least exponential variate; in half it is the smallest number above 0.
_LEAST: Final = {"torch.float16": 2.0**-24}


def _fractions(words: Any, bits: int = 24) -> Any:
    """Return the upper bits of words as numbers in [0, 1), exact."""
    return (words >> 32 - bits).bitwise_and_((1 << bits) - 1).float().mul_(2.0**-bits)


def _filled(self: Any, fill: Callable[[Any], Any]) -> Any:
    """Fill a tensor on a GPU with the float32 numbers that a function fills a dense one with."""
    import torch

    if str(self.dtype) == "torch.float32" and self.is_contiguous():
        fill(self)
        return self
    return self.copy_(fill(torch.empty(self.shape, dtype=torch.float32, device=self.device)))


def _uniform(count: int, generator: Any, device: Any, bits: int = 24) -> Any:
    import torch

    if device.type == "cuda":
        y = torch.empty(count, dtype=torch.float32, device=device)
        return GPU.fractions(y, key_of(generator, device), bits)
    return _fractions(_words(count, generator, device), bits)


def uniform_(self: Any, from_: float = 0.0, to: float = 1.0, *, generator: Any = None) -> Any:
    """Fill with numbers between two: a fraction times the distance, plus the lower one."""
    if not from_ <= to or not math.isfinite(to - from_):
        return stock(self, from_, to, generator=generator)
    bits = _BITS.get(str(self.dtype), 24)
    if self.is_cuda:
        key = key_of(generator, self.device)
        return _filled(self, lambda y: GPU.fractions(y, key, bits, to - from_, from_))
    u = _uniform(self.numel(), generator, self.device, bits)
    if (from_, to) != (0.0, 1.0):
        u.mul_(to - from_).add_(from_)
    return self.copy_(u.view(self.shape))


def _normal(pairs: Any, count: int, mean: float, std: float) -> Any:
    """Return normal variates, two of each two fractions (Box and Muller, 1958).

    Of elements 2i and 2i + 1 the first is the radius times the cosine, the second times the sine.
    """
    import torch

    pairs = pairs.view(-1, 2)
    radius = root((1 - pairs[:, 0]).log_().mul_(-2))
    angle = pairs[:, 1] * (2 * math.pi)
    z = torch.stack([radius * angle.cos(), radius * angle.sin()], 1).view(-1)[:count]
    if std != 1:
        z.mul_(std)
    if mean != 0:
        z.add_(mean)
    return z


def normal_(self: Any, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Any:
    """Fill with normal variates: a variate times the deviation, plus the mean."""
    if not std >= 0:
        return stock(self, mean, std, generator=generator)
    count = self.numel()
    if not self.is_cuda or not count:
        pairs = _uniform(count + (count & 1), generator, self.device)
        return self.copy_(_normal(pairs, count, mean, std).view(self.shape))
    key, launcher = key_of(generator, self.device), cuda_operators.launcher

    def fill(y: Any) -> Any:
        if launcher is None or not normals_of_places(launcher, y, signed(key), mean, std):
            pairs = GPU.fractions(y.new_empty(count + (count & 1)), key, 24)
            y.copy_(_normal(pairs, count, mean, std).view(y.shape))
        return y

    return _filled(self, fill)


def exponential_(self: Any, lambd: float = 1.0, *, generator: Any = None) -> Any:
    """Fill with exponential variates: the negative logarithm of 1 - u, over the rate."""
    if not lambd > 0:
        return stock(self, lambd, generator=generator)
    e = (1 - _uniform(self.numel(), generator, self.device)).log_().neg_()
    # -log(1) is a zero, which is outside of the distribution.
    e.clamp_(min=_LEAST.get(str(self.dtype), 2.0**-25))
    if lambd != 1:
        e.div_(lambd)
    return self.copy_(e.view(self.shape))


def bernoulli_float_(self: Any, p: float = 0.5, *, generator: Any = None) -> Any:
    """Fill with ones where a fraction is below the probability, and zeros."""
    if not 0 <= p <= 1:
        return stock(self, p, generator=generator)
    if self.is_cuda:
        key = key_of(generator, self.device)
        return _filled(self, lambda y: GPU.below(y, key, p))
    return self.copy_((_uniform(self.numel(), generator, self.device) < p).view(self.shape))


def bernoulli_tensor_(self: Any, p: Any, *, generator: Any = None) -> Any:
    """Fill with ones where a fraction is below a probability of its own, and zeros."""
    if bool(((p < 0) | (p > 1) | p.isnan()).any()):
        return stock(self, p, generator=generator)
    return self.copy_(_uniform(self.numel(), generator, self.device).view(self.shape) < p)


def randperm_(n: int, *, generator: Any, out: Any) -> Any:
    """Put numbers below n in the order of words that belong to them, of 64 bits each."""
    import torch

    if n < 0:
        return stock(n, generator=generator, out=out)
    words = _words(2 * n, generator, out.device).view(-1, 2).long()
    order = torch.argsort((words[:, 0] << 32) | (words[:, 1] & 0xFFFFFFFF), stable=True)
    out.resize_(n)
    return out.copy_(order)


# Drawing of places ------------------------------------------------------------------------

#: Bits of the largest weight where draws with replacement take integers; 2^24 of them fit 63 bits.
_WEIGHT: Final = 38

#: More categories than these torch refuses.
_CATEGORIES: Final = 1 << 24


class _Seeds:
    """Seeds of rows, and how many times rows were drawn."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self.seeds = tuple(seeds)
        self.calls = 0

    def keys(self, rows: int) -> list[int]:
        """Return the key of each row for the next call.

        Raises:
            OperatorError: there are more or fewer rows than seeds.
        """
        if rows != len(self.seeds):
            raise OperatorError(
                f"torch.multinomial draws for {rows} rows, but row_seeds has {len(self.seeds)} "
                "seeds. Give one for each row, in their order."
            )
        at = 2 * self.calls
        self.calls += 1
        made = contract()
        return [_joined(made.words(at + 2, seed)[at:]) for seed in self.seeds]


def _joined(words: Any) -> int:
    """Return two words as a key of 63 bits."""
    first, second = (int(word) & 0xFFFFFFFF for word in words)
    return (first << 32 | second) >> 1


_seeds: ContextVar[_Seeds | None] = ContextVar("seeds of rows", default=None)


@contextmanager
def row_seeds(seeds: Sequence[int]) -> Iterator[None]:
    """Give each row of ``torch.multinomial`` a seed of its own in a block, under ``repro``.

    What is drawn for a row then depends on its weights, its seed, and on how many calls drew for it
    in this block: not on the other rows. So ``generate(do_sample=True)`` of transformers draws the
    same tokens for a request in every batch, if each block holds one call of ``generate``:

    >>> with patched("repro"), row_seeds([7, 8]):  # doctest: +SKIP
    ...     model.generate(two_requests, do_sample=True)

    Args:
        seeds: for each row a number from 0 to 2^63 - 1. A call has as many rows.

    Raises:
        OperatorError: no seeds are given, or one is no such number.
    """
    good = [type(seed) is int and 0 <= seed < 1 << 63 for seed in seeds]
    if not good or not all(good):
        raise OperatorError(
            f"row_seeds takes a number from 0 to 2^63 - 1 for each row, but was given {seeds!r}."
        )
    token = _seeds.set(_Seeds(seeds))
    try:
        yield
    finally:
        _seeds.reset(token)


def multinomial(
    self: Any, num_samples: int, replacement: bool = False, *, generator: Any = None
) -> Any:
    """Draw places by their weights, of each row of a matrix or of one row.

    One draw, or several places of each row, are those with the largest quotients of weights over
    exponential variates. Several draws with replacement are places in running sums of integers.
    """
    if not _drawable(self, num_samples, replacement):
        return stock(self, num_samples, replacement, generator=generator)
    weights = self.reshape(-1, self.shape[-1]).float()
    again = replacement and num_samples > 1
    rows, each = len(weights), 2 * num_samples if again else weights.shape[1]
    seeded = _seeds.get()
    if seeded is None:
        words = _words(rows * each, generator, self.device).view(rows, each)
    else:
        import torch

        made = contract()
        keys = seeded.keys(rows)
        words = torch.stack([made.words(each, key, self.device) for key in keys])
    drawn = _again(weights, words) if again else _raced(weights, words, num_samples)
    return drawn.view(*self.shape[:-1], num_samples)


def _drawable(weights: Any, count: int, replacement: bool) -> bool:
    """Tell whether weights are those that torch draws by; it has the words where not."""
    if weights.dim() not in (1, 2) or not weights.numel() or count < 1:
        return False
    categories = weights.shape[-1]
    if categories > _CATEGORIES or (not replacement and count > categories):
        return False
    good = (weights.amax() < math.inf) & (weights.amin() >= 0)
    return bool(good & (weights.amax(-1) > 0).all())


def _raced(weights: Any, words: Any, count: int) -> Any:
    """Return the places of the largest quotients, of equal ones the first, in falling order."""
    e = (1 - _fractions(words)).log_().neg_().clamp_(min=2.0**-25)
    quotients = weights / e
    if count == 1:
        return quotients.argmax(-1, keepdim=True)
    return quotients.sort(dim=-1, descending=True, stable=True).indices[:, :count].contiguous()


def _again(weights: Any, words: Any) -> Any:
    """Return places drawn with replacement: exact in integers, so without an order."""
    import torch

    wide = weights.double()
    ends = (wide / wide.amax(-1, keepdim=True) * 2.0**_WEIGHT).ceil().long().cumsum(-1)
    total = ends[:, -1:]
    pairs = words.view(len(weights), -1, 2).long() & 0xFFFFFFFF
    bits = pairs[..., 0] << 21 | pairs[..., 1] >> 11
    places = (bits.double() * 2.0**-53 * total.double()).floor().long()
    return torch.searchsorted(ends, torch.minimum(places, total - 1), right=True)
