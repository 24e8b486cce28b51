"""A region in which CUDA training code runs on the CPU, with CUDA's autocast dtypes and a live gradient scaler."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils._device
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

from . import castpolicy
from .cudadevice import ACCELERATOR, CUDA, DEVICE, NVTX

_CPU = torch.device("cpu")
_Tensor: Any = torch._C.TensorBase

#: Functions that take a device, by where they are; nested and fft are modules of torch.
_FACTORIES = (
    "arange as_tensor asarray bartlett_window blackman_window empty empty_like empty_permuted empty_quantized "
    "empty_strided eye fft.fftfreq fft.rfftfreq full full_like hamming_window hann_window kaiser_window linspace logspace "
    "nested.as_nested_tensor nested.nested_tensor normal ones ones_like rand rand_like randint randint_like randn "
    "randn_like randperm range scalar_tensor sparse_bsc_tensor sparse_bsr_tensor sparse_compressed_tensor "
    "sparse_coo_tensor sparse_csc_tensor sparse_csr_tensor tensor tril_indices triu_indices zeros zeros_like".split()
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


class _Places:
    """On which side tensors are known to be, by storage: on CUDA a tensor that moves is a new one, and one that is
    there already is not."""

    def __init__(self) -> None:
        # A weak reference keeps the address of a storage from being used again.
        self._known: dict[int, tuple[StorageWeakRef, str]] = {}
        self._clean_at = 1024

    def put(self, tensor: torch.Tensor, where: str) -> None:
        with contextlib.suppress(NotImplementedError, RuntimeError):  # sparse tensors have no storage
            storage = tensor.untyped_storage()
            if len(self._known) >= self._clean_at:
                self._known = {key: kept for key, kept in self._known.items() if not kept[0].expired()}
                self._clean_at = max(1024, 2 * len(self._known))
            self._known[storage._cdata] = (StorageWeakRef(storage), where)

    def has(self, tensor: torch.Tensor, where: str) -> bool:
        """Whether the tensor is there; what an op has made of other tensors is on the emulated device."""
        try:
            known = self._known.get(tensor.untyped_storage()._cdata)
        except (NotImplementedError, RuntimeError):
            known = None
        if known is not None:
            return known[1] == where
        return where == "cuda" and tensor.grad_fn is not None

    def moved(self, source: torch.Tensor, result: torch.Tensor, where: str) -> torch.Tensor:
        """``result``, or a copy of it where a move would have made one."""
        if result is source:
            if self.has(source, where):
                return source
            result = source.clone()
        self.put(result, where)
        return result

    def clear(self) -> None:
        self._known.clear()


_places = _Places()


def _side(device: Any) -> str | None:
    """``cuda`` or ``cpu`` where a request names one of the two."""
    if isinstance(device, bool):
        return None
    if isinstance(device, int):
        return "cuda"
    kind = device.partition(":")[0] if isinstance(device, str) else getattr(device, "type", None)
    return kind if kind in ("cuda", "cpu") else None


def _factory(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def redirected(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is None:
            return function(*args, **kwargs)
        result = function(*args, **{**kwargs, "device": _here(device)})
        side = _side(device)
        if side is not None and isinstance(result, torch.Tensor) and not torch.compiler.is_compiling():
            # An array that is taken over as it is would have been copied to the device.
            source = args[0] if args and isinstance(args[0], torch.Tensor) else None
            result = _places.moved(source, result, side) if source is result else result
            _places.put(result, side)
        return result

    return redirected


def _move(self: torch.Tensor, result: torch.Tensor, where: str) -> torch.Tensor:
    return result if torch.compiler.is_compiling() else _places.moved(self, result, where)


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


def _cuda(
    self: torch.Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = torch.preserve_format
) -> torch.Tensor:
    _here(device)
    return _move(self, _Tensor.to(self, device=_CPU, memory_format=memory_format), "cuda")


def _cpu(self: torch.Tensor, memory_format: Any = torch.preserve_format) -> torch.Tensor:
    return _move(self, _Tensor.cpu(self, memory_format=memory_format), "cpu")


def _pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
    return self.clone()


def _record_stream(self: torch.Tensor, stream: object) -> None:
    pass


_device_of = _Tensor.device.__get__


def _device(self: torch.Tensor) -> torch.device:
    device: torch.device = _device_of(self)
    return DEVICE if device.type == "cpu" else device


def _is_cuda(self: torch.Tensor) -> bool:
    return bool(_device_of(self).type in ("cpu", "cuda"))


def _is_cpu(self: torch.Tensor) -> bool:
    return False


def _get_device(self: torch.Tensor) -> int:
    return 0 if _is_cuda(self) else int(_Tensor.get_device(self))


def _storage_cuda(self: Any, device: Any = None, non_blocking: bool = False) -> Any:
    _here(device)
    return self


def _restore_location(storage: Any, location: str) -> Any:
    text = location.decode("ascii") if isinstance(location, bytes) else location
    if _here(text) is _CPU:
        location = "cpu"
    return _original(torch.serialization, "default_restore_location")(storage, location)


class _GeneratorType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch._C.Generator)


class _Generator(metaclass=_GeneratorType):
    """Makes generators of the CPU; they are no instances of this class, and outlive the region."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return torch._C.Generator(_here(device))


def _context_init(self: Any, device: Any) -> None:
    _original(torch.utils._device.DeviceContext, "__init__")(self, _here(device))


def _scatter(self: Any, inputs: Any, kwargs: Any, device_ids: Any) -> Any:
    # There is one device, and what is on it already is not sent there.
    return (tuple(inputs),), (dict(kwargs or {}),)


class _Thread(threading.local):
    """Autocast on the CPU as the thread's own code has set it, while it is on for the emulated device."""

    cpu_enabled = False


_thread = _Thread()
_is_enabled = torch.is_autocast_enabled
_set_enabled = torch.set_autocast_enabled
_clear_cache = torch.clear_autocast_cache


def _autocast_device(device: str) -> str:
    return device if device in ("cuda", "cpu") else torch.device(device).type


def _set_autocast_enabled(*args: Any) -> None:
    device, enabled = ("cuda", args[0]) if len(args) == 1 else args
    device = _autocast_device(device)
    on_cuda = _is_enabled("cuda")
    if device == "cpu" and on_cuda:
        _thread.cpu_enabled = enabled
    elif device == "cuda":
        _set_enabled("cuda", enabled)
        if enabled and not on_cuda:
            _mirror()
        elif on_cuda and not enabled:
            _set_enabled("cpu", _thread.cpu_enabled)
    else:
        _set_enabled(device, enabled)


def _mirror() -> None:
    """Autocast for the emulated device runs in the kernels of the CPU, which must be on for it."""
    _thread.cpu_enabled = _is_enabled("cpu")
    _set_enabled("cpu", True)


def _is_autocast_enabled(device: str | None = None) -> bool:
    if device is not None and _autocast_device(device) == "cpu" and _is_enabled("cuda"):
        return _thread.cpu_enabled
    return _is_enabled("cuda" if device is None else device)


def _set_autocast_cpu_enabled(enabled: bool) -> None:
    _set_autocast_enabled("cpu", enabled)


def _is_autocast_cpu_enabled() -> bool:
    return _is_autocast_enabled("cpu")


def _clear_autocast_cache() -> None:
    _clear_cache()
    castpolicy.forget_casts()


class _Redirect(TorchFunctionMode):
    """Sees calls of functions that were imported by name before the region, in the thread that has entered it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not kwargs:
            return func(*args)
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": _here(kwargs["device"])}
        return func(*args, **kwargs)


_MISSING = object()
_lock = threading.RLock()
_depth = 0
_saved: list[tuple[Any, str, Any]] = []
_library: torch.library.Library | None = None


def _replacements() -> Iterator[tuple[Any, str, Any]]:
    """Every attribute that stands for something else in the region: where it is, its name, and what it is then."""
    torch_: Any = torch
    for name in _FACTORIES:
        place, _, last = name.rpartition(".")
        owner = getattr(torch_, place) if place else torch_
        if hasattr(owner, last):
            yield owner, last, _factory(getattr(owner, last))
    yield torch_, "Generator", _Generator
    yield torch_, "set_autocast_enabled", _set_autocast_enabled
    yield torch_, "is_autocast_enabled", _is_autocast_enabled
    yield torch_, "set_autocast_cpu_enabled", _set_autocast_cpu_enabled
    yield torch_, "is_autocast_cpu_enabled", _is_autocast_cpu_enabled
    yield torch_, "clear_autocast_cache", _clear_autocast_cache
    for name in _METHODS:
        yield torch.Tensor, name, _factory(getattr(_Tensor, name))
    yield torch.Tensor, "to", _to
    yield torch.Tensor, "cuda", _cuda
    yield torch.Tensor, "cpu", _cpu
    yield torch.Tensor, "pin_memory", _pin_memory
    yield torch.Tensor, "record_stream", _record_stream
    yield torch.Tensor, "get_device", _get_device
    yield torch.Tensor, "device", property(_device)
    yield torch.Tensor, "is_cuda", property(_is_cuda)
    yield torch.Tensor, "is_cpu", property(_is_cpu)
    yield torch.storage._StorageBase, "cuda", _storage_cuda
    yield torch.TypedStorage, "cuda", _storage_cuda
    yield torch.serialization, "default_restore_location", _restore_location
    yield torch.utils._device.DeviceContext, "__init__", _context_init
    yield torch.nn.DataParallel, "scatter", _scatter
    yield torch.backends.cudnn, "is_acceptable", lambda tensor: False
    for owner, answers in (
        (torch.cuda, CUDA),
        (torch.cuda.nvtx, NVTX),
        (getattr(torch, "accelerator", None), ACCELERATOR),
    ):
        for name, answer in answers.items():
            if hasattr(owner, name):
                yield owner, name, answer


def _original(owner: Any, name: str) -> Any:
    return next((value for place, last, value in _saved if place is owner and last == name), getattr(owner, name))


def _fill_tables_of_torch() -> None:
    """Tables that torch fills on first use, with the functions as they are then, and keeps."""
    # Every optimizer imports it.
    from torch._dynamo import trace_rules

    trace_rules.get_torch_obj_rule_map()
    torch.utils._device._device_constructors()


def _install() -> None:
    global _library
    _fill_tables_of_torch()
    builtins: dict[int, str] = torch.jit._builtins._get_builtin_table()
    try:
        _library = castpolicy.install()
        for owner, name, value in list(_replacements()):
            before = vars(owner).get(name, _MISSING)
            _saved.append((owner, name, before))
            setattr(owner, name, value)
            if id(before) in builtins:
                # TorchScript knows its operators by the identity of the Python function.
                builtins[id(value)] = builtins[id(before)]
    except BaseException:
        _uninstall()
        raise


def _uninstall() -> None:
    global _library
    _restore_attributes()
    if _library is not None:
        _library._destroy()
        _library = None
    castpolicy.forget_casts()
    _places.clear()


def _restore_attributes() -> None:
    builtins: dict[int, str] = torch.jit._builtins._get_builtin_table()
    while _saved:
        owner, name, before = _saved.pop()
        if id(before) in builtins:
            builtins.pop(id(vars(owner)[name]), None)
        if before is _MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def _leave_in_child() -> None:
    """A forked process, such as a worker of a DataLoader, is on the host."""
    global _depth
    _depth = 0
    _restore_attributes()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_in_child)


def emulating() -> bool:
    """Whether this process is in an ``emulate_cuda()`` region, where ``torch.cuda.is_available()`` proves nothing."""
    return _depth > 0


@contextlib.contextmanager
def emulate_cuda() -> Iterator[None]:
    """A region in which CUDA code runs, unchanged, on the CPU with the dtypes that autocast has on CUDA.

    ``torch.autocast("cuda")`` casts by CUDA's op lists (float16 unless a dtype is given), ``GradScaler("cuda")`` is
    enabled, ``torch.cuda.is_available()`` is true of one device, and what is moved to or made on "cuda" is made on the
    CPU, with real values and a real backward. A CUDA device that the machine has is not used.

    In the region every tensor says ``device="cuda:0"`` and ``is_cuda``, moved or not: with one device nothing can be on
    the wrong one. As on CUDA, a move to "cuda" or to "cpu" makes a copy unless the tensor is known to be there.
    ``torch.autocast("cpu")`` keeps the CPU's op lists while autocast is off for "cuda". LSTM, GRU and RNN give the
    autocast dtype, as cuDNN's do. Not emulated: more than one device, CUDA graphs, memory statistics (all zero),
    tensor types such as ``torch.cuda.FloatTensor``, ``torch.Generator`` imported by name, processes started in the
    region (workers of a DataLoader are on the host, as they are with CUDA).

    Regions may be nested and entered by several threads; the last that is left restores everything.
    """
    global _depth
    with _lock:
        if _depth == 0:
            _install()
        _depth += 1
    default = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    mirrored = _is_enabled("cuda")
    if mirrored:
        _mirror()
    try:
        with _Redirect():
            yield
    finally:
        if getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None) is not default:
            torch.set_default_device(None if default is None else default.device)
        with _lock:
            _depth -= 1
            if _depth == 0:
                if _is_enabled("cuda"):
                    _set_enabled("cpu", _thread.cpu_enabled)
                _uninstall()
