# SPDX-License-Identifier: Apache-2.0
"""What is compiled once: named before, counted, and beside what pytest captures."""

import contextlib
import gc
import io
import json
import os
import re
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from benches.stored import RESULTS, load
from pytest_udftorch import patched
from pytest_udftorch.errors import CompilerNotFoundError
from pytest_udftorch.swap.toolchain import agenda as agenda_module
from pytest_udftorch.swap.toolchain import progress
from pytest_udftorch.swap.toolchain.agenda import SECONDS, Agenda, Candidate, obtain_all
from pytest_udftorch.swap.toolchain.cache import cache_folder
from pytest_udftorch.swap.toolchain.progress import VARIABLE, Progress

#: Where builds lie before a test has another home.
CACHE = cache_folder()


class Owner:
    """Expects builds for as long as it lives."""


def candidate(name, where="compiler", kind="switchboard-"):
    def available():
        if isinstance(where, Exception):
            raise where
        return where

    return Candidate(name, kind, available, lambda: None)


def turns(agenda, *names):
    found = []
    for name in names:
        with agenda.turn(name, "switchboard-") as turn:
            found.append(turn)
    return found


def test_what_is_missing_is_counted_and_named_once():
    agenda, owner = Agenda(), Owner()
    agenda.expect(owner, lambda: [candidate("a"), candidate("b"), candidate("c")])
    first, second, third = turns(agenda, "a", "c", "b")
    assert [t.text for t in (first, second, third)] == [
        "compiling 1 of 3: a", "compiling 2 of 3: c", "compiling 3 of 3: b",
    ]  # fmt: skip
    seconds = f"in about {3 * SECONDS['switchboard-']:.0f} s"
    assert first.heading.startswith(f"3 parts are compiled once on this machine, {seconds}: a, b,")
    assert second.heading == third.heading == ""


def test_what_is_there_or_cannot_be_had_is_not_counted():
    agenda, owner = Agenda(), Owner()
    agenda.expect(
        owner,
        lambda: [
            candidate("a"), candidate("b", "cached"), candidate("c", "shipped"),
            candidate("d", CompilerNotFoundError("no clang")),
        ],
    )  # fmt: skip
    (only,) = turns(agenda, "a")
    assert (only.text, only.heading) == ("compiling a", "")


def test_nobody_looks_before_something_is_missing_and_nobody_is_kept_alive():
    agenda, owner, looks = Agenda(), Owner(), []
    agenda.expect(owner, lambda: looks.append(1) or [candidate("b")])
    assert not looks
    assert turns(agenda, "a")[0].text == "compiling 1 of 2: a"
    assert len(looks) == 1
    del owner
    gc.collect()
    turns(agenda, "b")
    assert turns(agenda, "a")[0].text == "compiling a"
    assert len(looks) == 1


def test_a_build_that_fails_does_not_upset_the_next_count():
    agenda, owner = Agenda(), Owner()
    agenda.expect(owner, lambda: [candidate("b")])
    with pytest.raises(RuntimeError, match="stopped"), agenda.turn("a", "cpu-"):
        raise RuntimeError("stopped")
    assert [t.text for t in turns(agenda, "a", "b")] == [
        "compiling 1 of 2: a", "compiling 2 of 2: b",
    ]  # fmt: skip


def test_times_follow_those_that_were_taken_here(monkeypatch):
    clock = iter([0.0, 3 * SECONDS["switchboard-"], 0.0, 0.0])
    monkeypatch.setattr(agenda_module.time, "monotonic", lambda: next(clock))
    agenda = Agenda()
    first, second = turns(agenda, "a", "b")
    assert first.seconds == SECONDS["switchboard-"]
    assert second.seconds == 3 * SECONDS["switchboard-"]


def test_lines_pass_by_what_captures():
    agenda, entered = Agenda(), []

    @contextlib.contextmanager
    def aside():
        entered.append("in")
        yield
        entered.append("out")

    agenda.aside = aside
    turns(agenda, "a")
    assert entered == ["in", "out"]


def test_all_that_is_missing_is_obtained_in_order():
    made = []
    wanted = [
        Candidate("a", "", lambda: "compiler", lambda: made.append("a")),
        Candidate("b", "", lambda: "cached", lambda: made.append("b")),
        Candidate("c", "", lambda: "compiler", lambda: made.append("c")),
    ]
    obtain_all(wanted)
    assert made == ["a", "c"]


# What sessions need ------------------------------------------------------------------

#: For each session a fork of one process that has imported torch, as nothing is known in it.
TRACED = """
import json, os, sys
from pytest_udftorch.swap.contract import native
from pytest_udftorch.swap.cpu import loops
from pytest_udftorch.swap.toolchain import compiler, shared_library, torch_part

seen = []
for module in (native, loops, shared_library, torch_part):
    def noted(make, find, *more, was=module.obtain):
        seen.append(make(compiler.ABSENT).what)
        return was(make, find, *more)
    module.obtain = noted

import torch
from benches.stored import RESULTS, load
from pytest_udftorch import patched

def traced(name, functions, options):
    session = patched(name, functions, **options)
    said = [one.what for one in session._builds()()]
    with session:
        x = torch.randn(8, 8, requires_grad=True)
        torch.softmax(torch.nn.functional.gelu(x), -1).sum().backward()
    print("FOUND", json.dumps([said, seen]), flush=True)

for session in json.loads(sys.argv[1]):
    child = os.fork()
    if not child:
        traced(*session)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""

SESSIONS = [
    ("corem", None, {}), ("corem", ["exp"], {}), ("corem", None, {"profile": "counters"}),
    ("corem", None, {"exclusive": True}), ("std", None, {}), ("repro", None, {}),
]  # fmt: skip


def test_a_session_names_what_it_then_asks_for():
    done = subprocess.run(
        [sys.executable, "-c", TRACED, json.dumps(SESSIONS)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    found = [line[6:] for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    for session, text in zip(SESSIONS, found, strict=True):
        said, seen = json.loads(text)
        assert set(said) == set(seen), session
        assert bool(said) == (session[0] != "std"), "the control"


def test_strict_runs_name_what_notes_layers():
    usual = {one.kind for one in patched("corem")._builds()()}
    assert {one.kind for one in patched("corem")._builds(watching=True)()} - usual == {"observer-"}


def test_the_times_are_those_that_were_stored():
    stored = load(RESULTS / "one_time_builds.json")
    found = {part["kind"]: part["seconds"] for part in stored["parts"] if part["kind"]}
    assert found.keys() == SECONDS.keys()
    for kind, seconds in found.items():
        assert SECONDS[kind] == max(1, round(seconds)), kind


# On a terminal -----------------------------------------------------------------------


class Stream(io.StringIO):
    def wait(self, enough):
        """Wait until enough was written, however busy the machine is."""
        for _ in range(6000):
            if enough(self.getvalue()):
                return
            time.sleep(0.01)
        raise AssertionError(self.getvalue()[-500:])


class Terminal(Stream):
    def isatty(self):
        return True


@pytest.fixture
def shown(monkeypatch):
    """Lets lines be written, in a process whose clock stands."""

    def begin(stream):
        monkeypatch.setattr(sys, "stderr", stream)
        return stream

    monkeypatch.setenv(VARIABLE, "1")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(progress, "REDRAWN", 0.01)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: 0.0))
    return begin


def test_a_terminal_gets_one_line_that_is_drawn_again(shown):
    stream = shown(Terminal())
    with Progress("compiling a", 1, seconds=100.0, heading="2 parts") as running:
        stream.wait(lambda text: text.count("\r") > 3)
        running.step()
    text = stream.getvalue()
    begin = "udftorch: 2 parts\n\rudftorch: compiling a [....................] about 100 s"
    assert text.startswith(begin)
    assert text.count("\n") == 2
    assert text.endswith("\n")
    assert text.rpartition("\r")[2].rstrip() == "udftorch: compiling a: done, 0 s"


def test_a_file_gets_lines(shown):
    stream = shown(Stream())
    with Progress("compiling a", 1, seconds=100.0, heading="2 parts") as running:
        stream.wait(lambda text: text.count("\n") > 1)
        running.step()
    assert stream.getvalue().splitlines() == [
        "udftorch: 2 parts", "udftorch: compiling a: about 100 s",
        "udftorch: compiling a: done, 0 s",
    ]  # fmt: skip


def test_what_is_short_says_nothing(shown, monkeypatch):
    monkeypatch.setattr(progress, "PAUSE", 600.0)
    stream = shown(Terminal())
    with Progress("compiling a", 1, seconds=100.0) as running:
        running.step()
    assert stream.getvalue() == ""


def test_a_line_that_an_error_ends_is_ended(shown):
    stream = shown(Terminal())
    with contextlib.suppress(RuntimeError), Progress("compiling a", 1, seconds=100.0):
        stream.wait(len)
        raise RuntimeError
    assert stream.getvalue().endswith("\n")


def test_a_build_that_takes_longer_than_expected_says_so(shown, monkeypatch):
    clock = iter([0.0, 0.0])
    now = SimpleNamespace(monotonic=lambda: next(clock, 9.0))
    monkeypatch.setattr(progress, "time", now)
    stream = shown(Stream())
    with Progress("compiling a", 1, seconds=3.0):
        stream.wait(len)
    assert stream.getvalue().startswith("udftorch: compiling a: 9 s, expected about 3 s\n")


def test_what_is_counted_says_how_long_the_rest_takes(shown, monkeypatch):
    clock = iter([0.0, 0.0])
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(clock, 9.0)))
    monkeypatch.setattr(progress, "PAUSE", 0.01)
    stream = shown(Terminal())
    with Progress("verifying", 0, unit=" chunks") as running:
        running.count(10, 40)  # an earlier run has done ten
        running.count(20, 40)
        stream.wait(lambda text: "left" in text)
    begin = "\rudftorch: verifying [##########..........] 20 of 40 chunks, 9 s, about 18 s left"
    assert begin in stream.getvalue()


def test_a_search_says_at_which_step_it_is(monkeypatch):
    """Only the innermost of what runs is told, and nobody needs to wait for it."""
    monkeypatch.setenv(VARIABLE, "0")
    progress.tell("run 1")
    with Progress("searching", 0) as outer, Progress("compiling", 1) as inner:
        progress.tell("run 2 of 3")
        assert (outer.text, inner.text) == ("searching", "compiling, run 2 of 3")
        progress.tell("run 3 of 3")
        assert inner.text == "compiling, run 3 of 3"


def test_what_runs_within_has_the_line(shown, monkeypatch):
    monkeypatch.setattr(progress, "PAUSE", 0.01)
    stream = shown(Terminal())
    with Progress("searching", 0):
        stream.wait(lambda text: "searching" in text)
        with Progress("compiling", 1):
            stream.wait(lambda text: "compiling" in text)
            begun = len(stream.getvalue())
            stream.wait(lambda text: text.count("compiling") > 3)
            inside = stream.getvalue()[begun:]
    # One look of the outer may have begun before.
    assert inside.count("searching") <= 1


# In pytest ---------------------------------------------------------------------------

MARKED = """
import pytest, torch

@pytest.mark.udf_lib("{library}")
def test_marked():
    torch.exp(torch.ones(3))
"""


@pytest.mark.slow
def test_a_library_that_a_marker_chooses_is_named_while_it_is_compiled(pytester, tmp_path):
    """The lines come through although pytest captures what tests write."""
    library = tmp_path / "mine"
    library.mkdir()
    (library / "udf.toml").write_text(
        '[library]\nname = "mine"\nversion = "1"\n'
        '[functions.exp.float32]\nsource = "e.c"\nscalar = "my_expf"\n'
    )
    # No cache holds this one.
    source = f"/* {time.time_ns()} */ float my_expf(float x) {{ return x; }}\n"
    (library / "e.c").write_text(source)
    pytester.makepyfile(MARKED.format(library=library))
    pytester.makeconftest(
        "from pytest_udftorch.swap.toolchain import progress\nprogress.PAUSE = 0.001\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"],
        cwd=pytester.path, capture_output=True, text=True, check=False,
        env={**os.environ, VARIABLE: "1", "UDFTORCH_CACHE_DIR": str(CACHE)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert re.search("udftorch: compiling (1 of [0-9]: )?mine for", done.stderr)
