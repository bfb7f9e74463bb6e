# SPDX-License-Identifier: Apache-2.0
"""Constants of corem's functions are those that the generator beside them writes."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from bounds import COREM

UDFS = COREM.folder.parent
#: A line of each generator says how it is run.
RUN_AS = re.compile(r"^// Run as: sollya (\S+) > (\S+)$", re.M)
#: Of these, the ones that take no more than some seconds.
QUICK = ("corem/common/exp_wide.sollya", "corem/pow/wide.sollya")
#: Seconds. Sollya certifies the norms of polynomials, which takes minutes for some.
LIMIT = 3600


def later(*values):
    """Leave a generator that takes longer than the others to the slow tests."""
    return pytest.param(*values, marks=pytest.mark.slow)


#: Generators in Python, and what they are called with before the header that they write. Where
#: this ends in --keep they take from that header what they would look for for minutes.
SCRIPTS = [
    *(("odd_quick", [name, "--keep"], f"{name}/quick_constants.h") for name in ("erf", "tanh")),
    ("odd_eight", ["erf", "--keep"], "erf/eight_constants.h"),
    ("odd_wide", ["tanh", "--keep"], "tanh/wide_constants.h"),
    ("rows_wide", ["atan", "--keep"], "atan/wide_constants.h"),
    *(later("rows_wide", [n, "--keep"], f"{n}/wide_constants.h") for n in ("asin", "acos")),
    ("trig_wide", ["--keep"], "common/trig_wide_constants.h"),
    ("atan2_wide", ["--keep"], "atan2/wide_constants.h"),
    later("root_wide", [], "common/root_wide_constants.h"),
    later("atan_eight", [], "atan/eight_constants.h"),
    later("erfc_eight", [], "erfc/eight_constants.h"),
    later("erfc_wide", [], "erfc/wide_constants.h"),
]


def generators():
    """Yield each generator in Sollya that writes a header, and that header."""
    for path in sorted(UDFS.rglob("*.sollya")):
        found = RUN_AS.search(path.read_text(encoding="utf-8"))
        if found:
            assert found[1] == path.name
            name = str(path.relative_to(UDFS))
            marks = () if name in QUICK else (pytest.mark.slow,)
            yield pytest.param(path, path.with_name(found[2]), id=name, marks=marks)


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
@pytest.mark.parametrize(("generator", "header"), list(generators()))
def test_constants_are_what_sollya_writes(generator, header):
    assert not differs(generator, header)


@needs_sollya
def test_another_digit_is_seen(tmp_path):
    generator = UDFS / QUICK[0]
    header = generator.with_name("exp_wide_constants.h")
    changed = tmp_path / header.name
    changed.write_text(header.read_text(encoding="utf-8").replace("0x1.", "0x2.", 1))
    assert differs(generator, changed)


@pytest.mark.parametrize(("script", "options", "header"), SCRIPTS)
def test_tables_are_what_the_script_writes(script, options, header):
    path = COREM.folder / header
    command = [sys.executable, COREM.folder / "common" / f"{script}.py", *options]
    command += [path] if "--keep" in options else []
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout == path.read_text(encoding="utf-8")
