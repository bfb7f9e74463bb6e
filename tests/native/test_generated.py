# SPDX-License-Identifier: Apache-2.0
"""Constants are those that the generator beside them writes."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pytest_udftorch.library.description import find_library

UDFS = find_library("corem").folder.parent
#: A line of each generator says how it is run.
RUN_AS = re.compile(r"^// Run as: sollya (\S+) > (\S+)$", re.M)
#: Seconds. Sollya certifies the norms of polynomials, which takes minutes for some.
LIMIT = 3600


def generators():
    """Yield each generator that writes a header, and that header."""
    for path in sorted(UDFS.rglob("*.sollya")):
        found = RUN_AS.search(path.read_text(encoding="utf-8"))
        if found:
            assert found[1] == path.name
            yield path, path.with_name(found[2])


def differs(generator: Path, header: Path) -> bool:
    """Run a generator in its folder and compare what it prints with a header."""
    # sollya exits with 3 at the end of its input.
    ran = subprocess.run(
        ["sollya", generator.name], cwd=generator.parent, stdin=subprocess.DEVNULL,
        capture_output=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    return ran.stdout != header.read_bytes()


needs_sollya = pytest.mark.skipif(shutil.which("sollya") is None, reason="needs sollya (Debian)")


@needs_sollya
@pytest.mark.slow
@pytest.mark.parametrize(
    ("generator", "header"),
    [pytest.param(*pair, id=str(pair[0].relative_to(UDFS))) for pair in generators()],
)
def test_constants_are_what_the_generator_writes(generator, header):
    assert not differs(generator, header)


@needs_sollya
def test_another_digit_is_seen(tmp_path):
    generator = UDFS / "corem" / "common" / "exp_wide.sollya"
    header = generator.with_name("exp_wide_constants.h")
    assert not differs(generator, header)
    changed = tmp_path / header.name
    changed.write_text(header.read_text(encoding="utf-8").replace("0x1.", "0x2.", 1))
    assert differs(generator, changed)
