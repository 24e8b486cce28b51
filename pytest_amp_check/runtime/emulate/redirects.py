"""Replacements for the parts of torch that handle devices, for the emulation of CUDA on the CPU."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils._device
import torch.utils.data.dataloader
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from . import cast_policy, process_groups
from .cuda_device import ACCELERATOR, CUDA, DEVICE, NVTX
from .one_device import check_devices, note_result
from .storage_sides import SIDES

_CPU = torch.device("cpu")
_Tensor: Any = torch._C.TensorBase

#: Functions with a ``device`` argument, as paths below ``torch``.
_FACTORIES = (
    "arange as_tensor asarray bartlett_window blackman_window empty empty_like empty_permuted empty_quantized "
    "empty_strided eye fft.fftfreq fft.rfftfreq full full_like hamming_window hann_window kaiser_window linspace "
    "logspace nested.as_nested_tensor nested.nested_tensor normal ones ones_like rand rand_like randint randint_like "
    "randn randn_like randperm range scalar_tensor sparse_bsc_tensor sparse_bsr_tensor sparse_compressed_tensor "
    "sparse_coo_tensor sparse_csc_tensor sparse_csr_tensor tensor tril_indices triu_indices zeros zeros_like".split()
)
#: Modules that need the real device of a tensor.
_COMPILERS = (
    "torch._decomp",
    "torch._dynamo",
    "torch._export",
    "torch._functorch",
    "torch._higher_order_ops",
    "torch._inductor",
    "torch._prims",
    "torch._refs",
    "torch._subclasses",
    "torch.fx",
)
_METHODS = "new_empty new_empty_strided new_full new_ones new_tensor new_zeros".split()


def _host_device(device: Any) -> Any:
    """Return the device that serves a request: the CPU for the emulated device, any other device unchanged."""
    if device is None or isinstance(device, bool):
        return device
    if isinstance(device, int):
        device = torch.device("cuda", device)
    elif isinstance(device, str):
        if not device.startswith("cuda"):
            return device
        device = torch.device(device)
    elif not isinstance(device, torch.device) or device.type != "cuda":
        return device
    if device.index and device.index != process_groups.local_rank():
        raise RuntimeError(
            f"emulate_cuda() has one device, cuda:0, and {device} was asked for: write code for one device, "
            "or run it where there are more."
        )
    return _CPU


class _ThreadState(threading.local):
    """State of the emulation in each thread."""

    #: CPU autocast as the thread's own code has set it, while autocast is enabled for the emulated device.
    cpu_enabled = False
    #: True while a replaced tensor method runs.
    in_replaced_method = False
    #: The function modes that saw the call of the backward pass about to run, innermost last.
    backward_modes: tuple[TorchFunctionMode, ...] = ()


_thread = _ThreadState()


def _device_side(device: Any) -> str | None:
    """Return "cuda" or "cpu" if a request names one of the two, else None."""
    if isinstance(device, bool):
        return None
    if isinstance(device, int):
        return "cuda"
    kind = device.partition(":")[0] if isinstance(device, str) else getattr(device, "type", None)
    return kind if kind in ("cuda", "cpu") else None


def _has_default_device() -> bool:
    # torch keeps a default device as a function mode.
    modes: Any = torch._C
    context = torch.utils._device.DeviceContext
    return any(isinstance(modes._get_function_stack_at(i), context) for i in range(modes._len_torch_function_stack()))


def _is_created_on_cpu(result: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return True if a factory function without a ``device`` has created a tensor on the CPU.

    A default device, or a tensor among the arguments, decides otherwise.
    """
    if not isinstance(result, torch.Tensor) or torch.compiler.is_compiling():
        return False
    if SIDES.is_default_cuda or _has_default_device():
        return False
    return not any(isinstance(value, torch.Tensor) for value in (*args, *kwargs.values()))


def _wrap_factory(function: Callable[..., Any], *, shares_memory: bool = False) -> Callable[..., Any]:
    """Redirect a factory function to the host device.

    With ``shares_memory`` the function may return the memory of its argument.
    """

    @functools.wraps(function)
    def redirected_factory(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        # No memory of this machine is pinned.
        kwargs.pop("pin_memory", None)
        if device is None:
            result = function(*args, **kwargs)
            if _is_created_on_cpu(result, args, kwargs):
                SIDES.set_side(result, "cpu")
            return result
        result = function(*args, **{**kwargs, "device": _host_device(device)})
        side = _device_side(device)
        if side is None or not isinstance(result, torch.Tensor) or torch.compiler.is_compiling():
            return result
        if shares_memory and side == "cuda":
            source = args[0] if args else next(iter(kwargs.values()))
            if not isinstance(source, torch.Tensor):
                result = result.clone()
            elif result is source:
                return SIDES.copy_if_moved(source, result, side)
        SIDES.set_side(result, side)
        return result

    return redirected_factory


def _replace_method(original: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Replace a tensor method while the region is active.

    A function mode or a subclass that sees the call of the original method calls the method by name, which is the
    replacement again. Such a nested call runs the original, because the outer call has already handled the device.
    """

    def decorate(replacement: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def replaced_method(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return replacement(self, *args, **kwargs)
            if _thread.in_replaced_method:
                return original(self, *args, **kwargs)
            _thread.in_replaced_method = True
            try:
                return replacement(self, *args, **kwargs)
            finally:
                _thread.in_replaced_method = False

        return replaced_method

    return decorate


def _side_of(tensor: torch.Tensor) -> str:
    """Return the side that a tensor reports."""
    return SIDES.known_side(tensor) or "cuda"


def _finish_move(self: torch.Tensor, result: torch.Tensor, side: str) -> torch.Tensor:
    return result if torch.compiler.is_compiling() else SIDES.copy_if_moved(self, result, side)


@_replace_method(_Tensor.to)
def _tensor_to(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    device = args[0] if args else kwargs.get("device", kwargs.get("other"))
    if isinstance(device, torch.Tensor):
        return _finish_move(self, _Tensor.to(self, *args, **kwargs), _side_of(device))
    side = _device_side(device)
    if side is None:
        return _Tensor.to(self, *args, **kwargs)
    if args:
        args = (_host_device(device), *args[1:])
    else:
        kwargs = {**kwargs, "device": _host_device(device)}
    return _finish_move(self, _Tensor.to(self, *args, **kwargs), side)


@_replace_method(_Tensor.cuda)
def _tensor_cuda(
    self: torch.Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = torch.preserve_format
) -> torch.Tensor:
    _host_device(device)
    return _finish_move(self, _Tensor.to(self, device=_CPU, memory_format=memory_format), "cuda")


@_replace_method(_Tensor.type_as)
def _tensor_type_as(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return _finish_move(self, _Tensor.type_as(self, other), _side_of(other))


@_replace_method(_Tensor.cpu)
def _tensor_cpu(self: torch.Tensor, memory_format: Any = torch.preserve_format) -> torch.Tensor:
    return _finish_move(self, _Tensor.cpu(self, memory_format=memory_format), "cpu")


def _pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
    pinned = self.clone()
    SIDES.set_side(pinned, "cpu")
    return pinned


def _wrap_next_batch(next_data: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap the method that returns a batch of worker processes, which are on the host."""

    @functools.wraps(next_data)
    def next_batch(self: Any) -> Any:
        batch = next_data(self)
        for each in tree_leaves(batch):
            if isinstance(each, torch.Tensor) and SIDES.known_side(each) is None:
                SIDES.set_side(each, "cpu")
        return batch

    return next_batch


def _from_numpy(array: Any) -> torch.Tensor:
    result = _default_from_numpy(array)
    SIDES.set_side(result, "cpu")
    return result


def _record_stream(self: torch.Tensor, stream: object) -> None:
    pass


# Saved once, here and below, because in the region these names are replaced.
_get_device_of = _Tensor.device.__get__
_default_restore_location: Any = torch.serialization.default_restore_location
_default_context_init: Any = torch.utils._device.DeviceContext.__init__
_WorkerLoop: Any = torch.utils.data.dataloader._MultiProcessingDataLoaderIter
_default_from_numpy = torch.from_numpy
_default_packed_args: Any = torch.nn.utils.rnn._packed_sequence_init_args


def _appears_on_cuda(tensor: torch.Tensor, kind: str) -> bool:
    """Return True if a tensor on a device of this kind must report the emulated device.

    Of a tensor that is not known to have been created on the CPU or moved there, this is assumed.
    """
    if kind != "cpu":
        return False
    # The frame two levels up is the caller that asks. Compilers create fake tensors on the reported device, and a fake
    # tensor on CUDA ends the process.
    if sys._getframe(2).f_globals.get("__name__", "").startswith(_COMPILERS):
        return False
    return SIDES.known_side(tensor) != "cpu"


def _real_device(tensor: torch.Tensor) -> torch.device:
    # A function mode would see this access, and would read the replaced property, which calls this function.
    with torch._C.DisableTorchFunction():
        return _get_device_of(tensor)  # type: ignore[no-any-return]


def _tensor_device(self: torch.Tensor) -> torch.device:
    device = _real_device(self)
    return DEVICE if _appears_on_cuda(self, device.type) else device


def _is_cuda(self: torch.Tensor) -> bool:
    kind = _real_device(self).type
    return kind == "cuda" or _appears_on_cuda(self, kind)


def _is_cpu(self: torch.Tensor) -> bool:
    kind = _real_device(self).type
    return kind == "cpu" and not _appears_on_cuda(self, kind)


def _get_device(self: torch.Tensor) -> int:
    return 0 if _appears_on_cuda(self, _real_device(self).type) else int(_Tensor.get_device(self))


class _TensorType(type):
    """A tensor type of the device, such as ``torch.cuda.HalfTensor``."""

    host: Any

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        result = cls.host(*args, **kwargs)
        SIDES.set_side(result, "cuda")
        return result

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.host)


def _tensor_types() -> Iterator[tuple[str, _TensorType]]:
    for name in sorted(vars(torch.cuda)):
        host = getattr(torch, name, None)
        if name.endswith("Tensor") and isinstance(host, type) and host.__module__ == "torch":
            yield name, _TensorType(name, (), {"__module__": "torch.cuda", "host": host})


def _host_type(kind: Any) -> Any:
    """Return the CPU tensor type that replaces a tensor type of the device."""
    if isinstance(kind, _TensorType):
        return kind.host
    return "torch." + kind.removeprefix("torch.cuda.") if isinstance(kind, str) and "torch.cuda." in kind else kind


@_replace_method(_Tensor.type)
def _tensor_type_name(self: torch.Tensor, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
    if dtype is not None:
        host = _host_type(dtype)
        result = _Tensor.type(self, host, non_blocking, **kwargs)
        return result if host is dtype else _finish_move(self, result, "cuda")
    kind = _Tensor.type(self)
    return kind.replace("torch.", "torch.cuda.", 1) if _is_cuda(self) and "cuda" not in kind else kind


_set_default_tensor_type = torch.set_default_tensor_type


def _set_default_type(t: Any) -> None:
    SIDES.is_default_cuda = _host_type(t) is not t
    _set_default_tensor_type(_host_type(t))


def _wrap_histc(histc: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Wrap ``histc`` for integers, which the CPU supports only for floating-point numbers."""

    @functools.wraps(histc)
    def converting_histc(input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if input.is_floating_point():
            return histc(input, *args, **kwargs)
        return histc(input.double(), *args, **kwargs).to(input.dtype)

    return converting_histc


class _NoGraph:
    """A replacement for CUDA graph classes that raises."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse_graph()


def _refuse_graph(*args: Any, **kwargs: Any) -> None:
    raise RuntimeError(
        "emulate_cuda() has no CUDA graphs: leave the capture out of what is tested without a GPU, or run it on one"
    )


def _storage_cuda(self: Any, device: Any = None, non_blocking: bool = False) -> Any:
    _host_device(device)
    return self


def _restore_location(storage: Any, location: str) -> Any:
    return _default_restore_location(storage, "cpu" if _host_device(location) is _CPU else location)


class _GeneratorType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch._C.Generator)


class _Generator(metaclass=_GeneratorType):
    """A factory of CPU generators. The generators are instances of torch's own class and outlive the region."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return torch._C.Generator(_host_device(device))


def _keep_rules() -> None:
    """Keep the compiler's tables of torch's functions, which a new process group clears.

    Filled again in the region, they would hold the replaced functions.
    """


def _context_init(self: Any, device: Any) -> None:
    _default_context_init(self, _host_device(device))


def _scatter_inputs(self: Any, inputs: Any, kwargs: Any, device_ids: Any) -> Any:
    # There is only one device, and inputs that are already there are not sent.
    return (tuple(map(_move_tensors, inputs)),), ({name: _move_tensors(each) for name, each in (kwargs or {}).items()},)


def _move_tensors(value: Any) -> Any:
    """Return an input of a module with the tensors in its containers on the emulated device."""
    return tree_map(lambda each: each.cuda() if isinstance(each, torch.Tensor) else each, value)


def _packed_sequence_args(data: Any, batch_sizes: Any = None, sorted_indices: Any = None, unsorted: Any = None) -> Any:
    # Batch sizes must be on the CPU, but in the region no tensor reports the CPU.
    if batch_sizes is None:
        return _default_packed_args(data, batch_sizes, sorted_indices, unsorted)
    if unsorted is None:
        unsorted = torch.nn.utils.rnn.invert_permutation(sorted_indices)
    return data, batch_sizes, sorted_indices, unsorted


_is_enabled = torch.is_autocast_enabled
_set_enabled = torch.set_autocast_enabled


def _autocast_device(device: str) -> str:
    return device if device in ("cuda", "cpu") else torch.device(device).type


def _set_autocast_enabled(*args: Any, **kwargs: Any) -> None:
    # torch's own function takes (device_type, enabled), or only enabled for CUDA.
    if len(args) + len(kwargs) == 1:
        args = ("cuda", *args)
    device = _autocast_device(kwargs.get("device_type", args[0] if args else "cuda"))
    enabled = kwargs["enabled"] if "enabled" in kwargs else args[1]
    on_cuda = _is_enabled("cuda")
    if device == "cpu" and on_cuda:
        _thread.cpu_enabled = enabled
    elif device == "cuda":
        _set_enabled("cuda", enabled)
        if enabled and not on_cuda:
            mirror_autocast()
        elif on_cuda and not enabled:
            _set_enabled("cpu", _thread.cpu_enabled)
    else:
        _set_enabled(device, enabled)


def mirror_autocast() -> None:
    """Enable autocast for the CPU, whose kernels run the ops of the emulated device."""
    _thread.cpu_enabled = _is_enabled("cpu")
    _set_enabled("cpu", True)


def unmirror_autocast() -> None:
    """Restore the CPU autocast state of this thread if autocast is still enabled for the emulated device."""
    if _is_enabled("cuda"):
        _set_enabled("cpu", _thread.cpu_enabled)


def _is_autocast_enabled(device_type: str = "cuda") -> bool:
    if _autocast_device(device_type) == "cpu" and _is_enabled("cuda"):
        return _thread.cpu_enabled
    return _is_enabled(device_type)


def _set_autocast_cpu_enabled(enabled: bool) -> None:
    _set_autocast_enabled("cpu", enabled)


def _is_autocast_cpu_enabled() -> bool:
    return _is_autocast_enabled("cpu")


def _wrap_cache_clear(clear: Callable[[], None]) -> Callable[[], None]:
    def clear_autocast_cache() -> None:
        cast_policy.forget_casts()
        clear()

    return clear_autocast_cache


#: Functions that torch.cuda imports from torch.cuda.random. Programs use both names.
_RANDOM = (
    "get_rng_state get_rng_state_all initial_seed manual_seed manual_seed_all seed seed_all set_rng_state "
    "set_rng_state_all"
).split()


#: Functions that run a backward pass and are visible to function modes, without the patches of a recorder.
_PASSES: frozenset[Any] = frozenset(
    inspect.unwrap(function) for function in (torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad)
)


def runs_backward(func: Any) -> bool:
    """Return True if a function that a function mode sees runs a backward pass, also through a recorder's patch."""
    return getattr(func, "__wrapped__", func) in _PASSES


def run_backward_in(mode: TorchFunctionMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Call a backward function for a mode that saw the call.

    A mode is off while it handles a call. But a checkpoint that recomputes in the backward pass must see the same modes
    as in the forward pass.
    """
    outer_modes = _thread.backward_modes
    _thread.backward_modes = (mode, *outer_modes)
    try:
        return func(*args, **kwargs)
    finally:
        _thread.backward_modes = outer_modes


def _wrap_backward(run: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the engine call so that the modes that saw the backward call are active in it."""

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        modes, _thread.backward_modes = _thread.backward_modes, ()
        try:
            with contextlib.ExitStack() as stack:
                for mode in modes:
                    stack.enter_context(mode)
                return run(*args, **kwargs)
        finally:
            _thread.backward_modes = modes

    return run_backward


def _parse_move(parse: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the arguments of ``Module.to`` as torch parses them: the requested device, not the one of the host."""
    index = kwargs.get("device")
    if type(index) is int:
        kwargs = {**kwargs, "device": torch.device("cuda", index)}
    _, *rest = parsed = parse(*args, **kwargs)
    tensor = next((each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)), None)
    return parsed if tensor is None else (tensor.device, *rest)


class RedirectMode(TorchFunctionMode):
    """A function mode for functions imported by name before the region, in the thread that entered it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # A compiler traces this function, and would compare every function of the program with those named here.
        if not torch.compiler.is_compiling():
            name = getattr(func, "__name__", "")
            if args and type(args[0]) is int and name in ("_parse_to", "device"):
                # torch refuses a bare index if there is no such device.
                args = (torch.device("cuda", args[0]), *args[1:])
            if name == "_parse_to":
                return _parse_move(func, args, kwargs or {})
            if runs_backward(func):
                return run_backward_in(self, func, args, kwargs or {})
        if not torch.compiler.is_compiling():
            check_devices(func, args, kwargs or {})
        kwargs = kwargs or {}
        side = _device_side(kwargs.get("device"))
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": _host_device(kwargs["device"])}
        result = func(*args, **kwargs) if kwargs else func(*args)
        if torch.compiler.is_compiling():
            return result
        if side is None:
            note_result(result, (*args, *kwargs.values()))
        elif side == "cuda" and isinstance(result, torch.Tensor) and not any(result is each for each in args):
            # A default device on CUDA asks for the CPU here, so that request proves nothing.
            SIDES.set_side(result, side)
        return result


def attribute_replacements() -> Iterator[tuple[Any, str, Any]]:
    """Yield every attribute that is replaced in the region: (owner, name, replacement)."""
    torch_: Any = torch
    for name in _FACTORIES:
        module_path, _, attribute = name.rpartition(".")
        owner = getattr(torch_, module_path) if module_path else torch_
        if hasattr(owner, attribute):
            yield (
                owner,
                attribute,
                _wrap_factory(getattr(owner, attribute), shares_memory=attribute in ("as_tensor", "asarray")),
            )
    yield torch_, "from_numpy", _from_numpy
    yield _WorkerLoop, "_next_data", _wrap_next_batch(_WorkerLoop._next_data)
    yield torch_, "Generator", _Generator
    yield torch_, "set_autocast_enabled", _set_autocast_enabled
    yield torch_, "is_autocast_enabled", _is_autocast_enabled
    yield torch_, "set_autocast_cpu_enabled", _set_autocast_cpu_enabled
    yield torch_, "is_autocast_cpu_enabled", _is_autocast_cpu_enabled
    yield torch_, "clear_autocast_cache", _wrap_cache_clear(torch_.clear_autocast_cache)
    for name in _RANDOM:
        yield torch.cuda.random, name, CUDA[name]
    for name in _METHODS:
        yield torch.Tensor, name, _wrap_factory(getattr(_Tensor, name))
    yield torch.Tensor, "to", _tensor_to
    yield torch.Tensor, "cuda", _tensor_cuda
    yield torch.Tensor, "cpu", _tensor_cpu
    yield torch.Tensor, "type_as", _tensor_type_as
    yield torch.Tensor, "pin_memory", _pin_memory
    yield torch.Tensor, "record_stream", _record_stream
    yield torch.Tensor, "get_device", _get_device
    yield torch.Tensor, "type", _tensor_type_name
    yield torch.Tensor, "histc", _wrap_histc(_Tensor.histc)
    yield torch.autograd, "_engine_run_backward", _wrap_backward(torch_.autograd._engine_run_backward)
    yield torch_, "histc", _wrap_histc(torch_.histc)
    yield torch_, "set_default_tensor_type", _set_default_type
    for name, kind in _tensor_types():
        yield torch.cuda, name, kind
    for name in ("CUDAGraph", "graph"):
        yield torch.cuda, name, _NoGraph
    yield torch.cuda, "make_graphed_callables", _refuse_graph
    yield torch.Tensor, "device", property(_tensor_device)
    yield torch.Tensor, "is_cuda", property(_is_cuda)
    yield torch.Tensor, "is_cpu", property(_is_cpu)
    yield torch.storage._StorageBase, "cuda", _storage_cuda
    yield torch.TypedStorage, "cuda", _storage_cuda
    yield torch.serialization, "default_restore_location", _restore_location
    yield torch.utils._device.DeviceContext, "__init__", _context_init
    yield sys.modules["torch._dynamo.trace_rules"], "clear_lru_cache", _keep_rules
    yield torch.nn.DataParallel, "scatter", _scatter_inputs
    yield torch.nn.utils.rnn, "_packed_sequence_init_args", _packed_sequence_args
    yield torch.backends.cudnn, "is_acceptable", lambda tensor: False
    yield from process_groups.replacements()
    for owner, stand_ins in (
        (torch.cuda, CUDA),
        (torch.cuda.nvtx, NVTX),
        (getattr(torch, "accelerator", None), ACCELERATOR),
    ):
        for name, answer in stand_ins.items():
            if hasattr(owner, name):
                yield owner, name, answer
