"""How torch is patched: rows that say which calls a recorder is notified of, and one way to install them.

Patches stand on classes, and on module globals that torch itself looks up when it is called, so that names which a
program has imported early (``from torch.nn.utils import clip_grad_norm_``) are seen as well. Where a program may keep
a bound method (``step = scaler.step``), which looks nothing up, the code of the function is exchanged. Each hands a
call on at once in threads that do not record.
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
#: Called with a recorder, what the call returned or raised, and its arguments.
After = Callable[..., object]


class Patch(NamedTuple):
    """A function of torch, and how recorders are notified of its calls.

    ``before`` is called first, then the function, then ``after`` with the result or ``failed`` with the error.
    """

    owner: Any
    name: str
    on_call: Before | None = None
    on_return: After | None = None
    on_error: After | None = None
    #: Whether torch's own calls are passed over.
    only_user_calls: bool = False
    #: Whether code that is being compiled may call it, which is passed over.
    may_be_compiled: bool = False
    #: Makes what stands in its place, where that is more than telling of calls; none of the above counts then.
    make_wrapper: Callable[[Any], Any] | None = None
    #: Whether a program may keep the method bound to its object.
    may_be_bound: bool = False


class PatchSet:
    """What is patched now."""

    def __init__(self) -> None:
        #: (object, name, what stood there, what stands there), in the order of installation.
        self._replacements: list[tuple[Any, str, Any, Any]] = []
        #: Functions whose code is exchanged, and their own.
        self._swapped_code: list[tuple[FunctionType, CodeType]] = []

    def install_patches(self, patches: Iterable[Patch]) -> None:
        """Patch what exists in this version of torch."""
        for patch in patches:
            original = getattr(patch.owner, patch.name, None)
            if patch.may_be_bound and isinstance(original, FunctionType) and original.__closure__ is None:
                self._swap_code(original, patch)
            elif original is not None:
                value = (
                    patch.make_wrapper(original) if patch.make_wrapper is not None else _make_notifier(original, patch)
                )
                self._set_attribute(
                    patch.owner, patch.name, functools.wraps(original)(value) if callable(value) else value
                )

    def has_patches(self, owner: Any) -> bool:
        """Whether anything of a class or a module is patched."""
        return any(row[0] is owner for row in self._replacements)

    def _swap_code(self, function: FunctionType, patch: Patch) -> None:
        """Put other code into a function, which calls what stands in its place."""
        original = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)
        original.__kwdefaults__, original.__annotations__ = function.__kwdefaults__, function.__annotations__
        value = _make_notifier(original, patch, depth=3)
        self._swapped_code.append((function, function.__code__))
        # It is what signatures are read from.
        function.__wrapped__ = original  # type: ignore[attr-defined]
        # Code that is being compiled calls it as it calls what torch.compiler.disable has marked: not as a part of it.
        function._torchdynamo_disable = True  # type: ignore[attr-defined]
        consts = tuple(value if const == _VALUE else const for const in _call_replacement.__code__.co_consts)
        function.__code__ = _call_replacement.__code__.replace(co_consts=consts)
        never_compile(function)
        never_compile(value)

    def _set_attribute(self, owner: Any, name: str, value: Any) -> None:
        original = vars(owner).get(name, _MISSING)
        self._replacements.append((owner, name, original, value))
        setattr(owner, name, value)
        never_compile(value)
        # TorchScript knows builtin functions by their identity: what stands there meanwhile is the same op.
        op = _script_ops().get(id(original))
        if op is not None:
            _script_ops()[id(value)] = op

    def remove_patches(self) -> None:
        """Put back all, the latest first."""
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
    """The functions that TorchScript knows, by their identities, and the ops that they are."""
    table: dict[int, str] = torch.jit._builtins._get_builtin_table()  # type: ignore[no-untyped-call]
    return table


def never_compile(function: Any) -> None:
    """Have a function, and what it calls, run as they are where compiled code hands back what it cannot trace."""
    eval_frame: Any = torch._C._dynamo.eval_frame
    code = getattr(function, "__code__", None)
    if code is None:
        return
    if hasattr(eval_frame, "set_code_exec_strategy"):
        skip = eval_frame._FrameAction.SKIP
        eval_frame.set_code_exec_strategy(code, eval_frame._FrameExecStrategy(skip, skip))
    else:  # before torch 2.7
        eval_frame.skip_code(code)


#: A constant that no other piece of code has.
_VALUE: Any = "what stands in the place of a function"


def _call_replacement(*args: Any, **kwargs: Any) -> Any:
    """What a function does whose code is exchanged: its constant is another function then."""
    value: Any = "what stands in the place of a function"
    return value(*args, **kwargs)


def _make_notifier(original: Any, patch: Patch, depth: int = 2) -> Callable[..., Any]:
    """A function that calls another one and notifies the recorders of this thread.

    ``depth`` is how many frames above what looks for it the caller is.
    """
    _, _, on_call, on_return, on_error, only_user_calls, may_be_compiled, _, _ = patch

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
                # A listener raises nothing: the arguments do not fit, and torch is to say so itself.
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
    """Whether the patched function was called by torch itself; what an emulation puts around it does not count."""
    frame = sys._getframe(depth)
    if frame.f_code.co_filename == _REDIRECTS and frame.f_back is not None:
        frame = frame.f_back
    return is_inner(frame.f_code.co_filename)
