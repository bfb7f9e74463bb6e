# SPDX-License-Identifier: Apache-2.0
"""udf-replace in clang's pipelines, executed: every use of a target gives the UDF's bits."""

import ctypes
import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from toolchain import FLAGS, SOURCES, Level, Library, Llvm, Probe

EXPF = Probe("expf", 32, 1)
USES = ("loop", "if", "pointer", "argument", "three", "four", "twentyfour", "own")
MODES = {
    "O0": ("-O0",),
    "O1": ("-O1",),
    "O2-errno": ("-O2", "-fmath-errno"),
    "O3": ("-O3", "-fno-math-errno"),
    "O3-fast": ("-O3", "-ffast-math"),
    "Os-debug": ("-Os", "-g", "-fno-math-errno"),
}


@pytest.fixture(scope="module")
def bitcode(
    level: Level,
    llvm: Llvm,
    write_manifest: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    out = tmp_path_factory.mktemp("bitcode") / "udf.bc"
    manifest = write_manifest(level, [EXPF])
    llvm.widen(SOURCES / "probe.c", manifest, out, level, "-c", "-emit-llvm")
    return out


def replace(
    llvm: Llvm, level: Level, folder: Path, bitcode: Path, source: Path, *flags: str
) -> tuple[Path, list[dict[str, object]]]:
    targets = {name: "__udf_expf" for name in ("expf", "own_expf", "llvm.exp.f32")}
    if source.name == "user.c":
        targets |= {f"llvm.exp.v{n}f32": f"__udf_expf_v{n}" for n in level.lanes(32)}
    map_path, out = folder / "map.json", folder / "user.so"
    map_path.write_text(json.dumps({"bitcode": str(bitcode), "targets": targets}))
    report = folder / "report.json"
    # Linked apart: some clangs let -ffast-math change the whole process's treatment of subnormals.
    objects = folder / "user.o"
    llvm.must(
        [
            *(llvm.tool("clang"), "-std=c17", "-fPIC", "-ffp-contract=off", *level.march, *flags),
            *(*llvm.loads, "-mllvm", f"-udf-replace-map={map_path}"),
            *("-mllvm", f"-udf-report={report}", "-c", source, "-o", objects),
        ]
    )
    llvm.must([llvm.tool("clang"), "-shared", objects, "-o", out, "-lm"])
    return out, [json.loads(line) for line in report.read_text().splitlines()]


def run(path: Path, use: str, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    out = np.zeros_like(x)
    getattr(ctypes.CDLL(str(path)), f"user_{use}")(
        ctypes.c_int64(x.size), ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(out.ctypes.data)
    )
    return out


def arguments(n: int) -> npt.NDArray[np.float32]:
    x = np.random.default_rng(3).normal(0.0, 5.0, n).astype(np.float32)
    x.view(np.uint32)[::7] = x.view(np.uint32)[::7] & ~np.uint32(15) | np.uint32(5)
    return x


@pytest.mark.parametrize("mode", MODES)
def test_every_use_gives_the_bits_of_the_udf(
    llvm: Llvm, level: Level, library: Library, bitcode: Path, tmp_path: Path, mode: str
) -> None:
    path, report = replace(llvm, level, tmp_path, bitcode, SOURCES / "user.c", *MODES[mode])
    assert "expf" not in {n for n, letter in llvm.symbols(path).items() if letter == "U"}
    assert {line["target"] for line in report} >= {"expf", "own_expf"}
    for n in (24, 72, 24 * 17):
        x = arguments(n)
        want = library.reference(EXPF, [x])
        for use in USES:
            expected = np.where(x > 0, want, x) if use == "if" else want
            got = run(path, use, x)
            wrong = np.flatnonzero(got.view(np.uint32) != expected.view(np.uint32))
            assert not wrong.size, f"user_{use}: {wrong.size} of {n} differ"


def test_inlining_changes_no_bits(
    llvm: Llvm, level: Level, library: Library, bitcode: Path, tmp_path: Path
) -> None:
    """``udf-inline`` takes the calls of a vector form away, and their bits stay."""
    x = arguments(72)
    want = library.reference(EXPF, [x]).view(np.uint32)
    kept = []
    for name, flags in (("inlined", ()), ("called", ("-mllvm", "-udf-inline-limit=0"))):
        folder = tmp_path / name
        folder.mkdir()
        path, _ = replace(llvm, level, folder, bitcode, SOURCES / "user.c", *MODES["O3"], *flags)
        kept.append({s for s in llvm.symbols(path) if re.fullmatch(r"__udf_expf_v\d+", s)})
        for use in ("loop", "three", "twentyfour"):
            assert np.array_equal(run(path, use, x).view(np.uint32), want), (name, use)
    inlined, called = kept
    assert not inlined
    assert bool(called) == (level.register_bits > 128), "the control"


def test_loops_of_every_length(
    llvm: Llvm, level: Level, library: Library, bitcode: Path, tmp_path: Path
) -> None:
    """The vector body, its remainder and the scalar tail of a vectorised loop agree."""
    path, _ = replace(llvm, level, tmp_path, bitcode, SOURCES / "user.c", *MODES["O3"])
    x = arguments(130)
    want = library.reference(EXPF, [x]).view(np.uint32)
    for n in range(131):
        assert np.array_equal(run(path, "loop", x[:n]).view(np.uint32), want[:n]), f"n = {n}"


def test_vectorised_loop_holds_packed_code(
    llvm: Llvm, level: Level, bitcode: Path, tmp_path: Path
) -> None:
    """A loop of scalar calls becomes vector code at the levels that have vector forms."""
    replace(llvm, level, tmp_path, bitcode, SOURCES / "user.c", *MODES["O3"])
    out = tmp_path / "user.ll"
    llvm.must(
        [
            *(llvm.tool("clang"), "-std=c17", *FLAGS, *level.march, *llvm.loads, "-mllvm"),
            *(f"-udf-replace-map={tmp_path / 'map.json'}", "-S", "-emit-llvm"),
            *(SOURCES / "user.c", "-o", out),
        ]
    )
    text = out.read_text()
    body = text[text.index("@user_loop(") :]
    body = body[: body.index("\n}\n")]
    assert ("<8 x double>" in body or "<16 x double>" in body) == (level.register_bits > 128)


def test_without_the_pass_the_bits_differ(
    llvm: Llvm, level: Level, library: Library, tmp_path: Path
) -> None:
    """Negative control: it is the pass that brings the UDF's bits."""
    out = tmp_path / "plain.so"
    llvm.must(
        [
            *(llvm.tool("clang"), "-std=c17", "-shared", "-O3", "-fPIC", *level.march),
            *(SOURCES / "user.c", "-o", out, "-lm"),
        ]
    )
    assert "expf" in {n.partition("@")[0] for n in llvm.symbols(out)}
    x = arguments(72)
    want = library.reference(EXPF, [x]).view(np.uint32)
    for use in USES:
        assert not np.array_equal(run(out, use, x).view(np.uint32), want)


@pytest.mark.parametrize("optimise", ["-O0", "-O3"])
def test_udf_that_calls_the_replaced_function_does_not_call_itself(
    llvm: Llvm, level: Level, tmp_path: Path, optimise: str
) -> None:
    udf, user, bitcode = tmp_path / "udf.c", tmp_path / "loop.c", tmp_path / "udf.bc"
    udf.write_text("#include <math.h>\nfloat __udf_expf(float x) { return expf(x) + 1.0f; }\n")
    user.write_text(
        "#include <math.h>\n"
        "void user_loop(long n, const float *a, float *out) {\n"
        "  for (long i = 0; i < n; ++i) out[i] = expf(a[i]);\n"
        "}\n"
    )
    llvm.must([llvm.tool("clang"), *FLAGS, *level.march, "-emit-llvm", "-c", udf, "-o", bitcode])
    path, _ = replace(llvm, level, tmp_path, bitcode, user, optimise)
    libm = ctypes.CDLL("libm.so.6")
    libm.expf.restype = ctypes.c_float
    x = arguments(33)
    stock = np.array([libm.expf(ctypes.c_float(v)) for v in x], np.float32)
    assert np.array_equal(run(path, "loop", x), stock + np.float32(1.0))


@pytest.mark.parametrize("flag", ["-ffp-contract=fast", "-ffast-math", "-ffp-contract=off"])
def test_users_flags_contract_nothing_in_the_udf(
    llvm: Llvm, level: Level, tmp_path: Path, flag: str
) -> None:
    """A product and a sum that the UDF rounds one by one stay two operations."""
    udf, user, bitcode = tmp_path / "udf.c", tmp_path / "loop.c", tmp_path / "udf.bc"
    udf.write_text("float __udf_expf(float x) { return (x * x - 1.1f) - x * 0.3f; }\n")
    user.write_text(
        "float expf(float);\n"
        "void user_loop(long n, const float *a, float *out) {\n"
        "  for (long i = 0; i < n; ++i) out[i] = expf(a[i]);\n"
        "}\n"
    )
    llvm.must([llvm.tool("clang"), *FLAGS, *level.march, "-emit-llvm", "-c", udf, "-o", bitcode])
    path, _ = replace(llvm, level, tmp_path, bitcode, user, "-O3", flag)
    x = arguments(1000)
    want = (x * x - np.float32(1.1)) - x * np.float32(0.3)
    assert np.array_equal(run(path, "loop", x).view(np.uint32), want.view(np.uint32))


def test_compilers_side_by_side_write_whole_report_lines(
    llvm: Llvm, level: Level, bitcode: Path, tmp_path: Path
) -> None:
    replace(llvm, level, tmp_path, bitcode, SOURCES / "user.c", "-O0")
    report = tmp_path / "together.json"
    command = [
        *(llvm.tool("clang"), "-std=c17", "-O0", *level.march, *llvm.loads, "-mllvm"),
        *(f"-udf-replace-map={tmp_path / 'map.json'}", "-mllvm", f"-udf-report={report}"),
        *("-c", SOURCES / "user.c", "-o", "/dev/null"),
    ]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: llvm.must(command), range(6)))
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    assert len(lines) % 6 == 0
    assert len({json.dumps(line) for line in lines}) == len(lines) // 6
