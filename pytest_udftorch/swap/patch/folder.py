# SPDX-License-Identifier: Apache-2.0
"""The folder of a patch: made, verified and undone by what its manifest lists.

``DIR/torch`` links to every entry of the installed package, except that ``DIR/torch/lib`` is a
folder of its own, with the stand-ins, the UDF library and links to all else. torch's objects find
NVIDIA's libraries by a path from where they lie, so ``DIR/nvidia`` is a link too.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.base import package
from pytest_udftorch.base import plain_data as shapes
from pytest_udftorch.errors import PatchError, TorchNotFoundError
from pytest_udftorch.swap.library.description import UdfLibrary, find_library, is_operator
from pytest_udftorch.swap.library.symbols import CPU_LEVELS, DTYPES, FUNCTIONS
from pytest_udftorch.swap.native.runtime import runtime
from pytest_udftorch.swap.patch.check import check
from pytest_udftorch.swap.patch.stub import LATER, MAIN, make_stubs
from pytest_udftorch.swap.toolchain import golden
from pytest_udftorch.swap.toolchain.cache import clean_scratch, inside, sha256_of, sync
from pytest_udftorch.swap.toolchain.shared_library import Build, build_library

MANIFEST: Final = "manifest.json"
FORMAT: Final = 1

#: What a patch leaves as it is.
STAYS_STOCK: Final = (
    "CUDA kernels, eager and Triton's",
    "the code that TorchInductor generates",
    "what is inlined into libtorch, and the mathematics inside MKL, oneDNN and cuDNN",
    "the program's own calls, and those of extensions",
)


def _listed(value: Any, where: str) -> None:
    try:
        inside(value, where)
    except shapes.Malformed:
        raise shapes.Malformed(
            f"it lists {shapes.shown(value)}, which does not lie in the folder"
        ) from None


#: Shape of what every format of ``manifest.json`` has.
_ANY_FORMAT: Final = shapes.record(
    {"format": shapes.whole()},
    dict.fromkeys(("files", "links"), shapes.mapping(_listed, lambda *_: None)),
    closed=False,
)
#: Shape of what is known of a file.
_KNOWN: Final = {"size": shapes.whole(), "sha256": shapes.text()}
_FACTS: Final = shapes.record(_KNOWN, closed=True)
_SAID: Final = shapes.record({}, _KNOWN, closed=True)
_LIBRARY: Final = shapes.record(
    {
        **dict.fromkeys(("name", "version", "claim"), shapes.text()),
        "functions": shapes.mapping(shapes.one_of(FUNCTIONS), shapes.each(shapes.one_of(DTYPES))),
        "builds": shapes.mapping(
            shapes.one_of(CPU_LEVELS),
            shapes.record({"id": shapes.text(), "file": inside}, closed=False),
        ),
    },
    closed=False,
)
#: Shape of ``manifest.json``.
_MANIFEST: Final = shapes.record(
    {
        "format": shapes.whole(),
        "made_by": shapes.text(),
        "library": _LIBRARY,
        "torch": shapes.record(dict.fromkeys(("version", "folder"), shapes.text()), closed=False),
        "made_from": shapes.mapping(shapes.text(), _SAID),
        "files": shapes.mapping(shapes.of(str), _FACTS),
        "links": shapes.mapping(shapes.of(str), shapes.text()),
        "stays_stock": shapes.each(shapes.text()),
    },
    closed=False,
)


@dataclass(frozen=True)
class Torch:
    """An installed torch.

    Attributes:
        folder: the package.
        version: as its ``version.py`` states it.
    """

    folder: Path
    version: str

    @property
    def lib(self) -> Path:
        """The folder of its shared objects."""
        return self.folder / "lib"


@dataclass(frozen=True)
class Patch:
    """A finished patch.

    Attributes:
        folder: where it is.
        manifest: what ``manifest.json`` states.
    """

    folder: Path
    manifest: Mapping[str, Any]

    @property
    def size(self) -> int:
        """Bytes in the files that are not links, without the manifest."""
        return sum(facts["size"] for facts in self.manifest["files"].values())


# Making ------------------------------------------------------------------------------


def make(which: str, functions: Sequence[str] | None, out: Path) -> Patch:
    """Make a patched libtorch, and check it in a fresh process before it gets its name.

    Args:
        which: name or folder of the UDF library.
        functions: torch's names; by default all that the library has.
        out: the folder to make; it may exist if it is empty.

    Raises:
        UnknownLibraryError, LibraryError, UnknownFunctionError: see ``find_library``.
        PatchError: the library, or the selection, holds no functions; ``out`` cannot be the folder
            of a patch; the patch does not do what it should.
        TorchNotFoundError: there is no torch to patch.
        WrongBuildError: a build in the cache is not of the library.
    """
    library = find_library(which)
    chosen = _functions(library, functions)
    torch = installed_torch()
    out = out.expanduser().absolute()
    _refuse(out, torch)
    have = runtime().cpu_level()
    levels = [name for name, (_, level, _) in CPU_LEVELS.items() if level <= have]
    builds = [build_library(library, level) for level in levels]
    for build in builds:
        for function, dtype in library.functions:
            if function in chosen:
                golden.check(build, function, dtype)
    try:
        with clean_scratch(out) as aside:
            aside.chmod(0o755)
            manifest = _fill(aside, torch, library, chosen, builds)
            try:
                _check_manifest(manifest)
            except shapes.Malformed as error:
                raise PatchError(
                    f"A patch of {torch.folder} cannot be recorded: {error}."
                ) from None
            (aside / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
            _check(aside, manifest)
            for name in (*manifest["files"], MANIFEST, "torch/lib", "torch", "."):
                sync(aside / name)
            aside.replace(out)
            sync(out.parent)
    except OSError as error:
        raise PatchError(
            f"The patch cannot be written to {out}: {error}. Choose another --out, on a disk that "
            "has room."
        ) from error
    return Patch(out, manifest)


def installed_torch() -> Torch:
    """Return the torch that this Python imports; it is not imported.

    Raises:
        TorchNotFoundError: there is none, or it has no libtorch_cpu.so.
        PatchError: it is a patched one.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise TorchNotFoundError("There is no torch to patch. Install it (pip install torch).")
    folder = Path(spec.submodule_search_locations[0]).absolute()
    if (folder.parent / MANIFEST).is_file():
        raise PatchError(
            f"This Python imports torch from {folder}, which is a patch itself. Take that folder "
            "out of PYTHONPATH, and patch the installed torch."
        )
    if not (folder / "lib" / MAIN).is_file():
        raise TorchNotFoundError(
            f"{folder}/lib has no {MAIN}: this torch is not one of the registry's shared-library "
            "wheels. Install the ordinary wheel."
        )
    return Torch(folder, _version(folder))


def _version(folder: Path) -> str:
    try:
        text = (folder / "version.py").read_text(encoding="utf-8")
    except OSError:
        return ""
    found = re.search(r"^__version__ = ['\"]([^'\"]*)", text, re.M)
    return found.group(1) if found else ""


def _functions(library: UdfLibrary, names: Sequence[str] | None) -> list[str]:
    chosen = [name for name in library.select(names) if not is_operator(name)]
    if library.stock or not chosen:
        what = "stands for the stock functions" if library.stock else "has only operators here"
        raise PatchError(
            f"UDF library {library.name!r} {what}, and a patch can hold only CPU functions of a "
            "library. Choose a library that has some: see `udftorch libraries`."
        )
    return chosen


def _refuse(out: Path, torch: Torch) -> None:
    """Refuse a folder that a patch must not be put into."""
    why = ""
    if out.resolve().is_relative_to(torch.folder.resolve()):
        why = "lies inside the installed torch, which a patch leaves untouched"
    elif out.is_symlink() or (out.exists() and not out.is_dir()):
        why = "is a file or a link"
    elif out.is_dir() and any(out.iterdir()):
        why = "is not empty"
    elif not os.access(out.parent, os.W_OK | os.X_OK):
        why = "cannot be made: there is no folder above it that can be written to"
    if why:
        raise PatchError(f"{out} {why}. Name an empty or a new folder with --out.")


def _fill(
    folder: Path,
    torch: Torch,
    library: UdfLibrary,
    functions: Sequence[str],
    builds: Sequence[Build],
) -> dict[str, Any]:
    """Write everything but the manifest, and return it."""
    originals = {n: torch.lib / n for n in (MAIN, *LATER) if (torch.lib / n).is_file()}
    lib = folder / "torch" / "lib"
    lib.mkdir(parents=True)
    make_stubs(library, functions, builds, originals, lib)
    for build in builds:
        shutil.copyfile(build.path, lib / build.path.name)
    files = sorted(lib.iterdir())
    beside = torch.folder.parent / "nvidia"
    targets = {folder / "torch" / p.name: p for p in torch.folder.iterdir() if p != torch.lib}
    targets |= {lib / p.name: p for p in torch.lib.iterdir() if p.name not in originals}
    targets |= {folder / beside.name: beside} if beside.is_dir() else {}
    for link, target in targets.items():
        link.symlink_to(target)
    dtypes = {n: [d for name, d in library.functions if name == n] for n in functions}
    operators = [f"the library's operators: {', '.join(library.operators)}"]
    return {
        "format": FORMAT,
        "made_by": f"pytest_udftorch {package.version()}",
        "library": {
            "name": library.name,
            "version": library.version,
            "claim": library.claim,
            "functions": dtypes,
            "builds": {b.cpu_level: {"id": b.build_id, "file": b.path.name} for b in builds},
        },
        "torch": {"version": torch.version, "folder": os.fspath(torch.folder)},
        "made_from": {os.fspath(path): _facts(path) for path in originals.values()},
        "files": {_name(folder, path): _facts(path) for path in files},
        "links": {_name(folder, link): os.fspath(targets[link]) for link in sorted(targets)},
        "stays_stock": [*STAYS_STOCK, *(operators if library.operators else [])],
    }


def _name(folder: Path, path: Path) -> str:
    return path.relative_to(folder).as_posix()


def _facts(path: Path) -> dict[str, Any]:
    return {"size": path.stat().st_size, "sha256": sha256_of(path)}


def _check(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Run the patched functions in a fresh process.

    Raises:
        PatchError: the patch has no build for this CPU, or see ``check``.
    """
    file = _build_for_this_cpu(folder, manifest)
    check(folder, file, manifest["library"]["functions"])


def _build_for_this_cpu(folder: Path, manifest: Mapping[str, Any]) -> Path:
    have = runtime().cpu_level()
    builds = manifest["library"]["builds"]
    levels = [level for level in builds if CPU_LEVELS[level][1] <= have]
    if not levels:
        raise PatchError(
            f"{folder} has functions for the CPU levels {', '.join(builds)}, none of which this "
            "CPU can run. Make a patch on this machine."
        )
    name: str = builds[levels[-1]]["file"]
    return folder / "torch" / "lib" / name


def description(patch: Patch) -> str:
    """Return what a user needs to know of a new patch: what it holds, and how to use it."""
    facts, folder = patch.manifest, patch.folder
    library = facts["library"]
    stock = "\n".join(f"  - {what}" for what in facts["stays_stock"])
    return (
        f"{folder}: torch {facts['torch']['version']} with {library['name']} "
        f"{library['version']}: {', '.join(library['functions'])}\n"
        f"{patch.size / 1e6:.1f} MB in {len(facts['files'])} files, for the CPU levels "
        f"{', '.join(library['builds'])}; all else is links to {facts['torch']['folder']}\n"
        "A fresh process computes with it. These stay stock:\n"
        f"{stock}\n"
        f"Python:  PYTHONPATH={folder} python ...\n"
        f"C++:     LD_LIBRARY_PATH={folder}/torch/lib ./program\n"
        f"Verify:  udftorch patch --verify {folder}\n"
        f"Undo:    udftorch patch --undo {folder}"
    )


# Reading -----------------------------------------------------------------------------


def load(folder: Path) -> Patch:
    """Read the manifest of a patch.

    Raises:
        PatchError: the folder has none, or one that this version did not write.
    """
    folder = folder.expanduser().absolute()
    try:
        manifest: dict[str, Any] = shapes.parse_json(shapes.read_file(folder / MANIFEST))
        _ANY_FORMAT(manifest, "it")
        if manifest["format"] != FORMAT:
            why = f"is of format {manifest['format']}, and this version reads {FORMAT}"
        else:
            _check_manifest(manifest)
            return Patch(folder, manifest)
    except OSError as error:
        why = f"cannot be read ({error.strerror})"
    except shapes.Malformed as error:
        why = f"is damaged: {error}"
    raise PatchError(
        f"{folder} is not a patch of `udftorch patch`: its {MANIFEST} {why}. Nothing was "
        "changed. Name the folder that --out named."
    )


def _check_manifest(manifest: Mapping[str, Any]) -> None:
    """Check what a manifest says.

    Raises:
        Malformed: it was not written so.
    """
    _MANIFEST(manifest, "it")
    if not all(manifest["library"]["functions"].values() or [()]):
        raise shapes.Malformed("it names no function, or one without a dtype")
    for level, build in manifest["library"]["builds"].items():
        if f"torch/lib/{build['file']}" not in manifest["files"]:
            raise shapes.Malformed(f"the build for {level} is none of its files")


def _is_file(folder: Path, name: str) -> bool:
    path = folder / name
    return _inside(folder, name) and path.is_file() and not path.is_symlink()


def _is_link(folder: Path, name: str, target: str) -> bool:
    path = folder / name
    return _inside(folder, name) and path.is_symlink() and os.readlink(path) == target


def _inside(folder: Path, name: str) -> bool:
    """Whether no folder above an entry is a link, which would lead into the original."""
    return not any((folder / parent).is_symlink() for parent in Path(name).parents[:-1])


def verify(folder: Path) -> list[str]:
    """Return a sentence for everything that is wrong with a patch.

    Files, links and the originals are compared with the manifest. If all are as it says, a fresh
    process runs the functions.

    Raises:
        PatchError: the folder is not a patch.
    """
    patch = load(folder)
    found = [*_changed(patch), *_originals_changed(patch.manifest)]
    if not found:
        try:
            _check(patch.folder, patch.manifest)
        except PatchError as error:
            found.append(str(error))
    return found


def _changed(patch: Patch) -> Iterator[str]:
    for name, facts in patch.manifest["files"].items():
        path = patch.folder / name
        if not _is_file(patch.folder, name):
            yield f"{path} is missing. Make the patch again."
        elif _facts(path) != facts:
            yield f"{path} is damaged: it has not the SHA-256 in the manifest."
    for name, target in patch.manifest["links"].items():
        if not _is_link(patch.folder, name, target):
            yield f"{patch.folder / name} is not the link to {target} that it was."


def _originals_changed(manifest: Mapping[str, Any]) -> Iterator[str]:
    before, folder = manifest["torch"]["version"], Path(manifest["torch"]["folder"])
    now = _version(folder)
    if now != before:
        yield (
            f"torch was upgraded or removed: {folder} had {before} and has {now or 'none'} now. "
            "Make the patch again."
        )
        return
    for name, facts in manifest["made_from"].items():
        path = Path(name)
        if not path.is_file():
            yield f"{path}, which the patch was made from, is gone. Make the patch again."
        elif path.stat().st_size != facts.get("size") or sha256_of(path) != facts.get("sha256"):
            yield f"{path} has changed since the patch was made from it. Make the patch again."


# Undoing -----------------------------------------------------------------------------


def undo(folder: Path) -> list[Path]:
    """Remove what the manifest lists, and nothing else.

    Returns:
        What is left in the folder, because the manifest does not list it or it has become
        something else since.

    Raises:
        PatchError: the folder is not a patch, or something in it cannot be removed.
    """
    patch = load(folder)
    try:
        return _remove(patch)
    except OSError as error:
        raise PatchError(
            f"{error.filename} cannot be removed ({error.strerror}), so {folder} is still there in "
            "part. Make it writable, and undo again."
        ) from error


def _remove(patch: Patch) -> list[Path]:
    """Remove what the manifest lists, the manifest last; return what is left."""
    for name, target in patch.manifest["links"].items():
        if _is_link(patch.folder, name, target):
            (patch.folder / name).unlink()
    for name in patch.manifest["files"]:
        if _is_file(patch.folder, name):
            (patch.folder / name).unlink()
    (patch.folder / MANIFEST).unlink()
    kept = sorted(p for p in patch.folder.rglob("*") if p.is_symlink() or not p.is_dir())
    for path in (patch.folder / "torch/lib", patch.folder / "torch", patch.folder):
        if path.is_dir() and not path.is_symlink() and not any(path.iterdir()):
            path.rmdir()
    return kept
