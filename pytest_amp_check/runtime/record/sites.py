"""Source locations of calls in the user's code."""

from __future__ import annotations

import ast
import concurrent.futures
import contextlib
import functools
import linecache
import os
import sys
import threading
import traceback
from collections.abc import Sequence
from types import CodeType, FrameType, TracebackType

import torch

from ...protocol.frameworks import RUN_PACKAGES
from ...protocol.sites import Site
from .instructions import Span, instruction_span

#: Largest number of calls that a location keeps of its call chain.
DEPTH = 40

_OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_DISTRIBUTED = os.path.join(_TORCH, "distributed") + os.sep
#: Path prefixes of code between a user's line and the called function: torch, this package, and parts of Python.
_INNER = (
    _OURS,
    _TORCH,
    os.path.join(os.path.dirname(os.path.dirname(_TORCH)), "functorch") + os.sep,
    "<frozen ",
    "<eval_with_key>",
    contextlib.__file__,
    threading.__file__,
    os.path.dirname(concurrent.futures.__file__) + os.sep,
)


class _InnerPathCache(dict[str, bool]):
    """A cache of source paths: True if the file belongs to torch or this package and not to the user."""

    def __missing__(self, path: str) -> bool:
        internal = self[path] = path.startswith(_INNER)
        return internal


_inner_paths = _InnerPathCache()
#: A position in code: the code object and an instruction offset.
Position = tuple[CodeType, int]


def is_inner(path: str) -> bool:
    """Return True if a source file belongs to torch or this package and not to the user."""
    return _inner_paths[path]


def stop_position(error: BaseException) -> tuple[str, int] | None:
    """Return the position at which an exception ended the program, or None if other processes are the cause."""
    position = None
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    if isinstance(error, SystemExit) or any(path.startswith(_DISTRIBUTED) for path, _ in frames):
        return None
    for path, line in frames:
        if not (is_inner(path) or is_library(path)):
            position = path, line
    return position


def is_ours(path: str) -> bool:
    """Return True if a source file belongs to this package."""
    return path.startswith(_OURS)


def drop_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of this package."""
    if trace is None:
        return None
    rest = drop_own_frames(trace.tb_next)
    if is_ours(trace.tb_frame.f_code.co_filename):
        return rest
    return TracebackType(rest, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


def innermost_user_site(site: Site) -> Site:
    """Return the innermost location of a call chain outside of installed libraries, or ``site`` if there is none."""
    each: Site | None = site
    while each is not None:
        if not is_library(each.path):
            return each
        each = each.caller
    return site


def calling_framework(site: Site) -> str:
    """Return the framework whose code calls torch at a location on behalf of the program, or ""."""
    name = ""
    each: Site | None = site
    while each is not None and is_library(each.path):
        name = _framework_of(each.path) or name
        each = each.caller
    return name


@functools.lru_cache(maxsize=1024)
def _framework_of(path: str) -> str:
    """Return the loaded framework to which a source file belongs, or ""."""
    for package, name in RUN_PACKAGES.items():
        folders = getattr(sys.modules.get(package), "__path__", ())
        if any(path.startswith(os.path.join(folder, "")) for folder in folders):
            return name
    return ""


@functools.lru_cache(maxsize=4096)
def is_library(path: str) -> bool:
    """Return True if a source file belongs to a loaded framework or an installed distribution."""
    if _framework_of(path):
        return True
    return f"{os.sep}site-packages{os.sep}" in path or f"{os.sep}dist-packages{os.sep}" in path


def own_positions(frame: FrameType) -> tuple[Position, ...]:
    """Return the position in a frame and, for a frame of a library, the position of the program's call of the library.

    Positions are innermost first.
    """
    position = frame.f_code, frame.f_lasti
    if not is_library(frame.f_code.co_filename):
        return (position,)
    caller = frame.f_back
    while caller is not None and (is_inner(caller.f_code.co_filename) or is_library(caller.f_code.co_filename)):
        caller = caller.f_back
    return (position,) if caller is None else (position, (caller.f_code, caller.f_lasti))


def calling_frame() -> FrameType:
    """Return the frame, of a user or of torch, that called into this package."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_OURS) and frame.f_back is not None:
        frame = frame.f_back
    return frame


class SiteFinder:
    """A finder of the location of the running call. Equal locations with equal call chains are the same object."""

    def __init__(self, outermost: FrameType | None) -> None:
        self.show_from(outermost)
        #: Ids of code objects with offsets, innermost first, to the location. _kept_codes keeps the code objects alive.
        self._sites_by_calls: dict[tuple[int, ...], Site] = {}
        self._kept_codes: dict[int, CodeType] = {}

    def show_from(self, outermost: FrameType | None) -> None:
        """Set the outermost visible frame, in which the recording began. Calls above the frame are hidden."""
        self._outermost_code = None if outermost is None else outermost.f_code

    def current_site(self) -> Site:
        """Return the user's current location."""
        inner = _inner_paths
        # The three innermost frames are always ours: the listener, its guard, and the function that a patch or hook
        # calls.
        frame: FrameType | None = sys._getframe(3)
        outermost = self._outermost_code
        key: list[int] = []
        codes: list[CodeType] = []
        while frame is not None:
            code = frame.f_code
            if not inner[code.co_filename]:
                key += (id(code), frame.f_lasti)
                codes.append(code)
            if code is outermost:
                break
            frame = frame.f_back
        # The chain is cut at the end, because this code runs at every event and most chains are shorter than DEPTH.
        return self._find_site(key[: 2 * DEPTH], codes)

    def site_of_calls(self, calls: Sequence[tuple[CodeType, int]]) -> Site:
        """Return the location of a call chain: (code object, instruction offset) pairs, innermost first."""
        key: list[int] = []
        codes: list[CodeType] = []
        for code, instruction in calls[:DEPTH]:
            key += (id(code), instruction)
            codes.append(code)
            if code is self._outermost_code:
                break
        return self._find_site(key, codes)

    def _find_site(self, key: list[int], codes: list[CodeType]) -> Site:
        """Return the location of a call chain: ids of code objects with offsets, and the code objects."""
        site = self._sites_by_calls.get(tuple(key))
        return site if site is not None else self._make_site(key, codes)

    def site_of_definition(self, code: CodeType) -> Site:
        """Return the location of a function's definition, or of its first decorator."""
        self._kept_codes[id(code)] = code
        key = (id(code),)
        site = self._sites_by_calls.get(key)
        if site is None:
            site = self._sites_by_calls[key] = Site(
                code.co_filename, code.co_firstlineno, function=_qualified_name(code)
            )
        return site

    def _make_site(self, key: list[int], codes: list[CodeType]) -> Site:
        if not key:
            return self._sites_by_calls.setdefault((), Site("<unknown>", 1))
        caller = None
        for i in range(len(key) - 2, -2, -2):
            chain = tuple(key[i:])
            site = self._sites_by_calls.get(chain)
            if site is None:
                code, lasti = codes[i // 2], key[i + 1]
                self._kept_codes[id(code)] = code
                line, column, end_line, end_column = self._instruction_span(code, lasti)
                site = Site(code.co_filename, line, column, end_line, end_column, _qualified_name(code), caller)
                self._sites_by_calls[chain] = site
            caller = site
        assert caller is not None
        return caller

    @staticmethod
    def _instruction_span(code: CodeType, lasti: int) -> Span:
        line = _line_of(code, lasti)
        span = instruction_span(code, lasti, line)
        if span is None:
            return line, 0, line, 0
        # Columns of code objects count bytes, and columns of locations count characters.
        line, column, end_line, end_column = span
        return line, _character_column(code, line, column), end_line, _character_column(code, end_line, end_column)


def _qualified_name(code: CodeType) -> str:
    """Return the name of a function with those of the classes and functions around it."""
    name: str | None = getattr(code, "co_qualname", None)
    # Python 3.10 keeps only the last name.
    return name or _names_in_file(code.co_filename).get((code.co_firstlineno, code.co_name), code.co_name)


@functools.lru_cache(maxsize=64)
def _names_in_file(path: str) -> dict[tuple[int, str], str]:
    """Return the qualified names of the functions in a source file, by the first line and the name."""
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return {}
    names: dict[tuple[int, str], str] = {}
    todo: list[tuple[ast.AST, str]] = [(tree, "")]
    while todo:
        node, around = todo.pop()
        inside = around
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            names[first, node.name] = around + node.name
            inside = f"{around}{node.name}.<locals>."
        elif isinstance(node, ast.ClassDef):
            inside = f"{around}{node.name}."
        todo.extend((child, inside) for child in ast.iter_child_nodes(node))
    return names


def _line_of(code: CodeType, lasti: int) -> int:
    for start, end, line in code.co_lines():
        if start <= lasti < end and line is not None:
            return line
    return code.co_firstlineno


def _character_column(code: CodeType, line: int, column: int) -> int:
    text = linecache.getline(code.co_filename, line)
    return column if text.isascii() else len(text.encode("utf-8")[:column].decode("utf-8", "replace"))
