# SPDX-License-Identifier: Apache-2.0
"""The wheel of ``make wheel`` where there is no compiler: installed from its file, cache empty."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import hidden
import pytest

from pytest_udftorch import prove
from pytest_udftorch.cli.prebuild import LIBRARIES
from pytest_udftorch.prove.verify.udf_candidate import source_sha256
from pytest_udftorch.swap.library.description import find_library
from pytest_udftorch.swap.toolchain.cache import unseal

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel():
    found = sorted((ROOT / "dist").glob("pytest_udftorch-*-manylinux_2_28_x86_64.whl"))
    if not found:
        pytest.skip("no wheel in dist/: run make wheel")
    if not hidden.possible():
        pytest.skip("this user may not mount anything in a namespace of its own")
    return found[-1]


@pytest.fixture(scope="module")
def machine(wheel, tmp_path_factory):
    made = hidden.Machine(tmp_path_factory.mktemp("machine"), wheel)
    (made.home / "test_suite.py").write_text(hidden.SUITE)
    return made


def passed(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_there_is_no_toolchain_and_no_checkout(machine):
    done = machine.python(
        "import pytest_udftorch, shutil, sysconfig, pathlib\n"
        "names = 'cc gcc g++ clang clang-19 ld lld ld.lld-19 as cmake ninja make opt'\n"
        "print([n for n in names.split() if shutil.which(n)])\n"
        "print(pathlib.Path(sysconfig.get_path('include'), 'Python.h').exists())\n"
        "print(pathlib.Path('/usr/lib/llvm-19/bin/clang').exists())\n"
        "print(pytest_udftorch.__file__)\n"
    )
    assert passed(done).splitlines() == [
        "[]", "False", "False", str(machine.package / "__init__.py"),
    ]  # fmt: skip


def test_the_plugin_swaps_and_the_stock_functions_fail_the_same_test(machine):
    assert "1 passed" in passed(machine.run("pytest", "--udf-lib=corem", "test_suite.py"))
    done = machine.run("pytest", "--udf-lib=std", "test_suite.py")
    assert "1 failed" in done.stdout, "the control"


@pytest.mark.parametrize("library", ["std", "corem"])
def test_a_profile_and_its_report(machine, library):
    out = f"out-{library}"
    done = machine.run(
        "pytest", f"--udf-lib={library}", "--udf-profile", f"--udf-profile-out={out}",
        "test_suite.py",
    )  # fmt: skip
    assert "exp" in done.stdout
    assert "INTERNALERROR" not in done.stdout
    report = passed(machine.run("udftorch", "report", out, "-o", "page.html"))
    assert re.search(r"exp\b.*100,000", report), report
    assert (machine.home / "page.html").stat().st_size > 10_000


def test_every_level_form_and_library_is_there(machine):
    done = machine.python(
        "from pytest_udftorch import build_library\n"
        "from pytest_udftorch.swap.library.symbols import CPU_LEVELS\n"
        "from pytest_udftorch.cli.prebuild import LIBRARIES\n"
        "for library in LIBRARIES:\n"
        "    for level in CPU_LEVELS:\n"
        "        for profiled in (False, True):\n"
        "            build = build_library(library, level, profiled=profiled)\n"
        "            assert all(all(build.forms(*k).values()) for k in build.library.functions)\n"
        "            print(build.path)\n"
    )
    paths = passed(done).split()
    assert len(set(paths)) == 2 * 3 * len(LIBRARIES)
    assert all(Path(p).is_relative_to(machine.package / "_prebuilt") for p in paths)


def test_sums_in_one_order_random_rounding_and_fewer_bits_need_no_compiler(machine):
    done = machine.python(
        "import torch\n"
        "from pytest_udftorch import patched\n"
        "x = torch.linspace(-3, 3, 301)\n"
        "for name in ('repro', 'stochastic', 'ladder-8', 'format-half'):\n"
        "    with patched(name):\n"
        "        y = torch.exp(x)\n"
        "        x.reshape(7, 43).sum(0)\n"
        "    print(name, torch.equal(y, x.double().exp().float()))\n"
    )
    assert [line.split() for line in passed(done).splitlines()] == [
        ["repro", "True"], ["stochastic", "False"], ["ladder-8", "False"], ["format-half", "False"],
    ]  # fmt: skip


def test_activations_for_gpus_are_shipped_as_a_session_asks_for_them(machine):
    done = machine.python(
        "import functools\n"
        "from pytest_udftorch import patched\n"
        "from pytest_udftorch.swap.toolchain.job import available\n"
        "from pytest_udftorch.swap.toolchain.libdevice import composites_job\n"
        "from pytest_udftorch.swap.toolchain.compiler import find_compiler\n"
        "from pytest_udftorch.swap.compiled.follower import follower\n"
        "from pytest_udftorch.swap.cuda.launcher import for_gpus\n"
        "with patched('corem', composites=True):\n"
        "    parts = for_gpus(follower.active.composites)\n"
        "    print(len(parts[0].functions))\n"
        "    print(available(functools.partial(composites_job, parts), find_compiler))\n"
    )
    assert passed(done).split() == ["10", "shipped"]


def test_a_library_that_the_wheel_holds_no_build_of_is_named(machine):
    folder = machine.home / "changed"
    shutil.copytree(machine.package / "udfs", folder)  # corem's headers belong to it
    with (folder / "ladder-20" / "ladder.h").open("a") as header:
        header.write("/* changed */\n")
    done = machine.run("pytest", "--udf-lib=changed/ladder-20", "test_suite.py")
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode != 0
    assert "UDF library 'ladder-20' has to be compiled for" in said
    assert "the installed wheel has no build of its sources, and neither has the cache" in said
    assert "Install the packages clang-19 and lld-19" in said


def test_operators_that_are_overridden_whole_need_no_compiler(machine):
    done = machine.python(
        "import torch\n"
        "from pytest_udftorch import patched\n"
        "x = torch.linspace(-3, 3, 301)\n"
        "def run(): return torch.nn.functional.gelu(x), torch.sigmoid(x)\n"
        "stock = run()\n"
        "with patched('corem', composites=True):\n"
        "    ours = run()\n"
        "print([torch.equal(a, b) for a, b in zip(stock, ours)])\n"
    )
    assert passed(done).split() == ["[False,", "False]"]


def test_an_exclusive_session_needs_no_compiler(machine):
    done = machine.python(
        "import torch\n"
        "from pytest_udftorch import patched\n"
        "from pytest_udftorch.swap.session.exclusive import gate\n"
        "x = torch.linspace(-3, 3, 301)\n"
        "stock = torch.exp(x)\n"
        "with patched('canary', exclusive=True):\n"
        "    print(gate.is_active, torch.equal(torch.exp(x), stock))\n"
        "print(gate.is_active, torch.equal(torch.exp(x), stock))\n"
    )
    assert passed(done).split() == ["True", "False", "False", "True"]


def test_a_udf_in_python_needs_numba_only(machine):
    done = machine.python(
        "import torch\n"
        "from pytest_udftorch import patched, udf\n"
        "@udf('exp')\n"
        "def one_more(x): return x + 1.0\n"
        "x = torch.linspace(-3, 3, 301)\n"
        "with patched(one_more):\n"
        "    print(torch.equal(torch.exp(x), (x.double() + 1).float()))\n"
        "print(torch.equal(torch.exp(x), (x.double() + 1).float()))\n"
    )
    assert passed(done).split() == ["True", "False"]


def test_a_profile_of_a_udf_in_python_needs_numba_only(machine):
    done = machine.python(
        "import torch\n"
        "from pytest_udftorch import patched, udf\n"
        "@udf('exp')\n"
        "def one_more(x): return x + 1.0\n"
        "with patched(one_more, profile=True) as session:\n"
        "    torch.exp(torch.linspace(-3, 3, 301))\n"
        "(row,) = session.profile.rows('function')\n"
        "print(*(row.cell[n] for n in ('elements', 'out_min', 'out_max')))\n"
    )
    assert passed(done).split() == ["301", "-2.0", "4.0"]


def test_doctor_says_what_works_and_what_does_not(machine):
    found = json.loads(machine.run("udftorch", "doctor", "--json").stdout)
    works = {entry["what"].partition(":")[0]: entry["works"] for entry in found["works"]}
    assert works["swap functions on the CPU"]
    assert works["profile"]
    assert works["exclusive sessions"]
    assert works["libraries of your own in Python"]
    assert works["udftorch verify"]
    assert not works["libraries of your own in C, and operators in C++"]
    assert not works["udftorch patch"]


def test_functions_for_gpus_need_no_compiler(machine):
    done = machine.python(
        "import triton, triton.language as tl\n"
        "from triton.backends.compiler import GPUTarget\n"
        "from triton.compiler import ASTSource\n"
        "from triton.language.extra import libdevice\n"
        "from pytest_udftorch import patched\n"
        "@triton.jit\n"
        "def kernel(p, n: tl.constexpr):\n"
        "    i = tl.arange(0, n)\n"
        "    tl.store(p + i, libdevice.exp(tl.load(p + i)) + libdevice.log(tl.load(p + n + i)))\n"
        "def ptx():\n"
        "    source = ASTSource(kernel, {'p': '*fp32', 'n': 'constexpr'}, {(1,): 128})\n"
        "    return triton.compile(source, target=GPUTarget('cuda', 80, 32)).asm['ptx']\n"
        "stock = ptx()\n"
        "with patched('corem'):\n"
        "    both = ptx()\n"
        "with patched('corem', functions=('exp',)):\n"
        "    one = ptx()\n"
        "print([text.count('fma.rn.f64') for text in (stock, one, both)])\n"
    )
    stock, one, both = json.loads(passed(done))
    assert stock == 0
    assert 0 < one < both


def test_inductors_cpp_says_what_is_missing(machine):
    done = machine.python(
        "import torch\n"
        "from pytest_udftorch import patched\n"
        "with patched('corem'):\n"
        "    torch.compile(lambda x: torch.exp(x) + 1)(torch.ones(64))\n"
    )
    assert done.returncode != 0
    assert "clang would put the library's functions into the code" in done.stderr
    assert "Install the packages clang-19 and lld-19" in done.stderr


def test_a_c_udf_of_ones_own_says_what_is_missing(machine):
    folder = machine.home / "mine"
    folder.mkdir()
    (folder / "udf.toml").write_text(
        '[library]\nname = "mine"\nversion = "1"\n'
        '[functions.exp.float32]\nsource = "e.c"\nscalar = "my_expf"\n'
    )
    (folder / "e.c").write_text("float my_expf(float x) { return x; }\n")
    done = machine.run("pytest", "--udf-lib=./mine", "test_suite.py")
    assert done.returncode != 0
    assert "Install the packages clang-19 and lld-19" in done.stdout + done.stderr


def test_verify_runs_its_checker(machine):
    done = machine.run(
        "udftorch", "verify", "corem", "exp", "--reference", "libm", "--chunks", "100:101",
        "--chunk-bits", "16", "--workers", "0", "--out", "certificates", "--quiet",
    )  # fmt: skip
    assert "0 against the claim, 0 not correctly rounded, of 65,536" in passed(done)


def test_nothing_was_compiled(machine):
    """Comes last: the machine code that the tests above left in the cache is copied."""
    shipped = {p.read_bytes() for p in machine.package.rglob("*.so")}
    assert not [p for p in machine.cache.rglob("*.so") if p.read_bytes() not in shipped]


# The wheel itself --------------------------------------------------------------------


def test_the_wheel_keeps_its_tag_and_its_size(wheel):
    done = subprocess.run(
        [sys.executable, ROOT / ".ci" / "check_wheel", "manylinux_2_28_x86_64", "30", wheel],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    small = subprocess.run(
        [sys.executable, ROOT / ".ci" / "check_wheel", "manylinux_2_5_x86_64", "0.1", wheel],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert small.returncode == 1, "the control"
    assert "needs GLIBC_2.14" in small.stderr
    assert "more than 0.1" in small.stderr


def test_every_torch_has_its_observer_its_gate_and_its_switchboard(wheel):
    kinds = ("observer", "gate", "switchboard", "contract_kernels")
    found = {kind: set() for kind in kinds}
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            kind = re.search(rf"/_prebuilt/({'|'.join(kinds)})-\w+/build\.json$", name)
            if kind:
                torch = unseal(archive.read(name).decode())["torch"]
                found[kind[1]].add(torch.partition("+")[0].rpartition(".")[0])
    assert len({frozenset(minors) for minors in found.values()}) == 1
    minors = sorted(tuple(map(int, minor.split("."))) for minor in found["gate"])
    assert minors == [(2, n) for n in range(11, minors[-1][1] + 1)]
    assert minors[-1] >= tuple(map(int, metadata.version("torch").split(".")[:2]))


def test_certificates_are_of_the_shipped_sources(wheel, tmp_path):
    """Binaries differ with the linker's own objects, and with the sources of other functions."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(
            tmp_path, [n for n in archive.namelist() if "/udfs/corem" in n and "_prebuilt" not in n]
        )
    corem = find_library(next(tmp_path.rglob("udfs/corem")))
    certificates = list(corem.folder.glob("*/*.certificate.json"))
    assert len(certificates) == 24
    for path in certificates:
        subject = prove.load_certificate(path).subject
        assert subject["source_sha256"] == source_sha256(corem, subject["function"]), path.name


def test_certificates_name_the_shipped_builds(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        libraries = (n for n in archive.namelist() if "/_prebuilt/" in n and n.endswith(".so"))
        shipped = {hashlib.sha256(archive.read(name)).hexdigest() for name in libraries}
        certificates = re.compile(r"/udfs/corem(|-composites|-ff)/.*\.certificate\.json$")
        named = [name for name in archive.namelist() if certificates.search(name)]
        archive.extractall(tmp_path, named)
    for path in sorted(tmp_path.rglob("*.certificate.json")):
        builds = {run.identity["library_sha256"] for run in prove.load_certificate(path).runs}
        assert builds <= shipped, (
            f"{path.name} names a build that the wheel does not have. Repeat its runs on the "
            "builds of the wheel: udftorch verify LIBRARY --again, with UDFTORCH_PREBUILT set."
        )
    assert len(named) == 58, named


def test_no_file_of_the_wheel_names_the_place_where_it_was_made(wheel):
    place = os.fsencode(ROOT)
    with zipfile.ZipFile(wheel) as archive:
        assert not [n for n in archive.namelist() if place in archive.read(n)]
