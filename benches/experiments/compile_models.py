# SPDX-License-Identifier: Apache-2.0
"""The six torchvision models end to end over the executors, and what the instruments cost.

``python -m benches.experiments.compile_models OUT.json --models resnet50`` measures on the
GPU if there is one. The command keeps what OUT.json already holds from this machine, so an
interrupted run continues where it stopped. ``--side-by-side`` gives each model a process; the
processes make executors at the same time, but a lock lets only one of them measure.
"""

from __future__ import annotations

import argparse
import difflib
import fcntl
import importlib.metadata
import subprocess
import sys
import warnings
from pathlib import Path

import torch
import torchvision

from benches import stored
from benches.experiments.experiment import differing, missing_folder, save, turn
from pytest_udftorch import UdfError
from pytest_udftorch.measure import (
    instrument_overhead,
    layer_profile,
    layer_subtraction,
    layer_times,
    model_pair,
)
from pytest_udftorch.measure.timing.device import describe_device
from pytest_udftorch.measure.timing.statistics import median

MODELS = ["alexnet", "resnet50", "mobilenet_v2", "googlenet", "squeezenet1_1", "densenet121"]

EXECUTORS = {
    "cpu": ["eager", "eager+channels_last", "compile", "torchscript-trace"],
    "cuda": [
        "eager",
        "eager+cudagraph",
        "eager+channels_last+cudagraph",
        "torchscript-trace",
        "torchscript-script",
        "fx",
        "compile",
        "compile-reduce-overhead",
        "compile+cudagraph",
        "compile+channels_last+cudagraph",
        "eager+fused+streams+cudagraph",
        "compile+fused+channels_last+cudagraph",
        "compile-max-autotune-no-cudagraphs",
        "compile-max-autotune",
        "aotinductor",
    ],
}


#: Executors that are other projects' compilers -> the package whose version is stored.
COMPILERS = {
    "onnxruntime": "onnxruntime",
    "openvino": "openvino",
    "iree": "iree-base-compiler",
    "tvm": "apache-tvm",
}


#: What the command leaves out unless you name it, and why.
LEFT_OUT = {
    ("densenet121", "cuda"): {
        name: "TorchScript's tensor-expression fuser does not finish on it (torch 2.11 on "
        "an H200; without the fuser it runs), and Ctrl-C does not reach that compiler"
        for name in ("torchscript-trace", "torchscript-script")
    },
}


def build(name, seed=0):
    """Return the torchvision model of this name in evaluation mode, with seeded weights."""
    options = {"init_weights": False} if name == "googlenet" else {}
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        # GoogLeNet announces a change of its default initialisation.
        warnings.simplefilter("ignore")
        return getattr(torchvision.models, name)(**options).eval()


def images(batch, device, size=224):
    """Return a batch of normally distributed pixels, N x 3 x size x size."""
    generator = torch.Generator().manual_seed(batch)
    return torch.randn(batch, 3, size, size, generator=generator).to(device)


def end_to_end(name, batch, device, executors=None, lock=None, **timer):
    """Return the pair's report for one model and batch; after Ctrl-C, of what is made by then."""
    model, x = build(name).to(device), images(batch, device)
    left_out = {} if executors else LEFT_OUT.get((name, device), {})
    for executor, why in left_out.items():
        print(f"{name} {batch}: {executor} is left out: {why}", flush=True)
    with turn(lock, fcntl.LOCK_SH):
        pair = model_pair(
            model,
            x,
            executors or [e for e in EXECUTORS[device] if e not in left_out],
            progress=lambda done, of, text: print(
                f"{name} {batch}: {done}/{of} {text}", flush=True
            ),
        )
    with turn(lock, fcntl.LOCK_EX):
        pair.measure(**timer).complete()
    packages = {e: COMPILERS[e] for e in pair.members if e in COMPILERS}
    compilers = {e: importlib.metadata.version(p) for e, p in packages.items() if e in pair.working}
    return {
        "model": name,
        "batch": batch,
        "left_out": left_out,
        **({"compilers": compilers} if packages else {}),
        **pair.document(),
    }


def validation(name, batch, device, lock=None, runs=20, rounds=10, prefix_rounds=3, times=None):
    """Return what eight instruments cost, and how well the layers' sums meet the whole.

    ``times``, a dict, gets instrument -> nanoseconds of each run.
    """
    model, x = build(name).to(device), images(batch, device)
    with turn(lock, fcntl.LOCK_EX):
        print(f"{name} {batch}: instruments", flush=True)
        instruments = instrument_overhead(model, (x,), runs=runs, rounds=rounds)
        print(f"{name} {batch}: layers", flush=True)
        hooked = layer_times(model, (x,), runs=runs, rounds=rounds).complete()
        subtracted = layer_subtraction(
            model, (x,), runs=max(7, runs // 2), rounds=prefix_rounds
        ).complete()
        profiled = layer_profile(model, (x,), passes=rounds)
    if times is not None:
        times |= {key: timing.wall_ns for key, timing in instruments.items()}
    pure = median(instruments["pure"].wall_ns)
    return {
        "model": name,
        "batch": batch,
        "instruments": {
            key: {
                "wall_ns": round(median(timing.wall_ns)),
                "over_pure": round(median(timing.wall_ns) / pure, 4),
            }
            for key, timing in instruments.items()
        },
        "layers": len(hooked.rows),
        "layer_timing_share": round(hooked.share, 5),
        "layer_subtraction_share": round(subtracted.share, 5),
        "notes": sorted({*hooked.notes, *subtracted.notes}),
        "profiler": {
            "cuda_total_ns": round(sum(row.cuda_total_ns for row in profiled)),
            "cuda_self_ns": round(sum(row.cuda_self_ns for row in profiled)),
            "cpu_self_ns": round(sum(row.cpu_self_ns for row in profiled)),
        },
    }


def begin(path, device, lists):
    """Return the document of an earlier run on this machine, or one with empty lists.

    A file of another machine, or of other versions, ends the command: it would be overwritten.
    """
    settings = describe_device(device)
    fresh = {**settings, **{name: [] for name in lists}}
    if missing := missing_folder(path):
        sys.exit(missing)
    if not path.exists():
        return fresh
    try:
        found = stored.load(path)
        other = differing(found, settings)
    except (OSError, ValueError, KeyError, TypeError):
        sys.exit(f"{path} is not a stored result of a bench. Name another file, or delete it.")
    if other:
        sys.exit(
            f"{path} was measured with another {', '.join(other)}, and would be overwritten. "
            "Name another file, or delete it."
        )
    return {**fresh, **found}


def there(rows, name, batch):
    """Return whether a row of this model and batch is in a list."""
    return any(row["model"] == name and row["batch"] == batch for row in rows)


def side_by_side(module, options, device, lists, arguments):
    """Run one process for each model and join what they stored; return the worst exit status.

    Each process has its own file beside the output, so that an interruption loses no finished row.
    """
    lock = options.output.with_suffix(".lock")
    processes = {}
    for name in options.models:
        part = options.output.with_suffix(f".{name}.json")
        given = [str(part), "--models", name, "--lock", str(lock), *arguments]
        processes[part] = subprocess.Popen([sys.executable, "-m", module, *given])
    status = 0
    try:
        for process in processes.values():
            status = max(status, abs(process.wait()))
    finally:
        for process in processes.values():
            process.terminate()
        result = begin(options.output, device, lists)
        for part in processes:
            found = begin(part, device, lists)
            for key in lists:
                new = [r for r in found[key] if not there(result[key], r["model"], r["batch"])]
                result[key] += new
        command = ["-m", module, "OUT.json", "--models", *options.models, "--side-by-side"]
        result["command"] = " ".join(["python", *command, *arguments])
        result["note"] = (
            f"{len(processes)} processes, one per model, shared the machine: executors were made "
            "side by side, the device was timed by one at a time"
        )
        save(options.output, result)
    return status


def model_name(text):
    """Return the name of a model that takes images, for argparse."""
    if text not in torchvision.models.list_models(torchvision.models):
        close = difflib.get_close_matches(text, MODELS)
        hint = f"Did you mean {' or '.join(map(repr, close))}?" if close else ""
        raise argparse.ArgumentTypeError(
            f"torchvision has no image model {text!r}. {hint or f'Known: {sorted(MODELS)}.'}"
        )
    return text


def positive(text):
    """Return a whole number above 0, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def status(run, *given):
    """Return the exit status of ``run``; an error of the user's is one line, not a traceback."""
    try:
        return run(*given)
    except UdfError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted. The same command continues the run.", file=sys.stderr)
        return 130


def common(parser):
    """Add the options of both commands."""
    parser.add_argument("output", type=Path)
    parser.add_argument("--models", nargs="+", type=model_name, default=MODELS)
    parser.add_argument("--batches", nargs="+", type=positive, default=[1, 32])
    parser.add_argument("--runs", type=positive, default=20)
    parser.add_argument("--rounds", type=positive, default=10)
    parser.add_argument("--lock", type=Path, help="shared by processes that share a machine")
    parser.add_argument("--side-by-side", action="store_true", help="a process for each model")


def handed_on(options, names):
    """Return the arguments of a process of one model."""
    given = ["--batches", *map(str, options.batches)]
    for name in names:
        value = getattr(options, name)
        if value is not None:
            values = value if isinstance(value, list) else [value]
            given += [f"--{name.replace('_', '-')}", *map(str, values)]
    return given


def run(name, options, lists, measure, handed):
    """Run ``measure`` on this machine's device, in a process for each model if asked to.

    Args:
        name: of the command's module.
        options: of the command.
        lists: of the document, with a row for each model and batch.
        measure: takes the options and the device, and returns an exit status.
        handed: the options that a process of one model gets, beside the batches.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    given = handed_on(options, handed)
    if options.side_by_side:
        return status(side_by_side, f"benches.experiments.{name}", options, device, lists, given)
    command = ["-m", f"benches.experiments.{name}", "OUT.json", "--models", *options.models]
    options.command = " ".join(["python", *command, *given])
    return status(measure, options, device)


LISTS = ("end_to_end", "validation")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    common(parser)
    parser.add_argument("--prefix-rounds", type=positive, default=3, help="of layer subtraction")
    parser.add_argument("--only", choices=["validation", "end_to_end"])
    parser.add_argument("--executors", nargs="+")
    options = parser.parse_args(arguments)
    handed = ["runs", "rounds", "prefix_rounds", "only", "executors"]
    return run("compile_models", options, LISTS, measure, handed)


def measure(options, device):
    """Measure what OUT.json does not hold yet; return the exit status."""
    result = {**begin(options.output, device, LISTS), "command": options.command}
    result["end_to_end"] = [row for row in result["end_to_end"] if not row.get("interrupted")]
    for name in options.models:
        first = options.batches[0]
        if options.only != "end_to_end" and not there(result["validation"], name, first):
            row = validation(
                name,
                first,
                device,
                options.lock,
                runs=max(7, options.runs // 2),
                rounds=options.rounds,
                prefix_rounds=options.prefix_rounds,
            )
            result["validation"].append(row)
            save(options.output, result)
            print(row, flush=True)
        for batch in options.batches:
            if options.only == "validation" or there(result["end_to_end"], name, batch):
                continue
            row = end_to_end(
                name,
                batch,
                device,
                options.executors,
                options.lock,
                runs=options.runs,
                rounds=options.rounds,
            )
            result["end_to_end"].append(row)
            save(options.output, result)
            for key, member in row["members"].items():
                timing = row["measurement"]["timings"].get(key, {})
                print(
                    name,
                    batch,
                    key,
                    timing.get("median_ns"),
                    member.get("error"),
                    member.get("agrees"),
                    member.get("break_even_calls"),
                    member.get("first_call_ns"),
                    flush=True,
                )
            if row["interrupted"]:
                return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
