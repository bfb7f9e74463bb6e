# SPDX-License-Identifier: Apache-2.0
"""The operators of the contract: docs/reproduce/contract.md."""

from pytest_udftorch.swap.contract.alignments import ctc_loss, ctc_loss_backward
from pytest_udftorch.swap.contract.attention import (
    attention,
    attention_backward,
    composed_attention,
)
from pytest_udftorch.swap.contract.bags import (
    embedding_bag,
    embedding_bag_backward,
    embedding_bag_of_weights,
)
from pytest_udftorch.swap.contract.cuda_elements import (
    add,
    add_out,
    addcdiv,
    addcmul,
    div,
    div_,
    div_out,
    foreach_add,
    foreach_add_,
    foreach_addcdiv,
    foreach_addcdiv_,
    foreach_addcmul,
    foreach_addcmul_,
    foreach_div,
    foreach_div_,
    foreach_lerp,
    foreach_lerp_,
    foreach_norm,
    foreach_number,
    foreach_numbers,
    foreach_sub,
    foreach_sub_,
    glu_backward,
    hardsigmoid,
    hardswish,
    lerp,
    lerp_,
    log_sigmoid_backward,
    logit,
    rsqrt,
    xlogy,
    xlogy_,
    xlogy_out,
)
from pytest_udftorch.swap.contract.cuda_layers import (
    attention_in_form,
    composed_rms_norm,
    cudnn_attention,
    cudnn_attention_backward,
    cudnn_batch_norm,
    cudnn_batch_norm_backward,
    efficient_attention,
    efficient_attention_backward,
    flash_attention,
    flash_attention_backward,
    native_dropout,
    native_dropout_backward,
    rms_norm,
    rms_norm_backward,
)
from pytest_udftorch.swap.contract.cuda_pools import (
    adaptive_avg_pool2d_backward,
    adaptive_max_pool2d_backward,
    max_pool2d_backward,
)
from pytest_udftorch.swap.contract.elements import (
    arange_,
    fmod,
    fmod_,
    fmod_out,
    pow_scalar,
    pow_scalar_,
    remainder,
    remainder_,
    remainder_out,
    rsqrt_on_cpus,
    sqrt,
)
from pytest_udftorch.swap.contract.grids import grid_sampler, grid_sampler_backward
from pytest_udftorch.swap.contract.kernels import above
from pytest_udftorch.swap.contract.norms import (
    batch_norm,
    batch_norm_alone,
    batch_norm_backward,
    batch_norm_in_evaluation,
    group_norm,
    group_norm_backward,
    std,
    std_mean,
    var,
    var_mean,
    vector_norm,
    weight_norm,
    weight_norm_backward,
)
from pytest_udftorch.swap.contract.optimizers import (
    fused_adagrad_,
    fused_adam_,
    fused_adamw_,
    fused_sgd_,
)
from pytest_udftorch.swap.contract.orders import (
    kthvalue,
    median,
    mode,
    nanmedian,
    sort,
    sort_out,
    topk,
    topk_out,
)
from pytest_udftorch.swap.contract.overwriting import (
    addmm_,
    addmm_out,
    addmv_,
    addmv_out,
    baddbmm_,
    baddbmm_out,
    bmm_out,
    cumsum_,
    cumsum_out,
    mean_out,
    mm_out,
    sum_out,
    vector_norm_out,
)
from pytest_udftorch.swap.contract.products import (
    addmm,
    addmv,
    baddbmm,
    bmm,
    convolution,
    convolution_backward,
    dot,
    grouped_mm,
    laid_out,
    mm,
    mv,
)
from pytest_udftorch.swap.contract.recurrent import lstm_layer, lstm_layer_backward
from pytest_udftorch.swap.contract.scatters import (
    embedding_backward,
    index_add,
    index_add_,
    index_put_,
    scatter_add,
    scatter_add_,
)
from pytest_udftorch.swap.contract.sixteen import sixteen, widened
from pytest_udftorch.swap.contract.sums import (
    binary_cross_entropy,
    binary_cross_entropy_backward,
    binary_cross_entropy_with_logits,
    cumsum,
    huber_loss,
    layer_norm,
    layer_norm_backward,
    log_softmax,
    log_softmax_backward,
    logsumexp,
    mean_all,
    mean_dims,
    mse_loss,
    nll_loss,
    nll_loss2d,
    prod_all,
    prod_dim,
    smooth_l1_loss,
    smooth_l1_loss_backward_,
    softmax,
    softmax_backward,
    sum_all,
    sum_dims,
)
from pytest_udftorch.swap.contract.upsampling import (
    upsample_bicubic2d,
    upsample_bicubic2d_aa,
    upsample_bicubic2d_aa_backward,
    upsample_bicubic2d_backward,
    upsample_bilinear2d,
    upsample_bilinear2d_aa,
    upsample_bilinear2d_aa_backward,
    upsample_bilinear2d_backward,
    upsample_linear1d,
    upsample_linear1d_backward,
    upsample_nearest1d,
    upsample_nearest1d_backward,
    upsample_nearest2d,
    upsample_nearest2d_backward,
    upsample_nearest3d,
    upsample_nearest3d_backward,
    upsample_nearest_exact1d,
    upsample_nearest_exact1d_backward,
    upsample_nearest_exact2d,
    upsample_nearest_exact2d_backward,
    upsample_nearest_exact3d,
    upsample_nearest_exact3d_backward,
    upsample_trilinear3d,
    upsample_trilinear3d_backward,
)
from pytest_udftorch.swap.contract.variates import (
    bernoulli_float_,
    bernoulli_tensor_,
    exponential_,
    multinomial,
    normal_,
    randperm_,
    uniform_,
)

# Those that take bfloat16 and half on the CPU.
addmm = sixteen(addmm)
addmv = sixteen(addmv)
attention = sixteen(attention)
attention_backward = sixteen(attention_backward)
baddbmm = sixteen(baddbmm)
batch_norm = sixteen(batch_norm)
batch_norm_alone = sixteen(batch_norm_alone)
batch_norm_backward = sixteen(batch_norm_backward)
batch_norm_in_evaluation = sixteen(batch_norm_in_evaluation)
bernoulli_float_ = sixteen(bernoulli_float_)
bernoulli_tensor_ = sixteen(bernoulli_tensor_)
binary_cross_entropy = sixteen(binary_cross_entropy)
binary_cross_entropy_backward = sixteen(binary_cross_entropy_backward)
binary_cross_entropy_with_logits = sixteen(binary_cross_entropy_with_logits)
bmm = sixteen(bmm)
# The inner form stands for itself: the other one calls it while torch.jit.trace records.
inner_convolution = laid_out(sixteen(convolution))
convolution = laid_out(sixteen(convolution))
convolution_backward = laid_out(sixteen(convolution_backward), 1)
cumsum = sixteen(cumsum)
dot = sixteen(dot)
embedding_bag = sixteen(embedding_bag)
embedding_bag_backward = sixteen(embedding_bag_backward)
embedding_bag_of_weights = sixteen(embedding_bag_of_weights)
embedding_backward = sixteen(embedding_backward)
exponential_ = sixteen(exponential_)
grid_sampler = sixteen(grid_sampler)
grid_sampler_backward = sixteen(grid_sampler_backward)
group_norm = sixteen(group_norm)
group_norm_backward = sixteen(group_norm_backward)
huber_loss = sixteen(huber_loss)
index_add = sixteen(index_add)
index_add_ = sixteen(index_add_)
index_put_ = sixteen(index_put_)
layer_norm = sixteen(layer_norm)
layer_norm_backward = sixteen(layer_norm_backward)
log_softmax = sixteen(log_softmax)
log_softmax_backward = sixteen(log_softmax_backward)
logsumexp = sixteen(logsumexp)
mean_all = sixteen(mean_all)
mean_dims = sixteen(mean_dims)
mm = sixteen(mm)
mse_loss = sixteen(mse_loss)
mv = sixteen(mv)
nll_loss = sixteen(nll_loss)
nll_loss2d = sixteen(nll_loss2d)
normal_ = sixteen(normal_)
pow_scalar = sixteen(pow_scalar)
pow_scalar_ = sixteen(pow_scalar_)
prod_all = sixteen(prod_all)
prod_dim = sixteen(prod_dim)
scatter_add = sixteen(scatter_add)
scatter_add_ = sixteen(scatter_add_)
smooth_l1_loss = sixteen(smooth_l1_loss)
smooth_l1_loss_backward_ = sixteen(smooth_l1_loss_backward_)
softmax = sixteen(softmax)
softmax_backward = sixteen(softmax_backward)
sqrt = sixteen(sqrt)
std = sixteen(std)
std_mean = sixteen(std_mean)
sum_all = sixteen(sum_all)
sum_dims = sixteen(sum_dims)
uniform_ = sixteen(uniform_)
upsample_bicubic2d = sixteen(upsample_bicubic2d)
upsample_bicubic2d_aa = sixteen(upsample_bicubic2d_aa)
upsample_bicubic2d_aa_backward = sixteen(upsample_bicubic2d_aa_backward)
upsample_bicubic2d_backward = sixteen(upsample_bicubic2d_backward)
upsample_bilinear2d = sixteen(upsample_bilinear2d)
upsample_bilinear2d_aa = sixteen(upsample_bilinear2d_aa)
upsample_bilinear2d_aa_backward = sixteen(upsample_bilinear2d_aa_backward)
upsample_bilinear2d_backward = sixteen(upsample_bilinear2d_backward)
upsample_linear1d = sixteen(upsample_linear1d)
upsample_linear1d_backward = sixteen(upsample_linear1d_backward)
upsample_nearest1d = sixteen(upsample_nearest1d)
upsample_nearest1d_backward = sixteen(upsample_nearest1d_backward)
upsample_nearest2d = sixteen(upsample_nearest2d)
upsample_nearest2d_backward = sixteen(upsample_nearest2d_backward)
upsample_nearest3d = sixteen(upsample_nearest3d)
upsample_nearest3d_backward = sixteen(upsample_nearest3d_backward)
upsample_nearest_exact1d = sixteen(upsample_nearest_exact1d)
upsample_nearest_exact1d_backward = sixteen(upsample_nearest_exact1d_backward)
upsample_nearest_exact2d = sixteen(upsample_nearest_exact2d)
upsample_nearest_exact2d_backward = sixteen(upsample_nearest_exact2d_backward)
upsample_nearest_exact3d = sixteen(upsample_nearest_exact3d)
upsample_nearest_exact3d_backward = sixteen(upsample_nearest_exact3d_backward)
upsample_trilinear3d = sixteen(upsample_trilinear3d)
upsample_trilinear3d_backward = sixteen(upsample_trilinear3d_backward)
weight_norm = sixteen(weight_norm)
weight_norm_backward = sixteen(weight_norm_backward)
var = sixteen(var)
var_mean = sixteen(var_mean)
vector_norm = sixteen(vector_norm)

# Those whose kernels for 16 bits round elsewhere.
avg_pool2d_backward = widened("avg_pool2d_backward")
logit_backward = widened("logit_backward")
nll_loss2d_backward = widened("nll_loss2d_backward")
nll_loss_backward = widened("nll_loss_backward")
prelu_kernel = widened("_prelu_kernel")
sigmoid_backward = widened("sigmoid_backward")
tanh_backward = widened("tanh_backward")

__all__ = [
    "adaptive_avg_pool2d_backward",
    "adaptive_max_pool2d_backward",
    "add",
    "add_out",
    "addcdiv",
    "addcmul",
    "addmm",
    "addmm_",
    "addmm_out",
    "addmv",
    "addmv_",
    "addmv_out",
    "arange_",
    "attention",
    "attention_backward",
    "attention_in_form",
    "avg_pool2d_backward",
    "baddbmm",
    "baddbmm_",
    "baddbmm_out",
    "batch_norm",
    "batch_norm_alone",
    "batch_norm_backward",
    "batch_norm_in_evaluation",
    "bernoulli_float_",
    "bernoulli_tensor_",
    "binary_cross_entropy",
    "binary_cross_entropy_backward",
    "binary_cross_entropy_with_logits",
    "bmm",
    "bmm_out",
    "composed_attention",
    "composed_rms_norm",
    "convolution",
    "convolution_backward",
    "ctc_loss",
    "ctc_loss_backward",
    "cudnn_attention",
    "cudnn_attention_backward",
    "cudnn_batch_norm",
    "cudnn_batch_norm_backward",
    "cumsum",
    "cumsum_",
    "cumsum_out",
    "div",
    "div_",
    "div_out",
    "dot",
    "efficient_attention",
    "efficient_attention_backward",
    "embedding_backward",
    "embedding_bag",
    "embedding_bag_backward",
    "embedding_bag_of_weights",
    "exponential_",
    "flash_attention",
    "flash_attention_backward",
    "fmod",
    "fmod_",
    "fmod_out",
    "foreach_add",
    "foreach_add_",
    "foreach_addcdiv",
    "foreach_addcdiv_",
    "foreach_addcmul",
    "foreach_addcmul_",
    "foreach_div",
    "foreach_div_",
    "foreach_lerp",
    "foreach_lerp_",
    "foreach_norm",
    "foreach_number",
    "foreach_numbers",
    "foreach_sub",
    "foreach_sub_",
    "fused_adagrad_",
    "fused_adam_",
    "fused_adamw_",
    "fused_sgd_",
    "glu_backward",
    "grid_sampler",
    "grid_sampler_backward",
    "group_norm",
    "group_norm_backward",
    "grouped_mm",
    "hardsigmoid",
    "hardswish",
    "huber_loss",
    "index_add",
    "index_add_",
    "index_put_",
    "inner_convolution",
    "kthvalue",
    "layer_norm",
    "layer_norm_backward",
    "lerp",
    "lerp_",
    "log_sigmoid_backward",
    "log_softmax",
    "log_softmax_backward",
    "logit",
    "logit_backward",
    "logsumexp",
    "lstm_layer",
    "lstm_layer_backward",
    "max_pool2d_backward",
    "mean_all",
    "mean_dims",
    "mean_out",
    "median",
    "mm",
    "mm_out",
    "mode",
    "mse_loss",
    "multinomial",
    "mv",
    "nanmedian",
    "native_dropout",
    "native_dropout_backward",
    "nll_loss",
    "nll_loss2d",
    "nll_loss2d_backward",
    "nll_loss_backward",
    "normal_",
    "pow_scalar",
    "pow_scalar_",
    "prelu_kernel",
    "prod_all",
    "prod_dim",
    "randperm_",
    "remainder",
    "remainder_",
    "remainder_out",
    "rms_norm",
    "rms_norm_backward",
    "rsqrt",
    "rsqrt_on_cpus",
    "scatter_add",
    "scatter_add_",
    "sigmoid_backward",
    "smooth_l1_loss",
    "smooth_l1_loss_backward_",
    "softmax",
    "softmax_backward",
    "sort",
    "sort_out",
    "sqrt",
    "std",
    "std_mean",
    "sum_all",
    "sum_dims",
    "sum_out",
    "tanh_backward",
    "topk",
    "topk_out",
    "uniform_",
    "upsample_bicubic2d",
    "upsample_bicubic2d_aa",
    "upsample_bicubic2d_aa_backward",
    "upsample_bicubic2d_backward",
    "upsample_bilinear2d",
    "upsample_bilinear2d_aa",
    "upsample_bilinear2d_aa_backward",
    "upsample_bilinear2d_backward",
    "upsample_linear1d",
    "upsample_linear1d_backward",
    "upsample_nearest1d",
    "upsample_nearest1d_backward",
    "upsample_nearest2d",
    "upsample_nearest2d_backward",
    "upsample_nearest3d",
    "upsample_nearest3d_backward",
    "upsample_nearest_exact1d",
    "upsample_nearest_exact1d_backward",
    "upsample_nearest_exact2d",
    "upsample_nearest_exact2d_backward",
    "upsample_nearest_exact3d",
    "upsample_nearest_exact3d_backward",
    "upsample_trilinear3d",
    "upsample_trilinear3d_backward",
    "var",
    "var_mean",
    "vector_norm",
    "vector_norm_out",
    "weight_norm",
    "weight_norm_backward",
    "xlogy",
    "xlogy_",
    "xlogy_out",
]

# What a function of the contract does depends on its arguments alone.
for _name in __all__:
    globals()[_name].__dict__.setdefault("above", above)
