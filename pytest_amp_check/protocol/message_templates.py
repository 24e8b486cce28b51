"""Texts of findings: message templates that are filled with source names, and descriptions of events."""

from __future__ import annotations

import re
from collections.abc import Mapping

from .events import AutocastEnter, Event, name_of_kind
from .events.regions import describe_region
from .source_text import parenthesize

#: Words for objects without a known name.
DEFAULT_NAMES = {
    "scaler": "the scaler",
    "optimizer": "the optimizer",
    "loss": "the loss",
    "module": "the model",
    "context": "autocast",
    "call": "this call",
    "tensor": "x",
    "window": "the step condition",
    "divided": " by the number of micro-batches in the window",
    "header": "the loop",
    "function": "this code",
    "skip": "a condition skips the step",
    "output": "the output",
    "operand": "the operand",
    "loop": "the loop that uses it",
    "limit": "the max_norm",
    "region": "cuda",
    "constructor": "torch.amp.GradScaler",
    "enabled": "",
    "float16_only": ",",
}


#: A name in a code span of a template whose attribute follows.
_OWNER = re.compile(r"\{(\w+)\}\.")


class _DefaultNames(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return DEFAULT_NAMES.get(key.removeprefix("owner_"), key)


def fill_message(template: str, names: Mapping[str, str]) -> tuple[str, str]:
    """Return a message with the user's names, and the remedy alone."""
    problem, remedy = (fill_template(part, names) for part in split_message(template))
    return f"{problem}: {remedy}" if remedy else problem, remedy


def split_message(template: str) -> tuple[str, str]:
    """Return the problem and the remedy of a message. The remedy follows the first colon outside code."""
    parts = template.split("`")
    for number in range(0, len(parts), 2):
        before, colon, after = parts[number].partition(": ")
        if colon:
            return "`".join([*parts[:number], before]), "`".join([after, *parts[number + 1 :]])
    return template, ""


def fill_template(template: str, names: Mapping[str, str]) -> str:
    """Return the message with the user's names.

    An unknown name is replaced by words without backticks. Inside code, an unknown name is replaced by the usual name.
    """
    unknown = [key for key, words in DEFAULT_NAMES.items() if names.get(key, words) == words]
    for key in unknown:
        template = template.replace("`{" + key + "}`", DEFAULT_NAMES[key])
    parts = template.split("`")
    for key in unknown:
        usual = DEFAULT_NAMES[key].rpartition(" ")[2]
        parts[1::2] = [code.replace("{" + key + "}", usual) for code in parts[1::2]]
    # The attribute of an operator's result needs parentheses.
    owners = {key: parenthesize(names[key]) for code in parts[1::2] for key in _OWNER.findall(code) if key in names}
    parts[1::2] = [_OWNER.sub(lambda found: "{owner_" + found[1] + "}.", code) for code in parts[1::2]]
    own = {f"owner_{key}": text for key, text in owners.items()}
    return "`".join(parts).format_map(_DefaultNames({**names, **own}))


def describe_event(event: Event) -> str:
    """Return the description of an event."""
    if isinstance(event, AutocastEnter):
        dtype = "?" if event.is_one_of_several else event.dtype
        return describe_region(dtype) if event.enabled else "autocast is disabled"
    scaled = event.traits.scaled_description if event.subject is not None else ""
    return scaled or event.traits.description or name_of_kind(type(event))
