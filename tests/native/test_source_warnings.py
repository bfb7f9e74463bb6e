# SPDX-License-Identifier: Apache-2.0
"""The shipped sources give no warning, which everybody would see in a first build."""

import shutil
import subprocess
from pathlib import Path

import pytest

from pytest_udftorch.swap.toolchain.compiler import FLAGS

UDFS = Path(__file__).parents[2] / "udfs"
CLANG = shutil.which("clang-19") or shutil.which("clang")
#: Folders whose headers others include.
SHARED = [f"-I{UDFS / name}" for name in ("corem", "corem-d", "corem-ff", "canary")]

pytestmark = pytest.mark.skipif(CLANG is None, reason="needs clang")


def warnings_of(*sources: Path) -> list[str]:
    """Return the warnings of sources; of a fragment that another file includes there are errors."""
    wall = [flag for flag in FLAGS if flag.startswith(("-W", "-std"))]
    assert "-Wall" in wall
    said = subprocess.run(
        [CLANG, *wall, "-fsyntax-only", *SHARED, *sources],
        capture_output=True, text=True, check=False,
    ).stderr  # fmt: skip
    return [line for line in said.splitlines() if "warning:" in line]


def test_sources_with_two_arguments_give_no_warning(tmp_path):
    assert warnings_of(UDFS / "corem/pow/powf.c", UDFS / "corem/atan2/atan2f.c") == []
    bad = tmp_path / "bad.c"
    bad.write_text("int f(int x) { return (x < 0) & !x ? 1 : 0; }\n")
    (said,) = warnings_of(bad)
    assert "-Wbitwise-conditional-parentheses" in said


@pytest.mark.slow
def test_no_source_gives_a_warning():
    sources = sorted(UDFS.rglob("*.c"))
    assert len(sources) > 150
    assert warnings_of(*sources) == []
