# SPDX-License-Identifier: Apache-2.0
"""What pip lists as installed stands for thousands of headers; answers that are remembered."""

import ctypes
import shutil
import stat
import tempfile

import pytest
from builds import forget

from pytest_udftorch.errors import NativeError
from pytest_udftorch.swap.toolchain import cache as cache_module
from pytest_udftorch.swap.toolchain import compiler as toolchain
from pytest_udftorch.swap.toolchain import job, torch_part
from pytest_udftorch.swap.toolchain import wheel_builds as prebuilt
from pytest_udftorch.swap.toolchain.compiler import ABSENT, find_compiler
from pytest_udftorch.swap.toolchain.job import Job, Step, compile_job, shipped_build


@pytest.fixture
def site(tmp_path):
    """A folder with a package ``torch``, whose header a part includes, and pip's list of it."""
    folder = tmp_path / "site"
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "factor.h").write_text("#define FACTOR 2\n")
    (folder / "torch-1.dist-info").mkdir()
    (folder / "torch-1.dist-info" / "RECORD").write_text("factor.h,one\n")
    (folder / "part.c").write_text(
        '#include <factor.h>\n#include "own.h"\nint part(int x) { return FACTOR * x + OWN; }\n'
    )
    (folder / "own.h").write_text("#define OWN 1\n")
    return folder


def part(site, compiler):
    source, package = site / "part.c", site / "torch"
    arguments = ("-shared", "-fPIC", "-isystem", str(package), str(source), "-o", "part.so")
    return Job(
        kind="part-",
        compiler=compiler,
        stages=((Step(compiler.path, arguments, source),),),
        output="part.so",
        failed=lambda _, message: NativeError(message),
        homes={str(package): "TORCH", str(site): "SITE"},
        installed=torch_part.installed_list(package),
        inputs=(source,),
    )


def result(site):
    made = compile_job(part(site, find_compiler()))
    # The loader would take a file of the same name for the one that it has loaded.
    return ctypes.CDLL(shutil.copy(made.path, tempfile.mkdtemp(dir=site))).part(5)


def test_the_list_stands_for_the_headers(cache, site, monkeypatch):
    assert result(site) == 11
    forget(monkeypatch)
    (site / "torch" / "factor.h").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(job, "_make", None)
        assert result(site) == 11
        # Written anew with the same content.
        (site / "torch-1.dist-info" / "RECORD").write_text("factor.h,one\n")
        assert result(site) == 11
    (site / "torch" / "factor.h").write_text("#define FACTOR 3\n")
    (site / "torch-1.dist-info" / "RECORD").write_text("factor.h,two\n")
    assert result(site) == 16


def test_what_lies_elsewhere_is_followed(cache, site):
    assert result(site) == 11
    (site / "own.h").write_text("#define OWN 2\n")
    assert result(site) == 12


@pytest.mark.parametrize("names", [(), ("torch-1.dist-info", "torch-2.dist-info")])
def test_without_one_list_every_header_is_followed(cache, site, names):
    (site / "torch-1.dist-info" / "RECORD").unlink()
    for name in names:
        (site / name).mkdir(exist_ok=True)
        (site / name / "RECORD").write_text("")
    assert result(site) == 11
    (site / "torch" / "factor.h").write_text("#define FACTOR 3\n")
    assert result(site) == 16


def test_a_store_names_the_headers(cache, site, tmp_path, monkeypatch):
    assert result(site) == 11
    store = tmp_path / "store"
    with prebuilt.recording():
        assert result(site) == 11  # made again: the build before names the list alone
        assert prebuilt.export(store) == 1
    monkeypatch.setenv(prebuilt.VARIABLE, str(store))
    asked = []
    digest = prebuilt.reads_digest
    monkeypatch.setattr(prebuilt, "reads_digest", lambda *a: asked.append(a) or digest(*a))
    for _ in range(2):
        assert shipped_build(part(site, ABSENT)).path.is_relative_to(store)
    assert len(asked) == 1
    # Other headers, which pip has listed; then one that pip does not list.
    (site / "torch" / "factor.h").write_text("#define FACTOR 3\n")
    (site / "torch-1.dist-info" / "RECORD").write_text("factor.h,two\n")
    assert shipped_build(part(site, ABSENT)) is None
    (site / "torch" / "factor.h").write_text("#define FACTOR 2\n")
    (site / "torch-1.dist-info" / "RECORD").write_text("factor.h,one\n")
    assert shipped_build(part(site, ABSENT)) is not None
    (site / "own.h").unlink()
    assert shipped_build(part(site, ABSENT)) is None


def test_an_answer_is_remembered_for_a_state(cache):
    asked = []

    def ask():
        asked.append(1)
        return f"answer {len(asked)}"

    def answer(state):
        return cache_module.remembered("question", state, ask)

    assert [answer((1, 2)), answer((1, 2)), answer((1, 3))] == ["answer 1", "answer 1", "answer 2"]
    for text in ("", "{", '{"state": [1, 3], "answer": "forged"}'):
        (cache / "question.seen").write_text(text)
        assert answer((1, 3)) == f"answer {len(asked)}"
    assert len(asked) == 5


def test_where_nothing_can_be_remembered_each_asks(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("UDFTORCH_CACHE_DIR", str(tmp_path / "file" / "below"))
    assert [cache_module.remembered("question", 1, lambda: "answer") for _ in "12"] == [
        "answer",
        "answer",
    ]


def test_a_compiler_is_asked_once_and_a_script_each_time(cache, tmp_path, monkeypatch):
    clang = find_compiler()
    script = tmp_path / "clang"
    script.write_text(f'#!/bin/sh\necho x >> {tmp_path}/calls\nexec "{clang.path}" "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("UDFTORCH_CLANG", str(script))
    for _ in range(2):
        toolchain._version.cache_clear()
        assert find_compiler().version == clang.version
    assert (tmp_path / "calls").read_text() == "x\nx\n"
    monkeypatch.setenv("UDFTORCH_CLANG", str(clang.path))
    toolchain._version.cache_clear()
    find_compiler()
    toolchain._version.cache_clear()
    monkeypatch.setattr(toolchain, "_said_version", None)
    assert find_compiler().version == clang.version
