# SPDX-License-Identifier: Apache-2.0
"""Gradients of the parts of a batch, added in the order that the contract has for sums.

Under ``repro`` the gradient of a weight is a sum over the batch, in a tree. Where the parts of a
batch fall on nodes of that tree, adding their gradients in the same tree gives the bits of the
whole batch: on several ranks, in micro-batches on one, or both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from pytest_udftorch.errors import SummationError


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

    Call :meth:`add` after the backward pass of each micro-batch, and :meth:`finish` before the step
    of the optimizer. It holds as many copies of the gradients as the number of micro-batches has
    binary digits.

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
        self._trees = [_Tree() for _ in self._parameters]
        self._reached = [False for _ in self._parameters]
        #: What :meth:`finish` set, which the next step must not add to.
        self._set: list[Any] = [None for _ in self._parameters]

    def add(self) -> None:
        """Take the gradients of a micro-batch away from the parameters.

        A parameter that this micro-batch did not reach adds zeros.

        Raises:
            SummationError: no parameter has a gradient, one is not dense float32, or one was added
                to the gradient of the last step.
        """
        import torch

        gradients = [p.grad for p in self._parameters]
        if all(g is None for g in gradients):
            raise SummationError(
                "No parameter has a gradient. Call add() after backward(), and do not call "
                "zero_grad() in between."
            )
        for g, last in zip(gradients, self._set, strict=True):
            if g is not None:
                checked(g, "A gradient")
            if g is not None and g is last:
                raise SummationError(
                    "The gradients of the last step are still there, and the backward pass has "
                    "added to them. Call the optimizer's zero_grad() after each step; it must set "
                    "them to None, as it does by default."
                )
        for index, parameter in enumerate(self._parameters):
            gradient = parameter.grad
            self._reached[index] |= gradient is not None
            self._trees[index].add(torch.zeros_like(parameter) if gradient is None else gradient)
            parameter.grad = None

    def finish(self, group: Any = None) -> None:
        """Set each parameter's gradient to the mean over the micro-batches, and begin anew.

        Args:
            group: a process group, whose ranks each added as many micro-batches: the mean is over
                those of all ranks, in the order of the ranks. None for this process alone.

        Raises:
            SummationError: nothing was added.
        """
        import torch

        count = self._trees[0].count
        if not count:
            raise SummationError(
                "No micro-batch was added. Call add() after the backward pass of each, and "
                "finish() once, before the optimizer's step."
            )
        for index, (parameter, tree) in enumerate(zip(self._parameters, self._trees, strict=True)):
            total = tree.total().div_(count)
            if group is not None:
                parts = _gathered(total, group)
                torch.distributed.all_gather(parts, total, group=group)
                total = _mean(parts)
            total = rounded_mean(parameter, total)
            if self._reached[index] or group is not None:
                parameter.grad = self._set[index] = total
            self._reached[index] = False
