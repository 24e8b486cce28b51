"""Ops without a low-precision kernel, and the casts of autocast for these ops. Most are only on the CPU's list.

Names are functions of torch and methods of tensors. LAPACK, cuSOLVER and MAGMA compute only in float32 and float64.
cuFFT transforms float16 if every length is a power of two, and never bfloat16 (documentation of torch.fft). A test with
torch confirms that each op rejects float16 and bfloat16.
"""

from __future__ import annotations

from . import optable

#: Ops that are float32 or float64 routines of LAPACK, or compositions of such routines.
DECOMPOSITIONS = frozenset(
    "svd svdvals qr inverse inv inv_ex pinv pinverse eig eigvals eigh eigvalsh lu lu_factor lu_factor_ex cholesky "
    "cholesky_ex cholesky_solve cholesky_inverse solve solve_ex lstsq det logdet slogdet matrix_rank triangular_solve "
    "solve_triangular cond geqrf orgqr householder_product tensorinv tensorsolve".split()
)
#: Methods of the results of arithmetic, which are tensors.
TENSOR_METHODS = frozenset("inverse pinverse svd qr cholesky det logdet slogdet".split())
#: Ops that first multiply, and then decompose the product, in one call.
LOW_RANK = frozenset(("pca_lowrank", "svd_lowrank"))
#: Ops that require float32 or float64 explicitly.
ASKING = frozenset(("quantile", "nanquantile"))
#: Losses that require it as well.
LOSSES = frozenset(("ctc_loss",))
#: Ops that make complex numbers of pairs. There are complex numbers of float16, but none of bfloat16.
COMPLEX = frozenset(("complex", "polar", "view_as_complex"))
TRANSFORMS = frozenset("fft ifft rfft irfft fft2 ifft2 rfft2 irfft2 fftn ifftn rfftn irfftn hfft ihfft".split())
#: Transforms whose input is complex, as a rule.
INVERSE_TRANSFORMS = frozenset(name for name in TRANSFORMS if name[0] in "hi" and name != "ihfft")
#: Attention of other packages. Query, key and value must have one dtype, and autocast has no policy for these
#: functions.
ATTENTION = frozenset(("memory_efficient_attention", "flash_attn_func"))
#: All names in this module that code may call.
NAMES = DECOMPOSITIONS | LOW_RANK | ASKING | LOSSES | COMPLEX | TRANSFORMS | {"stft"}
#: Ops whose input of unknown dtype is complex or float32, as a rule.
SELDOM_LOW = INVERSE_TRANSFORMS | {"complex", "polar"}
#: Names of ops in autocast's policy table, if different.
_LISTED = {"lu": "_lu_with_info", **dict.fromkeys(LOW_RANK, "qr")}

#: Behavior of an op on a low-precision tensor: no kernel; no kernel for an internal result; a kernel only for lengths
#: that are powers of two.
REFUSED, INNER, LENGTHS = "refused", "inner", "lengths"


def find_refusal(op: str, dtype: str, device: str) -> str:
    """Return the behavior of an op in ``NAMES`` on a low dtype, or "" if autocast casts the tensor.

    ``device`` is the device type of the region. "" means no region or an unknown device, and CUDA is assumed.
    """
    if _is_cast_by_autocast(op, device):
        return ""
    if op in LOW_RANK:
        return INNER
    if op in COMPLEX:
        return REFUSED if dtype == "bfloat16" else ""
    if op in TRANSFORMS or op == "stft":
        return LENGTHS if dtype != "bfloat16" else REFUSED
    return REFUSED


def _is_cast_by_autocast(op: str, device: str) -> bool:
    """Return True if autocast casts the input of an op to float32."""
    names = (_LISTED.get(op, op), f"linalg_{op}", f"fft_{op}")
    return any(optable.find_policy(device or "cuda", name).startswith("fp32") for name in names)
