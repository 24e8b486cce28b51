"""Ops that have no kernel for a low precision, and what autocast does with them: most are on the CPU's list alone.

Names are those of functions of torch and of methods of tensors. What LAPACK, cuSOLVER and MAGMA compute they compute in
float32 and float64 alone; cuFFT transforms float16 where every length is a power of two, and no bfloat16 (documentation
of torch.fft). That each op refuses float16 and bfloat16 is tested with torch itself.
"""

from __future__ import annotations

from . import optable

#: What is no more than a float32 or float64 routine of LAPACK, or a composition of these.
DECOMPOSITIONS = frozenset(
    "svd svdvals qr inverse inv inv_ex pinv pinverse eig eigvals eigh eigvalsh lu lu_factor lu_factor_ex cholesky "
    "cholesky_ex cholesky_solve cholesky_inverse solve solve_ex lstsq det logdet slogdet matrix_rank triangular_solve "
    "solve_triangular cond geqrf orgqr householder_product tensorinv tensorsolve".split()
)
#: What multiplies first and then decomposes the product, in one call.
LOW_RANK = frozenset(("pca_lowrank", "svd_lowrank"))
#: What asks for float32 or float64 itself.
ASKING = frozenset(("quantile", "nanquantile"))
TRANSFORMS = frozenset("fft ifft rfft irfft fft2 ifft2 rfft2 irfft2 fftn ifftn rfftn irfftn hfft ihfft".split())
#: Attention of other packages, which takes query, key and value of one dtype, and is on no list of autocast.
ATTENTION = frozenset(("memory_efficient_attention", "flash_attn_func"))
#: Every name by which code may ask for one of these.
NAMES = DECOMPOSITIONS | LOW_RANK | ASKING | TRANSFORMS
#: Ops that go by another name in the table of autocast's policies.
_LISTED = {"lu": "_lu_with_info", **dict.fromkeys(LOW_RANK, "qr")}

#: How an op takes a low-precision tensor: it has no kernel for it; has none for what it computes on the way; has one
#: for lengths that are powers of two.
REFUSED, INNER, LENGTHS = "refused", "inner", "lengths"


def find_refusal(op: str, dtype: str, device: str) -> str:
    """How an op of ``NAMES`` takes a tensor of a low dtype in a region of a type of device, "" where that casts it.

    ``device`` is "" where no region casts, or where its device is not known: then as CUDA does.
    """
    if _is_cast_by_autocast(op, device):
        return ""
    if op in LOW_RANK:
        return INNER
    if op in TRANSFORMS:
        return LENGTHS if dtype != "bfloat16" else REFUSED
    return REFUSED


def _is_cast_by_autocast(op: str, device: str) -> bool:
    """Whether autocast casts the tensor to float32 for an op."""
    names = (_LISTED.get(op, op), f"linalg_{op}", f"fft_{op}")
    return any(optable.find_policy(device or "cuda", name).startswith("fp32") for name in names)
