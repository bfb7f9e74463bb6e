"""The tables of docs/cuda.md, from the stored results."""

from __future__ import annotations

from typing import Any

from benches.experiments.cuda_asked import ASKED


def source(document: dict[str, Any]) -> str:
    """Return the command, the GPU and the versions, and the document's note if it has one."""
    device = document["device"]
    machine, versions = device["machine"], device["versions"]
    line = (
        f"`{document['command']}`: {machine['gpu']}, {machine['multiprocessors']} multiprocessors, "
        f"driver {device['driver']}; torch {versions['torch']}, triton {versions['triton']}, "
        f"Python {versions['python']}; {document['environment']['date']}."
    )
    return f"{line} {document['note']}" if "note" in document else line


def digests(document: dict[str, Any]) -> str:
    """Return the proof over all inputs."""
    lines = [
        "| function | inputs | eager CUDA: digest | the CPU's certificate | Triton: different | "
        "compiled CUDA: different |",
        "|---|---|---|---|---|---|",
    ]
    for name, entry in document["functions"].items():
        compiled = entry["different"]["compiled"]
        lines.append(
            f"| {name} | {document['inputs']:,} | `{entry['digest'][:16]}` | "
            f"`{entry['certificate'][:16]}` | {entry['different']['triton']:,} | "
            f"{'not run' if compiled is None else f'{compiled:,}'} |"
        )
    control = document["control"]
    return "\n".join(
        [
            *lines,
            "",
            f"Control: of {control['chunks']} chunks of exp, {control['chunks_equal']} have the "
            f"same digest under `{control['library']}`, which is one bit off.",
            "",
            source(document),
            "",
        ]
    )


def pairs(document: dict[str, Any]) -> str:
    """Return the proof over pairs of arguments."""
    lines = [
        "| function | pairs | of the certificate's | chunks | with the certificate's digest | "
        "eager CUDA: digest | the CPU's certificate | Triton: different | "
        "compiled CUDA: different |",
        "|" + "---|" * 9,
    ]
    for name, entry in document["functions"].items():
        lines.append(
            f"| {name} | {entry['inputs']:,} | {entry['of']:,} | {entry['chunks']} | "
            f"{entry['chunks_equal']} | `{entry['digest'][:16]}` | "
            f"`{entry['certificate'][:16]}` | {entry['different']['triton']:,} | "
            f"{entry['different']['compiled']:,} |"
        )
    controls = "; ".join(
        f"of {c['chunks']} chunks of {c['function']}, {c['chunks_equal']}"
        for c in document["controls"]
    )
    (library,) = {c["library"] for c in document["controls"]}
    return "\n".join(
        [
            *lines,
            "",
            f"Controls: {controls} have the same digest under `{library}`, which is one bit off.",
            "",
            source(document),
            "",
        ]
    )


def speed(document: dict[str, Any]) -> str:
    """Return the operators' speed against the stock kernels."""
    large = document["large"]
    lines = [
        "| operator | corem / stock | quartiles | asked | stock, GB/s | corem, GB/s | "
        "2^16: stock, µs | corem, µs | call: stock, µs | corem, µs |",
        "|" + "---|" * 10,
    ]
    for name, entry in document["operators"].items():
        ratio = entry["stock_over_corem"]
        rates = [
            entry["bytes_per_element"] * large / entry["large_ns"][n]["median"]
            for n in ("stock", "corem")
        ]
        small = [entry["small_ns"][n]["median"] / 1e3 for n in ("stock", "corem")]
        call = [entry["call_ns"][n]["median"] / 1e3 for n in ("stock", "corem")]
        asked = f"{ASKED[name]:.2f}" if name in ASKED else ""
        lines.append(
            f"| {name} | {ratio['median']:.3f} | {ratio['lower_quartile']:.3f} to "
            f"{ratio['upper_quartile']:.3f} | {asked} | {rates[0]:,.0f} | {rates[1]:,.0f} | "
            f"{small[0]:.2f} | {small[1]:.2f} | {call[0]:.1f} | {call[1]:.1f} |"
        )
    missed = [
        f"{name} ({document['operators'][name]['stock_over_corem']['median']:.3f} of {asked})"
        for name, asked in ASKED.items()
        if document["operators"][name]["stock_over_corem"]["median"] < asked
    ]
    text = f"Missed: {', '.join(missed)}." if missed else "None of the figures asked for is missed."
    return "\n".join([*lines, "", text, "", source(document), ""])


def same_bits(document: dict[str, Any]) -> str:
    """Return how many sets of bits there are, by function, context and library."""
    contexts = document["contexts"]
    parts = []
    for library in ("corem", "std"):
        shown = [c for c in contexts if library in contexts[c]]
        names = list(
            dict.fromkeys(n for c in shown for n in contexts[c][library]["functions"])
        )  # fmt: skip
        lines = [
            f"{library}, sets of bits:",
            "",
            f"| function | {' | '.join(shown)} | all together |",
            "|---" * (len(shown) + 2) + "|",
        ]
        for name in names:
            everything: set[str] = set()
            cells = []
            for context in shown:
                kinds = contexts[context][library]["functions"].get(name)
                found = set().union(*kinds.values()) if kinds is not None else set()
                everything |= found
                cells.append(str(len(found)) if kinds is not None else "")
            lines.append(f"| {name} | {' | '.join(cells)} | {len(everything)} |")
        parts.append("\n".join(lines) + "\n")
    machines = dict.fromkeys(
        f"{c}: torch {entry['environment']['versions']['torch']}, "
        f"{entry['device']['machine'].get('gpu', entry['environment']['machine']['cpu'])}"
        for c, libraries in contexts.items()
        for entry in libraries.values()
    )
    return "\n".join(parts) + f"\n`{document['command']}`. {'; '.join(machines)}.\n"


def training(document: dict[str, Any]) -> str:
    """Return accuracy and time per step under both libraries."""
    lines = [
        "| model | seed | steps | accuracy, std | accuracy, corem | step, std, ms | "
        "step, corem, ms | corem / std |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for task in document["tasks"].values():
        for seed, entry in task["seeds"].items():
            steps = [entry[n]["step_ns"]["median"] for n in ("std", "corem")]
            lines.append(
                f"| {task['label']} | {seed} | {task['steps']:,} | "
                f"{100 * entry['std']['accuracy']:.1f} % | "
                f"{100 * entry['corem']['accuracy']:.1f} % | {steps[0] / 1e6:.2f} | "
                f"{steps[1] / 1e6:.2f} | {steps[1] / steps[0]:.2f} |"
            )
    sources = "; ".join(task["source"] for task in document["tasks"].values())
    return "\n".join([*lines, "", f"{sources}.", "", source(document), ""])


def _over(entry: dict[str, Any]) -> str:
    return f"{entry['value']:.2f} ({entry['low']:.2f} to {entry['high']:.2f})"


def profile(document: dict[str, Any]) -> str:
    """Return what a profile costs on a GPU, and how its counts compare with the CPU's."""
    lines = [
        "| operator | kernel, 2^26 elements, µs | with counters | again without | "
        "call, 2^16 elements, µs | with counters | again without |",
        "|---" * 7 + "|",
    ]
    for name, entry in document["operators"].items():
        cells = [f"{entry['kernel_ns'] / 1e3:,.0f}"]
        cells += [_over(entry["kernel"][n]) for n in ("counters", "off again")]
        if "call" in entry:
            cells += [f"{entry['call_ns'] / 1e3:.1f}"]
            cells += [_over(entry["call"][n]) for n in ("counters", "off again")]
        else:
            cells += ["", "", ""]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += [
        "",
        "| training step | ms | with counters | again without | records on both devices | "
        "with equal operator calls | with equal elements |",
        "|---" * 7 + "|",
    ]
    different = []
    for model in document["models"].values():
        rows = model["counts"]["rows"]
        both = [r for r in rows if "cpu" in r and "cuda" in r]
        equal = {
            what: [r for r in both if r["cpu"][what] == r["cuda"][what]]
            for what in ("operator_calls", "elements")
        }
        lines.append(
            f"| {model['label']} | {model['step_ns'] / 1e6:.2f} | "
            f"{_over(model['ratios']['counters'])} | {_over(model['ratios']['off again'])} | "
            f"{len(both)} of {len(rows)} | {len(equal['operator_calls'])} | "
            f"{len(equal['elements'])} |"
        )
        different += [r for r in both if r not in equal["elements"]]
    if different:
        names = sorted({f"{r['function']} in {r['operator']}" for r in different})
        lines += ["", f"Other elements on the CPU: {', '.join(names)} (see above)."]
    return "\n".join([*lines, "", source(document), ""])


TABLES = {
    "cuda_digests": digests,
    "cuda_pairs": pairs,
    "cuda_speed": speed,
    "same_bits": same_bits,
    "cuda_training": training,
    "profile_cuda": profile,
}
