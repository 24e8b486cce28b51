"""Messages of torch as data: patterns, meaning, causes and remedies."""

from __future__ import annotations

from ..fast_namedtuple import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from re import Match
    from typing import Any


class Message(NamedTuple):
    """An exception or warning of torch that mixed precision may cause.

    - ``name``: kebab-case name in this catalogue.
    - ``text``: text as torch prints the message, with ``...`` for parts of the program.
    - ``patterns``: regular expressions; any match identifies the message in text with single blanks and no backticks.
    - ``raised_by``: exception class and raising function, in one clause of Markdown.
    - ``meaning``: explanation of the message, a short paragraph.
    - ``causes``: causes, the most frequent first, each with a remedy: sentences.
    - ``rule_codes``: codes of the rules that find the mistake before torch does, or in addition.
    - ``sources``: sources of the claims.
    """

    name: str
    text: str
    patterns: tuple[str, ...]
    raised_by: str
    meaning: str
    causes: tuple[tuple[str, str], ...]
    rule_codes: tuple[str, ...]
    sources: tuple[str, ...]

    def find_match(self, text: str) -> Match[str] | None:
        """Return the last match of the message in a text, or None."""
        import re

        found = [match for pattern in self.patterns for match in re.finditer(pattern, text, re.IGNORECASE)]
        return max(found, key=lambda match: match.start()) if found else None

    def as_dict(self) -> dict[str, Any]:
        """Return the message as plain data."""
        return {
            "name": self.name,
            "text": self.text,
            "raised": self.raised_by,
            "says": self.meaning,
            "causes": [{"cause": cause, "remedy": remedy} for cause, remedy in self.causes],
            "rules": list(self.rule_codes),
            "sources": list(self.sources),
        }


def parse_primitive(text: str) -> str:
    """Return the primitive in an oneDNN message, such as "LSTM forward propagation"."""
    import re

    found = re.search(r"for (?:the|an?) ([\w ]{1,80}?) primitive", text)
    return found[1] if found else "a primitive of oneDNN"
