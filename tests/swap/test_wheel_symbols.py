# SPDX-License-Identifier: Apache-2.0
"""The symbols of aarch64 are those that the registry's wheels call, and their slots are found."""

import json
import shutil
import subprocess
from collections import Counter

import pytest

from benches import stored
from benches.experiments import wheel_symbols
from pytest_udftorch.errors import NativeError
from pytest_udftorch.swap.library.symbols import (
    AARCH64,
    DTYPES,
    FUNCTIONS,
    PROCESSORS,
    X86_64,
    forms,
)
from pytest_udftorch.swap.native.runtime import runtime
from pytest_udftorch.swap.session.binder import known_symbols

WHEELS = stored.load(stored.RESULTS / "wheel_symbols.json")["wheels"]
#: SLEEF's functions that no UDF stands for.
NO_UDF = {"copysign", "fmod", "lgamma", "nextafter", "sqrt"}

CALLER = """
typedef {vector} v4;
v4 {sleef}(v4);
float expf(float);
double log(double);
int close(int);
v4 vectors(v4 x) {{ return {sleef}(x) + {sleef}(-x); }}
float scalars(float x) {{ return expf(x) + (float)close(0); }}
double (*table[2])(double) = {{log, log}};
"""


def made(folder, target, vector, sleef):
    """A shared object that calls one function through each kind of relocation."""
    clang = shutil.which("clang-19") or shutil.which("clang")
    source, path = folder / "caller.c", folder / f"{target}.so"
    source.write_text(CALLER.format(vector=vector, sleef=sleef))
    words = [clang, f"--target={target}", "-O1", "-fPIC", "-fno-math-errno", "-fno-builtin"]
    subprocess.run([*words, "-c", source, "-o", folder / "a.o"], check=True)
    link = ["-nostdlib", "-shared", "-fuse-ld=lld", "-Wl,-z,undefs"]
    subprocess.run([*words, *link, folder / "a.o", "-o", path], check=True)
    return path


@pytest.fixture(scope="module")
def caller(tmp_path_factory):
    vector = "float __attribute__((vector_size(16)))"
    return made(tmp_path_factory.mktemp("caller"), "aarch64-linux-gnu", vector, "Sleef_logf4_u10")


@pytest.mark.parametrize("name", WHEELS)
def test_every_vector_symbol_of_a_wheel_has_a_form(name):
    found = WHEELS[name]["objects"]["libtorch_cpu.so"]
    assert found["processor"] == "aarch64"
    known = known_symbols(AARCH64)
    assert set(found["calls"]) <= set(known)
    scalable = [s for s in found["other_sleef"] if s.endswith("sve")]
    rest = set(found["other_sleef"]) - set(scalable)
    named = {f"Sleef_{n}{letter}" for n in NO_UDF for letter in ("f4", "d2")}
    assert {s.split("_u")[0] for s in rest} <= named
    assert len(scalable) > 40  # a function of SVE is not one of AdvSIMD


@pytest.mark.parametrize("name", WHEELS)
def test_a_wheel_calls_each_function_that_the_table_has(name):
    called = set(WHEELS[name]["objects"]["libtorch_cpu.so"]["calls"])
    missing = {
        (f.name, dtype, form)
        for f in FUNCTIONS.values()
        for dtype in DTYPES
        for form, symbols in f.symbols(dtype, AARCH64).items()
        if not called & set(symbols)
    }
    # The headers call libm for each lane of these, and have an erf of their own.
    assert {m for m in missing if m[2] == "scalar"} == set()
    assert {m[0] for m in missing} <= {"asinh", "acosh", "sinh", "cosh", "erf"}


def test_the_forms_of_a_level_are_those_of_its_processor():
    for processor in PROCESSORS.values():
        for level in processor.cpu_levels:
            for dtype in DTYPES:
                lanes = {f"v{n}" for n in processor.lanes[dtype]}
                assert {f for f in forms(dtype, level) if f[0] == "v"} <= {*lanes, "vx"}
    assert forms("float32", "neon") == ("scalar", "v4", "array")
    assert forms("float64", "neon") == ("scalar", "v2", "array")
    assert forms("float32", "sve256") == ("scalar", "v4", "vx", "array")
    assert forms("float32", "avx512") == ("scalar", "v8", "v16", "array")


@pytest.mark.parametrize(
    ("target", "sleef", "vector", "processor"),
    [
        ("aarch64-linux-gnu", "Sleef_expf4_u10advsimd", 16, AARCH64),
        ("x86_64-linux-gnu", "Sleef_expf8_u10", 32, X86_64),
    ],
)
def test_slots_are_found_in_a_file_of_another_processor(tmp_path, target, sleef, vector, processor):
    kind = f"float __attribute__((vector_size({vector})))"
    path = made(tmp_path, target, kind, sleef)
    assert wheel_symbols.bound(path) == (
        processor.name,
        Counter({(sleef, "", "JUMP_SLOT"): 1, ("expf", "", "JUMP_SLOT"): 1, ("log", "", "64"): 2}),
    )
    assert wheel_symbols.compare(path)["other_sleef"] == []
    # close() is called, but is nobody's function.
    assert ("close", "", "JUMP_SLOT") in wheel_symbols.relocated(path)


def test_a_slot_has_its_address_in_the_file(caller):
    _, slots = runtime().find_in_file(caller, list(known_symbols(AARCH64)))
    said = subprocess.run(
        [wheel_symbols.READELF, "-rW", caller], capture_output=True, text=True, check=True
    ).stdout
    for slot in slots:
        assert f"{slot.address:016x}" in said
        assert slot.object == caller.name


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"not an ELF file",
        lambda data: data[:40],
        lambda data: data[:4] + b"\x01" + data[5:],  # 32 bits
        lambda data: data[:18] + b"\xf3\x00" + data[20:],  # RISC-V
        lambda data: data[:16] + b"\x01\x00" + data[18:],  # not a shared object
        lambda data: data[:200],  # segments behind the end
    ],
)
def test_another_file_is_refused(tmp_path, caller, damage):
    path = tmp_path / "damaged.so"
    path.write_bytes(damage(caller.read_bytes()))
    with pytest.raises(NativeError, match=r"not a shared object for x86_64 or aarch64.*"):
        runtime().find_in_file(path, ["expf"])
    with pytest.raises(NativeError, match="The relocations of"):
        runtime().find_in_file(tmp_path / "absent.so", ["expf"])


def test_a_wheel_that_is_none_is_refused(tmp_path, capsys):
    path = tmp_path / "torch.whl"
    path.write_text("no archive")
    assert wheel_symbols.main([str(path)]) == 2
    assert "cannot be read as a wheel" in capsys.readouterr().err


def test_readers_that_disagree_are_an_error(caller, monkeypatch):
    assert json.dumps(wheel_symbols.compare(caller))
    seen = wheel_symbols.relocated(caller)
    seen["expf", "", "GLOB_DAT"] += 1
    monkeypatch.setattr(wheel_symbols, "relocated", lambda _: seen)
    with pytest.raises(wheel_symbols.WheelError, match=r"'GLOB_DAT'\): 1}\) less"):
        wheel_symbols.compare(caller)
