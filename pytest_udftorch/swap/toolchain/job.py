# SPDX-License-Identifier: Apache-2.0
"""Compiling: a job, its key, and the files that the compiler read."""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
import re
import shutil
import signal
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.base import plain_data as shapes
from pytest_udftorch.base.open_files import refuse_too_few
from pytest_udftorch.errors import CacheError, CompilerStoppedError, SourceError, UdfError
from pytest_udftorch.swap.native.runtime import native_files
from pytest_udftorch.swap.toolchain import cache
from pytest_udftorch.swap.toolchain import compiler as toolchain
from pytest_udftorch.swap.toolchain import wheel_builds as prebuilt
from pytest_udftorch.swap.toolchain.agenda import agenda
from pytest_udftorch.swap.toolchain.author_warnings import pass_on
from pytest_udftorch.swap.toolchain.compiler import ABSENT, Compiler
from pytest_udftorch.swap.toolchain.progress import Progress

#: Where headers of the system lie; ``-isystem`` names others.
_SYSTEM: Final = "/usr/"

#: The pass plugin in an argument, in whichever folder and for whichever LLVM.
_PLUGIN: Final = re.compile(r"[^\s=]*UdfPass(-\d+)?\.so")

#: What tools say when a file cannot be written.
_UNWRITABLE: Final = tuple(
    os.strerror(code) for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
)
#: What tools say when they crash, or when one that they started was killed.
_CRASHED: Final = ("PLEASE submit a bug report", "failed due to signal")

_STATE: Final = shapes.row(*[shapes.of(int)] * 4)
#: Shape of what an index says.
_INDEX: Final = shapes.record(
    {
        "key": shapes.of(str),
        "build": shapes.of(str),
        "folder": cache.inside,
        "files": cache.DIGESTS,
        "reads": shapes.mapping(shapes.of(str), shapes.row(_STATE, shapes.of(str))),
    },
    closed=False,
)


@dataclass(frozen=True)
class Step:
    """One run of a tool, in the folder of the build.

    Attributes:
        tool: the executable.
        arguments: its arguments; they name files of the build without a folder.
        source: what it compiles, for messages; None for linkers and the like.
    """

    tool: Path
    arguments: tuple[str, ...]
    source: Path | None = None


@dataclass(frozen=True)
class Job:
    """What a build is made from, and how.

    The key covers the compiler, every argument, the texts, the contents of ``inputs``, and
    ``covers``. The cache also notes which files the compiler read, and does not use a build again
    once one of them has changed.

    Attributes:
        kind: how the name of the build's folder begins; empty for UDF libraries.
        compiler: compiles the steps that have a source.
        stages: the steps of a stage run side by side, the stages one after the other.
        output: the file that is wanted.
        failed: makes an error from a step that failed and what the tool wrote.
        texts: file name -> text of a file that a step reads.
        root: folder to which the paths in the key are relative, so that copies of it share a build.
        homes: folder -> the name that stands for it in the recipe, or None if what lies there does
            not count: headers that a machine without a compiler may lack. The folders of
            ``root`` and of the package's native files are added.
        installed: folder -> the list of what pip put there, which is written anew whenever that
            changes. It stands for all the files in the folder: a part that is compiled against
            torch reads thousands of its headers.
        inputs: files whose contents enter the key: those that are read, and those that may be.
        covers: what else the key covers.
        local: what else the key covers, but not the recipe.
        facts: what else ``build.json`` states.
        check: looks at the finished build, and raises an error to refuse it.
        what: what is made, for lines about progress; by default the output.
    """

    kind: str
    compiler: Compiler
    stages: tuple[tuple[Step, ...], ...]
    output: str
    failed: Callable[[Step, str], Exception]
    texts: Mapping[str, str] = field(default_factory=dict)
    root: Path = Path("/")
    homes: Mapping[str, str | None] = field(default_factory=dict)
    installed: Mapping[str, Path] = field(default_factory=dict)
    inputs: Sequence[str | Path] = ()
    covers: Any = None
    local: Any = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    check: Callable[[Path], None] | None = None
    what: str = ""

    def key(self) -> str:
        """Return the SHA-256 over all that is known before the compiler runs, in hex.

        Raises:
            SourceError: an input is not a file that can be read.
        """
        steps = [step for stage in self.stages for step in stage]
        plain = functools.cache(self._plain)  # most arguments occur in every step
        facts = [
            self.compiler.identity,
            [(s.tool.name, [plain(a) for a in s.arguments]) for s in steps],
            dict(self.texts),
            self.output,
            self.covers,
            *([] if self.local is None else [self.local]),
        ]
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
        for path in self.inputs:
            digest.update(f"\0{self._plain(f'-I{path}')}\0".encode())
            digest.update(_content(Path(path)))
        return digest.hexdigest()

    @functools.cached_property
    def all_homes(self) -> dict[str, str | None]:
        """``homes``, with those that every job has."""
        found: dict[str, str | None] = {str(p.parent): "NATIVE" for p in native_files("udfprof.h")}
        if self.root != Path("/"):
            found[str(self.root)] = "ROOT"
        return {**found, **self.homes}

    def recipe(self) -> str:
        """Return the SHA-256 over what is compiled and how, whichever compiler does it, in hex.

        It is the same in every installation; see ``prebuilt``.

        Raises:
            SourceError: an input is not a file that can be read.
        """
        folders = sorted(self.all_homes.items(), key=lambda home: -len(home[0]))

        @functools.cache
        def named(text: str) -> str:
            for folder, name in folders:
                text = text.replace(f"{folder}/", f"{name}/").replace(folder, str(name))
            return _PLUGIN.sub("UdfPass.so", text)

        steps = [
            (
                "compiler" if step.tool == self.compiler.path else step.tool.name,
                [named(argument) for argument in step.arguments],
            )
            for stage in self.stages
            for step in stage
        ]
        texts = {name: named(text) for name, text in self.texts.items()}
        facts = [steps, texts, self.output, self.covers]
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
        # Where the folders lie decides the order of the inputs elsewhere.
        for path in sorted(self.inputs, key=lambda path: named(str(path))):
            digest.update(f"\0{named(str(path))}\0".encode())
            digest.update(_content(Path(path)))
        return digest.hexdigest()

    def _plain(self, argument: str) -> str:
        """Return an argument without the folders that differ between installations."""
        root, plugin = str(self.root), self.compiler.plugin
        if argument.startswith(f"-I{root}/") and root != "/":
            return f"-I{argument[len(root) + 3 :]}"
        if plugin is not None and str(plugin.parent) in argument:
            return argument.replace(str(plugin.parent), "")
        if argument.startswith("-I/"):
            return f"-I{os.path.relpath(argument[2:], root)}"
        return argument.replace(f"{root}/", "") if root != "/" else argument


def _content(path: Path) -> bytes:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe or a device may never end
            raise OSError("it is not a regular file")
        return path.read_bytes()
    except OSError as error:
        refuse_too_few(error)
        raise SourceError(
            f"The source {path} cannot be read: {error}. Put a file there that can be, or take the "
            "name out of the library."
        ) from error


@dataclass(frozen=True)
class Made:
    """A build in the cache.

    Attributes:
        build_id: 16 hex digits that name it by its content.
        path: its output.
        facts: what ``build.json`` states.
    """

    build_id: str
    path: Path
    facts: Mapping[str, Any]


def obtain(
    make: Callable[[Compiler], Job],
    find: Callable[[], Compiler],
    variable: str = "UDFTORCH_CLANG",
) -> Made:
    """Return a build: a shipped one, one in the cache, or a new one.

    Nobody looks for a compiler if a shipped build applies. If there is no compiler, a build in the
    cache is used whose recipe is the same, whichever compiler made it.

    Args:
        make: makes the job for a compiler; it is also given ``toolchain.ABSENT``.
        find: finds the compiler.
        variable: the environment's variable that can name the compiler. If it does, no build of
            another compiler is taken out of the cache.

    Raises:
        UdfError: ``find`` raises it, and there is no build.
        Exception: see ``compile_job``.
    """
    if prebuilt.stores() and (shipped := shipped_build(job := make(ABSENT))) is not None:
        prebuilt.note_shipped(job.recipe(), shipped.path.parent, job.all_homes)
        return shipped
    try:
        compiler = find()
    except UdfError:
        if os.environ.get(variable) or (made := _made_before(make(ABSENT))) is None:
            raise
        return made
    return compile_job(make(compiler))


def available(
    make: Callable[[Compiler], Job], find: Callable[[], Compiler], variable: str = "UDFTORCH_CLANG"
) -> str:
    """Return where ``obtain`` would get a build: ``shipped``, ``cached`` or ``compiler``.

    Raises:
        UdfError: nowhere; the reason why there is no compiler.
    """
    if shipped_build(make(ABSENT)) is not None:
        return "shipped"
    try:
        compiler = find()
    except UdfError:
        if os.environ.get(variable) or _made_before(make(ABSENT)) is None:
            raise
        return "cached"
    job = make(compiler)
    key = job.key()
    index = cache.cache_folder() / f"{job.kind}{key[:16]}.reads"
    return "compiler" if _stored(job, key, index) is None else "cached"


def shipped_build(job: Job) -> Made | None:
    """Return the build that was shipped for a job's recipe, if there is one.

    Raises:
        CacheError: the shipped builds are damaged, or belong to another user.
    """
    if not prebuilt.stores():
        return None
    if (found := prebuilt.find(job.recipe(), job.all_homes, job.installed)) is None:
        return None
    folder, facts = found
    return Made(folder.name.removeprefix(job.kind), folder / job.output, facts)


def _made_before(job: Job) -> Made | None:
    """Return a build in the cache that another compiler made by the same recipe."""
    recipe = job.recipe()
    try:
        path = cache.cache_folder() / f"{job.kind}{recipe[:16]}.recipe"
        cache.refuse_foreign(path)
        said = cache.unseal(path.read_text(encoding="utf-8"))
        if said["recipe"] != recipe:
            return None
        return _stored(job, said["key"], path.with_name(said["index"]), missing=(*_system(job),))
    except cache.DAMAGED:
        return None


def compile_job(job: Job) -> Made:
    """Run a job, or take its build from the cache.

    Raises:
        CacheError: the cache cannot be written, or the build belongs to another user.
        SourceError: an input cannot be read.
        CompilerStoppedError: a tool crashed, was killed or took too long.
        Exception: what the job's ``failed`` and ``check`` make.
    """
    key = job.key()
    index = cache.cache_folder() / f"{job.kind}{key[:16]}.reads"
    made = _stored(job, key, index)
    if made is None:
        with cache.opened(index):
            made = _stored(job, key, index) or _make(job, key, index)
            cache.tidy_now_and_then(index.parent)
    if prebuilt.recorded():
        _note(job, made, index)
    return made


def _note(job: Job, made: Made, index: Path) -> None:
    """Note a build for a store, with the files that its compiler read."""
    reads = cache.unseal(index.read_text(encoding="utf-8"))["reads"]
    homes = job.all_homes
    labels = {prebuilt.label(os.path.join(job.root, path), homes) for path in reads}
    prebuilt.note(job.recipe(), made.path.parent, sorted(n for n in labels if n), homes)


def _stored(job: Job, key: str, index: Path, missing: tuple[str, ...] = ()) -> Made | None:
    """Return the build that an index names, unless a file that was read has changed.

    The index lies outside the build, and states the digests of its files too. The files of
    another build are not taken for it, even if they come with a ``build.json`` that fits.

    Args:
        job: what is wanted.
        key: its key, or that of a job with the same recipe.
        index: the file that names the build.
        missing: files below these folders may be missing.
    """
    try:
        cache.refuse_foreign(index)
        said = cache.unseal(shapes.read_file(index))
        _INDEX(said, "the index")
        folder = index.with_name(said["folder"])
        if said["key"] != key or not all(
            _same(os.path.join(job.root, path), *seen)
            for path, seen in said["reads"].items()
            if not (path.startswith(missing) and missing and not Path(path).exists())
        ):
            return None
        # A store names the headers themselves.
        if prebuilt.recorded() and {*map(str, job.installed.values())} & said["reads"].keys():
            return None
    except cache.DAMAGED:
        return None
    facts = cache.look(folder)
    if facts is None or facts.get("key") != key or facts["files"] != said["files"]:
        return None
    if job.output not in said["files"]:
        return None
    return Made(said["build"], folder / job.output, facts)


def _same(path: str, state: Sequence[int], digest: str) -> bool:
    # A part that is compiled against torch reads thousands of files: no object for each path.
    now = cache.state_of(os.stat(path))
    if now == tuple(state):
        return bool(digest)
    # A pipe in the place of the file would be waited for.
    return now[0] == state[0] and os.path.isfile(path) and cache.sha256_of(Path(path)) == digest


def _make(job: Job, key: str, index: Path) -> Made:
    began = time.time_ns()
    start = time.perf_counter()
    with cache.scratch(index) as aside:
        steps = sum(map(len, job.stages))
        with (
            agenda.turn(job.what or job.output, job.kind) as turn,
            Progress(turn.text, steps, seconds=turn.seconds, heading=turn.heading) as progress,
        ):
            read = run_stages(job.stages, job.texts, aside, job.failed, progress.step)
        if job.check is not None:
            job.check(aside)
        for path in aside.iterdir():
            if path.name != job.output:
                path.unlink()
        reads = _states(job, read, began)
        build = _build_id(job, key, reads)
        seconds = round(time.perf_counter() - start, 3)
        stated = {**job.facts, "key": key, "file": job.output, "seconds": seconds}
        folder = index.with_name(f"{job.kind}{build}")
        facts = cache.publish(aside, folder, stated)
    said = {"key": key, "build": build, "folder": folder.name, "files": facts["files"]}
    cache.store(index, cache.seal({**said, "reads": reads}))
    recipe = job.recipe()
    text = cache.seal({"recipe": recipe, "key": key, "index": index.name, "folder": folder.name})
    cache.store(index.with_name(f"{job.kind}{recipe[:16]}.recipe"), text, index)
    return Made(build, folder / job.output, facts)


def _states(job: Job, names: set[str], began: int) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return path -> state and digest of the files that a compiler read.

    Files that the key covers are left out. The list of an installed folder stands for what was
    read there, but not for a store, which names the files. A path below the job's root is relative
    to it. A file that has changed since the job began has no digest: it is not known what the
    compiler read of it, and the build is not used again.
    """
    states = {}
    covered = {Path(p).resolve() for p in job.inputs}
    if not prebuilt.recorded():
        for folder, listed in job.installed.items():
            installed = {name for name in names if name.startswith(f"{folder}/")}
            names = (names - installed) | ({str(listed)} if installed else set())
    for name in sorted(names):
        path = Path(name)
        if path.resolve() not in covered:
            found = path.stat()
            digest = cache.sha256_of(path) if found.st_mtime_ns < began else ""
            below = job.root != Path("/") and name.startswith(f"{job.root}/")
            label = os.path.relpath(name, job.root) if below else name
            states[label] = (cache.state_of(found), digest)
    return states


def _build_id(job: Job, key: str, reads: Mapping[str, tuple[tuple[int, ...], str]]) -> str:
    """Return the id of a build, made from its key and the files read.

    The system's headers and lists of what is installed do not enter it, so machines with other
    copies of them share an id.
    """
    system = (*_system(job), *map(str, job.installed.values()))
    own = [
        (Path(path).name, digest)
        for path, (_, digest) in reads.items()
        if not path.startswith(system)
    ]
    return hashlib.sha256(json.dumps([key, own]).encode()).hexdigest()[:16] if own else key[:16]


def _system(job: Job) -> Iterator[str]:
    """Yield where headers of the system lie."""
    yield _SYSTEM
    for step in (s for stage in job.stages for s in stage):
        yield from (b for a, b in pairwise(step.arguments) if a == "-isystem")


def run_stages(
    stages: Sequence[Sequence[Step]],
    texts: Mapping[str, str],
    folder: Path,
    failed: Callable[[Step, str], Exception],
    done_one: Callable[[], None] = lambda: None,
) -> set[str]:
    """Write the texts into a folder and run the steps in it; call ``done_one`` after each.

    Returns:
        The files outside the folder that compilers read.

    Raises:
        CacheError: the folder cannot be written; the disk is full.
        CompilerStoppedError: a tool crashed, was killed or took too long.
        Exception: what ``failed`` makes of the first other step that fails.
    """
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for number, stage in enumerate(stages):
            commands = []
            for i, step in enumerate(stage):
                says = ("-MD", "-MF", f"{number}-{i}.d") if step.source is not None else ()
                commands.append((step.tool, *step.arguments, *says))
            done = []
            for result in pool.map(lambda command: toolchain.run(command, folder), commands):
                done.append(result)
                done_one()
            for step, result in zip(stage, done, strict=True):
                if result.returncode != 0:
                    error = _stopped(step, result.returncode, result.stderr.strip(), folder)
                    raise error or failed(step, result.stderr.strip())
                if step.source is not None:
                    pass_on(result.stderr, step.source, step.arguments, texts)
    names = set()
    for path in folder.glob("*-*.d"):
        names.update(dependencies(path.read_text(encoding="utf-8")))
    return {n for n in names if os.path.isabs(n) and not n.startswith(f"{folder}/")}


def _stopped(step: Step, status: int, message: str, folder: Path) -> UdfError | None:
    """Return an error if a tool failed for a reason that lies outside of what it reads."""
    stopped = status < 0 or any(words in message for words in _CRASHED)
    # A tool that writes through a mapping does not say why it was stopped.
    full = stopped and shutil.disk_usage(folder).free < 2**20
    if full or any(words in message for words in _UNWRITABLE):
        return CacheError(
            f"{step.tool.name} cannot write into {folder.parent.parent}: "
            f"{'the disk is full.' if full else message} Make room, or set UDFTORCH_CACHE_DIR to "
            "another folder."
        )
    if not stopped:
        return None
    of = f" while it compiled {step.source}" if step.source is not None else ""
    why = f"by {signal.strsignal(-status) or -status}" if status < 0 else "by a crash"
    return CompilerStoppedError(
        f"{step.tool} was stopped {why}{of}. The machine may be out of memory, or somebody ended "
        f"it. Run again; if it stops each time, the compiler has a defect.\n{message}".rstrip()
    )


def read_report(folder: Path) -> list[dict[str, Any]]:
    """Return what passes wrote into ``report.jsonl`` (``-udf-report``); empty if nothing."""
    path = folder / "report.jsonl"
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def dependencies(text: str) -> list[str]:
    """Return the files that a rule for make names, as compilers write one for ``-MD``."""
    names = re.findall(r"(?:\\.|[^\s\\])+", text.partition(":")[2].replace("\\\n", " "))
    return [re.sub(r"\\(.)", r"\1", name).replace("$$", "$") for name in names]
