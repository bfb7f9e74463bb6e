# SPDX-License-Identifier: Apache-2.0
"""``udftorch patch``: a libtorch on disk for processes that never load this package."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import patch_probe
import pytest
import torch

from pytest_udftorch import build_library, cli, find_library, patched
from pytest_udftorch.errors import PatchError, UdfError, UnknownFunctionError, UnknownLibraryError
from pytest_udftorch.swap.patch import folder as patch_folder
from pytest_udftorch.swap.patch.check import check
from pytest_udftorch.swap.patch.stub import MAIN, make_stubs
from pytest_udftorch.swap.toolchain.compiler import find_compiler

TORCH = Path(torch.__file__).parent
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A patch with corem, what the command printed, and what lay in torch's folder before."""
    out = tmp_path_factory.mktemp("patch") / "out, 1"
    before = original()
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        assert cli.main(["patch", "--udf-lib", "corem", "--out", str(out)]) == 0
    return out, text.getvalue(), before


@pytest.fixture
def copy(made, tmp_path):
    """A copy of the patch that a test may spoil."""
    return Path(shutil.copytree(made[0], tmp_path / "copy", symlinks=True))


def original() -> list[tuple[str, int, int]]:
    found = [p for folder in (TORCH, TORCH / "lib") for p in folder.iterdir()]
    # A folder changes when another process imports from it: Python keeps what it compiled there.
    return [
        (str(p), p.stat().st_size, 0 if p.is_dir() else p.stat().st_mtime_ns) for p in sorted(found)
    ]


def run(command, **environment) -> subprocess.CompletedProcess[str]:
    cleared = {k: v for k, v in os.environ.items() if not k.startswith(("UDFTORCH_", "ATEN_"))}
    return subprocess.run(
        command, env={**cleared, **environment}, capture_output=True, check=False, timeout=600
    )


# Using -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_python_process_with_only_a_path_set_computes_with_the_library(made):
    # Stock's functions behind a thread's last whole vector are others.
    one = {"OMP_NUM_THREADS": "1"}
    done = run([sys.executable, HERE / "patch_probe.py"], PYTHONPATH=str(made[0]), **one)
    assert done.returncode == 0, done.stderr.decode()
    told = json.loads(done.stdout)
    assert told["torch"] == str(made[0] / "torch" / "__init__.py")
    assert told["ours"] == []

    stock = patch_probe.functions()
    assert told["inlined"] == patch_probe.inlined()
    with patched("corem"):
        expected = patch_probe.functions()
        assert told["inlined"] != patch_probe.inlined()
        assert told["training"] == patch_probe.training()
        assert told["worker"] == patch_probe.worker(0)
        assert told["forked"] == patch_probe.one_function()
    assert told["functions"] == expected
    for name in patch_probe.STOCK:
        for key in (k for k in stock if k.startswith(f"{name} ")):
            assert told["functions"][key] == stock[key], key
    changed = {key.split()[0] for key in stock if expected[key] != stock[key]}
    assert len(changed & set(patch_probe.SWAPPED)) > 15, "corem is hardly unlike the stock library"

    nested = told["nested"]
    ours = nested["before"]
    assert ours != patch_probe.one_function()
    assert nested.pop("calls")
    assert nested.pop("canary False") != ours
    assert set(nested.values()) == {ours}, nested


@pytest.mark.parametrize("capability", ["avx2", pytest.param("default", marks=pytest.mark.slow)])
def test_narrower_kernels_of_torch_call_the_library_too(made, capability):
    code = (
        "import patch_probe, torch, json\n"
        "print(json.dumps([torch.backends.cpu.get_cpu_capability(),"
        " patch_probe.functions((torch.float32,))]))"
    )
    path = f"{made[0]}{os.pathsep}{HERE}"
    done = run([sys.executable, "-c", code], PYTHONPATH=path, ATEN_CPU_CAPABILITY=capability)
    used, got = json.loads(done.stdout)
    assert used == capability.upper()
    with patched("corem"):
        expected = patch_probe.functions((torch.float32,))
    # Operators that do more than call the function may round by the capability.
    functions = set(find_library("corem").function_names) - set(patch_probe.PAIRS)
    names = [k for k in expected if k.split()[0] in functions]
    assert [k for k in names if got[k] != expected[k]] == []


@pytest.mark.slow
def test_a_cpp_program_linked_with_the_original_runs_on_it(made, tmp_path):
    program = tmp_path / "program"
    include, lib = TORCH / "include", TORCH / "lib"
    command = (
        find_compiler().path, "-x", "c++", "-std=c++20", "-w", f"-I{include}",
        HERE / "patch_probe.cpp", "-o", program, f"-L{lib}", "-ltorch_cpu", "-lc10",
        f"-Wl,-rpath,{lib}", "-Wl,--enable-new-dtags", "-lstdc++", "-lm",
    )  # fmt: skip
    subprocess.run(command, check=True)
    x = torch.linspace(-9, 1, 4001)
    stock = x.exp()
    with patched("corem"):
        ours = x.exp()
    assert run([program]).stdout == stock.numpy().tobytes()

    path = str(made[0] / "torch" / "lib")
    later = ["libtorch_cuda.so"] if (lib / "libtorch_cuda.so").is_file() else []
    done = run([program, *later], LD_LIBRARY_PATH=path, UDFTORCH_PATCH_REPORT="1")
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == ours.numpy().tobytes()
    said = re.findall(r"(\d+) slots of (\S+)", done.stderr.decode())
    assert [name for _, name in said][:1] == [MAIN]
    # An object that is loaded later has its slots bound then.
    assert {name for _, name in said[1:]} >= set(later)

    # The path in the program comes before LD_LIBRARY_PATH here; a preloaded stand-in before both.
    subprocess.run([a if a != "-Wl,--enable-new-dtags" else "-Wl,--disable-new-dtags"
                    for a in command], check=True)  # fmt: skip
    assert run([program], LD_LIBRARY_PATH=path).stdout == stock.numpy().tobytes()
    plain = tmp_path / "lib"  # LD_PRELOAD ends at a blank
    plain.symlink_to(path)
    assert run([program], LD_PRELOAD=f"{plain}/{MAIN}").stdout == ours.numpy().tobytes()


def test_the_command_and_the_manifest_say_what_was_made(made):
    out, text, before = made
    facts = json.loads((out / "manifest.json").read_text())
    assert facts["torch"] == {"version": torch.__version__, "folder": str(TORCH)}
    assert facts["made_from"][str(TORCH / "lib" / MAIN)]["size"] > 1e8
    assert set(facts["library"]["functions"]) == set(find_library("corem").function_names)
    assert f"torch/lib/{MAIN}" in facts["files"]
    for sentence in facts["stays_stock"]:
        assert sentence in text
    assert "CUDA kernels" in text
    assert f"PYTHONPATH={out}" in text
    files = [p for p in out.rglob("*") if p.is_file() and not p.is_symlink()]
    assert sum(p.stat().st_size for p in files) < 4e6
    assert original() == before
    assert list(out.parent.iterdir()) == [out]


# The check, and --verify ------------------------------------------------------------------


def test_an_intact_patch_verifies(made, capsys):
    assert cli.main(["patch", "--verify", str(made[0])]) == 0
    assert "a fresh process computes with it" in capsys.readouterr().out


def test_the_check_finds_functions_that_are_one_bit_wrong(made):
    """canary's results are one unit in the last place from corem's."""
    wrong = build_library("canary").path
    with pytest.raises(PatchError, match=r"results of torch\.exp on float32 differ"):
        check(made[0], wrong, {"exp": ["float32"]})


def test_a_process_that_loads_another_torch_fails_the_patch_and_leaves_nothing(
    tmp_path, monkeypatch
):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(
        f"import sys; sys.path.insert(0, {str(TORCH.parent)!r})"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    with pytest.raises(PatchError, match=r"it loaded .*site-packages/torch"):
        patch_folder.make("corem", ["exp"], tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["site"]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_verify_names_every_change(copy, capsys):
    lib = copy / "torch" / "lib"
    flip(next(lib.glob("libcorem-*.so")))
    (lib / "libtorch_python.so").unlink()
    (copy / "torch" / "nn").unlink()
    assert cli.main(["patch", "--verify", str(copy)]) == 1
    said = capsys.readouterr().err
    assert re.search(r"FAILED: .*libcorem-\w+\.so is damaged", said)
    assert "libtorch_python.so is missing" in said
    assert f"{copy}/torch/nn is not the link" in said
    assert said.count("FAILED") == 3


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda facts: facts["torch"].update(version="2.0.0"), "torch was upgraded or removed"),
        (lambda facts: next(iter(facts["made_from"].values())).update(size=1), "has changed since"),
        (lambda facts: facts["made_from"].update({"/gone": {}}), "/gone, which .* is gone"),
    ],
)
def test_verify_says_when_the_original_is_another(copy, change, says):
    facts = json.loads((copy / "manifest.json").read_text())
    change(facts)
    (copy / "manifest.json").write_text(json.dumps(facts))
    (said,) = patch_folder.verify(copy)
    assert re.search(says, said)


# --undo ----------------------------------------------------------------------------------


def test_undo_removes_what_is_listed_and_keeps_the_rest(copy, capsys):
    (copy / "torch" / "lib" / "mine.txt").write_text("keep")
    (copy / "torch" / "nn").unlink()
    (copy / "torch" / "nn").symlink_to("/tmp")
    before = original()
    assert cli.main(["patch", "--undo", str(copy)]) == 0
    said = capsys.readouterr().out.splitlines()
    kept = [copy / "torch" / "lib" / "mine.txt", copy / "torch" / "nn"]
    assert said == [f"kept, because the patch does not list it: {path}" for path in kept]
    assert sorted(p for p in copy.rglob("*") if p.is_symlink() or not p.is_dir()) == kept
    assert original() == before


def test_undo_of_an_untouched_patch_leaves_nothing(copy):
    assert patch_folder.undo(copy) == []
    assert not copy.exists()


def test_undo_of_what_cannot_be_removed_says_so_and_can_be_repeated(copy, monkeypatch):
    unlink = Path.unlink

    def refuse(path: Path, **options: bool) -> None:
        if path.name == patch_folder.MANIFEST:
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        unlink(path, **options)

    with monkeypatch.context() as context:
        context.setattr(Path, "unlink", refuse)
        with pytest.raises(PatchError, match=r"Read-only file system.*undo again"):
            patch_folder.undo(copy)
    assert patch_folder.undo(copy) == []


def test_undo_never_follows_a_link_out_of_the_patch(copy, tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "file").write_text("keep")
    (copy / "link").symlink_to(tmp_path / "theirs")
    facts = json.loads((copy / "manifest.json").read_text())
    facts["files"]["link/file"] = {"size": 4, "sha256": ""}
    (copy / "manifest.json").write_text(json.dumps(facts))
    assert patch_folder.undo(copy) == [copy / "link"]
    assert (tmp_path / "theirs" / "file").read_text() == "keep"


@pytest.mark.parametrize("action", [patch_folder.verify, patch_folder.undo])
@pytest.mark.parametrize(
    ("manifest", "says"),
    [
        (None, "cannot be read"),
        ("{", "is damaged"),
        ('{"format": 1}', "is damaged"),
        ('{"format": 2}', "is of format 2"),
        ('{"format": 1, "files": {"../x": {}}, "links": {}}', "lists '../x', which does not lie"),
        ('{"format": 1, "files": {}, "links": {"/etc": ""}}', "lists '/etc', which does not lie"),
        ("[" * 100_000, "is damaged: it is not JSON .it is nested too deeply"),
        ('{"format": 1, "files": {"a": 5}, "links": {}}', "is damaged: it lacks library"),
    ],
)
def test_a_folder_without_a_manifest_of_ours_is_refused(tmp_path, action, manifest, says):
    (tmp_path / "x").write_text("keep")
    if manifest is not None:
        (tmp_path / "manifest.json").write_text(manifest)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(PatchError, match=rf"{says}.*Name the folder that --out named"):
        action(tmp_path)
    assert sorted(tmp_path.iterdir()) == before


# Refusals --------------------------------------------------------------------------------


def test_folders_that_cannot_take_a_patch_are_refused(tmp_path):
    full, file, link = tmp_path / "full", tmp_path / "file", tmp_path / "link"
    full.mkdir()
    (full / "x").touch()
    file.touch()
    link.symlink_to(full)
    for out, why in (
        (full, "is not empty"),
        (file, "is a file or a link"),
        (link, "is a file or a link"),
        (TORCH / "lib" / "new", "lies inside the installed torch"),
        (tmp_path / "no" / "where", "no folder above it"),
    ):
        with pytest.raises(PatchError, match=rf"{why}.*Name an empty or a new folder"):
            patch_folder.make("corem", ["exp"], out)
    assert sorted(tmp_path.iterdir()) == [file, full, link]


@pytest.mark.parametrize(
    ("library", "functions", "error", "says"),
    [
        ("no-such", None, UnknownLibraryError, "no-such"),
        ("std", None, PatchError, "stands for the stock functions"),
        ("corem", ["exq"], UnknownFunctionError, "Did you mean 'exp"),
    ],
)
def test_libraries_that_cannot_be_patched_in_are_refused(tmp_path, library, functions, error, says):
    with pytest.raises(error, match=says):
        patch_folder.make(library, functions, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_library_of_operators_alone_is_refused(tmp_path):
    (tmp_path / "udf.toml").write_text(
        '[library]\nname = "ops"\nversion = "1"\n[operators."aten::log"]\n'
        'source = "x.cpp"\nfunction = "f"\n'
    )
    (tmp_path / "x.cpp").touch()
    with pytest.raises(PatchError, match="'ops' has only operators here"):
        patch_folder.make(str(tmp_path), None, tmp_path / "out")


def test_the_command_needs_a_library_to_make_a_patch(tmp_path, capsys):
    assert cli.main(["patch", "--out", str(tmp_path / "out")]) == cli.MISUSE
    assert "add --udf-lib=corem" in capsys.readouterr().err


def test_a_patch_is_not_patched_again(made, tmp_path):
    code = "import sys; from pytest_udftorch import cli; sys.exit(cli.main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "patch", "--udf-lib=corem", "--out", tmp_path / "out"]
    done = run(command, PYTHONPATH=str(made[0]))
    assert done.returncode == cli.MISUSE
    assert b"is a patch itself" in done.stderr


# Loading ----------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path):
    """A function that makes stand-ins for an object of torch that is quick to load.

    libc10.so calls one function of ours, the logarithm in double precision.
    """
    target = tmp_path / "original" / MAIN
    target.parent.mkdir()
    target.symlink_to(TORCH / "lib" / "libc10.so")

    def make(functions=("log",), levels=("baseline", "avx2", "avx512")) -> list[object]:
        folder = tmp_path / "stand-ins"
        folder.mkdir()
        builds = []
        for level in levels:
            with contextlib.suppress(UdfError):  # this CPU may not have it
                builds.append(build_library("corem", level))
        make_stubs(find_library("corem"), functions, builds, {MAIN: target}, folder)
        for build in builds:
            shutil.copy(build.path, folder)
        return [sys.executable, "-c", f"import ctypes; ctypes.CDLL({str(folder / MAIN)!r})"]

    return make, target


def test_a_function_that_reaches_no_slot_ends_the_process(small):
    done = run(small[0](("exp",)))
    assert done.returncode < 0
    assert b"calls float32 exp through no symbol that can be rebound" in done.stderr


def test_an_original_that_changed_ends_the_process(small):
    make, target = small
    command = make()
    data = target.read_bytes()
    target.unlink()
    target.write_bytes(data + b"\0")
    done = run(command)
    assert done.returncode < 0
    assert b"has changed since this patch was made from it: was torch upgraded?" in done.stderr


def test_a_cpu_level_that_is_not_there_ends_the_process(small):
    done = run(small[0](), UDFTORCH_CPU_LEVEL="avx1024")
    assert done.returncode < 0
    assert b"UDFTORCH_CPU_LEVEL=avx1024 is no CPU level that this patch has" in done.stderr


def test_functions_narrower_than_torchs_kernels_end_the_process(small):
    command = small[0](levels=("baseline",))
    done = run(command)
    assert done.returncode < 0
    assert (
        b"Make the patch again on this machine, or set ATEN_CPU_CAPABILITY=default" in done.stderr
    )
    # With narrow kernels the level will do, and the next check speaks.
    assert b"float32 log" in run(command, ATEN_CPU_CAPABILITY="default").stderr
