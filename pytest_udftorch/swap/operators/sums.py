# SPDX-License-Identifier: Apache-2.0
"""Rows of operators that add up: products, reductions, windows, attention."""

from __future__ import annotations

from typing import Any, Final

from pytest_udftorch.swap.operators.row import (
    COMPOSED,
    OWN,
    OWN_IN_FLOAT32_ON_CPU,
    OWN_ON_CPU,
    OWN_ON_GPUS,
    OWN_ON_GPUS_IN_FLOAT32,
    TRIED,
    TRIED_ON_CPU,
    WIDENED,
    Contract,
    Held,
    Kind,
    Operator,
    Row,
    everywhere,
    moves,
    row,
)

_SUMS: Final = Kind.SUMS
_PRODUCTS: Final = Kind.PRODUCTS
_REDUCES: Final = Kind.REDUCES
_ON_CPU: Final = OWN_IN_FLOAT32_ON_CPU

#: Sums of products.
_OF_PRODUCTS: Final = (
    row("mm", _PRODUCTS, contract=OWN, factors=(0, 1)),
    row("bmm", _PRODUCTS, contract=OWN, factors=(0, 1)),
    row("mv", _PRODUCTS, contract=OWN, factors=(0, 1)),
    row("dot", _PRODUCTS, contract=OWN, factors=(0, 1)),
    row("addmm", _PRODUCTS, contract=OWN, factors=(1, 2), addend=0),
    row("baddbmm", _PRODUCTS, contract=OWN, factors=(1, 2), addend=0),
    row("addmv", _PRODUCTS, contract=OWN, factors=(1, 2), addend=0),
    row("addbmm", _PRODUCTS, factors=(1, 2), addend=0),
    # oneDNN takes powers when it chooses a plan.
    row(
        "convolution",
        _PRODUCTS,
        contract=OWN,
        factors=(0, 1),
        addend=2,
        beside="pow",
        also="_convolution",
    ),
    row("convolution_backward", _PRODUCTS, contract=OWN, beside="pow"),
    row("convolution_overrideable", _REDUCES),
    row("mkldnn_convolution", _PRODUCTS),
    row("linear", _PRODUCTS),
    row("mkldnn_linear", _REDUCES),
    row("_grouped_mm", _REDUCES, contract=OWN_ON_CPU),
    # Those of transformers, which call products.
    row("grouped_mm_fallback", _REDUCES, also="grouped_mm_fallback_backward"),
)

_RMS: Final = Contract(Held.COMPOSED, Held.COMPOSED, Held.OWN, Held.OWN)

#: Reductions.
_REDUCTIONS: Final = (
    row("sum", _SUMS, contract=OWN),
    row("mean", _SUMS, contract=OWN),
    row("cumsum", _SUMS, contract=OWN, along_rows=True),
    row("prod", _REDUCES, contract=OWN),
    row("cumprod", _REDUCES),
    row("var", _REDUCES, contract=OWN),
    row("std", _REDUCES, contract=OWN),
    row("var_mean", _REDUCES, contract=OWN),
    row("std_mean", _REDUCES, contract=OWN),
    row("norm", _REDUCES, "pow", contract=Contract(Held.COMPOSED, Held.COMPOSED)),
    row("linalg_vector_norm", _REDUCES, "pow", contract=OWN, stubs="norm_stub",
        cuda=Operator("linalg_vector_norm", ("pow",),
                      ("linalg_vector_norm", "linalg_vector_norm.out"))),
    row("_foreach_norm", _REDUCES, "pow", counted="norms",
        contract=Contract(Held.COMPOSED, Held.COMPOSED, Held.OWN, Held.OWN)),
)  # fmt: skip

#: Gradients of paddings with numbers from inside.
_PADS: Final = tuple(
    f"{kind}_pad{rank}d_backward" for kind in ("reflection", "replication") for rank in (1, 2, 3)
)

#: Sums at places that an index names.
_SCATTERED: Final = (
    row("embedding_dense_backward", _SUMS, contract=OWN),
    row("index_add", _SUMS, contract=OWN),
    row("scatter_add", _SUMS, contract=OWN),
    row("index_put", _SUMS, contract=COMPOSED, exact=True, rounds_if="accumulate",
        read_by="index"),
    row("_index_put_impl", _SUMS, contract=OWN, exact=True, rounds_if="accumulate",
        read_by="index"),
    row("scatter_reduce", _REDUCES),
    row("_embedding_bag", _REDUCES, contract=OWN_ON_CPU),
    row("_embedding_bag_forward_only", _REDUCES, contract=OWN_ON_CPU),
    row("_embedding_bag_backward", _REDUCES, contract=OWN_ON_CPU),
    row("_embedding_bag_per_sample_weights_backward", _REDUCES, contract=OWN_ON_CPU),
    row("embedding_renorm", _REDUCES),
    *(
        row(name, _SUMS, contract=TRIED_ON_CPU, compared=False, uncompiled=name)
        for name in ("col2im", "unfold_backward", *_PADS)
    ),
)  # fmt: skip

#: Norms.
_NORMS: Final = (
    row("native_layer_norm", _REDUCES, statistics=(1, None), contract=OWN, along_rows=True),
    row("native_layer_norm_backward", _REDUCES, contract=OWN),
    row("native_group_norm", _REDUCES, statistics=(1, None), contract=OWN, along_rows=True),
    row("native_group_norm_backward", _REDUCES, narrow_gradient=True, contract=OWN),
    row("native_batch_norm", _REDUCES, statistics=(1, None), contract=OWN, writes_statistics=True),
    row("native_batch_norm_backward", _REDUCES, contract=OWN, mislaid=True),
    row("_native_batch_norm_legit", _REDUCES, statistics=(1, None), contract=OWN),
    row("_native_batch_norm_legit_no_training", _REDUCES, statistics=(1, None), contract=OWN),
    row("_native_batch_norm_legit_functional", _REDUCES, statistics=(1, 3), running=(3, 5),
        uncompiled="_native_batch_norm_legit_functional"),
    row("cudnn_batch_norm", _REDUCES, contract=OWN_ON_GPUS_IN_FLOAT32, workspace=3,
        writes_statistics=True),
    row("cudnn_batch_norm_backward", _REDUCES, contract=OWN_ON_GPUS_IN_FLOAT32, mislaid=True),
    row("_batch_norm_with_update", _REDUCES, workspace=3),
    row("batch_norm_backward", _REDUCES),
    row("rms_norm", _REDUCES, contract=COMPOSED),
    row("_fused_rms_norm", _REDUCES, contract=_RMS),
    row("_fused_rms_norm_backward", _REDUCES, contract=_RMS),
    row("_weight_norm_interface", _REDUCES, contract=OWN_ON_CPU),
    row("_weight_norm_interface_backward", _REDUCES, contract=OWN_ON_CPU),
)  # fmt: skip

#: Pooling and interpolation.
_WINDOWS: Final = (
    row("avg_pool2d", _SUMS, contract=TRIED, uncompiled="avg_pool2d"),
    row("avg_pool2d_backward", _SUMS, contract=WIDENED,
        uncompiled="avg_pool2d_backward"),
    row("_adaptive_avg_pool2d", _SUMS, contract=TRIED, uncompiled="_adaptive_avg_pool2d"),
    row("_adaptive_avg_pool2d_backward", _SUMS,
        contract=Contract(Held.TRIED, Held.TRIED, Held.OWN),
        uncompiled="_adaptive_avg_pool2d_backward"),
    row("max_pool2d_with_indices_backward", _SUMS,
        contract=Contract(Held.TRIED, Held.TRIED, Held.OWN),
        uncompiled="max_pool2d_with_indices_backward"),
    row("adaptive_max_pool2d_backward", _SUMS,
        contract=Contract(Held.TRIED, Held.TRIED, Held.OWN)),
    # Each place is one that was there.
    moves("upsample_nearest1d"),
    moves("upsample_nearest2d"),
    row("upsample_nearest3d", Kind.MOVES, exact=True, contract=OWN),
    row("_upsample_nearest_exact1d", Kind.MOVES, exact=True, contract=OWN),
    row("_upsample_nearest_exact2d", Kind.MOVES, exact=True, contract=OWN),
    row("_upsample_nearest_exact3d", Kind.MOVES, exact=True, contract=OWN),
    row("upsample_linear1d", _SUMS, contract=OWN),
    row("upsample_bilinear2d", _SUMS, contract=OWN),
    row("upsample_trilinear3d", _SUMS, contract=OWN),
    row("_upsample_bilinear2d_aa", _SUMS, contract=OWN),
    row("upsample_bicubic2d", _REDUCES, contract=OWN),
    row("_upsample_bicubic2d_aa", _REDUCES, contract=OWN),
    row("upsample_nearest1d_backward", _SUMS, contract=OWN),
    row("upsample_nearest2d_backward", _SUMS, contract=OWN),
    row("upsample_nearest3d_backward", _SUMS, contract=OWN),
    row("_upsample_nearest_exact1d_backward", _SUMS, contract=OWN),
    row("_upsample_nearest_exact2d_backward", _SUMS, contract=OWN),
    row("_upsample_nearest_exact3d_backward", _SUMS, contract=OWN),
    row("upsample_linear1d_backward", _SUMS, contract=OWN),
    row("upsample_bilinear2d_backward", _SUMS, contract=OWN),
    row("upsample_trilinear3d_backward", _SUMS, contract=OWN),
    row("_upsample_bilinear2d_aa_backward", _SUMS, contract=OWN),
    row("upsample_bicubic2d_backward", _REDUCES, contract=OWN),
    row("_upsample_bicubic2d_aa_backward", _REDUCES, contract=OWN),
    row("grid_sampler_2d", _REDUCES, contract=OWN_ON_CPU),
    row("grid_sampler_2d_backward", _REDUCES, contract=OWN_ON_CPU),
    row("grid_sampler_3d", _REDUCES, contract=OWN_ON_CPU),
    row("grid_sampler_3d_backward", _REDUCES, contract=OWN_ON_CPU),
)  # fmt: skip

#: The forms among which attention chooses on CUDA.
FUSED: Final = tuple(f"_scaled_dot_product_{n}_attention" for n in ("flash", "efficient", "cudnn"))


def _attention(
    name: str, definition: str, counted: str = "", functions: str = "exp", **facts: Any
) -> Row:
    return row(
        name, _REDUCES, functions, definition=definition, counted=counted, mixes=True, **facts
    )


#: Attention. The overrides of the first row are those of all operators that fuse it on CUDA.
_ATTENTION: Final = (
    # Torch composes it where no operator fuses it, in another order than the contract's. On GPUs
    # the contract fuses and composes what the CPU does.
    row("scaled_dot_product_attention", _REDUCES, "exp", contract=everywhere(Held.COMPOSED),
        cuda=Operator(
            "scaled_dot_product_attention",
            ("attention_forward", "attention_queries", "attention_keys"),
            tuple(f"{name}{end}" for name in FUSED for end in ("", "_backward")),
            tuple((name, f"make<{name.split('_')[4].capitalize()}Attention>") for name in FUSED))),
    # Heads of values of another size than those of queries, which are given zeros and fused.
    row("_scaled_dot_product_attention_math", _REDUCES, "exp", contract=OWN),
    _attention("_scaled_dot_product_flash_attention_for_cpu", "attention",
               functions="exp log", contract=OWN_ON_CPU),
    _attention("_scaled_dot_product_flash_attention_for_cpu_backward", "attention_gradients",
               "scores", contract=OWN_ON_CPU),
    _attention("_scaled_dot_product_flash_attention", "flash", "scores_and_sums",
               functions="exp log", contract=OWN_ON_GPUS),
    _attention("_scaled_dot_product_flash_attention_backward", "flash_gradients", "scores",
               contract=OWN_ON_GPUS),
    _attention("_scaled_dot_product_efficient_attention", "efficient", "scores_and_sums",
               functions="exp log", contract=OWN_ON_GPUS),
    _attention("_scaled_dot_product_efficient_attention_backward", "efficient_gradients",
               "scores", contract=OWN_ON_GPUS),
    _attention("_scaled_dot_product_cudnn_attention", "cudnn", "scores_and_sums",
               functions="exp log", contract=OWN_ON_GPUS),
    _attention("_scaled_dot_product_cudnn_attention_backward", "cudnn_gradients", "scores",
               contract=OWN_ON_GPUS),
    row("_native_multi_head_attention", _REDUCES, "exp", counted="self_attention"),
    row("_transformer_encoder_layer_fwd", _REDUCES, "exp erf", counted="encoder_layer"),
)  # fmt: skip

#: Recurrent layers, alignments and distances.
_OTHERS: Final = (
    # nn.LSTM and the like run the cells where cuDNN would have kernels of its own for whole layers.
    row("_cudnn_rnn", _REDUCES, "exp tanh", workspace=3,
        cuda=Operator(
            "_cudnn_rnn", ("lstm_cell", "gru_cell"),
            ("_thnn_fused_lstm_cell", "_thnn_fused_lstm_cell_backward_impl",
             "_thnn_fused_gru_cell", "_cudnn_rnn"))),
    row("_thnn_fused_lstm_cell", _REDUCES, "exp tanh"),
    row("_thnn_fused_lstm_cell_backward_impl", _REDUCES, "tanh"),
    row("_thnn_fused_gru_cell", _REDUCES, "exp tanh"),
    row("mkldnn_rnn_layer", _REDUCES, "exp tanh", counted="recurrent", workspace=3,
        contract=_ON_CPU),
    row("mkldnn_rnn_layer_backward", _REDUCES, "tanh", counted="recurrent_backward",
        contract=_ON_CPU),
    row("_ctc_loss", _REDUCES, "exp log", counted="alignments", definition="alignments",
        mixes=True, contract=_ON_CPU,
        cuda=Operator(
            "_ctc_loss", ("alignments", "alignments_backward"),
            tuple(f"{n}{end}" for n in ("_ctc_loss", "_ctc_loss_backward", "_use_cudnn_ctc_loss")
                  for end in ("", ".Tensor")))),
    row("_ctc_loss_backward", _REDUCES, "exp log", counted="alignments_backward",
        definition="alignments_gradient", mixes=True, contract=_ON_CPU),
    row("_cdist_forward", _REDUCES, "pow", counted="distances", stubs="cdist_stub",
        cuda=Operator("_cdist_forward", ("pow",),
                      ("_cdist_forward", "_cdist_backward", "_pdist_forward",
                       "_pdist_backward"))),
    row("_cdist_backward", _REDUCES, "pow", stubs="cdist_backward_stub"),
    row("_pdist_forward", _REDUCES, "pow", counted="distances", stubs="pdist_forward_stub"),
    row("_pdist_backward", _REDUCES, "pow", stubs="pdist_backward_stub"),
    # Whole steps of optimizers.
    row("_fused_adam", Kind.MAPS, contract=OWN, stubs="fused_adam_stub:_fused_adam_"),
    row("_fused_adamw", Kind.MAPS, contract=OWN),
    row("_fused_sgd", Kind.MAPS, contract=OWN),
    row("_fused_adagrad", Kind.MAPS, contract=OWN),
    row("_amp_foreach_non_finite_check_and_unscale", Kind.MAPS),
)  # fmt: skip

ROWS: Final = (
    *_OF_PRODUCTS, *_REDUCTIONS, *_SCATTERED, *_NORMS, *_WINDOWS, *_ATTENTION, *_OTHERS,
)  # fmt: skip
