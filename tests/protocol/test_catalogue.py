"""The catalogue of rules: complete, unambiguous, and with correct examples."""

from __future__ import annotations

import ast
import importlib
import re
import runpy
import string
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from event_fields import set_attributes
from negative_examples import FOLDER, negative_examples

from pytest_amp_check.protocol import events, rules
from pytest_amp_check.protocol.event_graph import Graph, Node, Program
from pytest_amp_check.protocol.events import Event, EventKind, Flag, Symbol
from pytest_amp_check.protocol.graph_checker import check
from pytest_amp_check.protocol.rule import Rule, ViolationKind
from pytest_amp_check.protocol.rules import LABELS, RULES, find_rule
from pytest_amp_check.protocol.severities import SEVERITIES
from pytest_amp_check.protocol.sites import Site

# Names from analyzer and recorder. A rule's own check provides all other names in a message.
NAMES = {"scaler", "optimizer", "call", "loss", "module", "context", "window"}
# If a framework scales, the checker adds its name, and advice about it.
OF_FRAMEWORKS = {"framework", "advice"}
# Additional names from the graph checker: of the path to a violation, and of counted loop iterations.
OF_PATHS = {
    "window:left-over": {"left"},
    "backward@unscaled": {"skip"},
    "new:per-step": {"function"},
    "new:per-epoch": {"function"},
    "new@used": {"loop"},
}
# Rules without a check in the protocol: the engine reports them for source files, with the reason.
BY_ENGINE = {"AMP902", "AMP903", "AMP904"}
FAMILIES = {
    "1": "autocast",
    "2": "scaling",
    "3": "accumulation",
    "4": "checkpoint",
    "5": "numerics",
    "6": "distributed",
    "7": "overhead",
    "8": "dynamics",
    "9": "migration",
}

every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)


def fields(template: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}


def marks(source: str) -> list[int]:
    return [number for number, line in enumerate(source.splitlines(), 1) if re.search(r"# AMP\d{3}\b", line)]


def run(source: str, folder: Path) -> BaseException | None:
    """Run a script in a separate thread, so that an autocast left open ends with the thread."""
    script = folder / "example.py"
    script.write_text(source, encoding="utf-8")
    with warnings.catch_warnings(), ThreadPoolExecutor(1) as pool:
        warnings.simplefilter("ignore")
        return pool.submit(runpy.run_path, str(script), run_name="__main__").exception()


def import_what_it_needs(source: str) -> None:
    """Skip the test if a framework of the example is not installed."""
    for name in re.findall(r"^(?:from|import) (\w+)", f"import torch\n{source}", re.MULTILINE):
        pytest.importorskip(name)
    if "accelerate" in source:
        # An earlier test of this process may have chosen another precision.
        importlib.import_module("accelerate.state").AcceleratorState._reset_state(True)


def modules_of(family: str) -> list[Path]:
    """Return the modules of the rules of a family."""
    return sorted((Path(rules.__file__).parent / family).glob("[!_]*.py"))


def test_codes_are_in_order_and_lie_in_the_family_of_their_hundreds() -> None:
    assert list(RULES) == sorted(RULES)
    assert all(code == rule.code and re.fullmatch(r"AMP\d{3}", code) for code, rule in RULES.items())
    folders = {path.name for path in Path(rules.__file__).parent.iterdir() if path.is_dir()}
    assert folders - {"__pycache__"} == set(FAMILIES.values())
    for hundreds, family in FAMILIES.items():
        codes = [written(path).code for path in modules_of(family)]
        assert codes, f"{family} has no rules"
        assert {code[3] for code in codes} == {hundreds}


def written(module: Path) -> Rule:
    """Return the rule as defined in its module."""
    rule: Rule = importlib.import_module(f"{rules.__name__}.{module.parent.name}.{module.stem}").RULE
    return rule


def test_the_catalogue_holds_every_rule_of_every_family() -> None:
    found = {path.stem: written(path) for family in FAMILIES.values() for path in modules_of(family)}
    assert sorted(found) == sorted(rule.name.replace("-", "_") for rule in RULES.values())
    for rule in RULES.values():
        own = found[rule.name.replace("-", "_")].as_dict()
        assert rule.as_dict() == own


def test_each_negative_example_belongs_to_a_rule() -> None:
    folders = list(FOLDER.glob("*/*"))
    assert len(folders) == len({*folders})
    names = {rule.name.replace("-", "_") for rule in RULES.values()}
    assert {folder.name for folder in folders} <= names
    files = [file for folder in folders for file in folder.iterdir()]
    assert len(files) == sum(len(negative_examples(rule)) for rule in RULES.values())
    for file in files:
        first, second, *_ = file.read_text(encoding="utf-8").split("\n")
        assert first.startswith("# ") and not second, f"{file}: the reason in one line, and a line without anything"


def test_what_a_check_needs_of_a_rule_is_known_without_its_module() -> None:
    code = """\
import sys
from pytest_amp_check.protocol.rules import ALONE, LABELS, RULES, WHOLE, find_rule
listed = [(rule.code, rule.name, rule.severity, rule.on_by_default, rule.detected_by) for rule in RULES.values()]
assert find_rule("clip-before-unscale") is RULES["AMP201"] and "clip@scaled" in LABELS and ALONE and WHOLE
before = [name for name in sys.modules if name.startswith("pytest_amp_check.protocol.rules.")]
LABELS["clip@scaled"]
after = [name for name in sys.modules if name.startswith("pytest_amp_check.protocol.rules.")]
print(*before, *sorted(set(after) - set(before)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = [name.removeprefix("pytest_amp_check.protocol.rules.") for name in done.stdout.split()]
    assert names == ["index", "scaling", "scaling.clip_before_unscale"]


@every_rule
def test_names_describe_the_mistake(rule: Rule) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", rule.name)
    assert not rule.name.startswith(("no-", "dont-", "do-not-", "use-", "avoid-", "amp-"))
    assert [other.code for other in RULES.values() if other.name == rule.name] == [rule.code]


@every_rule
def test_prose_is_complete(rule: Rule) -> None:
    assert rule.summary[0].isupper() or re.match(r"\w*[\d_.(]", rule.summary), (
        "a sentence, or a name of torch, comes first"
    )
    for text in (rule.summary, rule.fix_advice):
        assert text.endswith(".") and "\n" not in text
    for text in (rule.rationale, rule.harm):
        assert text.endswith((".\n", "`\n", ")\n"))
        assert len(text.split()) >= 12
        assert not text.startswith((" ", "\n"))
    assert all(source.strip() == source and source for source in rule.sources)
    everything = " ".join((rule.summary, rule.rationale, rule.harm, rule.fix_advice, *rule.sources))
    assert not re.search(r"\bS\d\d\b|RULEBOOK|\bD\d\b|TODO", everything), "an internal key is left in the text"


@every_rule
def test_severities_are_known_and_an_error_rule_has_an_error(rule: Rule) -> None:
    severities = {violation.severity or rule.severity for violation in rule.violations.values()}
    assert severities <= set(SEVERITIES)
    assert rule.severity in severities


def problems_of(message: str) -> Iterator[str]:
    """Yield what is wrong with the form of a message."""
    wrong, colon, way_out = message.partition(": ")
    if not (colon and len(wrong.split()) >= 3 and way_out.strip()):
        yield "no remedy after a colon"
    if message.endswith((".", "!", "?", " ")) or "\n" in message or "  " in message:
        yield "an end or white space that is not allowed"
    if re.search(r"[.!?] [A-Z]", message):
        yield "more than one sentence"
    if not (message[0].isupper() or message[0] in "`{"):
        yield "a beginning in lower case"
    if message.count("`") % 2:
        yield "an odd backtick"
    for match in re.finditer(r"\{(\w+)\}", message):
        if match[1] in NAMES and not message[: match.start()].count("`") % 2:
            yield f"{match[0]} is not quoted"


def test_each_message_is_one_sentence_with_the_way_out_after_a_colon_and_names_in_backticks() -> None:
    wrong = {label: found for label, (_, violation) in LABELS.items() if (found := [*problems_of(violation.message)])}
    assert wrong == {}


def test_what_is_wrong_with_a_message() -> None:
    assert [*problems_of("`{scaler}` is used twice here: use one")] == []
    assert len([*problems_of("two words: x")]) == 2
    assert [*problems_of("`x` is used twice. Use one: or more.")] == [
        "an end or white space that is not allowed",
        "more than one sentence",
    ]
    assert [*problems_of("`{scaler} is used twice: use one")] == ["an odd backtick"]
    assert [*problems_of("The {scaler} is used twice: use one")] == ["{scaler} is not quoted"]


def test_each_message_uses_names_that_someone_gives() -> None:
    nobody_gives = {}
    for label in LABELS:
        rule, violation = LABELS[label]
        unknown = fields(violation.message) - NAMES - OF_PATHS.get(label, set())
        if label.endswith("-framework"):
            unknown -= OF_FRAMEWORKS
        if unknown and not (rule.event_checks or rule.program_checks or rule.code in BY_ENGINE):
            nobody_gives[label] = unknown
    assert nobody_gives == {}


@every_rule
def test_bad_and_good_are_small_complete_scripts(rule: Rule) -> None:
    ast.parse(rule.good_example)
    if rule.code == "AMP903":  # the rule about invalid source
        with pytest.raises(SyntaxError):
            ast.parse(rule.bad_example)
    else:
        ast.parse(rule.bad_example)
    assert marks(rule.bad_example) and not marks(rule.good_example)
    assert set(re.findall(r"# (AMP\d{3})", rule.bad_example)) == {rule.code}
    for number in marks(rule.bad_example):
        assert rule.bad_example.splitlines()[number - 1].endswith(f"  # {rule.code}"), "the mark ends its line"
    assert rule.bad_example.replace(f"  # {rule.code}", "") != rule.good_example
    for source in (rule.bad_example, rule.good_example):
        assert source.endswith("\n") and not source.startswith("\n")
        assert len(source.splitlines()) <= 40
        assert all(len(line) <= 120 for line in source.splitlines())


@every_rule
def test_negative_examples_parse_and_say_why_they_are_right(rule: Rule) -> None:
    if rule.code not in BY_ENGINE:
        assert negative_examples(rule), "add a correct program to tests/protocol/negative_examples"
    reasons = [reason for reason, _ in negative_examples(rule)]
    assert len(set(reasons)) == len(reasons)
    for reason, source in negative_examples(rule):
        assert reason and not reason.endswith(".") and not reason.startswith("#")
        ast.parse(source)
        assert source.strip() or rule.code in BY_ENGINE, reason
        assert not marks(source), reason


@every_rule
def test_checks_are_registered_for_kinds_of_events_that_exist(rule: Rule) -> None:
    assert all(issubclass(kind, Event) for kind in (*rule.event_checks, *rule.program_checks))


@every_rule
def test_a_rule_is_plain_data(rule: Rule) -> None:
    data = rule.as_dict()
    assert data["code"] == rule.code
    assert all(data[key] for key in ("name", "severity", "summary", "why", "harm", "bad", "good", "fix", "sources"))


@every_rule
def test_good_runs(rule: Rule, tmp_path: Path) -> None:
    import_what_it_needs(rule.good_example)
    if rule.code in BY_ENGINE:
        return
    assert run(rule.good_example, tmp_path) is None


@every_rule
def test_bad_runs_or_raises_what_the_rule_explains(rule: Rule, tmp_path: Path) -> None:
    import_what_it_needs(rule.good_example)
    if rule.code in BY_ENGINE:
        return
    raised = run(rule.bad_example, tmp_path)
    if raised is not None:
        assert type(raised).__name__ in rule.harm + rule.rationale, f"{raised!r} is not explained"


def test_find_takes_codes_and_names_in_any_case() -> None:
    assert find_rule("amp201") is RULES["AMP201"]
    assert find_rule(" Clip-Before-Unscale ") is RULES["AMP201"]
    assert find_rule("AMP000") is None
    assert find_rule("") is None
    assert all(find_rule(rule.code) is rule and find_rule(rule.name) is rule for rule in RULES.values())


def some_rule(code: str = "AMP299", name: str = "some-rule", label: str = "some@label") -> Rule:
    return Rule(
        code,
        name,
        "error",
        "A rule.",
        effect="training fails",
        violations={label: ViolationKind("This is wrong: do that")},
        rationale="why",
        harm="harm",
        bad_example=f"x = 1  # {code}\n",
        good_example="x = 2\n",
        fix_advice="Do that.",
        sources=("here",),
    )


def test_a_label_has_one_owner() -> None:
    assert list(rules.index_by_label([some_rule()])) == ["some@label"]
    with pytest.raises(ValueError, match=r"some@label: AMP299 and AMP298"):
        rules.index_by_label([some_rule(), some_rule("AMP298", "other-rule")])


@pytest.mark.parametrize(("code", "name"), [("AMP299", "other-rule"), ("AMP298", "some-rule")])
def test_a_code_and_a_name_are_given_once(code: str, name: str) -> None:
    with pytest.raises(ValueError, match="two rules have the"):
        rules.index_by_code([some_rule(), some_rule(code, name, "other@label")])


def test_a_rule_without_its_proof_does_not_construct() -> None:
    with pytest.raises(ValueError, match="without its proof"):
        Rule(
            "AMP299",
            "x-y",
            "error",
            "S.",
            effect="training fails",
            violations={},
            rationale="",
            harm="h",
            bad_example="# AMP299",
            good_example="",
            fix_advice="f",
            sources=(),
        )


#: All required arguments of a rule.
WHOLE: dict[str, Any] = {
    "severity": "error",
    "effect": "training fails",
    "violations": {"some@label": ViolationKind("a message")},
    "rationale": "w",
    "harm": "h",
    "bad_example": "# AMP299",
    "good_example": "g",
    "fix_advice": "f",
    "sources": ("s",),
}


@pytest.mark.parametrize(
    "missing", ["bad_example", "good_example", "rationale", "harm", "fix_advice", "sources", "violations", "effect"]
)
def test_what_a_rule_lacks_is_named(missing: str) -> None:
    assert Rule("AMP299", "x-y", summary="S.", **WHOLE).code == "AMP299"
    lacking = {**WHOLE, missing: type(WHOLE[missing])()}
    with pytest.raises(ValueError, match=f"^rule AMP299 has no {missing}: a rule without its proof is not a rule$"):
        Rule("AMP299", "x-y", summary="S.", **lacking)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"severity": "fatal"}, "severity 'fatal' or readers 'both' is not one of the known words"),
        ({"detected_by": "source"}, "severity 'error' or readers 'source' is not one of the known words"),
        ({"applicability": "sure"}, "a fix is safe or unsafe, not 'sure'"),
        ({"effect": "x" * 111}, f"the effect has 111 characters, at most 110: {'x' * 111}"),
        (
            {"violations": {"some@label": ViolationKind("a message", effect="y" * 111)}},
            f"the effect has 111 characters, at most 110: {'y' * 111}",
        ),
        ({"bad_example": "x = 1"}, "bad must carry the mark '# AMP299' and good must not"),
        ({"good_example": "x = 1  # AMP299"}, "bad must carry the mark '# AMP299' and good must not"),
    ],
)
def test_what_is_wrong_with_a_rule_is_said(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^rule AMP299: {re.escape(said)}$"):
        Rule("AMP299", "x-y", summary="S.", **{**WHOLE, **given})


def test_a_rule_as_other_programs_get_it() -> None:
    given = {
        **WHOLE,
        "detected_by": "runtime",
        "on_by_default": False,
    }
    rule = Rule("AMP299", "x-y", summary="S.", **given)
    expected = {
        "code": "AMP299",
        "name": "x-y",
        "severity": "error",
        "summary": "S.",
        "effect": "training fails",
        "why": "w",
        "harm": "h",
        "bad": "# AMP299",
        "good": "g",
        "fix": "f",
        "applicability": None,
        "sources": ["s"],
        "readers": "runtime",
        "default": False,
    }
    assert rule.as_dict() == expected
    assert Rule("AMP299", "x-y", summary="S.", **given, applicability="unsafe").as_dict() == {
        **expected,
        "applicability": "unsafe",
    }


SITE = Site("train.py", 3, function="main")


def checked(
    code: str, kind: EventKind, facts: dict[str, Any], site: Site = SITE, program: Program | None = None
) -> dict[str, str]:
    """Return the labels that a rule's check reports for one event, with the rendered messages."""
    rule = RULES[code]
    check: Callable[..., Any] = rule.event_checks[kind]
    names: dict[str, object] = {"scaler": "scaler", "optimizer": "opt", "call": "GradScaler", "module": "model"}
    names.update(
        loss="loss",
        window="i % k == 0",
        sum="eps",
        context="autocast",
        operand="x",
        output="out",
        limit="1.0",
        region="cuda",
    )
    event = kind(site, **facts, names=names)
    found = {}
    for label, values in check(event, program or Program()):
        found[label] = rule.violations[label].message.format_map({**event.names, **values})
    return found


def scaler(facts: Mapping[str, Any], site: Site = SITE) -> dict[str, str]:
    return checked("AMP216", events.ScalerNew, {"callable": "torch.amp.GradScaler", "arguments": dict(facts)}, site)


@pytest.mark.parametrize(
    ("arguments", "label", "says"),
    [
        ({"device": 1024.0}, "scaler:number-as-device", "`init_scale=1024.0`"),
        ({"device": True}, "scaler:number-as-device", "`enabled=True`"),
        (
            {"device": 65536.0, "init_scale": 2.0, "growth_factor": 0.5},
            "scaler:number-as-device",
            "`init_scale=65536.0`",
        ),
        ({"device": 0}, "scaler:index-as-device", "given 0 as its `device`"),
        ({"device": 15}, "scaler:index-as-device", "given 15 as its `device`"),
        ({"device": -1}, "scaler:number-as-device", "`init_scale=-1`"),
        ({"device": False}, "scaler:number-as-device", "`enabled=False`"),
        ({"device": 16}, "scaler:number-as-device", "`init_scale=16`"),
        ({"device": Flag("use_amp")}, "scaler:flag-misplaced", "`enabled=use_amp`"),
        ({"init_scale": Flag("not full")}, "scaler:flag-misplaced", "the `init_scale` parameter"),
        ({"init_scale": True}, "scaler:bool-as-scale", "the loss scale is 1.0"),
        ({"init_scale": False}, "scaler:bool-as-scale", "the loss scale is 0.0"),
        ({"init_scale": "cuda"}, "scaler:device-as-scale", "'cuda'"),
        ({"init_scale": Symbol("torch.device()")}, "scaler:device-as-scale", "a torch.device"),
        ({"init_scale": 0}, "scaler:zero-scale", "`init_scale=0`"),
        ({"init_scale": 2.0**25}, "scaler:init-scale", "33554432.0"),
        ({"init_scale": -2.5}, "scaler:zero-scale", "`init_scale=-2.5`"),
        ({"enabled": Symbol("torch.bfloat16")}, "scaler:wrong-dtype", "is enabled for bfloat16"),
        ({"growth_factor": 1.0}, "scaler:growth-factor", "`growth_factor=1.0`"),
        ({"growth_factor": 0.1 + 0.2}, "scaler:growth-factor", "`growth_factor=0.3`"),
        ({"backoff_factor": 1}, "scaler:backoff-factor", "`backoff_factor=1`"),
        ({"backoff_factor": 0.0}, "scaler:zero-backoff", "`backoff_factor=0.0`"),
        ({"backoff_factor": 2.0, "growth_factor": 0.5}, "scaler:factors-swapped", "pass both by name"),
        ({"growth_interval": 0}, "scaler:no-growth", "`growth_interval=0`"),
        ({"growth_interval": 49}, "scaler:growth-interval", "`growth_interval=49`"),
        ({"growth_interval": 1}, "scaler:growth-interval", "`growth_interval=1`"),
    ],
)
def test_scaler_arguments_that_are_wrong(arguments: dict[str, Any], label: str, says: str) -> None:
    found = scaler(arguments)
    assert list(found) == [label]
    assert says in found[label]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"device": "cuda", "init_scale": 2.0**24, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 50},
        {"device": events.UNKNOWN, "init_scale": events.UNKNOWN, "growth_interval": events.UNKNOWN},
        {"device": Symbol("torch.device()")},
        {"device": None, "init_scale": None},
        {"init_scale": Symbol("args.scale"), "enabled": Symbol("torch.float16")},
        {"growth_factor": 1.5, "backoff_factor": 0.9},
        {"init_scale": 1.0},
        {"growth_factor": True, "backoff_factor": True, "growth_interval": True},
        {"device": 1024.0, "growth_interval": 1, "enabled": False},
    ],
)
def test_scaler_arguments_that_are_right_or_unknown(arguments: dict[str, Any]) -> None:
    assert scaler(arguments) == {}


@pytest.mark.parametrize(
    "site",
    [
        Site("tests/test_scaler.py", 1),
        Site("conftest.py", 1),
        Site("tests\\test_scaler.py", 1),
        Site("scaler_test.py", 1),
        Site("check.py", 1, function="TestScaler.test_growth"),
        Site("check.py", 9, function="build", caller=Site("check.py", 1, function="test_growth")),
    ],
)
def test_tests_may_choose_odd_scales_but_not_lose_an_argument(site: Site) -> None:
    assert scaler({"growth_interval": 1, "init_scale": 2.0**30}, site) == {}
    assert list(scaler({"device": 1024.0}, site)) == ["scaler:number-as-device"]


GUESSED, KNOWN = {"guessed": True}, {"guessed": False}
HALF: dict[str, Any] = {"guessed": False, "dtype": "half"}
DIVIDED = {"divisor": 4, "framework": "accelerate", "way": "in `accelerator.backward`"}


@pytest.mark.parametrize(
    ("code", "kind", "facts", "label", "says"),
    [
        ("AMP103", events.Backward, {"float8": True}, "backward@float8", "inside TransformerEngine's autocast"),
        ("AMP108", events.DtypeClash, {"how": "module", **HALF}, "clash:module", "given a low-precision tensor"),
        (
            "AMP108",
            events.DtypeClash,
            {"how": "module", **HALF, "dtype": "float16"},
            "clash:module",
            "given a float16 tensor",
        ),
        ("AMP201", events.Clip, {"copies": "O2"}, "clip@copies", "opt_level O2 of apex steps float32 copies"),
        ("AMP201", events.Clip, {"beside": "self.scaler"}, "clip:beside", "gradients that `self.scaler` keeps"),
        (
            "AMP203",
            events.Backward,
            {"beside": "self.scaler"},
            "backward:beside",
            "but `self.scaler` divides its gradients by the scale",
        ),
        ("AMP204", events.Step, {"beside": "self.scaler"}, "plain-step:beside", "`self.scaler`"),
        (
            "AMP302",
            events.DividedTwice,
            DIVIDED,
            "loss:divided-twice",
            "divided by `4`, and accelerate divides it again in `accelerator.backward`:",
        ),
        ("AMP304", events.Window, {"how": "zero"}, "zero@window", "Gradients of `opt` are cleared inside"),
        ("AMP304", events.Window, {"how": "early"}, "window:off-by-one", "`i % k == 0` is already true"),
        ("AMP403", events.SchedulerStep, {"idle": True}, "scheduler:micro-batch", ""),
        ("AMP403", events.SchedulerStep, {"skipped": True}, "scheduler:skipped", ""),
        ("AMP403", events.StepFollowed, {"skipped": True, "how": "average"}, "average:skipped", ""),
        (
            "AMP504",
            events.Loss,
            {"function": "binary_cross_entropy", "ambient": "error"},
            "bce@framework",
            "under autocast if Lightning's `precision` is mixed",
        ),
        (
            "AMP505",
            events.Epsilon,
            {"value": 1.0000001, "how": "to-one", "divides": False, **HALF},
            "epsilon:to-one",
            "low-precision",
        ),
        (
            "AMP505",
            events.Epsilon,
            {"value": 1.0000001, "how": "to-one", "divides": False, **HALF, "dtype": "bfloat16"},
            "epsilon:to-one",
            "bfloat16",
        ),
        ("AMP507", events.FragileMath, {"how": "squares", **HALF}, "fragile:squares", "averages squares"),
        (
            "AMP507",
            events.FragileMath,
            {"how": "log-complement", **HALF, "dtype": "bfloat16"},
            "fragile:log-complement",
            "one minus a probability",
        ),
        ("AMP510", events.LowOp, {"how": "refused", **HALF}, "op:refused", "a low-precision tensor"),
        (
            "AMP510",
            events.LowOp,
            {"how": "inner", **HALF, "dtype": "float16"},
            "op:inner",
            "multiplies matrices in float16 under autocast,",
        ),
        ("AMP511", events.LateScale, KNOWN, "scores:scaled-late", "scales attention scores"),
        ("AMP214", events.Penalty, {}, "penalty@scaled", ""),
        ("AMP214", events.Penalty, {"outdated": True}, "penalty@outdated", ""),
        (
            "AMP602",
            events.ScalerStep,
            {"unsynchronised": "plain"},
            "step@shards-plain",
            "`scaler` checks only the gradient shard of this rank",
        ),
        (
            "AMP602",
            events.ScalerStep,
            {"unsynchronised": "fused"},
            "step@shards-fused",
            "no infinities of the fused `opt`",
        ),
        ("AMP603", events.Clip, {"local": True}, "clip@shards", "the norm of this rank's shard only"),
        ("AMP701", events.Overhead, {"how": "region"}, "cast:each-turn", ""),
        ("AMP701", events.Overhead, {"how": "cache"}, "cast:no-cache", ""),
        (
            "AMP810",
            events.Raised,
            {"label": "raised:known", "values": {"text": "no inf checks", "page": "no-inf-checks"}},
            "raised:known",
            "raised torch's `no inf checks`: run `amp-check explain no-inf-checks`",
        ),
    ],
)
def test_what_one_event_alone_is_found_for(
    code: str, kind: EventKind, facts: dict[str, Any], label: str, says: str
) -> None:
    found = checked(code, kind, facts)
    assert list(found) == [label]
    assert says in found[label]


@pytest.mark.parametrize(
    ("code", "kind", "facts"),
    [
        ("AMP103", events.Backward, {}),
        ("AMP108", events.DtypeClash, {"how": "module", **HALF, **GUESSED}),
        ("AMP201", events.Clip, {}),
        ("AMP203", events.Backward, {}),
        ("AMP204", events.Step, {}),
        ("AMP402", events.Save, {}),
        ("AMP403", events.SchedulerStep, {}),
        ("AMP403", events.StepFollowed, {"how": "average"}),
        ("AMP504", events.Loss, {"function": "binary_cross_entropy"}),
        ("AMP504", events.Loss, {"function": "mse_loss", "ambient": "error"}),
        ("AMP507", events.FragileMath, {"how": "squares", **HALF, "dtype": "bfloat16"}),
        ("AMP510", events.LowOp, {"how": "refused", **HALF, **GUESSED}),
        ("AMP511", events.LateScale, GUESSED),
        ("AMP602", events.ScalerStep, {}),
        ("AMP603", events.Clip, {}),
        ("AMP603", events.Clip, {"local": True, "measures_only": True}),
        ("AMP701", events.Overhead, {"how": "scale"}),
    ],
)
def test_what_one_event_alone_says_nothing_of(code: str, kind: EventKind, facts: dict[str, Any]) -> None:
    assert checked(code, kind, facts) == {}


@pytest.mark.parametrize(
    ("dtypes", "finds"), [({"float16"}, True), (set(), True), ({"bfloat16", "float16"}, True), ({"bfloat16"}, False)]
)
def test_ranks_that_train_in_bfloat16_alone_skip_no_step(dtypes: set[str], finds: bool) -> None:
    program = Program()
    program.attributes.scalers.loss_dtypes = set(dtypes)
    found = checked("AMP602", events.ScalerStep, {"unsynchronised": "plain"}, program=program)
    assert list(found) == ["step@shards-plain"] * finds


def test_a_collapse_of_no_known_cause_names_none() -> None:
    [message] = update(skips=21, steps=500).values()
    assert "many more than the growth of its scale costs: look" in message


def update(**facts: Any) -> dict[str, str]:
    """Return the AMP801 messages after an update of a well-calibrated scaler, except for the given attributes."""
    good = {"scale": 1024.0, "skips_in_a_row": 0, "skips": 6, "steps": 400, "growth_interval": 2000}
    return checked("AMP801", events.Update, {**good, **facts})


@pytest.mark.parametrize(
    ("facts", "label", "says"),
    [
        (
            {"scale": 0.5, "skips_in_a_row": 17, "skips": 17, "steps": 17},
            "scale:below-one",
            "its loss scale to 0.5 after 17",
        ),
        (
            {"scale": 0.0, "skips_in_a_row": 900, "skips": 900, "steps": 1000},
            "scale:below-one",
            "its loss scale to 0 after",
        ),
        ({"scale": 4.0, "skips_in_a_row": 8, "skips": 14}, "scale:skips-in-a-row", "skipped 8 steps in a row"),
        ({"scale": 256.0, "skips_in_a_row": 8, "skips": 8, "steps": 18}, "scale:skips-in-a-row", "at a scale of 256:"),
        ({"skips": 21, "steps": 500}, "scale:skip-rate", "skipped 21 of 500 steps"),
        ({"skips": 400, "steps": 1000, "growth_interval": 100}, "scale:skip-rate", "skipped 400 of 1000"),
        ({"skips": 30, "steps": 5000, "growth_interval": 0}, "scale:skip-rate", "skipped 30 of 5000"),
        ({"skips": 21, "steps": 500, "growth_interval": 0}, "scale:skip-rate", "skipped 21 of 500"),
        ({"skips": 21, "steps": 500, "cause": "The loss was NaN"}, "scale:skip-rate", " (the loss was NaN)"),
    ],
)
def test_scales_that_collapse(facts: dict[str, Any], label: str, says: str) -> None:
    found = update(**facts)
    assert list(found) == [label]
    assert says in found[label]


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"scale": 2.0, "skips_in_a_row": 15, "skips": 15, "steps": 15},
        {"scale": 1.0, "skips_in_a_row": 16, "skips": 16, "steps": 16},
        {"scale": 8.0, "skips_in_a_row": 7, "skips": 13},
        {"scale": 0.5, "skips": 0},
        {"scale": 0.5, "skips_in_a_row": 17, "skips": 17, "steps": 17, "new_scale": True},
        {"skips": 20, "steps": 500},
        {"skips": 60, "steps": 499},
        {"skips": 5017, "steps": 1_000_000, "growth_interval": 600},
        {"skips": 150, "steps": 500, "growth_interval": 10},
        {"scale": None, "steps": 0},
    ],
    ids=str,
)
def test_scales_that_are_sought_or_that_someone_else_sets(facts: dict[str, Any]) -> None:
    assert update(**facts) == {}


@pytest.mark.parametrize(
    ("first", "calibrating"),
    [(2.0**24, True), (2.0**16, False), (1.0, False), (True, False), (Symbol("args.scale"), False)],
)
def test_a_larger_first_scale_takes_longer_to_come_down(first: object, calibrating: bool) -> None:
    program = Program()
    made = program.add_object("scaler", "scaler", None, arguments={"init_scale": first})
    event = events.Update(SITE, made.key, scale=16.0, skips_in_a_row=20, skips=20, steps=20, growth_interval=2000)
    labels = [label for label, _ in RULES["AMP801"].event_checks[events.Update](event, program)]
    assert labels == ([] if calibrating else ["scale:skips-in-a-row"])


def test_a_scheduler_that_runs_ahead_is_checked_by_the_steps_between() -> None:
    assert list(checked("AMP403", events.SchedulerStep, {"skipped": True})) == ["scheduler:skipped"]
    assert list(checked("AMP403", events.SchedulerStep, {"idle": True})) == ["scheduler:micro-batch"]
    assert checked("AMP403", events.SchedulerStep, {"skipped": False, "idle": False}) == {}


def test_violations_that_only_a_run_shows_depend_on_attributes_of_the_event() -> None:
    assert list(checked("AMP109", events.Forward, {"poisoned": True})) == ["forward@poisoned"]
    assert checked("AMP109", events.Forward, {}) == {}
    assert list(checked("AMP217", events.ScalerNew, {"disabled_itself": True})) == ["scaler:disabled-itself"]
    assert checked("AMP217", events.ScalerNew, {"disabled_itself": False}) == {}
    assert list(checked("AMP218", events.GradInvalid, {})) == ["grads:invalid"]


def test_a_closure_is_checked_at_the_step_that_takes_it() -> None:
    assert list(checked("AMP211", events.ScalerStep, {"closure": True})) == ["step-closure"]
    assert checked("AMP211", events.ScalerStep, {"closure": False}) == {}
    assert checked("AMP211", events.ScalerStep, {}) == {}


def save(**facts: Any) -> Event:
    base = {"optimizers": ("opt",), "scalers": (), "whole_scalers": (), "open": False, "scope_scalers": ("scaler",)}
    return events.Save(SITE, **{**base, **facts})


def saving(*saves: Event, **facts: Any) -> Program:
    program = Program()
    program.add_object("optimizer", "self.optimizer")
    set_attributes(program, **facts)
    graph = Graph("main")
    graph.nodes = [Node(), *(Node(event) for event in saves)]
    program.graphs = [graph]
    return program


def unsaved(*saves: Event, **facts: Any) -> list[tuple[str, dict[str, str]]]:
    program = saving(*saves, **facts)
    check = RULES["AMP401"].program_checks[events.Save]
    return [(label, dict(values)) for label, _, values, _ in check(program)]


def test_a_checkpoint_with_an_optimizer_and_no_scaler_is_found_once() -> None:
    scaler = {"scaler": "scaler", "kept_scaler": "scaler", "if_any": ""}
    assert unsaved(save()) == [("save:no-scaler", {"optimizer": "opt", **scaler})]
    assert unsaved(save(optimizers=(0,))) == [("save:no-scaler", {"optimizer": "self.optimizer", **scaler})]
    program = saving(save(), save())
    program.graphs *= 2
    assert len(check(program, frozenset({"AMP401"}))) == 1
    assert unsaved(save(), loss_dtypes=("float16", "bfloat16"))


@pytest.mark.parametrize(
    "facts",
    [
        {"optimizers": ()},
        {"scalers": ("scaler",)},
        {"whole_scalers": ("scaler",)},
        {"open": True},
        {"scope_scalers": ()},
    ],
    ids=str,
)
def test_checkpoints_that_need_no_scaler_or_may_have_one(facts: dict[str, Any]) -> None:
    assert unsaved(save(**facts)) == []


def test_a_scaler_over_bfloat16_has_nothing_to_save() -> None:
    assert unsaved(save(), loss_dtypes=("bfloat16",)) == []


def test_a_scaler_saved_as_an_object_is_named() -> None:
    program = Program()
    program.add_object("scaler", "self.scaler")
    found = checked("AMP402", events.Save, {"whole_scalers": (0,)}, program=program)
    assert "`self.scaler`" in found["save:whole-scaler"]
    for whole in (("grad_scaler",), ("grad_scaler", "other")):
        assert "`grad_scaler`" in checked("AMP402", events.Save, {"whole_scalers": whole})["save:whole-scaler"]
    assert checked("AMP402", events.Save, {"whole_scalers": ()}) == {}


@pytest.mark.parametrize(
    ("step", "event", "expected"),
    [
        ({}, {}, ["scale:told"]),
        # At another location, with another scaler, on the CPU anyway, and once.
        ({}, {"loops": (2,)}, []),
        ({}, {"subject": 7}, []),
        ({"device": "cpu"}, {}, []),
        ({"loops": ()}, {"loops": ()}, []),
        ({"loops": (-1,)}, {"loops": (-1,)}, []),
        # In some iterations.
        ({}, {"guards": ((1, True),)}, []),
        ({"guards": ((1, True),)}, {"guards": ((1, True),)}, ["scale:told"]),
        ({"guards": ((1, True),)}, {}, ["scale:told"]),
        ({}, {"how": "region"}, []),
        # Clears that write zeros.
        ({"device": "cuda"}, {"zeros": True, "owners": (1,)}, ["zero:zeros"]),
        ({"device": "cpu"}, {"zeros": True, "owners": (1,)}, []),
        ({}, {"zeros": True, "owners": ()}, []),
        ({}, {"zeros": False, "owners": (1,)}, []),
        ({}, {"zeros": True, "owners": (1,), "loops": (1, 2)}, []),
    ],
)
def test_what_is_done_at_each_step(step: dict[str, Any], event: dict[str, Any], expected: list[str]) -> None:
    program = Program()
    scaler, optimizer = program.add_object("scaler", "scaler"), program.add_object("optimizer", "optimizer")
    if "device" in step:
        scaler.attributes.device = step["device"]
    kind = events.ZeroGrad if "zeros" in event else events.Overhead
    facts = {"loops": (1,), **({} if "zeros" in event else {"how": "scale"}), **event}
    subject, guards = facts.pop("subject", scaler.key), facts.pop("guards", ())
    made = kind(SITE, subject, None, **facts)
    stepped = events.ScalerStep(SITE, scaler.key, optimizer.key, loops=step.get("loops", (1,)))
    made.guards, stepped.guards = guards, step.get("guards", ())
    graph = Graph("main")
    graph.nodes = [Node(stepped), Node(made)]
    program.graphs = [graph]
    (check,) = RULES["AMP701"].program_checks.values()
    assert [label for label, *_ in check(program)] == expected


def test_negative_examples_are_found_with_their_reasons() -> None:
    found = negative_examples(RULES["AMP203"])
    assert [reason for reason, _ in found][:2] == [
        "the loss is scaled",
        "the raw backward belongs to the branch without a scaler",
    ]
    assert all(source and not source.startswith("\n") for _, source in found)


def test_a_rule_has_nothing_that_rules_do_not_have() -> None:
    with pytest.raises(AttributeError, match="proof"):
        _ = RULES["AMP201"].proof  # type: ignore[attr-defined]


def test_each_label_is_counted_once() -> None:
    assert len(LABELS) == sum(len(rule.violations) for rule in RULES.values())
