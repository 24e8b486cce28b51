"""The catalogue: every rule by its code, and the rule that owns each label of a fault.

A check needs few of the rules, and to import a module for each would take longer than to check a small file. So what
every check asks of all of them stands in ``index.py``, and a rule's own module is loaded when more is asked of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping

from ..rule import Rule, ViolationKind
from .index import INDEX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "ALONE",
    "LABELS",
    "RULES",
    "WHOLE",
    "WORDS",
    "find_rule",
    "index_by_code",
    "index_by_label",
    "module_name",
    "negative_examples",
]


class _LazyRule(Rule):
    """A rule that the index lists, and whose module is loaded when something else of it is asked for."""

    __slots__ = ("family",)

    def __init__(self, listed: tuple[str, str, str, str, str, bool, str]) -> None:
        self.code, self.name, self.family, self.severity, self.detected_by, self.on_by_default, self.applicability = (
            listed
        )

    def __getattr__(self, attribute: str) -> Any:
        # Asked only for what is not set yet.
        if attribute not in Rule.__slots__:
            raise AttributeError(attribute)
        if attribute == "negative_examples":
            self.negative_examples = negative_examples(self.family, self.name)
        else:
            module = f"{__name__}.{self.family}.{module_name(self.name)}"
            written: Rule = __import__(module, fromlist=("RULE",)).RULE
            for slot in Rule.__slots__:
                if slot != "negative_examples":
                    setattr(self, slot, getattr(written, slot))
        return getattr(self, attribute)


class _LabelTable(Mapping[str, tuple[Rule, ViolationKind]]):
    """The rule that owns each label, and the fault as that rule writes it."""

    def __init__(self) -> None:
        self._rules: dict[str, Rule] = {}

    def add_labels(self, labels: Iterable[str], rule: Rule) -> None:
        self._rules.update(dict.fromkeys(labels, rule))

    def __getitem__(self, label: str) -> tuple[Rule, ViolationKind]:
        rule = self._rules[label]
        return rule, rule.violations[label]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rules)

    def __len__(self) -> int:
        return len(self._rules)


def module_name(name: str) -> str:
    """The name of a rule's module, and of the folder of its look-alikes."""
    return name.replace("-", "_")


def negative_examples(family: str, name: str) -> tuple[tuple[str, str], ...]:
    """The look-alikes of a rule, each with its reason: what the comment in its first line says."""
    folder = os.path.join(os.path.dirname(__file__), family, "lookalikes", module_name(name))
    found = []
    for file in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        if file.endswith(".py"):
            with open(os.path.join(folder, file), encoding="utf-8") as opened:
                reason, _, source = opened.read().partition("\n\n")
            found.append((reason.removeprefix("# "), source))
    return tuple(found)


def index_by_code(rules: Iterable[Rule]) -> dict[str, Rule]:
    """Rules by code, in the order of their codes. Two rules with one code or one name are an error."""
    found: dict[str, Rule] = {}
    names: dict[str, str] = {}
    for rule in sorted(rules, key=lambda rule: rule.code):
        if rule.code in found:
            raise ValueError(f"two rules have the code {rule.code}: {found[rule.code].name} and {rule.name}")
        if rule.name in names:
            raise ValueError(f"two rules have the name {rule.name}: {names[rule.name]} and {rule.code}")
        found[rule.code] = rule
        names[rule.name] = rule.code
    return found


def index_by_label(rules: Iterable[Rule]) -> dict[str, tuple[Rule, ViolationKind]]:
    """The owner of each label. A label that two rules own is an error: one cause gives one finding."""
    owners: dict[str, tuple[Rule, ViolationKind]] = {}
    for rule in rules:
        for label, fault in rule.violations.items():
            if label in owners:
                raise ValueError(f"two rules own the label {label}: {owners[label][0].code} and {rule.code}")
            owners[label] = (rule, fault)
    return owners


#: Every rule, in the order of the codes.
RULES: dict[str, Rule] = {}
_OWNERS = _LabelTable()
#: Label of a fault -> the rule that owns it, and the fault.
LABELS: Mapping[str, tuple[Rule, ViolationKind]] = _OWNERS
#: Kind of event -> the rules that judge one such event by itself.
ALONE: dict[str, list[Rule]] = {}
#: The rules that judge a whole program, with the kind of event without which they find nothing in it.
WHOLE: list[tuple[str, Rule]] = []

#: What a file must hold to be read for some rule: one of these (:attr:`.rule.Rule.words`).
WORDS: dict[str, None] = {}

for _listed, _words, _alone, _whole, _labels in INDEX:
    _rule = RULES[_listed[0]] = _LazyRule(_listed)
    _rule.prescan_words = _words
    WORDS.update(dict.fromkeys(_words))
    for _kind in _alone:
        ALONE.setdefault(_kind, []).append(_rule)
    WHOLE.extend((_kind, _rule) for _kind in _whole)
    _OWNERS.add_labels(_labels, _rule)

_WORDS = {word.casefold(): rule for rule in RULES.values() for word in (rule.code, rule.name)}


def find_rule(word: str) -> Rule | None:
    """The rule of that code or name, in any case, or None."""
    return _WORDS.get(word.strip().casefold())
