"""Autocast policies of ops for all device types, and the effects of in-place ops on gradients.

Ops have the names of aten, without overload names.

Written by ``benchmarks/optable.py`` from torch 2.13.0; do not edit. ``low``: floating arguments are cast to the
autocast dtype; ``fp32``: to float32; ``fp32 unless dtype``: the output is float32 unless the call names a dtype; ``fp32
appended``: the overload with a dtype is called, with float32; ``promote``: to the widest floating dtype of the
arguments; ``banned``: the op raises. Ops without policy run in the dtypes of the arguments.

On gradients scaled by a loss scale, ``zero`` clears the gradients, and ``multiply`` and ``divide`` may remove the
scale. ``homogeneous`` edits commute with scaling: the result is the edited unscaled gradient, times the scale. ``fill``
sets elements to a number, which is an edit unless the number is zero or infinite. ``replace`` copies other values,
scaled or not. ``edit`` compares with numbers, adds numbers or is nonlinear, and so has another effect on scaled
gradients.
"""

from __future__ import annotations

#: Policy -> ops. Other accelerators share CUDA's list, except for the ops of cuDNN.
_CUDA = {
    "low": (
        "_convolution _cudnn_rnn _scaled_dot_product_flash_attention _thnn_fused_gru_cell _thnn_fused_lstm_cell "
        "addbmm addmm addmv addr baddbmm bmm chain_matmul conv1d conv2d conv3d conv_tbc conv_transpose1d "
        "conv_transpose2d conv_transpose3d convolution cudnn_convolution cudnn_convolution_transpose einsum "
        "gru_cell linalg_multi_dot linalg_vecdot linear lstm_cell matmul miopen_rnn mm mv prelu rnn_relu_cell "
        "rnn_tanh_cell scaled_dot_product_attention"
    ),
    "fp32": (
        "_upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact1d _upsample_nearest_exact2d "
        "_upsample_nearest_exact3d acos asin binary_cross_entropy_with_logits cdist cosh cosine_embedding_loss "
        "cosine_similarity dist erfinv exp expm1 frobenius_norm group_norm hinge_embedding_loss huber_loss kl_div "
        "l1_loss layer_norm log log10 log1p log2 logsumexp margin_ranking_loss mse_loss multi_margin_loss "
        "multilabel_margin_loss native_layer_norm nll_loss nll_loss2d nuclear_norm pdist poisson_nll_loss pow "
        "reciprocal renorm rms_norm rsqrt sinh smooth_l1_loss soft_margin_loss softplus tan triplet_margin_loss "
        "upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d "
        "upsample_nearest3d upsample_trilinear3d"
    ),
    "fp32 unless dtype": "cumprod cumsum linalg_matrix_norm linalg_vector_norm log_softmax prod softmax sum",
    "fp32 appended": "norm",
    "promote": "addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put scatter_add tensordot vdot",
    "banned": "binary_cross_entropy",
}
_MPS = {
    "low": (
        "_convolution _mps_convolution addbmm addmm addmv addr baddbmm bmm chain_matmul conv1d conv2d conv3d "
        "conv_tbc conv_transpose1d conv_transpose2d convolution einsum linalg_multi_dot linear lstm_cell matmul mm "
        "mv prelu scaled_dot_product_attention"
    ),
    "fp32": (
        "acos asin batch_norm binary_cross_entropy_with_logits cdist conv_transpose3d cosh cosine_embedding_loss "
        "cosine_similarity dist erfinv exp expm1 frobenius_norm group_norm hinge_embedding_loss huber_loss kl_div "
        "l1_loss layer_norm log log10 log1p log2 logsumexp margin_ranking_loss mse_loss multi_margin_loss "
        "multilabel_margin_loss native_layer_norm nll_loss nll_loss2d nuclear_norm pdist poisson_nll_loss pow "
        "reciprocal renorm rsqrt sinh smooth_l1_loss soft_margin_loss softplus tan triplet_margin_loss"
    ),
    "fp32 unless dtype": "cumprod cumsum linalg_matrix_norm linalg_vector_norm log_softmax prod softmax sum",
    "promote": "addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put scatter_add tensordot",
}
_CPU = {
    "low": (
        "_addmm_activation _convolution _native_multi_head_attention addbmm addmm baddbmm bmm conv1d conv2d conv3d "
        "conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d linalg_vecdot linear matmul mkldnn_rnn_layer "
        "mm prelu scaled_dot_product_attention"
    ),
    "fp32": (
        "_grid_sampler_2d_cpu_fallback _lu_with_info adaptive_avg_pool3d adaptive_max_pool3d avg_pool3d "
        "binary_cross_entropy binary_cross_entropy_with_logits cdist cholesky cholesky_inverse cholesky_solve "
        "cosine_embedding_loss cross_entropy_loss ctc_loss fake_quantize_per_tensor_affine fft_fft fft_fft2 "
        "fft_fftn fft_hfft fft_ifft fft_ifft2 fft_ifftn fft_ihfft fft_irfft fft_irfft2 fft_irfftn fft_rfft "
        "fft_rfft2 fft_rfftn fractional_max_pool2d fractional_max_pool3d geqrf grid_sampler grid_sampler_2d "
        "grid_sampler_3d hinge_embedding_loss huber_loss inverse kl_div l1_loss linalg_cholesky linalg_cholesky_ex "
        "linalg_cond linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh linalg_householder_product linalg_inv "
        "linalg_inv_ex linalg_lstsq linalg_matrix_rank linalg_qr linalg_solve linalg_svd linalg_svdvals "
        "linalg_tensorinv linalg_tensorsolve lu_solve margin_ranking_loss max_pool3d max_unpool2d max_unpool3d "
        "mse_loss multi_margin_loss multilabel_margin_loss multilabel_margin_loss_forward nanquantile nll_loss "
        "nll_loss2d orgqr ormqr pinverse poisson_nll_loss polar prod qr quantile reflection_pad1d reflection_pad2d "
        "replication_pad1d replication_pad2d replication_pad3d smooth_l1_loss soft_margin_loss stft svd trace "
        "triangular_solve triplet_margin_loss view_as_complex"
    ),
    "promote": "cat index_copy stack",
}
#: Effect on gradients -> methods of tensors, and torch functions on lists of tensors.
_IN_PLACE = {
    "zero": "zero_",
    "multiply": "__imul__ mul_ multiply_",
    "divide": "__itruediv__ div_ divide_ true_divide_",
    "homogeneous": (
        "abs_ absolute_ conj_physical_ copysign_ cumsum_ deg2rad_ ldexp_ neg_ negative_ rad2deg_ relu_ tril_ triu_ "
        "xlogy_"
    ),
    "fill": "__setitem__ fill_ index_fill_ masked_fill_",
    "replace": "copy_",
    "edit": (
        "__iadd__ __ifloordiv__ __imod__ __ipow__ __isub__ acos_ acosh_ add_ addbmm_ addcdiv_ addcmul_ addmm_ "
        "addmv_ addr_ apply_ arccos_ arccosh_ arcsin_ arcsinh_ arctan2_ arctan_ arctanh_ asin_ asinh_ atan2_ atan_ "
        "atanh_ baddbmm_ bernoulli_ cauchy_ ceil_ clamp_ clamp_max_ clamp_min_ clip_ cos_ cosh_ cumprod_ digamma_ "
        "eq_ erf_ erfc_ erfinv_ exp2_ exp_ expm1_ exponential_ fill_diagonal_ fix_ floor_ floor_divide_ fmod_ frac_ "
        "ge_ geometric_ greater_ greater_equal_ gt_ heaviside_ hypot_ i0_ igamma_ igammac_ index_add_ index_copy_ "
        "index_put_ index_reduce_ le_ lerp_ less_ less_equal_ lgamma_ log10_ log1p_ log2_ log_ log_normal_ "
        "logical_and_ logical_not_ logical_or_ logical_xor_ logit_ lt_ map2_ map_ masked_scatter_ mvlgamma_ "
        "nan_to_num_ ne_ nextafter_ normal_ not_equal_ polygamma_ pow_ put_ random_ reciprocal_ remainder_ renorm_ "
        "round_ rsqrt_ scatter_ scatter_add_ scatter_reduce_ sgn_ sigmoid_ sign_ sin_ sinc_ sinh_ sqrt_ square_ "
        "sub_ subtract_ tan_ tanh_ trunc_ uniform_"
    ),
}
_FOREACH_IN_PLACE = {
    "zero": "_foreach_zero_",
    "multiply": "_foreach_mul_",
    "divide": "_foreach_div_",
    "homogeneous": "_foreach_abs_ _foreach_neg_",
    "replace": "_foreach_copy_",
    "edit": (
        "_foreach_acos_ _foreach_add_ _foreach_addcdiv_ _foreach_addcmul_ _foreach_asin_ _foreach_atan_ "
        "_foreach_ceil_ _foreach_clamp_max_ _foreach_clamp_min_ _foreach_cos_ _foreach_cosh_ _foreach_erf_ "
        "_foreach_erfc_ _foreach_exp_ _foreach_expm1_ _foreach_floor_ _foreach_frac_ _foreach_lerp_ "
        "_foreach_lgamma_ _foreach_log10_ _foreach_log1p_ _foreach_log2_ _foreach_log_ _foreach_maximum_ "
        "_foreach_minimum_ _foreach_pow_ _foreach_reciprocal_ _foreach_round_ _foreach_rsqrt_ _foreach_sigmoid_ "
        "_foreach_sign_ _foreach_sin_ _foreach_sinh_ _foreach_sqrt_ _foreach_sub_ _foreach_tan_ _foreach_tanh_ "
        "_foreach_trunc_"
    ),
}
_ONLY_CUDA = frozenset("_cudnn_rnn cudnn_convolution cudnn_convolution_transpose miopen_rnn".split())


def _index_by_op(table: dict[str, str]) -> dict[str, str]:
    return {op: policy for policy, ops in table.items() for op in ops.split()}


#: Device type -> op -> policy.
OPS: dict[str, dict[str, str]] = {"cuda": _index_by_op(_CUDA), "mps": _index_by_op(_MPS), "cpu": _index_by_op(_CPU)}
#: Method of tensors, or torch function -> effect on gradients.
IN_PLACE = _index_by_op(_IN_PLACE)
FOREACH_IN_PLACE = _index_by_op(_FOREACH_IN_PLACE)
#: Policies of all accelerators except MPS.
_COMMON = {op: policy for op, policy in OPS["cuda"].items() if op not in _ONLY_CUDA}
OPS.update(dict.fromkeys(("xpu", "mtia", "maia"), _COMMON))


def find_policy(device: str, op: str) -> str:
    """Return the autocast policy of an aten op on a device type, or "" if the op has no policy.

    For an unknown device, return the policy if CUDA, the CPU and MPS have the same policy, else "?".
    """
    table = OPS.get(device)
    if table is not None:
        return table.get(op, "")
    found = {OPS[known].get(op, "") for known in ("cuda", "cpu", "mps")}
    return found.pop() if len(found) == 1 else "?"
