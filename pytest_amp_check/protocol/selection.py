"""Rule selection: convert codes, prefixes, names and ALL to a set of rule codes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from .finding import Finding
from .rule import Rule

ALL = "ALL"
#: Suffix of a disabled rule's code. Of such a rule, only findings proven by a run are shown.
_PROVEN = " proven"


class UnknownRule(ValueError):
    """Error for a word that names no rule. ``word`` is the given word, ``nearest`` the most similar rule."""

    def __init__(self, word: str, nearest_name: str) -> None:
        self.word = word
        self.nearest_name = nearest_name
        hint = f"did you mean {nearest_name!r}?" if nearest_name else "`amp-check rules` lists them all."
        super().__init__(f"unknown rule {word!r}: {hint}")


def expand_word(word: str, rules: Mapping[str, Rule]) -> tuple[frozenset[str], int]:
    """Return the codes of a word, and the specificity of the word: 0 for ALL, larger for fewer rules."""
    if word.endswith(_PROVEN) and word.removesuffix(_PROVEN) in rules:
        return frozenset((word,)), 0
    upper = word.upper()
    if upper == ALL:
        return frozenset(rules), 0
    if upper in rules:
        return frozenset((upper,)), len(upper)
    if upper.startswith("AMP"):
        codes = frozenset(code for code in rules if code.startswith(upper))
        if codes:
            return codes, len(upper)
    lower = word.lower()
    for code, rule in rules.items():
        if rule.name == lower:
            return frozenset((code,)), len(code)
    raise UnknownRule(word, find_nearest(word, rules))


def resolve_codes(
    select: Iterable[str] | None, ignore: Iterable[str], rules: Mapping[str, Rule], extend: Iterable[str] = ()
) -> frozenset[str]:
    """Return the enabled codes. Without ``select``, the default rules are enabled; ``extend`` adds rules.

    As in ruff, the more specific word wins: ``select=["AMP201"], ignore=["AMP2"]`` keeps AMP201. On a tie ``ignore``
    wins.
    """
    chosen: dict[str, int] = {}
    if select is None:
        chosen = {code: 0 for code, rule in rules.items() if rule.on_by_default}
    else:
        for word in select:
            _add_codes(chosen, word, rules)
    for word in extend:
        _add_codes(chosen, word, rules)
    refused: dict[str, int] = {}
    for word in ignore:
        _add_codes(refused, word, rules)
    return frozenset(code for code, width in chosen.items() if width > refused.get(code, -1))


def resolve_for_runs(
    select: Iterable[str] | None, ignore: Iterable[str], rules: Mapping[str, Rule], extend: Iterable[str] = ()
) -> frozenset[str]:
    """Return the enabled codes for a run, and markers for proven findings of rules that are off by default.

    :func:`is_selected` evaluates the result.
    """
    on = resolve_codes(select, ignore, rules, extend)
    if select is not None:
        return on
    return on | {
        code + _PROVEN for code in rules.keys() - on - resolve_codes(ignore, (), rules) if not rules[code].on_by_default
    }


def is_selected(select: Collection[str], finding: Finding) -> bool:
    """Return True if a finding is enabled."""
    return finding.code in select or (finding.is_proven and finding.code + _PROVEN in select)


def find_nearest(word: str, rules: Mapping[str, Rule]) -> str:
    """Return the code or name most similar to ``word``, or "" if no rule is similar."""
    if len(word) > 100:
        return ""
    from difflib import SequenceMatcher, get_close_matches

    word = word.lower()
    known = {code.lower(): code for code in rules} | {rule.name: rule.name for rule in rules.values()} | {"all": ALL}

    def rate_similarity(other: str) -> tuple[float, int, int]:
        # difflib rates all codes as equally similar: a common prefix decides, then a single wrong character.
        same = [a == b for a, b in zip(other, word, strict=False)]
        return SequenceMatcher(None, other, word).ratio(), [*same, False].index(False), sum(same)

    close = sorted(get_close_matches(word, known, n=len(known)))
    return known[max(close, key=rate_similarity)] if close else ""


def _add_codes(codes: dict[str, int], word: str, rules: Mapping[str, Rule]) -> None:
    found, width = expand_word(word, rules)
    for code in found:
        codes[code] = max(width, codes.get(code, -1))
