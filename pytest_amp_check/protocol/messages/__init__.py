"""Catalogue of torch messages for users of mixed precision, and the search for messages in pasted text."""

from __future__ import annotations

from . import dtypes, scaling, training
from .message import Message

__all__ = ["MESSAGES", "Message", "find_messages", "find_similar"]

#: Messages by name, in the order of display.
MESSAGES: dict[str, Message] = {
    message.name: message for table in (scaling, dtypes, training) for message in table.MESSAGES
}
#: Minimum similarity of a suggested message: the weight of common words relative to the weight of all words.
LIKE = 0.3
#: Maximum number of suggestions if no message is recognized.
OFFERED = 3
#: Maximum length of a word; longer words are cut.
LONGEST = 400
#: Terminal color sequences.
_COLOURS = r"\x1b\[[0-9;]*m"
#: Typographic quotes of web pages, mapped to plain quotes. Markdown removes backticks.
_QUOTES = {0x2018: "'", 0x2019: "'", 0x201C: '"', 0x201D: '"', 0x60: None}


def find_messages(text: str) -> list[Message]:
    """Return the messages that a text contains or names, last first: the end of a traceback comes first."""
    plain = _normalize_text(text)
    if plain in MESSAGES:
        return [MESSAGES[plain]]
    found = [(match.start(), message) for message in MESSAGES.values() if (match := message.find_match(plain))]
    return [message for _, message in sorted(found, key=lambda pair: -pair[0])]


def find_similar(text: str) -> list[Message]:
    """Return the messages most similar to a text without recognized message, nearest first."""
    given = _split_words(_normalize_text(text))
    known = {message.name: _split_words(f"{message.text} {message.name}") for message in MESSAGES.values()}
    counts: dict[str, int] = {}
    for words in known.values():
        for word in words:
            counts[word] = counts.get(word, 0) + 1
    # Words that occur in few messages have the largest weight. A word in no message shows that the text is different.
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
    """Return a text with single blanks and plain quotes, without colors, and with shortened words.

    Without the limit, the patterns would search a very long word from each character.
    """
    import re

    return " ".join(word[:LONGEST] for word in re.sub(_COLOURS, "", text).translate(_QUOTES).split())


def _split_words(text: str) -> frozenset[str]:
    import re

    return frozenset(word for word in re.findall(r"[a-z0-9_]+", text.lower()) if len(word) > 1)
