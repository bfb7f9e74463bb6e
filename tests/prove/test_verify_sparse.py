# SPDX-License-Identifier: Apache-2.0
"""``udftorch verify --sparse``: what the repair of a whole block hides from a run in order."""

from __future__ import annotations

import re

import numpy as np
import pytest

from pytest_udftorch import cli
from pytest_udftorch.errors import VerifyError
from pytest_udftorch.prove.verify import run as verify
from pytest_udftorch.prove.verify.certificate_file import load_certificate
from pytest_udftorch.prove.verify.schedule import Request, easy_argument, make_schedule
from pytest_udftorch.swap.library.description import find_library
from pytest_udftorch.swap.library.symbols import CPU_LEVELS, FUNCTIONS, forms
from pytest_udftorch.swap.toolchain.compiler import resolve_cpu_level
from pytest_udftorch.swap.toolchain.shared_library import build_library

COREM = find_library("corem")
LEVELS = list(CPU_LEVELS)[: list(CPU_LEVELS).index(resolve_cpu_level(None)) + 1]

needs_quick_path = pytest.mark.skipif("avx2" not in LEVELS, reason="no CPU level has quick paths")

# sin(x) rounds to x where x is tiny. Every second tiny x is hard for the quick path, so a block of
# consecutive ones is repaired as a whole.
HIDES = """
#include <math.h>
#include <stdint.h>
#include <string.h>
static uint32_t bits(float x) {
  uint32_t u;
  memcpy(&u, &x, sizeof u);
  return u;
}
float hides_quick(float x, int *hard) {
  uint32_t u = bits(x), flipped = u ^ FLIPPED;
  int tiny = (u & 0x7fffffff) < 0x38000000;
  *hard = tiny & u & 1;
  float y;
  memcpy(&y, &flipped, sizeof y);
  return tiny ? y : 0.5f;
}
float hides_fast(float x, int *hard) {
  *hard = 0;
  return x;
}
float hides_accurate(float x) { return x; }
"""
DESCRIPTION = """
[library]
name = "hides"
version = "1"
[functions.sin.float32]
source = "sin.c"
quick = "hides_quick"
fast = "hides_fast"
accurate = "hides_accurate"
max_ulp = 0.5
"""
#: Chunks of 2^16 tiny arguments.
TINY = ["--chunks=12288:12289", "--chunk-bits=16", "--reference=libm", "--workers=0", "--quiet"]


@pytest.fixture
def hides(tmp_path):
    def make(flipped):
        (tmp_path / "udf.toml").write_text(DESCRIPTION)
        (tmp_path / "sin.c").write_text(HIDES.replace("FLIPPED", str(flipped)))
        return tmp_path

    return make


def run(library, *options):
    return cli.main(["verify", str(library), "sin", f"--out={library}/out", *TINY, *options])


@needs_quick_path
@pytest.mark.parametrize("form", [f for f in forms("float32", LEVELS[-1]) if f != "scalar"])
def test_a_wrong_result_among_hard_ones_is_seen(hides, form, capsys):
    """The negative control: the same chunk in order is right, because all of it is repaired."""
    library = hides(1)
    assert run(library, f"--form={form}") == 0
    assert run(library, f"--form={form}", "--sparse") == cli.FAILED
    err = capsys.readouterr().err
    assert f"{form}, {LEVELS[-1]}, sparse: 32,768 of 65,536 results are not correctly" in err
    plain, sparse = load_certificate(library / "out" / "sin.float32.certificate.json").runs
    assert (plain.tally.wrong, sparse.tally.wrong) == (0, 32768)
    assert plain.key != sparse.key
    assert all(e.inputs[0] % 2 == 0 for e in sparse.tally.examples)


@needs_quick_path
def test_a_right_library_passes(hides):
    library = hides(0)
    for level in LEVELS:
        assert run(library, "--sparse", f"--cpu-level={level}") == 0


@pytest.mark.parametrize("function", ["exp", "log", "atan2"])
def test_the_order_of_the_outputs_is_that_of_the_inputs(function):
    """Also where a chunk is no multiple of what a call takes."""
    options = {"chunk_bits": 12, "pairs": 5000, "count_hard": False, "reference": "libm"}
    plain, sparse = (
        make_schedule("corem", function, Request(sparse=on, **options)) for on in (False, True)
    )
    for index in (0, plain.total_chunks - 1):
        assert verify.outputs_digest(plain, index) == verify.outputs_digest(sparse, index)


def test_a_sparse_run_is_repeated_as_one(tmp_path, capsys):
    (tmp_path / "hypot.c").write_text("float own_hypotf(float x, float y) { return x + y; }\n")
    (tmp_path / "udf.toml").write_text(
        '[library]\nname = "own"\nversion = "1"\n[functions.hypot.float32]\n'
        'source = "hypot.c"\nscalar = "own_hypotf"\n'
    )
    command = ["verify", str(tmp_path), "hypot", "--pairs=4096", "--reference=libm", "--workers=0"]
    assert cli.main([*command, "--quiet"]) == 0
    assert cli.main([*command, "--quiet", "--sparse"]) == 0
    plain, sparse = load_certificate(tmp_path / "hypot.float32.certificate.json").runs
    assert (plain.identity["sparse"], sparse.identity["sparse"]) == (False, True)
    assert sparse.identity["reference"].startswith("every output that of the array form")
    assert plain.chunks == sparse.chunks
    capsys.readouterr()
    assert cli.main([*command[:3], "--again", "--workers=0"]) == 0
    assert "sparse: names this build already" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"form": "scalar"}, "takes one at a time. Choose --form array, v8 or v16"),
        ({"form": "operator"}, "the form 'operator' takes one at a time"),
        ({"form": "v8", "garbage": True}, "--sparse and --garbage both say"),
    ],
)
def test_what_has_no_neighbours_is_refused(options, message):
    if options["form"] not in (*forms("float32", LEVELS[-1]), "operator"):
        pytest.skip("this CPU lacks the form")
    with pytest.raises(VerifyError, match=re.escape(message)):
        make_schedule("corem", "exp", Request(sparse=True, reference="libm", **options))


def test_a_fast_path_that_finds_the_easy_argument_hard_is_refused(hides, capsys):
    library = hides(0)
    text = HIDES.replace("FLIPPED", "0").replace("*hard = 0;", "*hard = x == 0.7f;")
    (library / "sin.c").write_text(text)
    assert run(library) == 0
    assert run(library, "--sparse") == cli.MISUSE
    assert "The fast path of sin in hides finds 0.7 hard" in capsys.readouterr().err


def paths(level):
    """The paths of corem's functions that can find an argument hard: name and source."""
    for name in COREM.function_names:
        described = COREM.functions[name, "float32"]
        yield name, described.fast, described.source
        if (quick := described.quick_at(level)) is not None:
            own = described.own_quick(level)
            yield name, quick, described.source if own is None else own[1]


@pytest.mark.slow
@pytest.mark.parametrize("level", [level for level in CPU_LEVELS if level != "baseline"])
def test_no_path_of_corem_finds_the_easy_argument_hard(tmp_path, level):
    """Each path as a function that says whether an argument is hard for it."""
    if level not in LEVELS:
        pytest.skip("this CPU lacks the level")
    text = '[library]\nname = "probes"\nversion = "1"\n'
    text += f'include_dirs = ["{COREM.folder / "common"}"]\n'
    found = {}
    for name, path, source in paths(level):
        folder = tmp_path / path
        folder.mkdir()
        names = "xy"[: FUNCTIONS[name].arity]
        (folder / "probe.c").write_text(
            f'#include "{source}"\nfloat probe({", ".join(f"float {n}" for n in names)}) {{\n'
            f"  int hard;\n  {path}({', '.join(names)}, &hard);\n  return hard != 0;\n}}\n"
        )
        entry = f'[functions.{name}.float32]\nsource = "probe.c"\nscalar = "probe"\n'
        (folder / "udf.toml").write_text(text + entry)
        probe = build_library(find_library(str(folder)), level).scalar_function(name)
        easy = [easy_argument(name)] * FUNCTIONS[name].arity
        assert probe(*easy) == 0, (name, path)
        columns = [[x] * len(easy) for x in np.linspace(0.01, 30, 20001, dtype=np.float32).tolist()]
        found[path] = sum(probe(*column) for column in columns)
    # The control: others are hard for most quick paths.
    quick = [count for path, count in found.items() if not path.endswith("_fast")]
    assert sum(count > 0 for count in quick) > len(quick) / 2
