# SPDX-License-Identifier: Apache-2.0
"""Operators on their way to the kernels, handed to a function or an object."""

from __future__ import annotations

import gc
import weakref

import torch

from pytest_udftorch.base.dispatch_mode import OperatorWatch, watching


class Watch(OperatorWatch):
    def __init__(self):
        self.seen = []

    def call(self, func, args, kwargs):
        self.seen.append((func.name(), kwargs))
        return func(*args, **kwargs)


def test_a_function_gets_every_operator_and_gives_its_result():
    def twice(func, args, kwargs):
        return func(*args, **kwargs) * 2

    with watching(twice):
        # The product inside goes to the kernel and not to the mode again.
        assert torch.exp(torch.zeros(2)).tolist() == [2.0, 2.0]
    assert torch.exp(torch.zeros(2)).tolist() == [1.0] * 2


def test_an_object_sees_forward_and_backward_passes_while_it_is_entered():
    watch = Watch()
    x = torch.ones(2, requires_grad=True)
    with watch:
        x.exp().sum(dim=0, keepdim=False).backward()
    names = [name for name, _ in watch.seen]
    assert names[0] == "aten::exp"
    assert "aten::mul.Tensor" in names  # of the backward pass
    assert all(type(kwargs) is dict for _, kwargs in watch.seen)
    x.exp()
    assert len(watch.seen) == len(names)


def test_an_object_that_was_left_is_freed_without_the_garbage_collector():
    gc.disable()
    try:
        watch = Watch()
        with watch, watch:
            torch.ones(1)
        gone = weakref.ref(watch)
        del watch
        assert gone() is None
    finally:
        gc.enable()
