# SPDX-License-Identifier: Apache-2.0
"""The forms for AdvSIMD give the bits of the author's own functions, where QEMU runs them."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from toolchain import FLAGS, PROBES, SOURCES, Level, Llvm

SYSROOT = Path("/usr/aarch64-linux-gnu")
TARGET = ("--target=aarch64-linux-gnu", "-isystem", f"{SYSROOT}/include", "-D__FMA__=1")


class Neon(Level):
    """AArch64: vector forms of one register."""

    def lanes(self, bits: int) -> tuple[int, ...]:
        return (self.register_bits // bits,)


NEON = Neon("neon", (*TARGET, "-march=armv8-a"), frozenset(), 128)
FILES = ("Scrt1.o", "crti.o", "libm.so.6", "libc.so.6", "crtn.o")
LINK = (
    # clang's driver would ask for the files of a cross GCC.
    "--target=aarch64-linux-gnu", "-fuse-ld=lld", "-nostdlib", "-pie",
    "-Wl,-dynamic-linker,/lib/ld-linux-aarch64.so.1",
    *(f"{SYSROOT}/lib/{name}" for name in FILES),
)  # fmt: skip

needs_qemu = pytest.mark.skipif(
    shutil.which("qemu-aarch64") is None or not (SYSROOT / "lib" / "libc.so.6").is_file(),
    reason="needs qemu-aarch64 (Debian: qemu-user) and libc6-dev-arm64-cross",
)


@pytest.fixture
def compared(llvm, write_manifest, tmp_path):
    """What the program says of a build of the probes: (function, form) -> (compared, different)."""

    def run(*defines):
        forms, program = tmp_path / "forms.o", tmp_path / "compared"
        llvm.widen(SOURCES / "probe.c", write_manifest(NEON), forms, NEON, "-c", *defines)
        objects = [forms]
        for source in ("shim.c", "compared.c"):
            objects.append(tmp_path / f"{source}.o")
            words = [llvm.tool("clang"), "-std=c17", *FLAGS, *NEON.march, "-Wno-literal-range"]
            llvm.must([*words, "-c", SOURCES / source, "-o", objects[-1]])
        llvm.must([llvm.tool("clang"), *LINK, *objects, "-o", program])
        said = subprocess.run(
            ["qemu-aarch64", "-L", SYSROOT, program], capture_output=True, text=True, check=True
        ).stdout
        rows = [line.split() for line in said.splitlines()]
        return {(name, form): (int(n), int(wrong)) for name, form, n, wrong in rows}

    return run


@needs_qemu
def test_every_form_gives_the_authors_bits(compared):
    found = compared()
    forms = ("scalar", "array", "outside")
    lanes = {(p.name, f"v{128 // p.bits}") for p in PROBES}
    assert set(found) == lanes | {(p.name, form) for p in PROBES for form in forms}
    assert {key: wrong for key, (_, wrong) in found.items() if wrong} == {}
    assert min(n for (_, form), (n, _) in found.items() if form != "outside") > 40_000


@needs_qemu
@pytest.mark.parametrize("path", ["FAST", "ACCURATE"])
def test_one_wrong_bit_is_seen_in_every_form(compared, path):
    found = compared(f"-DULP_ERROR_{path}=1")
    for probe in PROBES:
        if path == "FAST" or probe.two_step:
            for form in ("scalar", "array", f"v{128 // probe.bits}"):
                count, wrong = found[probe.name, form]
                assert wrong > (count // 2 if path == "FAST" else 0), (probe.name, form)
        assert found[probe.name, "outside"][1] == 0


def test_the_forms_are_vector_code(llvm: Llvm, write_manifest, tmp_path):
    if not (SYSROOT / "include" / "math.h").is_file():
        pytest.skip("needs libc6-dev-arm64-cross")
    forms = tmp_path / "forms.o"
    llvm.widen(SOURCES / "probe.c", write_manifest(NEON), forms, NEON, "-c")
    code = llvm.must(
        [llvm.tool("llvm-objdump"), "-d", "--disassemble-symbols=__udf_expf_v4", forms]
    )
    assert (
        code.count("fmla\tv") >= 16
    )  # a polynomial of degree 8 in doubles, two of them a register
    assert "fmadd" not in code


def compiled(llvm, folder, form, *march):
    """Compile one function with one form to assembly; return what clang did and the text."""
    manifest = folder / "manifest.json"
    manifest.write_text(
        '{"functions": [{"name": "f", "type": "float", "arity": 1, "scalar": "f",'
        f' "fast": null, "accurate": null, "forms": {{"{form}": "__udf_f"}}}}]}}'
    )
    source, out = folder / "f.c", folder / "f.s"
    source.write_text("float f(float x) { return x * x + 2; }\n")
    words = [
        llvm.tool("clang"), "--target=aarch64-linux-gnu", "-O2", "-ffp-contract=off", *march,
        *llvm.loads, "-mllvm", f"-udf-widen-manifest={manifest}", "-S", source, "-o", out,
    ]  # fmt: skip
    return llvm.run(words), out


SVE = "-march=armv8-a+sve"


@pytest.mark.parametrize("bits", [256, 512])
def test_the_form_of_an_sve_register_is_code_for_whole_registers(llvm, tmp_path, bits):
    done, text = compiled(llvm, tmp_path, "vx", SVE, f"-msve-vector-bits={bits}")
    assert done.returncode == 0, done.stderr
    body = text.read_text().split("__udf_f:")[1].split(".Lfunc_end")[0]
    assert ".variant_pcs\t__udf_f" in text.read_text()
    assert re.search(r"fmul\tz\d+\.s", body)
    assert "\ts0" not in body  # no lane for itself


@pytest.mark.parametrize("march", [("-march=armv8-a",), (SVE,)], ids=["no SVE", "any length"])
def test_the_form_of_an_sve_register_needs_one_length(llvm, tmp_path, march):
    done, _ = compiled(llvm, tmp_path, "vx", *march)
    assert done.returncode == 1
    assert "form 'vx' of 'f' needs SVE registers of one length; drop the form" in done.stderr
    assert "-msve-vector-bits=256" in done.stderr


def test_a_form_wider_than_advsimd_is_refused(llvm, tmp_path):
    done, _ = compiled(llvm, tmp_path, "v8")
    assert done.returncode == 1
    assert "needs registers of 256 bits but the target has 128; drop the form" in done.stderr
    assert "x86-64" not in done.stderr
