# SPDX-License-Identifier: Apache-2.0
"""What small models, and a language model of 1B parameters, cost on a GPU under repro and corem.

    python -m benches.experiments.contract_small_cuda [MODEL ...] [--store FILE]

The small models train on two samples: their steps are mostly launches. The language model takes a
training step, a prefill, and decodes with a cache, also as the first thing that a process does.
Stock and the sessions take turns in one process; a turn is timed between two synchronisations of
the device. The models are untrained ones of transformers and torchvision, which must be installed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, Final

import torch

from benches import stored
from benches.experiments import command
from benches.experiments.cuda_digests import gpu
from pytest_udftorch import patched
from pytest_udftorch.swap.overrides.tape import tapes

LIBRARIES: Final = ("stock", "corem", "repro")

#: What was asked for: the time under a session, over stock's.
ASKED: Final = {
    "repro": {
        "training step of a small model": 1.3,
        "the same in bfloat16": 1.4,
        "step": 2.5,
        "prefill": 3.0,
        "decode": 1.2,
        "first tokens": 1.0,
        "peak memory": 1.15,
    },
    "corem": {"step": 1.03, "prefill": 1.1, "decode": 1.05, "first tokens": 1.0},
}
TURNS: Final = 4
#: Processes whose first tokens are timed, under each library.
FRESH: Final = 3
WORDS: Final = 32_000
#: Of the language model: batch, length, and tokens of a turn.
BATCH, LENGTH, TOKENS = 4, 512, 16

Step = Callable[[], object]


def _trained(model: torch.nn.Module, loss_of: Callable[[Any], torch.Tensor]) -> Step:
    model.cuda().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(loss_of(model))
        optimizer.step()

    return step


def _words(model: torch.nn.Module) -> Step:
    words = torch.randint(5, WORDS, (2, 128), device="cuda")
    return _trained(model, lambda m: m(input_ids=words, labels=words).loss)


def _gpt2() -> Step:
    import transformers

    return _words(transformers.GPT2LMHeadModel(transformers.GPT2Config()))


def _roberta() -> Step:
    import transformers

    return _words(transformers.RobertaForMaskedLM(transformers.RobertaConfig()))


def _efficientnet() -> Step:
    from torchvision import models

    x, labels = torch.randn(2, 3, 224, 224, device="cuda"), torch.arange(2, device="cuda")
    loss = torch.nn.CrossEntropyLoss()
    return _trained(models.efficientnet_b0(), lambda m: loss(m(x), labels))


def _mobilevit() -> Step:
    import transformers

    x, labels = torch.randn(2, 3, 256, 256, device="cuda"), torch.arange(2, device="cuda")
    model = transformers.MobileViTForImageClassification(transformers.MobileViTConfig())
    return _trained(model, lambda m: m(pixel_values=x, labels=labels).loss)


SMALL: Final[dict[str, Callable[[], Step]]] = {
    "GPT-2": _gpt2, "RoBERTa": _roberta, "EfficientNet-B0": _efficientnet, "MobileViT": _mobilevit,
}  # fmt: skip
LANGUAGE: Final = "Llama, 1B"


def _turn_ns(call: Step, count: int) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter_ns()
    for _ in range(count):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter_ns() - start) / count


def _session(library: str) -> Any:
    return nullcontext() if library == "stock" else patched(library)


def _peak(call: Step, library: str) -> int:
    """Return the most memory of tensors that a call needs, with what was there before."""
    with _session(library):
        call()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def compared(call: Step, count: int) -> dict[str, Any]:
    """Return the times of a call in ms, and those of sessions over stock's of the same turn."""
    times: dict[str, list[float]] = {library: [] for library in LIBRARIES}
    for turn in range(TURNS + 1):
        for library in LIBRARIES[:: 1 if turn % 2 else -1]:
            with _session(library):
                if not turn:
                    _turn_ns(call, 3)  # compiles, and records what is played later
                else:
                    call()
                    times[library].append(_turn_ns(call, count))
    found: dict[str, Any] = {
        "stock_ms": stored.summary([t / 1e6 for t in times["stock"]]),
        "bytes": {library: _peak(call, library) for library in LIBRARIES},
    }
    for library in LIBRARIES[1:]:
        pairs = zip(times[library], times["stock"], strict=True)
        found[library] = stored.summary([ours / theirs for ours, theirs in pairs])
    return found


def small(name: str, *, narrow: bool) -> dict[str, Any]:
    """Return the row of a small model's training step, in float32 or autocast to bfloat16."""
    torch.manual_seed(0)
    plain = SMALL[name]()

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=narrow):
            plain()

    what = "training step, autocast to bfloat16" if narrow else "training step"
    row = {"model": name, "what": what, **compared(step, 5)}
    before = tapes().played()
    with patched("repro"):
        step()
    return {**row, "played": tapes().played() - before}


def _llama() -> tuple[Any, torch.Tensor]:
    """Return the language model in bfloat16, and words."""
    import transformers

    torch.manual_seed(0)
    with torch.device("cuda"):
        model: Any = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, vocab_size=WORDS,
                num_attention_heads=32, num_key_value_heads=8,
            )
        ).bfloat16()  # fmt: skip
        return model, torch.randint(0, WORDS, (BATCH, LENGTH))


@torch.no_grad()
def _decoded(model: Any, words: torch.Tensor) -> None:
    """Decode tokens with a cache behind a short prompt."""
    import transformers

    cache = transformers.DynamicCache()
    given = words[:, :64]
    for _ in range(TOKENS):
        found = model(input_ids=given, past_key_values=cache, use_cache=True)
        given = found.logits[:, -1:].argmax(-1)


def language() -> Iterator[dict[str, Any]]:
    """Yield the rows of the language model in bfloat16."""
    model, words = _llama()

    def step() -> None:
        model.zero_grad(set_to_none=True)
        model(input_ids=words, labels=words).loss.backward()

    @torch.no_grad()
    def prefill() -> Any:
        return model(input_ids=words)

    def decode() -> None:
        _decoded(model, words)

    for what, call, count in (("decode", decode, 1), ("prefill", prefill, 4), ("step", step, 2)):
        yield {"model": LANGUAGE, "what": what, **compared(call, count)}


def first_tokens(library: str) -> float:
    """Return how long each of the first tokens of this process takes under a library, in ms."""
    model, words = _llama()
    with _session(library):
        return _turn_ns(lambda: _decoded(model, words), 1) / 1e6 / TOKENS


def fresh() -> dict[str, Any]:
    """Return the row of the first tokens of processes, whose kernels others compiled before."""
    times: dict[str, list[float]] = {library: [] for library in LIBRARIES}
    for turn in range(FRESH):
        for library in LIBRARIES[:: 1 if turn % 2 else -1]:
            times[library].append(command.ask("contract_small_cuda", library)[0]["ms"])
    ratios = {
        library: stored.summary([a / b for a, b in zip(of, times["stock"], strict=True)])
        for library, of in times.items()
        if library != "stock"
    }
    stock = stored.summary(times["stock"])
    return {"model": LANGUAGE, "what": "first tokens", "stock_ms": stock, **ratios}


def rows(names: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Yield a row for each model, or for those that are named."""
    torch.backends.cuda.matmul.allow_tf32 = False
    if not names or LANGUAGE in names:
        yield from language()
        yield fresh()
    chosen = [name for name in SMALL if not names or name in names]
    yield from (small(name, narrow=narrow) for narrow in (False, True) for name in chosen)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = command.parser("contract_small_cuda", __doc__)
    parser.add_argument("names", nargs="*", metavar="MODEL", help="only these models")
    parser.add_argument("--here", choices=LIBRARIES, help="time this process' first tokens alone")
    options = parser.parse_args(arguments)
    if options.here:
        print(json.dumps({"ms": first_tokens(options.here)}))
        return 0

    made = []
    for row in rows(options.names):
        ratios = ", ".join(f"{lib} {row[lib]['median']:.2f}" for lib in LIBRARIES[1:])
        stock = row["stock_ms"]["median"]
        print(f"{row['model']:16} {row['what']:14} {stock:7.1f} ms {ratios}", flush=True)
        made.append(row)
        figures = {
            "device": gpu(), "asked": ASKED, "turns": TURNS, "batch": BATCH, "length": LENGTH,
            "tokens": TOKENS, "rows": made, "refused": tapes().refusals(),
        }  # fmt: skip
        # After each model, so that an interrupted run keeps its results.
        command.store("contract_small_cuda", options, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
