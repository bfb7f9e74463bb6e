# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/swap/cuda.md, from the stored results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from benches.certified import composite_digest
from benches.experiments.cuda_asked import ASKED
from benches.render.markdown import records, table


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
    rows = []
    for name, entry in document["functions"].items():
        compiled = entry["different"]["compiled"]
        rows.append(
            {
                "function": name,
                "inputs": f"{document['inputs']:,}",
                "eager CUDA: digest": f"`{entry['digest'][:16]}`",
                "the CPU's certificate": f"`{entry['certificate'][:16]}`",
                "Triton: different": f"{entry['different']['triton']:,}",
                "compiled CUDA: different": "not run" if compiled is None else f"{compiled:,}",
            }
        )
    control = document["control"]
    return "\n".join(
        [
            *records(rows),
            "",
            f"Control: of {control['chunks']} chunks of exp, {control['chunks_equal']} have the "
            f"same digest under `{control['library']}`, which is one bit off.",
            "",
            source(document),
            "",
        ]
    )


def composite_digests(document: dict[str, Any]) -> str:
    """Return the digests of activations that are one function, beside today's certificates."""
    known = {name: composite_digest(name) for name in document["functions"]}
    rows = [
        {
            "function": name,
            "inputs": f"{document['inputs']:,}",
            "eager CUDA: digest": f"`{entry['digest'][:16]}`",
            "the CPU's certificate": f"`{digest[:16]}`"
            if (digest := known[name])
            else "outstanding",
            "bfloat16: different": f"{entry['different']['bfloat16']:,}",
            "half: different": f"{entry['different']['float16']:,}",
        }
        for name, entry in document["functions"].items()
    ]
    control = document["control"]
    text = (
        f"Control: of 16 chunks of {control['function']}, {control['chunks_equal']} have the same "
        "digest under `canary-composites`, which is one bit off."
    )
    return "\n".join([*records(rows), "", text, "", source(document), ""])


def pairs(document: dict[str, Any]) -> str:
    """Return the proof over pairs of arguments."""
    rows = [
        {
            "function": name,
            "pairs": f"{entry['inputs']:,}",
            "of the certificate's": f"{entry['of']:,}",
            "chunks": str(entry["chunks"]),
            "with the certificate's digest": str(entry["chunks_equal"]),
            "eager CUDA: digest": f"`{entry['digest'][:16]}`",
            "the CPU's certificate": f"`{entry['certificate'][:16]}`",
            "Triton: different": f"{entry['different']['triton']:,}",
            "compiled CUDA: different": f"{entry['different']['compiled']:,}",
        }
        for name, entry in document["functions"].items()
    ]
    controls = "; ".join(
        f"of {c['chunks']} chunks of {c['function']}, {c['chunks_equal']}"
        for c in document["controls"]
    )
    (library,) = {c["library"] for c in document["controls"]}
    return "\n".join(
        [
            *records(rows),
            "",
            f"Controls: {controls} have the same digest under `{library}`, which is one bit off.",
            "",
            source(document),
            "",
        ]
    )


def speed(document: dict[str, Any]) -> str:
    """Return the operators' speed against the stock kernels, on each GPU."""
    return "\n".join(
        _speed_on({"command": document["command"], **found}) for found in document["gpus"].values()
    )


def _speed_on(document: dict[str, Any]) -> str:
    large = document["large"]
    rows = []
    for name, entry in document["operators"].items():
        ratio = entry["stock_over_corem"]
        rates = [
            entry["bytes_per_element"] * large / entry["large_ns"][n]["median"]
            for n in ("stock", "corem")
        ]
        small = [entry["small_ns"][n]["median"] / 1e3 for n in ("stock", "corem")]
        call = [entry["call_ns"][n]["median"] / 1e3 for n in ("stock", "corem")]
        rows.append(
            [
                name,
                f"{ratio['median']:.3f}",
                f"{ratio['lower_quartile']:.3f} to {ratio['upper_quartile']:.3f}",
                f"{ASKED[name]:.2f}" if name in ASKED else "",
                *(f"{rate:,.0f}" for rate in rates),
                *(f"{time:.2f}" for time in small),
                *(f"{time:.1f}" for time in call),
            ]
        )
    header = ["operator", "corem / stock", "quartiles", "asked", "stock, GB/s", "corem, GB/s",
              "2^16: stock, µs", "corem, µs", "call: stock, µs", "corem, µs"]  # fmt: skip
    missed = [
        f"{name} ({document['operators'][name]['stock_over_corem']['median']:.3f} of {asked})"
        for name, asked in ASKED.items()
        if document["operators"][name]["stock_over_corem"]["median"] < asked
    ]
    text = f"Missed: {', '.join(missed)}." if missed else "No target is missed."
    return "\n".join([*table(header, rows), "", text, "", source(document), ""])


def counters(document: dict[str, Any]) -> str:
    """Return what hardware counters say of the operators' kernels."""
    rows = [
        [
            name,
            *(f"{one[n]:.1f}" for n in ("instructions", "double_instructions")),
            *(f"{one[n]:.0f} %" for n in ("issue_percent", "memory_percent")),
            f"{one['threads']:.1f}",
            f"{one['registers']:.0f}",
        ]
        for name, one in document["operators"].items()
    ]
    header = ["operator", "instructions per element", "in double precision", "slots for them taken",
              "bandwidth taken", "threads per instruction, of 32", "registers"]  # fmt: skip
    return "\n".join([*table(header, rows), "", source(document), ""])


def same_bits(document: dict[str, Any]) -> str:
    """Return how many sets of bits there are, by function, context and library."""
    contexts = document["contexts"]
    parts = []
    for library in ("corem", "std"):
        shown = [c for c in contexts if library in contexts[c]]
        rows = []
        for name in dict.fromkeys(n for c in shown for n in contexts[c][library]["functions"]):
            everything: set[str] = set()
            cells = []
            for context in shown:
                kinds = contexts[context][library]["functions"].get(name)
                found = set().union(*kinds.values()) if kinds is not None else set()
                everything |= found
                cells.append(str(len(found)) if kinds is not None else "")
            rows.append([name, *cells, str(len(everything))])
        found_bits = table(["function", *shown, "all together"], rows)
        parts.append("\n".join([f"{library}, sets of bits:", "", *found_bits]) + "\n")
    machines = dict.fromkeys(
        f"{c}: torch {entry['environment']['versions']['torch']}, "
        f"{entry['device']['machine'].get('gpu', entry['environment']['machine']['cpu'])}"
        for c, libraries in contexts.items()
        for entry in libraries.values()
    )
    return "\n".join(parts) + f"\n`{document['command']}`. {'; '.join(machines)}.\n"


def training(document: dict[str, Any]) -> str:
    """Return accuracy and time per step under both libraries."""
    rows = []
    for task in document["tasks"].values():
        for seed, entry in task["seeds"].items():
            ns = {n: entry[n]["step_ns"]["median"] for n in ("std", "corem")}
            rows.append(
                {
                    "model": task["label"],
                    "seed": str(seed),
                    "steps": f"{task['steps']:,}",
                    **{f"accuracy, {n}": f"{100 * entry[n]['accuracy']:.1f} %" for n in ns},
                    **{f"step, {n}, ms": f"{ns[n] / 1e6:.2f}" for n in ns},
                    "corem / std": f"{ns['corem'] / ns['std']:.2f}",
                }
            )
    sources = "; ".join(task["source"] for task in document["tasks"].values())
    return "\n".join([*records(rows), "", f"{sources}.", "", source(document), ""])


def _gpu(document: dict[str, Any]) -> str:
    """Return the short name of the GPU of a document."""
    return str(document["device"]["machine"]["gpu"]).removeprefix("NVIDIA ").split()[0]


def contract(documents: Sequence[dict[str, Any]]) -> str:
    """Return the digests of weights that GPUs and their CPUs learned, and times beside stock's.

    Args:
        documents: of several GPUs, the one whose times are shown first.
    """
    weights: dict[tuple[str, ...], dict[str, str]] = {}
    for document in documents:
        name = _gpu(document)
        for row in document["rows"]:
            key = row["model"], row["optimizer"], row["library"]
            cells = weights.setdefault(
                key, dict(zip(("model", "optimizer", "library"), key, strict=True))
            )
            if "refused" in row:
                found = ("refused", "", "")
            else:
                step = row["step"]
                apart = "none" if step is None else str(step)
                found = (f"`{row['cuda'][:12]}`", f"`{row['cpu'][:12]}`", apart)
            headings = (f"weights, {name}", f"its CPU ({name})", f"first step apart ({name})")
            cells.update(zip(headings, found, strict=True))
    order = sorted(weights.values(), key=lambda cells: (cells["model"], cells["optimizer"]))
    document = documents[0]
    times = [
        {
            "what": what,
            "stock, ms": f"{found['std']['median'] / 1e6:.3f}",
            "repro, ms": f"{found['repro']['median'] / 1e6:.3f}",
            "stock / repro": f"{found['std']['median'] / found['repro']['median']:.2f}",
        }
        for what, found in (
            *((f"a training step of {name}", found) for name, found in document["step_ns"].items()),
            *((f"`mm` of {n} × {n}", found) for n, found in document["mm_ns"].items()),
            ("`normal_` of 2^26 elements", document["randn_ns"]),
        )
    ]
    models = [f"- {n}: {m['label']}, {m['steps']} steps" for n, m in document["models"].items()]
    said = (
        "The first twelve digits of SHA-256. `deterministic` is stock with "
        "`torch.use_deterministic_algorithms(True)`, which refuses some operators on GPUs. Stock "
        f"has no TF32. The times are of the {_gpu(document)}: medians of turns."
    )
    sources = [line for d in documents for line in ("", source(d))]
    return "\n".join([*records(order), "", *models, "", *records(times), "", said, *sources, ""])


def digests_in_sixteen(document: dict[str, Any]) -> str:
    """Return the digests of weights in bfloat16, by CPU level and on a GPU."""
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for row in document["rows"]:
        key = row["model"], row["form"], row["library"]
        cells = found.setdefault(key, dict(zip(("model", "form", "library"), key, strict=True)))
        where = "GPU" if row["place"] == "cuda" else row["place"].upper().replace("AVX5", "AVX-5")
        cells[where] = f"`{row['digest'][:12]}`"
    order = sorted(found.values(), key=lambda c: (c["model"], c["form"], c["library"] != "std"))
    models = [f"- {n}: {m['label']}, {m['steps']} steps" for n, m in document["models"].items()]
    said = "The first twelve digits of SHA-256; AdamW. `bfloat16`: so are the weights."
    return "\n".join([*records(order), "", *models, "", said])


#: A layout of the experiment, in words.
_LAYOUTS: Final = {
    "one": "",
    "parts": "2 micro-batches",
    "ddp": "data parallel",
    "fsdp": "FSDP2",
    "tp": "tensor parallel",
    "sp": "tensor and sequence parallel",
    "fsdp+tp": "FSDP2, tensor parallel",
    "fsdp+sp": "FSDP2, tensor and sequence parallel",
    "stopped": "goes on from checkpoints: FSDP2, then sequence parallel, then 1 GPU",
}


def _place(row: dict[str, Any]) -> dict[str, str]:
    """Return the cells that say where a run was, and how."""
    where = "1 GPU" if row["device"] == "cuda" else "CPU"
    if row["ranks"] > 1:
        where = f"{row['ranks']} ranks, {row['backend']}"
    return {"where": where, "layout": _LAYOUTS[row["layout"]]}


def ranks(document: dict[str, Any]) -> str:
    """Return the digests of weights in each layout of ranks, the times of steps, and bytes."""
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for row in document["rows"]:
        place = _place(row)
        key = (row["library"], *place.values())
        cells = found.setdefault(key, {"library": row["library"], **place})
        cells[f"{row['model']}, {row['dtype']}"] = f"`{row['digest'][:12]}`"
    columns = {name: "" for cells in found.values() for name in cells}
    order = [{**columns, **cells} for cells in found.values()]
    order.sort(key=lambda cells: cells["library"], reverse=True)
    models = [f"- {n}: {m['label']}, {m['steps']} steps" for n, m in document["models"].items()]
    said = (
        f"The first twelve digits of SHA-256, the same on every rank. {document['gpus']} GPUs, "
        f"NCCL {document['nccl']}; those over gloo are on the CPU."
    )
    failed = [f"- not measured: {why}" for why in document["failed"]]
    lines = [*records(order), "", *models, *failed, "", *_costs(document), "", said]
    return "\n".join([*lines, "", source(document), ""])


def _costs(document: dict[str, Any]) -> list[str]:
    """Return a table of the steps' times, and of what a rank sends in one, beside stock's."""
    both: dict[tuple[str, ...], dict[str, dict[str, Any]]] = {}
    for row in document["rows"]:
        if row["step_ns"] and row["layout"] != "stopped":
            key = (row["model"], row["dtype"], *_place(row).values())
            both.setdefault(key, {})[row["library"]] = row
    rows = []
    for (model, dtype, where, layout), of in both.items():
        if {"repro", "std"} - of.keys():
            continue
        ours, stock = (of[n]["step_ns"]["median"] / 1e6 for n in ("repro", "std"))
        sent, least = (of[n]["sent"] / 1e6 for n in ("repro", "std"))
        rows.append(
            {
                "model": f"{model}, {dtype}",
                "where": where,
                "layout": layout,
                "step, ms": f"{ours:.1f}",
                "over stock's": f"{ours / stock:.2f}",
                "sent by a rank, MB": f"{sent:.1f}" if sent else "",
                "by stock": f"{least:.1f}" if least else "",
            }
        )
    return records(rows)


def _over(entry: dict[str, Any]) -> str:
    return f"{entry['value']:.2f} ({entry['low']:.2f} to {entry['high']:.2f})"


def profile(document: dict[str, Any]) -> str:
    """Return what a profile costs on a GPU, and how its counts compare with the CPU's."""
    operators = []
    for name, entry in document["operators"].items():
        cells = [f"{entry['kernel_ns'] / 1e3:,.0f}"]
        cells += [_over(entry["kernel"][n]) for n in ("counters", "off again")]
        if "call" in entry:
            cells += [f"{entry['call_ns'] / 1e3:.1f}"]
            cells += [_over(entry["call"][n]) for n in ("counters", "off again")]
        else:
            cells += ["", "", ""]
        operators.append([name, *cells])
    steps, different = [], []
    for model in document["models"].values():
        rows = model["counts"]["rows"]
        both = [r for r in rows if "cpu" in r and "cuda" in r]
        equal = {
            what: [r for r in both if r["cpu"][what] == r["cuda"][what]]
            for what in ("operator_calls", "elements")
        }
        steps.append(
            [
                model["label"],
                f"{model['step_ns'] / 1e6:.2f}",
                _over(model["ratios"]["counters"]),
                _over(model["ratios"]["off again"]),
                f"{len(both)} of {len(rows)}",
                str(len(equal["operator_calls"])),
                str(len(equal["elements"])),
            ]
        )
        different += [r for r in both if r not in equal["elements"]]
    lines = [
        *table(
            ["operator", "kernel, 2^26 elements, µs", "with counters", "again without",
             "call, 2^16 elements, µs", "with counters", "again without"],
            operators,
        ),
        "",
        *table(
            ["training step", "ms", "with counters", "again without", "records on both devices",
             "with equal operator calls", "with equal elements"],
            steps,
        ),
    ]  # fmt: skip
    if different:
        names = sorted({f"{r['function']} in {r['operator']}" for r in different})
        lines += ["", f"Other elements on the CPU: {', '.join(names)} (see above)."]
    return "\n".join([*lines, "", source(document), ""])


#: What the host's time of a call, and a step's, may be of stock's.
ASKED_CALL, ASKED_STEP = 1.10, 1.03


def launch(document: dict[str, Any]) -> str:
    """Return what a call costs the host and what steps cost, launched from C++ and from Python."""
    cpp, python = (document["launches"][n] for n in ("C++", "Python"))
    missed = []
    tables = []
    for part, unit, divisor, asked in (
        ("operators", "µs", 1e3, ASKED_CALL), ("models", "ms", 1e6, ASKED_STEP)
    ):  # fmt: skip
        rows = []
        for name, entry in cpp[part].items():
            ratio = entry["ratio"]
            if ratio["median"] > asked:
                missed.append(f"{name} ({ratio['median']:.3f} of {asked:.2f})")
            rows.append(
                [
                    name,
                    f"{entry['std_ns']['median'] / divisor:.2f}",
                    f"{entry['corem_ns']['median'] / divisor:.2f}",
                    f"{ratio['median']:.2f}",
                    f"{ratio['lower_quartile']:.2f} to {ratio['upper_quartile']:.2f}",
                    f"{python[part][name]['ratio']['median']:.2f}",
                ]
            )
        what = "call on the host" if part == "operators" else "training step"
        header = [what, f"std, {unit}", f"corem, {unit}", "corem / std", "quartiles",
                  "launched from Python"]  # fmt: skip
        tables += [*table(header, rows), ""]
    asked_for = f"Asked: {ASKED_CALL:.2f} for calls, {ASKED_STEP:.2f} for steps. "
    text = f"Missed: {', '.join(missed)}." if missed else "No target is missed."
    return "\n".join([*tables, asked_for + text, "", source(document), ""])


#: Stock flash's time over that of corem's kernel, and the shapes that it was asked for.
ASKED_FLASH, ASKED_LENGTH = 0.8, 4096


def attention(document: dict[str, Any]) -> str:
    """Return the times of attention under corem beside those of stock's operators."""
    rows, missed = [], []
    for entry in document["shapes"]:
        ns = {n: v["median"] for n, v in entry["ns"].items()}
        ratios = {n: entry[f"{n}_over_corem"] for n in ns if n != "corem"}
        flash = ratios["flash"]
        if entry["length"] == ASKED_LENGTH and flash["median"] < ASKED_FLASH:
            missed.append(f"{flash['median']:.2f}")
        rows.append(
            [
                str(entry["size"]),
                f"{entry['length']:,}",
                "yes" if entry["causal"] else "no",
                "yes" if entry["gradient"] else "no",
                f"{ns['corem'] / 1e6:.2f}",
                f"{flash['median']:.2f}",
                f"{flash['lower_quartile']:.2f} to {flash['upper_quartile']:.2f}",
                f"{ratios['efficient']['median']:.2f}",
                f"{ratios['cudnn']['median']:.2f}",
                f"{ratios['math']['median']:.1f}",
            ]
        )
    header = [
        "head size", "length", "causal", "with gradient", "corem, ms", "flash / corem",
        "quartiles", "efficient / corem", "cuDNN / corem", "corem's math form / corem",
    ]  # fmt: skip
    text = f"bfloat16, batch {document['batch']}, {document['heads']} heads. Asked of flash / "
    text += f"corem at length {ASKED_LENGTH:,}: {ASKED_FLASH}."
    text += f" Missed: {', '.join(missed)}." if missed else ""
    return "\n".join([*table(header, rows), "", text, "", source(document), ""])


TABLES = {
    "cuda_attention": attention,
    "cuda_launch": launch,
    "composite_digests": composite_digests,
    "cuda_digests": digests,
    "cuda_pairs": pairs,
    "cuda_speed": speed,
    "cuda_counters": counters,
    "same_bits": same_bits,
    "cuda_training": training,
    "contract_ranks_cuda": ranks,
    "profile_cuda": profile,
}
