# SPDX-License-Identifier: Apache-2.0
"""Ways to break a model's invariance, each with the ways that show it and the operator it is in.

The model without faults is ``models/small_language_model.py``, of which no way may differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

import torch
from torch.nn import functional as F

from benches.data.models.small_language_model import Layer, Model

FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu"
WITH_A_CACHE = {"prefill in chunks", "decoding"}
IN_PARTS = {"batch 1", "batch 2", "batch 3"}
TRAINED = {"training forward", "micro-batches"}


class Fault(NamedTuple):
    """A model with a fault.

    Attributes:
        model: its class.
        ways: those that differ.
        operators: the first operators by which they may part: the fault's own.
    """

    model: type[Model]
    ways: set[str]
    operators: set[str]


#: Name -> the fault.
FAULTS: Final[dict[str, Fault]] = {}


def fault(ways: set[str], *operators: str) -> Callable[[type], type]:
    """Note a class of layers or models with a fault, the ways that show it, and its operators."""

    def note(broken: type) -> type:
        kind = broken
        if issubclass(broken, Layer):
            kind = type("Broken", (Model,), {"layer": broken})
        FAULTS[broken.__name__] = Fault(kind, set(ways), set(operators))
        return broken

    return note


def halves(linear, x):
    """Return a product whose terms are added in two parts."""
    middle = x.shape[-1] // 2 + 3
    first = F.linear(x[..., :middle], linear.weight[:, :middle])
    return first + F.linear(x[..., middle:], linear.weight[:, middle:])


def composed(q, k, v, mask):
    """Attend with logarithms of weights, which rounds elsewhere."""
    scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~mask, -math.inf)
    return (scores - scores.logsumexp(-1, keepdim=True)).exp() @ v


# Kernels that are chosen by a shape ---------------------------------------------------


@fault({"batch 1", "batch 3", "packed by a mask", "micro-batches"}, "aten::mm")
class KernelForOneRow(Model):
    def score(self, x):
        return halves(self.head, x) if len(x) == 1 else self.head(x)


@fault({"prefix", *WITH_A_CACHE}, "aten::mm")
class SplitByLength(Model):
    def score(self, x):
        return halves(self.head, x) if x.shape[1] < 40 else self.head(x)


@fault({"decoding"}, "aten::addmm", "aten::mm")
class KernelForOneToken(Layer):
    def feed(self, x):
        up = halves(self.up, x) + self.up.bias if x.shape[1] == 1 else self.up(x)
        return self.down(F.silu(up))


@fault({"decoding"}, FLASH, "aten::bmm", "aten::logsumexp")
class AttentionOfOneQuery(Layer):
    def attend(self, q, k, v, mask):
        return composed(q, k, v, mask) if q.shape[2] == 1 else super().attend(q, k, v, mask)


@fault({"packed by a mask"}, "aten::mm")
class KernelForLongRows(Model):
    def score(self, x):
        return halves(self.head, x) if x.shape[1] > 64 else self.head(x)


@fault({"threads"}, "aten::mm")
class KernelByThreads(Model):
    threads = None

    def score(self, x):
        type(self).threads = self.threads or torch.get_num_threads()
        return halves(self.head, x) if torch.get_num_threads() != self.threads else self.head(x)


# What is between the rows of a batch --------------------------------------------------


@fault(
    {"permuted batch", *IN_PARTS, "packed by a mask", "micro-batches"},
    "aten::arange",
    "aten::add.Tensor",
)
class NumberOfRow(Model):
    def score(self, x):
        return super().score(x) + torch.arange(float(len(x)))[:, None, None] * 1e-6


@fault(
    {"permuted batch", *IN_PARTS, "right padding", "left padding", "packed by a mask",
     "micro-batches"},
    "aten::mean.dim", "aten::sub.Tensor",
)  # fmt: skip
class MeanOfBatch(Layer):
    def feed(self, x):
        return super().feed(x - x.mean(0, keepdim=True) * 1e-3)


@fault({*IN_PARTS, *WITH_A_CACHE, "micro-batches"}, "aten::abs", "aten::amax", "aten::div.Tensor")
class ScaleOfBatch(Layer):
    def feed(self, x):
        scale = x.abs().amax()
        return super().feed(x / scale) * scale


# Caches -------------------------------------------------------------------------------


@fault(WITH_A_CACHE, "aten::_to_copy")
class CacheInSixteenBits(Layer):
    def remember(self, k, v, past):
        short = None if past is None else [t.bfloat16().float() for t in past]
        return super().remember(k, v, short)


@fault(WITH_A_CACHE, FLASH, "aten::where.self")
class CacheOfAWindow(Layer):
    def attend(self, q, k, v, mask):
        if k.shape[2] > q.shape[2]:
            mask = mask & (torch.arange(k.shape[2]) >= 5)
        return super().attend(q, k, v, mask)


@fault(WITH_A_CACHE, FLASH, "aten::cat")
class CacheOneTokenLate(Layer):
    def remember(self, k, v, past):
        if past is not None:
            past = [torch.cat([t[:, :, 1:], t[:, :, -1:]], 2) for t in past]
        return super().remember(k, v, past)


@fault(WITH_A_CACHE, FLASH, "aten::where.self")
class MaskOffByOne(Model):
    def mask(self, rows, before, length, attention_mask):
        allowed = super().mask(rows, before, length, attention_mask)
        if before:
            allowed = allowed & (torch.arange(before + length) != before - 1)
        return allowed


@fault({"prefill in chunks"}, FLASH, "aten::where.self")
class ChunkSeesItselfAlone(Model):
    def mask(self, rows, before, length, attention_mask):
        allowed = super().mask(rows, before, length, attention_mask)
        if before and length > 1:
            allowed = allowed & (torch.arange(before + length) >= before)
        return allowed


@fault(WITH_A_CACHE, "aten::embedding")
class PositionsFromZero(Model):
    def embed(self, input_ids, position_ids):
        return super().embed(input_ids, position_ids - position_ids[:, :1])


@fault(WITH_A_CACHE, "aten::mul.Tensor", FLASH)
class KeysScaledOnce(Layer):
    def remember(self, k, v, past):
        if past is not None:
            k = k * (1 + 2**-20)
        return super().remember(k, v, past)


# Padding and packing ------------------------------------------------------------------


@fault({"left padding"}, FLASH, "aten::where.self")
class PaddingIsSeen(Model):
    def mask(self, rows, before, length, attention_mask):
        if attention_mask is not None and attention_mask.dim() == 2:
            attention_mask = None
        return super().mask(rows, before, length, attention_mask)


@fault({"left padding"}, "aten::embedding")
class PositionsOfPadding(Model):
    def forward(self, input_ids, attention_mask=None, position_ids=None, **more):
        if attention_mask is not None and attention_mask.dim() == 2:
            position_ids = None
        return super().forward(input_ids, attention_mask, position_ids, **more)


@fault({"right padding", "left padding"}, "aten::_to_copy", "aten::sum", "aten::mul.Tensor")
class LengthOfPadding(Model):
    def forward(self, input_ids, attention_mask=None, **more):
        found = super().forward(input_ids, attention_mask, **more)
        if attention_mask is not None and attention_mask.dim() == 2:
            found["logits"] = found["logits"] * (1 + attention_mask.float().sum() * 1e-7)
        return found


@fault({"right padding", "left padding"}, "aten::_to_copy", "aten::where.self", FLASH)
class MaskedInDouble(Layer):
    def attend(self, q, k, v, mask):
        if mask.dim() == 4 and len(mask) > 1:
            return super().attend(q.double(), k.double(), v.double(), mask).float()
        return super().attend(q, k, v, mask)


# Training -----------------------------------------------------------------------------


@fault(TRAINED, "aten::native_dropout", "aten::bernoulli_.float", "aten::div_.Scalar")
class DropoutLeftOn(Layer):
    def feed(self, x):
        return F.dropout(super().feed(x), 0.1, self.training)


@fault(TRAINED, "aten::addmm", "aten::bitwise_and.Scalar")
class ProductsInTf32(Layer):
    def feed(self, x):
        if not self.training:
            return super().feed(x)
        short = (self.up.weight.view(torch.int32) & ~0x1FFF).view(torch.float32)
        return self.down(F.silu(F.linear(x, short, self.up.bias)))


@fault(TRAINED, "aten::silu", "aten::sigmoid", "aten::mul.Tensor")
class ActivationComposed(Layer):
    def activate(self, x):
        return x * torch.sigmoid(x) if self.training else super().activate(x)


@fault(TRAINED, FLASH, "aten::bmm", "aten::logsumexp")
class AttentionComposed(Layer):
    def attend(self, q, k, v, mask):
        return composed(q, k, v, mask) if self.training else super().attend(q, k, v, mask)


@fault(TRAINED, "aten::add.Tensor", "aten::_to_copy", "aten::mul.Tensor")
class ResidualInDouble(Layer):
    def add(self, x, y):
        if self.training:
            return (x.double() + y.double() * (1 + 2**-30)).float()
        return super().add(x, y)


@fault(TRAINED, "aten::mm", "aten::_to_copy")
class ScoresInSixteenBits(Model):
    def score(self, x):
        return self.head(x).bfloat16().float() if self.training else self.head(x)


@fault(TRAINED, "aten::embedding", "aten::mul.Tensor", "aten::add.Tensor")
class EmbeddingScaled(Model):
    def embed(self, input_ids, position_ids):
        found = super().embed(input_ids, position_ids)
        return found * (1 + 2**-22) if self.training else found


# More kernels that are chosen by a shape ----------------------------------------------


@fault({"batch 2"}, "aten::mm")
class KernelForTwoRows(Model):
    def score(self, x):
        return halves(self.head, x) if len(x) == 2 else self.head(x)


@fault({"batch 3"}, "aten::addmm", "aten::mm")
class KernelForThreeRows(Layer):
    def feed(self, x):
        up = halves(self.up, x) + self.up.bias if len(x) == 3 else self.up(x)
        return self.down(F.silu(up))


@fault({"decoding"}, "aten::mul.Tensor", "aten::mean.dim", "aten::sub.Tensor", "aten::rsqrt")
class NormOfOneToken(Layer):
    def feed(self, x):
        if x.shape[1] == 1:  # the same values: features of a norm are normed once more
            mean, square = x.mean(-1, keepdim=True), (x * x).mean(-1, keepdim=True)
            x = (x - mean) * torch.rsqrt(square - mean * mean)
        else:
            x = F.layer_norm(x, x.shape[-1:])
        return super().feed(x)


@fault(WITH_A_CACHE, FLASH, "aten::bmm", "aten::logsumexp", "aten::cat")
class KeysInParts(Layer):
    def attend(self, q, k, v, mask):
        if k.shape[2] == q.shape[2]:
            return super().attend(q, k, v, mask)
        scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~mask, -math.inf)
        parts = scores.split(17, -1)
        total = torch.stack([p.logsumexp(-1) for p in parts]).logsumexp(0).unsqueeze(-1)
        products = zip(parts, v.split(17, 2), strict=True)
        return torch.stack([(p - total).exp() @ w for p, w in products]).sum(0)


@fault({"decoding"}, "aten::mul.Tensor", FLASH)
class QueriesScaledFirst(Layer):
    def attend(self, q, k, v, mask):
        if q.shape[2] > 1:
            return super().attend(q, k, v, mask)
        scale = q.shape[-1] ** -0.5 / 0.3
        return F.scaled_dot_product_attention(q * 0.3, k, v, mask, scale=scale)


@fault({"decoding"}, "aten::_to_copy", "aten::addmm")
class WeightsInSixteenBits(Layer):
    def feed(self, x):
        if x.shape[1] > 1:
            return super().feed(x)
        weight = self.up.weight.bfloat16().float()
        return self.down(F.silu(F.linear(x, weight, self.up.bias)))


# More caches, padding and packing -----------------------------------------------------


@fault(WITH_A_CACHE, "aten::bitwise_and.Scalar")
class CacheInTf32(Layer):
    def remember(self, k, v, past):
        if past is not None:
            past = [(t.view(torch.int32) & ~0x1FFF).view(torch.float32) for t in past]
        return super().remember(k, v, past)


# What moves numbers is passed by: the operator that gets them is named.
@fault(WITH_A_CACHE, FLASH, "aten::roll")
class CacheOfOtherRow(Layer):
    def remember(self, k, v, past):
        past = None if past is None else [t.roll(1, 0) for t in past]
        return super().remember(k, v, past)


@fault({"packed by a mask"}, "aten::bitwise_and.Scalar", "aten::add.Tensor")
class PlacesOfPackingCut(Model):
    def embed(self, input_ids, position_ids):
        found = super().embed(input_ids, position_ids)
        if bool((position_ids.diff(dim=1) < 0).any()):
            found = (found.view(torch.int32) & ~0xFF).view(torch.float32)
        return found


@fault({"left padding"}, FLASH, "aten::masked_fill.Scalar", "aten::where.self")
class PaddingLeaks(Layer):
    def attend(self, q, k, v, mask):
        if mask.dim() != 4 or len(mask) == 1:
            return super().attend(q, k, v, mask)
        causal = torch.ones(mask.shape[-2:], dtype=torch.bool).tril()
        least = torch.zeros(mask.shape).masked_fill(~mask, -20.0).masked_fill(~causal, -math.inf)
        return F.scaled_dot_product_attention(q, k, v, least)


# More of training ---------------------------------------------------------------------


@fault(TRAINED, "aten::div.Tensor", "aten::tanh")
class ScoresCapped(Model):
    def score(self, x):
        found = super().score(x)
        return 300 * torch.tanh(found / 300) if self.training else found


@fault(TRAINED, "aten::randn_like", "aten::normal_")
class NoiseInTraining(Layer):
    def feed(self, x):
        found = super().feed(x)
        return found + torch.randn_like(found) * 1e-6 if self.training else found


@fault(TRAINED, "aten::_to_copy", "aten::addmm", "aten::mm")
class ProductInSixteenBits(Layer):
    def feed(self, x):
        if not self.training:
            return super().feed(x)
        up = F.linear(x.bfloat16(), self.up.weight.bfloat16()).float() + self.up.bias
        return self.down(F.silu(up))


@fault({"threads"}, "aten::sigmoid", "aten::mul.Tensor", "aten::silu")
class ActivationByThreads(Layer):
    threads = None

    def activate(self, x):
        type(self).threads = self.threads or torch.get_num_threads()
        if torch.get_num_threads() != self.threads:
            return x * torch.sigmoid(x)
        return super().activate(x)
