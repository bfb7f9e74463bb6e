# SPDX-License-Identifier: Apache-2.0
"""The native parts under clang's sanitizers: nothing is reported, and what is planted is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benches.experiments import sanitizers
from benches.experiments.sanitizers import ADDRESS, PAGES, THREAD, UNDEFINED, Kit, Outcome
from pytest_udftorch.swap.toolchain.compiler import find_compiler, tool

PLANTED = Path(__file__).parent / "udf/planted_plugin.cpp"

# What each planted fault of the runtime puts in the place of what.
OUT_OF_BOUNDS = ("udfrt.c", "(size_t)S->Found < S->Capacity", "(size_t)S->Found <= S->Capacity")
OVERFLOW = (
    "names.c",
    "H = (H ^ (unsigned char)*Name) * 16777619u;",
    "H = (uint32_t)((int)(H ^ (unsigned char)*Name) * 16777619);",
)
RACE = (
    "udfrt.c",
    """    __atomic_compare_exchange_n(Word, &found[I], desired[I], 0,
                                __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
""",
    """    found[I] = *Word;
    if (found[I] == expected[I])
      *Word = desired[I];
""",
)
RACE_OF_COUNTERS = (
    "udfprof.c",
    "__atomic_store_n(&Torch, torch, __ATOMIC_RELEASE);",
    "Torch = torch;",
)

FREED_EARLY = (
    "board.h",
    "(Each.In <= Oldest ? Free : Kept).push_back(std::move(Each));",
    "Free.push_back(std::move(Each));",
)
NOT_ENTERED = ("board.h", "T.Mine->Since.store(Epoch.load());", ";")

UDF = """
static const float table[4] = {{1, 2, 3, 4}};
float last;
float udf_expf(float x) {{ {} }}
"""


@pytest.fixture(params=[ADDRESS, THREAD], ids=["address", "thread"])
def kit(request) -> Kit:
    return installed(request.param)


def installed(kit: Kit) -> Kit:
    if sanitizers.preload(kit) is None:
        pytest.skip(f"{kit.runtime} is not beside clang (Debian: libclang-rt-19-dev)")
    return kit


def clean(outcome: Outcome, calls: int) -> None:
    assert outcome.is_clean, outcome.text[-6000:]
    assert outcome.calls >= calls


def test_slots_are_exchanged_under_threads_that_call_through_them(kit, tmp_path):
    clean(sanitizers.slots(kit, tmp_path, rounds=100), 1000)


@pytest.mark.slow
@pytest.mark.parametrize("which", [THREAD, ADDRESS], ids=["thread", "address"])
def test_tables_of_boards_are_switched_under_threads_that_call(which, tmp_path):
    clean(sanitizers.boards(installed(which), tmp_path, rounds=500), 1000)


@pytest.mark.slow
@pytest.mark.parametrize("mutation", [FREED_EARLY, NOT_ENTERED], ids=["freed", "not entered"])
def test_a_target_that_is_freed_under_a_thread_is_reported(mutation, tmp_path):
    outcome = sanitizers.boards(installed(ADDRESS), tmp_path, mutation, rounds=3000)
    assert outcome.findings
    assert "heap-use-after-free" in outcome.text


@pytest.mark.parametrize(
    ("kind", "mutation", "said"),
    [
        (ADDRESS, OUT_OF_BOUNDS, "heap-buffer-overflow"),
        (ADDRESS, OVERFLOW, "signed integer overflow"),
        (THREAD, RACE, "data race"),
    ],
    ids=["out of bounds", "overflow", "race"],
)
def test_a_fault_planted_in_the_slots_is_reported(kind, mutation, said, tmp_path):
    outcome = sanitizers.slots(installed(kind), tmp_path, mutation, rounds=100)
    assert outcome.findings
    assert said in outcome.text


@pytest.mark.slow
def test_threads_count_while_profiles_begin_are_read_and_end(kit, tmp_path):
    clean(sanitizers.cells(kit, tmp_path, rounds=6), 50)


@pytest.mark.slow
def test_a_race_planted_in_the_counters_is_reported(tmp_path):
    outcome = sanitizers.cells(installed(THREAD), tmp_path, RACE_OF_COUNTERS, rounds=4)
    assert outcome.findings
    assert "udfprof_set_torch" in outcome.text


def test_a_mutation_that_finds_no_place_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="has 0 times 'no such text', and not once"):
        sanitizers.driver("slots", (), ADDRESS, tmp_path, ("udfrt.c", "no such text", ""))


def planted(folder: Path, body: str) -> str:
    """Write a library whose exp has a fault, and return its path."""
    folder.mkdir()
    (folder / "u.c").write_text(UDF.format(body))
    (folder / "udf.toml").write_text(
        '[library]\nname = "planted"\nversion = "1"\n'
        '[functions.exp.float32]\nsource = "u.c"\nscalar = "udf_expf"\n'
    )
    return str(folder)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["sessions", "profiles"])
def test_sessions_and_profiles_in_torch(what, kit):
    clean(sanitizers.in_python(what, what, kit), 50)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "which"),
    [("patches", UNDEFINED), ("operators", ADDRESS)],
    ids=["patches", "operators"],
)
def test_patches_and_operators_in_torch(what, which):
    clean(sanitizers.in_python(what, what, installed(which)), 500)


@pytest.mark.slow
@pytest.mark.parametrize("which", [ADDRESS, PAGES], ids=["address", "pages"])
def test_forms_on_odd_lengths_and_misaligned_arrays(which):
    kit = which if which is PAGES else installed(which)
    clean(sanitizers.in_python("forms", "forms", kit), 5000)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("union { float f; unsigned u; } v = {x}; return table[v.u >> 29];", "overflow"),
        ("int i = (int)x; return i + 2147483000 + table[0];", "runtime error"),
    ],
    ids=["out of bounds", "overflow"],
)
def test_a_fault_planted_in_a_udf_is_reported(body, said, tmp_path):
    library = planted(tmp_path / "planted", body)
    outcome = sanitizers.in_python("forms", "forms", installed(ADDRESS), library)
    assert outcome.findings, outcome.text[-3000:]
    assert said in outcome.text


@pytest.mark.slow
def test_a_race_planted_in_a_udf_is_reported(tmp_path):
    library = planted(tmp_path / "planted", "return last = x;")
    outcome = sanitizers.in_python("sessions", "sessions", installed(THREAD), library)
    assert outcome.findings, outcome.text[-3000:]
    # The frames inside it do not always have names.
    assert "libplanted" in outcome.text


@pytest.mark.slow
@pytest.mark.parametrize("place", ["at first - 1", "at end"])
def test_a_byte_outside_of_an_array_cannot_be_touched(place):
    code = f"""
import ctypes
from benches.experiments.sanitized import Memory
places = Memory(guarded=True).places(12)
first, end = next(places), next(places)
at = {{"at first - 1": first - 1, "at end": end + 12}}[{place!r}]
ctypes.string_at(first, 12), ctypes.string_at(end, 12)
print("inside", flush=True)
ctypes.string_at(at, 1)
"""
    root = Path(sanitizers.__file__).parents[2]
    run = [sys.executable, "-X", "faulthandler", "-c", code]
    outcome = sanitizers.judged("guard pages", PAGES, run, cwd=root)
    assert "inside" in outcome.text
    assert outcome.findings == 1


@pytest.mark.slow
def test_the_passes_over_their_corpus(tmp_path):
    clean(sanitizers.plugin(installed(ADDRESS), tmp_path), 30)


@pytest.mark.slow
def test_a_fault_planted_in_a_plugin_is_reported(tmp_path):
    kit = installed(ADDRESS)
    made = tmp_path / f"Planted-{find_compiler().major}.so"
    config = tool(find_compiler(), "llvm-config")
    flags = subprocess.check_output([config, "--cxxflags"], text=True).split()
    subprocess.run(
        [sanitizers.clang(), "--driver-mode=g++", "-shared", "-fPIC", "-O1", *flags, *kit.flags,
         PLANTED, "-o", made],
        check=True,
    )  # fmt: skip
    outcome = sanitizers.with_plugin(kit, tmp_path, made, ["tests/native/ir/idle.ll"])
    assert outcome.findings
    assert "heap-buffer-overflow" in outcome.text
