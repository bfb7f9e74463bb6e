# SPDX-License-Identifier: Apache-2.0
"""What the kernels of eager CUDA operators count in a profiled session.

A kernel that counts gets the address of a *row* in the GPU's memory: one slot of 64-bit words for
each function in the kernel. The host chooses the row at the launch, by operator, module and stage,
as the CPU's runtime chooses its cells (native/c/udfprof.h). The GPU adds to the row with atomic
operations. The host waits for the GPU, and reads the rows, only when the profile is asked for.

Rows are kept for the life of the process and zeroed when a session begins. A CUDA graph holds
the address of the row that was chosen at its capture, and counts there at every replay.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from pytest_udftorch.base import compat
from pytest_udftorch.errors import SessionBusyError
from pytest_udftorch.swap.cuda import direct
from pytest_udftorch.swap.native.manifest import WATCHED
from pytest_udftorch.swap.native.runtime import Cells, runtime
from pytest_udftorch.swap.operators.calls import calls
from pytest_udftorch.swap.records import layout as fields
from pytest_udftorch.swap.records.layout import Records

# A slot begins with shards, and the histograms follow. Each multiprocessor uses one shard:
# multiprocessors that add at one address wait for each other.
SHARDS: Final = 64
SHARD: Final = 32

# Words of a shard. The first three count launches, and only the first shard of a row's first
# slot uses them: the launches, their elements, and the rows that softmax and its relatives
# summed up.
LAUNCHES: Final = 0
ELEMENTS: Final = 1
LINES: Final = 2
#: One program in (this plus 1) enters the histograms; the sum is a power of two.
SAMPLE_MASK: Final = 3
#: Seven words for inputs and seven for outputs: the least and the largest value (as integers in
#: the order of the values), then ``fields.SPECIALS``.
IN: Final = 4
OUT: Final = 11
#: The GPU's clock when the first NaN, the first infinity and the first subnormal were made.
MADE: Final = 18
SAMPLED: Final = 21
HISTOGRAM_IN: Final = SHARDS * SHARD
#: Bins by sign and then by exponent; the first of each half are those of ``records``.
BINS: Final = 1024
HISTOGRAM_OUT: Final = HISTOGRAM_IN + BINS
SLOT: Final = HISTOGRAM_OUT + BINS

_INFINITY: Final = 0x7F800000
#: Minus infinity as an integer in the order of the values.
_LOWEST: Final = -_INFINITY - 1
_NEVER: Final = np.iinfo(np.int64).max

#: Slots of one allocation, about 8 MB.
_CHUNK: Final = 256


def empty_slot(stride: int) -> Any:
    """Return a slot that has counted nothing: int64, ``SLOT`` words."""
    slot = np.zeros(SLOT, np.int64)
    shards = slot[:HISTOGRAM_IN].reshape(SHARDS, SHARD)
    shards[:, SAMPLE_MASK] = stride - 1
    for side in (IN, OUT):
        shards[:, side : side + 2] = _INFINITY, _LOWEST
    shards[:, MADE : MADE + len(fields.FIRSTS)] = _NEVER
    return slot


def _together(slot: Any) -> Any:
    """Return the words of all shards of a slot, merged into one shard."""
    shards = slot[:HISTOGRAM_IN].reshape(SHARDS, SHARD)
    found = shards.sum(0)
    for side in (IN, OUT):
        found[side] = shards[:, side].min()
        found[side + 1] = shards[:, side + 1].max()
    made = slice(MADE, MADE + len(fields.FIRSTS))
    found[made] = shards[:, made].min(0)
    return found


def _value(key: int) -> float:
    """Return the float32 that stands at an integer in the order of the values."""
    bits = (key ^ (key >> 31) & 0x7FFFFFFF) & 0xFFFFFFFF
    size = bits & 0x7FFFFFFF
    if size < 1 << 23:  # with denormals-are-zero set, a conversion would flush it
        return (-1.0 if bits >> 31 else 1.0) * (size * 2.0**-149)
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


@dataclass(frozen=True)
class CounterRow:
    """The row that the launches of one kernel in one context count in.

    Attributes:
        device: index of the GPU.
        kernel: a formula of ``table``, or a kernel over rows.
        counted: the functions whose counts are wanted.
        operator: the runtime's id of the ATen operator's name.
        place: the runtime's id of the module times 4, plus the stage.
        chunk, first: indices of the memory block, and of the row's first slot in it.
        words: the row itself; int64, on the GPU.
    """

    device: int
    kernel: str
    counted: frozenset[str]
    operator: int
    place: int
    chunk: int
    first: int
    words: Any

    def records(self, words: Any, clock: int) -> tuple[Records, Records]:
        """Return cells and operators, with the runtime's ids of strings.

        Args:
            words: the row as read; int64, ``SLOT`` for each function.
            clock: by how much the GPU's clock lags CLOCK_MONOTONIC, in ns.
        """
        head = _together(words[0])
        called = calls(self.kernel)
        wanted = [i for i, call in enumerate(called) if call.function in self.counted]
        if not head[LAUNCHES] or not wanted:
            return fields.empty_cells(0), np.zeros(0, fields.OPERATOR)
        cells = fields.empty_cells(len(wanted))
        operators = np.zeros(1, fields.OPERATOR)
        for rows in (cells, operators):
            rows["device"] = fields.DEVICES.index("cuda")
            rows["operator"] = self.operator
            rows["module"], rows["stage"] = self.place >> 2, self.place & 3
        operators["calls"] = head[LAUNCHES]
        cells["form"] = fields.CELL_FORMS.index("array")
        for cell, index in zip(cells, wanted, strict=True):
            call = called[index]
            slot, bins = _together(words[index]), words[index].reshape(-1, 2, BINS // 2)
            cell["function"] = WATCHED.index(call.function)
            cell["calls"] = call.times * head[LAUNCHES]
            cell["elements"] = call.times * head[LINES if call.per_line else ELEMENTS]
            for side, at in (("in", IN), ("out", OUT)):
                cell[f"{side}_min"], cell[f"{side}_max"] = map(_value, slot[at : at + 2].tolist())
                for number, name in enumerate(fields.SPECIALS, start=at + 2):
                    cell[f"{side}_{name}"] = slot[number]
            for number, name in enumerate(fields.FIRSTS, start=MADE):
                if slot[number] != _NEVER:
                    cell[name] = int(slot[number]) + clock
            cell["hist_elements"] = slot[SAMPLED]
            for side, at in (("in", HISTOGRAM_IN), ("out", HISTOGRAM_OUT)):
                cell[f"hist_{side}"] = bins[at // BINS, :, : fields.HIST_BINS]
        return cells, operators


class Counters:
    """The rows of this process; there is one, ``counters``.

    Attributes:
        active: whether launches count.
        missed: launches that were not counted, because a row cannot be allocated while a CUDA
            graph is captured.
    """

    def __init__(self) -> None:
        self.active = False
        self.missed = 0
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._stride = 1
        self._chunks: dict[int, list[Any]] = {}
        self._used: dict[int, int] = {}  # slots of the last chunk
        self._rows: dict[tuple[Any, ...], CounterRow] = {}
        self._cells: Cells | None = None

    def start(self, stride: int) -> None:
        """Zero everything and begin to count.

        Args:
            stride: one program of a launch in this many enters the histograms; the first does.
        """
        if os.getpid() != self._pid:  # CUDA does not survive a fork
            self.__init__()  # type: ignore[misc]
        with self._lock:
            self._cells = runtime().cells
            self._stride = stride
            self.missed = 0
            for device, chunks in self._chunks.items():
                with _plain(device) as torch:
                    torch.cuda.synchronize()
                    for chunk in chunks:
                        self._clear(chunk)
            self.active = True
            direct.counting(on=True)

    def stop(self) -> None:
        """Stop counting launches; the counts stay readable."""
        self.active = False
        direct.counting(on=False)

    def row(self, device: int, kernel: str, counted: frozenset[str], operator: str) -> Any:
        """Return the words that a launch on the calling thread counts in, or None.

        The arguments are those of :class:`CounterRow`, with the name of the ATen operator.
        ``device`` must be the current GPU.
        """
        cells = self._cells
        if cells is None:
            return None
        place = cells.place()
        key = (device, kernel, counted, operator, place)
        if key in self._rows:
            return self._rows[key].words
        with self._lock:
            if key in self._rows:
                return self._rows[key].words
            count = len(calls(kernel))
            if self._used.get(device, _CHUNK) + count > _CHUNK and not self._grow(device):
                self.missed += 1
                return None
            first, chunk = self._used[device], len(self._chunks[device]) - 1
            self._used[device] = first + count
            words = self._chunks[device][chunk][first * SLOT : (first + count) * SLOT]
            operator_id = cells.intern(f"aten::{operator}")
            self._rows[key] = CounterRow(
                device, kernel, counted, operator_id, place, chunk, first, words
            )  # fmt: skip
            return words

    def _grow(self, device: int) -> bool:
        """Allocate a chunk; return False while a CUDA graph is captured, which forbids it."""
        with _plain(device) as torch:
            if torch.cuda.is_current_stream_capturing():
                return False
            chunk = torch.empty(_CHUNK * SLOT, dtype=torch.int64, device=f"cuda:{device}")
            self._clear(chunk)
            self._chunks.setdefault(device, []).append(chunk)
            self._used[device] = 0
        return True

    def prepare(self, device: int) -> None:
        """Allocate room for rows now: a capture of a CUDA graph cannot allocate it."""
        with self._lock:
            if device not in self._chunks:
                self._grow(device)

    def _clear(self, chunk: Any) -> None:
        import torch

        slot = torch.from_numpy(empty_slot(self._stride))
        chunk.view(_CHUNK, SLOT).copy_(slot.to(chunk.device))
        # Launches on other streams must find the chunk cleared.
        torch.cuda.current_stream().synchronize()

    def read(self) -> tuple[Records, Records]:
        """Wait for the GPUs; return cells and operators, with the runtime's ids of strings.

        Raises:
            SessionBusyError: the calling thread is capturing a CUDA graph.
        """
        parts = [(fields.empty_cells(0), np.zeros(0, fields.OPERATOR))]
        if os.getpid() != self._pid:
            return parts[0]
        with self._lock:
            rows = list(self._rows.values())
            for device, chunks in self._chunks.items():
                with _plain(device) as torch:
                    if torch.cuda.is_current_stream_capturing():
                        raise SessionBusyError(
                            "The profile was asked for while a CUDA graph is being captured. "
                            "Reading it waits for the GPU, which would spoil the capture. Ask "
                            "when the capture has ended."
                        )
                    torch.cuda.synchronize()
                    words = [chunk.cpu().numpy().reshape(_CHUNK, SLOT) for chunk in chunks]
                    clock = _clock(torch) if any(map(_made_something, words)) else 0
                for row in rows:
                    if row.device == device:
                        last = row.first + len(calls(row.kernel))
                        parts.append(row.records(words[row.chunk][row.first : last], clock))
        cells, operators = zip(*parts, strict=True)
        return np.concatenate(cells), np.concatenate(operators)


def _made_something(words: Any) -> bool:
    shards = words[:, :HISTOGRAM_IN].reshape(-1, SHARD)
    return bool((shards[:, MADE : MADE + len(fields.FIRSTS)] != _NEVER).any())


@contextlib.contextmanager
def _plain(device: int) -> Iterator[Any]:
    """Yield torch with ``device`` as the current GPU and without the caller's modes."""
    import torch

    with (
        compat.no_modes(),
        torch.inference_mode(False),
        torch.no_grad(),
        compat.no_torch_function(),
        torch.cuda.device(device),
    ):
        yield torch


def _clock(torch: Any) -> int:
    """Return by how much the GPU's clock lags CLOCK_MONOTONIC, in ns; the best of five tries."""
    from pytest_udftorch.swap.cuda.clock import read_clock

    out = torch.zeros(1, dtype=torch.int64, device="cuda")
    tries = []
    for _ in range(5):
        before = time.monotonic_ns()
        read_clock[(1,)](out)
        now = int(out.item())
        after = time.monotonic_ns()
        tries.append((after - before, (before + after) // 2 - now))
    return min(tries)[1]


#: The rows of this process.
counters: Final = Counters()


def layout(kernel: str, functions: Sequence[str] | frozenset[str]) -> frozenset[str]:
    """Return which of the given functions a kernel or formula calls."""
    return frozenset(call.function for call in calls(kernel)) & frozenset(functions)
