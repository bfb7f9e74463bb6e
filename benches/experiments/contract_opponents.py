# SPDX-License-Identifier: Apache-2.0
"""What other ways to fixed results cost against stock, beside the contract's.

    python -m benches.experiments.contract_opponents [--device cuda] [--repdl DIR] [--store FILE]

On the CPU: torch's deterministic mode, and RepDL (Xie, Zhang, Chen, 2025, arXiv:2510.09180) from a
checkout of github.com/microsoft/RepDL, whose C++ is compiled with the flags of its ``setup.py`` and
again for this machine's CPU. On a GPU: torch's deterministic mode, and sgemm-bi where it is
installed. Each takes turns with stock, in one process and one thread.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import torch
from torch.nn import functional as F

from benches import stored
from benches.experiments import command
from benches.experiments.cpu_operators import keep_freed_memory
from pytest_udftorch import patched

TURNS: Final = 5
#: A turn times as many calls as take so long, and at least one.
TURN_S: Final = 0.01
#: A call that takes as long is not repeated within a turn.
LONG_S: Final = 0.5

Call = Callable[[], object]


@contextmanager
def deterministic() -> Iterator[None]:
    """Turn torch's deterministic mode on."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def _repdl(folder: Path, name: str, flags: Sequence[str]) -> Any:
    """Compile RepDL's functions for the CPU; ``flags`` are beside its own."""
    from torch.utils import cpp_extension

    sources = sorted(map(str, (folder / "backend" / "cpu").glob("*.cpp")))
    return cpp_extension.load(name, sources, extra_cflags=["-O2", "-fopenmp", *flags])


def _on_cpu(repdl: Path | None) -> dict[str, dict[str, Call]]:
    """Return call -> contender -> what it does; ``stock`` stands for the modes, too."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(512, 512, generator=generator) for _ in "ab")
    x, w = (torch.randn(*s, generator=generator) for s in ((8, 64, 32, 32), (64, 64, 3, 3)))
    vector = torch.randn(1 << 20, generator=generator)
    matrix = vector.view(1024, 1024)
    calls: dict[str, dict[str, Call]] = {
        "mm, 512": {"stock": lambda: torch.mm(a, b)},
        "conv2d, 8×64×32×32, kernel 3": {"stock": lambda: F.conv2d(x, w, padding=1)},
        "sum, 2^20": {"stock": lambda: vector.sum()},
        "sum of rows, 1024×1024": {"stock": lambda: matrix.sum(1)},
    }
    builds = {"RepDL": (), "RepDL, -O3 -march=native": ("-O3", "-march=native")}
    for at, (name, flags) in enumerate(builds.items() if repdl else ()):
        made = _repdl(repdl, f"repdl_cpu_{at}", flags)
        theirs: tuple[Call, ...] = (
            lambda m=made: m.mm(a, b, False, False),
            lambda m=made: m.conv2d(x, w, 1, 1, 1, 1, 1),
            lambda m=made: m.sum1d(vector, False),
            lambda m=made: m.sum2d_dim1(matrix, False, False),
        )
        for contenders, call in zip(calls.values(), theirs, strict=True):
            contenders[name] = call
    return calls


def _on_gpu() -> dict[str, dict[str, Call]]:
    torch.backends.cuda.matmul.allow_tf32 = False
    calls: dict[str, dict[str, Call]] = {}
    for n in (1024, 2048, 4096):
        a, b = (torch.randn(n, n, device="cuda") for _ in "ab")
        calls[f"mm, {n}"] = {"stock": lambda a=a, b=b: torch.mm(a, b)}
        try:
            import sgemm_bi  # type: ignore[import-not-found,unused-ignore]
        except ImportError:
            continue
        calls[f"mm, {n}"]["sgemm-bi"] = lambda a=a, b=b: sgemm_bi.deterministic_linear(a, b)
    return calls


def _seconds(call: Call, count: int, device: str) -> float:
    if device == "cpu":
        begin = time.thread_time()
        for _ in range(count):
            call()
        return (time.thread_time() - begin) / count
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(count):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / count


def compared(contenders: dict[str, Call], device: str) -> dict[str, Any]:
    """Return contender -> its speed as a share of stock's in the same turn, and stock's time."""
    stock = contenders["stock"]
    modes: dict[str, Any] = {
        "deterministic mode": deterministic, "repro": lambda: patched("repro"),
    }  # fmt: skip
    others = {
        **{name: (stock, mode) for name, mode in modes.items()},
        **{n: (call, nullcontext) for n, call in contenders.items() if n != "stock"},
    }
    times: list[float] = []
    shares: dict[str, list[float]] = {name: [] for name in others}
    for turn in range(-1, TURNS):
        count = max(1, int(TURN_S / max(_seconds(stock, 2, device), 1e-7)))
        mine = _seconds(stock, count, device)
        for name, (call, mode) in others.items():
            with mode():
                theirs = _seconds(call, 1, device)
                if theirs < LONG_S:
                    again = min(count, int(10 * TURN_S / theirs))
                    theirs = _seconds(call, max(1, again), device)
            if turn >= 0:
                shares[name].append(mine / theirs)
        if turn >= 0:
            times.append(mine)
    found = {name: stored.summary(values) for name, values in shares.items()}
    return {"stock_us": statistics.median(times) * 1e6, "speeds": found}


def measure(device: str, repdl: Path | None) -> dict[str, Any]:
    """Return call -> speeds, and where they were measured."""
    keep_freed_memory()
    torch.set_num_threads(1)
    calls = _on_cpu(repdl) if device == "cpu" else _on_gpu()
    versions = {}
    for package in ("sgemm-bi",) if device == "cuda" else ():
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    figures = {name: compared(contenders, device) for name, contenders in calls.items()}
    where = torch.cuda.get_device_name() if device == "cuda" else None
    return {"device": where, "packages": versions, "turns": TURNS, "calls": figures}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = command.parser("contract_opponents", __doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where to compute")
    parser.add_argument("--repdl", type=Path, metavar="DIR", help="a checkout of RepDL")
    options = parser.parse_args(arguments)
    options.changed = [] if options.device == "cpu" else ["--device cuda"]
    options.changed += ["--repdl DIR"] if options.repdl else []

    def show(figures: dict[str, Any]) -> bool:
        for name, row in figures["calls"].items():
            for other, speed in row["speeds"].items():
                print(f"{name:35} {other:28} {speed['median']:.4f}")
        return True

    measured = lambda: measure(options.device, options.repdl)  # noqa: E731
    return command.run("contract_opponents", options, measured, show)


if __name__ == "__main__":
    sys.exit(main())
