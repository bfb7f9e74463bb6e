# SPDX-License-Identifier: Apache-2.0
"""Gradients of the parts of a batch, added in the order that the contract has for sums.

Under ``repro`` the gradient of a weight is a sum over the batch, in a tree. Where the parts of a
batch fall on nodes of that tree, adding their gradients in the same tree gives the bits of the
whole batch: on several ranks, in micro-batches on one, or both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

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


def _checked(tensor: Any, what: str) -> Any:
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

    mine = _checked(bucket.buffer(), "A bucket of gradients")
    parts = _gathered(mine, group)
    if mine.is_cuda and torch.distributed.get_backend(group) != "nccl":
        # gloo copies to GPUs on streams of its own, of which its future does not know.
        torch.distributed.all_gather(parts, mine, group=group)
        done: Any = torch.futures.Future(devices=[mine.device])
        done.set_result(_mean(parts))
        return done
    work = torch.distributed.all_gather(parts, mine, group=group, async_op=True)
    return work.get_future().then(lambda _: _mean(parts))


# DDP compares annotations with classes, which would have to be imported here.
tree_hook.__annotations__ = {}


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
                _checked(g, "A gradient")
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
            if self._reached[index] or group is not None:
                parameter.grad = self._set[index] = total
            self._reached[index] = False
