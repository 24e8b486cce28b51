"""The patches of torch: rows that define the calls a recorder is notified of, and the installation of the rows.

Patches are set on classes, and on module globals that torch looks up at each call. So calls by names that a program has
imported early (``from torch.nn.utils import clip_grad_norm_``) are also seen. If a program may keep a bound method
(``step = scaler.step``), a lookup happens only once, so the code of the function is exchanged instead. In threads
without a recording, a patch passes the call on immediately.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import torch

from ..active import THREAD
from ..sites import is_inner

_MISSING = object()
_RUNTIME = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_REDIRECTS = os.path.join(_RUNTIME, "emulate", "redirects.py")

#: Called with a recorder and the arguments of the call.
Before = Callable[..., object]
#: Called with a recorder, the result or exception of the call, and its arguments.
After = Callable[..., object]


class Patch(NamedTuple):
    """A function of torch, and the notifications of its calls.

    ``on_call`` is called first, then the function, then ``on_return`` with the result or ``on_error`` with the
    exception.
    """

    owner: Any
    name: str
    on_call: Before | None = None
    on_return: After | None = None
    on_error: After | None = None
    #: True if calls by torch itself are ignored.
    only_user_calls: bool = False
    #: True if code that is being compiled may call the function. Such calls are ignored.
    may_be_compiled: bool = False
    #: Creates the replacement if more than notifications is needed. The callbacks above are then not used.
    make_wrapper: Callable[[Any], Any] | None = None
    #: True if a program may keep the method bound to its object.
    may_be_bound: bool = False
    #: True if the replacement is outside of compiled code, and what it calls is compiled.
    compiles_callees: bool = False


class PatchSet:
    """The currently installed patches."""

    def __init__(self) -> None:
        #: (owner, name, original, replacement), in the order of installation.
        self._replacements: list[tuple[Any, str, Any, Any]] = []
        #: Functions with exchanged code, and their original code.
        self._swapped_code: list[tuple[FunctionType, CodeType]] = []

    def install_patches(self, patches: Iterable[Patch]) -> None:
        """Install the patches of functions that exist in this version of torch."""
        for patch in patches:
            original = getattr(patch.owner, patch.name, None)
            if patch.may_be_bound and isinstance(original, FunctionType) and original.__closure__ is None:
                self._swap_code(original, patch)
            elif original is not None:
                value = (
                    patch.make_wrapper(original) if patch.make_wrapper is not None else _make_notifier(original, patch)
                )
                self._set_attribute(
                    patch.owner,
                    patch.name,
                    functools.wraps(original)(value) if callable(value) else value,
                    compiles_callees=patch.compiles_callees,
                )

    def has_patches(self, owner: Any) -> bool:
        """Return True if an attribute of a class or module is patched."""
        return any(row[0] is owner for row in self._replacements)

    def _swap_code(self, function: FunctionType, patch: Patch) -> None:
        """Exchange the code of a function for code that calls the replacement."""
        original = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)
        original.__kwdefaults__, original.__annotations__ = function.__kwdefaults__, function.__annotations__
        # Torch's own error messages contain it. Before Python 3.11 it is not part of the code.
        original.__qualname__ = function.__qualname__
        value = _make_notifier(original, patch, depth=3)
        self._swapped_code.append((function, function.__code__))
        # Signatures are read from __wrapped__.
        function.__wrapped__ = original  # type: ignore[attr-defined]
        # Code that is being compiled treats the function like a function marked by torch.compiler.disable: it is not
        # inlined.
        function._torchdynamo_disable = True  # type: ignore[attr-defined]
        consts = tuple(value if const == _VALUE else const for const in _call_replacement.__code__.co_consts)
        function.__code__ = _call_replacement.__code__.replace(co_consts=consts)
        never_compile(function)
        never_compile(value)

    def _set_attribute(self, owner: Any, name: str, value: Any, *, compiles_callees: bool) -> None:
        original = vars(owner).get(name, _MISSING)
        self._replacements.append((owner, name, original, value))
        setattr(owner, name, value)
        never_compile(value, compiles_callees=compiles_callees)
        # TorchScript identifies builtin functions by id, so the replacement is registered as the same op.
        op = _script_ops().get(id(original))
        if op is not None:
            _script_ops()[id(value)] = op

    def remove_patches(self) -> None:
        """Remove all patches in reverse order."""
        while self._swapped_code:
            function, code = self._swapped_code.pop()
            function.__code__ = code
            del function.__wrapped__, function._torchdynamo_disable  # type: ignore[attr-defined]
        while self._replacements:
            owner, name, original, value = self._replacements.pop()
            _script_ops().pop(id(value), None)
            if original is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, original)


INSTALLED = PatchSet()


def _script_ops() -> dict[int, str]:
    """Return TorchScript's table: ``id`` of a function to the op."""
    table: dict[int, str] = torch.jit._builtins._get_builtin_table()  # type: ignore[no-untyped-call]
    return table


def never_compile(function: Any, *, compiles_callees: bool = False) -> None:
    """Exclude a function from compilation, and all callees unless ``compiles_callees``.

    Needed where compiled code returns untraceable calls to Python.
    """
    eval_frame: Any = torch._C._dynamo.eval_frame
    code = getattr(function, "__code__", None)
    if code is None:
        return
    if hasattr(eval_frame, "set_code_exec_strategy"):
        actions = eval_frame._FrameAction
        of_callees = actions.DEFAULT if compiles_callees else actions.SKIP
        eval_frame.set_code_exec_strategy(code, eval_frame._FrameExecStrategy(actions.SKIP, of_callees))
    else:  # before torch 2.7
        eval_frame.skip_code(code)


#: A constant that no other code contains.
_VALUE: Any = "what stands in the place of a function"


def _call_replacement(*args: Any, **kwargs: Any) -> Any:
    """Call the replacement of a function. The constant in this code is replaced by the replacement function."""
    value: Any = "what stands in the place of a function"
    return value(*args, **kwargs)


def _make_notifier(original: Any, patch: Patch, depth: int = 2) -> Callable[..., Any]:
    """Return a function that calls ``original`` and notifies the recorders of this thread.

    ``depth`` is the number of frames from :func:`is_called_by_torch` up to the caller.
    """
    _, _, on_call, on_return, on_error, only_user_calls, may_be_compiled, *_ = patch

    def patched_function(*args: Any, **kwargs: Any) -> Any:
        if may_be_compiled and torch.compiler.is_compiling():
            return original(*args, **kwargs)
        recorders = THREAD.active_recorders
        if not recorders or (only_user_calls and is_called_by_torch(depth)):
            return original(*args, **kwargs)
        if on_call is not None:
            try:
                for recorder in recorders:
                    on_call(recorder, *args, **kwargs)
            except TypeError:
                # A listener never raises, so a TypeError means that the arguments do not fit. torch raises its own
                # error.
                return original(*args, **kwargs)
        try:
            result = original(*args, **kwargs) if kwargs else original(*args)
        except BaseException as error:
            if on_error is not None:
                for recorder in recorders:
                    on_error(recorder, error, *args, **kwargs)
            raise
        if on_return is not None:
            for recorder in recorders:
                on_return(recorder, result, *args, **kwargs)
        return result

    return patched_function


def is_called_by_torch(depth: int = 2) -> bool:
    """Return True if torch itself called the patched function. Wrappers of the emulation do not count."""
    frame = sys._getframe(depth)
    if frame.f_code.co_filename == _REDIRECTS and frame.f_back is not None:
        frame = frame.f_back
    return is_inner(frame.f_code.co_filename)
