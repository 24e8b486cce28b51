"""A first look at a file: what its bytes say before anything is parsed."""

from __future__ import annotations

import os

from . import programs, source_files
from .patterns import Code


class Prefiltered:
    """What a first look at one file has shown.

    ``speaks`` says whether it may hold a mistake by itself, or does not parse, ``autocast`` whether it may enter
    autocast, ``float16`` and ``lightning16`` whether it speaks of float16, and has a Trainer of Lightning train in it,
    ``resumes`` whether it may load the state of an optimizer. Of a file to be read,
    ``classes`` are those that it defines. Another one is worth reading if a class of its derives from one of these
    (``bases``), or if it imports one of these files (``imports``). What was not looked for is None. ``digest`` stands
    for the content.
    """

    __slots__ = (
        "autocast",
        "bases",
        "classes",
        "digest",
        "float16",
        "imports",
        "lightning16",
        "path",
        "resumes",
        "size",
        "speaks",
    )

    def __init__(self, path: str, size: int, facts: tuple[bool, bool, bool, bool], *, speaks: bool) -> None:
        self.path = path
        self.size = size
        self.autocast, self.float16, self.lightning16, self.resumes = facts
        self.speaks = speaks
        self.classes: set[bytes] | None = None
        self.bases: set[bytes] | None = None
        self.imports: set[bytes] | None = None
        self.digest = ""

    def suffices(self, *, named: bool) -> bool:
        """Whether it has looked for all that matters of a file that the user names, or does not."""
        return self.classes is not None if named or self.speaks else self.bases is not None


def examine(path: str, *, largest: int, named: bool, valid: set[tuple[str, str]]) -> Prefiltered:
    """Examine a file, which the user may have named. Raises :class:`.source_files.Unreadable`.

    ``largest`` is how many bytes of code are parsed. ``valid`` are those contents, by their digests and the kind of
    file, that have turned out to be so: many repositories hold a good part of their files more than once.
    """
    data = programs.load(path, largest)
    code = Code(programs.code(path, data))
    # What documentation shows is no part of this project's programs.
    shown = programs.is_markdown(path)
    facts = (code.autocast, code.float16, code.lightning16, code.resumes)
    facts = (False, False, False, False) if shown else facts
    digest = source_files.digest(data)
    speaks = code.speaks()
    if not speaks and not named:
        content = digest, os.path.splitext(path)[1]
        speaks = content not in valid and not programs.parses(path, data, largest)
        if not speaks:
            valid.add(content)
    seen = Prefiltered(path, len(data), facts, speaks=speaks)
    if named or seen.speaks:
        seen.classes = code.classes()
    else:
        seen.bases, seen.imports = code.bases(), code.imports()
    seen.digest = digest
    return seen
