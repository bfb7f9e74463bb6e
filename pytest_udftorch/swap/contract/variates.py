# SPDX-License-Identifier: Apache-2.0
"""Random numbers of docs/reproduce/contract.md: each element is a function of a key and a number.

A call draws one key from torch's generator, so seeds, states and forks of generators are torch's.
The words of the call are Philox's of that key.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from pytest_udftorch.base.newest import Newest
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


def _key(generator: Any, device: Any) -> int:
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
    return contract().words(count, _key(generator, device), device)


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
        return GPU.fractions(y, _key(generator, device), bits)
    return _fractions(_words(count, generator, device), bits)


def uniform_(self: Any, from_: float = 0.0, to: float = 1.0, *, generator: Any = None) -> Any:
    """Fill with numbers between two: a fraction times the distance, plus the lower one."""
    if not from_ <= to or not math.isfinite(to - from_):
        return stock(self, from_, to, generator=generator)
    bits = _BITS.get(str(self.dtype), 24)
    if self.is_cuda:
        key = _key(generator, self.device)
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
    key, launcher = _key(generator, self.device), cuda_operators.launcher

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
        key = _key(generator, self.device)
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
