# SPDX-License-Identifier: Apache-2.0
"""The clock of a GPU, read by a kernel.

Imports triton, so it is imported when the clock is needed.
"""

# Triton reads annotations when it reads a kernel: no postponed evaluation here.

import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer


@triton.jit
def read_clock(out):
    """Write the GPU's clock, in ns."""
    tl.store(out, globaltimer())
