# SPDX-License-Identifier: Apache-2.0
"""Units of an exported graph in a CUDA graph: the mask and the result's class cross it whole."""

import pytest
import torch
from torch import nn

from pytest_udftorch.measure.planning.segment_times import SegmentBench
from pytest_udftorch.measure.planning.segments import Units

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
    # The products are of float32 on purpose.
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning"),
]


class Masked(nn.Module):
    """Python on shapes, a mask that every layer reads, and a dict as result."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(3)])

    def forward(self, x):
        mask = torch.ones(16, 16, device=x.device).triu() if x.shape[-1] == 16 else None
        for layer in self.layers:
            x = x + (layer(x) @ mask).tanh()
        return {"x": x, "mask": mask}


def test_captured_units_are_the_model():
    model, x = Masked().eval().cuda(), torch.randn(5, 16, device="cuda")
    units = Units(model, (x,), 8)
    names = ("eager", "compile", "compile", "eager")
    assert len(units) == len(names)
    run = SegmentBench(units, (x,)).whole([(u, u + 1, name) for u, name in enumerate(names)])
    for given in (x, x + 1):
        found, wanted = run(given), model(given)
        assert set(found) == set(wanted)
        torch.testing.assert_close(found["x"], wanted["x"])
        assert torch.equal(found["mask"], wanted["mask"])
