"""Shell completion scripts for the commands and flags of amp-check."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser

#: Shells supported by shtab.
SHELLS = ("bash", "zsh", "fish", "tcsh", "powershell")


class CompletionUnavailable(Exception):
    """Error for a missing script generator; the message is one sentence."""


def make_script(parser: ArgumentParser, shell: str) -> str:
    """Return the completion script of a shell, generated from the parser."""
    try:
        import shtab
    except ImportError:
        raise CompletionUnavailable("completion needs shtab: pip install 'pytest-amp-check[completion]'") from None
    return str(shtab.complete(parser, shell))
