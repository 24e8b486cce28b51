"""What autocast does with each op, for every kind of device: names of aten without their overloads.

Written by ``benchmarks/optable.py`` from torch 2.13.0; do not edit. ``low``: floating arguments are cast to the
autocast dtype; ``fp32``: to float32; ``fp32 unless dtype``: the output is float32 unless the call names a dtype; ``fp32
appended``: the overload that takes a dtype is called, with float32; ``promote``: to the widest floating dtype among
them; ``banned``: it raises. What is not listed runs in the dtypes that it is given.
"""

from __future__ import annotations

#: Policy -> ops. The other accelerators share the list of CUDA, but for what is cuDNN's.
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
_ONLY_CUDA = frozenset("_cudnn_rnn cudnn_convolution cudnn_convolution_transpose miopen_rnn".split())


def _by_op(table: dict[str, str]) -> dict[str, str]:
    return {op: policy for policy, ops in table.items() for op in ops.split()}


#: Device type -> op -> policy.
OPS: dict[str, dict[str, str]] = {"cuda": _by_op(_CUDA), "mps": _by_op(_MPS), "cpu": _by_op(_CPU)}
#: What is common to all accelerators but MPS.
_COMMON = {op: policy for op, policy in OPS["cuda"].items() if op not in _ONLY_CUDA}
OPS.update(dict.fromkeys(("xpu", "mtia", "maia"), _COMMON))


def policy(device: str, op: str) -> str:
    """What autocast does with an op of aten on a type of device, "" where it is not on the device's list.

    Of a device that is not known, only what is the same on CUDA, the CPU and MPS is known: "?" elsewhere.
    """
    table = OPS.get(device)
    if table is not None:
        return table.get(op, "")
    found = {OPS[known].get(op, "") for known in ("cuda", "cpu", "mps")}
    return found.pop() if len(found) == 1 else "?"
