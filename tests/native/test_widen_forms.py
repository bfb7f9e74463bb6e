# SPDX-License-Identifier: Apache-2.0
"""Every form of a UDF, executed, gives the bits of the author's own functions."""

import ctypes
import mmap
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from toolchain import (
    FLAGS,
    LEVELS,
    PROBES,
    SOURCES,
    Level,
    Library,
    Llvm,
    Probe,
    missing_on_cpu,
)

# Longer than any block of the array form (64), so that full blocks and tails both occur.
LENGTHS = (*range(66), 95, 96, 97, 127, 128, 129, 255, 256, 257)
LONGEST = max(LENGTHS)


@pytest.fixture(params=PROBES, ids=lambda probe: probe.name)
def probe(request: pytest.FixtureRequest) -> Probe:
    return request.param


def garbage(probe: Probe, n: int, seed: int = 0) -> list[npt.NDArray]:
    """Arguments: random encodings (NaN, infinities and subnormals among them) and plain numbers."""
    rng = np.random.default_rng(seed)
    special = np.array(
        [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, np.finfo(probe.real).smallest_subnormal],
        probe.real,
    ).view(probe.word)
    arrays = []
    for _ in range(probe.arity):
        words = rng.integers(0, 1 << probe.bits, n, dtype=np.uint64).astype(probe.word)
        plain = rng.normal(0.0, 10.0, n).astype(probe.real).view(probe.word)
        words = np.where(rng.random(n) < 0.5, words, plain)
        arrays.append(np.where(rng.random(n) < 0.1, rng.choice(special, n), words))
    return [a.astype(probe.word).view(probe.real) for a in arrays]


def with_low_bits(probe: Probe, array: npt.NDArray, low: int) -> npt.NDArray:
    words = array.view(probe.word).copy()
    words &= ~probe.word(15)
    words |= probe.word(low)
    return words.view(probe.real)


def all_easy(probe: Probe, arrays: list[npt.NDArray]) -> list[npt.NDArray]:
    return [with_low_bits(probe, a, 0) for a in arrays]


def assert_same_bits(
    probe: Probe, got: npt.NDArray, want: npt.NDArray, arrays: list[npt.NDArray], what: str
) -> None:
    wrong = np.flatnonzero(got.view(probe.word) != want.view(probe.word))
    if wrong.size:
        i = wrong[0]
        arguments = ", ".join(f"{float(a[i]).hex()}" for a in arrays)
        raise AssertionError(
            f"{what} of {probe.name}: {wrong.size} of {got.size} differ, the first at {i}: "
            f"({arguments}) gives {got[i]!r}, the author's functions give {want[i]!r}"
        )


def check_all_forms(library: Library, probe: Probe, arrays: list[npt.NDArray], what: str) -> None:
    want = library.reference(probe, arrays)
    assert_same_bits(probe, library.scalar(probe, arrays), want, arrays, f"{what}: scalar")
    for lanes in library.level.lanes(probe.bits):
        got = library.vector(probe, lanes, arrays)
        assert_same_bits(probe, got, want, arrays, f"{what}: v{lanes}")
    out = np.empty_like(want)
    library.array(probe, out.size, arrays, out)
    assert_same_bits(probe, out, want, arrays, f"{what}: array")


def test_forms_give_the_bits_of_the_authors_functions(library: Library, probe: Probe) -> None:
    arrays = garbage(probe, 1 << 15)
    check_all_forms(library, probe, arrays, "garbage")


@pytest.mark.parametrize("probe", [p for p in PROBES if p.two_step], ids=lambda p: p.name)
def test_both_paths_are_taken(library: Library, probe: Probe) -> None:
    """The oracle's own control: hard lanes, and easy ones, must occur and must differ."""
    arrays = garbage(probe, 1 << 12)
    easy = all_easy(probe, arrays)
    hard = [with_low_bits(probe, easy[0], 5), *easy[1:]]
    as_hard = library.reference(probe, hard).view(probe.word)
    as_easy = library.reference(probe, easy).view(probe.word)
    assert np.count_nonzero(as_hard >> probe.word(4) != as_easy >> probe.word(4)) > 2048


def test_one_hard_lane_at_every_position(library: Library, probe: Probe) -> None:
    """Only that lane takes the accurate path, wherever it stands."""
    block = 64
    easy = all_easy(probe, garbage(probe, block, seed=1))
    for position in range(block):
        arrays = [a.copy() for a in easy]
        arrays[0][position : position + 1] = with_low_bits(
            probe, arrays[0][position : position + 1], 5
        )
        check_all_forms(library, probe, arrays, f"hard lane {position}")


def test_every_lane_hard(library: Library, probe: Probe) -> None:
    easy = all_easy(probe, garbage(probe, 128, seed=2))
    check_all_forms(library, probe, [with_low_bits(probe, easy[0], 5), *easy[1:]], "all hard")


def test_lane_does_not_depend_on_the_others(library: Library, probe: Probe) -> None:
    """One live lane among random garbage: its bits are those it has alone."""
    live = garbage(probe, 64, seed=3)
    want = library.reference(probe, live).view(probe.word)
    for position in range(64):
        arrays = garbage(probe, 64, seed=1000 + position)
        for array, value in zip(arrays, live, strict=True):
            array[position] = value[position]
        for lanes in library.level.lanes(probe.bits):
            got = library.vector(probe, lanes, arrays).view(probe.word)
            assert got[position] == want[position], f"v{lanes}, lane {position}"
        out = np.empty(64, probe.real)
        library.array(probe, 64, arrays, out)
        assert out.view(probe.word)[position] == want[position], f"array, element {position}"


@pytest.mark.parametrize("offset", [0, 1, 3])
def test_array_of_every_length(library: Library, probe: Probe, offset: int) -> None:
    """Every length, at unaligned addresses, into another array; nothing else is written."""
    guard = 67
    data = garbage(probe, LONGEST, seed=4)
    want = library.reference(probe, data).view(probe.word)
    inputs = []
    for a in data:
        shifted = np.empty(LONGEST + offset, probe.real)[offset:]
        shifted[:] = a
        inputs.append(shifted)
    for n in LENGTHS:
        whole = np.full(guard + offset + LONGEST + guard, 0x5A, probe.word)
        out = whole[guard + offset :].view(probe.real)
        library.array(probe, n, inputs, out)
        written = whole[guard + offset :]
        assert np.array_equal(written[:n], want[:n]), f"n = {n}"
        assert (whole[: guard + offset] == 0x5A).all(), f"n = {n}: written before the output"
        assert (written[n:] == 0x5A).all(), f"n = {n}: written behind the output"


def test_array_in_place(library: Library, probe: Probe) -> None:
    """The output may be any of the inputs."""
    data = garbage(probe, LONGEST, seed=5)
    want = library.reference(probe, data).view(probe.word)
    for target in range(probe.arity):
        for n in LENGTHS:
            arrays = [a.copy() for a in data]
            library.array(probe, n, arrays, arrays[target])
            result = arrays[target].view(probe.word)
            assert np.array_equal(result[:n], want[:n]), f"n = {n}"
            assert np.array_equal(result[n:], data[target].view(probe.word)[n:]), f"n = {n}"


def test_array_reads_nothing_behind_the_input(library: Library, probe: Probe) -> None:
    """The input ends where a page ends that no process may read behind."""
    page = mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    data = garbage(probe, LONGEST, seed=6)
    want = library.reference(probe, data).view(probe.word)
    maps, ends = [], []
    for _ in range(probe.arity):
        memory = mmap.mmap(-1, 2 * page)
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        assert libc.mprotect(ctypes.c_void_p(base + page), page, 0) == 0
        maps.append(memory)
        ends.append(np.frombuffer(memory, probe.real, page // (probe.bits // 8)))
    for n in range(1, 66):
        inputs = []
        for end, a in zip(ends, data, strict=True):
            end[-n:] = a[:n]
            inputs.append(end[-n:])
        out = np.empty(n, probe.real)
        library.array(probe, n, inputs, out)
        assert np.array_equal(out.view(probe.word), want[:n]), f"n = {n}"


@pytest.mark.parametrize("n", [0, -1, -33, -(1 << 40)])
def test_array_of_no_elements_does_nothing(library: Library, probe: Probe, n: int) -> None:
    arrays = garbage(probe, 64)
    out = np.full(64, 0x5A, probe.word)
    library.array(probe, n, arrays, out.view(probe.real))
    assert (out == 0x5A).all()


def test_mode_changes_nothing(library: Library, probe: Probe) -> None:
    arrays = garbage(probe, 100)
    outs = [np.empty(100, probe.real) for _ in range(3)]
    for out, mode in zip(outs, (0, 0x2802, -1), strict=True):
        library.array(probe, 100, arrays, out, mode)
    for out in outs[1:]:
        assert np.array_equal(out.view(probe.word), outs[0].view(probe.word))


@pytest.mark.parametrize("wrong", ["ULP_ERROR_FAST", "ULP_ERROR_ACCURATE"])
def test_one_wrong_bit_is_found(build_library: Callable[..., Library], wrong: str) -> None:
    """Negative control: forms of a function that is off by one bit fail the checks above."""
    level = next(level for level in LEVELS.values() if not missing_on_cpu(level))
    library = build_library(level, f"-D{wrong}=1")
    for probe in PROBES:
        if wrong == "ULP_ERROR_ACCURATE" and not probe.two_step:
            continue
        with pytest.raises(AssertionError, match=f"of {probe.name}: .* differ"):
            check_all_forms(library, probe, garbage(probe, 4096), "control")


def test_without_the_plugin_there_are_no_forms(
    llvm: Llvm, library: Library, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Negative control: the forms come from the pass and from nowhere else."""
    plain = tmp_path_factory.mktemp("plain") / "plain.o"
    llvm.must(
        [
            *(llvm.tool("clang"), "-std=c17", *FLAGS, *library.level.march, "-femit-all-decls"),
            *("-c", SOURCES / "probe.c", "-o", plain),
        ]
    )
    assert not [name for name in llvm.symbols(plain) if name.startswith("__udf_")]
    exported = {n for n, letter in llvm.symbols(library.path).items() if letter == "T"}
    for probe in PROBES:
        assert set(probe.manifest_entry(library.level)["forms"].values()) <= exported


def test_plugin_without_manifest_changes_nothing(
    llvm: Llvm, level: Level, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("idle")
    common = ["-std=c17", *FLAGS, *level.march, "-S", SOURCES / "shim.c", "-o"]
    llvm.must([llvm.tool("clang"), *common, folder / "plain.s"])
    llvm.must([llvm.tool("clang"), *llvm.loads, *common, folder / "loaded.s"])
    assert (folder / "plain.s").read_text() == (folder / "loaded.s").read_text()
