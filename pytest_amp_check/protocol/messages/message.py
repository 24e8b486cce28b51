"""A message of torch is data: how it is recognised, what it means, what it comes from, and what to do."""

from __future__ import annotations

from ..fast_namedtuple import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from re import Match
    from typing import Any


class Message(NamedTuple):
    """One exception or warning of torch that mixed precision leads to.

    name      what it is called here, in kebab-case.
    text      as torch prints it, ``...`` where it fills in something of the program.
    patterns  regular expressions, any of which recognises it in text with single blanks and no backticks.
    raised    its class, and by what it is raised, in one clause of Markdown.
    says      what torch means by it, a short paragraph.
    causes    what leads there, the most frequent first, each with what to do: sentences.
    rules     codes of the rules that find such a mistake before torch does, or beside it.
    sources   where the claims come from.
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
        """Where the text last shows this message, or None."""
        import re

        found = [match for pattern in self.patterns for match in re.finditer(pattern, text, re.IGNORECASE)]
        return max(found, key=lambda match: match.start()) if found else None

    def as_dict(self) -> dict[str, Any]:
        """The message as plain data."""
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
    """Return the primitive that a message of oneDNN names, such as "LSTM forward propagation"."""
    import re

    found = re.search(r"for (?:the|an?) ([\w ]{1,80}?) primitive", text)
    return found[1] if found else "a primitive of oneDNN"
