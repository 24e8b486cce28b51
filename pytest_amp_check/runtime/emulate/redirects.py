"""What stands for the parts of torch that meet a device, while CUDA is emulated on the CPU."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils._device
from torch._subclasses.fake_tensor import FakeTensor
from torch.multiprocessing import reductions
from torch.overrides import TorchFunctionMode

from . import cast_policy
from .cuda_device import ACCELERATOR, CUDA, DEVICE, NVTX

_CPU = torch.device("cpu")
_Tensor: Any = torch._C.TensorBase
_weak: Any = reductions.StorageWeakRef

#: Functions that take a device, by where they are; nested and fft are modules of torch.
_FACTORIES = (
    "arange as_tensor asarray bartlett_window blackman_window empty empty_like empty_permuted empty_quantized "
    "empty_strided eye fft.fftfreq fft.rfftfreq full full_like hamming_window hann_window kaiser_window linspace "
    "logspace nested.as_nested_tensor nested.nested_tensor normal ones ones_like rand rand_like randint randint_like "
    "randn randn_like randperm range scalar_tensor sparse_bsc_tensor sparse_bsr_tensor sparse_compressed_tensor "
    "sparse_coo_tensor sparse_csc_tensor sparse_csr_tensor tensor tril_indices triu_indices zeros zeros_like".split()
)
#: Where the real device of a tensor is needed.
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


def _here(device: Any) -> Any:
    """The device on which a request for this one is met: the CPU for the emulated one, all others as they are."""
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
    if device.index:
        raise RuntimeError(
            f"emulate_cuda() has one device, cuda:0, and {device} was asked for: write code for one device, "
            "or run it where there are more."
        )
    return _CPU


class _Thread(threading.local):
    """What is different in each thread."""

    #: Autocast on the CPU as the thread's own code has set it, while it is on for the emulated device.
    cpu_enabled = False
    #: A method of tensors that was replaced is running.
    inside = False
    #: The function modes that were asked for the backward pass that is about to run, innermost last.
    asked: tuple[TorchFunctionMode, ...] = ()


_thread = _Thread()


class _Places:
    """On which side tensors are known to be, by storage.

    On CUDA a tensor that moves is a new one, and one that is there already is not: what is written into one of the two
    must show, or not show, in the other as it does there.
    """

    def __init__(self) -> None:
        # A weak reference keeps the address of a storage from being used again.
        self._places: dict[int, tuple[Any, str]] = {}
        self._clean_at = 1024

    def put(self, tensor: torch.Tensor, where: str) -> None:
        with contextlib.suppress(NotImplementedError, RuntimeError):  # sparse tensors have no storage
            storage = tensor.untyped_storage()
            if len(self._places) >= self._clean_at:
                self._places = {key: kept for key, kept in self._places.items() if not kept[0].expired()}
                self._clean_at = max(1024, 2 * len(self._places))
            self._places[storage._cdata] = (_weak(storage), where)

    def has(self, tensor: torch.Tensor, where: str) -> bool:
        """Whether the tensor is there; what an op has made of other tensors is on the emulated device."""
        try:
            place = self._places.get(tensor.untyped_storage()._cdata)
        except (NotImplementedError, RuntimeError):
            place = None
        if place is not None:
            return place[1] == where
        return where == "cuda" and tensor.grad_fn is not None

    def moved(self, source: torch.Tensor, result: torch.Tensor, where: str) -> torch.Tensor:
        """``result``, or a copy of it where a move would have made one."""
        if result is source:
            # Fake tensors have no values to share, and modules cannot take copies of theirs.
            if isinstance(source, FakeTensor) or self.has(source, where):
                return source
            result = source.clone()
        self.put(result, where)
        return result

    def forget(self) -> None:
        self._places.clear()


PLACES = _Places()


def _side(device: Any) -> str | None:
    """``cuda`` or ``cpu`` where a request names one of the two."""
    if isinstance(device, bool):
        return None
    if isinstance(device, int):
        return "cuda"
    kind = device.partition(":")[0] if isinstance(device, str) else getattr(device, "type", None)
    return kind if kind in ("cuda", "cpu") else None


def _factory(function: Callable[..., Any], *, shares: bool = False) -> Callable[..., Any]:
    """The function on the emulated machine; one that ``shares`` may give back the memory that it was given."""

    @functools.wraps(function)
    def redirected(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is None:
            return function(*args, **kwargs)
        result = function(*args, **{**kwargs, "device": _here(device)})
        side = _side(device)
        if side is None or not isinstance(result, torch.Tensor) or torch.compiler.is_compiling():
            return result
        if shares and side == "cuda":
            source = args[0] if args else next(iter(kwargs.values()))
            if not isinstance(source, torch.Tensor):
                result = result.clone()
            elif result is source:
                return PLACES.moved(source, result, side)
        PLACES.put(result, side)
        return result

    return redirected


def _method(original: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A method of tensors that does something else in the region.

    A function mode or a subclass that sees the call of the original calls what the class has under its name, which is
    this again; the device was dealt with then.
    """

    def replace(replacement: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def method(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return replacement(self, *args, **kwargs)
            if _thread.inside:
                return original(self, *args, **kwargs)
            _thread.inside = True
            try:
                return replacement(self, *args, **kwargs)
            finally:
                _thread.inside = False

        return method

    return replace


def _move(self: torch.Tensor, result: torch.Tensor, where: str) -> torch.Tensor:
    return result if torch.compiler.is_compiling() else PLACES.moved(self, result, where)


@_method(_Tensor.to)
def _to(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    device = args[0] if args else kwargs.get("device")
    side = _side(device)
    if side is None:
        return _Tensor.to(self, *args, **kwargs)
    if args:
        args = (_here(device), *args[1:])
    else:
        kwargs = {**kwargs, "device": _here(device)}
    return _move(self, _Tensor.to(self, *args, **kwargs), side)


@_method(_Tensor.cuda)
def _cuda(
    self: torch.Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = torch.preserve_format
) -> torch.Tensor:
    _here(device)
    return _move(self, _Tensor.to(self, device=_CPU, memory_format=memory_format), "cuda")


@_method(_Tensor.cpu)
def _cpu(self: torch.Tensor, memory_format: Any = torch.preserve_format) -> torch.Tensor:
    return _move(self, _Tensor.cpu(self, memory_format=memory_format), "cpu")


def _pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
    return self.clone()


def _record_stream(self: torch.Tensor, stream: object) -> None:
    pass


# Looked up once, here and below: in the region the names stand for something else.
_get_device_of = _Tensor.device.__get__
_default_restore_location: Any = torch.serialization.default_restore_location
_default_context_init: Any = torch.utils._device.DeviceContext.__init__
_default_packed_args: Any = torch.nn.utils.rnn._packed_sequence_init_args


def _says_cuda(kind: str) -> bool:
    """Whether a tensor on a device of this kind says that it is on the emulated one."""
    if kind != "cpu":
        return False
    # Two frames up is who asks. Compilers make fake tensors on the device that they are told, and one on CUDA ends the
    # process.
    return not sys._getframe(2).f_globals.get("__name__", "").startswith(_COMPILERS)


def _real_device(tensor: torch.Tensor) -> torch.device:
    # A function mode would be asked, and would ask the property that asks this.
    with torch._C.DisableTorchFunction():
        return _get_device_of(tensor)  # type: ignore[no-any-return]


def _device(self: torch.Tensor) -> torch.device:
    device = _real_device(self)
    return DEVICE if _says_cuda(device.type) else device


def _is_cuda(self: torch.Tensor) -> bool:
    kind = _real_device(self).type
    return kind == "cuda" or _says_cuda(kind)


def _is_cpu(self: torch.Tensor) -> bool:
    kind = _real_device(self).type
    return kind == "cpu" and not _says_cuda(kind)


def _get_device(self: torch.Tensor) -> int:
    return 0 if _says_cuda(_real_device(self).type) else int(_Tensor.get_device(self))


class _TensorType(type):
    """A tensor type of the device, such as ``torch.cuda.HalfTensor``."""

    host: Any

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        made = cls.host(*args, **kwargs)
        PLACES.put(made, "cuda")
        return made

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.host)


def _tensor_types() -> Iterator[tuple[str, _TensorType]]:
    for name in sorted(vars(torch.cuda)):
        host = getattr(torch, name, None)
        if name.endswith("Tensor") and isinstance(host, type) and host.__module__ == "torch":
            yield name, _TensorType(name, (), {"__module__": "torch.cuda", "host": host})


def _host_type(kind: Any) -> Any:
    """The type of the CPU's tensors that stands for one of the device's."""
    if isinstance(kind, _TensorType):
        return kind.host
    return "torch." + kind.removeprefix("torch.cuda.") if isinstance(kind, str) and "torch.cuda." in kind else kind


@_method(_Tensor.type)
def _type(self: torch.Tensor, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
    if dtype is not None:
        host = _host_type(dtype)
        result = _Tensor.type(self, host, non_blocking, **kwargs)
        return result if host is dtype else _move(self, result, "cuda")
    kind = _Tensor.type(self)
    return kind.replace("torch.", "torch.cuda.", 1) if _real_device(self).type == "cpu" else kind


_set_default_tensor_type = torch.set_default_tensor_type


def _set_default_type(t: Any) -> None:
    _set_default_tensor_type(_host_type(t))


def _counting(histc: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """``histc``, which the CPU has for floating numbers alone."""

    @functools.wraps(histc)
    def counted(input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if input.is_floating_point():
            return histc(input, *args, **kwargs)
        return histc(input.double(), *args, **kwargs).to(input.dtype)

    return counted


class _NoGraph:
    """What captures a CUDA graph."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse_graph()


def _refuse_graph(*args: Any, **kwargs: Any) -> None:
    raise RuntimeError(
        "emulate_cuda() has no CUDA graphs: leave the capture out of what is tested without a GPU, or run it on one"
    )


def _storage_cuda(self: Any, device: Any = None, non_blocking: bool = False) -> Any:
    _here(device)
    return self


def _restore_location(storage: Any, location: str) -> Any:
    return _default_restore_location(storage, "cpu" if _here(location) is _CPU else location)


class _GeneratorType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch._C.Generator)


class _Generator(metaclass=_GeneratorType):
    """Makes generators of the CPU; they are no instances of this class, and outlive the region."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return torch._C.Generator(_here(device))


def _context_init(self: Any, device: Any) -> None:
    _default_context_init(self, _here(device))


def _scatter(self: Any, inputs: Any, kwargs: Any, device_ids: Any) -> Any:
    # There is one device, and what is on it already is not sent there.
    return (tuple(inputs),), (dict(kwargs or {}),)


def _packed_sequence_args(data: Any, batch_sizes: Any = None, sorted_indices: Any = None, unsorted: Any = None) -> Any:
    # Batch sizes must say that they are on the CPU, which no tensor does in the region.
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
    # torch's own takes (device_type, enabled), or enabled alone for CUDA.
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
    """Puts autocast on for the CPU, whose kernels run what is autocast for the emulated device."""
    _thread.cpu_enabled = _is_enabled("cpu")
    _set_enabled("cpu", True)


def unmirror_autocast() -> None:
    """Leaves autocast as this thread has set it, where it is still on for the emulated device."""
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


def _clearing(clear: Callable[[], None]) -> Callable[[], None]:
    def clear_autocast_cache() -> None:
        cast_policy.forget_casts()
        clear()

    return clear_autocast_cache


#: What torch.cuda has from torch.cuda.random, where programs look for it too.
_RANDOM = (
    "get_rng_state get_rng_state_all initial_seed manual_seed manual_seed_all seed seed_all set_rng_state "
    "set_rng_state_all"
).split()


#: Functions that run a backward pass, for which function modes are asked.
PASSES = (torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad)


def backward_in(mode: TorchFunctionMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Call one of these for a mode that was asked for it.

    A mode is off while it is asked, and what a checkpoint computes anew in the pass has to meet it as the forward did.
    """
    before = _thread.asked
    _thread.asked = (mode, *before)
    try:
        return func(*args, **kwargs)
    finally:
        _thread.asked = before


def _in_modes(run: Callable[..., Any]) -> Callable[..., Any]:
    """What runs a pass, with the modes on that were asked for it."""

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        modes, _thread.asked = _thread.asked, ()
        try:
            with contextlib.ExitStack() as stack:
                for mode in modes:
                    stack.enter_context(mode)
                return run(*args, **kwargs)
        finally:
            _thread.asked = modes

    return run_backward


class Redirect(TorchFunctionMode):
    """Sees calls of functions that were imported by name before the region, in the thread that has entered it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if args and type(args[0]) is int and getattr(func, "__name__", "") in ("_parse_to", "device"):
            # The index of a device, which torch refuses where there is none.
            args = (torch.device("cuda", args[0]), *args[1:])
        if func in PASSES:
            return backward_in(self, func, args, kwargs or {})
        if not kwargs:
            return func(*args)
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": _here(kwargs["device"])}
        return func(*args, **kwargs)


def replacements() -> Iterator[tuple[Any, str, Any]]:
    """Every attribute that stands for something else in the region: where it is, its name, and what it is then."""
    torch_: Any = torch
    for name in _FACTORIES:
        place, _, last = name.rpartition(".")
        owner = getattr(torch_, place) if place else torch_
        if hasattr(owner, last):
            yield owner, last, _factory(getattr(owner, last), shares=last in ("as_tensor", "asarray"))
    yield torch_, "Generator", _Generator
    yield torch_, "set_autocast_enabled", _set_autocast_enabled
    yield torch_, "is_autocast_enabled", _is_autocast_enabled
    yield torch_, "set_autocast_cpu_enabled", _set_autocast_cpu_enabled
    yield torch_, "is_autocast_cpu_enabled", _is_autocast_cpu_enabled
    yield torch_, "clear_autocast_cache", _clearing(torch_.clear_autocast_cache)
    for name in _RANDOM:
        yield torch.cuda.random, name, CUDA[name]
    for name in _METHODS:
        yield torch.Tensor, name, _factory(getattr(_Tensor, name))
    yield torch.Tensor, "to", _to
    yield torch.Tensor, "cuda", _cuda
    yield torch.Tensor, "cpu", _cpu
    yield torch.Tensor, "pin_memory", _pin_memory
    yield torch.Tensor, "record_stream", _record_stream
    yield torch.Tensor, "get_device", _get_device
    yield torch.Tensor, "type", _type
    yield torch.Tensor, "histc", _counting(_Tensor.histc)
    yield torch.autograd, "_engine_run_backward", _in_modes(torch_.autograd._engine_run_backward)
    yield torch_, "histc", _counting(torch_.histc)
    yield torch_, "set_default_tensor_type", _set_default_type
    for name, kind in _tensor_types():
        yield torch.cuda, name, kind
    for name in ("CUDAGraph", "graph"):
        yield torch.cuda, name, _NoGraph
    yield torch.cuda, "make_graphed_callables", _refuse_graph
    yield torch.Tensor, "device", property(_device)
    yield torch.Tensor, "is_cuda", property(_is_cuda)
    yield torch.Tensor, "is_cpu", property(_is_cpu)
    yield torch.storage._StorageBase, "cuda", _storage_cuda
    yield torch.TypedStorage, "cuda", _storage_cuda
    yield torch.serialization, "default_restore_location", _restore_location
    yield torch.utils._device.DeviceContext, "__init__", _context_init
    yield torch.nn.DataParallel, "scatter", _scatter
    yield torch.nn.utils.rnn, "_packed_sequence_init_args", _packed_sequence_args
    yield torch.backends.cudnn, "is_acceptable", lambda tensor: False
    for owner, answers in (
        (torch.cuda, CUDA),
        (torch.cuda.nvtx, NVTX),
        (getattr(torch, "accelerator", None), ACCELERATOR),
    ):
        for name, answer in answers.items():
            if hasattr(owner, name):
                yield owner, name, answer
