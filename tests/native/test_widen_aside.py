# SPDX-License-Identifier: Apache-2.0
"""Array forms with a quick path put hard lanes aside, and repair them with the same bits."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from test_widen_forms import all_easy, assert_same_bits, garbage, with_low_bits
from toolchain import FLAGS, LEVELS, PROBES, SOURCES, Level, Library, Llvm, Probe, missing_on_cpu

Mask = npt.NDArray[np.bool_]

QUICK = [probe for probe in PROBES if probe.quick]
#: The last bits of an argument that is hard for the quick path alone, and for the fast one, too.
LOW_BITS = (6, 5)


class Block:
    """What the pass makes of a level and a type: see ``Aside`` in WidenForms.cpp."""

    def __init__(self, level: Level, probe: Probe) -> None:
        self.lanes = 2 * level.register_bits // probe.bits
        self.limit = max(1, self.lanes // 8)
        self.room = 4 * self.lanes

    def every(self, blocks: int, hard: int) -> Mask:
        """So many blocks with so many hard lanes each, at other places in every block."""
        rng = np.random.default_rng(hard)
        mask = np.zeros((blocks, self.lanes), bool)
        for row in mask:
            row[rng.choice(self.lanes, hard, replace=False)] = True
        return mask.ravel()


# Which lanes are hard, and whether one of them is put aside.
PATTERNS: dict[str, tuple[Callable[[Block], Mask], bool]] = {
    "no element": (lambda b: b.every(0, 0), False),
    "shorter than a block": (lambda b: b.every(1, b.limit)[:-1], False),
    "no hard lane": (lambda b: b.every(9, 0), False),
    "one hard lane": (lambda b: np.append(b.every(1, 1), b.every(8, 0)), True),
    "all hard": (lambda b: b.every(9, b.lanes), False),
    "one in every block": (lambda b: b.every(150, 1), True),
    "the limit in every block": (lambda b: b.every(150, b.limit), True),
    "one more than the limit": (lambda b: b.every(9, b.limit + 1), False),
    "a list just full": (lambda b: b.every(b.room // b.limit, b.limit), True),
    "a list with room for less than the limit": (
        lambda b: np.append(b.every(b.room - b.limit + 1, 1), b.every(2, b.limit)),
        True,
    ),
    "a list one short of full": (lambda b: b.every(b.room - 1, 1), True),
    "a list and a whole block": (
        lambda b: np.concatenate([b.every(3, 1), b.every(1, b.lanes), b.every(3, b.limit)] * 40),
        True,
    ),
    "a hard tail": (lambda b: np.append(b.every(3, 0), b.every(1, b.lanes)[:-1]), False),
    "a list and a tail": (lambda b: np.append(b.every(5, 1), b.every(1, b.limit)[:-1]), True),
    "a tail of one": (lambda b: np.append(b.every(5, 1), [True]), True),
}


def arguments(probe: Probe, hard: Mask) -> list[npt.NDArray]:
    """Arguments of which those and no others are hard, some for the fast path, too."""
    arrays = all_easy(probe, garbage(probe, hard.size, seed=hard.size))
    lows = np.random.default_rng(hard.size).choice(LOW_BITS, hard.size)
    for low in LOW_BITS:
        here = hard & (lows == low)
        arrays[0][here] = with_low_bits(probe, arrays[0][here], low)
    return arrays


def check(library: Library, probe: Probe, hard: Mask, what: str) -> None:
    """Compare the array form with the scalar one, also where the output is an input."""
    arrays = arguments(probe, hard)
    want = library.scalar(probe, arrays)
    assert_same_bits(probe, want, library.reference(probe, arrays), arrays, f"{what}: scalar")
    for target in (None, *range(probe.arity)):
        given = [a.copy() for a in arrays]
        out = np.empty_like(want) if target is None else given[target]
        library.array(probe, hard.size, given, out)
        assert_same_bits(probe, out, want, arrays, f"{what}, output {target}: array")


@pytest.fixture(params=QUICK, ids=lambda probe: probe.name)
def probe(request: pytest.FixtureRequest) -> Probe:
    return request.param


@pytest.mark.parametrize("pattern", PATTERNS)
def test_hard_lanes_get_the_bits_of_the_scalar_form(
    library: Library, probe: Probe, pattern: str
) -> None:
    hard, _ = PATTERNS[pattern]
    check(library, probe, hard(Block(library.level, probe)), pattern)


def test_so_do_lanes_that_are_hard_at_random(library: Library, probe: Probe) -> None:
    rng = np.random.default_rng(8)
    for share in (0.001, 0.01, 0.03, 0.1, 0.3):
        for n in rng.integers(1, 5000, 8):
            check(library, probe, rng.random(n) < share, f"{share} of {n}")


@pytest.fixture(scope="module")
def without_repair(
    llvm: Llvm, write_manifest: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Library:
    """The same library, but that no list is repaired."""
    level = next(level for level in LEVELS.values() if not missing_on_cpu(level))
    folder = tmp_path_factory.mktemp("without-repair")
    raw, text = folder / "raw.bc", folder / "widened.ll"
    words = [llvm.tool("clang"), "-std=c17", *FLAGS, *level.march]
    llvm.must(
        [
            *(*words, "-femit-all-decls", "-Xclang", "-disable-llvm-passes", "-emit-llvm"),
            *("-c", SOURCES / "probe.c", "-o", raw),
        ]
    )
    llvm.must(
        [
            *(llvm.tool("opt"), f"-load-pass-plugin={llvm.plugin}", "-passes=udf-widen"),
            *(f"-udf-widen-manifest={write_manifest(level)}", "-S", raw, "-o", text),
        ]
    )
    spoiled, calls = re.subn(r"\n *call void @__udf_\w+\.repair\(.*", "", text.read_text())
    assert calls == 2 * len(QUICK)
    text.write_text(spoiled)
    objects: list[Path] = []
    for source in (text, SOURCES / "shim.c"):
        objects.append(folder / f"{source.stem}.o")
        llvm.must([*words, "-Wno-unused-command-line-argument", "-c", source, "-o", objects[-1]])
    llvm.must([llvm.tool("clang"), "-shared", *objects, "-o", folder / "probe.so", "-lm"])
    return Library(folder / "probe.so", level)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_without_the_repair_lanes_put_aside_are_wrong(
    without_repair: Library, probe: Probe, pattern: str
) -> None:
    """Negative control; it also shows which patterns put a lane aside."""
    hard, aside = PATTERNS[pattern]
    mask = hard(Block(without_repair.level, probe))
    if not aside:
        check(without_repair, probe, mask, pattern)
        return
    with pytest.raises(AssertionError, match=r"array of \w+: \d+ of \d+ differ"):
        check(without_repair, probe, mask, pattern)
