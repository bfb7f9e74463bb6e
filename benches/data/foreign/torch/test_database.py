# SPDX-License-Identifier: Apache-2.0
"""The operators and modules of torch's own test database, which its wheel brings.

The repository's tests are not in the wheel. What they run is: samples, NumPy references, tolerances
and the list of what is known to fail, by the names of classes and tests. These have such names, so
that the same entries apply.
"""

from __future__ import annotations

import torch
from torch.testing._internal.common_device_type import instantiate_device_type_tests, ops
from torch.testing._internal.common_methods_invocations import (
    binary_ufuncs,
    op_db,
    reduction_ops,
    unary_ufuncs,
)
from torch.testing._internal.common_modules import module_db, modules
from torch.testing._internal.common_utils import TestCase, freeze_rng_state, gradcheck

# The database forbids to set flags of torch.backends, which the session does.
torch.backends.disable_global_flags.__globals__["__allow_nonbracketed_mutation_flag"] = True

#: Samples of an operator that a test takes.
MOST = 24
FLOATS = (torch.float32, torch.float64)


def samples(op, device, dtype, *, requires_grad=False):
    """Yield the first samples of an operator."""
    made = op.sample_inputs(device, dtype, requires_grad=requires_grad)
    yield from (sample for _, sample in zip(range(MOST), made, strict=False))


def with_reference(infos):
    return [op for op in infos if op.ref is not None]


class Reference(TestCase):
    def judge(self, device, dtype, op):
        """Compare with NumPy or SciPy, within torch's tolerances."""
        for sample in samples(op, device, dtype):
            self.compare_with_reference(op, op.ref, sample, equal_nan=True)


class TestUnaryUfuncs(Reference):
    @ops(with_reference(unary_ufuncs), allowed_dtypes=FLOATS)
    def test_reference_numerics_normal(self, device, dtype, op):
        self.judge(device, dtype, op)

    @ops(unary_ufuncs, allowed_dtypes=FLOATS)
    def test_contig_vs_every_other(self, device, dtype, op):
        for sample in samples(op, device, dtype):
            every = sample.input.repeat_interleave(2, -1) if sample.input.dim() else sample.input
            other = every[..., ::2] if sample.input.dim() else every
            kwargs = sample.kwargs
            self.assertEqual(op(other, **kwargs), op(sample.input, **kwargs))


class TestBinaryUfuncs(Reference):
    @ops(with_reference(binary_ufuncs), allowed_dtypes=FLOATS)
    def test_reference_numerics(self, device, dtype, op):
        self.judge(device, dtype, op)


class TestReductions(Reference):
    @ops(with_reference(reduction_ops), allowed_dtypes=FLOATS)
    def test_ref_small_input(self, device, dtype, op):
        self.judge(device, dtype, op)


class TestCommon(TestCase):
    @ops(op_db, allowed_dtypes=(torch.float32,))
    def test_noncontiguous_samples(self, device, dtype, op):
        """Strides do not matter, to results and to gradients."""
        for sample in samples(op, device, dtype, requires_grad=op.supports_autograd):
            spread = sample.noncontiguous()
            with freeze_rng_state():
                one = op(sample.input, *sample.args, **sample.kwargs)
            with freeze_rng_state():
                other = op(spread.input, *spread.args, **spread.kwargs)
            self.assertEqual(one, other)
            if isinstance(one, torch.Tensor) and one.requires_grad and one.is_floating_point():
                if not isinstance(sample.input, torch.Tensor):
                    continue
                first, second = (
                    torch.autograd.grad(y.sum(), x, allow_unused=True)[0]
                    for x, y in ((sample.input, one), (spread.input, other))
                )
                self.assertEqual(first, second)


class TestBwdGradients(TestCase):
    @ops([op for op in unary_ufuncs if op.supports_autograd], allowed_dtypes=(torch.float64,))
    def test_fn_grad(self, device, dtype, op):
        """The gradient is that of finite differences."""
        for sample in samples(op, device, dtype, requires_grad=True):
            if sample.input.numel() > 100:
                continue
            self.assertTrue(
                gradcheck(lambda x, s=sample: op(x, *s.args, **s.kwargs), (sample.input,))
            )


class TestModule(TestCase):
    @modules(module_db, allowed_dtypes=(torch.float32,))
    def test_forward(self, device, dtype, module_info, training):
        """A module computes what its reference in the database computes."""
        made = module_info.module_inputs_func(
            module_info, device=device, dtype=dtype, requires_grad=False, training=training
        )
        for given in made:
            if given.forward_input is None:
                continue
            how, x = given.constructor_input, given.forward_input
            with freeze_rng_state():
                module = module_info.module_cls(*how.args, **how.kwargs)
                module.to(device=device, dtype=dtype).train(training)
                result = module(*x.args, **x.kwargs)
            if given.reference_fn is not None:
                expected = given.reference_fn(module, *x.args, **x.kwargs)
                self.assertEqual(result, expected, exact_device=False)


for case in (
    TestUnaryUfuncs,
    TestBinaryUfuncs,
    TestReductions,
    TestCommon,
    TestBwdGradients,
    TestModule,
):
    instantiate_device_type_tests(case, globals(), only_for="cpu")
del case
