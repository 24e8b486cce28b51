"""Imports and class definitions, found in the bytes of code."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .lines import lines_with

#: Text in brackets up to the first closing bracket, with at most three more opening brackets. The limit bounds the
#: search, because each opening bracket may be a start.
_IMPORT_LIST = rb"\([^()]*(?:\([^()]*){0,3}\)"
_IMPORT = rb"from[ \t]+([.\w]+)[ \t]+import[ \t]+(" + _IMPORT_LIST + rb"|[^\n#]*)|import[ \t]+([^\n#]*)"


def iterate_imports(data: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Yield the imports of code: module, imported name ("" for the module itself), and local name."""
    for module, names in imports_from(data):
        for words in _split_import_list(names):
            yield module, words[0], words[-1]
    for _, modules in _match_imports(b"import", data):
        for words in _split_import_list(modules):
            yield words[0], b"", words[-1] if len(words) > 1 else words[0].partition(b".")[0]


def imports_from(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the modules of ``from`` imports, each with the text of the imported names."""
    return _match_imports(b"from", data)


def taken_names(names: bytes) -> list[bytes]:
    """Return the imported names in the text of a ``from`` import."""
    return [words[0] for words in _split_import_list(names)]


def _match_imports(word: bytes, data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the imports that begin with a word: the module of a ``from`` import or "", and the text of the names."""
    match = re.compile(_IMPORT).match
    for position in lines_with(word, data):
        found = match(data, position)
        if found is not None:
            module, names, modules = found.groups()
            yield module or b"", names or modules or b""


def _split_import_list(text: bytes) -> Iterator[list[bytes]]:
    """Yield the words of each part of an import, separated by commas."""
    for part in re.sub(rb"#[^\n]*", b"", text).strip(b"() ").split(b","):
        words = part.split()
        if words:
            yield words


_CLASS = rb"class\s+(\w+)\s*(" + _IMPORT_LIST + rb")?"


def class_definitions(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the classes that code defines, each with the text of the bases."""
    for position in lines_with(b"class", data):
        match = re.compile(_CLASS).match(data, position)
        if match is not None:
            yield match.group(1), (match.group(2) or b"")[1:-1]


def is_torch(module: bytes) -> bool:
    """Return True if a module is torch or a submodule of torch."""
    return module == b"torch" or module.startswith(b"torch.")


def is_class_without_base(data: bytes, name: bytes) -> bool:
    """Return True if code defines a class of a name that derives from nothing, and so is no module of torch.

    It may be a scheduler or a data set, which take part in other ways.
    """
    if b"class " + name not in data:
        return False
    bases = [bases.strip() for cls, bases in class_definitions(data) if cls == name]
    return bool(bases) and all(each in (b"", b"object") for each in bases)
