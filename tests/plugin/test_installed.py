# SPDX-License-Identifier: Apache-2.0
"""Someone else's project: our wheel and a package of theirs with a UDF library, installed.

Nothing of this source tree is used: the wheel is built, installed into a virtual environment
of its own, and only third-party packages (torch, pytest) come from the running one.
"""

import importlib.util
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

THEIR_PACKAGE = {
    "shop_udfs/__init__.py": '"""UDFs of a shop."""\n',
    "shop_udfs/udf.toml": '[library]\nname = "shop"\nversion = "3"\nclaim = "bit 1 inverted"\n'
    '[functions.exp.float32]\nsource = "f.c"\nscalar = "shop_expf"\n',
    "shop_udfs/f.c": "#include <math.h>\nstatic float shop_expf(float x) {\n"
    "  union { float f; unsigned u; } r = {(float)exp(x)};\n  r.u ^= 2u;\n  return r.f;\n}\n",
    "shop_udfs-3.dist-info/METADATA": "Metadata-Version: 2.1\nName: shop-udfs\nVersion: 3\n",
    "shop_udfs-3.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\n"
    "Root-Is-Purelib: true\nTag: py3-none-any\n",
    "shop_udfs-3.dist-info/entry_points.txt": "[pytest_udftorch.libraries]\nshop = shop_udfs\n",
    "shop_udfs-3.dist-info/RECORD": "",
}

THEIR_SUITE = """
    import sys
    import pytest
    import pytest_udftorch
    import torch
    from witness import note, which

    def test_what_is_installed():
        assert pytest_udftorch.__file__.startswith(sys.prefix)
        assert pytest_udftorch.find_library("shop").folder.is_relative_to(sys.prefix)
        assert pytest_udftorch.find_library("corem").folder.is_relative_to(sys.prefix)
        assert sorted(pytest_udftorch.available_libraries()) == [
            "canary", "canary-composites", "canary-d",
            "corem", "corem-composites", "corem-d", "corem-ff",
            "format-bfloat16", "format-e4m3", "format-e5m2", "format-half",
            "format-posit16", "ladder-10", "ladder-12", "ladder-16", "ladder-20", "ladder-8",
            "repro", "shop", "std", "stochastic",
        ]

    def test_session(udf_session):
        assert udf_session.library.name == "shop"
        assert udf_session.build.path.is_file()
        note("session")

    @pytest.fixture
    def canary_exp(patched_libtorch):
        return patched_libtorch("canary", functions=("exp",))

    def test_factory(canary_exp):
        assert canary_exp.functions == ("exp",)
        note("factory")
        note("cos", "cos")

    @pytest.mark.udf_lib("std", "shop")
    def test_marker(request):
        note(request.node.name)

    def test_plain_api():
        with pytest_udftorch.patched("std"):
            note("inside")
        note("outside")
"""


def run(*command):
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def environment(folder, *wheels):
    """Return the interpreter of a new virtual environment with these wheels."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    run(
        sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index",
        *wheels,
    )  # fmt: skip
    purelib = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    (Path(purelib.stdout.strip()) / "third_party.pth").write_text(sysconfig.get_path("purelib"))
    return python


@pytest.fixture(scope="session")
def their_python(tmp_path_factory):
    """The interpreter of a virtual environment with our wheel and their package."""
    scratch = tmp_path_factory.mktemp("installed")
    # Isolation would fetch the build backend again where it is installed already. The build folder
    # is that of `make setup`: what is compiled there is not compiled again.
    have_backend = importlib.util.find_spec("scikit_build_core") is not None
    run(
        sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", scratch,
        *(["--no-build-isolation"] if have_backend else []),
        ROOT,
    )  # fmt: skip
    (ours,) = scratch.glob("pytest_udftorch-*.whl")
    theirs = scratch / "shop_udfs-3-py3-none-any.whl"
    with zipfile.ZipFile(theirs, "w") as archive:
        for name, text in THEIR_PACKAGE.items():
            archive.writestr(name, text)
    return environment(scratch / "venv", ours, theirs)


def test_their_suite_uses_our_fixtures_and_their_library(suite, their_python):
    suite.write(test_theirs=THEIR_SUITE)
    suite.pytester.makeini("[pytest]\nudf_lib = shop\n")
    result = suite.pytester.run(their_python, "-m", "pytest", "-rA", "-p", "no:benchmark")
    result.assert_outcomes(passed=6)
    result.stdout.fnmatch_lines(["udftorch: shop 3 (bit 1 inverted); build *; functions: exp"])
    assert suite.log == [
        "session:two",
        "factory:one",
        "cos:stock",
        "test_marker[std]:stock",
        "test_marker[shop]:two",
        "inside:stock",
        "outside:two",
    ]


@pytest.mark.slow
def test_their_profile_has_its_page(suite, their_python):
    suite.write(test_theirs="def test_it(): import torch; torch.exp(torch.zeros(70))")
    arguments = ("--udf-lib=shop", "--udf-profile", "--udf-profile-out=out", "-p", "no:benchmark")
    suite.pytester.run(their_python, "-m", "pytest", *arguments).assert_outcomes(passed=1)
    assert "sortTable" in (suite.path / "out" / "report.html").read_text()


def test_their_script_uses_the_plain_api(suite, their_python):
    (suite.path / "script.py").write_text(
        "import pytest_udftorch\n"
        "from witness import note\n"
        "with pytest_udftorch.patched('shop') as session:\n"
        "    note(f'{session.library.name} {session.functions}')\n"
        "note('after')\n"
    )
    assert suite.pytester.run(their_python, "script.py").ret == 0
    assert suite.log == ["shop ('exp',):two", "after:stock"]


def test_an_editable_install_does_not_warn(suite, tmp_path):
    pytest.importorskip("scikit_build_core")
    build = "import os, scikit_build_core.build as b; os.chdir({!r}); b.build_editable({!r})"
    run(sys.executable, "-c", build.format(str(ROOT), str(tmp_path)))
    python = environment(tmp_path / "venv", *tmp_path.glob("pytest_udftorch-*.whl"))
    suite.write(test_plain="def test_it(): pass")
    # Such a warning comes before pytest has read any configuration; as an error it ends the run.
    result = suite.pytester.run(python, "-m", "pytest", "-W", "error", "-p", "no:benchmark")
    result.assert_outcomes(passed=1)
