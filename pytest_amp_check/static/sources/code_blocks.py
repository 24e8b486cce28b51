"""Code blocks of a file: the cells of a notebook form one program, and each fenced Markdown block is a program.

A notebook runs cell by cell in one namespace, so its Python cells in order are one program. IPython syntax is removed:
magics, shell commands, help. A Markdown block shows an excerpt and never runs, so each block is a separate program, and
an invalid block is no mistake. Every other file is one program.
"""

from __future__ import annotations

import re

from ...protocol.regular_files import LARGEST_DOCUMENT
from . import configurations, source_files
from .block import Block, find_parse_error
from .patterns.code import Code
from .source_files import Unreadable
from .tokens import refuse_dense

_TILDES = rb"~~~[^\n]*\n?"

# Kinds of files.


def is_notebook(path: str) -> bool:
    return path.lower().endswith(".ipynb")


def is_markdown(path: str) -> bool:
    return path.lower().endswith(".md")


def decode_source(path: str, data: bytes) -> str:
    """Return the text of a file, with a newline character at each line end; see :func:`.source_files.decode_python`."""
    if is_markdown(path):
        # Documentation in another encoding is still documentation, and its code is nearly always ASCII.
        return source_files.normalize_newlines(data.decode("utf-8-sig", "replace"))
    if is_notebook(path) or configurations.is_configuration(path):
        return source_files.decode_utf8(data)
    return source_files.decode_python(data)


def load_source(path: str, largest: int) -> bytes:
    """Return the bytes of a file. Raise :class:`Unreadable` above the size limit of source or documents."""
    is_document = is_notebook(path) or is_markdown(path) or configurations.is_configuration(path)
    return source_files.load_bytes(path, LARGEST_DOCUMENT if is_document else largest)


def split_blocks(path: str, text: str, largest: int = 0) -> list[Block]:
    """Return the code blocks in the text of a file.

    Raise :class:`Unreadable` for an invalid notebook, and for code above ``largest`` bytes (0 is no limit). Only code
    counts, not the rest of a document.
    """
    if is_notebook(path):
        from . import notebooks

        found = notebooks.split_programs(text, largest)
        for each in found:
            source_files.refuse_large(len(each.text), largest)
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
            # A block that no Python accepts is an excerpt and no program.
            if each.parse_error is None or each.parse_error.python_version:
                found.append(each)
        return found
    source_files.refuse_large(len(text), largest)
    refuse_dense(text, largest)
    return [Block(text)]


def _may_have_findings(text: str) -> bool:
    return Code(text.encode("utf-8", "replace")).may_have_findings()


def code_bytes(path: str, data: bytes) -> bytes:
    """Return the bytes of a file that may be Python, for the prescan; a null byte if the code cannot be located.

    A notebook consists mostly of cell outputs, such as megabytes of pictures. Its JSON is still parsed: parsing takes
    10 ms per megabyte, and a search for all words takes 20 ms.
    """
    if is_notebook(path):
        from . import notebooks

        try:
            found = [source for _, source in notebooks.code_cells(decode_source(path, data))]
        except Unreadable:
            return b"\0"
    elif is_markdown(path):
        # A run of tildes is matched as a whole; otherwise the search would scan from each tilde.
        if not (re.search(rb"```[^\n`]*[pP][yY]", data) or re.search(rb"(?i)py", b"".join(re.findall(_TILDES, data)))):
            return b""
        from . import markdown

        found = [each.text for each in markdown.python_blocks(decode_source(path, data))]
    elif configurations.is_configuration(path):
        return b""
    else:
        return data
    return "\n".join(found).encode("utf-8", "replace")


def notebook_cells(text: str) -> dict[int, str]:
    """Return the source of each code cell of a notebook by number; an empty dict for other files."""
    from . import notebooks

    try:
        return dict(notebooks.code_cells(text))
    except Unreadable:
        return {}
