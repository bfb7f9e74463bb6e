# SPDX-License-Identifier: Apache-2.0
"""Ways to fixed results, side by side: what each says that it fixes, and where it says so.

What others say is quoted with its source, and was not run here. Costs of this project are those of
its stored results.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from benches.render.markdown import records


class Way(NamedTuple):
    """A way to fixed results, as its makers describe it.

    Attributes:
        name: of the way, with what it is for.
        fixes: whatever of these changes, results stay.
        not_claimed: what is not said to be fixed.
        costs: what its makers say of its speed.
        source: where all that is said.
    """

    name: str
    fixes: str
    not_claimed: str
    costs: str
    source: str


OTHERS: Final = (
    Way(
        "batch_invariant_ops (Thinking Machines), inference",
        "size and members of the batch",
        "other GPUs, CPUs, layouts of ranks, training",
        "61.5 % slower, as SGLang measured it",
        "[blog](https://thinkingmachines.ai/blog/defeating-nondeterminism-in-llm-inference/), "
        "September 2025; [LMSYS](https://lmsys.org/blog/2025-09-22-sglang-deterministic)",
    ),
    Way(
        "SGLang, deterministic inference",
        "the batch, prefill in chunks, a cached prefix",
        "other GPUs, CPUs, layouts of ranks",
        "34.35 % slower on average",
        "[LMSYS](https://lmsys.org/blog/2025-09-22-sglang-deterministic), September 2025",
    ),
    Way(
        "vLLM, `VLLM_BATCH_INVARIANT=1` (beta), inference",
        "the batch, the order of requests",
        "other GPUs, CPUs, layouts of ranks",
        "not said",
        "[documentation](https://docs.vllm.ai/en/stable/features/batch_invariance/)",
    ),
    Way(
        "torchtitan with vLLM, reinforcement learning",
        "trainer and sampler, with one layout of ranks",
        "another layout; other GPUs, CPUs",
        "not said",
        "[pull request 2683](https://github.com/pytorch/torchtitan/pull/2683), March 2026",
    ),
    Way(
        "TransformerEngine, `NVTE_TP_INVARIANT_MODE=1` (proposed), training",
        "ranks of tensor parallelism; H100 or B300",
        "the batch, CPUs, inference",
        "not said",
        "[pull request 2977](https://github.com/NVIDIA/TransformerEngine/pull/2977), May 2026",
    ),
    Way(
        "RepDL, training and inference in float32",
        "CPUs and GPUs, with its own operators in place of torch's",
        "16 bits, layouts of ranks",
        "measured here: the table of speeds on CPUs",
        "[arXiv:2510.09180](https://arxiv.org/abs/2510.09180)",
    ),
    Way(
        "torch's deterministic mode",
        "runs on one machine with one shape",
        "the batch, other GPUs, CPUs, threads, layouts of ranks",
        "measured here: the table of speeds on GPUs",
        "[documentation](https://docs.pytorch.org/docs/stable/generated/"
        "torch.use_deterministic_algorithms.html)",
    ),
)


def compared(small: Mapping[str, Any]) -> str:
    """Return the table.

    Args:
        small: the stored figures of whole models on a GPU.
    """
    took = {
        row["what"]: f"{row['repro']['median']:.2f}"
        for row in small["rows"]
        if row["model"].startswith("Llama") and row["what"] in ("step", "prefill", "decode")
    }
    gpu, torch = small["device"]["machine"]["gpu"], small["environment"]["versions"]["torch"]
    ours = Way(
        "`repro`, training and inference",
        "the batch, position, padding, chunks and cache, micro-batches, ranks, eager or compiled, "
        "CPUs and GPUs",
        "what [within_contract](../reproduce/contract.md#what-is-outside) lists",
        f"a Llama of 1B in bfloat16 takes {took['step']} of stock's time for a step, "
        f"{took['prefill']} for prefill, {took['decode']} for decoding ({gpu}, torch {torch})",
        "these pages",
    )
    heads = ("way", "fixed against", "not claimed", "cost", "source")
    rows = [dict(zip(heads, way, strict=True)) for way in (ours, *OTHERS)]
    return "\n".join([*records(rows), ""])
