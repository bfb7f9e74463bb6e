# SPDX-License-Identifier: Apache-2.0
"""Which kernels inside libtorch have a transcendental function inlined, by their machine code.

    python -m benches.experiments.inlined [--library FILE] [--store FILE]

A polynomial or a table of a function needs a constant that little else needs: an exponential
divides by log(2), a logarithm multiplies by it, sine and cosine divide by pi/2, and PyTorch's
vector form of erf has the constant of Abramowitz and Stegun, 7.1.26. A function of the library is
listed with a family if one of its instructions loads such a constant, from the read-only data or
as an immediate. Candidates are found by the bytes of an address, and
each is confirmed by disassembling the function around it. Needs the packages ``capstone`` and
``pyelftools``, a library for x86-64 that is not stripped, and ``c++filt``.
"""

from __future__ import annotations

import importlib.util
import re
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from benches.experiments import command
from pytest_udftorch import UdfError
from pytest_udftorch.swap.session.binder import binder

#: Family of functions -> float32 and float64 constants that tell it.
CONSTANTS: Final[dict[str, tuple[tuple[float, ...], tuple[float, ...]]]] = {
    "exp": ((1.4426950408889634,), (1.4426950408889634,)),
    "log": ((0.6931471805599453, 0.693359375), (0.6931471805599453,)),
    "sin": ((0.6366197723675814, 1.2732395447351628), (0.6366197723675814, 1.2732395447351628)),
    "erf": ((0.3275911,), (0.3275911,)),
}
_OVERRIDDEN: Final = "overridden"
_FACTOR: Final = "the constant is a factor; the function is a call"
#: Kernel of ATen's -> how a session gets at it; the page about coverage shows it.
WAYS: Final = {
    "GeluBackwardKernelImpl": _OVERRIDDEN,
    "vectorized_gelu": _OVERRIDDEN,
    "erf_kernel": _OVERRIDDEN,
    "cpu_flash_attention": _OVERRIDDEN,
    "_exp_reduce_sum_fusion_kernel": "part of attention, which is overridden",
    "NormalFill16": "overridden; it fills for `normal_`",
    "normal_kernel": "overridden from 16 variates on; fewer are computed in double precision",
    "logaddexp2_kernel": _FACTOR,
    "bessel_y0_kernel": _FACTOR,
    "bessel_y1_kernel": _FACTOR,
    "exp2_kernel": "complex numbers, which stay stock",
    "log2_kernel": "complex numbers, which stay stock",
    "qgelu_kernel": "quantized tensors, which stay stock",
}
#: Templates that loop over what a kernel says.
_HELPERS: Final = frozenset(("vectorized_loop", "VectorizedLoop2d", "cpu_kernel", "cpu_kernel_vec"))

#: Owners of machine code that is no kernel of ATen's, by the beginning of a name.
_OWNERS: Final = {
    "SLEEF": r"Sleef_|_?Z?rempi|gammaf?k",
    "MKL": r"_?mkl_|_?MKL_|v[ds][a-z]+_cout_rare",
    "oneDNN": r".*dnnl::",
    "XNNPACK": r"xnn_|.*xnn",
    "autograd": r"torch::autograd",
    "ATen": r".*\bat::native::|.*\bat::vec|.*at::internal",
}


class InlinedError(UdfError):
    """A library cannot be looked into."""


class _Elf:
    """A shared library: its code, its read-only data, its functions and what they call."""

    def __init__(self, path: Path) -> None:
        if any(importlib.util.find_spec(p) is None for p in ("capstone", "elftools")):
            raise InlinedError(
                "Packages to read machine code are missing: pip install capstone pyelftools."
            )
        from elftools.elf.elffile import ELFFile

        self.bytes = np.memmap(path, dtype=np.uint8, mode="r")
        with path.open("rb") as file:
            elf = ELFFile(file)
            self.sections = {s.name: (s["sh_addr"], s["sh_offset"], s["sh_size"])
                             for s in elf.iter_sections()}  # fmt: skip
            if ".symtab" not in self.sections or elf.get_machine_arch() != "x64":
                raise InlinedError(
                    f"{path} is stripped, or is not for x86-64: its functions have no names. Name "
                    "a library with a symbol table."
                )
            self.slots = self._slots(elf)
        self.text, self.at = self.part(".text"), self.sections[".text"][0]
        kind = np.dtype([("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"),
                         ("value", "<u8"), ("size", "<u8")])  # fmt: skip
        symbols = np.frombuffer(self.part(".symtab").tobytes(), dtype=kind)
        functions = symbols[(symbols["info"] & 15 == 2) & (symbols["size"] > 0)]
        self.functions = functions[np.argsort(functions["value"], kind="stable")]

    def part(self, section: str) -> Any:
        _, offset, size = self.sections[section]
        return self.bytes[offset : offset + size]

    @staticmethod
    def _slots(elf: Any) -> dict[int, str]:
        """Return address of a jump slot -> the symbol in it."""
        found = {}
        for name in (".rela.plt", ".rela.dyn"):
            section = elf.get_section_by_name(name)
            if section is not None:
                symbols = elf.get_section(section["sh_link"])
                for entry in section.iter_relocations():
                    if entry["r_info_sym"]:
                        found[entry["r_offset"]] = symbols.get_symbol(entry["r_info_sym"]).name
        return found

    def name(self, function: Any) -> str:
        start = int(function["name"])
        text = self.part(".strtab")[start : start + (1 << 16)].tobytes()
        return text[: text.index(b"\0")].decode()

    def stub(self, address: int) -> str | None:
        """Return the symbol that a stub of the procedure linkage table jumps to."""
        for section, (start, offset, size) in self.sections.items():
            if section.startswith(".plt") and start <= address < start + size:
                code = self.bytes[offset + address - start :][:16].tobytes()
                jump = code.find(b"\xff\x25")
                if jump >= 0:
                    (by,) = struct.unpack_from("<i", code, jump + 2)
                    return self.slots.get(address + jump + 6 + by)
        return None


def _encodings(family: str) -> Iterator[tuple[int, bytes]]:
    narrow, wide = CONSTANTS[family]
    yield from ((4, struct.pack("<f", value)) for value in narrow)
    yield from ((8, struct.pack("<d", value)) for value in wide)


def _constants(elf: _Elf, family: str) -> tuple[set[int], set[int]]:
    """Return the addresses where a family's constants lie, and them as immediates."""
    places: set[int] = set()
    for section in (".rodata", ".data.rel.ro", ".rodata.cst4"):
        if section in elf.sections:
            start, part = elf.sections[section][0], elf.part(section)
            for size, encoding in _encodings(family):
                words = part[: len(part) // size * size].view(f"<u{size}")
                wanted = int.from_bytes(encoding, "little")
                places.update((start + size * np.nonzero(words == wanted)[0]).tolist())
    immediates = {int.from_bytes(e, "little") for size, e in _encodings(family) if size == 4}
    return places, immediates


def _candidates(elf: _Elf, places: set[int], immediates: set[int]) -> list[int]:
    """Return addresses of four bytes that could be a way to a constant.

    An operand relative to the next instruction has at most one byte behind it.
    """
    targets = np.array(sorted(places), dtype=np.int64)
    hits: list[int] = []
    for offset in range(4):
        words = elf.text[offset : offset + (len(elf.text) - offset) // 4 * 4].view("<i4")
        for first in range(0, len(words), 1 << 22):
            some = words[first : first + (1 << 22)]
            here = elf.at + offset + 4 * (first + np.arange(len(some), dtype=np.int64))
            found = np.isin(some.view("<u4"), list(immediates))
            for behind in (0, 1):
                found |= np.isin(here + 4 + behind + some, targets)
            hits += here[found].tolist()
    return hits


def _around(elf: _Elf, hits: Sequence[int]) -> list[Any]:
    """Return the functions that hold addresses."""
    starts = elf.functions["value"]
    at = np.searchsorted(starts, np.array(hits, dtype=np.uint64), side="right") - 1
    inside = (at >= 0) & (np.array(hits) < starts[at] + elf.functions["size"][at])
    return [elf.functions[i] for i in np.unique(at[inside])]


def _read(elf: _Elf, function: Any) -> tuple[set[int], set[int], set[str]]:
    """Disassemble a function; return the addresses and immediates it reads, and what it calls."""
    import capstone
    from capstone import x86

    reader = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    reader.detail, reader.skipdata = True, True
    start, size = int(function["value"]), int(function["size"])
    code = elf.text[start - elf.at : start - elf.at + size].tobytes()
    read, immediates, called = set(), set(), set()
    for instruction in reader.disasm(code, start):
        if not instruction.id:
            continue
        for operand in instruction.operands:
            if operand.type == x86.X86_OP_MEM and operand.mem.base == x86.X86_REG_RIP:
                place = instruction.address + instruction.size + operand.mem.disp
                read.add(place)
                if instruction.mnemonic in ("call", "jmp") and place in elf.slots:
                    called.add(elf.slots[place])
            elif operand.type == x86.X86_OP_IMM:
                immediates.add(operand.imm & 0xFFFFFFFF)
                if instruction.mnemonic in ("call", "jmp"):
                    called.add(elf.stub(operand.imm) or "")
    return read, immediates, called - {""}


def inlined(path: Path) -> dict[str, dict[str, Any]]:
    """Return function -> the families that it has inlined, and math symbols that it calls.

    Raises:
        InlinedError: the library has no symbol table, is for another processor, or a package is
            missing.
    """
    elf = _Elf(path)
    found: dict[str, dict[str, Any]] = {}
    for family in CONSTANTS:
        places, immediates = _constants(elf, family)
        for function in _around(elf, _candidates(elf, places, immediates)):
            read, numbers, called = _read(elf, function)
            if not read & places and not numbers & immediates:
                continue
            math = sorted(symbol for symbol in called if symbol in binder().symbols)
            entry = found.setdefault(elf.name(function), {"families": [], "calls": math})
            entry["families"].append(family)
    return _demangled(found)


def _demangled(found: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    names = list(found)
    said = subprocess.run(["c++filt"], input="\n".join(names), text=True, capture_output=True,
                          check=True).stdout.splitlines()  # fmt: skip
    joined: dict[str, dict[str, Any]] = {}
    for name, plain in zip(names, said, strict=True):
        entry = joined.setdefault(plain, {"families": [], "calls": []})
        for key, values in found[name].items():
            entry[key] = sorted({*entry[key], *values})
    return joined


def owner(name: str) -> str:
    """Return whose machine code a function is."""
    return next((who for who, how in _OWNERS.items() if re.match(how, name)), "others")


def kernel(name: str) -> str:
    """Return the name of the kernel of ATen's that a function of C++ belongs to."""
    found = re.findall(r"at::native::(?:\(anonymous namespace\)::|\w+::)*([A-Za-z_]\w*)", name)
    return next((n for n in found if n not in _HELPERS), name)


def measure(path: Path) -> dict[str, Any]:
    """Return what is inlined in a library: ATen's kernels by name, and the rest by owner.

    Raises:
        InlinedError: as from :func:`inlined`.
    """
    kernels: dict[str, dict[str, Any]] = {}
    others: dict[str, int] = {}
    for name, entry in inlined(path).items():
        who = owner(name)
        if who != "ATen":
            others[who] = others.get(who, 0) + 1
            continue
        one = kernels.setdefault(kernel(name), {"families": [], "calls": [], "functions": 0})
        one["functions"] += 1
        for key in ("families", "calls"):
            one[key] = sorted({*one[key], *entry[key]})
    return {"library": path.name, "kernels": dict(sorted(kernels.items())), "others": others}


def _libtorch() -> Path:
    import torch

    return Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = command.parser("inlined", __doc__)
    parser.add_argument("--library", type=Path, help="a shared library; by default libtorch_cpu.so")
    options = parser.parse_args(arguments)
    try:
        found = measure(options.library or _libtorch())
    except UdfError as error:
        print(f"inlined: {error}", file=sys.stderr)
        return 2
    for name, one in found["kernels"].items():
        how = WAYS.get(name, "not known")
        print(f"{name:32} {', '.join(one['families']):10} {one['functions']:3} functions  {how}")
    command.store("inlined", options, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
