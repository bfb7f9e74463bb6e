# SPDX-License-Identifier: Apache-2.0
"""The command udftorch: verify, and what is done with certificates."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace

import pytest

from pytest_udftorch import cli, prove
from pytest_udftorch.prove.verify.reference import checker as reference
from pytest_udftorch.swap.library.description import find_library
from pytest_udftorch.swap.toolchain import progress
from pytest_udftorch.swap.toolchain.cache import sha256_of
from pytest_udftorch.swap.toolchain.shared_library import build_library

HAS_LLVMLIBC = any(reference.LLVM_FOLDERS.glob("llvm-*/lib/libllvmlibc.a"))
REFERENCE = f"--reference={'auto' if HAS_LLVMLIBC else 'libm'}"
QUICK = ("--workers=0", "--chunk-bits=16", "--quiet", REFERENCE)

needs_llvmlibc = pytest.mark.skipif(not HAS_LLVMLIBC, reason="LLVM-libc is not installed")


def run(*arguments):
    return cli.main([str(a) for a in arguments])


def verify_libm(folder, function="exp", chunks="16256:16258", *more):
    return run("verify", "libm", function, *QUICK, f"--out={folder}", f"--chunks={chunks}", *more)


def test_verify_writes_a_certificate_and_a_line(tmp_path, capsys):
    assert verify_libm(tmp_path) == 0
    out = capsys.readouterr().out
    assert "libm exp float32, scalar, " in out
    assert "not correctly rounded, of 131,072" in out
    made = prove.load_certificate(tmp_path / "exp.float32.certificate.json")
    assert made.subject["function"] == "exp"
    assert not made.runs[0].complete


def test_several_functions_and_forms_at_once(tmp_path):
    assert verify_libm(tmp_path, "exp", "16256:16257") == 0
    arguments = ["--cpu-level=all", "--form=all", "--chunks=16256:16257", f"--out={tmp_path}"]
    assert run("verify", "corem", "exp", "expm1", *QUICK, *arguments) == 0
    for function in ("exp", "expm1"):
        made = prove.load_certificate(tmp_path / f"{function}.float32.certificate.json")
        keys = {(r.identity["cpu_level"], r.identity["form"]) for r in made.runs}
        assert ("baseline", "scalar") in keys
        assert len(keys) == len(made.runs) >= 2
        assert len({tuple(r.chunks.items()) for r in made.runs}) == 1


def test_a_false_claim_gives_a_status(tmp_path, capsys):
    folder = tmp_path / "cheap"
    folder.mkdir()
    (folder / "udf.toml").write_text(
        '[library]\nname = "cheap"\nversion = "1"\n[functions.exp.float32]\n'
        'source = "exp.c"\nscalar = "cheap_expf"\nmax_ulp = 0.5\n'
    )
    (folder / "exp.c").write_text("float cheap_expf(float x) { return 1 + x; }\n")
    options = ("--chunks=15872:15873", f"--out={tmp_path}")
    assert run("verify", folder, "exp", *QUICK, *options) == cli.FAILED
    assert "FAILED: cheap exp float32, array, " in capsys.readouterr().err
    made = tmp_path / "exp.float32.certificate.json"
    assert run("certificate", "check", made) == cli.FAILED
    assert "results are not correctly rounded" in capsys.readouterr().err


def test_chunks_are_counted(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("UDFTORCH_PROGRESS", "1")
    monkeypatch.setattr(progress, "PAUSE", 0.001)
    quick = [a for a in QUICK if a != "--quiet"]
    arguments = ("--chunks=16256:16258", f"--out={tmp_path}")
    assert run("verify", "libm", "exp", *quick, *arguments) == 0
    said = capsys.readouterr().err
    assert "udftorch: libm exp float32" in said
    assert re.search(r"[01] of 2 chunks, \d+ s", said)
    assert "done, " in said


def test_an_interrupted_run_says_how_to_go_on(tmp_path, capsys, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("pytest_udftorch.prove.verify.journal.Journal.record", interrupt)
        assert verify_libm(tmp_path) == cli.INTERRUPTED
    assert "--resume" in capsys.readouterr().err
    assert verify_libm(tmp_path) == cli.MISUSE
    assert "unfinished run" in capsys.readouterr().err
    assert verify_libm(tmp_path, "exp", "16256:16258", "--resume") == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("verify", "libm", "expo"), "Did you mean 'exp'"),
        (("verify", "corem", "sinh2"), "Unknown function 'sinh2'"),
        (("verify", "coram", "exp"), "No UDF library is called 'coram'"),
        (("verify", "libm", "exp", "--form=v8"), "has no form 'v8'"),
        (("verify", "vml", "exp2"), "vml as PyTorch ships it has no 'exp2'"),
        pytest.param(
            ("verify", "libm", "erfc", "--reference=llvmlibc"),
            "has no correctly rounded erfc",
            marks=needs_llvmlibc,
        ),
        (("verify", "libm", "exp", "--chunk-bits=40"), "between 8 and 28"),
        (("verify", "libm", "exp", "--workers=-1"), "must not be negative"),
        (("verify", "libm", "exp", "--chunks=300:301"), "has the chunks 0 to 255"),
        (("certificate", "check", "none.json"), "Cannot read the certificate"),
    ],
)
def test_a_mistake_gives_a_status_and_one_message(tmp_path, capsys, arguments, message):
    extra = (f"--out={tmp_path}", "--quiet") if arguments[0] == "verify" else ()
    if extra and "--reference=llvmlibc" not in arguments:
        extra += (REFERENCE,)
    workers = ("--workers=0",) if "--workers=-1" not in arguments and extra else ()
    assert run(*arguments, *extra, *workers) == cli.MISUSE
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_a_missing_reference_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("UDFTORCH_LLVMLIBC", raising=False)
    monkeypatch.setattr(reference, "LLVM_FOLDERS", tmp_path)
    assert verify_libm(tmp_path, "exp", "16256:16258", "--reference=auto") == cli.MISUSE
    assert "libllvmlibc-22-dev" in capsys.readouterr().err
    assert verify_libm(tmp_path, "exp", "16256:16258", "--reference=libm") == 0


def test_one_chunk_does_not_replace_the_shipped_certificate(tmp_path, capsys):
    stored = find_library("corem").functions["exp", "float32"].source.parent
    copy = tmp_path / "exp.float32.certificate.json"
    shutil.copy(stored / copy.name, copy)
    command = ("verify", "corem", "exp", "--chunks=0:1", f"--out={tmp_path}", REFERENCE)
    assert run(*command) == cli.MISUSE
    assert "a run of some chunks would replace it" in capsys.readouterr().err
    assert copy.read_bytes() == (stored / copy.name).read_bytes()


@pytest.mark.parametrize("text", ["5", "7:7", "a:b", "-1:3"])
def test_a_bad_range_of_chunks_is_refused(capsys, text):
    with pytest.raises(SystemExit):
        run("verify", "libm", "exp", f"--chunks={text}")
    assert "is not a range of chunks" in capsys.readouterr().err


def test_certificates_are_checked_merged_and_tabulated(tmp_path, capsys):
    verify_libm(tmp_path / "a", "exp", "16256:16258")
    verify_libm(tmp_path / "b", "exp", "16258:16259")
    parts = [tmp_path / x / "exp.float32.certificate.json" for x in "ab"]
    merged = tmp_path / "merged.json"
    assert run("certificate", "merge", *parts, "--out", merged) == 0
    assert prove.load_certificate(merged).runs[0].tally.inputs == 3 << 16
    capsys.readouterr()
    assert run("certificate", "check", merged) == cli.FAILED
    assert "3 of 65536 chunks are done" in capsys.readouterr().err
    assert run("certificate", "table", merged) == 0
    assert "| exp | float32 | libm" in capsys.readouterr().out


def test_parts_of_different_builds_are_not_merged(tmp_path, capsys):
    verify_libm(tmp_path / "a", "exp", "16256:16257")
    other = "--reference=mpfr"
    verify_libm(tmp_path / "b", "exp", "16257:16258", other)
    parts = [tmp_path / x / "exp.float32.certificate.json" for x in "ab"]
    assert run("certificate", "merge", *parts, "--out", tmp_path / "m.json") == cli.MISUSE
    assert "different builds" in capsys.readouterr().err
    assert not (tmp_path / "m.json").exists()


def test_an_edited_certificate_is_refused(tmp_path, capsys):
    verify_libm(tmp_path)
    path = tmp_path / "exp.float32.certificate.json"
    data = json.loads(path.read_text())
    data["runs"][0]["wrong"] = 0
    path.write_text(json.dumps(data))
    assert run("certificate", "check", path) == cli.MISUSE
    assert "was changed after it was written" in capsys.readouterr().err


def test_no_command_shows_the_usage(capsys):
    with pytest.raises(SystemExit):
        run()
    assert "required: VERB" in capsys.readouterr().err


# A sample -----------------------------------------------------------------------------


def bit_off(folder, claim):
    """An exp that is one bit off from 2**-3 to 2**-2."""
    folder.mkdir()
    (folder / "udf.toml").write_text(
        '[library]\nname = "off"\nversion = "1"\n[functions.exp.float32]\n'
        f'source = "exp.c"\nscalar = "off_expf"\nmax_ulp = {claim}\n'
    )
    (folder / "exp.c").write_text(
        "#include <math.h>\n"
        "float off_expf(float x) {\n"
        "  union { float f; unsigned u; } y = {(float)exp(x)};\n"
        "  return x >= 0.125f && x < 0.25f ? (y.u ^= 1, y.f) : y.f;\n"
        "}\n"
    )
    return folder


def test_a_sample_says_what_it_is_and_finds_one_wrong_binade(tmp_path, capsys):
    assert run("verify", "corem", "exp", "--quick") == 0
    out = capsys.readouterr().out
    assert "corem exp float32 array, claim 0.5 ULP: a sample of" in out
    assert "no certificate" in out
    strata = [line.split("  ")[0] for line in out.splitlines()[2:]]
    assert strata == ["all exponents", "boundaries", "few bits set", "hard cases", "random"]
    folder = bit_off(tmp_path / "off", 0.5)
    assert run("verify", folder, "--quick") == cli.FAILED
    said = capsys.readouterr()
    # Two ends and six others in one of the 512 binades.
    assert "8 of 4,096 results are against the claim of 0.5 ULP (all exponents)" in said.err
    assert not list(tmp_path.rglob("*.json"))


def test_against_the_claim_is_not_the_same_as_not_correctly_rounded(tmp_path, capsys):
    folder = bit_off(tmp_path / "off", 1.5)
    assert run("verify", folder, "--quick") == 0
    row = capsys.readouterr().out.splitlines()[2].split()
    assert row[:5] == ["all", "exponents", "4,096", "0", "8"]
    assert run("verify", folder, *QUICK, "--chunks=15872:15874", f"--out={tmp_path}") == 0
    assert "0 against the claim, 131,072 not correctly rounded" in capsys.readouterr().out
    assert run("certificate", "table", tmp_path / "exp.float32.certificate.json") == 0
    header, _, row = capsys.readouterr().out.splitlines()
    cells = dict(zip(header.split("|"), row.split("|"), strict=True))
    found = {name.strip(): cell.strip() for name, cell in cells.items()}
    assert found["against the claim"] == "0"
    assert found["not correctly rounded"] == "131,072 (incomplete)"


def test_a_sample_of_two_arguments(capsys):
    assert run("verify", "corem", "pow", "--quick") == 0
    assert "boundaries" in capsys.readouterr().out
    assert run("verify", "canary", "pow", "--quick") == 0  # which claims a whole ULP more


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["corem", "exp", "--out=x"], "so --out has no meaning"),
        (["corem", "exp", "--dtype=bfloat16"], "so --dtype=bfloat16 has no meaning"),
        (["vml", "exp"], "vml is not a UDF library"),
        (["corem", "exp", "--form=v8"], "a sample of corem has no form 'v8'"),
        (["corem", "epx"], "no function 'epx'"),
    ],
)
def test_what_cannot_be_sampled(arguments, says, capsys):
    assert run("verify", *arguments, "--quick") == cli.MISUSE
    assert says in capsys.readouterr().err


HYPOT = """
#include <math.h>
float own_hypotf(float x, float y) { return (float)hypot(x, y); }
"""
OWN = """
[library]
name = "own"
version = "1"
[functions.hypot.float32]
source = "hypot.c"
scalar = "own_hypotf"
"""
GROWN = (
    OWN + '[functions.exp.float32]\nsource = "exp.c"\nscalar = "own_expf"\n',
    "float own_expf(float x) { return 1 + x; }\n",
)


@pytest.fixture
def own(tmp_path):
    """A library, certified over few pairs, that has got another function since."""
    (tmp_path / "udf.toml").write_text(OWN)
    (tmp_path / "hypot.c").write_text(HYPOT)
    options = ("--pairs=65536", "--chunk-bits=14", "--workers=0", "--quiet", "--reference=libm")
    assert run("verify", tmp_path, "hypot", *options) == 0
    (tmp_path / "udf.toml").write_text(GROWN[0])
    (tmp_path / "exp.c").write_text(GROWN[1])
    return tmp_path


def again(library, *more):
    return run("verify", library, "hypot", "--again", "--workers=0", *more)


def own_run(library):
    return prove.load_certificate(library / "hypot.float32.certificate.json").runs[0]


def test_a_new_build_with_the_same_outputs_is_named(own, capsys):
    before = own_run(own)
    assert again(own) == 0
    assert "the same outputs; names this build now" in capsys.readouterr().out
    after = own_run(own)
    assert after.identity["library_sha256"] == sha256_of(build_library(own).path)
    assert after.identity["library_sha256"] != before.identity["library_sha256"]
    assert (after.chunks, after.tally, after.date) == (before.chunks, before.tally, before.date)
    assert again(own) == 0
    assert "names this build already" in capsys.readouterr().out


def test_a_new_build_with_other_outputs_is_not_named(own, capsys):
    path = own / "hypot.float32.certificate.json"
    stored = prove.load_certificate(path)
    (only,) = stored.runs
    other = replace(only, chunks={**only.chunks, 2: only.chunks[1]})
    prove.save_certificate(replace(stored, runs=(other,)), path)
    assert again(own) == cli.FAILED
    captured = capsys.readouterr()
    assert "other outputs in 1 chunks" in captured.out
    assert "--chunks 2:3 with --out shows the first" in captured.err
    assert own_run(own) == other


def test_what_cannot_be_repeated_is_refused(own, capsys):
    assert again(own, "--form=array") == cli.MISUSE
    assert "so --form has no meaning" in capsys.readouterr().err
    (own / "hypot.c").write_text(HYPOT.replace("x, y", "y, x"))
    assert again(own) == cli.MISUSE
    assert "is not of the present sources of own hypot" in capsys.readouterr().err
