"""The catalogue of torch's messages that users of mixed precision meet, and how one is found in what they paste."""

from __future__ import annotations

from . import dtypes, scaling, training
from .message import Message

__all__ = ["MESSAGES", "Message", "find_messages", "find_similar"]

#: By name, in the order in which they are listed.
MESSAGES: dict[str, Message] = {
    message.name: message for table in (scaling, dtypes, training) for message in table.MESSAGES
}
#: How like a message a text has to be for it to be offered: the weight of the words that both have, of that of all.
LIKE = 0.3
#: Messages that are offered where none is recognised.
OFFERED = 3
#: Letters of a word of a text that are looked at.
LONGEST = 400
#: What colours a terminal.
_COLOURS = r"\x1b\[[0-9;]*m"
#: Quotes that web pages have in the place of plain ones; Markdown loses backticks.
_QUOTES = {0x2018: "'", 0x2019: "'", 0x201C: '"', 0x201D: '"', 0x60: None}


def find_messages(text: str) -> list[Message]:
    """The messages that a text shows, or names, the last first: of a traceback what has ended the program."""
    plain = _normalize_text(text)
    if plain in MESSAGES:
        return [MESSAGES[plain]]
    found = [(match.start(), message) for message in MESSAGES.values() if (match := message.find_match(plain))]
    return [message for _, message in sorted(found, key=lambda pair: -pair[0])]


def find_similar(text: str) -> list[Message]:
    """The messages that are most like a text in which none is recognised, the nearest first."""
    given = _split_words(_normalize_text(text))
    known = {message.name: _split_words(f"{message.text} {message.name}") for message in MESSAGES.values()}
    counts: dict[str, int] = {}
    for words in known.values():
        for word in words:
            counts[word] = counts.get(word, 0) + 1
    # A word that few messages have says most, and one that none has says that the text is another.
    weight = {word: 1 / counts.get(word, 2) for word in (*counts, *given)}
    total = sum(weight[word] for word in given)
    likeness: list[tuple[float, str]] = []
    for name, words in known.items():
        shared = sum(weight[word] for word in words & given)
        like = 2 * shared / (total + sum(weight[word] for word in words))
        if like >= LIKE:
            likeness.append((like, name))
    return [MESSAGES[name] for _, name in sorted(likeness, key=lambda pair: -pair[0])[:OFFERED]]


def _normalize_text(text: str) -> str:
    """A text with single blanks, without colours, with the quotes that messages have in a terminal, and in short words.

    A word that is longer than any that torch says would be looked through from each of its letters on.
    """
    import re

    return " ".join(word[:LONGEST] for word in re.sub(_COLOURS, "", text).translate(_QUOTES).split())


def _split_words(text: str) -> frozenset[str]:
    import re

    return frozenset(word for word in re.findall(r"[a-z0-9_]+", text.lower()) if len(word) > 1)
