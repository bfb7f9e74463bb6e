# SPDX-License-Identifier: Apache-2.0
"""Measure again what README and docs show, and store it under benches/results.

    python -m benches.store [entry_exit] [build] [reach] [demo] [speed] [speed_analysis]
        [compiled_cpu] [contract_digests] [contract_models] [contract_operators] [contract_speed]
        [contract_small] [corem_models] [cpu_operators] [exact_products] [exclusive]
        [innocent_pairs] [interrupts] [ladder] [tolerance] [patch] [planted_blame]
        [planted_faults] [planted_sameness] [record_overhead] [sanitizers] [on_policy]
        [resumed_trainers]
        [summation_trees] [switchboard] [taso_examples] [taso_funnel] [fusion_plans]
        [recompilation] [tiled_pipelines] [profile] [same] [rewriting_gains] [pet_convolutions]
        [cuda_differences] [compile] [cuda_digests] [composite_digests] [cuda_pairs]
        [cuda_attention] [cuda_speed] [cuda_launch] [cuda_training] [exact_products_cuda]
        [contract_digests_cuda] [contract_digests_cuda_h100] [contract_digests_sixteen]
        [contract_ranks_cuda] [profile_cuda] [other_machines] [aarch64_forms] [aarch64_sve]
        [faults] [stress] [fuzz] [foreign_suites] [patched_suite] [versions] [coverage] [compilers]
        [coverage_compiled] [coverage_cuda] [quick_paths] [beside_others] [site] [inlined]
        [float64_speed] [stock_certificates] [--raw FOLDER]

``--raw FOLDER`` also writes all that was measured, in all digits, to files in a folder, because
benches/results has summaries. A bench's own command does so when it is told to store elsewhere.

Without names it measures everything that needs no GPU, no QEMU, no hours of fuzzing, and no suites,
models or interpreters of others. ``profile`` stands for its parts, ``profile_counting`` and so on,
and ``compile`` for the benches of torch.compile on the CPU. Each bench runs in a process of its
own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benches import stored

#: Suites of pytest-benchmark, by the name of their stored file.
SUITES = {
    "entry_exit": "benches/suites/test_entry_exit.py",
    "build": "benches/suites/test_build.py",
}


def _experiments(*names: str) -> dict[str, tuple[str, ...]]:
    """Return the commands of experiments that store under their own name."""
    return {
        n: (f"benches.experiments.{n}", "--store", str(stored.RESULTS / f"{n}.json")) for n in names
    }


#: The profiler's benches, the quick ones first.
PROFILE = tuple(f"profile_{n}" for n in ("counting", "operations", "time", "accuracy", "overhead"))

#: Commands that store by themselves.
COMMANDS = {
    "reach": ("pytest_udftorch.cli", "reach", "--store", str(stored.RESULTS / "reach.json")),
    "demo": ("benches.experiments.demo_lenet", "--store", str(stored.RESULTS / "demo_lenet.json")),
    "speed": ("benches.experiments.speed", "--store"),
    "quick_paths": ("benches.experiments.quick_paths", "--store"),
    "scalar_forms": ("benches.experiments.scalar_forms", "--store"),
    "float64_speed": ("benches.experiments.float64_speed", "--store"),
    "compiled_cpu": ("benches.experiments.compiled_cpu", "--store"),
    "speed_analysis": ("benches.experiments.speed_analysis", "--store"),
    **_experiments(
        "patch", "faults", "stress", "interrupts", "cpu_operators", "exclusive", "special_functions"
    ),
    **_experiments(
        "ladder",
        "tolerance",
        "sanitizers",
        "innocent_pairs",
        "planted_faults",
        "planted_blame",
        "planted_sameness",
        "summation_trees",
        "switchboard",
        "taso_examples",
        "taso_funnel",
        "fusion_plans",
        "recompilation",
        "tiled_pipelines",
        "contract_digests",
        "contract_speed",
        "contract_models",
        "exact_products",
        "inlined",
        "record_overhead",
        "float64",
        *PROFILE,
    ),
}
#: Those that need a GPU, or what `make wheel` makes; left out unless they are named.
GPU = _experiments(
    "cuda_attention",
    "cuda_differences",
    "cuda_digests",
    "composite_digests",
    "cuda_pairs",
    "cuda_speed",
    "cuda_counters",
    "cuda_launch",
    "cuda_training",
    "exact_products_cuda",
    "contract_digests_cuda",
    "contract_digests_sixteen",
    "contract_ranks_cuda",
    "contract_small_cuda",
    "profile_cuda",
    "wheel",
)
#: A second machine with a GPU has a file of its own.
GPU["contract_digests_cuda_h100"] = (
    "benches.experiments.contract_digests_cuda",
    "--store", str(stored.RESULTS / "contract_digests_cuda_h100.json"),
)  # fmt: skip
#: The size of the site, which needs the extra `docs`; left out unless it is named.
SITE = {"site": ("benches.render.site", "--store", str(stored.RESULTS / "site.json"))}
#: Those that need hours, QEMU, Atheris, others' suites or models, or other versions; left out
#: unless they are named.
LONG = _experiments(
    "beside_others", "other_machines", "aarch64_forms", "fuzz", "foreign_suites", "patched_suite",
    "versions", "coverage", "contract_operators", "contract_small", "corem_models", "same",
    "float64_check", "rewriting_gains", "pet_convolutions", "first_hour", "one_time_builds",
    "on_policy", "resumed_trainers",
)  # fmt: skip
LONG["stock_certificates"] = ("benches.experiments.stock_certificates", "--store")
LONG["aarch64_sve"] = (
    "benches.experiments.aarch64_forms", "--level", "sve256",
    "--store", str(stored.RESULTS / "aarch64_sve.json"),
)  # fmt: skip
LONG["coverage_compiled"] = (
    "benches.experiments.coverage", "--compiled",
    "--store", str(stored.RESULTS / "coverage_compiled.json"),
)  # fmt: skip
LONG["compilers"] = (
    "benches.experiments.compile_models", str(stored.RESULTS / "compile_compilers_cpu.json"),
    "--only", "end_to_end", "--models", "squeezenet1_1", "mobilenet_v2",
    "--batches", "1", "--runs", "7", "--rounds", "1",
    "--executors", "eager", "compile", "onnxruntime", "openvino", "iree", "tvm",
)  # fmt: skip
GPU["coverage_cuda"] = (
    "benches.experiments.coverage", "--device", "cuda",
    "--store", str(stored.RESULTS / "coverage_cuda.json"),
)  # fmt: skip
GPU["coverage_compiled_cuda"] = (
    "benches.experiments.coverage", "--compiled", "--device", "cuda",
    "--store", str(stored.RESULTS / "coverage_compiled_cuda.json"),
)  # fmt: skip

#: The benches of torch.compile whose results on the CPU are stored; those of a GPU are made on
#: a machine that has one (docs/measure/compile.md).
COMPILE = tuple(
    f"compile_{n}"
    for n in (
        "matmul", "convolutions", "resnet_convolutions", "chains", "layers", "transformers",
        "predictor",
    )
)  # fmt: skip
COMMANDS |= {
    n: (
        f"benches.experiments.{n}", str(stored.RESULTS / f"{n}_cpu.json"),
        "--device", "cpu", "--scale", "full", "--budget", "1800", "--again",
    )
    for n in COMPILE
}  # fmt: skip


def condensed(document: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a pytest-benchmark file that are worth keeping.

    Args:
        document: what ``--benchmark-json`` wrote, with times in seconds.

    Returns:
        name of the bench -> times in nanoseconds, rounds, and its ``extra_info``.
    """
    found = {}
    for bench in document["benchmarks"]:
        stats = bench["stats"]
        found[bench["name"]] = {
            "rounds": stats["rounds"],
            "time_ns": {
                new: round(stats[old] * 1e9)
                for new, old in (
                    ("min", "min"),
                    ("lower_quartile", "q1"),
                    ("median", "median"),
                    ("upper_quartile", "q3"),
                    ("max", "max"),
                )
            },
            **bench["extra_info"],
        }
    return found


def measure(name: str) -> int:
    """Measure one of them and store it; return the exit status."""
    commands = COMMANDS | GPU | SITE | LONG
    if name in commands:
        return subprocess.run([sys.executable, "-m", *commands[name]], check=False).returncode
    with tempfile.TemporaryDirectory() as scratch:
        record = Path(scratch) / "benchmark.json"
        options = ("--bench-scale=full", f"--benchmark-json={record}")
        status = subprocess.run(
            [sys.executable, "-m", "pytest", SUITES[name], *options], check=False
        ).returncode
        if status == 0:
            benches = condensed(json.loads(record.read_text(encoding="utf-8")))
            stored.save(
                stored.RESULTS / f"{name}.json", f"python -m benches.store {name}",
                {"benches": benches},
            )  # fmt: skip
    return status


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is named; return the first exit status that is not 0."""
    groups = {"profile": PROFILE, "compile": COMPILE}
    everything = [*SUITES, *COMMANDS]
    names = [*everything, *groups, *GPU, *SITE, *LONG]
    parser = argparse.ArgumentParser(prog="python -m benches.store", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(names)}")
    parser.add_argument(
        "--raw", type=Path, metavar="FOLDER", help="keep all that was measured in files there"
    )
    options = parser.parse_args(arguments)
    if options.raw is not None:
        os.environ[stored.RAW] = str(options.raw.resolve())
    for name in options.names:
        if name not in names:
            parser.error(f"{name!r} is not one of {', '.join(names)}.")
    stored.RESULTS.mkdir(exist_ok=True)
    chosen = [part for name in options.names for part in groups.get(name, (name,))]
    for name in chosen or everything:
        status = measure(name)
        if status:
            print(f"{name} was not stored: exit status {status}", file=sys.stderr)
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
