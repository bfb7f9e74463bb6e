# SPDX-License-Identifier: Apache-2.0
"""The kernels of a session under compute-sanitizer's memcheck: no access out of bounds.

compute-sanitizer comes with CUDA, and with the package nvidia-cuda-sanitizer-api::

    pip install nvidia-cuda-sanitizer-api
    pytest tests/gpu/test_sanitizer_gpu.py
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

SCRIPT = Path(__file__).with_name("sanitized_kernels.py")
NAME = "compute-sanitizer"


def candidates() -> list[Path]:
    """Where the tool may lie: in a wheel, in a toolkit, on the path."""
    found = []
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        # The program itself: the script beside it in bin loses its rights in some installations.
        found += sorted(Path(folder).glob(f"*/{NAME}/{NAME}"), reverse=True)
    for variable in ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"):
        if home := os.environ.get(variable):
            found += [Path(home, NAME, NAME), Path(home, "bin", NAME)]
    if on_path := shutil.which(NAME):
        found.append(Path(on_path))
    for home in sorted(Path("/usr/local").glob("cuda*"), reverse=True):
        found += [home / NAME / NAME, home / "bin" / NAME]
    return found


@pytest.fixture(scope="module")
def tool(tmp_path_factory) -> Path:
    for path in candidates():
        if not path.is_file():
            continue
        if not os.access(path, os.X_OK):  # a copy of its folder: the installation is not ours
            copy = tmp_path_factory.mktemp("tool") / NAME
            shutil.copytree(path.parent, copy)
            path = copy / path.name
            for file in copy.iterdir():
                file.chmod(0o755)
        if subprocess.run([path, "--version"], capture_output=True, check=False).returncode == 0:
            return path
    pytest.skip(f"no {NAME} (pip install nvidia-cuda-sanitizer-api)")


def checked(tool: Path, *arguments: str) -> tuple[int, str]:
    """Run the script under memcheck; return the number of errors and what was written."""
    done = subprocess.run(
        [
            *(tool, "--tool", "memcheck", "--report-api-errors", "no"),
            # Room that nobody may touch, behind each allocation.
            *("--padding", "512", "--print-limit", "20"),
            *(sys.executable, SCRIPT, *arguments),
        ],
        # Each tensor has an allocation of its own, so that its end is known.
        env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=1200,
    )  # fmt: skip
    summary = re.findall(r"ERROR SUMMARY: (\d+) error", done.stdout)
    assert summary, f"{tool} wrote no summary:\n{done.stdout[-6000:]}"
    return int(summary[-1]), done.stdout


def test_no_kernel_of_a_session_leaves_its_tensors(tool):
    errors, text = checked(tool)
    assert errors == 0, text[-8000:]
    calls = re.search(r"^calls (\d+)$", text, re.MULTILINE)
    assert calls is not None, text[-8000:]
    assert int(calls.group(1)) > 500


def test_a_kernel_that_leaves_its_tensor_is_reported(tool):
    errors, text = checked(tool, "planted")
    assert errors > 0
    assert "Invalid __global__ write" in text
    assert "beyond" in text
