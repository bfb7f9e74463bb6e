# SPDX-License-Identifier: Apache-2.0
"""What is fuzzed: a function from bytes for each reader of outside data.

A target reads its bytes in a folder of its own and returns, or raises an error of this package.
Anything else is a finding: another exception, a wrong answer, or a file, a process or code that
reading does not need (:mod:`watched`). The readers, seeds and answers are those of
:mod:`bad_input`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import random
import shutil
import struct
import sys
import tomllib
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import audit
import bad_input
from bad_input import KINDS, ODD, changed, places

from pytest_udftorch.errors import UdfError
from pytest_udftorch.prove.exact.strategies import read_hard_cases
from pytest_udftorch.swap.library import description
from pytest_udftorch.swap.patch import folder as patches
from pytest_udftorch.swap.records import file as record
from pytest_udftorch.swap.toolchain import cache, cuda_form
from pytest_udftorch.swap.toolchain.compiler import Compiler
from pytest_udftorch.swap.toolchain.job import Job, Made, _stored


@dataclass(frozen=True)
class Target:
    """One reader.

    Attributes:
        seeds: valid inputs, and some that are nearly so.
        run: reads an input in a folder that is its own.
        parse: returns the document in an input, for changes to its values; raises ValueError.
        text: the input of a document.
        imports: modules whose import the run would otherwise be blamed for.
    """

    seeds: Callable[[], list[bytes]]
    run: Callable[[bytes, Path], None]
    parse: Callable[[bytes], Any] = json.loads
    text: Callable[[Any], bytes] = lambda document: json.dumps(document).encode()
    imports: tuple[str, ...] = ()


def outcome(target: Target, data: bytes, folder: Path) -> str:
    """Run a target; return ``answered`` or the name of the error of ours.

    Raises:
        BaseException: whatever else comes out of it, and ``audit.Forbidden``.
    """
    description._read.cache_clear()
    cache._checked.clear()
    # Relative names, which functions that take a descriptor open too, are below the folder.
    with contextlib.chdir(folder), audit.only(folder):
        try:
            with contextlib.redirect_stdout(None):
                target.run(data, folder)
        except UdfError as error:
            message, name = str(error), type(error).__name__
        else:
            message, name = "answered", "answered"
    assert message.strip(), name
    message.encode()
    return name


def mutated(target: Target, data: bytes, choose: random.Random) -> bytes | None:
    """Return an input with odd values in some places of its document; None if it has none."""
    try:
        document = target.parse(data)
        for _ in range(choose.randint(1, 3)):
            paths = list(places(document))
            value = choose.choice((*ODD, bad_input.GONE))
            if choose.random() < 0.4:  # something from elsewhere in the document
                value = document
                for step in choose.choice(paths):
                    value = value[step]
            document = changed(document, choose.choice(paths), value)
        return target.text(document)
    except Exception:  # what is no document is changed as bytes
        return None


# Files with a description in bad_input -------------------------------------------------


def _signed_certificate(data: bytes) -> bytes:
    try:
        return bad_input.certificate_text(json.loads(data))
    except (ValueError, RecursionError):
        return data


def _sealed_run(data: bytes) -> bytes:
    try:
        document = json.loads(data)
        return bad_input.run_text({n: v for n, v in document.items() if n != "sha256"})
    except (ValueError, AttributeError, RecursionError):
        return data


def _signed_journal(data: bytes) -> bytes:
    lines = data.split(b"\n")
    return b"\n".join(
        hashlib.sha256(line).hexdigest()[:16].encode() + b" " + line if line else b""
        for line in lines
    )


def _sealed_profile(data: bytes) -> bytes:
    """Return a profile with the checksums that its bytes need."""
    header = record._HEADER
    if len(data) < header.size:
        return data
    *start, size, _ = header.unpack_from(data)
    size = min(max(size, header.size), len(data))
    bare = header.pack(*start, size, 0)[:-4]
    text = data[header.size : size]
    parts = [bare, struct.pack("<I", zlib.crc32(text, zlib.crc32(bare))), text]
    while len(data) - size >= record._FRAME.size:
        kind, flags, length, _, _ = record._FRAME.unpack_from(data, size)
        payload = data[size + record._FRAME.size :][:length]
        parts.append(record._frame(kind, payload, flags))
        size += record._FRAME.size + len(payload)
    return b"".join([*parts, data[size:]])


def _profile_parts(data: bytes) -> Any:
    """Return what :func:`_profile_bytes` takes: header, and type and payload of each record."""
    header = record._HEADER
    if len(data) < header.size:
        raise ValueError("short")
    size = header.unpack_from(data)[4]
    meta = json.loads(data[header.size : size])
    frames = []
    for _, kind, payload in record._frames(data, size):
        if payload is None:
            break
        body = json.loads(payload) if kind == record.MARK else payload.hex()
        frames.append([kind, body])
    return {"meta": meta, "frames": frames}


def _profile_bytes(document: Any) -> bytes:
    if not isinstance(document, dict):
        raise ValueError("no profile")
    frames = []
    for kind, body in document["frames"]:
        payload = bytes.fromhex(body) if isinstance(body, str) else json.dumps(body).encode()
        frames.append(record._frame(kind, payload))
    text = json.dumps(document["meta"]).encode()
    size = record._HEADER.size + len(text)
    bare = record._HEADER.pack(record.MAGIC, record._BYTE_ORDER, record.VERSION, 0, size, 0)
    return _sealed_profile(bare + text + b"".join(frames))


def _profile_seeds() -> list[bytes]:
    whole = KINDS["profile"].text(KINDS["profile"].document())
    parts = _profile_parts(whole)
    small = [f for f in parts["frames"] if f[0] in (record.STRINGS, record.MARK, record.END)]
    cells = [f for f in parts["frames"] if f[0] == record.CELLS]
    scope = cells[0][1][:16]
    one = [record.CELLS, scope + cells[0][1][16 : 16 + 2 * record.CELL.itemsize]]
    few = [*small[:1], one, *small[1:]]
    packed = _profile_bytes({**parts, "frames": few})
    return [whole, packed, _profile_bytes({**parts, "frames": small})]


def _read_kind(name: str, signed: Callable[[bytes], bytes]) -> Callable[[bytes, Path], None]:
    def run(data: bytes, folder: Path) -> None:
        kind = KINDS[name]
        kind.prepare(folder)
        path = folder / kind.name
        if signed(data) != data:
            path.write_bytes(data)
            with contextlib.suppress(UdfError):
                kind.use(path)
        path.write_bytes(signed(data))
        kind.use(path)

    return run


def _kind(name: str, signed: Callable[[bytes], bytes], **more: Any) -> Target:
    def seeds() -> list[bytes]:
        return [KINDS[name].text(KINDS[name].document())]

    return Target(**{"seeds": seeds, "run": _read_kind(name, signed), **more})


def _lines_of(document: Callable[[], Any]) -> Callable[[], list[bytes]]:
    return lambda: [b"".join(json.dumps(line).encode() + b"\n" for line in document())]


def _lines(data: bytes) -> Any:
    return [json.loads(line) for line in data.splitlines() if line]


def _as_lines(document: Any) -> bytes:
    rows = document if isinstance(document, list) else [document]
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


# Hard cases of a library -----------------------------------------------------------------


def _read_hard_cases(data: bytes, folder: Path) -> None:
    path = folder / "hard.txt"
    path.write_bytes(data[1:])
    arity = 1 + data[0] % 2 if data else 1
    found = read_hard_cases(path, arity)
    assert found.shape == ((len(found),) if arity == 1 else (len(found), 2))


# The build cache -------------------------------------------------------------------------

_KEY = "ab" * 32
_JOB = Job(
    "",
    Compiler(Path("/usr/bin/clang"), "clang version 19.1.7"),
    (),
    "lib.so",
    lambda s, t: OSError(t),
)


def _cache_document(folder: Path) -> Any:
    digest = hashlib.sha256(b"code").hexdigest()
    read = hashlib.sha256(b"int x;").hexdigest()
    return {
        "index": {
            "key": _KEY,
            "build": "abcd",
            "folder": "abcd",
            "files": {"lib.so": digest},
            "reads": {"FOLDER/x.h": [[6, 1, 2, 3], read], "FOLDER/gone.h": [[0, 0, 0, 0], ""]},
        },
        "facts": {"build": "abcd", "files": {"lib.so": digest}, "key": _KEY, "file": "lib.so",
                  "seconds": 0.5, "compiler": "clang"},
        "measured": {"GPU": {"double": 1.0, "float-float": 2.5}},
    }  # fmt: skip


def _cache_seeds() -> list[bytes]:
    document = _cache_document(Path())
    good = {**document, "index": {**document["index"], "reads": {}}}
    return [json.dumps(d).encode() for d in (document, good)]


def _read_cache(data: bytes, folder: Path) -> None:
    """Look for a build whose two records, and the measurement beside it, say what is given."""
    said = _arguments(data.replace(b"FOLDER", os.fsencode(folder)))
    root = folder / "cache"
    shutil.rmtree(root, ignore_errors=True)
    build = root / "abcd"
    build.mkdir(mode=0o700, parents=True)
    root.chmod(0o700)
    (build / "lib.so").write_bytes(b"code")
    (folder / "x.h").write_bytes(b"int x;")
    if not (folder / "pipe.h").exists():
        os.mkfifo(folder / "pipe.h")
    index = root / "abababababababab.reads"
    for path, facts in ((index, said.get("index")), (build / "build.json", said.get("facts"))):
        text = data if not isinstance(facts, dict) else cache.seal(facts).encode()
        path.write_bytes(text)
    (root / "cuda-form.json").write_text(json.dumps(said.get("measured")), encoding="utf-8")
    before = os.environ.get("UDFTORCH_CACHE_DIR")
    os.environ["UDFTORCH_CACHE_DIR"] = str(root)
    try:
        made = _stored(_JOB, _KEY, index)
        gpu = cuda_form.Gpu("GPU", (8, 6))
        assert cuda_form.choose((gpu,), cuda_form.measurements()) in cuda_form.CUDA_FORMS[:2]
        cache.tidy(root)
    finally:
        for descriptor in cache._used.values():
            os.close(descriptor)
        cache._used.clear()
        if before is None:
            del os.environ["UDFTORCH_CACHE_DIR"]
        else:
            os.environ["UDFTORCH_CACHE_DIR"] = before
    assert root.is_dir()
    assert (folder / "x.h").read_bytes() == b"int x;"
    if made is not None:
        _check_made(made, build)


def _check_made(made: Made, build: Path) -> None:
    assert made.path == build / "lib.so", made.path
    assert made.path.read_bytes() == b"code"
    assert made.facts["files"] == {"lib.so": hashlib.sha256(b"code").hexdigest()}


# Patches ---------------------------------------------------------------------------------


def _patch_files(folder: Path) -> Path:
    """Make the folder of a small patch, and an installed torch for it; return the patch."""
    for name in ("patch", "torch", "victim"):
        shutil.rmtree(folder / name, ignore_errors=True)
    lib = folder / "patch" / "torch" / "lib"
    lib.mkdir(parents=True)
    original = folder / "torch" / "lib"
    original.mkdir(parents=True)
    (folder / "torch" / "version.py").write_text("__version__ = '2.15.0'\n")
    (folder / "torch" / "nn").mkdir()
    for path in (original / "libtorch_cpu.so", lib / "libtorch_cpu.so", lib / "corem.so"):
        path.write_bytes(b"code")
    (folder / "patch" / "torch" / "nn").symlink_to(folder / "torch" / "nn")
    (folder / "patch" / "torch" / "mine.txt").write_text("the user's")
    (folder / "victim").mkdir()
    (folder / "victim" / "file").write_bytes(b"code")
    return folder / "patch"


def _patch_document() -> Any:
    facts = {"size": 4, "sha256": hashlib.sha256(b"code").hexdigest()}
    return {
        "format": patches.FORMAT,
        "made_by": "pytest_udftorch 0.1.0",
        "library": {
            "name": "corem",
            "version": "1",
            "claim": "correctly rounded",
            "functions": {"exp": ["float32", "float64"]},
            "builds": {"baseline": {"id": "abcd", "file": "corem.so"}},
        },
        "torch": {"version": "2.15.0", "folder": "FOLDER/torch"},
        "made_from": {"FOLDER/torch/lib/libtorch_cpu.so": facts},
        "files": {"torch/lib/libtorch_cpu.so": facts, "torch/lib/corem.so": facts},
        "links": {"torch/nn": "FOLDER/torch/nn"},
        "stays_stock": ["CUDA kernels"],
    }


def _read_patch(data: bytes, folder: Path) -> None:
    """Read, describe, compare and undo a patch; run nothing of it."""
    patch = _patch_files(folder)
    (patch / "manifest.json").write_bytes(data.replace(b"FOLDER", os.fsencode(folder)))
    found = patches.load(patch)
    patches.description(found).encode()
    [line.encode() for line in patches._changed(found)]
    # The one place outside its folder where a patch leads, on purpose: what it was made from.
    named = [found.manifest["torch"]["folder"], *found.manifest["made_from"]]
    if all(os.path.realpath(name).startswith(f"{folder}/") for name in named):
        [line.encode() for line in patches._originals_changed(found.manifest)]
    library = patches._build_for_this_cpu(found.folder, found.manifest)
    assert library.parent == patch / "torch" / "lib", library
    kept = patches.undo(patch)
    assert patch / "torch" / "mine.txt" in kept
    assert (folder / "victim" / "file").read_bytes() == b"code"
    assert (folder / "torch" / "lib" / "libtorch_cpu.so").is_file()


# Entry points ----------------------------------------------------------------------------


def _offering(folder: Path) -> None:
    """Put a package that offers libraries into the folder."""
    package = folder / "offered"
    if package.is_dir():
        return
    (package / "lib").mkdir(parents=True)
    (package / "__init__.py").write_text(
        "from pathlib import Path\n"
        "path = str(Path(__file__).parent / 'lib')\n"
        "number = 5\nnothing = None\n"
        "def made():\n    return path\n"
        "def fails():\n    raise OSError('x')\n"
        "def leaves():\n    raise SystemExit(3)\n"
    )
    (package / "lib" / "udf.toml").write_text(
        '[library]\nname = "lib"\nversion = "1"\nstock = true\n'
    )
    (folder / "offered-1.dist-info").mkdir()
    (folder / "offered-1.dist-info" / "METADATA").write_text("Name: offered\nVersion: 1\n")


def _entry_seeds() -> list[bytes]:
    values = ("offered.lib", "offered:path", "offered:made", "offered:fails", "offered:number",
              "offered:nothing", "offered", "offered:absent", "absent.package", "offered.lib:x [y]",
              "offered:leaves")  # fmt: skip
    lines = "".join(f"n{i} = {v}\n" for i, v in enumerate(values))
    head = "[pytest_udftorch.libraries]\n"
    return [(head + lines).encode(), (head + "n = offered.lib\n").encode()]


def _read_entry_points(data: bytes, folder: Path) -> None:
    """List the libraries that a package offers, which runs no code of it; then find each."""
    _offering(folder)
    (folder / "offered-1.dist-info" / "entry_points.txt").write_bytes(data)
    path = list(sys.path)
    sys.path.insert(0, str(folder))
    try:
        sys.modules.pop("offered", None)
        sys.path_importer_cache.clear()
        named = description.available_libraries()
        assert "offered" not in sys.modules
    finally:
        sys.path[:] = path
    for name, where in named.items():
        name.encode()
        if where is not None and where.is_relative_to(folder):
            description.load_library(where)


# Options and the environment ---------------------------------------------------------------


def _option_seeds() -> list[bytes]:
    documents = [
        {"libraries": ["corem"], "functions": ["exp,log"], "cpu_level": "avx2"},
        {"libraries": ["std", "./mine"], "cuda_form": "float-float", "profile": "timed"},
        {"libraries": ["/nowhere"], "functions": ["aten::exp"]},
        {"UDFTORCH_CPU_LEVEL": "baseline", "UDFTORCH_CUDA_FORM": "double"},
        {"UDFTORCH_BUILD_TIMEOUT": "5.5", "UDFTORCH_CACHE_MIB": "1e3"},
        {"UDFTORCH_RANKS_TIMEOUT": "60", "UDFTORCH_CACHE_DIR": "~/cache"},
        {"UDFTORCH_RUN": '{"library": "corem", "functions": ["exp"]}'},
        {"XDG_CACHE_HOME": "cache", "HOME": ""},
    ]
    return [json.dumps(document).encode() for document in documents]


_VARIABLES = ("UDFTORCH_CPU_LEVEL", "UDFTORCH_CUDA_FORM", "UDFTORCH_BUILD_TIMEOUT",
              "UDFTORCH_CACHE_MIB", "UDFTORCH_CACHE_DIR", "UDFTORCH_RANKS_TIMEOUT",
              "UDFTORCH_RUN", "XDG_CACHE_HOME", "HOME")  # fmt: skip


@contextlib.contextmanager
def _environment(values: Any) -> Iterator[None]:
    before = {name: os.environ.pop(name, None) for name in _VARIABLES}
    try:
        for name in _VARIABLES:
            if isinstance(values.get(name), str) and "\0" not in values[name]:
                with contextlib.suppress(UnicodeEncodeError):
                    os.environ[name] = values[name]
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _arguments(data: bytes) -> dict[str, Any]:
    """Return the arguments that an input stands for; none if it is no JSON object."""
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _strings(value: Any) -> list[str]:
    """Return the strings in a list, as a shell could give them."""
    found = value if isinstance(value, list) else [value]
    return [v for v in found if isinstance(v, str) and "\0" not in v]


def _reads(*readers: Callable[[], object]) -> None:
    """Call each reader; raise the last error of ours after all have been called."""
    last = None
    for reader in readers:
        try:
            reader()
        except UdfError as error:
            str(error).encode()
            last = error
    if last is not None:
        raise last


def _read_options(data: bytes, folder: Path) -> None:
    from pytest_udftorch.plugin.options import Options
    from pytest_udftorch.plugin.targets import Targets
    from pytest_udftorch.swap.session import ranks, startup
    from pytest_udftorch.swap.session.option_values import as_path_or_name, names_in
    from pytest_udftorch.swap.toolchain.compiler import resolve_cpu_level

    said = _arguments(data)

    def chosen() -> None:
        given = _strings(said.get("libraries"))
        names = _strings(said["functions"]) if "functions" in said else None
        level, form, depth = (
            (_strings(said.get(k)) or [None])[0] for k in ("cpu_level", "cuda_form", "profile")
        )
        options = Options(
            libraries=tuple(as_path_or_name(text, folder) for text in given),
            functions=None if names is None else names_in(names),
            cpu_level=level,
            cuda_form=form,
            profile=depth,
        )
        targets = Targets(options)
        targets.choose()
        for key, target in targets.chosen.items():
            key.encode()
            target.open(options, depth)

    def started() -> None:
        if "UDFTORCH_RUN" in os.environ:
            startup.asked()

    with _environment(said):
        _reads(
            chosen,
            started,
            lambda: resolve_cpu_level(None),
            lambda: cuda_form.asked_form(None),
            cache.cache_folder,
            cache.patience,
            lambda: cache.setting("UDFTORCH_CACHE_MIB", 4096),
            ranks.timeout,
        )


# Arguments of model_pair -------------------------------------------------------------------


@functools.cache
def _values() -> dict[str, Any]:
    """Return what the arguments are made of, by name."""
    import torch
    from torch import nn

    x = torch.linspace(-1, 1, 6).reshape(2, 3)
    model = nn.Sequential(nn.Linear(3, 2), nn.Tanh()).eval()
    return {
        "x": x, "model": model, "training": nn.Linear(3, 2), "half": x.half(), "int": x.int(),
        "nan": x / 0, "empty": x[:0], "wide": torch.zeros(2, 4), "complex": x + 1j,
        "sparse": x.to_sparse(), "meta": x.to("meta"), "scalar": torch.tensor(1.0),
        "cpu": torch.device("cpu"), "no_parameters": nn.Tanh().eval(), "class": nn.Linear,
        "function": torch.exp, "module_list": nn.ModuleList([nn.Linear(3, 3)]).eval(),
        "dropout": nn.Dropout().train(), "object": object(), "float": float,
    }  # fmt: skip


def _pair_value(value: Any) -> Any:
    """Return a value of JSON with names of :func:`_values`, after ``$``, replaced."""
    if isinstance(value, str) and value.startswith("$"):
        return _values().get(value[1:], value)
    if isinstance(value, list):
        return [_pair_value(inner) for inner in value]
    if isinstance(value, dict):
        inner = {key: _pair_value(v) for key, v in value.items()}
        if set(inner) == {"tuple"} and isinstance(inner["tuple"], list):
            return tuple(inner["tuple"])
        return inner
    return value


def _pair_seeds() -> list[bytes]:
    good = {"model": "$model", "inputs": {"tuple": ["$x"]}, "executors": ["eager"]}
    documents: list[Any] = [
        good,
        {**good, "tolerance": 2.0, "device": "cpu"},
        {**good, "device": "$cpu", "inputs": "$x"},
        {**good, "executors": "eager"},
        {**good, "executors": ["eager+channels_last"], "tolerance": 1},
        {**good, "model": "$training"},
        {**good, "inputs": ["$x", "$wide"]},
        {**good, "model": "$function", "inputs": "$scalar"},
        *({**good, "inputs": [f"${name}"]} for name in ("half", "int", "empty", "sparse", "meta")),
        *({**good, "model": f"${name}"} for name in ("class", "module_list", "no_parameters")),
        {**good, "measure": {"runs": 1, "rounds": 2}},
    ]
    return [json.dumps(document).encode() for document in documents]


#: Executors that compile take seconds, and what they cost is not what is asked here.
_QUICK = ("eager", "channels_last", "fused")


def _quick(executors: Any) -> bool:
    given = executors if isinstance(executors, list | tuple) else [executors]
    from pytest_udftorch.measure.planning.executors import registered

    slow = set(registered()) - {"eager"}
    return not any(isinstance(e, str) and e.split("+")[0] in slow for e in given)


def _call_pair(data: bytes, folder: Path) -> None:
    from pytest_udftorch.measure.planning.pairs import model_pair

    said = _arguments(data)
    given = {k: _pair_value(v) for k, v in said.items()}
    options = {k: given[k] for k in ("executors", "device", "tolerance", "progress") if k in given}
    options.setdefault("executors", ["eager"])
    if not _quick(options["executors"]):
        return
    pair = model_pair(given.get("model"), given.get("inputs"), **options)
    assert "eager" in pair.working
    pair.check()
    pair["eager"](*pair.inputs)
    json.dumps(pair.document())


TARGETS: dict[str, Target] = {
    "run": _kind("run", _sealed_run),
    "library": _kind(
        "library",
        lambda data: data,
        parse=lambda data: tomllib.loads(data.decode()),
        text=bad_input.library_text,
    ),
    "profile": _kind(
        "profile",
        _sealed_profile,
        seeds=_profile_seeds,
        parse=_profile_parts,
        text=_profile_bytes,
    ),
    "certificate": _kind("certificate", _signed_certificate),
    "journal": _kind(
        "journal", _signed_journal, seeds=_lines_of(bad_input.journal_document), parse=_lines,
        text=_as_lines,
    ),
    "plan": _kind("plan", lambda data: data),
    "search": _kind(
        "search", _signed_journal, seeds=_lines_of(bad_input.search_document), parse=_lines,
        text=_as_lines,
    ),
    "hard_cases": Target(lambda: [b"\0# c\n3f800001\n0x7F800000\n", b"\x013f800001 1\n"],
                         _read_hard_cases),
    "build_cache": Target(_cache_seeds, _read_cache),
    "patch": Target(lambda: [json.dumps(_patch_document()).encode()], _read_patch),
    "entry_points": Target(_entry_seeds, _read_entry_points),
    "options": Target(_option_seeds, _read_options),
    "model_pair": Target(_pair_seeds, _call_pair, imports=("torch",)),
}  # fmt: skip


def dictionary(target: Target) -> set[bytes]:
    """Return the words of a target's seeds, for a fuzzer to put together."""
    words: set[bytes] = set()
    for seed in target.seeds():
        with contextlib.suppress(ValueError, RecursionError):
            document = target.parse(seed)
            for at in places(document):
                words |= {str(step).encode() for step in at if isinstance(step, str)}
    return {word for word in words if 1 < len(word) < 60}
