"""The rule catalogue: rules by code, and the owning rule of each violation label.

A check needs few rules, and importing a module for each rule takes longer than checking a small file. ``index.py``
therefore holds the data that every check needs, and a rule's module is loaded for other attributes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from .. import events
from ..events import EventKind
from ..registration import require_listed
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
]


class _LazyRule(Rule):
    """A rule from the index. Other attributes load the rule's module on first access."""

    __slots__ = ("family",)

    def __init__(self, listed: tuple[str, str, str, str, str, bool, str]) -> None:
        self.code, self.name, self.family, self.severity, self.detected_by, self.on_by_default, self.applicability = (
            listed
        )

    def __getattr__(self, attribute: str) -> Any:
        # Only called for attributes that are not set yet.
        if attribute not in Rule.__slots__:
            raise AttributeError(attribute)
        module = f"{__name__}.{self.family}.{module_name(self.name)}"
        written: Rule = __import__(module, fromlist=("RULE",)).RULE
        for slot in Rule.__slots__:
            setattr(self, slot, getattr(written, slot))
        return getattr(self, attribute)


class _LabelTable(Mapping[str, tuple[Rule, ViolationKind]]):
    """Mapping of labels to the owning rule and the rule's violation kind."""

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
    """Return the name of a rule's module, also the name of the folder of the rule's negative examples."""
    return name.replace("-", "_")


def index_by_code(rules: Iterable[Rule]) -> dict[str, Rule]:
    """Return rules by code, sorted by code. Raise ValueError for a duplicate code or name."""
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
    """Return the owner of each label. Raise ValueError if two rules own a label, because one cause has one finding."""
    owners: dict[str, tuple[Rule, ViolationKind]] = {}
    for rule in rules:
        for label, violation in rule.violations.items():
            if label in owners:
                raise ValueError(f"two rules own the label {label}: {owners[label][0].code} and {rule.code}")
            owners[label] = (rule, violation)
    return owners


#: All rules, sorted by code.
RULES: dict[str, Rule] = {}
_OWNERS = _LabelTable()
#: Violation label -> owning rule and violation kind.
LABELS: Mapping[str, tuple[Rule, ViolationKind]] = _OWNERS
#: Event kind -> rules that check a single event of this kind.
ALONE: dict[EventKind, list[Rule]] = {}
#: Rules that check a whole program, with the event kind that must occur in the program.
WHOLE: list[tuple[EventKind, Rule]] = []

#: Texts of which a file must contain one to be analyzed (:attr:`.rule.Rule.prescan_words`).
WORDS: dict[str, None] = {}

for _listed, _words, _alone, _whole, _labels in INDEX:
    _rule = RULES[_listed[0]] = _LazyRule(_listed)
    _rule.prescan_words = _words
    WORDS.update(dict.fromkeys(_words))
    for _kind in _alone:
        ALONE.setdefault(getattr(events, _kind), []).append(_rule)
    WHOLE.extend((getattr(events, _kind), _rule) for _kind in _whole)
    _OWNERS.add_labels(_labels, _rule)

require_listed(
    "protocol/rules",
    [f"{listed[2]}/{module_name(listed[1])}" for listed, *_ in INDEX],
    "run python benchmarks/readme.py, which lists each rule",
    marker="\nRULE = Rule(",
)

_WORDS = {word.casefold(): rule for rule in RULES.values() for word in (rule.code, rule.name)}


def find_rule(word: str) -> Rule | None:
    """Return the rule of a code or name (case-insensitive), or None."""
    return _WORDS.get(word.strip().casefold())
