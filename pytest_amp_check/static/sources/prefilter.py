"""A first look at a file: what its bytes say before anything is parsed."""

from __future__ import annotations

import os

from . import code_blocks, source_files
from .patterns import Code


class Prescan:
    """What a first look at one file has shown.

    ``speaks`` says whether it may hold a mistake by itself, or does not parse, ``autocast`` whether it may enter
    autocast, ``float16`` and ``lightning16`` whether it speaks of float16, and has a Trainer of Lightning train in it,
    ``resumes`` whether it may load the state of an optimizer. Of a file to be read,
    ``classes`` are those that it defines. Another one is worth reading if a class of its derives from one of these
    (``bases``), or if it imports one of these files (``imports``). What was not looked for is None. ``digest`` stands
    for the content.
    """

    __slots__ = (
        "base_names",
        "class_names",
        "digest",
        "has_lightning16",
        "imported_names",
        "may_enter_autocast",
        "may_have_findings",
        "may_resume",
        "may_use_float16",
        "path",
        "size",
    )

    def __init__(self, path: str, size: int, flags: tuple[bool, bool, bool, bool], *, may_have_findings: bool) -> None:
        self.path = path
        self.size = size
        self.may_enter_autocast, self.may_use_float16, self.has_lightning16, self.may_resume = flags
        self.may_have_findings = may_have_findings
        self.class_names: set[bytes] | None = None
        self.base_names: set[bytes] | None = None
        self.imported_names: set[bytes] | None = None
        self.digest = ""

    def is_sufficient(self, *, named: bool) -> bool:
        """Whether it has looked for all that matters of a file that the user names, or does not."""
        return self.class_names is not None if named or self.may_have_findings else self.base_names is not None


def prescan_file(path: str, *, largest: int, named: bool, valid: set[tuple[str, str]]) -> Prescan:
    """Examine a file, which the user may have named. Raises :class:`.source_files.Unreadable`.

    ``largest`` is how many bytes of code are parsed. ``valid`` are those contents, by their digests and the kind of
    file, that have turned out to be so: many repositories hold a good part of their files more than once.
    """
    data = code_blocks.load_source(path, largest)
    code = Code(code_blocks.code_bytes(path, data))
    # What documentation shows is no part of this project's programs.
    shown = code_blocks.is_markdown(path)
    facts = (code.may_enter_autocast, code.may_use_float16, code.has_lightning16, code.may_resume)
    facts = (False, False, False, False) if shown else facts
    digest = source_files.content_digest(data)
    speaks = code.may_have_findings()
    if not speaks and not named:
        content = digest, os.path.splitext(path)[1]
        speaks = content not in valid and not code_blocks.is_valid(path, data, largest)
        if not speaks:
            valid.add(content)
    seen = Prescan(path, len(data), facts, may_have_findings=speaks)
    if named or seen.may_have_findings:
        seen.class_names = code.class_names()
    else:
        seen.base_names, seen.imported_names = code.base_names(), code.imported_names()
    seen.digest = digest
    return seen
