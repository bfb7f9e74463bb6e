# SPDX-License-Identifier: Apache-2.0
"""Which ways of running a model agree: language models, encoders and networks for images.

    python -m benches.experiments.same [--store FILE] [--budget SECONDS] [--only SUBJECT ...]
        [--strict] [--differing]

``udftorch same`` runs each model under stock and under repro. A file that exists is continued: a
model that is in it is not run again, unless ``--only`` names it. With a budget no further model is
begun after so many seconds. ``--strict`` only asks again, of the models that are stored, what
``udftorch same --strict`` says of them, and ``--differing`` also runs the ways again that differ
under repro. The models need the extra ``models``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benches import stored
from benches.experiments import command
from pytest_udftorch.errors import OutsideContractError, UdfError
from pytest_udftorch.reproduce import Sameness, same
from pytest_udftorch.swap.toolchain.environment import describe

LIBRARIES: Final = ("std", "repro")

#: Models that run under corem as well, for the table of the README.
ALL_LIBRARIES: Final = ("hf-tiny:LlamaForCausalLM",)

#: Language models of transformers, which have caches.
CAUSAL: Final = (
    "Llama", "Qwen2", "Qwen3", "Mistral", "Mixtral", "Phi3", "Gemma", "Gemma2", "GPT2LMHeadModel",
    "GPTNeoX", "Olmo2", "Granite", "StableLm", "Starcoder2", "Cohere", "Falcon", "Bloom", "OPT",
    "Phi", "GPTJ", "Gemma3", "Glm4", "Qwen2Moe", "Qwen3Moe", "Olmo", "Olmoe", "SmolLM3", "Exaone4",
    "Ernie4_5", "GptOss", "DeepseekV3", "Nemotron", "Helium", "Cohere2", "GraniteMoe", "Persimmon",
    "CodeGen", "GPTNeo", "GPTBigCode", "Mpt", "BioGpt", "XGLM", "Mamba", "Arcee", "SeedOss",
)  # fmt: skip

#: Encoders, and models of an encoder and a decoder.
OTHERS: Final = (
    "BertForMaskedLM", "RobertaForMaskedLM", "DistilBertForMaskedLM", "ElectraForMaskedLM",
    "ModernBertForMaskedLM", "T5ForConditionalGeneration", "BartForConditionalGeneration",
    "ViTForImageClassification",
)  # fmt: skip

TIMM: Final = (
    "vit_tiny_patch16_224", "convnext_atto", "mobilenetv3_small_050", "regnety_002",
    "mobilevit_xxs", "xcit_nano_12_p16_224", "efficientvit_b0", "ghostnet_050", "tinynet_e",
    "lcnet_035", "mixnet_s", "fbnetc_100", "semnasnet_050", "deit_tiny_patch16_224",
    "edgenext_xx_small",
)  # fmt: skip

TORCHVISION: Final = (
    "resnet18", "mobilenet_v2", "squeezenet1_1", "alexnet", "shufflenet_v2_x0_5", "mnasnet0_5",
    "efficientnet_b0", "densenet121", "googlenet", "regnet_y_400mf", "mobilenet_v3_small",
    "swin_t", "vgg11", "resnext50_32x4d", "convnext_tiny",
)  # fmt: skip


def _class(name: str) -> str:
    return name if "For" in name or name.endswith("Model") else f"{name}ForCausalLM"


def subjects() -> list[str]:
    """Return every model, in an order in which a short budget has some of each kind."""
    kinds = [
        [f"hf-tiny:{_class(name)}" for name in CAUSAL],
        [f"hf-tiny:{name}" for name in OTHERS],
        [f"timm:{name}" for name in TIMM],
        [f"torchvision:{name}" for name in TORCHVISION],
    ]
    found: list[str] = []
    while any(kinds):
        for kind, count in zip(kinds, (3, 1, 1, 1), strict=True):
            found += kind[:count]
            del kind[:count]
    return found


def refused(subject: str) -> list[str]:
    """Return the operator by which ``--strict`` refuses a model, and its layer; nothing if not.

    Raises:
        UdfError: the model cannot be run.
    """
    for ways in ([], None):  # what outweighs micro-batches first
        try:
            same(subject, libraries=LIBRARIES[-1:], ways=ways, strict=True)
        except OutsideContractError as error:
            said = str(error).split()
            return [said[0].rstrip(":,"), said[2].rstrip(":,") if said[1] == "in" else ""]
    return []


def asked(known: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a model with what ``--strict`` says now."""
    return {**known, "strict": refused(known["subject"])}


def run_again(known: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a model with the ways that differed under repro, as they are now."""
    ways = list(known["differ"]["repro"])
    if not ways:
        return asked(known)
    found = same(known["subject"], libraries=LIBRARIES[-1:], ways=ways)
    return asked({**known, "differ": {**known["differ"], **row(found, 0.0)["differ"]}})


def row(found: Sameness, seconds: float) -> dict[str, Any]:
    """Return what is stored of a model: what differs, and of what agrees the names."""
    outcomes = {}
    for library, ways in found.outcomes.items():
        outcomes[library] = {
            way: {
                "failed": outcome.failed,
                "far": outcome.far,
                "first": None if outcome.first is None else list(outcome.first),
                "parts": {
                    p.name: [float(f"{x:.4g}") for x in (p.share, p.largest)]
                    for p in outcome.parts
                    if p.differ
                },
            }
            for way, outcome in ways.items()
            if not outcome.equal
        }
    return {
        "subject": found.subject, "batch": found.batch, "length": found.length,
        "ways": list(found.ways), "differ": outcomes, "seconds": round(seconds, 1),
    }  # fmt: skip


def measure(subject: str) -> dict[str, Any]:
    """Run a model in all its quick ways."""
    began = time.monotonic()
    libraries = (LIBRARIES[0], "corem", LIBRARIES[1]) if subject in ALL_LIBRARIES else LIBRARIES
    try:
        found = same(subject, libraries=libraries)
    except UdfError as error:
        return {"subject": subject, "refused": str(error).splitlines()[0]}
    return {**row(found, time.monotonic() - began), "strict": refused(subject)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = command.parser("same", __doc__)
    parser.add_argument("--budget", type=float, metavar="SECONDS")
    parser.add_argument("--only", nargs="+", metavar="SUBJECT", default=[])
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--differing", action="store_true")
    options = parser.parse_args(arguments)
    path: Path | None = options.store
    document = stored.load(path) if path is not None and path.exists() else {"models": []}
    known = [r for r in document["models"] if r["subject"] in subjects()]
    stored_ones = options.strict or options.differing
    kept = [r for r in known if stored_ones or r["subject"] not in options.only]
    done = {r["subject"]: r for r in kept}
    before = earlier(document, list(done))
    end = None if options.budget is None else time.monotonic() + options.budget
    for subject in options.only or (list(done) if stored_ones else subjects()):
        if subject in done and (not stored_ones or "refused" in done[subject]):
            continue
        if end is not None and time.monotonic() > end:
            break
        if stored_ones and subject in done:
            done[subject] = (run_again if options.differing else asked)(done[subject])
        else:
            done[subject] = measure(subject)
        print(json.dumps(done[subject])[:400], flush=True)
        rows = sorted(done.values(), key=lambda r: _place(r["subject"]))
        command.store("same", options, {"models": rows, "earlier": before})
    return 0


def earlier(document: Mapping[str, Any], kept: Sequence[str]) -> list[dict[str, Any]]:
    """Return where models were measured that a run elsewhere, or of other versions, keeps.

    Args:
        document: what is stored.
        kept: the subjects that are not measured again.

    Returns:
        for each environment but this one the subjects that were measured in it.
    """
    found = [
        {**e, "subjects": [s for s in e["subjects"] if s in kept]}
        for e in document.get("earlier", ())
    ]
    known = {s for e in found for s in e["subjects"]}
    if "environment" in document and not _alike(document["environment"], describe()):
        subjects = [s for s in kept if s not in known]
        found.append({"environment": document["environment"], "subjects": subjects})
    return [e for e in found if e["subjects"]]


def _alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return {**one, "date": ""} == {**other, "date": ""}


def _place(subject: str) -> int:
    known = [*(f"hf-tiny:{_class(name)}" for name in CAUSAL), *(f"hf-tiny:{n}" for n in OTHERS),
             *(f"timm:{n}" for n in TIMM), *(f"torchvision:{n}" for n in TORCHVISION)]  # fmt: skip
    return known.index(subject) if subject in known else len(known)


if __name__ == "__main__":
    raise SystemExit(main())
