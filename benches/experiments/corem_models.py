# SPDX-License-Identifier: Apache-2.0
"""What whole models cost under corem on the CPU, in inference and in a training step.

    python -m benches.experiments.corem_models [--store FILE]

Four architectures, in float32 and under autocast in bfloat16, at each CPU level of the machine;
everything else is as in ``contract_small``. They need the extra ``models``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional as F

from benches.data.models.zoo import Made, training_step
from benches.experiments import contract_small
from benches.experiments.contract_speed import compared
from benches.experiments.cpu_operators import keep_freed_memory

LIBRARY: Final = "corem"
PRECISIONS: Final = ("float32", "bfloat16")

#: What was asked for: the time under the session, over stock's.
ASKED: Final = {"inference": 1.02, "step": 1.02}

#: Of a transformer of six layers.
_SIZES: Final = {"hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4,
                 "intermediate_size": 1024}  # fmt: skip
_WORDS: Final = 1000
SEED: Final = 0


def _language(kind: str, config: Any) -> Made:
    import transformers

    words = torch.randint(0, _WORDS, (2, 128))
    return getattr(transformers, kind)(config), lambda m: m(input_ids=words, labels=words).loss


def _bert() -> Made:
    import transformers

    return _language("BertForMaskedLM", transformers.BertConfig(**_SIZES, vocab_size=_WORDS))


def _gpt2() -> Made:
    import transformers

    config = transformers.GPT2Config(vocab_size=_WORDS, n_embd=256, n_layer=6, n_head=4)
    return _language("GPT2LMHeadModel", config)


def _vit() -> Made:
    import transformers

    config = transformers.ViTConfig(**_SIZES, image_size=64, patch_size=8, num_labels=10)
    images, labels = torch.randn(2, 3, 64, 64), torch.arange(2)
    model = transformers.ViTForImageClassification(config)
    return model, lambda m: m(pixel_values=images, labels=labels).loss


def _resnet() -> Made:
    """Return ResNet-50 with ELU in the place of ReLU."""
    from torchvision import models

    model = models.resnet50(num_classes=10)
    for module in model.modules():
        if isinstance(getattr(module, "relu", None), nn.ReLU):
            module.relu = nn.ELU()
    images, labels = torch.randn(2, 3, 64, 64), torch.arange(2)
    return model, lambda m: F.cross_entropy(m(images), labels)


MODELS: Final[dict[str, Callable[[], Made]]] = {
    "BERT": _bert, "GPT-2": _gpt2, "ViT": _vit, "ResNet-50 with ELU": _resnet,
}  # fmt: skip


def _row(name: str, precision: str) -> dict[str, Any]:
    torch.manual_seed(SEED)
    made = MODELS[name]()
    model, loss_of = made

    def inference() -> None:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, precision == "bfloat16"):
            loss_of(model)

    row: dict[str, Any] = {"model": name, "precision": precision}
    model.eval()
    row["inference"] = compared(inference, LIBRARY)
    model.train()
    row["step"] = compared(training_step(made, precision), LIBRARY)
    return row


def measure_here(names: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each model and precision, at the CPU level of this process."""
    keep_freed_memory()
    torch.set_num_threads(1)
    return [_row(name, p) for name in MODELS for p in PRECISIONS if not names or name in names]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    return contract_small.run("corem_models", __doc__, ASKED, measure_here, arguments)


if __name__ == "__main__":
    sys.exit(main())
