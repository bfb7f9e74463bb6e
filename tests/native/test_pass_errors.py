# SPDX-License-Identifier: Apache-2.0
"""What a user does wrong is told as a plain error: what, why, and what to do; no stack dump."""

import json
from pathlib import Path

import pytest
from toolchain import FLAGS, LEVELS, SOURCES, Llvm

TRIPLE = 'target triple = "x86_64-unknown-linux-gnu"\n'

UDF = (
    TRIPLE
    + """
declare float @only_declared(float)
declare double @__udf_taken(double)
define float @scalar(float %x) { ret float %x }
define float @accurate(float %x) { ret float %x }
define float @fast(float %x, ptr %hard) {
  store i32 0, ptr %hard
  ret float %x
}
define float @__udf_defined(float %x) { ret float %x }
"""
)


def entry(**changes: object) -> dict[str, object]:
    """A correct entry of the manifest, and what a test changes in it."""
    correct = {
        "name": "f",
        "type": "float",
        "arity": 1,
        "scalar": "scalar",
        "fast": None,
        "accurate": None,
        "forms": {"scalar": "__udf_f"},
    }
    return {k: v for k, v in {**correct, **changes}.items() if v != "absent"}


def manifest(**changes: object) -> str:
    return json.dumps({"functions": [entry(**changes)]})


def run_opt(
    llvm: Llvm, folder: Path, passes: str, option: str, text: str | None, module: str
) -> tuple[int, str]:
    (folder / "module.ll").write_text(module)
    file = folder / "input.json"
    if text is not None:
        file.write_text(text)
    done = llvm.run(
        [
            *(llvm.tool("opt"), f"-load-pass-plugin={llvm.plugin}", f"-passes={passes}"),
            *(f"{option}={file}", "-S", folder / "module.ll", "-o", folder / "out.ll"),
        ]
    )
    return done.returncode, done.stderr


def assert_plain_error(code: int, stderr: str, *parts: str) -> None:
    assert code == 1, stderr
    assert "error: udf-" in stderr
    assert "Stack dump" not in stderr
    assert "PLEASE submit" not in stderr
    for part in parts:
        assert part in stderr


WIDEN_ERRORS = {
    "missing": (None, ["input.json' cannot be read: No such file", "give the path"]),
    "unparsable": ("{", ["is not valid JSON", "correct the file"]),
    "not an object": ("[]", ["must be an object with an array 'functions'"]),
    "no functions": ("{}", ["must be an object with an array 'functions'"]),
    "entry no object": ('{"functions": [1]}', ["functions[0] must be an object"]),
    "no name": (manifest(name="absent"), ["functions[0]: 'name' must be a non-empty string"]),
    "type": (manifest(type="half"), ['functions[0] (f): \'type\' must be "float" or "double"']),
    "arity": (manifest(arity=3), ["'arity' must be 1 or 2"]),
    "arity no number": (manifest(arity="1"), ["'arity' must be 1 or 2"]),
    "scalar no name": (manifest(scalar=1), ["'scalar' must be null or the name of a function"]),
    "neither": (manifest(scalar=None), ["give either 'scalar' alone or 'fast' and 'accurate'"]),
    "half": (manifest(scalar=None, fast="fast"), ["give either 'scalar' alone"]),
    "both": (manifest(fast="fast", accurate="accurate"), ["give either 'scalar' alone"]),
    "quick alone": (manifest(quick="fast"), ["'quick' goes before 'fast'", "give 'fast' and"]),
    "quick without flag": (
        manifest(scalar=None, quick="accurate", fast="fast", accurate="accurate"),
        ["function 'accurate' for 'f' must have the type float (float, ptr)"],
    ),
    "short alone": (manifest(short="fast"), ["'short' goes before 'fast'", "give 'fast' and"]),
    "short without flag": (
        manifest(scalar=None, short="accurate", fast="fast", accurate="accurate"),
        ["function 'accurate' for 'f' must have the type float (float, ptr)"],
    ),
    "no forms": (manifest(forms={}), ["'forms' must be a non-empty object"]),
    "form": (manifest(forms={"w8": "__udf_f"}), ["unknown form 'w8'", "use scalar, array"]),
    "lanes": (manifest(forms={"v12": "__udf_f"}), ["unknown form 'v12'", "power of two"]),
    "symbol": (manifest(forms={"scalar": ""}), ["the symbol of form 'scalar'"]),
    "no such function": (
        manifest(scalar="nowhere"),
        ["names function 'nowhere' for 'f'", "has no such function", "-femit-all-decls"],
    ),
    "only declared": (manifest(scalar="only_declared"), ["only declares it"]),
    "wrong type": (
        manifest(type="double"),
        ["function 'scalar' for 'f' must have the type double (double) but has float (float)"],
    ),
    "wrong arity": (
        manifest(arity=2),
        ["must have the type float (float, float) but has float (float)"],
    ),
    "fast without flag": (
        manifest(scalar=None, fast="accurate", accurate="accurate"),
        ["must have the type float (float, ptr) but has float (float)"],
    ),
    "defined": (
        manifest(forms={"scalar": "__udf_defined"}),
        ["'__udf_defined' is already defined", "name another symbol"],
    ),
    "declared otherwise": (
        manifest(forms={"scalar": "__udf_taken"}),
        ["'__udf_taken' is declared as double (double) but the form has the type float (float)"],
    ),
    "too wide": (
        manifest(forms={"v8": "__udf_f_v8"}),
        ["form 'v8' of 'f' needs registers of 256 bits but the target has 128", "-march=x86-64-v3"],
    ),
}


@pytest.mark.parametrize("case", WIDEN_ERRORS)
def test_widen_error(llvm: Llvm, tmp_path: Path, case: str) -> None:
    text, parts = WIDEN_ERRORS[case]
    code, stderr = run_opt(llvm, tmp_path, "udf-widen", "-udf-widen-manifest", text, UDF)
    assert_plain_error(code, stderr, *parts)


def test_widen_accepts_the_correct_manifest(llvm: Llvm, tmp_path: Path) -> None:
    """The control of the errors above: the entry they spoil is a good one."""
    steps = {"scalar": None, "fast": "fast", "accurate": "accurate"}
    first = ({}, {"quick": "fast"}, {"short": "fast"})
    for text in (manifest(), *(manifest(**steps, **more) for more in first)):
        code, stderr = run_opt(llvm, tmp_path, "udf-widen", "-udf-widen-manifest", text, UDF)
        assert (code, stderr) == (0, "")
        assert "@__udf_f(" in (tmp_path / "out.ll").read_text()


def test_widen_reports_every_mistake_at_once(llvm: Llvm, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(
        json.dumps({"functions": [entry(scalar="a"), entry(scalar="b")]})
    )
    (tmp_path / "udf.c").write_text("float scalar(float x) { return x; }\n")
    done = llvm.run(
        [
            *(llvm.tool("clang"), *llvm.loads),
            *("-mllvm", f"-udf-widen-manifest={tmp_path / 'manifest.json'}"),
            *("-c", tmp_path / "udf.c", "-o", tmp_path / "udf.o"),
        ]
    )
    assert_plain_error(done.returncode, done.stderr, "function 'a'", "function 'b'")


USER = (
    TRIPLE
    + """
@variable = global i32 0
@alias = alias float (float), ptr @defined
declare float @declared(float)
declare float @call_of_another_type(float)
declare fastcc float @fast_convention(float)
declare float @llvm.exp.f32(float)
declare float @llvm.powi.f32.i32(float, i32)
define float @defined(float %x) { ret float %x }
define float @__udf_mine(float %x) { ret float %x }
define float @user(float %x) {
  %a = call float @declared(float %x)
  %b = call double @call_of_another_type(double 1.0)
  %c = call fastcc float @fast_convention(float %a)
  %d = call float @llvm.exp.f32(float %c)
  %e = call float @llvm.powi.f32.i32(float %d, i32 3)
  ret float %e
}
"""
)

BITCODE = (
    TRIPLE
    + """
define float @__udf_f(float %x) { ret float %x }
define double @__udf_d(double %x) { ret double %x }
define float @__udf_mine(float %x) { ret float %x }
define internal float @__udf_hidden(float %x) { ret float %x }
"""
)


def replace_map(targets: object, bitcode: str = "udf.ll") -> str:
    return json.dumps({"bitcode": bitcode, "targets": targets})


REPLACE_ERRORS = {
    "missing": (None, ["input.json' cannot be read: No such file"]),
    "unparsable": ('{"bitcode"', ["is not valid JSON"]),
    "no object": ("[]", ["must be an object with a string 'bitcode' and an object 'targets'"]),
    "no targets": ('{"bitcode": "udf.ll"}', ["an object 'targets'"]),
    "no bitcode": ('{"targets": {}}', ["a string 'bitcode'"]),
    "replacement": (replace_map({"defined": 1}), ["target 'defined' must name its replacement"]),
    "bitcode missing": (
        replace_map({}, "nowhere.bc"),
        ["nowhere.bc' does not exist", "build the UDF library first"],
    ),
    "bitcode broken": (
        replace_map({"defined": "__udf_f"}, "broken.ll"),
        ["broken.ll' cannot be read: ", "it must be LLVM IR"],
    ),
    "other target": (
        replace_map({"defined": "__udf_f"}, "arm.ll"),
        ["is for aarch64-linux-gnu but module", "x86_64-unknown-linux-gnu", "for that target"],
    ),
    "not in bitcode": (
        replace_map({"defined": "__udf_g"}),
        ["defines no function '__udf_g'", "it defines __udf_f, __udf_d, __udf_mine"],
    ),
    "types, defined": (
        replace_map({"defined": "__udf_d"}),
        ["'defined' has the type float (float) but its replacement '__udf_d' has double (double)"],
    ),
    "types, declared": (
        replace_map({"declared": "__udf_d"}),
        ["'declared' has the type float (float) but its replacement '__udf_d' has double (double)"],
    ),
    "types, intrinsic": (
        replace_map({"llvm.exp.f32": "__udf_d"}),
        ["'llvm.exp.f32' has the type float (float) but its replacement '__udf_d'"],
    ),
    "type of a call": (
        replace_map({"call_of_another_type": "__udf_f"}),
        ["in 'user' has the type double (double) but its replacement '__udf_f' has float (float)"],
    ),
    "calling convention": (
        replace_map({"fast_convention": "__udf_f"}),
        ["'fast_convention' and its replacement '__udf_f' have different calling conventions"],
    ),
    "variable": (replace_map({"variable": "__udf_f"}), ["target 'variable' is a variable"]),
    "alias": (replace_map({"alias": "__udf_f"}), ["target 'alias' is an alias"]),
    "intrinsic": (
        replace_map({"llvm.nonsense.f32": "__udf_f"}),
        ["'llvm.nonsense.f32' is no LLVM intrinsic on float or double", "llvm.exp.f32"],
    ),
    "intrinsic's type": (
        replace_map({"llvm.exp.f16": "__udf_f"}),
        ["'llvm.exp.f16' is no LLVM intrinsic on float or double"],
    ),
    "name taken": (
        replace_map({"declared": "__udf_mine"}),
        ["defines '__udf_mine' itself", "rename that function"],
    ),
}


@pytest.fixture
def bitcode_folder(tmp_path: Path) -> Path:
    (tmp_path / "udf.ll").write_text(BITCODE)
    (tmp_path / "broken.ll").write_text("this is no IR")
    (tmp_path / "arm.ll").write_text(BITCODE.replace("x86_64-unknown", "aarch64"))
    return tmp_path


@pytest.mark.parametrize("case", REPLACE_ERRORS)
def test_replace_error(llvm: Llvm, bitcode_folder: Path, case: str) -> None:
    text, parts = REPLACE_ERRORS[case]
    code, stderr = run_opt(llvm, bitcode_folder, "udf-replace", "-udf-replace-map", text, USER)
    assert_plain_error(code, stderr, *parts)


def test_replace_accepts_the_correct_map(llvm: Llvm, bitcode_folder: Path) -> None:
    """The control of the errors above."""
    text = replace_map({"defined": "__udf_f", "declared": "__udf_f", "llvm.exp.f32": "__udf_f"})
    code, stderr = run_opt(
        llvm, bitcode_folder, "udf-replace,verify", "-udf-replace-map", text, USER
    )
    assert (code, stderr) == (0, "")


def test_intrinsic_of_another_shape_is_no_lane_wise_function(
    llvm: Llvm, bitcode_folder: Path
) -> None:
    text = replace_map({"llvm.powi.f32": "__udf_f"})
    code, stderr = run_opt(llvm, bitcode_folder, "udf-replace", "-udf-replace-map", text, USER)
    assert_plain_error(
        code, stderr, "'llvm.powi.f32.i32' has the type float (float, i32)", "drop it from the map"
    )


def test_clang_reports_once_and_fails(llvm: Llvm, tmp_path: Path) -> None:
    """The pass runs three times in a compilation; a mistake in the map is told once."""
    source = tmp_path / "user.c"
    source.write_text("float f(float x) { return x; }\n")
    done = llvm.run(
        [
            *(llvm.tool("clang"), "-O2", *llvm.loads, "-mllvm", "-udf-replace-map=nowhere.json"),
            *("-c", source, "-o", tmp_path / "user.o"),
        ]
    )
    assert_plain_error(done.returncode, done.stderr, "udf-replace: map 'nowhere.json'")
    assert done.stderr.count("error:") == 1
    assert not (tmp_path / "user.o").exists()


def test_environment_stands_in_for_the_options(llvm: Llvm, tmp_path: Path) -> None:
    """A plain -fpass-plugin is told by UDFTORCH_* what it would be told by -mllvm."""
    level = LEVELS["baseline"]
    common = [llvm.tool("clang"), *FLAGS, *level.march, f"-fpass-plugin={llvm.plugin}", "-c"]
    source = tmp_path / "udf.c"
    source.write_text("float scalar(float x) { return x; }\n")
    (tmp_path / "manifest.json").write_text(manifest())
    bitcode, report = tmp_path / "udf.bc", tmp_path / "report.json"
    done = llvm.run(
        [*common, "-emit-llvm", source, "-o", bitcode],
        env={
            "UDFTORCH_WIDEN_MANIFEST": str(tmp_path / "manifest.json"),
            "UDFTORCH_REPORT": str(report),
        },
    )
    assert done.returncode == 0, done.stderr
    user = tmp_path / "user.c"
    user.write_text("float sinf(float); float f(float x) { return sinf(x); }\n")
    targets = {"sinf": "__udf_f", "llvm.sin.f32": "__udf_f"}
    (tmp_path / "map.json").write_text(json.dumps({"bitcode": "udf.bc", "targets": targets}))
    done = llvm.run(
        [*common, user, "-o", tmp_path / "user.o"],
        env={
            "UDFTORCH_REPLACE_MAP": str(tmp_path / "map.json"),
            "UDFTORCH_REPORT": str(report),
        },
    )
    assert done.returncode == 0, done.stderr
    assert "sinf" not in llvm.symbols(tmp_path / "user.o")
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    assert [line["pass"] for line in lines] == ["udf-widen", "udf-replace"]


@pytest.mark.parametrize("option", ["-udf-widen-manifest", "-udf-replace-map"])
def test_unwritable_report(llvm: Llvm, bitcode_folder: Path, option: str) -> None:
    text, passes, module = {
        "-udf-widen-manifest": (manifest(), "udf-widen", UDF),
        "-udf-replace-map": (replace_map({"declared": "__udf_f"}), "udf-replace", USER),
    }[option]
    (bitcode_folder / "module.ll").write_text(module)
    (bitcode_folder / "input.json").write_text(text)
    done = llvm.run(
        [
            *(llvm.tool("opt"), f"-load-pass-plugin={llvm.plugin}", f"-passes={passes}"),
            *(f"{option}={bitcode_folder / 'input.json'}", "-S", bitcode_folder / "module.ll"),
            *(f"-udf-report={bitcode_folder / 'no' / 'report.json'}", "-o", "-"),
        ]
    )
    assert done.returncode == 1
    assert "cannot be written: No such file or directory" in done.stderr


def test_permutations_that_the_cpu_lacks(llvm: Llvm, tmp_path: Path) -> None:
    """A form asked for by name is refused; one that was only offered to loops is left out."""
    bitcode, write = tmp_path / "udf.bc", tmp_path / "manifest.json"
    udf = {"scalar": None, "fast": "udf_lookupf_fast", "accurate": "udf_lookupf_accurate"}
    forms = {"scalar": "__udf_lookupf", "v8": "__udf_lookupf_v8"}
    write.write_text(manifest(name="lookupf", quick="udf_lookupf_quick", forms=forms, **udf))
    llvm.widen(SOURCES / "probe.c", write, bitcode, LEVELS["avx512"], "-c", "-emit-llvm")
    user = tmp_path / "user.c"
    user.write_text(
        "typedef float v8 __attribute__((vector_size(32)));\n"
        "float one(float); v8 eight(v8);\n"
        "void f(const float *a, float *b) { for (int i = 0; i < 64; ++i) b[i] = one(a[i]); }\n"
        "void g(v8 *a) { *a = eight(*a); }\n"
    )
    for target, form, level, refused in (
        ("eight", "__udf_lookupf_v8", "avx2", True),
        ("eight", "__udf_lookupf_v8", "avx512", False),
        ("one", "__udf_lookupf", "avx2", False),
        ("one", "__udf_lookupf", "baseline", False),
    ):
        (tmp_path / "map.json").write_text(replace_map({target: form}, "udf.bc"))
        done = llvm.run(
            [
                *(llvm.tool("clang"), "-O3", "-Wno-psabi", *LEVELS[level].march, *llvm.loads),
                *("-mllvm", f"-udf-replace-map={tmp_path / 'map.json'}"),
                *("-c", user, "-o", tmp_path / "user.o"),
            ]
        )
        if refused:
            assert_plain_error(done.returncode, done.stderr, "permutes registers", "lower CPU")
        else:
            assert done.returncode == 0, done.stderr


def test_missing_fused_multiply_add_is_warned_about(llvm: Llvm, tmp_path: Path) -> None:
    """Bitcode of a higher level is correct on an older CPU, but calls fma each time."""
    bitcode = tmp_path / "udf.bc"
    udf = {"scalar": None, "fast": "udf_expf_fast", "accurate": "udf_expf_accurate"}
    write = tmp_path / "manifest.json"
    write.write_text(manifest(name="expf", forms={"scalar": "__udf_expf"}, **udf))
    level = LEVELS["avx2"]
    llvm.widen(SOURCES / "probe.c", write, bitcode, level, "-c", "-emit-llvm")
    (tmp_path / "map.json").write_text(replace_map({"expf": "__udf_expf"}, "udf.bc"))
    user = tmp_path / "user.c"
    user.write_text("float expf(float); float f(float x) { return expf(x); }\n")
    for march, warned in (("-march=x86-64", True), ("-march=x86-64-v3", False)):
        done = llvm.run(
            [
                *(llvm.tool("clang"), "-O2", march, *llvm.loads),
                *("-mllvm", f"-udf-replace-map={tmp_path / 'map.json'}"),
                *("-c", user, "-o", tmp_path / "user.o"),
            ]
        )
        assert done.returncode == 0, done.stderr
        assert ("'__udf_expf' uses fused multiply-adds" in done.stderr) == warned


def watched(**changes: object) -> str:
    """A correct entry of udf-instrument's manifest, and what a test changes in it."""
    correct = {"symbol": "scalar", "form": "scalar", "type": "float", "arity": 1, "slot": 3}
    made = {k: v for k, v in {**correct, **changes}.items() if v != "absent"}
    return json.dumps({"watch": [made]})


INSTRUMENT_ERRORS = {
    "missing": (None, ["input.json' cannot be read: No such file", "give the path"]),
    "unparsable": ("{", ["is not valid JSON", "correct the file"]),
    "not an object": ("[]", ["must be an object with an array 'watch'"]),
    "entry no object": ('{"watch": [1]}', ["watch[0] must be an object"]),
    "no symbol": (watched(symbol="absent"), ["watch[0]: 'symbol' must be a non-empty string"]),
    "form": (watched(form="v3"), ["watch[0] (scalar): 'form' must be scalar, array, sincos or"]),
    "no form": (watched(form="absent"), ["'form' must be scalar, array, sincos or v<lanes>"]),
    "type": (watched(type="half"), ['\'type\' must be "float" or "double"']),
    "arity": (watched(arity=3), ["'arity' must be 1 or 2"]),
    "slot": (watched(slot=-1), ["'slot' must be a number from 0 to 65535"]),
    "chunk": (watched(chunk=-1), ["'chunk' must be a number of elements, or 0"]),
    "ordinary": (watched(ordinary=[1, 1]), ["'ordinary' must be two numbers in order"]),
    "ordinary no range": (watched(ordinary=[1]), ["'ordinary' must be two numbers in order"]),
    "ordinary of two arguments": (
        watched(ordinary=[0, 1], arity=2),
        ["'ordinary' must be two numbers in order, for a scalar or vector form of one argument"],
    ),
    "exponential": (
        watched(exponential=True),
        ["'exponential' must be true or false and needs 'ordinary'"],
    ),
    "undefined": (watched(symbol="nobody"), ["names 'nobody'", "has no such function"]),
    "declared": (watched(symbol="only_declared"), ["only declares it", "let udf-widen make it"]),
    "another type": (
        watched(form="v8"),
        ["'scalar' of form v8 must have the type <8 x float> (<8 x float>)", "correct 'form'"],
    ),
}


@pytest.mark.parametrize(("text", "parts"), INSTRUMENT_ERRORS.values(), ids=INSTRUMENT_ERRORS)
def test_instrument_errors(llvm: Llvm, tmp_path: Path, text: str | None, parts: list[str]) -> None:
    code, stderr = run_opt(llvm, tmp_path, "udf-instrument", "-udf-instrument-manifest", text, UDF)
    assert_plain_error(code, stderr, *parts)


def test_instrument_manifest_without_mistakes_runs(llvm: Llvm, tmp_path: Path) -> None:
    code, stderr = run_opt(
        llvm, tmp_path, "udf-instrument,verify", "-udf-instrument-manifest", watched(), UDF
    )
    assert (code, stderr) == (0, "")
    assert "@scalar.body" in (tmp_path / "out.ll").read_text()
