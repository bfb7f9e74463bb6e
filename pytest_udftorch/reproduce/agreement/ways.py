# SPDX-License-Identifier: Apache-2.0
"""The ways of running a model that ought to agree with a forward pass over the whole batch.

A way yields, call by call, pieces of the batch's result. Each is a generator, so that a single call
can be recorded: the calls before it have run, and what they left in a cache is there.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pytest_udftorch.base.optional import package
from pytest_udftorch.errors import RunError, nearest
from pytest_udftorch.reproduce.agreement.checkpoint import both, lacking, loss_of
from pytest_udftorch.reproduce.agreement.parting import First
from pytest_udftorch.reproduce.agreement.subject import CACHES, Piece, Subject, far, result_of
from pytest_udftorch.reproduce.agreement.tree_nodes import cut_across

Pieces = Iterator[list[Piece]]

#: Tokens that a cache holds before tokens are decoded one by one, of the batch's length. Odd parts
#: lie across the blocks in which kernels work.
_DECODED: Final = 16

#: Sizes of a batch, beside the whole; the odd one fills no vector of a kernel.
_SIZES: Final = (1, 2, 3)

#: How many micro-batches a batch is cut into, and the terms of a sum that the contract adds first.
_PARTS: Final = 4
_NODE: Final = 64

#: Kinds of layers in configurations of transformers: those with a window, and those without.
_SLIDING: Final = "sliding_attention"
_FULL: Final = "full_attention"

#: The token that fills up a row where the model has none for it.
_FILLER: Final = 0


@dataclass(frozen=True)
class Way:
    """A way of running a model.

    Attributes:
        name: what tables and ``--ways`` call it.
        run: yields the pieces of each call.
        applies: tells whether a model can be run so.
        recorded: whether operators are seen while it runs.
        compares_gradients: whether its pieces have the gradients of the batch.
        quick: whether it runs unless other ways are named.
        cause: returns what makes it differ, if that is no operator that is seen.
    """

    name: str
    run: Callable[[Subject], Pieces]
    applies: Callable[[Subject], bool]
    recorded: bool = True
    compares_gradients: bool = False
    quick: bool = True
    cause: Callable[[Subject], First | None] | None = None


def _all(one: Subject) -> tuple[int, ...]:
    return tuple(range(one.batch))


def _piece(one: Subject, output: Any, rows: Sequence[int], **where: Any) -> Piece:
    if one.length:
        where = {"start": 0, "stop": one.length, "memory": one.length, **where}
    return Piece(output, tuple(rows), **where)


def evaluation(one: Subject) -> Pieces:
    """Run the whole batch without gradients; every other way is compared with this one."""
    import torch

    with torch.no_grad():
        yield [_piece(one, one.call(), _all(one))]


def _training(one: Subject) -> Pieces:
    with one.training():
        yield [_piece(one, one.call(), _all(one))]


def _of_size(size: int) -> Callable[[Subject], Pieces]:
    def run(one: Subject) -> Pieces:
        import torch

        for start in range(0, one.batch, size):
            rows = range(start, min(start + size, one.batch))
            with torch.no_grad():
                found = one.call(one.rows(slice(rows.start, rows.stop)))
            yield [_piece(one, found, rows)]

    return run


def _permuted(one: Subject) -> Pieces:
    import torch

    order = torch.randperm(one.batch, generator=torch.Generator().manual_seed(3)).tolist()
    with torch.no_grad():
        yield [_piece(one, one.call(one.rows(order)), order)]


def _prefix(one: Subject) -> Pieces:
    import torch

    ids, stop = one.inputs[one.sequence], one.length * 5 // 8 - 3
    with torch.no_grad():
        found = one.call({one.sequence: ids[:, :stop]})
    yield [_piece(one, found, _all(one), stop=stop, memory=stop)]


# Padding and packing -----------------------------------------------------------------


def _pads(one: Subject) -> list[int]:
    """Return how many places of each row are padding: rows of a batch have other lengths."""
    if not one.causal:
        return [13] * one.batch
    return [(13 * row) % (one.length // 2) for row in range(one.batch)]


def _padded(one: Subject, *, left: bool) -> Pieces:
    """Pad rows; those of a causal model are cut short, so that their lengths differ."""
    import torch

    ids, pads = one.inputs["input_ids"], _pads(one)
    width = one.length + (0 if one.causal else max(pads))
    filler = getattr(getattr(one.model, "config", None), "pad_token_id", None)
    tokens = ids.new_full((one.batch, width), filler if isinstance(filler, int) else _FILLER)
    mask = torch.zeros_like(tokens)
    places = torch.zeros_like(tokens)
    for row, pad in enumerate(pads):
        start = pad if left else 0
        count = width - pad
        tokens[row, start : start + count] = ids[row, :count]
        mask[row, start : start + count] = 1
        places[row, start : start + count] = torch.arange(count)
    told = left and one.counts_padding and one.takes("position_ids")
    more = {"position_ids": places} if told else {}
    with torch.no_grad():
        found = one.call({"input_ids": tokens}, attention_mask=mask, **more)
    yield [
        _piece(
            one, found, [row], stop=width - pad, own_row=row, own_start=pad if left else 0,
            memory=width, first_key=pad if left else 0,
        )
        for row, pad in enumerate(pads)
    ]  # fmt: skip


def _right_padding(one: Subject) -> Pieces:
    return _padded(one, left=False)


def _left_padding(one: Subject) -> Pieces:
    return _padded(one, left=True)


def padded_left(one: Subject) -> Pieces:
    """Run rows of several lengths behind padding; a model that cannot be padded yields nothing."""
    if _pads_left(one):
        yield from _left_padding(one)


def _pads_left(one: Subject) -> bool:
    """Tell whether rows can be padded on the left, and try if the model counts positions itself."""
    if not _masked(one):
        return False
    if one.takes("position_ids"):
        (whole,) = next(evaluation(one))
        for one.counts_padding in (True, False):
            (pieces,) = _left_padding(one)
            if not any(far(p.own(), p.of(whole.output)) for p in pieces):
                return True
        one.counts_padding = True
    return True


def _lengths(one: Subject) -> list[int]:
    """Return the lengths of the sequences that are packed into a row, each of a row of its own."""
    found = [one.length - 1, one.length * 5 // 8 - 3, one.length // 2 - 14]
    return found[: one.batch]


def _pack(one: Subject, *, by_mask: bool) -> Any:
    """Run sequences as one row, with their own positions.

    Args:
        one: the model.
        by_mask: whether a mask keeps them apart; without one, a model sees it from the positions.
    """
    import torch

    ids = one.inputs["input_ids"]
    parts = [ids[row, :length] for row, length in enumerate(_lengths(one))]
    places = [torch.arange(len(part), device=ids.device) for part in parts]
    mask = None
    if by_mask:
        owner = torch.cat([torch.full_like(part, row) for row, part in enumerate(parts)])
        mask = _masks(one, (owner[:, None] == owner[None, :]).tril())
    with torch.no_grad():
        return one.call(
            {"input_ids": torch.cat(parts)[None]},
            attention_mask=mask, position_ids=torch.cat(places)[None],
        )  # fmt: skip


def _masks(one: Subject, allowed: Any) -> Any:
    """Return what a model adds to scores: one tensor, or one for each kind of its layers.

    A model of transformers that gets such a mask adds it as it is, so that it has to hide what lies
    before a window, too.
    """
    import torch

    config: Any = getattr(one.model, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or ())

    def added(seen: Any) -> Any:
        mask = torch.zeros(seen.shape, dtype=_dtype(one), device=seen.device)
        return mask.masked_fill_(~seen, torch.finfo(mask.dtype).min)[None, None]

    if not isinstance(window, int):
        return added(allowed)
    near = allowed & ~allowed.new_ones(allowed.shape).tril(-window)
    if _SLIDING in kinds and kinds <= {_SLIDING, _FULL}:
        return {kind: added(near if kind == _SLIDING else allowed) for kind in kinds}
    return added(allowed if kinds else near)


def _packed_pieces(one: Subject, found: Any) -> list[Piece]:
    lengths, pieces, start = _lengths(one), [], 0
    for row, length in enumerate(lengths):
        pieces.append(
            _piece(one, found, [row], stop=length, own_start=start, memory=sum(lengths),
                   first_key=start)
        )  # fmt: skip
        start += length
    return pieces


def _packs(one: Subject, *, by_mask: bool) -> bool:
    """Try whether a model keeps packed sequences apart, but for rounding."""
    import torch

    fits = one.causal and _masked(one) and one.takes("position_ids") and one.length >= 32
    if not fits:
        return False
    with torch.no_grad():
        whole = one.call()
        try:
            found = _pack(one, by_mask=by_mask)
        except Exception:  # whatever a model's own code raises
            return False
    return not any(far(p.own(), p.of(whole)) for p in _packed_pieces(one, found))


def _packed(one: Subject) -> Pieces:
    yield _packed_pieces(one, _pack(one, by_mask=False))


def _packed_by_mask(one: Subject) -> Pieces:
    yield _packed_pieces(one, _pack(one, by_mask=True))


def _dtype(one: Subject) -> Any:
    return next((p.dtype for p in one.model.parameters() if p.is_floating_point()), None)


# With a cache ------------------------------------------------------------------------


def _steps(one: Subject, ends: Sequence[int], cache: Any = None, size: int = 0) -> Pieces:
    """Run a sequence part by part; what a part leaves in the cache is there for the next."""
    import torch

    ids, start = one.inputs[one.sequence], 0
    for end in ends:
        more = {} if cache is None else {one.cache: cache}
        with torch.no_grad():
            output = one.full({one.sequence: ids[:, start:end]}, use_cache=True, **more)
        cache = next(output[name] for name in CACHES if output.get(name) is not None)
        where = {"start": start, "stop": end, "memory": size or end}
        yield [_piece(one, result_of(output), _all(one), **where)]
        start = end


def _chunks(one: Subject) -> Pieces:
    step = one.length * 3 // 8 + 1
    return _steps(one, [*range(step, one.length, step), one.length])


def _decoding(one: Subject) -> Pieces:
    first = max(one.length - _DECODED, 1)
    return _steps(one, range(first, one.length + 1))


def _static(one: Subject) -> Pieces:
    transformers = package("transformers", "Decoding with a static cache")
    size = one.length + _DECODED
    cache = transformers.StaticCache(config=one.model.config, max_cache_len=size)
    first = max(one.length - _DECODED, 1)
    return _steps(one, range(first, one.length + 1), cache, size)


# Training ----------------------------------------------------------------------------


def _gradients(one: Subject) -> dict[str, Any]:
    found = {n: p.grad for n, p in one.model.named_parameters() if p.grad is not None}
    one.model.zero_grad(set_to_none=True)
    return found


def step(one: Subject) -> Pieces:
    """Run forward and backward over the whole batch."""
    with one.training():
        logits = one.call()
        loss_of(logits, one.targets).backward()
        yield [_piece(one, logits.detach(), _all(one), gradients=_gradients(one))]


def _checkpointed(one: Subject) -> Pieces:
    # transformers renames these; torch's own modules have neither.
    word = "activation" if hasattr(one.model, "activation_checkpointing_enable") else "gradient"
    with contextlib.ExitStack() as stack:
        getattr(one.model, f"{word}_checkpointing_enable")()
        stack.callback(getattr(one.model, f"{word}_checkpointing_disable"))
        yield from step(one)


def _resumed(one: Subject) -> Pieces:
    import torch

    through, resumed = both(one)
    with torch.no_grad():
        yield [_piece(one, resumed.call(), _all(one), instead=through.call())]


def _lacking(one: Subject) -> First | None:
    return lacking(*both(one))


def _micro_batches(one: Subject) -> Pieces:
    from pytest_udftorch.swap.contract.replicas import GradientTree

    size = one.batch // _PARTS
    with one.training():
        tree = GradientTree(one.model.parameters())
        for start in range(0, one.batch, size):
            part = slice(start, start + size)
            logits = one.call(one.rows(part))
            tree.backward(loss_of(logits, one.targets[part]))
            gradients = None
            if part.stop == one.batch:
                tree.finish()
                gradients = _gradients(one)
            rows = range(start, part.stop)
            yield [_piece(one, logits.detach(), rows, gradients=gradients)]


# Elsewhere ---------------------------------------------------------------------------


def _threads(one: Subject) -> Pieces:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1 if before > 1 else 2)
    try:
        yield from evaluation(one)
    finally:
        torch.set_num_threads(before)


def _compiled(one: Subject) -> Pieces:
    import torch

    torch.compiler.reset()
    compiled = copy.copy(one)
    compiled.model = torch.compile(one.model, dynamic=False)
    try:
        yield from evaluation(compiled)
    finally:
        torch.compiler.reset()


def _cuda(one: Subject) -> Pieces:
    yield from evaluation(one.on("cuda"))


def _second_gpu(one: Subject) -> Pieces:
    yield from evaluation(one.on("cuda:1"))


def _gpus() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _has_static_cache(one: Subject) -> bool:
    """Tell whether there is one cache; an encoder and a decoder have two."""
    return one.cache in CACHES[:2] and one.sequence == "input_ids"


def _masked(one: Subject) -> bool:
    return one.sequence == "input_ids" and one.takes("attention_mask")


def _in_tree(one: Subject) -> bool:
    """Tell whether micro-batches are nodes of the tree of the batch, which is one of float32."""
    terms = one.batch // _PARTS * one.length
    powers = all(n and n & (n - 1) == 0 for n in (one.batch, terms))
    kinds = {str(p.dtype) for p in one.model.parameters()}
    return powers and terms >= _NODE and kinds == {"torch.float32"}


def _learns(one: Subject) -> bool:
    return any(p.requires_grad for p in one.model.parameters())


def _checkpoints(one: Subject) -> bool:
    return bool(getattr(one.model, "supports_gradient_checkpointing", False))


#: Parts of a batch whose gradients are added.
MICRO_BATCHES: Final = "micro-batches"

#: Every way, in the order of the table.
WAYS: Final = (
    Way("training forward", _training, lambda one: True),
    *(
        Way(f"batch {n}", _of_size(n), lambda one, n=n: n < one.batch)  # type: ignore[misc]
        for n in _SIZES
    ),
    Way("permuted batch", _permuted, lambda one: True),
    Way("prefix", _prefix, lambda one: one.causal and one.length >= 16),
    Way("right padding", _right_padding, _masked),
    Way("left padding", _left_padding, _pads_left),
    Way("packed by positions", _packed, lambda one: _packs(one, by_mask=False)),
    Way("packed by a mask", _packed_by_mask, lambda one: _packs(one, by_mask=True)),
    Way("prefill in chunks", _chunks, lambda one: one.cache is not None),
    Way("decoding", _decoding, lambda one: one.cache is not None),
    Way("decoding in a static cache", _static, _has_static_cache),
    Way("gradient checkpointing", _checkpointed, _checkpoints, compares_gradients=True),
    Way(MICRO_BATCHES, _micro_batches, _in_tree, compares_gradients=True, cause=cut_across),
    Way("threads", _threads, lambda one: True),
    Way("resumed from a checkpoint", _resumed, _learns, recorded=False, quick=False,
        cause=_lacking),
    Way("compiled", _compiled, lambda one: True, recorded=False, quick=False),
    Way("GPU", _cuda, lambda one: _gpus() > 0),
    Way("second GPU", _second_gpu, lambda one: _gpus() > 1),
)  # fmt: skip


#: Names every way that a model has.
EVERY: Final = "all"


def chosen(one: Subject, names: Sequence[str] | None) -> list[Way]:
    """Return the ways that a model can be run in, or those of them that are named.

    By default these are the quick ones, and ``all`` names all.

    Raises:
        RunError: there is no way of that name, or the model cannot be run so.
    """
    if names is None or EVERY in names:
        return [way for way in WAYS if (way.quick or names) and way.applies(one)]
    known = {way.name: way for way in WAYS}
    for name in names:
        if name not in known:
            raise RunError(f"There is no way {name!r}. {nearest(name, [*known, EVERY])}")
        if not known[name].applies(one):
            raise RunError(
                f"{type(one.model).__name__} cannot be run in the way {name!r}. Those that it has: "
                f"{', '.join(way.name for way in WAYS if way.applies(one))}."
            )
    return [way for way in WAYS if way.name in names]
