"""``amp-check explain``: the pages of rules, or of torch messages found in pasted text."""

from __future__ import annotations

import sys

from ..protocol.messages import Message, find_messages, find_similar
from ..protocol.rules import RULES, find_rule
from ..protocol.selection import ALL, UnknownRule
from ..protocol.selection import find_nearest as nearest_rule
from . import output, rule_text, source_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..protocol.rule import Rule

#: Maximum number of characters of an unknown text in an error message.
REPEATED = 60


class NothingToExplain(Exception):
    """Error for a text without a page; the message is one sentence."""


class PageUnavailable(Exception):
    """Error for a page that cannot be written; the message is one sentence."""


def write_explanation(words: Sequence[str], *, in_full: bool, as_json: bool) -> None:
    """Write the pages of the rules, or of the messages, in these words. ``-`` reads standard input.

    ``in_full`` adds measured harm, whole examples and sources to the page of a rule.
    """
    rules, messages = _find_pages(words)
    if as_json:
        from . import json_formats

        explained: Any = [rule.as_dict() for rule in rules] or [message.as_dict() for message in messages]
        explained = explained[0] if len(rules) == 1 else explained
        sys.stdout.write(json_formats.dump_json(explained))
        return
    output.write_markdown(
        _format_pages(rules, messages, in_full=in_full), sys.stdout, output.is_color_wanted(sys.stdout)
    )


def open_explanation(words: Sequence[str], *, in_full: bool) -> None:
    """Open the pages of the rules, or of the messages, in these words in a browser, and write their address.

    The page is a new temporary file. Without a browser, the address is all that there is. Raise PageUnavailable if the
    file cannot be written.
    """
    import tempfile
    import webbrowser
    from pathlib import Path

    page = output.render_html(_format_pages(*_find_pages(words), in_full=in_full))
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", prefix="amp-check-", suffix=".html", delete=False
        ) as file:
            file.write(page)
    except OSError as error:
        reason = error.strerror or str(error)
        raise PageUnavailable(f"the page cannot be written: {reason}: leave --web out to read it here") from None
    address = Path(file.name).resolve().as_uri()
    sys.stdout.write(address + "\n")
    webbrowser.open(address)


def _find_pages(words: Sequence[str]) -> tuple[list[Rule], list[Message]]:
    """Return the rules in these words, or else the messages. Raise NothingToExplain if there are neither."""
    given = source_lines.open_standard_input().read() if list(words) == ["-"] else " ".join(words)
    rules = _find_rules(given)
    messages = [] if rules else find_messages(given)
    if not rules and not messages:
        raise NothingToExplain(_describe_unknown(given))
    return rules, messages


def _format_pages(rules: Sequence[Rule], messages: Sequence[Message], *, in_full: bool) -> str:
    page = rule_text.rule_markdown if in_full else rule_text.short_rule_markdown
    return "\n".join([*map(page, rules), *map(message_markdown, messages)])


def _find_rules(given: str) -> list[Rule]:
    """Return the rule of a code or a name, or the rules of ``ALL`` or the beginning of a code."""
    rule = find_rule(given)
    if rule is not None:
        return [rule]
    prefix = given.strip().upper()
    if prefix == ALL:
        return list(RULES.values())
    return [rule for code, rule in RULES.items() if prefix.startswith("AMP") and code.startswith(prefix)]


def _describe_unknown(given: str) -> str:
    """Return a sentence about an unknown text, with suggestions."""
    word = given.strip()
    if " " not in word and "\n" not in word and (near := nearest_rule(word, RULES)):
        return str(UnknownRule(word, near))
    like = find_similar(word)
    if not like:
        known = "`amp-check rules` lists the rules, and a PyTorch message is found by its text"
        return (
            f"unknown rule {word!r}: {known}"
            if " " not in word
            else f"{_shorten_text(word)!r} matches no known PyTorch message: {known}"
        )
    shown = "; ".join(f"{message.name} ({message.text})" for message in like)
    return f"{_shorten_text(word)!r} matches no known PyTorch message; closest: {shown}: pass one of these names"


def _shorten_text(word: str) -> str:
    return word if len(word) <= REPEATED else word[:REPEATED] + "..."


def message_markdown(message: Message) -> str:
    """Return the full page of a message as Markdown."""
    parts = [
        f"# {message.text}",
        f"{message.raised_by[0].upper()}{message.raised_by[1:]}. Name in this catalogue: `{message.name}`.",
        "## What it means",
        message.meaning,
        "## Causes and fixes",
        "\n".join(f"- {cause}\n  **{remedy}**" for cause, remedy in message.causes),
        "## Find the cause",
        (
            "`amp-check run train.py` runs the script, and where this ends it names the tensor, parameter or optimizer "
            "and the line it comes from. `amp-check check` finds from source what the rules below find."
        ),
    ]
    if message.rule_codes:
        parts += ["## Rules", "\n".join(_format_rule_reference(RULES[code]) for code in message.rule_codes)]
    parts += ["## Sources", "\n".join(f"- {source}" for source in message.sources)]
    return "\n\n".join(parts) + "\n"


def _format_rule_reference(rule: Rule) -> str:
    return f"- `amp-check explain {rule.code}`, {rule.name}: {rule.summary}"
