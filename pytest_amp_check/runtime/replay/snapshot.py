"""A training state: found from the function that touches it, kept exactly, and put back in place."""

from __future__ import annotations

import ast
import collections
import collections.abc
import contextlib
import dis
import enum
import functools
import io
import itertools
import random
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

#: Whose objects hold no training state, or are not ours to rewind: a test's fixtures, loggers, locks, open files.
_NOT_FOLLOWED = frozenset(sys.stdlib_module_names) | {
    "_pytest",
    "numpy",
    "pluggy",
    "pytest",
    "pytest_amp_check",
    "torch",
    "xdist",
}
#: Objects of torch that are followed all the same.
_KNOWN = (nn.Module, torch.optim.Optimizer, torch.amp.GradScaler, torch.optim.lr_scheduler.LRScheduler)
#: What holds values and nothing else.
_BAGS = (types.SimpleNamespace,)
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
Named = tuple[str, Any]


class Found:
    """The parts of a training state, by the names that the step knows them by."""

    def __init__(self, roots: Iterable[Named]) -> None:
        self.models: dict[str, nn.Module] = {}
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self.scalers: dict[str, torch.amp.GradScaler] = {}
        self.schedulers: dict[str, Any] = {}
        self.generators: dict[str, torch.Generator] = {}
        #: Names of iterators, whose position cannot be put back.
        self.iterators: list[str] = []
        #: Numbers and strings that the step holds, such as a counter.
        self.values: dict[str, Any] = {}
        inner: set[int] = set()
        torchs: tuple[str, ...] = ()
        for name, item in reachable(roots):
            if isinstance(item, _KNOWN):
                torchs += (f"{name}.",)
            if isinstance(item, nn.Module):
                if id(item) not in inner:
                    _add(self.models, name or type(item).__name__, item)
                    inner.update(map(id, item.modules()))
            elif isinstance(item, torch.optim.Optimizer):
                _add(self.optimizers, name or "optimizer", item)
            elif isinstance(item, torch.amp.GradScaler):
                _add(self.scalers, name or "scaler", item)
            elif isinstance(item, torch.optim.lr_scheduler.LRScheduler):
                _add(self.schedulers, name or "scheduler", item)
            elif isinstance(item, torch.Generator):
                _add(self.generators, name or "generator", item)
            elif isinstance(item, collections.abc.Iterator) and not isinstance(item, (io.IOBase, itertools.count)):
                self.iterators.append(name)
            elif isinstance(item, (_Cell, _Globals, dict)) or followed(item):
                values = [pair for pair in _children(name, item) if isinstance(pair[1], (bool, int, float, str))]
                self.values.update((key, value) for key, value in values if not key.startswith(torchs))
        # A module that was met before the one that holds it.
        outer = {id(m) for model in self.models.values() for m in model.modules() if m is not model}
        self.models = {name: model for name, model in self.models.items() if id(model) not in outer}

    def parameters(self) -> dict[str, nn.Parameter]:
        """Everything that is trained, by name; the model's name stands in front only where there are several."""
        several = sum(any(True for _ in model.parameters()) for model in self.models.values()) > 1
        names: dict[str, nn.Parameter] = {}
        for model_name, model in self.models.items():
            for name, parameter in model.named_parameters():
                names[f"{model_name}.{name}" if several else name] = parameter
        known = set(map(id, names.values()))
        for optimizer_name, optimizer in self.optimizers.items():
            loose = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in known]
            names.update({f"{optimizer_name}, parameter {number}": p for number, p in enumerate(loose)})
        return names


class Snapshot:
    """A training state, kept exactly: the objects stay the same ones, and :meth:`restore` puts their contents back.

    Parameters, buffers, gradients and other tensors bit for bit, attributes of modules, optimizers, scalers and
    schedulers with what did not exist yet, plain containers and counters, and the random generators of torch, Python
    and numpy.
    """

    def __init__(self, roots: Iterable[Named]) -> None:
        self._random = random_state()
        storages: dict[int, Callable[[], None]] = {}
        # What is kept here is no part of what a program needs, where its memory is measured meanwhile.
        with _disable_current_modes():
            kept = [_keep(item, storages) for _, item in reachable(roots)]
        self._restorers = [restorer for restorer in kept if restorer is not None]
        self._restorers += storages.values()

    def restore(self) -> None:
        """Puts everything back, as often as it is called."""
        with torch.no_grad():
            for restorer in self._restorers:
                restorer()
        # Inside an autocast region of the caller, low-precision copies of the weights may be cached.
        torch.clear_autocast_cache()
        restore_random(self._random)


def random_state() -> dict[str, Any]:
    """The state of every global random generator that is in use, by its name."""
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "random": random.getstate()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["torch.cuda"] = torch.cuda.get_rng_state_all()
    if torch.backends.mps.is_available():
        state["torch.mps"] = torch.mps.get_rng_state()
    if (numpy := sys.modules.get("numpy")) is not None:
        state["numpy.random"] = numpy.random.get_state()
    return state


def restore_random(state: dict[str, Any]) -> None:
    """Puts back what :func:`random_state` returned."""
    torch.set_rng_state(state["torch"])
    random.setstate(state["random"])
    if "torch.cuda" in state:
        torch.cuda.set_rng_state_all(state["torch.cuda"])
    if "torch.mps" in state:
        torch.mps.set_rng_state(state["torch.mps"])
    if "numpy.random" in state:
        sys.modules["numpy"].random.set_state(state["numpy.random"])


def seed_all(seed: int) -> None:
    """Seed the global generators of torch (on every device), of Python, and of NumPy where it is loaded."""
    torch.manual_seed(seed)
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed)


class _Cell:
    """A variable that a function keeps from where it was defined."""

    def __init__(self, name: str, cell: types.CellType) -> None:
        self.name, self.cell = name, cell


class _Globals:
    """The globals of a module that a function names."""

    def __init__(self, space: dict[str, Any], names: Iterable[str], prefix: str = "") -> None:
        self.space, self.prefix = space, prefix
        self.names = sorted(name for name in names if name in space and not name.startswith("__"))


class Bare:
    """A function whose own variables are rewound, without following what they hold."""

    def __init__(self, function: object) -> None:
        self.function = function


def reachable(roots: Iterable[Named]) -> Iterator[Named]:
    """Every object that may hold state, once, with the name under which it was met first."""
    seen: dict[Any, object] = {}
    waiting = [(name, item) for name, item in roots][::-1]
    while waiting:
        name, item = waiting.pop()
        key: Any = id(item)
        if isinstance(item, _Cell):
            key = ("cell", id(item.cell))
        elif isinstance(item, _Globals):
            key = ("globals", id(item.space), *item.names)
        if key in seen or isinstance(item, (*_PLAIN, type)):
            continue
        # Kept, or another object could get its id.
        seen[key] = item
        yield name, item
        waiting += list(_children(name, item))[::-1]


def _children(name: str, item: Any) -> Iterable[Named]:
    """What an object leads to, under the names that its user would write."""
    if isinstance(item, Tensor):
        return [(f"{name}.grad", item.grad)] if item.is_leaf and item.grad is not None else []
    if isinstance(item, dict):
        # The keys of an optimizer's state are parameters, which take long to print.
        keys = [repr(key) if isinstance(key, (str, int)) else "..." for key in item]
        return [(f"{name}[{key}]", value) for key, value in zip(keys, item.values(), strict=True)]
    if isinstance(item, (list, tuple, set, collections.deque)):
        return [(f"{name}[{number}]", value) for number, value in enumerate(item) if not isinstance(value, _PLAIN)]
    if isinstance(item, functools.partial):
        keywords = list(item.keywords.items())
        return [(name, item.func), *((name, value) for value in item.args), *keywords]
    if isinstance(item, types.MethodType):
        return [("", item.__self__), ("", item.__func__)]
    if isinstance(item, types.FunctionType):
        return _of_function(item)
    if isinstance(item, _Cell):
        try:
            return [(item.name, item.cell.cell_contents)]
        except ValueError:
            return []
    if isinstance(item, _Globals):
        return [(item.prefix + key, item.space[key]) for key in item.names if key in item.space]
    if isinstance(item, Bare):
        return _of_bare(item.function)
    if followed(item):
        inner = [(f"{name}.{key}" if name else key, value) for key, value in _attributes(item).items()]
        return [*inner, *(("", function) for function in _methods(type(item)))]
    return []


def _of_function(function: types.FunctionType) -> list[Named]:
    """The variables, defaults and globals that a function reads."""
    found: list[Named] = [
        (name, _Cell(name, cell))
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    ]
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is not None:
        found.append(("", wrapped))
    if _library(function):
        # A decorator of a library leads to the user's function; what the library's globals hold is not state.
        return found
    defaults = function.__defaults__ or ()
    arguments = function.__code__.co_varnames[: function.__code__.co_argcount]
    found += zip(arguments[len(arguments) - len(defaults) :], defaults, strict=True)
    found += (function.__kwdefaults__ or {}).items()
    names = _names(function.__code__, "GLOBAL", "NAME")
    found.append(("", _Globals(function.__globals__, names)))
    for name in sorted(names):
        module = function.__globals__.get(name)
        if isinstance(module, types.ModuleType) and not _foreign(module.__name__):
            attributes = _names(function.__code__, "ATTR", "METHOD")
            found.append((name, _Globals(vars(module), attributes, f"{name}.")))
    return found


def _of_bare(function: object) -> list[Named]:
    """The function's own cells and plain attributes, where another list says what the state is."""
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, types.MethodType):
        function = function.__func__
    if not isinstance(function, types.FunctionType):
        return []
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return [(name, _Cell(name, cell)) for name, cell in cells if _is_plain(cell)]


def _is_plain(cell: types.CellType) -> bool:
    try:
        return isinstance(cell.cell_contents, (bool, int, float, str, type(None), itertools.count))
    except ValueError:
        return True


def _names(code: types.CodeType, *kinds: str) -> set[str]:
    """The names that code reads or writes as globals or as attributes, nested functions included."""
    names = {each.argval for each in dis.get_instructions(code) if each.opname.endswith(kinds)}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant, *kinds)
    return names


def _methods(kind: type) -> list[types.FunctionType]:
    """The methods of a user's class, which may use globals."""
    functions = []
    for each in kind.__mro__:
        if _foreign(each.__module__):
            continue
        for value in vars(each).values():
            plain = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            if isinstance(plain, types.FunctionType):
                functions.append(plain)
    return functions


def _library(function: types.FunctionType) -> bool:
    """Whether a function is not the user's: what it names is not the state of this training."""
    return _foreign(function.__module__ or "") or "site-packages" in function.__code__.co_filename


def _foreign(module: str) -> bool:
    return module.partition(".")[0] in _NOT_FOLLOWED


def followed(item: object) -> bool:
    """Whether an object's attributes are part of the state."""
    if isinstance(item, (*_KNOWN, *_BAGS)):
        return True
    apart = (type, enum.Enum, BaseException, _Cell, _Globals, Bare, Tensor, dict, list, tuple, set, collections.deque)
    return not (_foreign(type(item).__module__) or isinstance(item, apart))


def _attributes(item: object) -> dict[str, Any]:
    """The attributes of an object, from its dictionary and its slots, without hooks, which are not state."""
    found = {
        key: value
        for key, value in getattr(item, "__dict__", {}).items()
        if not (isinstance(item, _KNOWN) and "_hooks" in key)
    }
    found.update((slot, getattr(item, slot)) for slot in _slots(item) if hasattr(item, slot))
    return found


def _slots(item: object) -> list[str]:
    """The attributes of an object that are not in its dictionary."""
    slots: list[str] = []
    for kind in type(item).__mro__:
        named = vars(kind).get("__slots__", ())
        slots += (named,) if isinstance(named, str) else named
    return [slot for slot in slots if not slot.startswith("__")]


def _keep(item: Any, storages: dict[int, Callable[[], None]]) -> Callable[[], None] | None:
    """What puts an object's own contents back, or None if it has none."""
    numpy = sys.modules.get("numpy")
    if isinstance(item, Tensor):
        return _keep_tensor(item, storages)
    if isinstance(item, dict):
        return _keep_dict(item)
    if isinstance(item, (list, collections.deque)):
        return _keep_sequence(item)
    if isinstance(item, set):
        return _keep_set(item)
    if isinstance(item, _Cell):
        return _keep_cell(item.cell)
    if isinstance(item, _Globals):
        return _keep_globals(item)
    if isinstance(item, torch.Generator):
        return _keep_generator(item)
    if isinstance(item, random.Random):
        return functools.partial(item.setstate, item.getstate())
    if numpy is not None and isinstance(item, numpy.ndarray):
        return functools.partial(numpy.copyto, item, item.copy()) if item.flags.writeable else None
    if numpy is not None and isinstance(item, numpy.random.RandomState):
        return functools.partial(item.set_state, item.get_state())
    if numpy is not None and isinstance(item, numpy.random.Generator):
        return functools.partial(setattr, item.bit_generator, "state", item.bit_generator.state)
    if followed(item):
        return _keep_attributes(item)
    return None


def _keep_tensor(tensor: Tensor, storages: dict[int, Callable[[], None]]) -> Callable[[], None] | None:
    if not tensor.is_leaf or tensor.is_inference():
        # The result of a computation: its name may be bound to another one, but it is not written to.
        return None
    gradient, trained = tensor.grad, tensor.requires_grad
    content = _keep_content(tensor, storages)

    def restore() -> None:
        content()
        if tensor.requires_grad is not trained:
            tensor.requires_grad_(trained)
        if tensor.grad is not gradient:
            tensor.grad = gradient

    return restore


def _keep_content(tensor: Tensor, storages: dict[int, Callable[[], None]]) -> Callable[[], None]:
    """Bytes are kept by storage: views share one, expanded tensors cannot be written to, NaNs stay the same NaNs."""
    data = tensor.detach()
    try:
        storage = data.untyped_storage()
        address = storage.data_ptr()
    except (NotImplementedError, RuntimeError):
        # Sparse tensors and tensors of wrapper classes have no storage of their own.
        clone = data.clone()

        def refill() -> None:
            tensor.data = clone.clone()

        return refill
    if address and address not in storages:
        storages[address] = _keep_storage(storage)

    def rebind() -> None:
        now = tensor.detach()
        if now.untyped_storage().data_ptr() != address or (now.shape, now.stride(), now.storage_offset()) != (
            data.shape,
            data.stride(),
            data.storage_offset(),
        ):
            tensor.data = data

    return rebind


def _keep_storage(storage: torch.UntypedStorage) -> Callable[[], None]:
    saved = torch.UntypedStorage(storage.nbytes(), device=storage.device)  # type: ignore[no-untyped-call]
    saved.copy_(storage)

    def restore() -> None:
        if storage.nbytes() != saved.nbytes():
            storage.resize_(saved.nbytes())
        storage.copy_(saved)

    return restore


def _keep_generator(generator: torch.Generator) -> Callable[[], None]:
    saved = generator.get_state()

    def restore() -> None:
        generator.set_state(saved)

    return restore


def _keep_dict(container: dict[Any, Any]) -> Callable[[], None]:
    saved = dict(container)

    def restore() -> None:
        if not _is_unchanged(container, saved):
            container.clear()
            container.update(saved)

    return restore


def _is_unchanged(now: dict[Any, Any], saved: dict[Any, Any]) -> bool:
    return len(now) == len(saved) and all(
        key is kept and now[key] is value for key, (kept, value) in zip(now, saved.items(), strict=True)
    )


def _keep_sequence(container: list[Any] | collections.deque[Any]) -> Callable[[], None]:
    saved = list(container)

    def restore() -> None:
        container.clear()
        container.extend(saved)

    return restore


def _keep_set(container: set[Any]) -> Callable[[], None]:
    saved = set(container)

    def restore() -> None:
        container.clear()
        container.update(saved)

    return restore


def _keep_cell(cell: types.CellType) -> Callable[[], None]:
    try:
        value = _kept_value(cell.cell_contents)
    except ValueError:
        return functools.partial(_empty, cell)

    def restore() -> None:
        cell.cell_contents = value()

    return restore


def _empty(cell: types.CellType) -> None:
    with contextlib.suppress(ValueError):
        del cell.cell_contents


def _keep_globals(item: _Globals) -> Callable[[], None]:
    saved = {name: _kept_value(item.space[name]) for name in item.names}

    def restore() -> None:
        for name, value in saved.items():
            item.space[name] = value()

    return restore


def _keep_attributes(item: object) -> Callable[[], None]:
    slots = _slots(item)
    saved = {name: _kept_value(value) for name, value in _attributes(item).items()}

    def restore() -> None:
        for name in _attributes(item):
            if name not in saved:
                object.__delattr__(item, name)
        for name, value in saved.items():
            # Not through the class: nn.Module files away what it is given.
            if name in slots:
                object.__setattr__(item, name, value())
            else:
                item.__dict__[name] = value()

    return restore


def _kept_value(value: Any) -> Callable[[], Any]:
    """What gives a value back; a counter counts on from where it was."""
    if isinstance(value, itertools.count):
        # Neither copied nor pickled from Python 3.14 on; what it prints is how to make it.
        arguments = ast.literal_eval(repr(value).removeprefix("count"))
        return lambda: itertools.count(*(arguments if isinstance(arguments, tuple) else (arguments,)))
    return lambda: value


def _add(table: dict[str, Any], name: str, item: object) -> None:
    """Files an object under its name, or under the name with a number where that is taken."""
    free = next(each for n in itertools.count(1) if (each := name if n == 1 else f"{name} ({n})") not in table)
    table[free] = item
