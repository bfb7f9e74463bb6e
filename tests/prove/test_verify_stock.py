# SPDX-License-Identifier: Apache-2.0
"""Certificates for what PyTorch ships with, through symbols and through operators."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pytest_udftorch import cli
from pytest_udftorch.errors import UnknownFunctionError, VerifyError
from pytest_udftorch.prove.exact.rounding import correctly_rounded
from pytest_udftorch.prove.verify import run as verify
from pytest_udftorch.prove.verify.chunks import run_chunk
from pytest_udftorch.prove.verify.journal import Journal
from pytest_udftorch.prove.verify.reference.checker import LLVM_FOLDERS, checker_file, load_checker
from pytest_udftorch.prove.verify.schedule import Request, make_schedule
from pytest_udftorch.swap.library.symbols import FUNCTIONS

REFERENCE = "auto" if any(LLVM_FOLDERS.glob("llvm-*/lib/libllvmlibc.a")) else "libm"
BITS = 16
CHUNKS = (0x3F80, 0x4080, 0xC080)


def run_of(library, function, tmp_path, chunks=CHUNKS, **options):
    request = Request(chunk_bits=BITS, reference=REFERENCE, **options)
    schedule = make_schedule(library, function, request)
    journal = Journal(tmp_path / "journal", schedule.identity(), resume=False)
    return verify.execute(schedule, journal, verify.Execution(chunks, workers=0))


def inputs(chunk):
    bits = np.arange(chunk << BITS, (chunk + 1) << BITS, dtype=np.uint64).astype(np.uint32)
    return torch.from_numpy(bits.view(np.float32))


def wrong_through_torch(function, chunks=CHUNKS):
    """Count wrong results of the operator itself, by the oracle of ``rounding``."""
    count = 0
    for chunk in chunks:
        x = inputs(chunk)
        got = getattr(torch, function)(x).numpy().view(np.uint32)
        count += int(np.count_nonzero(got != correctly_rounded(x, function=function)))
    return count


@pytest.mark.parametrize("function", ["exp", "log", "sin"])
def test_vml_by_symbol_is_what_the_operator_calls(tmp_path, function):
    chunks = CHUNKS[:2]
    run = run_of("vml", function, tmp_path, chunks)
    assert run.identity["symbol"].startswith("vms")
    assert run.tally.wrong == wrong_through_torch(function, chunks) > 0


@pytest.mark.parametrize("library", ["sleef", "sleef-u35"])
def test_sleef_is_within_its_name(tmp_path, library):
    run = run_of(library, "sin", tmp_path)
    bound = 1.0 if library == "sleef" else 3.5
    assert 0.5 < run.largest["ulp"] <= bound
    assert run.tally.wrong > 0


@pytest.mark.parametrize("form", ["v8", "v16"])
def test_sleef_has_both_widths(tmp_path, form):
    if form == "v16" and torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("no AVX-512")
    run = run_of("sleef", "exp", tmp_path, form=form)
    assert run.identity["symbol"] == f"Sleef_expf{form[1:]}_u10"
    assert 0.5 < run.largest["ulp"] <= 1.0


def test_std_is_the_operator_itself(tmp_path):
    run = run_of("std", "tanh", tmp_path)
    assert run.identity["form"] == "operator"
    assert run.tally.wrong == wrong_through_torch("tanh") > 0


def test_an_operator_of_two_arguments_is_judged_on_pairs(tmp_path):
    request = Request(chunk_bits=BITS, pairs=1 << BITS, reference=REFERENCE)
    schedule = make_schedule("std", "hypot", request)
    tally = run_chunk(schedule, 0).tally
    x, y = (torch.from_numpy(a) for a in load_checker(checker_file()).inputs(2, 0, 0, 1 << BITS))
    got = torch.hypot(x, y).numpy().view(np.uint32)
    want = correctly_rounded((x, y), function="hypot")
    nans = np.isnan(got.view(np.float32)) & np.isnan(want.view(np.float32))
    assert tally.wrong == np.count_nonzero((got != want) & ~nans)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("function", ["exp", "log", "sin", "erf"])
def test_sixteen_bit_operators_are_judged_on_every_encoding(tmp_path, function, dtype):
    run = run_of("std", function, tmp_path, None, dtype=dtype)
    assert run.complete
    assert run.tally.inputs == 1 << 16
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(getattr(torch, dtype))
    got = getattr(torch, function)(x)
    want = correctly_rounded(x, function=function)
    differ = (got.view(torch.int16).numpy().view(np.uint16) != want) & ~torch.isnan(got).numpy()
    assert run.tally.wrong == np.count_nonzero(differ)
    assert sum(run.tally.histogram.values()) == 1 << 16


def test_a_udf_library_is_certified_in_sixteen_bits_through_a_session(tmp_path):
    stock = run_of("std", "exp", tmp_path / "std", None, dtype="bfloat16")
    swapped = run_of("corem", "exp", tmp_path / "corem", None, dtype="bfloat16")
    assert swapped.identity["build_id"] != stock.identity["build_id"]
    # Rounding a correctly rounded float32 again is right but for double rounding.
    assert swapped.tally.wrong <= stock.tally.wrong
    canary = run_of("canary", "exp", tmp_path / "canary", None, dtype="bfloat16")
    assert canary.digest() != swapped.digest()


def test_flushing_is_switched_back(tmp_path):
    tiny = torch.tensor([1e-40])
    assert float(tiny * 1) != 0
    run = run_of("std", "exp", tmp_path, None, dtype="bfloat16", flush=True)
    assert run.tally.flushed > 0
    assert float(tiny * 1) != 0


def test_sixteen_bits_of_two_arguments_are_refused():
    with pytest.raises(VerifyError, match=r"2\*\*32 pairs"):
        make_schedule("std", "pow", Request(dtype="bfloat16"))


def test_vml_lacks_what_torch_does_not_call():
    missing = 0
    for name in FUNCTIONS:
        try:
            make_schedule("vml", name, Request(reference=REFERENCE))
        except UnknownFunctionError:
            missing += 1
    assert 0 < missing < len(FUNCTIONS) - 4


@pytest.mark.slow
def test_all_functions_in_16_bits_are_those_of_one_argument(tmp_path, capsys):
    (tmp_path / "udf.toml").write_text(
        '[library]\nname = "two"\nversion = "1"\n[functions.exp.float32]\n'
        'source = "two.c"\nscalar = "two_expf"\n[functions.pow.float32]\n'
        'source = "two.c"\nscalar = "two_powf"\n'
    )
    (tmp_path / "two.c").write_text(
        "double exp(double); double pow(double, double);\n"
        "float two_expf(float x) { return (float)exp(x); }\n"
        "float two_powf(float x, float y) { return (float)pow(x, y); }\n"
    )
    options = ("--dtype=bfloat16", "--quiet", f"--out={tmp_path}")
    assert cli.main(["verify", str(tmp_path), *options]) == 0
    assert {p.name for p in tmp_path.glob("*.json")} == {"exp.bfloat16.certificate.json"}
    assert "not correctly rounded, of 65,536" in capsys.readouterr().out
