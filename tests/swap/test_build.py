# SPDX-License-Identifier: Apache-2.0
"""Builds: cache, concurrency, and the message for every way a build can fail."""

import ctypes
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from builds import TOML, TWICE, forget
from parameters import mostly_slow

from pytest_udftorch.errors import (
    CacheError,
    CompilerNotFoundError,
    CpuLevelError,
    NativeError,
    SourceError,
    UnknownFunctionError,
)
from pytest_udftorch.swap.library.symbols import CPU_LEVELS
from pytest_udftorch.swap.native.runtime import pass_plugin, runtime
from pytest_udftorch.swap.toolchain import cache as cache_module
from pytest_udftorch.swap.toolchain import compiler as toolchain
from pytest_udftorch.swap.toolchain import job, shared_library
from pytest_udftorch.swap.toolchain.cache import cache_folder
from pytest_udftorch.swap.toolchain.compiler import (
    find_compiler,
    for_other_machines,
    resolve_cpu_level,
)
from pytest_udftorch.swap.toolchain.shared_library import build_library


@pytest.fixture
def make(tmp_path):
    def write(source: str, keys: str = 'scalar = "udf_expf"\n') -> Path:
        folder = tmp_path / "lib"
        folder.mkdir(exist_ok=True)
        (folder / "udf.toml").write_text(TOML + keys)
        (folder / "e.c").write_text(source)
        return folder

    return write


def test_build_exports_every_form_and_computes(cache, make):
    build = build_library(make(TWICE))
    values = (ctypes.c_float * 70)(*range(70))
    out = (ctypes.c_float * 70)()
    build.array_function("exp")(70, ctypes.addressof(values), ctypes.addressof(out), 0)
    assert list(out) == [2.0 * i for i in range(70)]
    assert build.scalar_function("exp")(21.0) == 42.0
    assert all(build.forms("exp", "float32").values())


@pytest.mark.parametrize("level", CPU_LEVELS)
def test_forms_match_the_cpu_level(cache, make, level):
    if CPU_LEVELS[level][1] > runtime().cpu_level():
        pytest.skip(f"this CPU does not run {level} code")
    vectors = {"baseline": set(), "avx2": {"v8"}, "avx512": {"v8", "v16"}}[level]
    assert set(build_library(make(TWICE), level).forms("exp", "float32")) == {
        "scalar",
        "array",
        *vectors,
    }


def test_second_build_comes_from_the_cache(cache, make, monkeypatch):
    first = build_library(make(TWICE))
    stamp = first.path.stat().st_mtime_ns
    forget(monkeypatch)
    again = build_library(make(TWICE))
    assert again.build_id == first.build_id
    assert again.path.stat().st_mtime_ns == stamp
    facts = json.loads((again.path.parent / "build.json").read_text())
    assert facts["cpu_level"] == again.cpu_level
    assert "clang" in facts["compiler"]


def test_any_change_of_content_makes_another_build(cache, make):
    folder = make(TWICE)
    ids = {build_library(folder).build_id}
    (folder / "extra.h").write_text("#define X 1\n")
    ids.add(build_library(folder).build_id)
    make("float udf_expf(float x) { return 2 * x; }\n")
    ids.add(build_library(folder).build_id)
    ids.add(build_library(folder, "baseline").build_id)
    assert len(ids) == 4


def test_an_edit_of_the_same_length_is_seen_in_the_same_process(cache, make):
    first = build_library(make(TWICE))
    second = build_library(make(TWICE.replace("x + x", "x * x")))
    assert (first.scalar_function("exp")(3.0), second.scalar_function("exp")(3.0)) == (6.0, 9.0)


def test_touching_a_file_without_changing_it_keeps_the_build(cache, make):
    folder = make(TWICE)
    first = build_library(folder).build_id
    os.utime(folder / "e.c", (1, 1))
    assert build_library(folder).build_id == first


def _build_in_child(folder: str, cache_dir: str, queue) -> None:
    os.environ["UDFTORCH_CACHE_DIR"] = cache_dir
    built = build_library(folder)
    queue.put((built.build_id, built.path.stat().st_ino))


def test_processes_that_build_at_once_share_one_build(cache, make):
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    folder = make(TWICE)
    children = [
        context.Process(target=_build_in_child, args=(str(folder), str(cache), queue))
        for _ in range(4)
    ]
    for child in children:
        child.start()
    results = {queue.get(timeout=120) for _ in children}
    for child in children:
        child.join()
        assert child.exitcode == 0
    assert len(results) == 1
    assert [p.name for p in cache.iterdir() if p.is_dir()] == [results.pop()[0]]


def _tear(path: Path) -> None:
    # A new file: the old one is mapped into this process and is run again when it ends.
    path.unlink()
    path.write_bytes(b"torn")


def test_a_build_cut_off_by_a_crash_is_made_again(cache, make, monkeypatch):
    first = build_library(make(TWICE))
    (first.path.parent / "build.json").unlink()
    _tear(first.path)
    forget(monkeypatch)
    again = build_library(make(TWICE))
    assert again.path.stat().st_size > 1000


def test_a_library_that_is_damaged_after_its_check_is_named(cache, make):
    first = build_library(make(TWICE))
    _tear(first.path)
    with pytest.raises(NativeError, match=r"cannot be loaded.*Delete its folder"):
        first.load()


# Integrity ---------------------------------------------------------------------------


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink()  # the old file is mapped into this process
    path.write_bytes(content)


def damage(path: Path, how: str) -> None:
    facts = path.parent / "build.json"
    if how == "flipped":
        flip_a_bit(path)
    elif how == "truncated":
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content[: len(content) // 2])
    elif how == "missing":
        path.unlink()
    elif how == "foreign facts":
        facts.write_text(json.dumps({**json.loads(facts.read_text()), "build": "another"}))
    else:
        facts.write_text(how)


@pytest.mark.parametrize(
    "how",
    mostly_slow([
        "flipped", "truncated", "missing", "foreign facts", "", "{", "[]", "null",
        '{"files": 3}', '{"files": {"a": "b"}}', "\x00\xff",
    ], ["flipped", "missing", "foreign facts", "{"]),
)  # fmt: skip
def test_a_damaged_build_is_made_again(cache, make, monkeypatch, how):
    first = build_library(make(TWICE))
    content = first.path.read_bytes()
    damage(first.path, how)
    forget(monkeypatch)
    again = build_library(make(TWICE))
    assert again.build_id == first.build_id
    assert again.path.read_bytes() == content
    assert again.scalar_function("exp")(21.0) == 42.0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"key": 1}', '{"reads": {"/x": []}}', "\x00"])
def test_a_damaged_index_leads_to_the_same_build(cache, make, monkeypatch, text):
    first = build_library(make(TWICE))
    (index,) = cache.glob("*.reads")
    index.write_text(text)
    forget(monkeypatch)
    assert build_library(make(TWICE)).build_id == first.build_id
    forget(monkeypatch)
    monkeypatch.setattr(job, "_make", None)
    assert build_library(make(TWICE)).build_id == first.build_id


def test_the_index_of_another_job_is_not_followed(cache, make, monkeypatch):
    build_library(make(TWICE))
    (index,) = cache.glob("*.reads")
    thrice = make("float udf_expf(float x) { return 3 * x; }\n")
    build_library(thrice)
    (other,) = set(cache.glob("*.reads")) - {index}
    other.write_text(index.read_text())
    forget(monkeypatch)
    assert build_library(thrice).scalar_function("exp")(5.0) == 15.0


def test_the_library_of_another_build_is_not_taken(cache, make, monkeypatch):
    """Two intact libraries, as if the canary's were copied over corem's."""
    one = build_library(make(TWICE))
    content = one.path.read_bytes()
    two = build_library(make("float udf_expf(float x) { return 3 * x; }\n"))
    one.path.unlink()
    one.path.write_bytes(two.path.read_bytes())
    forget(monkeypatch)
    again = build_library(make(TWICE))
    assert again.path == one.path
    assert again.path.read_bytes() == content


def test_the_folder_of_another_build_is_not_taken(cache, make, monkeypatch):
    one = build_library(make(TWICE))
    two = build_library(make("float udf_expf(float x) { return 3 * x; }\n"))
    folders = one.path.parent, two.path.parent
    folders[0].rename(cache / "aside")
    folders[1].rename(folders[0])
    forget(monkeypatch)
    assert build_library(make(TWICE)).scalar_function("exp")(5.0) == 10.0


def test_contents_are_compared_once_in_a_process(cache, make, monkeypatch):
    build_library(make(TWICE))
    monkeypatch.setattr(shared_library, "_built", {})
    monkeypatch.setattr(cache_module, "sha256_of", None)
    assert build_library(make(TWICE)).scalar_function("exp")(21.0) == 42.0


@pytest.mark.parametrize("what", ["folder", "library", "index"])
def test_what_another_user_built_is_refused(cache, make, monkeypatch, what):
    built = build_library(make(TWICE))
    (index,) = cache.glob("*.reads")
    path = {"folder": built.path.parent, "library": built.path, "index": index}[what]
    lstat = Path.lstat

    def of_another(self):
        found = lstat(self)
        if self != path:
            return found
        return os.stat_result((*found[:4], found.st_uid + 1, *found[5:]))

    monkeypatch.setattr(Path, "lstat", of_another)
    forget(monkeypatch)
    with pytest.raises(CacheError, match=r"belongs to user \d+.*UDFTORCH_CACHE_DIR"):
        build_library(make(TWICE))


def test_nobody_else_can_read_or_write_a_build(cache, make):
    built = build_library(make(TWICE))
    assert [p.stat().st_mode & 0o777 for p in (cache, built.path.parent)] == [0o700, 0o700]


# What the compiler read --------------------------------------------------------------


def test_a_header_outside_of_the_library_is_followed(cache, make, tmp_path, monkeypatch):
    header = tmp_path / "outside.h"
    header.write_text("#define FACTOR 2\n")
    source = '#include "../outside.h"\nfloat udf_expf(float x) { return FACTOR * x; }\n'
    first = build_library(make(source))
    assert first.scalar_function("exp")(5.0) == 10.0
    header.write_text("#define FACTOR 3\n")
    forget(monkeypatch)
    second = build_library(make(source))
    assert second.scalar_function("exp")(5.0) == 15.0
    assert second.build_id != first.build_id
    os.utime(header, (1, 1))  # the same content
    forget(monkeypatch)
    monkeypatch.setattr(job, "_make", None)
    assert build_library(make(source)) == second


def test_a_copy_of_a_library_follows_the_headers_beside_itself(cache, tmp_path, monkeypatch):
    results = []
    for name, factor in (("a", 2), ("b", 3), ("a", 2)):
        folder = tmp_path / name / "lib"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "udf.toml").write_text(TOML + 'scalar = "udf_expf"\n')
        (folder.parent / "outside.h").write_text(f"#define FACTOR {factor}\n")
        (folder / "e.c").write_text(
            '#include "../outside.h"\nfloat udf_expf(float x) { return FACTOR * x; }\n'
        )
        results.append(build_library(folder).scalar_function("exp")(5.0))
        forget(monkeypatch)
    assert results == [10.0, 15.0, 10.0]


def test_a_library_is_built_anew_when_what_it_inherits_changes(cache, tmp_path):
    base, heir = tmp_path / "base", tmp_path / "heir"
    base.mkdir()
    heir.mkdir()
    (base / "e.c").write_text(
        "float twice(float x) { return FACTOR * x; }\nfloat same(float x) { return x; }\n"
    )
    (heir / "udf.toml").write_text('[library]\nname = "h"\nversion = "1"\ninherit = "../base"\n')
    defined = TOML.replace("[functions", 'defines = ["FACTOR={}"]\n[functions')
    results = []
    for factor, name in ((2, "twice"), (3, "twice"), (3, "same")):
        text = f'{defined.format(factor)}scalar = "{name}"\n'
        (base / "udf.toml").write_text(text)
        results.append(build_library(heir).scalar_function("exp")(5.0))
    assert results == [10.0, 15.0, 5.0]


def test_copies_of_a_library_share_a_build(cache, tmp_path, monkeypatch):
    paths = set()
    for name in ("a", "b"):
        folder = tmp_path / name / "lib"
        folder.mkdir(parents=True)
        (folder / "udf.toml").write_text(TOML + 'scalar = "udf_expf"\n')
        (folder / "e.c").write_text(TWICE)
        paths.add(build_library(folder).path)
        monkeypatch.setattr(job, "_make", None)
    assert len(paths) == 1


def test_a_header_that_changes_while_it_is_compiled_is_not_trusted(
    cache, make, tmp_path, monkeypatch
):
    header = tmp_path / "outside.h"
    header.write_text("#define FACTOR 2\n")
    source = '#include "../outside.h"\nfloat udf_expf(float x) { return FACTOR * x; }\n'
    run = toolchain.run

    def edited(*args):
        result = run(*args)
        header.write_text("#define FACTOR 3\n")
        return result

    with monkeypatch.context() as patch:
        patch.setattr(toolchain, "run", edited)
        build_library(make(source))
    forget(monkeypatch)
    assert build_library(make(source)).scalar_function("exp")(5.0) == 15.0


def test_names_in_a_rule_for_make():
    text = "0.o: /a/b.c \\\n  /with\\ space/c.h /price$$.h \\\n /d\\#.h\n"
    assert job.dependencies(text) == ["/a/b.c", "/with space/c.h", "/price$.h", "/d#.h"]


# The lock ----------------------------------------------------------------------------


def test_a_forked_child_does_not_wait_for_a_thread_that_it_lacks(cache, make):
    """A thread of the parent holds the lock for good; the child builds something else."""
    code = (
        "import os, sys, threading\n"
        "from pathlib import Path\n"
        "from pytest_udftorch.swap.toolchain import cache\n"
        "from pytest_udftorch.swap.toolchain.shared_library import build_library\n"
        "held, done = threading.Event(), threading.Event()\n"
        "def hold():\n"
        "    with cache.opened(cache.cache_folder() / 'other'):\n"
        "        held.set()\n"
        "        done.wait()\n"
        "thread = threading.Thread(target=hold)\n"
        "thread.start()\n"
        "held.wait()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os._exit(0 if build_library(sys.argv[1]).path.is_file() else 1)\n"
        "status = os.waitpid(child, 0)[1]\n"
        "done.set()\n"
        "thread.join()\n"
        "sys.exit(os.waitstatus_to_exitcode(status))\n"
    )
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code, str(make(TWICE))]
    assert subprocess.run(command, check=False, timeout=120).returncode == 0


def test_a_forked_child_does_not_keep_the_lock_of_its_parent(cache):
    """The parent ends in the middle of a build; its child lives on, and others can build."""
    code = (
        "import os, sys, time\n"
        "from pytest_udftorch.swap.toolchain import cache\n"
        "with cache.opened(cache.cache_folder() / 'one'):\n"
        "    if os.fork() == 0:\n"
        "        print(os.getpid(), flush=True)\n"
        "        time.sleep(60)\n"
        "    os._exit(0)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as parent:
        child = int(parent.stdout.readline())
        try:
            parent.wait(60)
            taken = "from pytest_udftorch.swap.toolchain import cache\n"
            taken += "with cache.opened(cache.cache_folder() / 'one'): pass\n"
            subprocess.run([sys.executable, "-c", taken], check=True, timeout=30)
        finally:
            os.kill(child, signal.SIGKILL)


def test_threads_that_build_at_once_share_one_build(cache, make):
    folder = make(TWICE)
    with ThreadPoolExecutor(4) as pool:
        built = set(pool.map(lambda _: build_library(folder).path, range(4)))
    assert len(built) == 1


def test_compile_error_carries_the_compilers_message_with_file_and_line(cache, make):
    with pytest.raises(SourceError, match=r"e\.c:2:\d+: error: .*undeclared"):
        build_library(make("float udf_expf(float x) {\n  return y;\n}\n"))
    assert not list(cache.glob("*/build.json"))


def test_link_error(cache, make):
    with pytest.raises(SourceError, match=r"does not link:\n.*nowhere_f"):
        build_library(
            make("float nowhere_f(float);\nfloat udf_expf(float x) { return nowhere_f(x); }\n")
        )


@pytest.mark.parametrize(
    "source",
    [
        "double udf_expf(double x) { return x; }\n",
        "float udf_expf(float x, float y) { return x + y; }\n",
        "float udf_expf(int x) { return x; }\n",
        "float another(float x) { return x; }\n",
    ],
    ids=["double", "two arguments", "int", "missing"],
)
def test_wrong_signature(cache, make, source):
    with pytest.raises(SourceError, match=r"(?s)udf_expf.*A UDF is 'float f\(float\)'"):
        build_library(make(source))


def test_wrong_signature_of_the_fast_path(cache, make):
    source = TWICE + "float slow(float x) { return x; }\n"
    with pytest.raises(SourceError, match="udf_expf"):
        build_library(make(source, 'fast = "udf_expf"\naccurate = "slow"\n'))


def test_sin_and_cos_give_the_joint_form(cache, tmp_path):
    folder = tmp_path / "lib"
    folder.mkdir()
    (folder / "t.c").write_text(
        "float udf_sinf(float x) { return x + 1; }\nfloat udf_cosf(float x) { return x + 2; }\n"
    )
    (folder / "udf.toml").write_text(
        '[library]\nname = "trig"\nversion = "1"\n'
        '[functions.sin.float32]\nsource = "t.c"\nscalar = "udf_sinf"\n'
        '[functions.cos.float32]\nsource = "t.c"\nscalar = "udf_cosf"\n'
    )
    build = build_library(folder)
    real = ctypes.POINTER(ctypes.c_float)
    joint = ctypes.CFUNCTYPE(None, ctypes.c_float, real, real)(build.sincos("float32"))
    s, c = ctypes.c_float(), ctypes.c_float()
    joint(5.0, ctypes.byref(s), ctypes.byref(c))
    assert (s.value, c.value) == (6.0, 7.0)
    assert build.sincos("float64") == 0


def test_std_has_nothing_to_build(cache):
    with pytest.raises(UnknownFunctionError, match="nothing to build"):
        build_library("std")


def test_unknown_form_is_named(cache, make):
    with pytest.raises(UnknownFunctionError, match="no float32 'log'"):
        build_library(make(TWICE)).forms("log", "float32")


def test_unwritable_cache(make, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("UDFTORCH_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(CacheError, match=r"cannot be written.*UDFTORCH_CACHE_DIR"):
        build_library(make(TWICE))


def test_cache_folder_follows_xdg(monkeypatch, tmp_path):
    monkeypatch.delenv("UDFTORCH_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "pytest_udftorch"


def fake_compiler(tmp_path: Path, says: str, status: int = 0) -> str:
    path = tmp_path / "compiler"
    path.write_text(f"#!/bin/sh\necho '{says}'\nexit {status}\n")
    path.chmod(0o755)
    return str(path)


def test_named_compiler_that_does_not_exist(monkeypatch):
    monkeypatch.setenv("UDFTORCH_CLANG", "no-such-clang")
    with pytest.raises(CompilerNotFoundError, match="'no-such-clang' is not an executable"):
        find_compiler()


def test_no_compiler_at_all(monkeypatch, tmp_path):
    monkeypatch.delenv("UDFTORCH_CLANG", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    # The search includes LLVM's own folder, which the path does not hide.
    monkeypatch.setattr(toolchain, "pass_plugin", lambda: (Path("UdfPass-17.so"), 17))
    with pytest.raises(CompilerNotFoundError, match=r"No clang 17.*packages clang-17 and lld-17"):
        find_compiler()


@pytest.mark.parametrize(
    ("says", "status", "error", "message"),
    [
        ("clang version 14.0.6", 0, CompilerNotFoundError, "clang 14; the passes need LLVM 16"),
        ("clang version 17.0.1", 0, CompilerNotFoundError, "cannot be loaded into another"),
        ("gcc (Debian) 12.2.0", 0, CompilerNotFoundError, "is not clang"),
        ("clang version 19", 3, CompilerNotFoundError, "does not run.*UDFTORCH_CLANG"),
    ],
)
def test_compilers_that_cannot_be_used(monkeypatch, tmp_path, says, status, error, message):
    monkeypatch.setenv("UDFTORCH_CLANG", fake_compiler(tmp_path, says, status))
    with pytest.raises(error, match=message):
        find_compiler()


def test_a_compiler_that_cannot_load_the_plugin(cache, make, monkeypatch, tmp_path):
    broken = tmp_path / "UdfPass.so"
    broken.write_text("no shared library")
    monkeypatch.setattr(toolchain, "pass_plugin", lambda: (broken, pass_plugin()[1]))
    with pytest.raises(CompilerNotFoundError, match=r"cannot load the pass plugin .*UdfPass\.so"):
        build_library(make(TWICE))


def test_the_compiler_is_the_plugins():
    _, major = pass_plugin()
    assert f"version {major}." in find_compiler().version


def test_unknown_cpu_level():
    with pytest.raises(CpuLevelError, match=r"'avx51'.*'avx512'"):
        resolve_cpu_level("avx51")


def test_cpu_level_this_cpu_does_not_have(monkeypatch):
    monkeypatch.setattr(type(runtime()), "cpu_level", lambda self: 2)
    with pytest.raises(CpuLevelError, match=r"cannot run code for 'avx512'. It has: baseline\."):
        resolve_cpu_level("avx512")
    with for_other_machines():
        assert resolve_cpu_level("avx512") == "avx512"
        assert resolve_cpu_level(None) == "baseline"
        with pytest.raises(CpuLevelError, match="Unknown CPU level 'avx51'"):
            resolve_cpu_level("avx51")
    with pytest.raises(CpuLevelError, match="cannot run code"):
        resolve_cpu_level("avx512")


def test_cpu_level_from_the_environment(monkeypatch):
    monkeypatch.setenv("UDFTORCH_CPU_LEVEL", "baseline")
    assert resolve_cpu_level(None) == "baseline"


def test_nothing_here_imports_torch():
    code = (
        "import sys, pytest_udftorch as p; p.build_library, p.find_library('std'); "
        "import pytest_udftorch.swap.toolchain, pytest_udftorch.swap.session; "
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Warnings ----------------------------------------------------------------------------


def test_the_author_is_told_once_what_clang_warned_of(tmp_path, cache, capfd):
    folder = tmp_path / "sloppy"
    folder.mkdir()
    (folder / "udf.toml").write_text(
        '[library]\nname = "sloppy"\nversion = "1"\n'
        '[functions.exp.float32]\nsource = "exp.c"\nfast = "fast_exp"\naccurate = "slow_exp"\n'
    )
    (folder / "exp.c").write_text(
        "#include <math.h>\n"
        "static int nothing(int a) { if (a > 3) return 1; }\n"
        "float fast_exp(float x, int *hard) {\n"
        "  float s = 1, t = 1;\n"
        "  for (int i = 1; t > 1e-9f * s && i < 99; i++) s += t *= x / i;\n"
        "  *hard = s > 3 || nothing(2);\n"
        "  return s;\n"
        "}\n"
        "float slow_exp(float x) { return (float)exp(x); }\n"
    )
    build_library(folder)
    build_library(folder, "baseline")
    said = [x for x in capfd.readouterr().err.splitlines() if "warning" in x]
    no_return, not_vectorised = said
    assert f"udftorch: {folder}/exp.c:2:50: warning: non-void function does not return" in no_return
    assert f"{folder}/exp.c:3: warning: loop not vectorized: fast_exp: LLVM" in not_vectorised
    # What is in the cache is not compiled, and a library without fault says nothing.
    builds_again = tmp_path / "again"
    builds_again.mkdir()
    for name in ("udf.toml", "exp.c"):
        (builds_again / name).write_text((folder / name).read_text())
    (builds_again / "exp.c").write_text("float fast_exp(float x, int *h) { *h = 0; return x; }\n"
                                        "float slow_exp(float x) { return x; }\n")  # fmt: skip
    build_library(builds_again)
    assert "warning" not in capfd.readouterr().err


def test_users_of_a_shipped_library_are_not_warned_of_its_sources(capsys, tmp_path):
    from pytest_udftorch.swap.library.description import shipped_folder
    from pytest_udftorch.swap.toolchain.author_warnings import pass_on

    for folder, said in ((shipped_folder() / "corem" / "pow", False), (tmp_path, True)):
        source = folder / "powf.c"
        warning = f"{source}:105:48: warning: operator '?:' has lower precedence"
        pass_on(f"{warning}\n", source, (), {})
        assert (warning in capsys.readouterr().err) == said
