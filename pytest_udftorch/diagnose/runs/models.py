# SPDX-License-Identifier: Apache-2.0
"""Models that a word names: classes of transformers, checkpoints on disk, timm's, torchvision's.

Nothing is downloaded. A class of transformers gets a small configuration, which keeps its kinds of
layers; its weights are random, and so are those of timm and torchvision. The sizes are chosen so
that batch and length of the inputs are no other size of such a model.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.base.optional import package
from pytest_udftorch.errors import RunError, nearest

#: Rows and tokens of the inputs of a language model. Length and rows are powers of two, so that
#: the gradients of micro-batches are nodes of the tree of the batch's.
BATCH, LENGTH = 4, 128

#: Rows and pixels a side of the images. Larger batches of whole networks take long on a CPU.
IMAGES, PIXELS = 4, 64

#: Samples of an audio signal.
_SAMPLES: Final = 1600

#: Sizes of a small configuration, by the names that configurations of transformers give them.
_SIZES: Final[dict[str, int]] = {
    **dict.fromkeys(("vocab_size", "text_vocab_size"), 1000),
    **dict.fromkeys(
        ("hidden_size", "d_model", "n_embd", "dim", "model_dim", "embed_dim", "word_embed_proj_dim",
         "embedding_size", "attention_hidden_size", "lru_width"), 192),
    **dict.fromkeys(
        ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers",
         "decoder_layers", "num_decoder_layers", "num_encoder_layers"), 2),
    **dict.fromkeys(
        ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads",
         "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "multi_query_group_num"), 2),
    **dict.fromkeys(
        ("intermediate_size", "ffn_dim", "d_ff", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim",
         "ffn_hidden_size", "moe_intermediate_size", "shared_expert_intermediate_size",
         "shared_intermediate_size", "hidden_dim", "dff"), 688),
    **dict.fromkeys(
        ("head_dim", "d_kv", "v_head_dim", "qk_nope_head_dim", "attention_head_dim"), 48),
    "qk_rope_head_dim": 32, "kv_lora_rank": 96, "q_lora_rank": 96, "rotary_dim": 24,
    **dict.fromkeys(
        ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(
        ("n_group", "topk_group", "first_k_dense_replace", "moe_layer_start_index",
         "n_shared_experts", "attn_layer_offset"), 1),
    "attn_layer_period": 2, "num_kv_shared_layers": 0,
    **dict.fromkeys(
        ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_source_positions",
         "max_target_positions", "max_sequence_length"), 512),
    **dict.fromkeys(("sliding_window", "attention_window_size", "local_attention", "window_size"),
                    40),
    "image_size": 32, "patch_size": 8, "num_mel_bins": 20, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "decoder_start_token_id": 1, "mamba_n_heads": 8, "mamba_d_head": 48,
    "mamba_num_heads": 8, "mamba_head_dim": 48, "ssm_state_size": 16, "state_size": 16,
    "mamba_d_ssm": 384, "time_step_rank": 12, "num_codevectors_per_group": 32, "codevector_dim": 32,
    "projection_dim": 48, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
}  # fmt: skip


#: A model of images whose own configuration serves takes none with more pixels a side.
_LARGEST: Final = 256

#: Names of the list of the kinds of layers.
_KINDS: Final = ("layer_types", "layers_block_type", "block_types")


def make_hf_tiny(name: str) -> Callable[[], Any]:
    """Return what makes a class of transformers with a small configuration, and inputs of it."""
    model_class = _class_of_transformers(name)

    def make() -> Any:
        with _quiet():
            try:
                model = _fitting(model_class)
            except Exception as error:
                raise RunError(
                    f"{name} cannot be made with a small configuration ({_line(error)}). Write a "
                    "function that makes it and its inputs, and name it as model.py:make."
                ) from error
        return model, inputs_of(model)

    return make


def _fitting(model_class: Any) -> Any:
    """Return a model of a small configuration; one of images whose stages it fits, or its own.

    The sizes of a stage follow from those before it, so that small ones need not fit.
    """
    import torch

    def made(config: Any) -> Any:
        return model_class(config).eval()

    if getattr(model_class, "main_input_name", "") != "pixel_values":
        return made(_small(model_class.config_class))
    try:
        model = made(_small(model_class.config_class))
        with torch.no_grad():
            model(**inputs_of(model))
    except RunError:
        raise
    except Exception:  # whatever a model's own code raises
        own = model_class.config_class()
        size = getattr(own, "image_size", PIXELS)
        if not isinstance(size, int) or size > _LARGEST:
            raise
        model = made(own)
    return model


def make_hf(folder: str) -> Callable[[], Any]:
    """Return what loads a checkpoint of transformers from a folder, and makes inputs of it."""
    if not (Path(folder) / "config.json").is_file():
        raise RunError(
            f"{folder!r} is not the folder of a checkpoint: it has no config.json. Save one with "
            "model.save_pretrained(folder)."
        )

    def make() -> Any:
        transformers = package("transformers", f"hf:{folder}")
        with _quiet():
            try:
                config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
                (name, *_) = config.architectures or ["AutoModel"]
                model = getattr(transformers, name).from_pretrained(folder, local_files_only=True)
            except Exception as error:
                raise RunError(f"{folder} cannot be loaded: {_line(error)}.") from error
        model = model.eval()
        return model, inputs_of(model)

    return make


def make_timm(name: str) -> Callable[[], Any]:
    """Return what makes a model of timm with random weights, and images."""
    timm = package("timm", f"timm:{name}")
    if name not in timm.list_models():
        raise RunError(f"timm has no model {name!r}. {nearest(name, timm.list_models())}")
    return _of_images(lambda **options: timm.create_model(name, **options), "img_size", name)


def make_torchvision(name: str) -> Callable[[], Any]:
    """Return what makes a model of torchvision with random weights, and images."""
    models = package("torchvision", f"torchvision:{name}").models
    known = models.list_models(models)
    if name not in known:
        raise RunError(f"torchvision has no classifier {name!r}. {nearest(name, known)}")
    return _of_images(
        lambda **options: models.get_model(name, weights=None, **options), "image_size", name
    )


#: Word before the colon -> what takes the rest and returns what makes the model and its inputs.
NAMED: Final[dict[str, Callable[[str], Callable[[], Any]]]] = {
    "hf-tiny": make_hf_tiny,
    "hf": make_hf,
    "timm": make_timm,
    "torchvision": make_torchvision,
}


def named_model(where: str) -> Callable[[], Any] | None:
    """Return what makes the model that a word names, or None if the text names none.

    ``make()`` returns a model in evaluation mode, and a dictionary of its arguments or a tuple.

    Raises:
        PackageMissingError: the package that has the model is not installed.
        RunError: the package has no such model, or the folder no checkpoint.
    """
    word, colon, rest = where.partition(":")
    maker = NAMED.get(word) if colon and rest else None
    return None if maker is None else maker(rest)


def _class_of_transformers(name: str) -> Any:
    transformers = package("transformers", f"hf-tiny:{name}")
    found = getattr(transformers, name, None)
    if getattr(found, "config_class", None) is None:
        names = [n for n in dir(transformers) if "For" in n or n.endswith("Model")]
        raise RunError(f"transformers has no class of models {name!r}. {nearest(name, names)}")
    return found


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the bars and advice of transformers out of what is printed."""
    logging: Any = package("transformers", "A model of transformers").utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


# Small configurations ----------------------------------------------------------------


def _small(config_class: Any) -> Any:
    """Return a small configuration, with small ones for its parts."""
    default, sizes = config_class(), dict[str, Any]()
    known = default.to_dict()
    for name, value in known.items():
        if name in _SIZES and isinstance(value, int | None) and _wanted(name, value):
            sizes[name] = _SIZES[name]
    if "kv_lora_rank" in known:  # latent attention: every head has its own keys
        own = {"num_key_value_heads": _SIZES["num_attention_heads"]}
        own["head_dim"] = _SIZES["qk_rope_head_dim"]
        sizes |= {name: size for name, size in own.items() if name in known}
    if {"expand", "num_heads", "state_size"} <= known.keys():  # Mamba 2: heads divide what expands
        sizes["num_heads"] = _SIZES["mamba_num_heads"]
    for name, stated in getattr(config_class, "sub_configs", {}).items():
        # Where any class may stand, the default has one.
        part = stated if hasattr(stated, "to_dict") else type(getattr(default, name, None))
        if hasattr(part, "to_dict") and not name.startswith("_"):
            sizes[name] = _small(part)
    return config_class(**_with_layers(known, sizes))


def _wanted(name: str, value: Any) -> bool:
    """Tell whether a size of the default configuration is to be replaced by the small one."""
    if value is None:  # absent: no window, no groups of keys
        return name in (
            "n_inner", "num_key_value_heads", "pad_token_id", "head_dim", "num_experts_per_tok",
            "n_routed_experts", "n_shared_experts",
        )  # fmt: skip
    return not isinstance(value, bool) and (value > 1 or name.endswith("_id"))


def _with_layers(known: dict[str, Any], sizes: dict[str, Any]) -> dict[str, Any]:
    """Add a layer of each kind, for configurations that list the kinds of their layers."""
    if "attention_types" in known:  # GPT-Neo: kinds, and how often they follow each other
        ((kinds, _),) = known["attention_types"]
        return {**sizes, "num_layers": len(kinds), "attention_types": [[kinds, 1]]}
    name = next((n for n in _KINDS if known.get(n)), None)
    if name is None or "num_hidden_layers" not in sizes:
        return sizes
    kinds = known[name]
    each = list(dict.fromkeys(kinds))
    layers = (each * 2)[: max(2, len(each))]
    return {**sizes, name: layers, "num_hidden_layers": len(layers)}


# Inputs ------------------------------------------------------------------------------


def inputs_of(model: Any) -> dict[str, Any]:
    """Return arguments for a model of transformers, from torch's generator.

    Tokens are int64 of shape (rows, length), images float32 of shape (rows, channels, height,
    width), audio float32 of shape (rows, samples).

    Raises:
        RunError: it takes something else.
    """
    import torch

    takes = inspect.signature(model.forward).parameters
    config, found = model.config, {}
    text = getattr(config, "text_config", None) or config
    words = getattr(text, "vocab_size", None)
    limit = getattr(text, "max_position_embeddings", None) or LENGTH
    length = min(LENGTH, limit if isinstance(limit, int) and limit > 0 else LENGTH)

    def tokens(count: int) -> Any:
        return torch.randint(3, int(words or 0), (BATCH, count))

    if "input_ids" in takes and words:
        found["input_ids"] = tokens(length)
    if "input_features" in takes:
        bins = getattr(config, "num_mel_bins", 80)
        frames = 2 * getattr(config, "max_source_positions", LENGTH)
        found["input_features"] = torch.randn(BATCH, bins, frames)
    if "input_values" in takes:
        found["input_values"] = torch.randn(BATCH, _SAMPLES)
    if "pixel_values" in takes and getattr(model, "main_input_name", "") == "pixel_values":
        found["pixel_values"] = _images_for(getattr(config, "vision_config", config))
    elif "pixel_values" in takes and type(config).__name__.startswith(("CLIP", "Siglip")):
        found["pixel_values"] = _images_for(config.vision_config)
    if "decoder_input_ids" in takes and words:
        found["decoder_input_ids"] = tokens(length // 2)
    if not found:
        raise RunError(
            f"What {type(model).__name__} takes is not known here. Write a function that returns "
            "the model and its inputs, and name it as model.py:make."
        )
    return found


def _images_for(config: Any) -> Any:
    import torch

    size = getattr(config, "image_size", PIXELS) or PIXELS
    pixels = size if isinstance(size, int) else size[0]
    return torch.randn(BATCH, getattr(config, "num_channels", 3), pixels, pixels)


def _of_images(create: Callable[..., Any], option: str, name: str) -> Callable[[], Any]:
    """Return what makes a classifier of images, smaller than usual where it can take such."""

    def make() -> Any:
        import torch

        # Transformers fix the size when they are made, and some networks need larger images.
        tried: list[tuple[dict[str, int], int]] = [({option: PIXELS}, PIXELS)]
        tried += [({}, pixels) for pixels in (PIXELS, 2 * PIXELS, 224, 256, 299)]
        said = ""
        for options, pixels in tried:
            try:
                model = create(**options).eval()
                with torch.no_grad():
                    model(torch.zeros(1, 3, pixels, pixels))
            except Exception as error:
                said = said or _line(error)
                continue
            return model, (torch.randn(IMAGES, 3, pixels, pixels),)
        raise RunError(f"{name} takes no square images of three channels ({said}).")

    return make
