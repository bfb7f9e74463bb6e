# SPDX-License-Identifier: Apache-2.0
"""Gradients of the parts of a batch, added in the order that the contract has for sums.

Under ``repro`` the gradient of a weight is a sum over the batch, in a tree. Where the parts of a
batch fall on nodes of that tree, adding their gradients in the same tree gives the bits of the
whole batch: on several ranks, in micro-batches on one, or both.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence
from typing import Any, Final

from pytest_udftorch.errors import SummationError
from pytest_udftorch.swap.contract.uses import gradients_of_uses


class _Tree:
    """A sum of tensors in the order of the contract, holding one tensor for each bit of a count."""

    def __init__(self) -> None:
        self.count = 0
        self._nodes: list[Any] = []

    def add(self, tensor: Any) -> None:
        """Take the next term, which is changed from now on."""
        self.count += 1
        count = self.count
        while not count & 1:
            tensor = self._nodes.pop().add_(tensor)
            count >>= 1
        self._nodes.append(tensor)

    def total(self) -> Any:
        """Return the sum, and forget the terms."""
        total = self._nodes.pop()
        while self._nodes:
            total = self._nodes.pop().add_(total)
        self.count = 0
        return total


def _mean(parts: Sequence[Any]) -> Any:
    """Return the mean of tensors, which are changed."""
    tree = _Tree()
    for part in parts:
        tree.add(part)
    return tree.total().div_(len(parts))


#: Attribute of a parameter: the dtype that its gradient is rounded to once ranks have added it.
ROUNDED: Final = "_udf_rounded"


def rounded_mean(parameter: Any, mean: Any) -> Any:
    """Return a gradient in float32 as one process would round it."""
    dtype = getattr(parameter, ROUNDED, None)
    return mean if dtype is None else mean.to(dtype).to(mean.dtype)


def checked(tensor: Any, what: str) -> Any:
    """Return a dense float32 tensor.

    Raises:
        SummationError: it is another one.
    """
    if str(tensor.dtype) != "torch.float32" or str(tensor.layout) != "torch.strided":
        raise SummationError(
            f"{what} is a {tensor.layout} tensor of {tensor.dtype}, and the contract orders sums "
            "of dense float32 tensors only. Keep the weights in float32, and do not ask for "
            "sparse gradients."
        )
    return tensor


def _gathered(tensor: Any, group: Any) -> list[Any]:
    import torch

    return [torch.empty_like(tensor) for _ in range(torch.distributed.get_world_size(group))]


def tree_hook(group: Any, bucket: Any) -> Any:
    """Average gradients over ranks in the order of the contract: a communication hook of DDP.

    ``model.register_comm_hook(None, tree_hook)``. Each rank receives the gradients of all ranks and
    adds them itself, so a bucket takes as many times its memory as there are ranks.

    Args:
        group: the process group, or None for all ranks.
        bucket: what ``DistributedDataParallel`` hands over: a ``GradBucket`` of float32.

    Returns:
        A future of the flat mean.

    Raises:
        SummationError: the gradients are not float32.
    """
    import torch

    mine, parameters = checked(bucket.buffer(), "A bucket of gradients"), bucket.parameters()
    parts = _gathered(mine, group)
    if mine.is_cuda and torch.distributed.get_backend(group) != "nccl":
        # gloo copies to GPUs on streams of its own, of which its future does not know.
        torch.distributed.all_gather(parts, mine, group=group)
        done: Any = torch.futures.Future(devices=[mine.device])
        done.set_result(_mean_of_bucket(parts, parameters))
        return done
    work = torch.distributed.all_gather(parts, mine, group=group, async_op=True)
    return work.get_future().then(lambda _: _mean_of_bucket(parts, parameters))


# DDP compares annotations with classes, which would have to be imported here.
tree_hook.__annotations__ = {}


def _mean_of_bucket(parts: Sequence[Any], parameters: Sequence[Any]) -> Any:
    mean = _mean(parts)
    place = 0
    for parameter in parameters:
        of = mean[place : place + parameter.numel()]
        of.copy_(rounded_mean(parameter, of))
        place += parameter.numel()
    return mean


def scatter_mean(found: Any, mine: Any, group: Any, op: Any) -> None:
    """Write this rank's part of the mean over ranks, in the order of the contract.

    Args:
        found: (n,), which is written.
        mine: (ranks * n,) in float32: what this rank has of each one's part.
        group: the process group.
        op: ``ReduceOp.AVG``, or ``ReduceOp.SUM`` for the sum.

    Raises:
        SummationError: the gradients are not float32, or ``op`` is another one.
    """
    import torch

    ops = torch.distributed.ReduceOp
    if op not in (ops.AVG, ops.SUM):
        raise SummationError(
            f"Gradients are to be reduced by {op}, but the contract orders sums and means alone. "
            "Leave set_gradient_divide_factor out."
        )
    parts = torch.empty_like(checked(mine, "A group of gradients"))
    torch.distributed.all_to_all_single(parts, mine, group=group)
    each = parts.view(-1, found.numel()).unbind()
    mean = _mean(each)
    found.copy_(mean if op == ops.AVG else mean.mul_(len(each)))


class GradientTree:
    """Gradients of micro-batches, averaged in the order of the contract.

    Call :meth:`backward` with the loss of each micro-batch, and :meth:`finish` before the step of
    the optimizer. It holds as many copies of the gradients as the number of micro-batches has
    binary digits. Where no weight is used twice, :meth:`add` behind a backward pass does the same.

    Args:
        parameters: those of the model.

    Raises:
        SummationError: there is no parameter that asks for a gradient.
    """

    def __init__(self, parameters: Iterable[Any]) -> None:
        self._parameters = [p for p in parameters if p.requires_grad]
        if not self._parameters:
            raise SummationError(
                "No parameter asks for a gradient, so there is nothing to add. Give the model's "
                "parameters(), and make the tree before you freeze them."
            )
        #: Of each parameter a tree for each of its uses; None if no micro-batch reached it yet.
        self._trees: list[list[_Tree] | None] = [None for _ in self._parameters]
        self._count = 0
        #: What :meth:`finish` set, which the next step must not add to.
        self._set: list[Any] = [None for _ in self._parameters]

    def backward(self, loss: Any) -> None:
        """Run the backward pass of a micro-batch, and take its gradients.

        The gradients of a weight that is used several times are kept apart by its uses, each in a
        tree; :meth:`finish` adds the totals in the order of the pass, as the whole batch does.

        Args:
            loss: the mean over the micro-batch, a tensor of one element.

        Raises:
            SummationError: as from :meth:`add`; or a gradient is not the sum of those of the uses
                of its weight, or has other uses than in the micro-batch before.
        """
        with gradients_of_uses(loss) as uses:
            loss.backward()
        self._take([uses.get(id(p)) or [p.grad] for p in self._parameters])

    def add(self) -> None:
        """Take the gradients of a micro-batch away from the parameters.

        A parameter that this micro-batch did not reach adds zeros.

        Raises:
            SummationError: no parameter has a gradient, one is not dense float32, or one was added
                to the gradient of the last step.
        """
        self._take([[p.grad] for p in self._parameters])

    def _take(self, uses: Sequence[Sequence[Any]]) -> None:
        """Add gradients of the uses of each parameter, and take the parameters' own away."""
        import torch

        self._check(uses)
        for index, (parameter, gradients) in enumerate(zip(self._parameters, uses, strict=True)):
            parameter.grad = None
            trees = self._trees[index]
            if gradients[0] is None:
                for tree in trees or ():
                    tree.add(torch.zeros_like(parameter))
                continue
            if trees is None:
                trees = self._trees[index] = [_Tree() for _ in gradients]
                for tree in trees:
                    for _ in range(self._count):
                        tree.add(torch.zeros_like(parameter))
            for tree, gradient in zip(trees, gradients, strict=True):
                tree.add(gradient)
        self._count += 1

    def _check(self, uses: Sequence[Sequence[Any]]) -> None:
        if all(p.grad is None for p in self._parameters):
            raise SummationError(
                "No parameter has a gradient. Call add() after backward(), and do not call "
                "zero_grad() in between."
            )
        for parameter, last, gradients, trees in zip(
            self._parameters, self._set, uses, self._trees, strict=True
        ):
            if parameter.grad is None:
                continue
            for gradient in gradients:
                checked(gradient, "A gradient")
            if parameter.grad is last:
                raise SummationError(
                    "The gradients of the last step are still there, and the backward pass has "
                    "added to them. Call the optimizer's zero_grad() after each step; it must set "
                    "them to None, as it does by default."
                )
            if trees is not None and len(trees) != len(gradients):
                raise SummationError(
                    f"A weight is used {len(gradients)} times in this micro-batch, and "
                    f"{len(trees)} times in those before. Give each micro-batch to backward(), and "
                    "let all take the same path through the model."
                )
            if len(gradients) > 1 and not _is_sum(gradients, parameter.grad):
                raise SummationError(
                    "A gradient is not the sum of those of the uses of its weight: a hook changes "
                    "it, or a use is hidden in a reentrant checkpoint. Remove the hook, or take "
                    "use_reentrant=False."
                )

    def finish(self, group: Any = None) -> None:
        """Set each parameter's gradient to the mean over the micro-batches, and begin anew.

        Args:
            group: a process group, whose ranks each added as many micro-batches: the mean is over
                those of all ranks, in the order of the ranks. None for this process alone.

        Raises:
            SummationError: nothing was added.
        """
        import torch

        if not self._count:
            raise SummationError(
                "No micro-batch was added. Call add() after the backward pass of each, and "
                "finish() once, before the optimizer's step."
            )
        counts = self._uses(group)
        for index, (parameter, count) in enumerate(zip(self._parameters, counts, strict=True)):
            if not count:
                continue
            trees = self._trees[index] or []
            totals = [tree.total().div_(self._count) for tree in trees]
            totals += [torch.zeros_like(parameter)] * (count - len(totals))
            means = [_mean_of_ranks(total, group) for total in totals]
            total = rounded_mean(parameter, functools.reduce(operator.add, means))
            parameter.grad = self._set[index] = total
        self._trees = [None for _ in self._parameters]
        self._count = 0

    def _uses(self, group: Any) -> list[int]:
        """Return how often each parameter is used; 0 if no micro-batch of any rank reached it."""
        import torch

        own = [len(trees or ()) for trees in self._trees]
        if group is None:
            return own
        found = torch.tensor(own, device=self._parameters[0].device)
        torch.distributed.all_reduce(found, torch.distributed.ReduceOp.MAX, group=group)
        return [max(count, 1) for count in found.tolist()]


def _mean_of_ranks(mine: Any, group: Any) -> Any:
    import torch

    if group is None:
        return mine
    parts = _gathered(mine, group)
    torch.distributed.all_gather(parts, mine, group=group)
    return _mean(parts)


def _is_sum(parts: Sequence[Any], total: Any) -> bool:
    import torch

    found = functools.reduce(operator.add, parts)
    return torch.equal(found.view(torch.int32), total.view(torch.int32))
