"""CPU kernels that compute float16 and bfloat16 operators in float32 and round the result once.

Tensor Cores multiply low-precision operands and accumulate in float32. The CPU's own low-precision kernels exist only
on some processors, take up to 70 times as long as those for float32, and some accumulate in low precision. The kernels
here replace them below autograd: dtypes, saved tensors and hooks are those of the low-precision operator, in the
forward and in the backward pass, inside and outside autocast.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch

from .storage_sides import SIDES

_C: Any = torch._C
_aten: Any = torch.ops.aten
_library: Any = torch.library.Library
_without_overrides: Any = _C.DisableTorchFunction

#: A backend without kernels of its own. Its entry of an operator is torch's composite kernel, which calls the kernels
#: of the tensors' own device.
_COMPOSITE = _C.DispatchKeySet(_C.DispatchKey.HPU)

_to: Any = _C.TensorBase.to
_float: Any = _C.TensorBase.float
_LOW = frozenset((torch.float16, torch.bfloat16))


def _is_low(first: torch.Tensor, *others: torch.Tensor | None) -> bool:
    """Return True for tensors of one low dtype. Torch refuses mixed dtypes, and has to see them to do so."""
    dtype = first.dtype
    return dtype in _LOW and all(other is None or other.dtype is dtype for other in others)


#: Names of types in the exception of a convolution on CUDA.
_CUDA_TYPES = {
    torch.float16: "torch.cuda.HalfTensor",
    torch.bfloat16: "CUDABFloat16Type",
    torch.float32: "torch.cuda.FloatTensor",
    torch.float64: "torch.cuda.DoubleTensor",
}


def _convolution(input: Any, weight: Any, bias: Any, *settings: Any) -> Any:
    # The texts of CPUs differ by their instruction sets.
    if input.dtype is not weight.dtype and input.dtype in _CUDA_TYPES and weight.dtype in _CUDA_TYPES:
        types = _CUDA_TYPES[input.dtype], _CUDA_TYPES[weight.dtype]
        raise RuntimeError("Input type ({}) and weight type ({}) should be the same".format(*types))
    native = _aten.convolution.default.redispatch
    if not _is_low(input, weight, bias):
        return native(_COMPOSITE, input, weight, bias, *settings)
    result = native(_COMPOSITE, _float(input), _float(weight), None if bias is None else _float(bias), *settings)
    return _to(result, input.dtype)


def _convolution_backward(gradient: Any, input: Any, weight: Any, *settings: Any) -> Any:
    native = _aten.convolution_backward.default.redispatch
    if not _is_low(gradient, input, weight):
        return native(_COMPOSITE, gradient, input, weight, *settings)
    results = native(_COMPOSITE, _float(gradient), _float(input), _float(weight), *settings)
    return tuple(None if result is None else _to(result, input.dtype) for result in results)


def _product_shape(first: torch.Tensor, second: torch.Tensor) -> tuple[int, ...]:
    return (*first.shape[:-1], *second.shape[first.dim() - 1 :])


def _empty_product(first: torch.Tensor, second: torch.Tensor) -> Any:
    return _aten.new_empty.default(first, _product_shape(first, second))


#: Names of dtypes in messages of torch.
_SCALAR_TYPES = {torch.float16: "Half", torch.bfloat16: "BFloat16", torch.float32: "Float", torch.float64: "Double"}


def _refuse_mixed(first: torch.Tensor, second: torch.Tensor) -> None:
    """Raise torch's exception for operands of two dtypes. The kernel that computes instead has another text."""
    if first.dtype is second.dtype:
        return
    if first.dim() == 2:
        expected, found = _name_scalar_types(first, second)
        raise RuntimeError(f"expected mat1 and mat2 to have the same dtype, but got: {expected} != {found}")
    raise RuntimeError(_scalar_type_clash(first, second))


def _name_scalar_types(*tensors: torch.Tensor) -> list[str]:
    return [_SCALAR_TYPES.get(each.dtype, str(each.dtype)) for each in tensors]


def _scalar_type_clash(first: torch.Tensor, second: torch.Tensor) -> str:
    """Return torch's text about an operand of another dtype than the first operand."""
    expected, found = _name_scalar_types(first, second)
    return f"expected scalar type {expected} but found {found}"


def _make_product(in_place: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the kernels of ``mm`` or ``bmm``: the functional one and the one with ``out``.

    ``in_place`` is ``addmm_`` or ``baddbmm_``: the same computation, whose kernel is not replaced.
    """

    def product(first: Any, second: Any) -> Any:
        _refuse_mixed(first, second)
        if not _is_low(first):
            return in_place(_empty_product(first, second), first, second, beta=0)
        wide, other = _float(first), _float(second)
        return _to(in_place(_empty_product(wide, other), wide, other, beta=0), first.dtype)

    def product_out(first: Any, second: Any, *, out: Any) -> Any:
        _aten.resize_.default(out, _product_shape(first, second))
        if _is_low(first, second, out):
            return _aten.copy_.default(out, product(first, second))
        return in_place(out, first, second, beta=0)

    return product, product_out


def _make_sum(in_place: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the kernels of ``addmm``, ``baddbmm`` or ``addmv``: the functional one and the one with ``out``."""

    def total(addend: Any, first: Any, second: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
        _refuse_mixed(first, second)
        low = _is_low(addend, first, second)
        left, right = (_float(first), _float(second)) if low else (first, second)
        result = _empty_product(left, right)
        if beta:
            _aten.copy_.default(result, addend)
        in_place(result, left, right, beta=beta, alpha=alpha)
        return _to(result, first.dtype) if low else result

    def total_out(addend: Any, first: Any, second: Any, *, beta: Any = 1, alpha: Any = 1, out: Any) -> Any:
        result = total(addend, first, second, beta=beta, alpha=alpha)
        _aten.resize_.default(out, result.shape)
        return _aten.copy_.default(out, result)

    return total, total_out


def _make_attention(native: Any) -> Callable[..., Any]:
    """Return the kernel of fused attention or of its backward pass. ``native`` is torch's own kernel."""

    def attention(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = [value for value in args if isinstance(value, torch.Tensor) and value.dtype is not torch.float32]
        if not (tensors and _is_low(*tensors)):
            return native.call_boxed(keyset, *args, **kwargs)
        results = native.call_boxed(
            keyset, *map(_widened, args), **{name: _widened(value) for name, value in kwargs.items()}
        )
        # The forward pass returns the logarithm of the sum as well, which stays in float32.
        return tuple(result if result.dim() < args[0].dim() else _to(result, tensors[0].dtype) for result in results)

    return attention


def _widened(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _float(value) if value.dtype in _LOW else value
    if isinstance(value, torch.dtype):
        return torch.float32 if value in _LOW else value
    return [_widened(each) for each in value] if isinstance(value, (list, tuple)) else value


def _make_rounded(native: Any) -> Callable[..., Any]:
    """Return the kernel of an operator whose CPU kernel, ``native``, rounds intermediate results."""

    def rounded(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = [value for value in args if isinstance(value, torch.Tensor) and value.is_floating_point()]
        # The third argument of a softmax asks for a float32 result, which the CPU's kernel refuses.
        if not _is_low(*tensors) or (len(args) > 2 and args[2] is True):
            return native.call_boxed(keyset, *args, **kwargs)
        result = native.call_boxed(keyset, *map(_widened, args), **kwargs)
        dtype = tensors[0].dtype
        return tuple(_to(each, dtype) for each in result) if isinstance(result, (list, tuple)) else _to(result, dtype)

    return rounded


def _has_low_parameters(input: torch.Tensor, *parameters: Any) -> bool:
    """Return True if the CPU's kernel of batch normalization would compute statistics in low precision.

    It computes them in the dtype of the parameters and running statistics, and without these in that of the input.
    """
    given = [each.dtype for each in parameters if isinstance(each, torch.Tensor)]
    return bool(_LOW.intersection(given)) or (input.dtype in _LOW and torch.float32 not in given)


def _make_batch_norm(native: Any) -> Callable[..., Any]:
    """Return the kernel of batch normalization, which on CUDA saves statistics in float32."""

    def batch_norm(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        if not _has_low_parameters(args[0], *args[1:5]):
            return native.call_boxed(keyset, *args, **kwargs)
        wide = [*map(_widened, args)]
        output, *statistics = native.call_boxed(keyset, *wide, **kwargs)
        for given, updated in zip(args[3:5], wide[3:5], strict=True):
            if updated is not given and isinstance(given, torch.Tensor):
                _aten.copy_.default(given, updated)
        return (_to(output, args[0].dtype), *statistics)

    return batch_norm


def _make_batch_norm_backward(native: Any) -> Callable[..., Any]:
    def backward(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        weight = args[2]
        if not _has_low_parameters(args[1], weight):
            return native.call_boxed(keyset, *args, **kwargs)
        dtypes = (args[1].dtype, *(2 * [torch.float32 if weight is None else weight.dtype]))
        results = native.call_boxed(keyset, *map(_widened, args), **kwargs)
        return tuple(None if each is None else _to(each, dtype) for each, dtype in zip(results, dtypes, strict=True))

    return backward


def _make_one_dtype(native: Any) -> Callable[..., Any]:
    """Return the kernel of a normalization that on CUDA has no kernel for parameters of another dtype than its input.

    The CPU has one for float32 parameters. Autocast casts both before they get here.
    """

    def normalize(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        floats = [value for value in args if isinstance(value, torch.Tensor) and value.is_floating_point()]
        if any(value.dtype is not floats[0].dtype for value in floats) and SIDES.may_run_on_cuda(floats):
            other = next(value for value in floats if value.dtype is not floats[0].dtype)
            raise RuntimeError(_scalar_type_clash(floats[0], other))
        return native.call_boxed(keyset, *args, **kwargs)

    return normalize


def _make_recurrent(native: Any) -> Callable[..., Any]:
    """Return the kernel of a recurrent layer, which is one kernel in cuDNN as well. Autograd sees the casts."""

    def recurrent(*args: Any) -> Any:
        dtype = args[0].dtype
        if dtype not in _LOW:
            return native(_COMPOSITE, *args)
        return tuple(_to(result, dtype) for result in native(_COMPOSITE, *map(_widened, args)))

    return recurrent


def _without_function_modes(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Hide the operators inside a kernel from modes and subclasses, which have seen the operator itself."""

    def hidden(*args: Any, **kwargs: Any) -> Any:
        with _without_overrides():
            return kernel(*args, **kwargs)

    return hidden


@functools.cache
def _kernels() -> dict[str, Callable[..., Any]]:
    kernels = {"convolution": _convolution, "convolution_backward": _convolution_backward}
    for name, in_place in (("mm", _aten.addmm_.default), ("bmm", _aten.baddbmm_.default)):
        kernels[name], kernels[f"{name}.out"] = _make_product(in_place)
    for name in ("addmm", "baddbmm", "addmv"):
        kernels[name], kernels[f"{name}.out"] = _make_sum(getattr(_aten, f"{name}_").default)
    return {name: _without_function_modes(kernel) for name, kernel in kernels.items()}


@functools.cache
def _recurrent_kernels() -> dict[str, Callable[..., Any]]:
    """Return the kernels of recurrent layers, which torch composes of other operators."""
    return {
        f"{name}.{overload}": _without_function_modes(
            _make_recurrent(getattr(getattr(_aten, name), overload).redispatch)
        )
        for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")
        for overload in ("input", "data")
    }


_FLASH = "_scaled_dot_product_flash_attention_for_cpu"
#: Operators to the maker of their kernel from torch's own kernel.
_AROUND_NATIVE: dict[str, Callable[[Any], Callable[..., Any]]] = {
    _FLASH: _make_attention,
    f"{_FLASH}_backward": _make_attention,
    "_softmax": _make_rounded,
    "_softmax_backward_data": _make_rounded,
    "_log_softmax": _make_rounded,
    "_log_softmax_backward_data": _make_rounded,
    "grid_sampler_2d": _make_rounded,
    "grid_sampler_2d_backward": _make_rounded,
    "grid_sampler_3d": _make_rounded,
    "grid_sampler_3d_backward": _make_rounded,
    "logit": _make_rounded,
    "logit_backward": _make_rounded,
    "native_batch_norm": _make_batch_norm,
    "_native_batch_norm_legit": _make_batch_norm,
    "_native_batch_norm_legit.no_stats": _make_batch_norm,
    "_batch_norm_with_update": _make_batch_norm,
    "native_layer_norm": _make_one_dtype,
    "native_group_norm": _make_one_dtype,
    "native_batch_norm_backward": _make_batch_norm_backward,
    "batch_norm_backward": _make_batch_norm_backward,
}


@functools.cache
def _kernels_around_native() -> dict[str, Callable[..., Any]]:
    """Return the kernels that call torch's own. Older torch cannot name its own kernels, which stay in use there."""
    get_kernel: Any = getattr(torch.library, "get_kernel", None)
    if get_kernel is None:
        return {}
    return {
        name: _without_function_modes(make(get_kernel(f"aten::{name}", "CPU")))
        for name, make in _AROUND_NATIVE.items()
        if _C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CPU")
    }


def install_kernels() -> Any:
    """Replace the CPU's kernels. Calling ``_destroy()`` on the returned library restores torch's own kernels."""
    library: Any = _library("aten", "IMPL")
    with warnings.catch_warnings():
        # torch warns once per process about a replaced kernel.
        warnings.simplefilter("ignore")
        for name, kernel in _kernels().items():
            library.impl(name, kernel, "CPU")
        for name, kernel in _recurrent_kernels().items():
            library.impl(name, kernel, "AutogradCPU")
            library.impl(name, kernel, "CPU")
        for name, kernel in _kernels_around_native().items():
            library.impl(name, kernel, "CPU", with_keyset=True)
    return library
