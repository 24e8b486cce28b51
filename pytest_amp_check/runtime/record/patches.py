"""What is patched while anything records, and how it is put back.

Patches stand on classes, and on module globals that torch itself looks up when it is called, so that names which a
program has imported early (``from torch.nn.utils import clip_grad_norm_``) are seen as well. They are installed when
the first recording of the process begins and removed when the last one ends. Each hands a call on at once in threads
that do not record.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import operator
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch.amp import autocast_mode, grad_scaler
from torch.nn.utils import clip_grad
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ...protocol import surface
from .elsewhere import CONSTANT, Watch, watched
from .origins import LOW
from .sites import is_inner

if TYPE_CHECKING:
    from .recorder import Recorder
    from .recording import Recording


class _Local(threading.local):
    #: The recordings of this thread, and those of them that see what it does now.
    open: tuple[Recorder, ...] = ()
    active: tuple[Recorder, ...] = ()
    #: Whether torch is clearing gradients.
    clearing: bool = False
    #: What watches this thread for the regions in which it was given work.
    watches: Sequence[Watch] = ()


_LOCAL = _Local()
_LOCK = threading.Lock()
_MISSING = object()
_REDIRECTS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "emulate", "redirects.py")
#: Where pools of threads are.
_POOLS = os.path.dirname(os.path.abspath(concurrent.futures.__file__))
#: What is patched now: (object, name, what stood there).
_installed: list[tuple[Any, str, Any]] = []
_hooks: list[Any] = []
_users = 0
#: The recordings that changes of tensors in place may concern now.
_watching: set[Recording] = set()


def active() -> tuple[Recorder, ...]:
    """The recordings that see what this thread does, outermost first."""
    return _LOCAL.active


def watch(recorder: Recording) -> None:
    """Take note of whether a recording watches tensors."""
    if recorder.watches_tensors:
        _watching.add(recorder)
    else:
        _watching.discard(recorder)


def begin(recorder: Recorder) -> None:
    """Let a recording see what this thread does."""
    _use()
    _LOCAL.open = (*_LOCAL.open, recorder)
    _choose()


def end(recorder: Recorder) -> None:
    """Let it see no more. Recordings need not end in the order in which they began."""
    _LOCAL.open = tuple(other for other in _LOCAL.open if other is not recorder)
    _choose()
    _watching.discard(recorder)
    _release()


def _choose() -> None:
    """An automatic recording sees nothing while somebody records for themselves."""
    recordings = _LOCAL.open
    _LOCAL.active = tuple(
        recorder
        for number, recorder in enumerate(recordings)
        if not recorder.automatic or all(later.automatic for later in recordings[number + 1 :])
    )


@contextlib.contextmanager
def hidden() -> Iterator[None]:
    """What this thread does in the ``with`` block is seen by no recording that is open."""
    recordings, _LOCAL.open = _LOCAL.open, ()
    _choose()
    try:
        yield
    finally:
        _LOCAL.open = recordings
        _choose()


def keep() -> Callable[[], None]:
    """Patch torch now and until the function that is returned is called, whatever recordings begin and end between.

    A test session patches once, below everything that its fixtures patch, such as ``monkeypatch`` or an emulation:
    those come and go in their own order, and would put back what they found.
    """
    _use()
    return _release


def _use() -> None:
    global _users  # noqa: PLW0603 - the process has one set of patches
    with _LOCK:
        if _users == 0:
            try:
                _install()
            except BaseException:
                _remove()
                raise
        _users += 1


def _release() -> None:
    global _users  # noqa: PLW0603
    with _LOCK:
        _users -= 1
        if _users == 0:
            _remove()


def _put(target: Any, name: str, value: Any) -> None:
    _installed.append((target, name, vars(target).get(name, _MISSING)))
    setattr(target, name, value)


def _wrap(target: Any, name: str, make: Callable[[Any], Any]) -> None:
    original = getattr(target, name, None)
    if original is not None:
        _put(target, name, functools.wraps(original)(make(original)))


def _remove() -> None:
    for hook in _hooks:
        hook.remove()
    _hooks.clear()
    while _installed:
        target, name, value = _installed.pop()
        _ops().pop(id(vars(target).get(name)), None)
        if value is _MISSING:
            delattr(target, name)
        else:
            setattr(target, name, value)


def _install() -> None:
    _install_autocast()
    _install_losses()
    _install_scalers()
    _install_autograd()
    _install_optimizers()
    _install_gradients()
    _install_modules()
    _install_checkpoints()
    _install_captures()
    _install_threads()


def _from_torch(depth: int = 2) -> bool:
    """Whether the patched function was called by torch itself; what an emulation puts around it does not count."""
    frame = sys._getframe(depth)
    if frame.f_code.co_filename == _REDIRECTS and frame.f_back is not None:
        frame = frame.f_back
    return is_inner(frame.f_code.co_filename)


# Autocast.


def _plain_autocast(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether autocast is constructed as nearly always: a device, a low-precision dtype, nothing to be judged."""
    device = args[0] if args else kwargs.get("device_type")
    dtype = kwargs.get("dtype", torch.float16)
    return (
        len(args) < 2
        and device in ("cuda", "cpu")
        and (dtype is torch.float16 or dtype is torch.bfloat16)
        and type(kwargs.get("enabled", True)) is bool
        and type(kwargs.get("cache_enabled", True)) is bool
        and kwargs.keys() <= {"device_type", "dtype", "enabled", "cache_enabled"}
    )


def _install_autocast() -> None:
    base = autocast_mode.autocast

    def new(name: str, cls: type) -> Callable[[Any], Any]:
        def make(original: Any) -> Any:
            def init(self: Any, *args: Any, **kwargs: Any) -> None:
                # A subclass calls the constructor of its base: the outer one is the user's.
                if type(self) is cls and not _plain_autocast(args, kwargs):
                    for recorder in _LOCAL.active:
                        recorder.autocast_new(name, args, kwargs)
                original(self, *args, **kwargs)

            return init

        return make

    _wrap(base, "__init__", new("torch.autocast", base))
    for kind in ("cuda", "cpu"):
        cls = getattr(torch, kind).amp.autocast_mode.autocast
        _wrap(cls, "__init__", new(f"torch.{kind}.amp.autocast", cls))

    def make_enter(original: Any) -> Any:
        def enter(self: Any) -> Any:
            result = original(self)
            for recorder in _LOCAL.active:
                recorder.autocast_enter(self)
            for watch in _LOCAL.watches:
                watch.on = True
            return result

        return enter

    def make_exit(original: Any) -> Any:
        def leave(self: Any, *args: Any) -> Any:
            for recorder in _LOCAL.active:
                recorder.autocast_exit(self)
            return original(self, *args)

        return leave

    _wrap(base, "__enter__", make_enter)
    _wrap(base, "__exit__", make_exit)

    def make_clear(original: Any) -> Any:
        def clear_autocast_cache() -> Any:
            if _LOCAL.active and not _from_torch():
                for recorder in _LOCAL.active:
                    recorder.cache_cleared()
            return original()

        return clear_autocast_cache

    _wrap(torch, "clear_autocast_cache", make_clear)


# Losses.


def _install_losses() -> None:
    def make_bce(original: Any) -> Any:
        def binary_cross_entropy(*args: Any, **kwargs: Any) -> Any:
            if not torch.compiler.is_compiling():
                for recorder in _LOCAL.active:
                    recorder.loss("binary_cross_entropy")
            return original(*args, **kwargs)

        return binary_cross_entropy

    def make(original: Any) -> Any:
        def loss(output: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(output, *args, **kwargs)
            if not torch.compiler.is_compiling() and getattr(result, "dtype", None) in LOW:
                for recorder in _LOCAL.active:
                    recorder.low_loss(output)
            return result

        return loss

    _wrap_builtin(torch._C._nn, "binary_cross_entropy", make_bce)
    # What no float32 target of the output's shape promotes, under the names by which torch.nn.functional calls it.
    for module, name in ((torch._C._nn, "cross_entropy_loss"), (torch._C._nn, "nll_loss_nd"), (torch, "ctc_loss")):
        _wrap_builtin(module, name, make)


def _wrap_builtin(target: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Patch a function that TorchScript knows by its identity, so that it knows what stands there meanwhile too."""
    op = _ops().get(id(getattr(target, name)))
    _wrap(target, name, make)
    if op is not None:
        _ops()[id(getattr(target, name))] = op


def _ops() -> dict[int, str]:
    """The functions that TorchScript knows, by their identities, and the ops that they are."""
    table: dict[int, str] = torch.jit._builtins._get_builtin_table()  # type: ignore[no-untyped-call]
    return table


# Scalers.


def _scaler_classes() -> list[type]:
    """GradScaler and those of torch's scalers that are loaded and do things their own way."""
    found: list[type] = [grad_scaler.GradScaler]
    sharded = sys.modules.get("torch.distributed.fsdp.sharded_grad_scaler")
    if sharded is not None:
        found.append(sharded.ShardedGradScaler)
    return found


def _install_scalers() -> None:
    for kind in ("cuda", "cpu"):
        cls = getattr(torch, kind).amp.grad_scaler.GradScaler
        _wrap(cls, "__init__", functools.partial(_make_scaler_init, cls, f"torch.{kind}.amp.GradScaler"))
    for cls in _scaler_classes():
        _install_scaler(cls)


def _install_scaler(cls: type) -> None:
    name = "torch.amp.GradScaler" if cls is grad_scaler.GradScaler else _SHARDED
    _wrap(cls, "__init__", functools.partial(_make_scaler_init, cls, name))
    for method, make in _SCALER_METHODS.items():
        if method in vars(cls):
            _wrap(cls, method, make)


_SHARDED = next(name for name in surface.SURFACE if name.endswith(".ShardedGradScaler"))


def _make_scaler_init(cls: type, name: str, original: Any) -> Any:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        recorders = _LOCAL.active
        events: list[Any] = []
        if recorders:
            outermost = next(k for k in type(self).__mro__ if k.__module__.startswith("torch."))
            if outermost is cls:
                events = [recorder.scaler_new(name, args, kwargs) for recorder in recorders]
            elif outermost in _scaler_classes() and not any(target is outermost for target, _, _ in _installed):
                # It was imported after the recording began, and its own constructor is running already.
                with _LOCK:
                    _install_scaler(outermost)
                given = sys._getframe(1).f_locals
                bound = {key: given[key] for key in surface.SURFACE[_SHARDED].parameters if key in given}
                events = [recorder.scaler_new(_SHARDED, (), bound) for recorder in recorders]
        original(self, *args, **kwargs)
        for recorder, event in zip(recorders, events, strict=False):
            recorder.scaler_made(self, event)

    return init


def _make_scale(original: Any) -> Any:
    def scale(self: Any, outputs: Any) -> Any:
        result = original(self, outputs)
        for recorder in _LOCAL.active:
            recorder.scaled(self, outputs, result)
        return result

    return scale


class _refusals:  # noqa: N801 - used like a function; contextlib's generators are too slow for it
    """Tells recorders that torch has raised what it was asked to do back at the program."""

    __slots__ = ("recorders",)

    def __init__(self, recorders: tuple[Recorder, ...]) -> None:
        self.recorders = recorders

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if kind is not None:
            for recorder in self.recorders:
                recorder.refused()


def _make_unscale(original: Any) -> Any:
    def unscale_(self: Any, optimizer: Any) -> Any:
        # step() unscales by itself where the user has not.
        recorders = () if _from_torch() else _LOCAL.active
        for recorder in recorders:
            recorder.before_unscale(self, optimizer)
        with _refusals(recorders):
            result = original(self, optimizer)
        for recorder in recorders:
            recorder.after_unscale(self, optimizer)
        return result

    return unscale_


def _make_step(original: Any) -> Any:
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        recorders = _LOCAL.active
        for recorder in recorders:
            recorder.before_scaler_step(self, optimizer, args, kwargs)
        done = False
        try:
            result = original(self, optimizer, *args, **kwargs)
            done = True
        finally:
            for recorder in recorders:
                recorder.after_scaler_step(self, optimizer, done=done)
        return result

    return step


def _make_update(original: Any) -> Any:
    def update(self: Any, new_scale: Any = None) -> Any:
        recorders = _LOCAL.active
        for recorder in recorders:
            recorder.before_update(self, new_scale)
        with _refusals(recorders):
            result = original(self, new_scale)
        for recorder in recorders:
            recorder.after_update(self)
        return result

    return update


def _make_get_scale(original: Any) -> Any:
    def get_scale(self: Any) -> Any:
        if _LOCAL.active and not _from_torch():
            for recorder in _LOCAL.active:
                recorder.scale_asked(self)
        return original(self)

    return get_scale


def _make_scaler_state(original: Any) -> Any:
    def state_dict(self: Any) -> Any:
        for recorder in _LOCAL.active:
            recorder.scaler_state(self)
        return original(self)

    return state_dict


def _make_scaler_load(original: Any) -> Any:
    def load_state_dict(self: Any, state_dict: Any) -> Any:
        result = original(self, state_dict)
        for recorder in _LOCAL.active:
            recorder.scaler_load(self)
        return result

    return load_state_dict


_SCALER_METHODS: dict[str, Callable[[Any], Any]] = {
    "scale": _make_scale,
    "unscale_": _make_unscale,
    "step": _make_step,
    "update": _make_update,
    "get_scale": _make_get_scale,
    "state_dict": _make_scaler_state,
    "load_state_dict": _make_scaler_load,
}


# Backward.


def _install_autograd() -> None:
    def make(original: Any) -> Any:
        def _engine_run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
            recorders = _LOCAL.active
            if not recorders:
                return original(t_outputs, *args, **kwargs)
            if not kwargs.get("accumulate_grad"):
                result = original(t_outputs, *args, **kwargs)
                for recorder in recorders:
                    recorder.autograd_grad(t_outputs, result, create_graph=len(args) > 2 and bool(args[2]))
                return result
            tokens = [recorder.before_backward(t_outputs) for recorder in recorders]
            done = False
            try:
                result = original(t_outputs, *args, **kwargs)
                done = True
            finally:
                for recorder, token in zip(recorders, tokens, strict=True):
                    recorder.after_backward(token, done=done)
            return result

        return _engine_run_backward

    # Tensor.backward, torch.autograd.backward and torch.autograd.grad all end here.
    _wrap(torch.autograd, "_engine_run_backward", make)


# Optimizers and schedulers.


def _install_optimizers() -> None:
    optimizer_class = torch.optim.Optimizer

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        for recorder in _LOCAL.active:
            if not recorder.in_scaler_step:
                recorder.before_step(optimizer)
            _watching.discard(recorder)

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        for recorder in _LOCAL.active:
            if not recorder.in_scaler_step:
                recorder.after_step(optimizer)
            watch(recorder)

    _hooks.append(register_optimizer_step_pre_hook(before))
    _hooks.append(register_optimizer_step_post_hook(after))

    def make_init(original: Any) -> Any:
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            for recorder in _LOCAL.active:
                recorder.optimizer_new(self)

        return init

    def make_zero(original: Any) -> Any:
        def zero_grad(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not _LOCAL.active or torch.compiler.is_compiling():
                return original(self, *args, **kwargs)
            _LOCAL.clearing = True
            try:
                result = original(self, *args, **kwargs)
            finally:
                _LOCAL.clearing = False
            for recorder in _LOCAL.active:
                recorder.zero_grad(self)
            return result

        return zero_grad

    def make_group(original: Any) -> Any:
        def add_param_group(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            for recorder in _LOCAL.active:
                recorder.params_changed(self)
            return result

        return add_param_group

    def make_state(original: Any) -> Any:
        def state_dict(self: Any) -> Any:
            result = original(self)
            for recorder in _LOCAL.active:
                recorder.optimizer_state(self, result)
            return result

        return state_dict

    def make_load(original: Any) -> Any:
        def load_state_dict(self: Any, state_dict: Any) -> Any:
            result = original(self, state_dict)
            for recorder in _LOCAL.active:
                recorder.optimizer_load(self, state_dict)
            return result

        return load_state_dict

    _wrap(optimizer_class, "__init__", make_init)
    _wrap(optimizer_class, "zero_grad", make_zero)
    _wrap(optimizer_class, "add_param_group", make_group)
    _wrap(optimizer_class, "state_dict", make_state)
    _wrap(optimizer_class, "load_state_dict", make_load)

    def make_scheduler(original: Any) -> Any:
        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            # A constructor steps once, and a scheduler that holds others steps those.
            if _LOCAL.active and not _from_torch():
                for recorder in _LOCAL.active:
                    recorder.scheduler_step(self)
            return result

        return step

    for cls in vars(lr_scheduler).values():
        if (
            isinstance(cls, type)
            and issubclass(cls, lr_scheduler.LRScheduler)
            and "step" in vars(cls)
            and cls is not lr_scheduler.ReduceLROnPlateau
        ):
            _wrap(cls, "step", make_scheduler)


# Gradients and parameters.

#: Methods that change a tensor in place, by what they do to gradients.
IN_PLACE = {
    "zero_": "zero",
    "div_": "divide",
    "true_divide_": "divide",
    "__itruediv__": "divide",
    "mul_": "multiply",
    "multiply_": "multiply",
    "__imul__": "multiply",
    "copy_": "replace",
    "__setitem__": "fill",
    "fill_": "fill",
    **dict.fromkeys(
        (
            "add_ sub_ clamp_ clamp_min_ clamp_max_ clip_ nan_to_num_ masked_fill_ index_fill_ pow_ sign_ "
            "__iadd__ __isub__ normal_ uniform_ renorm_ round_"
        ).split(),
        "edit",
    ),
}
#: Those that take one operand and nothing else: Python calls a function with fixed arguments faster.
ONE_OPERAND = frozenset({"mul_", "multiply_", "__imul__"})
#: Those that a running sum is made with, and the sign of what they add.
ADDING = {"add_": 1.0, "__iadd__": 1.0, "sub_": -1.0, "__isub__": -1.0}
#: The same for functions of torch that take a list of tensors.
ALL_IN_PLACE = {
    "_foreach_zero_": "zero",
    "_foreach_div_": "divide",
    "_foreach_mul_": "multiply",
    "_foreach_copy_": "replace",
    **{f"_foreach_{name}_": "edit" for name in "add sub clamp_min clamp_max maximum minimum pow sqrt neg abs".split()},
}


#: Methods of tensors by which a program gets at their values.
NUMBERS = ("item", "__bool__", "__float__", "__int__", "numpy", "__array__")


class _Slot(property):
    """A property in the place of a slot that tensors have in C++; torch asks those for their class and name."""

    __objclass__ = torch._C.TensorBase

    def __init__(self, name: str, *functions: Any) -> None:
        super().__init__(*functions)
        self.__name__ = name


def _tell_changed(tensor: Any, effect: str, args: tuple[Any, ...]) -> None:
    """Tell of a tensor that a patched function is about to change in place."""
    if not _watching.isdisjoint(_LOCAL.active) and not torch.compiler.is_compiling() and not _from_torch(3):
        for recorder in _LOCAL.active:
            recorder.tensor_changed(tensor, effect, args)


def _install_gradients() -> None:
    def adding(effect: str, sign: float, original: Any) -> Any:
        def added(self: Any, operand: Any = _MISSING, /, *args: Any, **kwargs: Any) -> Any:
            low = self.dtype in LOW and self.numel() == 1
            if not low and not _watching and not args and not kwargs and operand is not _MISSING:
                return original(self, operand)
            if operand is not _MISSING:
                args = (operand, *args)
            _tell_changed(self, effect, args)
            result = original(self, *args, **kwargs)
            if low and len(args) == 1 and _LOCAL.active and not torch.compiler.is_compiling() and not _from_torch():
                for recorder in _LOCAL.active:
                    recorder.low_added(self, operand, sign * kwargs.get("alpha", 1))
            return result

        return added

    def in_place(effect: str) -> Callable[[Any], Any]:
        def make(original: Any) -> Any:
            def changed(self: Any, operand: Any = _MISSING, /, *args: Any, **kwargs: Any) -> Any:
                # An optimizer comes by for each of its parameters, with one operand and nobody watching.
                if not _watching and not args and not kwargs and operand is not _MISSING:
                    return original(self, operand)
                if operand is not _MISSING:
                    args = (operand, *args)
                _tell_changed(self, effect, args)
                return original(self, *args, **kwargs)

            def changed_by(self: Any, other: Any) -> Any:
                if _watching:
                    _tell_changed(self, effect, (other,))
                return original(self, other)

            if original.__name__ in ADDING:
                return adding(effect, ADDING[original.__name__], original)
            return changed_by if original.__name__ in ONE_OPERAND else changed

        return make

    for name, effect in IN_PLACE.items():
        _wrap(torch.Tensor, name, in_place(effect))

    def foreach(effect: str) -> Callable[[Any], Any]:
        def make(original: Any) -> Any:
            def changed(tensors: Any, *args: Any, **kwargs: Any) -> Any:
                for tensor in tensors[:1] if _watching else ():
                    _tell_changed(tensor, effect, args)
                return original(tensors, *args, **kwargs)

            return changed

        return make

    for name, effect in ALL_IN_PLACE.items():
        _wrap(torch, name, foreach(effect))

    def taking(original: Any) -> Any:
        def taken(self: Any, *args: Any, **kwargs: Any) -> Any:
            watched = _watching and not _watching.isdisjoint(_LOCAL.active)
            # What torch looks at by itself decides about no step.
            if watched and not torch.compiler.is_compiling() and not _from_torch():
                for recorder in _LOCAL.active:
                    recorder.number_taken()
            return original(self, *args, **kwargs)

        return taken

    for name in NUMBERS:
        _wrap(torch.Tensor, name, taking)

    grad = torch._C.TensorBase.__dict__["grad"]
    assign = grad.__set__

    def set_grad(self: Any, value: Any) -> None:
        recorders = _LOCAL.active
        if recorders and not _LOCAL.clearing and not _from_torch():
            for recorder in recorders:
                recorder.grad_set(self, value)
        assign(self, value)

    # Tensors have the same slot twice. Asking for the other one is twice as fast as calling the one that is covered,
    # and torch reads gradients many times a step.
    _put(torch.Tensor, "grad", _Slot("grad", operator.attrgetter("_grad"), set_grad, grad.__delete__))

    data = torch._C.TensorBase.__dict__["data"]

    def set_data(self: Any, value: Any) -> None:
        recorders = _LOCAL.active
        if recorders and not _from_torch():
            for recorder in recorders:
                recorder.params_written(self)
        data.__set__(self, value)

    _put(torch.Tensor, "data", _Slot("data", data.__get__, set_data))

    def make_group(original: Any) -> Any:
        def _group_tensors_by_device_and_dtype(*args: Any, **kwargs: Any) -> Any:
            if _LOCAL.active:
                _clips(sys._getframe(1))
            return original(*args, **kwargs)

        return _group_tensors_by_device_and_dtype

    # Every function of the module that clips, or computes a norm, groups the gradients first.
    _wrap(clip_grad, "_group_tensors_by_device_and_dtype", make_group)
    fully = sys.modules.get("torch.distributed.fsdp.fully_sharded_data_parallel")
    if fully is not None:

        def make_fsdp(original: Any) -> Any:
            def clip_grad_norm_(self: Any, max_norm: Any, *args: Any, **kwargs: Any) -> Any:
                for recorder in _LOCAL.active:
                    recorder.clip(list(self.parameters()), max_norm, nonfinite_error=False)
                return original(self, max_norm, *args, **kwargs)

            return clip_grad_norm_

        _wrap(fully.FullyShardedDataParallel, "clip_grad_norm_", make_fsdp)


def _clips(frame: Any) -> None:
    """Tell of the clip that a frame of ``torch.nn.utils.clip_grad`` is about to do."""
    name = frame.f_code.co_name
    if name == "_clip_grads_with_norm_":
        norm = frame.f_locals.get("total_norm")
        for recorder in _LOCAL.active:
            recorder.norm_known(norm)
    if name in ("_get_total_norm", "_clip_grads_with_norm_"):
        # clip_grad_norm_ computes the norm and then clips; between them stand torch's own wrappers.
        caller = frame.f_back
        while caller is not None and caller.f_code.co_name == "_no_grad_wrapper":
            caller = caller.f_back
        if caller is not None and caller.f_code.co_name == "clip_grad_norm_":
            if name == "_clip_grads_with_norm_":
                return
            frame, name = caller, "clip_grad_norm_"
    values = frame.f_locals
    if name == "_get_total_norm":
        for recorder in _LOCAL.active:
            recorder.norm_read(values.get("tensors"))
        return
    limit = values.get("clip_value" if name == "clip_grad_value_" else "max_norm")
    norm = name == "clip_grad_norm_"
    if limit is None:
        return
    parameters = values.get("parameters")
    if isinstance(parameters, torch.Tensor):
        parameters = [parameters]
    # A generator has been used up by now; what it gave is in the gradients.
    known = parameters if isinstance(parameters, (list, tuple)) else []
    grads = values.get("grads")
    for recorder in _LOCAL.active:
        recorder.clip(
            known,
            limit,
            grads=() if known or not isinstance(grads, list) else grads,
            nonfinite_error=bool(values.get("error_if_nonfinite")),
            norm=norm,
        )


# Modules and checkpoints.


def _install_modules() -> None:
    def make_zero(original: Any) -> Any:
        def zero_grad(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            if not torch.compiler.is_compiling():
                for recorder in _LOCAL.active:
                    recorder.module_zero_grad(self)
            return result

        return zero_grad

    def make_load(original: Any) -> Any:
        def load_state_dict(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            for recorder in _LOCAL.active:
                recorder.params_written(self)
            return result

        return load_state_dict

    def cast(dtype: torch.dtype | None) -> Callable[[Any], Any]:
        def make(original: Any) -> Any:
            def moved(self: Any, *args: Any, **kwargs: Any) -> Any:
                recorders = _LOCAL.active if not _from_torch() else ()
                wanted = dtype
                if recorders and wanted is None:
                    wanted = next((x for x in (*args, *kwargs.values()) if isinstance(x, torch.dtype)), None)
                result = original(self, *args, **kwargs)
                if wanted in (torch.float16, torch.bfloat16):
                    for recorder in recorders:
                        recorder.module_cast(self, str(wanted).removeprefix("torch."))
                return result

            return moved

        return make

    _wrap(torch.nn.Module, "zero_grad", make_zero)
    _wrap(torch.nn.Module, "load_state_dict", make_load)
    for name, dtype in (("half", torch.float16), ("bfloat16", torch.bfloat16), ("to", None)):
        _wrap(torch.nn.Module, name, cast(dtype))


def _install_checkpoints() -> None:
    def make_load(original: Any) -> Any:
        def load(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            for recorder in _LOCAL.active:
                recorder.loaded(result)
            return result

        return load

    def make(original: Any) -> Any:
        def save(obj: Any, *args: Any, **kwargs: Any) -> Any:
            for recorder in _LOCAL.active:
                recorder.saved(obj)
            return original(obj, *args, **kwargs)

        return save

    # torch.save ends in one of these, and torch.load in one of those.
    for name in ("_save", "_legacy_save"):
        _wrap(torch.serialization, name, make)
    for name in ("_load", "_legacy_load"):
        _wrap(torch.serialization, name, make_load)


# Captures and threads.


def _install_captures() -> None:
    def make(original: Any) -> Any:
        def trace_module(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            except RuntimeError as error:
                if CONSTANT in str(error):
                    for recorder in _LOCAL.active:
                        recorder.traced()
                raise

        return trace_module

    # torch.jit.trace looks it up in its own module.
    for module in (torch.jit._trace, torch.jit):
        _wrap(module, "trace_module", make)


def _install_threads() -> None:
    def watches(frame: FrameType | None) -> list[Watch]:
        """What watches a thread that is given work by a frame, if that is a user's, or a pool's for one."""
        if not any(recorder.in_region for recorder in _LOCAL.active):
            return []
        while frame is not None and frame.f_code.co_filename.startswith(_POOLS):
            frame = frame.f_back
        if frame is None or is_inner(frame.f_code.co_filename):
            return []
        asked = [recorder.thread_asked() for recorder in _LOCAL.active if recorder.in_region]
        return [watch for watch in asked if watch is not None]

    def make_start(original: Any) -> Any:
        def start(self: Any) -> None:
            frame = sys._getframe(1)
            # A pool's threads go on when the region of the one who asks is left; what they are given is watched.
            watching = [] if frame.f_code.co_filename.startswith(_POOLS) else watches(frame)
            if watching:
                self.run = watched(self.run, watching, _LOCAL)
            original(self)

        return start

    def make_submit(original: Any) -> Any:
        def submit(self: Any, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
            watching = watches(sys._getframe(1))
            if watching:
                fn = watched(fn, watching, _LOCAL)
            return original(self, fn, *args, **kwargs)

        return submit

    _wrap(threading.Thread, "start", make_start)
    _wrap(ThreadPoolExecutor, "submit", make_submit)
