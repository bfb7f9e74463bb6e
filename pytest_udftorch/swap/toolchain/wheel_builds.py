# SPDX-License-Identifier: Apache-2.0
"""Finished builds that come with the package: a second cache, which is only read.

The cache's key covers the compiler. Where there is none, a *recipe* stands in for it: the same
arguments, texts and contents of inputs, without the compiler's identity and with names for the
folders that differ between installations. A store names one build or more for a recipe, and for
each the digests of the other files that its compiler read. A build applies if every such file is
there unchanged. Left out are the headers of the C library and of the compiler, which a machine
without them does not have; the store says which compiler was used.

``UDFTORCH_PREBUILT`` names another folder to look in, or with an empty value none.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.base import package
from pytest_udftorch.errors import CacheError, NativeError
from pytest_udftorch.swap.toolchain import cache

VARIABLE: Final = "UDFTORCH_PREBUILT"

#: The file of a store that says what it has.
INDEX: Final = "index.json"
#: The file of a build that names what its compiler read: an observer reads thousands of headers.
_READS: Final = "reads.txt"
_FORMAT: Final = "udftorch-prebuilt/1"

#: Store -> its index and the state of the file it was read from.
_indices: Final[dict[Path, tuple[tuple[int, ...], dict[str, Any]]]] = {}
#: Build -> states of its files when they were checked, and its facts.
_checked: Final[dict[Path, tuple[tuple[int, ...], dict[str, Any]]]] = {}


def stores() -> list[Path]:
    """Return the folders to look in: those of the package, or the one that is named."""
    named = os.environ.get(VARIABLE)
    if named is not None:
        return [Path(named).expanduser().absolute()] if named else []
    found = (folder / "_prebuilt" for folder in package.folders())
    return [path for path in found if (path / INDEX).is_file()]


def lacking() -> str:
    """Return the sentence that says where a build was looked for and not found, for errors."""
    if os.environ.get(VARIABLE) == "":
        return f"{VARIABLE} turns the shipped builds off, and the cache has no build of it."
    if not stores():
        return (
            "this installation was made without finished builds, which the wheel of 'make wheel' "
            "has, and the cache has no build of it."
        )
    return "the installed wheel has no build of its sources, and neither has the cache."


def find(
    recipe: str, homes: Mapping[str, str | None], installed: Mapping[str, Path] | None = None
) -> tuple[Path, dict[str, Any]] | None:
    """Return the folder and the facts of a build for a recipe, if a store has one that applies.

    Args:
        recipe: see ``job.Job.recipe``.
        homes: see ``job.Job``.
        installed: see ``job.Job``.

    Raises:
        CacheError: a store belongs to another user, or is damaged.
    """
    for store in stores():
        for entry in _index(store).get(recipe, ()):
            folder = store / entry["folder"]
            if _digest_here(_labels(folder), homes, installed or {}) == entry["reads_sha256"]:
                return folder, _look(folder, entry)
    return None


def _digest_here(
    labels: list[str], homes: Mapping[str, str | None], installed: Mapping[str, Path]
) -> str:
    """Return :func:`reads_digest`, remembered while what pip lists in a folder stays the same."""
    folders = {name: home for home, name in homes.items() if name}
    paths = [(folders.get(home, ""), rest) for home, _, rest in (n.partition("/") for n in labels)]
    others = [f"{home}/{rest}" for home, rest in paths if home not in installed]
    if len(others) == len(labels):
        return reads_digest(labels, homes)
    try:
        asked = [*others, *map(str, installed.values())]
        found = {path: cache.state_of(os.stat(path)) for path in asked}
    except OSError:
        return ""
    named = hashlib.sha256("\n".join((*labels, *sorted(found))).encode()).hexdigest()
    return cache.remembered(f"headers-{named[:16]}", found, lambda: reads_digest(labels, homes))


def _labels(folder: Path) -> list[str]:
    """Return what the compiler of a build read; the digest covers these names too."""
    try:
        return (folder / _READS).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise _damaged(folder.parent, error) from error


def contents(store: Path) -> list[dict[str, Any]]:
    """Return the entries of a store: folder, files, and the digest of what was read."""
    return [entry for entries in _index(store).values() for entry in entries]


def _index(store: Path) -> dict[str, Any]:
    path = store / INDEX
    try:
        state = cache.state_of(_refuse_foreign(path))
        if store not in _indices or _indices[store][0] != state:
            said = cache.unseal(path.read_text(encoding="utf-8"))
            if said["format"] != _FORMAT:
                raise ValueError(f"its format is {said['format']!r}, not {_FORMAT!r}")
            _indices[store] = (state, said["builds"])
    except cache.DAMAGED as error:
        raise _damaged(store, error) from error
    return _indices[store][1]


def _look(folder: Path, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``build.json`` states of a shipped build, after comparing its files."""
    try:
        names = (cache.FACTS, *entry["files"])
        state = tuple(n for name in names for n in cache.state_of(_refuse_foreign(folder / name)))
        if folder in _checked and _checked[folder][0] == state:
            return dict(_checked[folder][1])
        facts = cache.unseal((folder / cache.FACTS).read_text(encoding="utf-8"))
        if facts["files"] != entry["files"] or facts["build"] != folder.name:
            raise ValueError(f"{folder / cache.FACTS} states other files than {INDEX}")
        for name, digest in entry["files"].items():
            if cache.sha256_of(folder / name) != digest:
                raise ValueError(f"{folder / name} is not the file that was shipped")
    except cache.DAMAGED as error:
        raise _damaged(folder.parent, error) from error
    _checked[folder] = (state, facts)
    return dict(facts)


def _refuse_foreign(path: Path) -> os.stat_result:
    """Return the status of a file of a store that belongs to this user, or to root."""
    found = path.lstat()
    if found.st_uid not in (os.geteuid(), 0, Path(__file__).stat().st_uid):
        raise CacheError(
            f"{path} belongs to user {found.st_uid}, and this process runs as {os.geteuid()}. Code "
            f"that another user built is not loaded. Unset {VARIABLE}, or let it name a store of "
            "yours."
        )
    return found


def _damaged(store: Path, error: Exception) -> CacheError:
    cure = f"Correct {VARIABLE}" if os.environ.get(VARIABLE) else "Reinstall pytest_udftorch"
    return CacheError(f"The shipped builds in {store} cannot be used: {error}. {cure}.")


# What a compiler read ----------------------------------------------------------------


def reads_digest(labels: list[str], homes: Mapping[str, str | None]) -> str:
    """Return the SHA-256 over files that ``label`` named; empty if one of them is missing."""
    folders = {name: home for home, name in homes.items() if name}
    digest = hashlib.sha256()
    try:
        for label in labels:
            home, _, rest = label.partition("/")
            digest.update(f"{label}\0{cache.sha256_of(Path(folders[home], rest))}\n".encode())
    except (OSError, KeyError):
        return ""
    return digest.hexdigest()


def label(path: str, homes: Mapping[str, str | None]) -> str | None:
    """Return a path as a home's name and the rest, or None outside every home that has one."""
    real = os.path.realpath(path)
    for home in sorted(homes, key=len, reverse=True):
        for start in (home, os.path.realpath(home)):
            for name in (path, real):
                if home != "/" and name.startswith(f"{start}/"):
                    return f"{homes[home]}/{name[len(start) + 1 :]}" if homes[home] else None
    return None


# Recording ---------------------------------------------------------------------------

#: Builds that were asked for, by recipe, while something records; else None.
_recorded: dict[str, dict[str, Any]] | None = None


@contextlib.contextmanager
def recording() -> Iterator[None]:
    """Note every build that is asked for in the block; ``export`` then writes them."""
    global _recorded
    before, _recorded = _recorded, {}
    try:
        yield
    finally:
        _recorded = before


def recorded() -> bool:
    """Tell whether something records."""
    return _recorded is not None


def note(recipe: str, folder: Path, labels: list[str], homes: Mapping[str, str | None]) -> None:
    """Note a build that was asked for, if something records."""
    if _recorded is not None:
        entry = {"source": folder, "reads": labels, "reads_sha256": reads_digest(labels, homes)}
        _recorded[f"{recipe} {entry['reads_sha256']}"] = entry


def note_shipped(recipe: str, folder: Path, homes: Mapping[str, str | None]) -> None:
    """Note a build of a store that was asked for, if something records."""
    if recorded():
        note(recipe, folder, _labels(folder), homes)


def export(store: Path) -> int:
    """Write what was recorded into a store, beside what it has, and return how many builds.

    Raises:
        CacheError: the folder cannot be written, or holds something else.
        NativeError: nothing records.
    """
    if _recorded is None:
        raise NativeError("Nothing records builds: call export inside recording().")
    try:
        store.mkdir(parents=True, exist_ok=True)
        builds = dict(_index(store)) if (store / INDEX).exists() else {}
        for name, noted in sorted(_recorded.items()):
            source: Path = noted["source"]
            facts = cache.unseal((source / cache.FACTS).read_text(encoding="utf-8"))
            facts = {k: v for k, v in facts.items() if k != "seconds"} | {"seconds": 0.0}
            target = store / source.name
            if target.exists():
                shutil.rmtree(target)
            target.mkdir()
            for file in facts["files"]:
                shutil.copyfile(source / file, target / file)
            (target / cache.FACTS).write_text(cache.seal(facts), encoding="utf-8")
            recipe = name.partition(" ")[0]
            text = "".join(f"{label}\n" for label in noted["reads"])
            (target / _READS).write_text(text, encoding="utf-8")
            entry = {
                "folder": source.name,
                "files": facts["files"],
                "reads_sha256": noted["reads_sha256"],
            }
            others = [e for e in builds.get(recipe, ()) if e["folder"] != source.name]
            builds[recipe] = sorted([*others, entry], key=lambda e: str(e["folder"]))
        text = cache.seal({"format": _FORMAT, "builds": dict(sorted(builds.items()))})
        (store / INDEX).write_text(text, encoding="utf-8")
        return len(_recorded)
    except OSError as error:
        raise CacheError(
            f"The builds cannot be written to {store}: {error}. Name a folder that can be."
        ) from error
