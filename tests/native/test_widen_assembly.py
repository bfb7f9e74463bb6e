# SPDX-License-Identifier: Apache-2.0
"""The code of the array form's hot loop: packed arithmetic in the widest registers, no scalars."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from toolchain import FLAGS, LEVELS, SOURCES, Llvm, Probe

EXPF = Probe("expf", 32, 1)
EXP = Probe("exp", 64, 1)
QUICK_EXP = replace(EXP, quick=True)
LOOKUPF = Probe("lookupf", 32, 1, quick=True, short=True)
REGISTER = {"avx2": "ymm", "avx512": "zmm"}

# Floating-point arithmetic and conversion on one element (ss, sd), as opposed to the
# broadcasts and moves that share the ending.
SCALAR = re.compile(
    r"^v?(add|sub|mul|div|max|min|sqrt|cmp\w*|ucomi|comi|cvt\w+2|f(n?m)(add|sub)\d+)s[sd]\b"
)
# An instruction that works on whole vectors of doubles.
PACKED = re.compile(r"^v(add|sub|mul|max|min|f(n?m)(add|sub)\d+)pd\b")


def function_body(assembly: str, name: str) -> list[str]:
    """The instructions and labels of one function, comments removed."""
    start = assembly.index(f"\n{name}:")
    end = assembly.index("\n.Lfunc_end", start)
    lines = (line.partition("#")[0].strip() for line in assembly[start:end].splitlines())
    return [line for line in lines if line and not line.startswith(".cfi")]


def hot_loop(body: list[str]) -> list[str]:
    """The instructions between the target of the first backward jump and that jump."""
    labels: dict[str, int] = {}
    for i, line in enumerate(body):
        if line.endswith(":"):
            labels[line[:-1]] = i
        jump = re.match(r"j\w+\s+(\.\w+)", line)
        if jump and jump[1] in labels:
            return [op for op in body[labels[jump[1]] : i] if not op.endswith(":")]
    raise AssertionError("the function has no loop")


def assert_packed(loop: list[str], register: str) -> None:
    packed = [op for op in loop if PACKED.match(op)]
    assert len([op for op in packed if op.startswith("vfmadd")]) >= 8, "no polynomial"
    for op in packed:
        assert f"%{register}" in op, f"not in the widest register: {op}"
    assert not [op for op in loop if SCALAR.match(op)], "scalar arithmetic in the loop"
    assert not [op for op in loop if op.startswith("call") and "fixup" not in op], "a call"


def compile_to_assembly(
    llvm: Llvm, folder: Path, manifest: Path, level_name: str, *extra: str
) -> str:
    level = LEVELS[level_name]
    out = folder / "probe.s"
    llvm.widen(SOURCES / "probe.c", manifest, out, level, "-S", *extra)
    return out.read_text()


@pytest.mark.parametrize("level_name", REGISTER)
@pytest.mark.parametrize(
    "probe", [EXPF, EXP, QUICK_EXP], ids=lambda probe: f"{'quick ' * probe.quick}{probe.name}"
)
def test_array_form_is_vector_code(
    llvm: Llvm,
    tmp_path: Path,
    write_manifest: Callable[..., Path],
    level_name: str,
    probe: Probe,
) -> None:
    manifest = write_manifest(LEVELS[level_name], [probe])
    assembly = compile_to_assembly(llvm, tmp_path, manifest, level_name)
    loop = hot_loop(function_body(assembly, f"__udf_{probe.name}_array"))
    assert_packed(loop, REGISTER[level_name])


# Per level: what reads the tables of 32, 16 and 8 floats, and how often. At AVX2 the first
# does not fit into two registers, and the second is read in halves.
PERMUTATIONS = {
    "avx512": {r"vperm[it]2(ps|d)\s.*%zmm": 1, r"vperm(ps|d)\s.*%zmm": 2},
    "avx2": {r"vperm(ps|d)\s.*%ymm": 3},
}


@pytest.mark.parametrize("level_name", REGISTER)
def test_small_tables_are_read_by_permutations(
    llvm: Llvm, tmp_path: Path, write_manifest: Callable[..., Path], level_name: str
) -> None:
    level = LEVELS[level_name]
    assembly = compile_to_assembly(llvm, tmp_path, write_manifest(level, [LOOKUPF]), level_name)
    body = function_body(assembly, f"__udf_lookupf_v{max(level.lanes(32))}")
    for pattern, times in PERMUTATIONS[level_name].items():
        assert len([op for op in body if re.match(pattern, op)]) == times, pattern
    assert not [op for op in body if "gather" in op]
    # Negative control: in the fix-up and the scalar form there is nothing to permute.
    scalar = function_body(assembly, "__udf_lookupf")
    assert not [op for op in scalar if "vperm" in op]
    assert "__udf_table" not in assembly


def test_a_block_tests_its_masks_together(
    llvm: Llvm, tmp_path: Path, write_manifest: Callable[..., Path]
) -> None:
    """Moving a mask to a general register takes a port of the arithmetic for each."""
    manifest = write_manifest(LEVELS["avx512"], [QUICK_EXP])
    assembly = compile_to_assembly(llvm, tmp_path, manifest, "avx512")
    loop = hot_loop(function_body(assembly, f"__udf_{QUICK_EXP.name}_array"))
    assert len([op for op in loop if op.startswith("kortest")]) == 1
    # One mask register to another, for a mask that waits over the cut, needs no general one.
    moves = [op for op in loop if op.startswith("kmov")]
    assert not [op for op in moves if not re.fullmatch(r"kmov\w\s+%k\d, %k\d", op)]


@pytest.mark.parametrize(("level_name", "size"), [("avx512", 64), ("avx2", 32)])
def test_spilled_registers_are_aligned(
    llvm: Llvm, tmp_path: Path, write_manifest: Callable[..., Path], level_name: str, size: int
) -> None:
    """The frame begins at a multiple of their size, wherever the caller's ends."""
    manifest = write_manifest(LEVELS[level_name], [QUICK_EXP])
    assembly = compile_to_assembly(llvm, tmp_path, manifest, level_name)
    body = function_body(assembly, f"__udf_{QUICK_EXP.name}_array")
    assert re.search(rf"andq\s+\$-{size}, %rsp", "\n".join(body))


@pytest.mark.parametrize("short", [True, False])
def test_the_scalar_form_begins_with_the_short_path(
    llvm: Llvm, tmp_path: Path, write_manifest: Callable[..., Path], short: bool
) -> None:
    """It alone loads from a table in memory; what is hard goes on to a function of its own."""
    manifest = write_manifest(LEVELS["avx2"], [replace(LOOKUPF, short=short)])
    assembly = compile_to_assembly(llvm, tmp_path, manifest, "avx2")
    scalar = function_body(assembly, "__udf_lookupf")
    assert any("udf_lookupf_short.squares" in op for op in scalar) == short
    assert any(re.match(r"j\w+\s+__udf_lookupf\.fixup", op) for op in scalar) == short
    # It begins where a cache line does.
    start = re.search(r"\.p2align\s+(\d+).*\n\s*\.type\s+__udf_lookupf,", assembly)
    assert start is not None
    assert (int(start[1]) == 6) == short
    assert not [op for op in scalar if op.startswith("call")]
    for name in ("__udf_lookupf_v8", "__udf_lookupf_array"):
        assert not [op for op in function_body(assembly, name) if "short" in op]


@pytest.mark.parametrize("level_name", REGISTER)
def test_vector_form_stays_in_registers(
    llvm: Llvm, tmp_path: Path, write_manifest: Callable[..., Path], level_name: str
) -> None:
    """No stack is touched on the way to the result of the widest vector form."""
    level = LEVELS[level_name]
    lanes = max(level.lanes(32))
    assembly = compile_to_assembly(llvm, tmp_path, write_manifest(level, [EXPF]), level_name)
    body = function_body(assembly, f"__udf_expf_v{lanes}")
    assert not [op for op in body if "%rsp" in op or "%rbp" in op]
    packed = [op for op in body if PACKED.match(op)]
    assert packed
    assert all(f"%{REGISTER[level_name]}" in op for op in packed)


def test_scalar_loop_is_found_out(llvm: Llvm, tmp_path: Path) -> None:
    """Negative control: the author's functions in an ordinary scalar loop fail the check."""
    out = tmp_path / "shim.s"
    level = LEVELS["avx2"]
    llvm.must(
        [llvm.tool("clang"), "-std=c17", *FLAGS, *level.march, "-S", SOURCES / "shim.c", "-o", out]
    )
    loop = hot_loop(function_body(out.read_text(), "reference_expf"))
    with pytest.raises(AssertionError, match=r"no polynomial"):
        assert_packed(loop, "ymm")
    assert [op for op in loop if SCALAR.match(op)]


def test_fast_path_that_cannot_be_vectorised_is_warned_about(llvm: Llvm, tmp_path: Path) -> None:
    """The author of a fast path with a call in it hears of it."""
    source, manifest = tmp_path / "udf.c", tmp_path / "manifest.json"
    source.write_text(
        "float tgammaf(float);\n"
        "static float udf_f_fast(float x, int *hard) { *hard = 0; return tgammaf(x); }\n"
        "static float udf_f_accurate(float x) { return x; }\n"
    )
    manifest.write_text(
        '{"functions": [{"name": "f", "type": "float", "arity": 1, "fast": "udf_f_fast", '
        '"accurate": "udf_f_accurate", "forms": {"array": "__udf_f_array"}}]}'
    )
    level = LEVELS["avx2"]
    done = llvm.run(
        [
            *(llvm.tool("clang"), *FLAGS, *level.march, "-femit-all-decls", *llvm.loads),
            *("-mllvm", f"-udf-widen-manifest={manifest}", "-c", source, "-o", tmp_path / "f.o"),
        ]
    )
    assert done.returncode == 0
    assert "loop not vectorized" in done.stderr
