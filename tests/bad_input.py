# SPDX-License-Identifier: Apache-2.0
"""Bad input made from good: odd values in every place of a document, and damaged bytes.

``KINDS`` has a valid document for each kind of file that this package reads, a function that
writes it with correct checksums, and one that reads the file and uses what it says.
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import journals
import numpy as np
from counts import META, Recorder, net

from pytest_udftorch.base.plain_data import canonical_json, sealed
from pytest_udftorch.diagnose.diff.alignment import aligned, parting
from pytest_udftorch.diagnose.runs import record_file
from pytest_udftorch.measure.planning.plans import FORMAT, StoredPlan
from pytest_udftorch.measure.planning.search_record import SearchRecord
from pytest_udftorch.prove.verify.certificate import Certificate, ChunkResult, Example, Run, Tally
from pytest_udftorch.prove.verify.certificate_file import (
    load_certificate,
    save_certificate,
)
from pytest_udftorch.prove.verify.journal import Journal
from pytest_udftorch.prove.verify.merge import comparison_table, merge_certificates
from pytest_udftorch.swap.library.description import load_library
from pytest_udftorch.swap.observe.digests import sample_places
from pytest_udftorch.swap.records import file as record
from pytest_udftorch.swap.records.profile import Profile, load_profiles
from pytest_udftorch.watch.profile import report


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


#: What replaces a value. NaN and the infinities are written as Python's json writes them.
ODD = (
    None, True, False, 0, 1, -1, 7, 2**31, 2**63, 2**64, -(2**70), 10**400, 0.5, -1.5, 1e-320,
    1e308, float("nan"), float("inf"), float("-inf"), "", "\0", "x", "\x1b[2J\n", "ä∞", "0x1",
    "a" * 5000, "../../../etc/passwd", "/usr", "/dev/zero", ".", "~nosuchuser/x", [], [[]], [1],
    ["x"], nested(50), {}, {"a": 1}, {"a": {"b": []}}, {"-1": "x"},
)  # fmt: skip

#: Text is put into JSON as it is: these are valid in no document.
RAW = (b"", b"\0", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000, b"9" * 5_000, b'"\\ud800"')


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in a document."""
    yield at
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*at, key))
    elif isinstance(value, list):
        for number in range(len(value)):
            yield from places(value[number], (*at, number))


GONE = object()


def changed(document: Any, at: tuple[Any, ...], value: Any) -> Any:
    """Return a copy of a document with another value in one place, or without the value."""
    if not at:
        return None if value is GONE else value
    found = copy.deepcopy(document)
    inner = found
    for step in at[:-1]:
        inner = inner[step]
    if value is GONE:
        del inner[at[-1]]
    else:
        inner[at[-1]] = copy.deepcopy(value)
    return found


def documents(document: Any) -> Iterator[tuple[tuple[Any, ...], Any, Any]]:
    """Yield place, value and document for each odd value in each place."""
    for at in places(document):
        for value in (*ODD, GONE):
            yield at, value, changed(document, at, value)
        inner = document
        for step in at:
            inner = inner[step]
        if isinstance(inner, dict):
            yield at, "more", changed(document, at, {**inner, "unknown": 1})
        elif isinstance(inner, list):
            yield at, "twice", changed(document, at, inner + inner)


@dataclass(frozen=True)
class Kind:
    """One kind of file.

    Attributes:
        document: a valid one.
        name: of the file in its folder.
        text: its bytes, with the checksums that they need.
        use: reads the file and uses what it says.
        prepare: puts other files into the folder.
    """

    document: Callable[[], Any]
    name: str
    text: Callable[[Any], bytes]
    use: Callable[[Path], None]
    prepare: Callable[[Path], None] = field(default=lambda folder: None)


# udf.toml ----------------------------------------------------------------------------


def toml(value: Any) -> str:
    """Return a value as TOML in one line; TOML has no null, which becomes a date."""
    if value is None:
        return "1979-05-27"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value).replace("NaN", "nan").replace("Infinity", "inf").replace("\x7f", "")


def library_text(document: Any) -> bytes:
    if not isinstance(document, dict):
        return toml(document).encode()
    return "".join(f"{json.dumps(k)} = {toml(v)}\n" for k, v in document.items()).encode()


def library_document() -> Any:
    return {
        "library": {
            "name": "mine",
            "version": "1",
            "description": "d",
            "claim": "c",
            "stock": False,
            "include_dirs": ["include"],
            "float_float": "pairs",
            "inherit": "base",
            "max_ulp": 1.5,
        },
        "functions": {
            "exp": {
                "float32": {
                    "source": "e.c",
                    "short": "s",
                    "short_source": "e.c",
                    "quick": "q",
                    "quick_levels": ["avx2"],
                    "quick_avx2": "w",
                    "quick_avx2_source": "e.c",
                    "quick_avx512": "v",
                    "quick_avx512_source": "e.c",
                    "fast": "f",
                    "accurate": "a",
                    "max_ulp": 0.5,
                    "claim": "c",
                    "hard_cases": "hard.txt",
                },
                "float64": {"source": "e.c", "scalar": "s"},
            }
        },
        "operators": {
            "aten::log.out": {
                "source": "o.cpp",
                "function": "space::f",
                "dispatch_keys": ["CPU"],
                "dtypes": ["float32"],
            },
            "aten::exp": [{"python": "p.py", "function": "f"}],
        },
    }


def library_files(folder: Path) -> None:
    for name in ("include", "pairs", "base"):
        (folder / name).mkdir(exist_ok=True)
    for name in ("e.c", "hard.txt", "o.cpp", "p.py", "base/b.c"):
        (folder / name).touch()
    (folder / "base" / "udf.toml").write_text(
        '[library]\nname = "base"\nversion = "1"\n'
        '[functions.log.float32]\nsource = "b.c"\nscalar = "b"\n'
    )


def use_library(path: Path) -> None:
    library = load_library(path.parent)
    repr((library.names, library.select(None), library.source_files()))
    f"{library.name} {library.version} {library.claim} {library.description}".encode()
    files = [p for f in library.functions.values() for p in (f.source, f.hard_cases) if p]
    files += [u.source or u.python for group in library.operators.values() for u in group]
    for named in files:
        assert named.is_file(), named
    for named in (*files, *library.include_dirs, *library.inherited, library.float_float or path):
        assert named.is_relative_to(path.parent), f"{named} lies outside the library"
    for function in library.functions.values():
        assert function.max_ulp is None or 0 < function.max_ulp < float("inf")
        assert type(function.max_ulp) is not bool


# Certificates and journals of verifications ------------------------------------------

IDENTITY = {
    "cpu_level": "avx2", "form": "array", "symbol": "f", "flush": False, "garbage": False,
    "sparse": False,
    "build_id": "01", "library_sha256": "11" * 32, "compiler": "clang", "reference": "MPFR",
}  # fmt: skip
SUBJECT = {
    "function": "exp", "dtype": "float32", "library": "corem", "version": "1",
    "claim": "correctly-rounded", "max_ulp": 0.5, "source_sha256": "22" * 32,
}  # fmt: skip
DOMAIN = {"inputs": "every encoding", "count": 512, "chunk_bits": 8, "seed": None}


def digest(number: int) -> str:
    return hashlib.sha256(bytes([number])).hexdigest()


def tally(**more: Any) -> Tally:
    found = {
        "inputs": 512,
        "wrong": 1,
        "hard": 3,
        "histogram": {0: 505, 31: 4, 40: 2, 64: 1},
        "examples": (Example((0x3F800000,), 1, 2),),
        "worst_ulp": 0.4375,
        "worst_index": 7,
        "worst_got": 9,
        "incomparable_index": 5,
    }
    return Tally(**{**found, **more})


@cache
def certificate_json() -> str:
    largest = {"ulp": 0.4375, "inputs": ["0x00000007"], "got": "0x00000009", "want": "0x00000009"}
    runs = [
        Run(
            identity={**IDENTITY, **more},
            chunks={i: (digest(i), digest(100 + i)) for i in range(2)},
            total_chunks=2,
            tally=tally(),
            largest=largest,
            date="2026-01-02T03:04:05+00:00",
            seconds=1.5,
            machine={"cpu": "x"},
        )
        for more in ({}, {"form": "v8"})
    ]
    return json.dumps(Certificate(SUBJECT, DOMAIN, tuple(runs)).document())


def certificate_text(document: Any) -> bytes:
    """Sign a certificate again, as someone would who edits it on purpose."""
    if isinstance(document, dict) and "sha256" in document:
        document = {k: v for k, v in document.items() if k != "sha256"}
        plain = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
        document["sha256"] = hashlib.sha256(plain).hexdigest()
    return json.dumps(document).encode()


def use_certificate(path: Path) -> None:
    found = load_certificate(path)
    repr((found.failures(), found.unfinished(), found.summaries(), found.name))
    comparison_table([found])
    merge_certificates([found, found])
    again = path.with_name("again.json")
    save_certificate(found, again)
    assert load_certificate(again) == found


JOURNAL_NAME = {"function": "exp", "build_id": "0123", "domain": {"chunk_bits": 8}}


def journal_document() -> Any:
    results = [
        ChunkResult(i, digest(i), digest(9 + i), tally(hard=None if i else 3)) for i in (0, 1)
    ]
    return [
        {"journal": "verification", "run": JOURNAL_NAME},
        *(
            {
                "chunk": r.index,
                "digest": r.digest,
                "normal_digest": r.normal_digest,
                "tally": r.tally.as_json(32),
            }
            for r in results
        ),
    ]


def journal_text(document: Any) -> bytes:
    return journals.text(document if isinstance(document, list) else [document])


def use_journal(path: Path) -> None:
    journal = Journal(path, JOURNAL_NAME, resume=True)
    total = Tally()
    for number in sorted(journal.finished):
        found = journal.finished[number]
        total += found.tally
        bytes.fromhex(found.digest + found.normal_digest)
    canonical_json(total.as_json(32))
    assert all(type(n) is int for n in journal.finished)


# Plans, and journals of searches -----------------------------------------------------


def plan_document() -> Any:
    return {
        "udftorch_plan": FORMAT,
        "segments": [[0, 1, "eager"], [1, 3, "compile"]],
        "bounds": [0, 2, 5, 9],
        "model": "abc",
        "inputs": ["float32 [1, 3]"],
        "device": "cpu",
        "torch": "2.15.0",
        "cuda_graph": False,
        "report": {"a": [1, 2]},
    }


def use_plan(path: Path) -> None:
    plan = StoredPlan.load(path)
    plan.check(model=plan.model, inputs=plan.inputs, device=plan.device, torch=plan.torch)
    ", ".join((plan.model, plan.device, plan.torch, *plan.inputs)).encode()
    stops = [stop for _, stop, _ in plan.segments]
    assert all(type(n) is int for n in (*plan.bounds, *stops))
    assert list(plan.bounds) == sorted(set(plan.bounds))
    assert stops == sorted(set(stops))
    again = path.with_name("again.json")
    plan.save(again)
    assert repr(StoredPlan.load(again)) == repr(plan)


SEARCH_KEY = {"inputs": ["x"], "device": "cpu", "torch": "2", "executors": ["eager"]}


def search_document() -> Any:
    return [
        {"journal": "search", "run": SEARCH_KEY},
        {"bounds": [0, 1, 3, 4], "unit_ns": {"eager": [1.0, 2.5, 2]}},
        {"unit_profiled_ns": {"eager": [3, 4, 5]}},
    ]


def use_search(path: Path) -> None:
    kept = SearchRecord(path, SEARCH_KEY).report
    bounds = kept.get("bounds", [0, 1])
    assert bounds[0] == 0
    assert bounds == sorted(set(bounds))
    for name in ("unit_ns", "unit_profiled_ns"):
        for row in kept.get(name, {}).values():
            assert len(row) == len(kept["bounds"]) - 1
            assert 0 < sum(row) < float("inf")


# Profiles ----------------------------------------------------------------------------


def profile_document() -> Any:
    """The JSON in a profile, and the bytes of the first cell, operator and event."""
    meta = {
        **META,
        "pid": 1,
        "host": "h",
        "clocks": {"monotonic_ns": 5, "realtime_ns": 10**18},
        "functions": ["exp"],
        "session": "s",
        "wall_ns": 5,
    }
    return {
        "meta": meta,
        "marks": [
            {"test": "t", "at": "start"},
            {"lost_events": 2},
            {"wall_ns": 4},
            {"note": "n"},
        ],
        "cell": {"function": 1, "operator": 0, "module": 0, "calls": 3, "elements": 9,
                 "in_min": -1.0, "in_max": 2.0, "out_min": 0.5, "out_max": 2.0, "made_nan_ns": 7,
                 "time_ns": 5.0, "hist_elements": 9, "in_nan": 0, "stage": 1, "dtype": 0},
        "event": {"start_ns": 5, "end_ns": 9, "thread": 1, "elements": 3, "flags": 0,
                  "process": 0, "in_min": 0.0, "function": 1},
    }  # fmt: skip


@cache
def profile_records() -> tuple[bytes, np.ndarray, np.ndarray, np.ndarray]:
    recorder = Recorder()
    net(recorder, steps=1)
    items = [(number, text.encode()) for text, number in recorder.strings.items()]
    strings = b"".join(struct.pack("<II", n, len(t)) + t for n, t in items)
    return strings, recorder.cells[:4], recorder.operators, recorder.events[:4]


def profile_text(document: Any) -> bytes:
    document = document if isinstance(document, dict) else {"meta": document}
    text = json.dumps(document.get("meta")).encode()
    bare = record._HEADER.pack(
        record.MAGIC, record._BYTE_ORDER, record.VERSION, 0, record._HEADER.size + len(text), 0
    )[:-4]
    strings, cells, operators, events = profile_records()
    cells, events = cells.copy(), events.copy()
    for rows, name in ((cells, "cell"), (events, "event")):
        odd = document.get(name)
        for key, value in odd.items() if isinstance(odd, dict) else ():
            if key in rows.dtype.names and isinstance(value, (int, float)):
                whole = rows.dtype[key].kind == "u"
                if value != value or abs(value) > 2**64:
                    value = 2**64 - 1 if whole else float("nan")
                rows[key][0] = int(value) % 256 ** rows.dtype[key].itemsize if whole else value
    marks = document.get("marks")
    scope = struct.pack("<II", 0, 0)
    parts = [
        record._frame(record.STRINGS, strings),
        record._frame(record.CELLS, scope + cells.tobytes()),
        record._frame(record.OPERATORS, scope + operators.tobytes()),
        record._frame(record.EVENTS, events.tobytes()),
        *(
            record._frame(record.MARK, json.dumps(mark).encode())
            for mark in (marks if isinstance(marks, list) else [marks])
        ),
        record._frame(record.END, b""),
    ]
    crc = struct.pack("<I", zlib.crc32(text, zlib.crc32(bare)))
    return bare + crc + text + b"".join(parts)


def use_profile(path: Path) -> None:
    found = Profile.load(path)
    repr((found.title(), found.wall_ns, found.start_ns, found.layers(), found.table(by="layer")))
    json.dumps(found.summary())
    [both] = load_profiles([path, path])
    report.terminal([both])
    report.profiles_html([both]).encode()
    for number, write in enumerate((found.save_json, found.save_csv, found.save_trace, found.save)):
        out = path.with_name(f"out{number}")
        out.unlink(missing_ok=True)
        write(out)


# Recorded runs -----------------------------------------------------------------------


def run_document() -> Any:
    tensor = [[2, 3], "float32", [3, 1], "cpu", "00ff" * 8, "AAAAPwAAgL8AAABAAAAAAAAAf/8AAABA"]
    number = [[], "bfloat16", [], "cpu", "", ""]
    return {
        "format": record_file.FORMAT,
        "digests": "sha1",
        "side": "eager",
        "subject": "model.py:make",
        "machine": {"torch": "2.15.0"},
        "seed": 0,
        "steps": 1,
        "train": None,
        "operators": ["aten::mul.Tensor"],
        "layers": ["body.0", ""],
        "tensors": [tensor, number],
        "calls": [[0, 1, 0, 0, [0, 1], [1], "2.5", None], [0, 0, 2, 7, [], [0], "", "0a"]],
        "result": {"output": 0},
    }


def run_text(document: Any) -> bytes:
    return json.dumps(sealed(document) if isinstance(document, dict) else document).encode()


def use_run(path: Path) -> None:
    found = record_file.load(path.parent)
    run = found.recording
    pairs = aligned(run.calls, run.calls)
    assert parting(run, run, pairs) is None
    assert pairs == [(i, i) for i in range(len(run.calls))]
    for call in run.calls:
        f"{call.operator} {call.place}".encode()
        for note in (*call.inputs, *call.outputs):
            assert np.unravel_index(sample_places(note.shape), note.shape or 1)
            assert all(type(n) is float for n in note.samples)
            assert type(note.digest) is bytes
    f"{found.side} {found.subject} {found.machine}".encode()
    assert found.seed >= 0
    assert found.steps > 0


KINDS = {
    "run": Kind(run_document, "record.json", run_text, use_run),
    "library": Kind(library_document, "udf.toml", library_text, use_library, library_files),
    "certificate": Kind(
        lambda: json.loads(certificate_json()), "c.json", certificate_text, use_certificate
    ),
    "journal": Kind(journal_document, "j.journal", journal_text, use_journal),
    "plan": Kind(plan_document, "p.json", lambda d: json.dumps(d).encode(), use_plan),
    "search": Kind(search_document, "s.journal", journal_text, use_search),
    "profile": Kind(profile_document, "profiled-1.bin", profile_text, use_profile),
}


def used(kind: Kind, folder: Path, data: bytes) -> None:
    """Write a file, read it, and use what it says."""
    kind.prepare(folder)
    path = folder / kind.name
    path.write_bytes(data)
    with redirect_stdout(io.StringIO()):
        kind.use(path)
