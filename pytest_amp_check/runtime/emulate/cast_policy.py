"""CUDA's autocast policy on CPU tensors: the cast of each op, and kernels that apply the casts.

The policies of the ops come from :mod:`pytest_amp_check.protocol.optable`. The installed torch decides to which
overloads they apply.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch

from ...protocol import optable
from .storage_sides import SIDES

_C: Any = torch._C

#: On CUDA these run as one op of cuDNN, which only CUDA builds register. Their weights are cast again in every call.
_CUDNN_RNN = frozenset(
    f"aten::{name}.{overload}" for name in ("lstm", "gru", "rnn_tanh", "rnn_relu") for overload in ("input", "data")
)
#: CUDA runs these ops in the input dtype and has low-precision kernels, some of which the CPU lacks.
_AS_GIVEN = frozenset(
    "adaptive_avg_pool3d adaptive_max_pool3d avg_pool3d fractional_max_pool2d fractional_max_pool3d max_pool3d "
    "max_unpool2d max_unpool3d reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d "
    "replication_pad3d".split()
)
#: CUDA computes these by an op that autocast casts to float32: trace is the sum of the diagonal.
_COMPOSED_IN_FP32 = frozenset({"trace"})
#: Registered in CUDA builds, but never reached by a CPU tensor.
_UNREACHABLE = frozenset({"_cudnn_rnn", "miopen_rnn"})

_ONLY_AUTOCAST_CPU = _C.DispatchKeySet(_C.DispatchKey.AutocastCPU)
_ONLY_AUTOCAST_CUDA = _C.DispatchKeySet(_C.DispatchKey.AutocastCUDA)
_BELOW_AUTOCAST_CPU = _C._dispatch_keyset_full_after(_C.DispatchKey.AutocastCPU)

# Saved here once, because in the region some of these names are replaced.
_is_enabled = torch.is_autocast_enabled
_is_cache_enabled = torch.is_autocast_cache_enabled
_low_dtype = torch.get_autocast_dtype
_to = _C.TensorBase.to
_excluding = _C._ExcludeDispatchKeyGuard
_library: Any = torch.library.Library

#: From torch 2.11 on, a cast that is cached under no_grad carries gradients, and inference mode neither reads nor fills
#: the cache. Before, the cache kept the cast as computed (pytorch issue 165068).
CACHE_KEEPS_GRADIENTS = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 11)

#: ``id`` of a parameter to the parameter, which is kept alive so that its id stays valid, and its cast. Shared by all
#: threads like torch's own cache.
_casts: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

_HALVES = (torch.float16, torch.bfloat16)

_Policy = Callable[[Any, str, tuple[Any, ...], dict[str, Any]], Any]


def forget_casts() -> None:
    """Empty the cache of cast weights, so that the next op casts them again."""
    _casts.clear()


def _is_eligible(value: torch.Tensor) -> bool:
    return value.is_floating_point() and value.dtype is not torch.float64


def _cast_argument(value: Any, dtype: torch.dtype, low: torch.dtype | None) -> Any:
    """Return the argument in ``dtype``. Casts of weights to ``low`` are cached; with None nothing is cached."""
    if isinstance(value, torch.Tensor):
        if value.dtype is dtype or not _is_eligible(value):
            return value
        if (
            dtype is low
            and value.dtype is torch.float32
            and value.requires_grad
            and value.is_leaf
            and _is_cache_enabled()
            and not value._is_view()
            and not (CACHE_KEEPS_GRADIENTS and torch.is_inference_mode_enabled())
        ):
            return _cached_cast(value, dtype)
        return _to(value, dtype)
    if isinstance(value, (list, tuple)):
        return [_cast_argument(each, dtype, low) for each in value]
    return value


def _cached_cast(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    # As in torch, the dtype is not part of the key: a bfloat16 region inside a warm float16 region gets float16.
    entry = _casts.get(id(value))
    if entry is not None:
        return entry[1]
    if CACHE_KEEPS_GRADIENTS:
        with torch.enable_grad():
            cast = _to(value, dtype)
    else:
        cast = _to(value, dtype)
    _casts[id(value)] = (value, cast)
    return cast  # type: ignore[no-any-return]


def _run_in(dtype: torch.dtype, low: torch.dtype | None, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with _excluding(_ONLY_AUTOCAST_CPU):
        return op(
            *[_cast_argument(each, dtype, low) for each in args],
            **{name: _cast_argument(each, dtype, low) for name, each in kwargs.items()},
        )


def _run_low(op: Any, device: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    low = _low_dtype(device)
    return _run_in(low, low, op, args, kwargs)


def _run_rnn(op: Any, device: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # float16 even in a bfloat16 region: aten/src/ATen/cudnn/AutocastRNN.cpp casts so for cuDNN's kernels.
    return _run_in(torch.float16, None, op, args, kwargs)


def _run_fp32(op: Any, device: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # If float32 is the autocast dtype of the region, no cast is needed and none is cached.
    return _run_in(torch.float32, None, op, args, kwargs)


def _run_promoted(op: Any, device: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    low = _low_dtype(device)
    widest = low
    for value in (*args, *kwargs.values()):
        for each in value if isinstance(value, (list, tuple)) else (value,):
            if not isinstance(each, torch.Tensor) or not _is_eligible(each):
                continue
            if torch.float32 in (widest, each.dtype):
                widest = torch.float32
            elif not widest is each.dtype is low:
                raise RuntimeError("Unexpected floating ScalarType in at::autocast::prioritize")
    return _run_in(widest, low, op, args, kwargs)


def _run_keeping_dtype(op: Any, device: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    dtype = args[0].dtype
    if dtype not in _HALVES:
        with _excluding(_ONLY_AUTOCAST_CPU):
            return op(*args, **kwargs)
    result = _run_in(torch.float32, None, op, args, kwargs)
    return (
        tuple(_cast_argument(each, dtype, None) for each in result) if isinstance(result, tuple) else _to(result, dtype)
    )


def _raise_banned(op: Any, device: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # The CUDA kernel raises with the reason in the words of the installed torch.
    return op.redispatch(_ONLY_AUTOCAST_CUDA, *args, **kwargs)


def _fp32_unless_dtype(op: Any) -> _Policy:
    """Return the policy for an op with an optional argument ``dtype``: float32 unless the call gives a dtype."""
    names = [argument.name for argument in op._schema.arguments]
    keyword = op._schema.arguments[names.index("dtype")].kwarg_only
    dtype_index = len(names) if keyword else names.index("dtype")

    def policy(op: Any, device: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        dtype = args[dtype_index] if len(args) > dtype_index else kwargs.get("dtype")
        with _excluding(_ONLY_AUTOCAST_CPU):
            if dtype is not None or not _is_eligible(args[0]):
                return op(*args, **kwargs)
            return op(*args[:dtype_index], **{**kwargs, "dtype": torch.float32})

    return policy


def _fp32_appended(op: Any) -> _Policy:
    """Return the policy for ``norm``: the overload with the same arguments and a dtype."""
    packet = torch.ops.aten.norm
    target = getattr(packet, "ScalarOpt_dtype" if op._overloadname == "Scalar" else f"{op._overloadname}_dtype")
    arguments = op._schema.arguments

    def policy(op: Any, device: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # The dispatcher omits trailing arguments with default values, but the target overload has no defaults.
        full = [*args, *(argument.default_value for argument in arguments[len(args) :])]
        dtype = torch.float32 if _is_eligible(args[0]) else args[0].dtype
        with _excluding(_ONLY_AUTOCAST_CPU):
            return target(*full, dtype=dtype)

    return policy


def _op_name(name: str) -> str:
    return name.removeprefix("aten::").partition(".")[0]


def registered_ops(key: str) -> frozenset[str]:
    """Return the aten overloads, such as ``aten::norm.Scalar``, with a kernel of their own for a dispatch key."""
    return frozenset(
        name
        for name in _C._dispatch_get_all_op_names()
        if name.startswith("aten::") and _C._dispatch_has_kernel_for_dispatch_key(name, key)
    )


def cuda_policy(name: str) -> str | None:
    """Return the policy of CUDA's autocast for an overload, or None if the table lacks the overload.

    The policy is ``low``, ``fp32``, ``fp32 unless dtype``, ``fp32 appended``, ``promote``, ``banned`` or ``rnn``.
    """
    if name in _CUDNN_RNN:
        return "rnn"
    base = _op_name(name)
    return "rnn" if base in _UNREACHABLE else optable.OPS["cuda"].get(base)


def _cuda_kernel_policy(op: Any, name: str) -> _Policy | None:
    if _op_name(name) in _AS_GIVEN:
        return _run_keeping_dtype
    if _op_name(name) in _COMPOSED_IN_FP32:
        return _run_fp32
    policy = cuda_policy(name)
    if policy == "fp32 unless dtype":
        return _fp32_unless_dtype(op)
    if policy == "fp32 appended":
        return _fp32_appended(op)
    table: dict[str | None, _Policy] = {
        "low": _run_low,
        "fp32": _run_fp32,
        "promote": _run_promoted,
        "banned": _raise_banned,
        "rnn": _run_rnn,
    }
    return table.get(policy)


def _cpu_kernel_policy(name: str) -> _Policy:
    # An op that a newer torch registers for the CPU, and that the table lacks, is most likely cast to float32.
    return {"low": _run_low, "promote": _run_promoted}.get(optable.OPS["cpu"].get(_op_name(name), ""), _run_fp32)


def _make_kernel(op: Any, on_cuda: _Policy | None, on_cpu: _Policy | None) -> Callable[..., Any]:
    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        device, policy = ("cuda", on_cuda) if _is_enabled("cuda") else ("cpu", on_cpu)
        # As on a GPU, autocast of the CPU does nothing to tensors on CUDA.
        if policy is None or (device == "cpu" and SIDES.runs_on_cuda((*args, *kwargs.values()))):
            # Autocast stays enabled for the ops inside this op.
            return op.redispatch(keyset & _BELOW_AUTOCAST_CPU, *args, **kwargs)
        return policy(op, device, args, kwargs)

    return kernel


@functools.cache
def _build_kernels() -> tuple[tuple[str, Callable[..., Any]], ...]:
    """Return the replacements of the CPU's autocast kernels by overload, built once before the first replacement."""
    cuda, cpu = registered_ops("AutocastCUDA"), registered_ops("AutocastCPU")
    unknown = sorted(name for name in cuda if cuda_policy(name) is None)
    if unknown:
        warnings.warn(
            f"emulate_cuda() does not know how torch {torch.__version__} autocasts {', '.join(unknown)} on CUDA: "
            "their dtypes stay as they are; a newer pytest-amp-check may know.",
            stacklevel=2,
        )
    kernels = []
    for name in sorted(cuda | cpu | (_CUDNN_RNN & frozenset(_C._dispatch_get_all_op_names()))):
        short = name.removeprefix("aten::")
        packet, _, overload = short.partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        kernels.append(
            (short, _make_kernel(op, _cuda_kernel_policy(op, name), _cpu_kernel_policy(name) if name in cpu else None))
        )
    return tuple(kernels)


def install_kernels() -> Any:
    """Replace the CPU's autocast kernels. Calling ``_destroy()`` on the returned library restores torch's own kernels.

    The new kernels follow CUDA's policy while autocast is enabled for "cuda", and the CPU's policy while it is enabled
    for "cpu" only.
    """
    kernels = _build_kernels()
    library: Any = _library("aten", "IMPL")
    with warnings.catch_warnings():
        # torch warns once per process about a replaced kernel.
        warnings.simplefilter("ignore")
        for name, kernel in kernels:
            library.impl(name, kernel, "AutocastCPU", with_keyset=True)
    return library
