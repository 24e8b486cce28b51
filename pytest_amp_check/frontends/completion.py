"""Scripts that complete the commands and flags of amp-check in a shell."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser

#: The shells that shtab writes scripts for.
SHELLS = ("bash", "zsh", "fish", "tcsh", "powershell")


class CompletionUnavailable(Exception):
    """What writes the scripts is not installed; the message is one sentence."""


def make_script(parser: ArgumentParser, shell: str) -> str:
    """The script for one shell, made from the parser itself."""
    try:
        import shtab
    except ImportError:
        raise CompletionUnavailable("completion needs shtab: pip install 'pytest-amp-check[completion]'") from None
    return str(shtab.complete(parser, shell))
