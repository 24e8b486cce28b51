"""The catalogue: every rule by its code, and the rule that owns each label of a fault."""

from __future__ import annotations

from collections.abc import Iterable

from ..rule import Fault, Rule
from . import accumulation, autocast, checkpoint, distributed, dynamics, migration, numerics, overhead, scaling

__all__ = ["LABELS", "RULES", "by_code", "by_label", "find"]

_FAMILIES = (autocast, scaling, accumulation, checkpoint, numerics, distributed, overhead, dynamics, migration)


def by_code(rules: Iterable[Rule]) -> dict[str, Rule]:
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


def by_label(rules: Iterable[Rule]) -> dict[str, tuple[Rule, Fault]]:
    """The owner of each label. A label that two rules own is an error: one cause gives one finding."""
    owners: dict[str, tuple[Rule, Fault]] = {}
    for rule in rules:
        for label, fault in rule.faults.items():
            if label in owners:
                raise ValueError(f"two rules own the label {label}: {owners[label][0].code} and {rule.code}")
            owners[label] = (rule, fault)
    return owners


#: Every rule, in the order of the codes.
RULES: dict[str, Rule] = by_code(rule for family in _FAMILIES for rule in family.RULES)

#: Label of a fault -> the rule that owns it, and the fault.
LABELS: dict[str, tuple[Rule, Fault]] = by_label(RULES.values())

_WORDS = {word.casefold(): rule for rule in RULES.values() for word in (rule.code, rule.name)}


def find(word: str) -> Rule | None:
    """The rule of that code or name, in any case, or None."""
    return _WORDS.get(word.strip().casefold())
