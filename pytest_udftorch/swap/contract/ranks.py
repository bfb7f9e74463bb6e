# SPDX-License-Identifier: Apache-2.0
"""Data, sharded and tensor parallelism whose sums have the bits of one process.

:func:`tree_layout` changes three things of a model that torch has spread over ranks. Averages of
gradients, of ``DistributedDataParallel`` and ``fully_shard``, are taken in the order of the
contract. Linear layers that ``parallelize_module`` has cut send nodes of the tree instead of one
sum. Parameters of norms under sequence parallelism add their gradients in the order of the rows.

Gradients of layers in bfloat16 are rounded once, after they were added over ranks, as one process
rounds them after it has added over the batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, cast

from pytest_udftorch.errors import SummationError
from pytest_udftorch.swap.contract.cuda_exact import CHUNK as EXACT_CHUNK
from pytest_udftorch.swap.contract.native import contract
from pytest_udftorch.swap.contract.nodes import CHUNK, Ranks, cuts, product, ranks_of, row_sum
from pytest_udftorch.swap.contract.replicas import (
    ROUNDED,
    checked,
    rounded_mean,
    scatter_mean,
    tree_hook,
)


class Cut(NamedTuple):
    """How a linear layer lies on ranks.

    Attributes:
        dim: which dimension of the weight is cut; None if the layer is whole.
        size: of this dimension, on all ranks together.
        ranks: that share it; None if the layer is whole.
        unrounded: leave gradients of parameters in float32, since ranks add them.
    """

    dim: int | None
    size: int
    ranks: Any
    unrounded: bool


@functools.cache
def _linear() -> Any:
    """Return the function of linear layers, whose class needs torch."""
    import torch

    class Linear(torch.autograd.Function):
        """A linear layer of two-dimensional inputs, of which ranks may have parts."""

        @staticmethod
        def forward(ctx: Any, x: Any, weight: Any, bias: Any, cut: Cut) -> Any:
            w = weight.to(x.dtype)
            ctx.save_for_backward(x, w)
            ctx.cut, ctx.dtypes = cut, (weight.dtype, bias is not None and bias.dtype)
            b = None if bias is None else bias.to(x.dtype)
            if cut.dim != 1:
                return torch.nn.functional.linear(x, w, b)

            def finish(sums: Any) -> Any:
                return (sums if b is None else sums + b.float()).to(x.dtype)

            return product(x, w.t(), cut.size, cut.ranks, finish)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            (x, w), cut = ctx.saved_tensors, ctx.cut
            of_weight, of_bias = ctx.dtypes
            found = [None, None, None]
            if ctx.needs_input_grad[0] and cut.dim == 0:
                found[0] = product(grad, w, cut.size, cut.ranks, lambda sums: sums.to(x.dtype))
            elif ctx.needs_input_grad[0]:
                found[0] = grad @ w

            def rounded(sums: Any, dtype: Any) -> Any:
                return (sums if cut.unrounded else sums.to(x.dtype)).to(dtype)

            if ctx.needs_input_grad[1]:
                found[1] = rounded(contract().mm(grad.t(), x), of_weight)
            if ctx.needs_input_grad[2]:
                found[2] = rounded(contract().sums(grad.float(), 0), of_bias)
            return *found, None

    return Linear


@functools.cache
def _rounding() -> Any:
    """Return the function that rounds a parameter, and leaves its gradient as it is."""
    import torch

    class Rounded(torch.autograd.Function):
        """Numbers of 16 bits in float32."""

        @staticmethod
        def forward(ctx: Any, x: Any, dtype: Any) -> Any:
            return x.to(dtype).float()

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad, None

    return Rounded


@functools.cache
def _spreading() -> Any:
    """Return the function that gives each row a parameter, and adds the rows' gradients."""
    import torch

    class Spread(torch.autograd.Function):
        """A parameter of a norm, for each row of which this rank has some."""

        @staticmethod
        def forward(ctx: Any, of: Any, shape: Any, ranges: Any, ranks: Ranks) -> Any:
            ctx.given = ranges, ranks
            return of.expand(*shape, *of.shape)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            rows = grad.reshape(-1, grad.shape[-1]).float()
            return row_sum(rows, *ctx.given).to(grad.dtype), None, None, None

    return Spread


# What runs instead of a layer's forward ---------------------------------------------------


def _narrow(x: Any) -> Any:
    """Return the dtype that a layer's input has under autocast.

    Raises:
        SummationError: neither float32 nor bfloat16.
    """
    import torch

    kind = x.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
    if dtype not in (torch.float32, torch.bfloat16):
        raise SummationError(
            f"A layer computes in {dtype}, but parts of sums are exchanged in float32 and for "
            "bfloat16 alone. Use float32, or torch.autocast with torch.bfloat16."
        )
    return dtype


def _power(number: int) -> bool:
    return number > 0 and not number & (number - 1)


def _check_part(name: str, terms: int, chunk: int) -> None:
    """Refuse a part of a batch that is no node of the tree."""
    if terms % chunk or not _power(terms // chunk):
        raise SummationError(
            f"{name} gets {terms} rows of this rank's part of the batch, which are no node of the "
            f"tree that adds its gradient: that takes {chunk} rows times a power of two. Choose "
            "another batch or length, or fewer ranks."
        )


def _mark(parameters: Iterable[Any], dtype: Any) -> None:
    """Have gradients of parameters rounded after ranks have added them."""
    for of in parameters:
        setattr(of, ROUNDED, dtype)


def _with(layer: Any, parameters: dict[str, Any]) -> Callable[..., Any]:
    """Return the forward that the class of a layer has, with other parameters and without hooks."""
    of: Any = type(layer)
    made = object.__new__(of)
    made.__dict__.update(layer.__dict__)
    made.__dict__.pop("forward", None)
    made.__dict__["_parameters"] = parameters
    return made.forward  # type: ignore[no-any-return]


class _Linear:
    """The forward of a linear layer on ranks."""

    def __init__(self, name: str, layer: Any, parts: int) -> None:
        self.name, self.layer, self.parts = name, layer, parts
        self.plain = layer.forward
        self.leaves = list(layer.parameters(recurse=False))

    def __call__(self, input: Any) -> Any:
        import torch
        from torch.distributed.tensor import DTensor, Replicate, Shard

        weight, bias = self.layer.weight, self.layer.bias
        x, dim = input, None
        if isinstance(weight, DTensor):
            if not isinstance(input, DTensor):
                raise SummationError(
                    f"{self.name} has a weight that lies on several ranks, and an input that does "
                    "not say how it lies. Give parallelize_module a style for this layer."
                )
            mesh, dim = weight.device_mesh, _cut_dim(self.name, weight)
            x = input.to_local()
        dtype = _narrow(x)
        if self.parts > 1:
            chunk = CHUNK if str(dtype) == "torch.float32" else EXACT_CHUNK
            _check_part(self.name, x.shape[:-1].numel(), chunk)
        unrounded = self.parts > 1 and dtype is not weight.dtype
        if unrounded:
            _mark(self.leaves, dtype)
        if dim is None and not unrounded and x is input:
            return self.plain(input)
        ranks = None if dim is None else ranks_of(mesh.get_group())
        size = weight.shape[dim] if dim is not None else 0
        local = [w.to_local() if isinstance(w, DTensor) else w for w in (weight, bias)]
        rows = x.reshape(-1, x.shape[-1]).to(dtype)
        y = _linear().apply(rows, *local, Cut(dim, size, ranks, unrounded))
        y = y.view(*x.shape[:-1], -1)
        if x is input:
            return y
        shape = torch.Size((*x.shape[:-1], weight.shape[0]))
        placed = Shard(y.dim() - 1) if dim == 0 else Replicate()
        strides = tuple(shape[at + 1 :].numel() for at, _ in enumerate(shape))
        return DTensor.from_local(y, mesh, [placed], run_check=False, shape=shape, stride=strides)


class _Convolution:
    """The forward of a convolution whose gradients ranks add."""

    def __init__(self, name: str, layer: Any) -> None:
        self.name, self.layer, self.plain = name, layer, layer.forward
        self.leaves = list(layer.parameters(recurse=False))

    def __call__(self, input: Any) -> Any:
        import torch

        dtype = _narrow(input)
        _check_part(self.name, len(input), 1)
        if dtype is torch.float32:
            return self.plain(input)
        _mark(self.leaves, dtype)
        rounded = {
            name: _rounding().apply(of, dtype)
            for name, of in self.layer.named_parameters(recurse=False)
        }
        with torch.autocast(input.device.type, enabled=False):
            return _with(self.layer, rounded)(input.to(dtype).float()).to(dtype)


class _Norm:
    """The forward of a layer whose parameters all ranks have, and whose rows lie on several."""

    def __init__(self, name: str, layer: Any) -> None:
        self.name, self.layer, self.plain = name, layer, layer.forward
        self.given: Any = None
        layer.register_forward_pre_hook(self._remember, prepend=True)

    def _remember(self, _: Any, args: tuple[Any, ...]) -> None:
        self.given = args[0] if args else None

    def _rows(self, input: Any) -> Any:
        """Return this rank's rows, as the tensor that the layer was called with.

        A style makes a tensor of its own of it. The gradients of the layer's uses would be added
        there, before those of other uses of the input; one process adds them one after the other.
        """
        x, given, self.given = input.to_local(), self.given, None
        same = getattr(given, "shape", None) == x.shape and given.data_ptr() == x.data_ptr()
        return given if same else x

    def __call__(self, input: Any, *args: Any, **kwargs: Any) -> Any:
        import torch
        from torch.distributed.tensor import DTensor

        of_input: Any = input.placements if isinstance(input, DTensor) else ()
        cut = [p.dim % input.dim() for p in of_input if p.is_shard()]
        if not cut:
            return self.plain(input, *args, **kwargs)
        if cut != [cut[0] % (input.dim() - 1)]:
            _refuse(
                f"{self.name} ({type(self.layer).__name__})",
                f"gets an input that lies on ranks as {of_input}",
                "Use SequenceParallel over a mesh of one dimension, along a dimension of rows.",
            )
        mesh, x = input.device_mesh, self._rows(input)
        ranks = ranks_of(mesh.get_group())
        lead = input.shape[:-1]
        outer, each, inner = lead[: cut[0]].numel(), lead[cut[0]], lead[cut[0] + 1 :].numel()
        edges = cuts(each, ranks.world)
        ranges = [
            [range((o * each + low) * inner, (o * each + high) * inner) for o in range(outer)]
            for low, high in pairwise(edges)
        ]
        spread = {
            name: _spreading().apply(of.to_local(), x.shape[:-1], ranges, ranks)
            for name, of in self.layer.named_parameters(recurse=False)
        }
        if isinstance(self.layer, (torch.nn.LayerNorm, torch.nn.RMSNorm)):
            # Their operators take one parameter for all rows.
            y = _with(self.layer, dict.fromkeys(("weight", "bias")))(x) * spread["weight"]
            y = y + spread["bias"] if "bias" in spread else y
        else:
            y = _with(self.layer, spread)(x, *args, **kwargs)
        return DTensor.from_local(
            y, mesh, input.placements, run_check=False, shape=input.shape, stride=input.stride()
        )


# The whole model --------------------------------------------------------------------------


class _ReduceScatter:
    """What ``fully_shard`` averages gradients with."""

    def allocate(self, size: Sequence[int], *, dtype: Any, device: Any) -> Any:
        """Return memory for what is sent or received."""
        import torch

        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Any, input_tensor: Any, group: Any, op: Any, async_op: bool = False
    ) -> None:
        """Write this rank's part of the average, or of the sum."""
        scatter_mean(output_tensor, input_tensor, group, op)


def _round_gradient(parameter: Any) -> None:
    """Round what ``fully_shard`` has averaged."""
    parameter.grad = rounded_mean(parameter, parameter.grad)


def _refuse(what: str, why: str, instead: str) -> None:
    raise SummationError(f"{what} {why}, so the ranks would not have the bits of one. {instead}")


def _check_layers(model: Any, *, in_parts: bool) -> None:
    """Refuse layers that compute something else on ranks than on one process."""
    for name, module in model.named_modules():
        kind = type(module).__name__
        if "Dropout" in kind and getattr(module, "p", False) and module.training:
            _refuse(f"{name} ({kind})", "draws for each rank anew", "Set its p to 0.")
        if in_parts and "BatchNorm" in kind:
            _refuse(
                f"{name} ({kind})", "takes statistics of each rank's part of the batch",
                "Use group norm or layer norm, or freeze the statistics and remove the layer.",
            )  # fmt: skip
    every = [of for _, of in model.named_parameters(remove_duplicate=False)]
    if in_parts and len(every) > len({id(of) for of in every}):
        names = dict(model.named_parameters()).keys()
        both = [n for n, _ in model.named_parameters(remove_duplicate=False) if n not in names]
        _refuse(
            both[0], "belongs to two layers, whose gradients are added before those of ranks",
            "Give each layer a parameter of its own.",
        )  # fmt: skip


def _check_ranks(count: int, what: str, kind: str = "ranks") -> None:
    if not _power(count):
        _refuse(
            f"{what} over {count} {kind}", "divides means by a number that is no power of two",
            f"Use 2, 4, 8 … {kind} for parts of the batch.",
        )  # fmt: skip


def _cut_dim(name: str, weight: Any, outer: int = 0) -> int:
    """Return which dimension of a linear layer's weight is cut by tensor parallelism.

    Args:
        name: of the layer.
        weight: a DTensor.
        outer: how many dimensions of its mesh belong to ``fully_shard``.
    """
    placed = weight.placements[outer:]
    if len(placed) != 1 or not placed[0].is_shard() or placed[0].dim not in (0, 1):
        _refuse(
            name, f"has a weight that lies on ranks as {placed}",
            "Use ColwiseParallel or RowwiseParallel over a mesh of one dimension.",
        )  # fmt: skip
    return int(placed[0].dim)


def _placed(parameter: Any, outer: int) -> tuple[Any, ...]:
    """Return how a parameter lies on the ranks of tensor parallelism, if it does."""
    return tuple(getattr(parameter, "placements", ()))[outer:]


def _set_forward(module: Any, forward: Callable[..., Any]) -> None:
    module.forward = forward


def _prepare(name: str, module: Any, parts: int, outer: int) -> None:
    """Change the forward of a layer where its sums are over ranks."""
    import torch

    mine = list(module.parameters(recurse=False))
    placed = [found for of in mine if (found := _placed(of, outer))]
    if isinstance(module, torch.nn.Linear):
        if placed:
            _cut_dim(name, module.weight, outer)
        if placed or parts > 1:
            _set_forward(module, _Linear(name, module, parts))
    elif isinstance(module, _convolutions()) and not placed:
        if parts > 1:
            _set_forward(module, _Convolution(name, module))
    elif isinstance(module, torch.nn.Embedding) and placed:
        if not placed[0][0].is_shard():
            _refuse(
                name, "has a weight that all ranks have, and gradients of some rows",
                "Leave it out of the plan, or use RowwiseParallel or ColwiseParallel.",
            )  # fmt: skip
    elif placed:
        if any(len(p) > 1 or not p[0].is_replicate() for p in placed) or any(
            of.dim() != 1 for of in mine
        ):
            _refuse(
                f"{name} ({type(module).__name__})", f"has parameters on ranks as {placed}",
                "Cut linear layers and embeddings alone; SequenceParallel is for norms.",
            )  # fmt: skip
        _set_forward(module, _Norm(name, module))


def _convolutions() -> Any:
    from torch import nn

    return nn.Conv1d, nn.Conv2d, nn.Conv3d


def tree_layout(model: Any, *, micro_batches: int = 1) -> Any:
    """Let a model that lies on several ranks have the bits that it has on one, under ``repro``.

    Call it once, after ``parallelize_module``, ``fully_shard`` or ``DistributedDataParallel`` and
    before the first step. Each of these, and ``fully_shard`` over ``parallelize_module``, is known:

    - Averages of gradients over parts of a batch are taken in the order of the contract. A part is
      contiguous; at each linear layer it has 64 rows times a power of two, in bfloat16 512 times.
    - Linear layers in the styles ``ColwiseParallel`` and ``RowwiseParallel`` send nodes of the
      tree. Any number of ranks may share any number of features.
    - ``SequenceParallel`` adds gradients of one-dimensional parameters in the order of the rows.

    Weights are in float32. Linear layers and convolutions may run under autocast in bfloat16.
    A model on one rank is left as it is, unless it learns in micro-batches.

    Args:
        model: a ``torch.nn.Module``; its layers are changed.
        micro_batches: how many :class:`GradientTree` adds in a step. Gradients in bfloat16 are then
            rounded after they were added. Tensor parallelism alone goes with more than one.

    Returns:
        ``model``.

    Raises:
        SummationError: the model or its layout cannot have the bits of one process: dropout, batch
            norm or shared parameters where the batch is taken in parts, a number of parts that is
            no power of two, replicated shards (HSDP), micro-batches in data parallelism, weights in
            16 bits, or an unknown layout. The first forward raises it for a part of a batch that is
            no node of the tree.
    """
    import torch

    _check_ranks(micro_batches, "a step", "micro-batches")
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return _laid_out(model, micro_batches, 0)
    from torch.distributed.fsdp import FSDPModule
    from torch.nn.parallel import DistributedDataParallel

    parts, outer = 1, 0
    for module in model.modules():
        if isinstance(module, DistributedDataParallel):
            parts = torch.distributed.get_world_size(module.process_group)
            _check_ranks(parts, "DistributedDataParallel")
        elif isinstance(module, FSDPModule):
            for of in cast("Any", module).parameters():
                if of.placements[0].is_replicate():
                    _refuse(
                        "fully_shard over a mesh of two dimensions",
                        "adds the replicas' gradients in an order that is not fixed",
                        "Give it a mesh of one dimension.",
                    )
                parts, outer = of.device_mesh.size(0), 1
            _check_ranks(parts, "fully_shard")
    if min(parts, micro_batches) > 1:
        _refuse(
            "data parallelism in micro-batches", "rounds and adds gradients after each of them",
            "Use GradientTree.finish(group) without DistributedDataParallel or fully_shard.",
        )  # fmt: skip
    _laid_out(model, max(parts, micro_batches), outer)
    for module in model.modules():
        if isinstance(module, DistributedDataParallel):
            module.register_comm_hook(module.process_group, tree_hook)
        elif isinstance(module, FSDPModule):
            module.set_custom_reduce_scatter(cast("Any", _ReduceScatter()))
    if outer:
        for of in model.parameters():
            of.register_post_accumulate_grad_hook(_round_gradient)
    return model


def _laid_out(model: Any, parts: int, outer: int) -> Any:
    """Check a model's layers, and change those whose sums are over ranks or parts of a batch."""
    if parts > 1 or any(_placed(of, outer) for of in model.parameters()):
        _check_layers(model, in_parts=parts > 1)
        for of in model.parameters():
            checked(of, "A weight")
        for name, module in model.named_modules():
            _prepare(name, module, parts, outer)
    return model
