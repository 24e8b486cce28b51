"""Programs that stand among other things: the cells of a notebook are one, each fenced block of Markdown is one.

A notebook runs cell by cell in one namespace, so its Python cells in order are one program, without what IPython alone
understands: magics, shell commands, help. A block of Markdown shows a piece of code and runs nowhere, so that each is a
program of its own, and one that is not valid Python is no mistake. Other files are one program from end to end.
"""

from __future__ import annotations

import re

from ...protocol.regular_files import LARGEST_DOCUMENT
from . import block, source_files
from .block import Block, find_parse_error
from .patterns import Code
from .source_files import Unreadable
from .tokens import is_dense, refuse_dense

_TILDES = rb"~~~[^\n]*\n?"

# Which files are what.


def is_notebook(path: str) -> bool:
    return path.lower().endswith(".ipynb")


def is_markdown(path: str) -> bool:
    return path.lower().endswith(".md")


def decode_source(path: str, data: bytes) -> str:
    """The text of a file, with a newline character at the end of each line; see :func:`.source_files.decode`."""
    if is_markdown(path):
        # Documentation in another encoding is documentation all the same, and its code is ASCII nearly always.
        return source_files.normalize_newlines(data.decode("utf-8-sig", "replace"))
    if is_notebook(path):
        return source_files.decode_utf8(data)
    return source_files.decode_python(data)


def load_source(path: str, largest: int) -> bytes:
    """Return the bytes of a file. Raise :class:`Unreadable` for more of them than are parsed, or read of a document."""
    return source_files.load_bytes(path, LARGEST_DOCUMENT if is_notebook(path) or is_markdown(path) else largest)


def split_blocks(path: str, text: str, largest: int = 0) -> list[Block]:
    """The programs in the text of a file.

    Raises :class:`Unreadable` for a notebook that is none, and for more code than is parsed (0 is for no limit): what
    else a document holds does not count.
    """
    if is_notebook(path):
        from . import notebooks

        found = notebooks.split_programs(text, largest)
        source_files.refuse_large(max((len(each.text) for each in found), default=0), largest)
        return found
    if is_markdown(path):
        from . import markdown

        shown = markdown.python_blocks(source_files.normalize_newlines(text))
        source_files.refuse_large(sum(len(each.text) for each in shown), largest)
        refuse_dense("\n".join(each.text for each in shown), largest)
        found = []
        for each in shown:
            if not _may_have_findings(each.text):
                continue
            each.parse_error = find_parse_error(each.text)
            # What no Python accepts is an excerpt, and no program.
            if each.parse_error is None or each.parse_error.python_version:
                found.append(each)
        return found
    source_files.refuse_large(len(text), largest)
    refuse_dense(text, largest)
    return [Block(text)]


def _may_have_findings(text: str) -> bool:
    return Code(text.encode("utf-8", "replace")).may_have_findings()


def code_bytes(path: str, data: bytes) -> bytes:
    """What of a file may be Python, to be looked at before it is parsed; all of it, where that cannot be told.

    A notebook is mostly what its cells have put out, in megabytes of pictures. Its JSON is parsed all the same: that
    takes 10 ms per megabyte, and searching it for every word that matters takes 20 ms.
    """
    if is_notebook(path):
        from . import notebooks

        try:
            found = [source for _, source in notebooks.code_cells(decode_source(path, data))]
        except Unreadable:
            return data
    elif is_markdown(path):
        # Of tildes all that stand in a row are taken at once: each would be looked behind for itself.
        if not (re.search(rb"```[^\n`]*[pP][yY]", data) or re.search(rb"(?i)py", b"".join(re.findall(_TILDES, data)))):
            return b""
        from . import markdown

        found = [each.text for each in markdown.python_blocks(decode_source(path, data))]
    else:
        return data
    return "\n".join(found).encode("utf-8", "replace")


def is_valid(path: str, data: bytes, largest: int) -> bool:
    """Whether reading a file would find it to be valid, which need not be read for anything else.

    The parser may refuse more than is invalid: reading tells. Its warnings are left on.
    """
    if is_markdown(path):
        return True
    if is_notebook(path):
        try:
            return not any(each.parse_error for each in split_blocks(path, decode_source(path, data), largest))
        except Unreadable:
            return False
    try:
        text = source_files.decode_python(data)
        # Nothing in it matters, so that it is not worth a gigabyte to learn whether it is valid.
        return is_dense(text) or block.is_parsable(text)
    except Unreadable:
        return False


def notebook_cells(text: str) -> dict[int, str]:
    """The source of each code cell of a notebook by its number; none of a file that is no notebook."""
    from . import notebooks

    try:
        return dict(notebooks.code_cells(text))
    except Unreadable:
        return {}
