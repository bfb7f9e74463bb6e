# SPDX-License-Identifier: Apache-2.0
"""The clock of a GPU, read by a kernel, for ``counters``, which ``kernels`` imports.

This module imports triton, so it is itself imported when the clock is needed.
"""

# Triton evaluates the annotations of a kernel, so their evaluation is not postponed here.

import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer


@triton.jit
def read_clock(out):
    """Write the GPU's clock to ``out``, in ns."""
    tl.store(out, globaltimer())
