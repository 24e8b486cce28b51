"""Rules as text and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..protocol.fix import SAFE, UNSAFE
from ..protocol.severities import SEVERITIES
from .printable import Line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..protocol.rule import Rule


#: Flags that apply a fix, by applicability.
FLAGS = {SAFE: "--fix", UNSAFE: "--fix --unsafe-fixes"}


def format_rules(rules: Iterable[Rule]) -> list[Line]:
    rows = list(rules)
    name = max((len(rule.name) for rule in rows), default=0)
    severity = max(map(len, SEVERITIES))
    return [
        [
            (rule.code, "code"),
            (f"  {rule.name:<{name}}  ", ""),
            (rule.severity, rule.severity),
            (" " * (severity - len(rule.severity) + 2), ""),
            (rule.summary, ""),
            ("" if rule.on_by_default else " (off unless selected)", "dim"),
            (f" [{FLAGS[rule.applicability]}]" if rule.applicability else "", "command"),
        ]
        for rule in rows
    ]


#: Maximum number of sentences in the short explanation of a rule.
_SHORT = 3


def rule_summary_markdown(rule: Rule, address: str, effect: str = "") -> str:
    """Return Markdown for a pop-up: the short text of a rule, and the link to the page.

    ``effect`` is the effect of one finding, by default that of the rule.
    """
    more = f"[All about it]({address})" if address else f"All about it: `amp-check explain {rule.code}`"
    parts = [
        f"**{rule.code} {rule.name}** ({rule.severity})",
        rule.summary,
        _describe_effect(effect or rule.effect),
        short_reason(rule),
        _fence_code(_example_change(rule), "diff"),
        f"**Fix:** {_short_fix(rule)}",
        more,
    ]
    return "\n\n".join(parts) + "\n"


def rule_markdown(rule: Rule, correct_programs: Sequence[tuple[str, str]] = ()) -> str:
    """Return the full text of a rule as Markdown."""
    parts = [
        f"# {rule.code} {rule.name}",
        f"{rule.summary}\n\n{_describe_use(rule)}",
        _describe_effect(rule.effect),
        "## Why it is wrong",
        rule.rationale.strip(),
        "## Measured harm",
        rule.harm.strip(),
        *_list_measured_harm(rule.code),
        "## Bad",
        _fence_code(rule.bad_example),
        "## Good",
        _fence_code(rule.good_example),
        "## Fix",
        rule.fix_advice.strip(),
    ]
    if rule.applicability:
        parts.append(
            f"`amp-check check {FLAGS[rule.applicability]}` applies it if the correct code is unambiguous. "
            f"{_SAFETY[rule.applicability]}"
        )
    parts += [
        "## Suppression",
        f"For one line: `# amp: ignore[{rule.code}] the reason`. For a project, in pyproject.toml:",
        f'```toml\n[tool.amp-check]\nignore = ["{rule.code}"]\n```',
        "## Sources",
        "\n".join(f"- {source}" for source in rule.sources),
    ]
    if correct_programs:
        parts.append("## Correct code that is not reported")
        for reason, code in correct_programs:
            parts += [f"- {reason.strip()}", _fence_code(code)]
    return "\n\n".join(parts) + "\n"


#: Width in characters of a short page.
_PAGE_WIDTH = 100
#: Unchanged lines that a short page shows around a changed line.
_CONTEXT = 2
#: Most lines of a change on a short page, so that the page fits on a screen of 40 lines.
_LONGEST_CHANGE = 17


def short_rule_markdown(rule: Rule) -> str:
    """Return what fits on a screen: the mistake, the reason, the change from the bad to the good example, the fix."""
    import textwrap

    parts = [
        f"# {rule.code} {rule.name}",
        rule.summary,
        _describe_use(rule),
        _describe_effect(rule.effect),
        textwrap.fill(short_reason(rule), _PAGE_WIDTH, break_long_words=False, break_on_hyphens=False),
        "## Change",
        _fence_code(_example_change(rule), "diff"),
        "## Fix",
        _short_fix(rule),
        f"Measured harm, whole examples, sources: `amp-check explain {rule.code} --all`",
    ]
    return "\n\n".join(parts) + "\n"


def _describe_use(rule: Rule) -> str:
    """Return the severity of a rule, and where it applies if that is not everywhere."""
    off = "" if rule.on_by_default else f" It is off unless selected: `--select {rule.code}`."
    reader = {"static": " Found in source only.", "runtime": " Found in runs only."}.get(rule.detected_by, "")
    return f"Severity: {rule.severity}.{reader}{off}"


def _describe_effect(effect: str) -> str:
    return f"**Effect:** {effect}."


def short_reason(rule: Rule) -> str:
    """Return the first sentences of the reason, which are a few hundred characters."""
    import re

    reason = rule.rationale.split("\n\n")[0].replace("\n", " ").strip()
    # An even number of backticks follows: the place is outside code, such as a message of torch.
    sentences = re.split(r"(?<=[.:])\s+(?=[A-Z`])(?=(?:[^`]*`[^`]*`)*[^`]*$)", reason)
    return " ".join(sentences[:_SHORT])


def _short_fix(rule: Rule) -> str:
    """Return the first paragraph about the fix."""
    return rule.fix_advice.strip().partition("\n\n")[0]


def _example_change(rule: Rule) -> str:
    """Return the difference between the bad and the good example of a rule, up to the height of a screen."""
    import difflib

    mark = f"  # {rule.code}"
    bad = [line.replace(mark, "") for line in rule.bad_example.splitlines()]
    changed = difflib.unified_diff(bad, rule.good_example.splitlines(), n=_CONTEXT, lineterm="")
    lines = ["..." if line.startswith("@@") else line for line in list(changed)[3:]]
    if len(lines) > _LONGEST_CHANGE:
        lines[_LONGEST_CHANGE - 1 :] = ["..."]
    return "\n".join(lines) + "\n"


def _list_measured_harm(code: str) -> list[str]:
    """Return the measured effects of a rule's mistake, or the reason for a missing measurement."""
    from ..protocol.measured_harm import MEASURED, NOT_HERE, SHOWN, TORCH

    run = f"on the CPU with torch {TORCH}"
    said: list[str] = []
    if code in SHOWN:
        said.append(_list_figures(f"A demonstration program with the mistake, and without it, {run}", SHOWN[code]))
    if code in MEASURED:
        said.append(_list_figures(f"The bad example below, compared with the good one, {run}", MEASURED[code]))
    if code in NOT_HERE:
        said.append(f"Not measured: {NOT_HERE[code]}.")
    return said


def _list_figures(introduction: str, figures: str) -> str:
    """Return measured figures, which ``;`` separates, as a list below an introduction."""
    items = "\n".join(f"- {figure}" for figure in figures.split("; "))
    return f"{introduction}:\n\n{items}"


_SAFETY = {
    SAFE: "The fix is safe: it restores documented usage and changes nothing else.",
    UNSAFE: "The fix is opt-in: it changes training results, which hyperparameters may have been tuned for.",
}


def _fence_code(code: str, language: str = "python") -> str:
    return f"```{language}\n{code.strip(chr(10))}\n```"
