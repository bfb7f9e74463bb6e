# SPDX-License-Identifier: Apache-2.0
"""The 24 models whose coverage is measured: torchvision's, timm's and transformers', untrained.

Nothing is downloaded. The models keep their kinds of layers; sizes are reduced. Each entry returns
a model and a function that takes the model and returns the loss of one batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.nn import functional as F

Made = tuple[torch.nn.Module, Callable[[Any], torch.Tensor]]

#: Classes of the classifiers, and words of the language models.
CLASSES: Final = 10
WORDS: Final = 128


def _images(pixels: int, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, 3, pixels, pixels)


def _words(length: int = 24, batch: int = 2) -> torch.Tensor:
    return torch.randint(3, WORDS, (batch, length))


def _classifier(model: torch.nn.Module, pixels: int) -> Made:
    x, labels = _images(pixels), torch.arange(2)
    return model, lambda m: F.cross_entropy(m(x), labels)


def _torchvision(name: str, pixels: int = 64, **options: Any) -> Made:
    from torchvision import models

    return _classifier(models.get_model(name, num_classes=CLASSES, **options), pixels)


def _timm(name: str, pixels: int = 64, **options: Any) -> Made:
    import timm

    return _classifier(timm.create_model(name, num_classes=CLASSES, **options), pixels)


#: Sizes that most configurations of transformers share.
_SIZES: Final = {
    "vocab_size": WORDS, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 128,
}  # fmt: skip
_SMALL: Final = {k: v for k, v in _SIZES.items() if k != "vocab_size"}


def _with_loss(model: torch.nn.Module, **inputs: Any) -> Made:
    return model, lambda m: m(**inputs).loss


def _language(kind: str, config: str, **options: Any) -> Made:
    """Return a language model whose labels are its inputs."""
    import transformers

    sizes = getattr(transformers, config)(**options)
    words = _words()
    return _with_loss(getattr(transformers, kind)(sizes), input_ids=words, labels=words)


def _gpt2() -> Made:
    return _language("GPT2LMHeadModel", "GPT2Config", vocab_size=WORDS, n_embd=64, n_layer=2,
                     n_head=4, bos_token_id=1, eos_token_id=2)  # fmt: skip


def _t5() -> Made:
    return _language("T5ForConditionalGeneration", "T5Config", vocab_size=WORDS, d_model=64,
                     d_kv=16, d_ff=128, num_layers=2, num_heads=4,
                     feed_forward_proj="gated-gelu", decoder_start_token_id=0)  # fmt: skip


def _mamba() -> Made:
    return _language("MambaForCausalLM", "MambaConfig", vocab_size=WORDS, hidden_size=64,
                     num_hidden_layers=2, state_size=8)  # fmt: skip


def _mixtral() -> Made:
    return _language("MixtralForCausalLM", "MixtralConfig", **_SIZES, num_key_value_heads=2,
                     num_local_experts=4, num_experts_per_tok=2,
                     output_router_logits=True)  # fmt: skip


def _vit() -> Made:
    import transformers

    config = transformers.ViTConfig(**_SMALL, image_size=32, patch_size=8, num_labels=CLASSES)
    return _with_loss(transformers.ViTForImageClassification(config),
                      pixel_values=_images(32), labels=torch.arange(2))  # fmt: skip


def _whisper() -> Made:
    import transformers

    config = transformers.WhisperConfig(
        vocab_size=WORDS, num_mel_bins=16, d_model=64, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=128,
        decoder_ffn_dim=128, max_source_positions=32, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    return _with_loss(transformers.WhisperForConditionalGeneration(config),
                      input_features=torch.randn(2, 16, 64), labels=_words(12))  # fmt: skip


def _clip() -> Made:
    import transformers

    config = transformers.CLIPConfig(
        text_config={**_SIZES, "bos_token_id": 1, "eos_token_id": 2},
        vision_config={**_SMALL, "image_size": 32, "patch_size": 8},
        projection_dim=32,
    )
    return _with_loss(transformers.CLIPModel(config), input_ids=_words(),
                      pixel_values=_images(32), return_loss=True)  # fmt: skip


def _wav2vec2() -> Made:
    import transformers

    config = transformers.Wav2Vec2Config(
        **_SIZES, conv_dim=(32, 32), conv_kernel=(10, 8), conv_stride=(5, 4),
        num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4, mask_time_prob=0.0,
        pad_token_id=0,
    )  # fmt: skip
    return _with_loss(transformers.Wav2Vec2ForCTC(config), input_values=torch.randn(2, 1600),
                      labels=_words(6))  # fmt: skip


#: Where a model comes from, and its name -> what makes it.
ZOO: Final[dict[tuple[str, str], Callable[[], Made]]] = {
    **{("torchvision", name): functools.partial(_torchvision, name, **options)
       for name, options in {
           "alexnet": {},
           "squeezenet1_1": {},
           "mobilenet_v2": {},
           "googlenet": {"aux_logits": False, "init_weights": False},
           "efficientnet_b0": {},
           "resnet18": {},
           "densenet121": {},
           "swin_t": {},
       }.items()},
    **{("timm", name): functools.partial(_timm, name, **options)
       for name, options in {
           "vit_tiny_patch16_224": {"img_size": 64},
           "convnext_atto": {},
           "mobilenetv3_small_050": {},
           "regnety_002": {},
           "mobilevit_xxs": {},
           "xcit_nano_12_p16_224": {},
       }.items()},
    ("transformers", "BERT"): functools.partial(
        _language, "BertForMaskedLM", "BertConfig", **_SIZES),
    ("transformers", "GPT-2"): _gpt2,
    ("transformers", "Llama"): functools.partial(
        _language, "LlamaForCausalLM", "LlamaConfig", **_SIZES, num_key_value_heads=2),
    ("transformers", "T5"): _t5,
    ("transformers", "ViT"): _vit,
    ("transformers", "Whisper"): _whisper,
    ("transformers", "Mamba"): _mamba,
    ("transformers", "Mixtral"): _mixtral,
    ("transformers", "CLIP"): _clip,
    ("transformers", "wav2vec2"): _wav2vec2,
}  # fmt: skip


def training_step(
    made: Made, precision: str, device: str = "cpu", compiled: bool = False
) -> Callable[[], None]:
    """Return a run: forward pass, loss, backward pass, and a step of AdamW.

    Args:
        made: an entry of ``ZOO``, made.
        device: where the model is.
        precision: ``float32``, or ``bfloat16`` for autocast in the forward pass and the loss.
        compiled: whether torch.compile compiles forward pass, loss and backward pass.
    """
    model, loss_of = made
    if compiled:
        loss_of = torch.compile(loss_of)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        with torch.autocast(device, dtype=torch.bfloat16, enabled=precision == "bfloat16"):
            loss = loss_of(model)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
