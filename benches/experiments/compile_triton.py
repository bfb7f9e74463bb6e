# SPDX-License-Identifier: Apache-2.0
"""Triton against PyTorch: element-wise addition and fused row softmax.

Achieved bandwidth counts the fewest bytes an operation must move (each input read once, the
output written once) over its time. The yardstick is a device-to-device copy measured in the
same interleaved comparison.
``python -m benches.experiments.compile_triton OUT.json`` measures and stores.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
import triton
import triton.language as tl

from benches.experiments.experiment import missing_folder, save
from pytest_udftorch.errors import DeviceMissingError
from pytest_udftorch.measure import SyncTimer
from pytest_udftorch.measure.planning.cuda_graph import capture
from pytest_udftorch.measure.timing.device import describe_device
from pytest_udftorch.measure.timing.statistics import median

ROW_LENGTHS = [2**k for k in range(8, 17)] + [1000, 3000, 12288, 50257]
SIZES = [2**k for k in range(12, 29, 4)]

#: Rows up to this length stay in the registers of one program.
IN_REGISTERS = 32768

#: Of longer rows, up to about twice that, two or three chunks of this length stay there, and so
#: does the rest if it is short.
CHUNK = 16384

#: How many registers a multiprocessor has. A program gets all of them where a row needs them.
REGISTERS = 65536

#: Too many registers, or too much shared memory.
FAILURES = (triton.runtime.errors.OutOfResources, RuntimeError)


@triton.jit
def _add(a, b, out, n, BLOCK: tl.constexpr):
    # 64-bit offsets: a tensor may hold more than 2**31 elements.
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(a + at, inside) + tl.load(b + at, inside), inside)


@triton.jit
def _add_one_block(a, b, out, n, BLOCK: tl.constexpr):
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < n
        tl.store(out + at, tl.load(a + at, inside) + tl.load(b + at, inside), inside)


@triton.jit
def _softmax_rows(x, y, rows, n, BLOCK: tl.constexpr, ROWS: tl.constexpr, WHOLE: tl.constexpr):
    # 64 bits for the tile's place, 32 within the tile.
    first = tl.program_id(0).to(tl.int64) * ROWS
    x += first * n
    y += first * n
    row = tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    at = row[:, None] * n + column[None, :]
    if WHOLE:
        value = tl.load(x + at)
    else:
        inside = (first + row[:, None] < rows) & (column[None, :] < n)
        value = tl.load(x + at, inside, other=-float("inf"))
    power = tl.exp(value - tl.max(value, 1)[:, None])
    result = power * (1.0 / tl.sum(power, 1))[:, None]
    if WHOLE:
        tl.store(y + at, result)
    else:
        tl.store(y + at, result, inside)


@triton.jit
def _softmax_long(
    x, y, n, HEAD: tl.constexpr, CHUNK: tl.constexpr, STORE: tl.constexpr, STAGES: tl.constexpr
):
    # The head of the row stays in registers; the tail is reduced with a running maximum and
    # sum (Milakov and Gimelshein, arXiv:1805.02867, algorithm 3) and read again from the L2.
    x += tl.program_id(0).to(tl.int64) * n
    y += tl.program_id(0).to(tl.int64) * n
    first = tl.arange(0, HEAD)
    head = tl.load(x + first, eviction_policy="evict_first")
    column = tl.arange(0, CHUNK)
    largest = tl.full([CHUNK], -float("inf"), tl.float32)
    total = tl.zeros([CHUNK], tl.float32)
    for start in tl.range(HEAD, n, CHUNK, num_stages=STAGES):
        at = start + column
        value = tl.load(x + at, at < n, other=-float("inf"), eviction_policy="evict_last")
        larger = tl.maximum(largest, value)
        # A lane that has seen only -inf would give inf - inf.
        base = tl.where(larger == -float("inf"), 0.0, larger)
        total = total * tl.exp(largest - base) + tl.exp(value - base)
        largest = larger
    peak = tl.maximum(tl.max(largest, 0), tl.max(head, 0))
    head = tl.exp(head - peak)
    scale = 1.0 / (tl.sum(total * tl.exp(largest - peak), 0) + tl.sum(head, 0))
    tl.store(y + first, head * scale, cache_modifier=STORE)
    for start in tl.range(HEAD, n, CHUNK, num_stages=STAGES):
        at = start + column
        value = tl.load(x + at, at < n, eviction_policy="evict_first")
        tl.store(y + at, tl.exp(value - peak) * scale, at < n, cache_modifier=STORE)


@triton.jit
def _softmax_wide(
    x,
    y,
    n,
    CHUNK: tl.constexpr,
    KEPT: tl.constexpr,
    REST: tl.constexpr,
    AGAIN: tl.constexpr,
    EVEN: tl.constexpr,
    STORE: tl.constexpr,
):
    # One program has all registers of a multiprocessor. Two or three chunks of the row stay in
    # them. The rest stays too, or is read again, from the L2: a quarter of 65,536 columns, where
    # reading more again makes the L2 the bottleneck.
    begin = tl.program_id(0).to(tl.int64) * n
    lead = 0
    if not EVEN:
        # Chunks begin at the row's first whole group of four, so that 16 bytes are moved at once;
        # the floats before it belong to the rest.
        aligned = (begin + 3) // 4 * 4
        lead = (aligned - begin).to(tl.int32)
        begin = aligned
    x += begin
    y += begin
    lane = tl.arange(0, CHUNK)
    spot = tl.arange(0, REST)
    place = KEPT * CHUNK + spot
    if not EVEN:
        place = tl.where(spot < REST - 4, place, spot - REST)
    inside = (place >= -lead) & (place < n - lead)
    if AGAIN:
        rest = tl.load(x + place, inside, other=-float("inf"), eviction_policy="evict_last")
    else:
        rest = tl.load(x + place, inside, other=-float("inf"))
    first = tl.load(x + lane)
    second = tl.load(x + CHUNK + lane)
    third = first
    if KEPT == 3 and not AGAIN:
        third = tl.load(x + 2 * CHUNK + lane)
    rest_peak = tl.max(rest, 0)
    rest_total = 0.0
    # A rest of -inf alone would give inf - inf.
    base = tl.where(rest_peak == -float("inf"), 0.0, rest_peak)
    if AGAIN:
        rest_total = tl.sum(tl.exp(rest - base), 0)
        if KEPT == 3:
            # Only now are there registers for it.
            third = tl.load(x + 2 * CHUNK + lane)
    peak = tl.maximum(tl.max(tl.maximum(tl.maximum(first, second), third), 0), rest_peak)
    first = tl.exp(first - peak)
    second = tl.exp(second - peak)
    sums = first + second
    if KEPT == 3:
        third = tl.exp(third - peak)
        sums += third
    if AGAIN:
        rest_total *= tl.exp(base - peak)
    else:
        rest = tl.exp(rest - peak)
        rest_total = tl.sum(rest, 0)
    scale = 1.0 / (tl.sum(sums, 0) + rest_total)
    tl.store(y + lane, first * scale, cache_modifier=STORE)
    if AGAIN:
        rest = tl.load(x + place, inside, other=-float("inf"), eviction_policy="evict_first")
    tl.store(y + CHUNK + lane, second * scale, cache_modifier=STORE)
    if KEPT == 3:
        tl.store(y + 2 * CHUNK + lane, third * scale, cache_modifier=STORE)
    if AGAIN:
        rest = tl.exp(rest - peak)
    tl.store(y + place, rest * scale, inside, cache_modifier=STORE)


def add(a, b, block=2048, warps=4):
    """Return a + b, float32 tensors of one shape, in many blocks."""
    out = torch.empty_like(a)
    _add[(triton.cdiv(a.numel(), block),)](a, b, out, a.numel(), BLOCK=block, num_warps=warps)
    return out


def add_one_block(a, b):
    """Return a + b computed by a single program."""
    out = torch.empty_like(a)
    _add_one_block[(1,)](a, b, out, a.numel(), BLOCK=4096, num_warps=8)
    return out


def settings(n):
    """Return the launch settings worth trying for rows of n numbers.

    The kernel's name, then its block sizes and warps.
    """
    block = triton.next_power_of_2(n)
    # Four lanes of the rest hold the floats before the first group of four.
    kept = min(3, (n if n % 4 == 0 else n - 3) // CHUNK)
    rest = max(128, triton.next_power_of_2(n - kept * CHUNK + (0 if n % 4 == 0 else 4)))
    if n > IN_REGISTERS and rest <= CHUNK:
        # Of 64 registers, a thread can give 56 to floats of the row.
        again = kept * CHUNK + rest > 56 * 1024
        return [
            ("wide", kept, rest, again, warps, store) for warps in (16, 32) for store in ("", ".cs")
        ]
    if n > IN_REGISTERS:
        return [
            ("long", head, chunk, warps, store, stages)
            for head in (16384, 32768)
            for chunk in (4096, 8192)
            for warps in (16, 32)
            for store in ("", ".cs")
            for stages in (1, 3)
        ]
    tried = []
    for rows in (1, 2, 4, 8, 16, 32):
        for warps in (1, 2, 4, 8, 16, 32):
            per_thread = rows * block / (32 * warps)
            if 4 <= per_thread <= 64:
                tried.append(("rows", rows, block, warps))
    return tried


_chosen: dict[int, tuple] = {}


def _launch(x, y, setting):
    count, n = x.shape
    kernel, *sizes = setting
    if kernel == "wide":
        kept, rest, again, warps, store = sizes
        _softmax_wide[(count,)](
            x,
            y,
            n,
            CHUNK=CHUNK,
            KEPT=kept,
            REST=rest,
            AGAIN=again,
            EVEN=n % 4 == 0,
            STORE=store,
            num_warps=warps,
            maxnreg=REGISTERS // (32 * warps),
        )
    elif kernel == "long":
        head, chunk, warps, store, stages = sizes
        _softmax_long[(count,)](
            x, y, n, HEAD=head, CHUNK=chunk, STORE=store, STAGES=stages, num_warps=warps
        )
    else:
        rows, block, warps = sizes
        grid = (triton.cdiv(count, rows),)
        whole = n == block and count % rows == 0
        _softmax_rows[grid](x, y, count, n, BLOCK=block, ROWS=rows, WHOLE=whole, num_warps=warps)
    return y


def softmax(x):
    """Return softmax over the last dimension of a contiguous rows x n float32 tensor.

    The launch setting of a row length is chosen by measurement at its first use.
    """
    n = x.shape[1]
    if n not in _chosen:
        y = torch.empty_like(x)

        def cost(setting, milliseconds):
            try:
                _launch(x, y, setting)
                # Ten replays, each of this many milliseconds of calls.
                return triton.testing.do_bench_cudagraph(
                    lambda: _launch(x, y, setting), rep=milliseconds, return_mode="median"
                )
            except FAILURES:
                return float("inf")

        best = sorted(settings(n), key=lambda s: cost(s, 2))[:4]
        _chosen[n] = min(best, key=lambda s: cost(s, 10))
    return _launch(x, torch.empty_like(x), _chosen[n])


def naive_softmax(x):
    """Return softmax in five steps, each a kernel of its own."""
    largest = x.max(dim=1, keepdim=True).values
    shifted = x - largest
    power = torch.exp(shifted)
    total = power.sum(dim=1, keepdim=True)
    return power / total


def _distance(result, reference):
    return float((result.double() - reference).norm() / reference.norm())


def _medians(timed):
    return {name: round(timing.median_ns) for name, timing in timed.timings.items()}


def _launches(timed):
    return {name: round(median(timing.launch_ns)) for name, timing in timed.timings.items()}


def _both(contenders, runs, rounds):
    """Return the time on the device, and the time of a call with its launch.

    For the first each contender is captured in a CUDA graph, and a flush of the L2 before each
    round hides the launch of the graph. (The tensors are far larger than the L2.) The copy is
    launched without a graph, because a captured copy is another, slower operation; its launch is
    short enough to be hidden.
    """
    marker = torch.zeros(1, device="cuda")
    replays = {"copy": contenders["copy"]}
    for name, call in contenders.items():
        if name == "copy":
            continue
        replay = capture(lambda _, call=call: call(), (marker,))
        replays[name] = functools.partial(replay, *replay.inputs)
    timer = SyncTimer("cuda", runs=runs, rounds=rounds, warmup=3, flush_l2=True)
    device = timer.compare(replays).complete()
    called = SyncTimer("cuda", runs=runs, rounds=rounds, warmup=3).compare(contenders).complete()
    return device, called


def measure_softmax(elements, lengths=ROW_LENGTHS, runs=20, rounds=10):
    """Return one row per row length: times, shares of copy bandwidth, errors."""
    table = []
    for n in lengths:
        rows = elements // n
        x = torch.randn(rows, n, device="cuda")
        target = torch.empty_like(x)
        contenders = {
            "copy": lambda x=x, target=target: target.copy_(x),
            "triton": lambda x=x: softmax(x),
            "torch": lambda x=x: torch.softmax(x, dim=1),
            "naive": lambda x=x: naive_softmax(x),
        }
        device, called = _both(contenders, runs, rounds)
        sample = x[:64]
        reference = torch.softmax(sample.double(), dim=1)
        copy_ns = device["copy"].median_ns
        table.append(
            {
                "columns": n,
                "rows": rows,
                "setting": list(_chosen[n]),
                "median_ns": _medians(device),
                "share_of_copy": {
                    k: round(copy_ns / t.median_ns, 4) for k, t in device.timings.items()
                },
                "gigabytes_per_second": {
                    k: round(8 * rows * n / t.median_ns, 1) for k, t in device.timings.items()
                },
                "triton_over_torch": round(device.speedup("triton", over="torch").value, 4),
                "verdict_over_torch": device.verdict("triton", over="torch"),
                "with_launch": {
                    "median_ns": _medians(called),
                    "triton_over_torch": round(called.speedup("triton", over="torch").value, 4),
                    "verdict_over_torch": called.verdict("triton", over="torch"),
                },
                "launch_ns": _launches(called),
                "distance_to_float64": {
                    "triton": _distance(softmax(x)[:64], reference),
                    "torch": _distance(torch.softmax(x, dim=1)[:64], reference),
                },
                "throttled": device.throttled or called.throttled,
                "runs_ns": {k: t.document()["runs_ns"] for k, t in device.timings.items()},
            }
        )
        del x, target, contenders
    return table


def measure_add(sizes=SIZES, runs=20, rounds=10):
    """Return one row per size: times and shares of copy bandwidth."""
    table = []
    for n in sizes:
        a, b = torch.randn(n, device="cuda"), torch.randn(n, device="cuda")
        target = torch.empty_like(a)
        contenders = {
            "copy": lambda a=a, target=target: target.copy_(a),
            "triton": lambda a=a, b=b: add(a, b),
            "torch": lambda a=a, b=b: a + b,
        }
        # One program takes some 30 ns per kilobyte, and so seconds for the largest sizes.
        if n <= 2**20:
            contenders["triton, one block"] = lambda a=a, b=b: add_one_block(a, b)
        device, called = _both(contenders, runs, rounds)
        per_byte = device["copy"].median_ns / (8 * n)
        moved = {name: 8 * n if name == "copy" else 12 * n for name in device.timings}
        table.append(
            {
                "elements": n,
                "median_ns": _medians(device),
                "launch_ns": _launches(called),
                "share_of_copy": {
                    k: round(moved[k] * per_byte / t.median_ns, 4)
                    for k, t in device.timings.items()
                },
                "with_launch": {"median_ns": _medians(called)},
                "exact": bool(torch.equal(add(a, b), a + b)),
                "throttled": device.throttled or called.throttled,
                "runs_ns": {k: t.document()["runs_ns"] for k, t in device.timings.items()},
            }
        )
    return table


def _compile_settings(n, elements):
    x = torch.zeros(elements // n, n, device="cuda")
    y = torch.empty_like(x)
    for setting in settings(n):
        # The choice of a setting tries it again, and leaves it out.
        with contextlib.suppress(*FAILURES):
            _launch(x, y, setting)
    torch.cuda.synchronize()


def compile_settings(lengths, elements):
    """Compile all settings into Triton's cache, side by side."""
    workers = min(len(lengths), len(os.sched_getaffinity(0)))
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(_compile_settings, lengths, [elements] * len(lengths)))


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--elements", type=int, default=2**28)
    parser.add_argument("--runs", type=int, default=20)
    options = parser.parse_args(arguments)
    try:
        described = describe_device("cuda")
    except DeviceMissingError as error:
        sys.exit(f"compile_triton: {error}")
    if missing := missing_folder(options.output):
        parser.error(missing)
    compile_settings(ROW_LENGTHS, options.elements)
    result = {
        **described,
        "command": "python -m benches.experiments.compile_triton OUT.json "
        f"--elements {options.elements} --runs {options.runs}",
        "elements": options.elements,
        "add": measure_add(runs=options.runs),
        "softmax": measure_softmax(options.elements, runs=options.runs),
    }
    save(options.output, result)
    for row in result["add"]:
        print(row["elements"], row["share_of_copy"], row["exact"])
    for row in result["softmax"]:
        print(
            row["columns"],
            row["setting"],
            row["share_of_copy"],
            row["triton_over_torch"],
            row["verdict_over_torch"],
            row["with_launch"]["triton_over_torch"],
            row["distance_to_float64"],
        )


if __name__ == "__main__":
    sys.exit(main())
