# SPDX-License-Identifier: Apache-2.0
"""What a test file says as a script, with torch's kernels of each CPU level."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

#: For tests that compare AVX2 with AVX-512.
needs_avx512 = pytest.mark.skipif(
    "AVX512" not in torch.backends.cpu.get_cpu_capability(), reason="needs AVX-512 here"
)


def said_at_both(script: str) -> list[Any]:
    """Return the JSON of a script's last line, with AVX2 and with AVX-512."""
    found, here = [], Path(__file__).parent
    path = os.pathsep.join(filter(None, [str(here), os.environ.get("PYTHONPATH")]))
    for level in ("avx2", "avx512"):
        ran = subprocess.run(
            [sys.executable, script], check=True, stdout=subprocess.PIPE, text=True,
            cwd=here.parent,
            env={**os.environ, "ATEN_CPU_CAPABILITY": level, "PYTHONPATH": path},
        )  # fmt: skip
        found.append(json.loads(ran.stdout.splitlines()[-1]))
    return found
