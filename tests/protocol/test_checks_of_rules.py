"""The checks of single events and of whole programs, on manually created events."""

from __future__ import annotations

import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from event_fields import set_attributes

from pytest_amp_check import check_source
from pytest_amp_check.protocol import events, rules
from pytest_amp_check.protocol.event_graph import Graph, Node, Program
from pytest_amp_check.protocol.events import UNKNOWN, Event, EventKind, Symbol
from pytest_amp_check.protocol.rule import Rule
from pytest_amp_check.protocol.sites import Site
from pytest_amp_check.protocol.torch_api import BFLOAT16_OR_FLOAT32

#: Rules of the families whose checks mainly use attributes.
RULES = {code: rule for code, rule in rules.RULES.items() if code.startswith(("AMP1", "AMP5", "AMP9"))}
SITE = Site("train.py", 1)
#: Names from analyzer and recorder. A template may use these names and the values of its check.
COMMON_NAMES = {
    "call",
    "context",
    "loss",
    "module",
    "optimizer",
    "python",
    "running",
    "function",
    "scaler",
    "tensor",
    "window",
    "reason",
    "remedy",
    "region",
    "constructor",
    "enabled",
    "float16_only",
}


def check_message(rule: Rule, label: str, values: Mapping[str, str]) -> str:
    """Render the message of a violation. Fail if the rule lacks the label or the template needs other names."""
    template = rule.violations[label].message
    wanted = {field for _, field, _, _ in string.Formatter().parse(template) if field}
    assert wanted <= COMMON_NAMES | set(values), f"{rule.code} {label} asks for {wanted - set(values)}"
    return template.format(**{name: f"<{name}>" for name in COMMON_NAMES} | dict(values))


def labels_of(
    code: str, kind: EventKind, program: Program | None = None, subject: int | None = None, **facts: Any
) -> list[str]:
    """Return the labels that a rule reports for one event, after rendering each message."""
    rule = RULES[code]
    labels = []
    for label, values in rule.event_checks[kind](kind(SITE, subject=subject, **facts), program or Program()):
        check_message(rule, label, values)
        labels.append(label)
    return labels


def messages(code: str, kind: EventKind, **facts: Any) -> list[str]:
    rule = RULES[code]
    return [check_message(rule, *verdict) for verdict in rule.event_checks[kind](kind(SITE, **facts), Program())]


def program_of(*found: Event, **facts: Any) -> Program:
    program = Program()
    graph = Graph("train")
    graph.nodes = [Node(event) for event in (None, *found)]
    program.graphs = [graph]
    set_attributes(program, **facts)
    return program


def check_whole(code: str, program: Program) -> list[tuple[str, Event]]:
    rule = RULES[code]
    (check_of_program,) = rule.program_checks.values()
    verdicts = []
    for label, event, values, _ in check_of_program(program):
        check_message(rule, label, values)
        verdicts.append((label, event))
    return verdicts


def autocast_labels(function: str, arguments: dict[str, object], excess: int = 0) -> list[str]:
    return labels_of("AMP106", events.AutocastNew, callable=function, arguments=arguments, excess=excess)


FLOAT16, BFLOAT16 = Symbol("torch.float16"), Symbol("torch.bfloat16")
FLOAT32, DOUBLE = Symbol("torch.float32"), Symbol("torch.double")
DEVICE = Symbol("torch.device()")


@pytest.mark.parametrize("how", ["expression", "generator", "yield", "script"])
def test_each_kind_of_lost_scope_has_its_label(how: str) -> None:
    assert labels_of("AMP105", events.ScopeLost, how=how) == [f"scope:{how}"]


@pytest.mark.parametrize(
    ("arguments", "labels"),
    [
        ({}, ["autocast:no-device"]),
        ({"dtype": FLOAT16}, ["autocast:no-device"]),
        ({"device_type": DEVICE}, ["autocast:device-object"]),
        ({"device_type": DEVICE, "dtype": FLOAT32}, ["autocast:device-object"]),
        ({"device_type": True}, ["autocast:not-a-device"]),
        ({"device_type": False}, ["autocast:not-a-device"]),
        ({"device_type": None}, ["autocast:not-a-device"]),
        ({"device_type": 0}, ["autocast:not-a-device"]),
        ({"device_type": FLOAT16}, ["autocast:not-a-device"]),
        ({"device_type": "gpu"}, ["autocast:unknown-device"]),
        ({"device_type": "gpu:0"}, ["autocast:unknown-device"]),
        ({"device_type": "CUDA"}, ["autocast:unknown-device"]),
        ({"device_type": ""}, ["autocast:unknown-device"]),
        ({"device_type": "cpu:"}, ["autocast:unknown-device"]),
        ({"device_type": "cuda:all"}, ["autocast:unknown-device"]),
        ({"device_type": "meta"}, ["autocast:unknown-device"]),
        ({"device_type": "cuda:0"}, ["autocast:indexed-device"]),
        ({"device_type": "cpu:0", "dtype": FLOAT32}, ["autocast:indexed-device", "autocast:unsupported-dtype"]),
        ({"device_type": "cuda", "dtype": True}, ["autocast:bool-dtype"]),
        ({"device_type": "cpu", "dtype": False}, ["autocast:bool-dtype"]),
        ({"device_type": "cuda", "dtype": 1}, ["autocast:bool-dtype"]),
        ({"device_type": "cuda", "dtype": "float16"}, ["autocast:string-dtype"]),
        ({"device_type": "cpu", "dtype": "torch.float32"}, ["autocast:string-dtype"]),
        ({"device_type": "cpu", "dtype": True, "enabled": False}, ["autocast:bool-dtype"]),
        ({"device_type": "cpu", "dtype": FLOAT32}, ["autocast:unsupported-dtype"]),
        ({"device_type": "cpu", "dtype": DOUBLE, "enabled": UNKNOWN}, ["autocast:unsupported-dtype"]),
        ({"device_type": "mps", "dtype": FLOAT32}, ["autocast:unsupported-dtype"]),
        ({"device_type": "cuda", "enabled": 1}, ["autocast:not-a-bool"]),
        ({"device_type": "cuda", "enabled": None}, ["autocast:not-a-bool"]),
        ({"device_type": "cuda", "enabled": "true"}, ["autocast:not-a-bool"]),
        ({"device_type": "cuda", "enabled": FLOAT16}, ["autocast:dtype-as-enabled"]),
        ({"device_type": "cuda", "enabled": DEVICE}, ["autocast:device-as-enabled"]),
        ({"device_type": "cuda", "cache_enabled": 0}, ["autocast:not-a-bool"]),
        ({"device_type": "cuda", "enable": True}, ["autocast:unknown-argument"]),
    ],
)
def test_autocast_arguments_that_torch_rejects(arguments: dict[str, object], labels: list[str]) -> None:
    assert autocast_labels("torch.autocast", arguments) == labels


@pytest.mark.parametrize(
    "arguments",
    [
        {"device_type": "cuda"},
        {"device_type": "cuda", "dtype": FLOAT16, "enabled": True, "cache_enabled": False},
        {"device_type": "cuda", "dtype": FLOAT32},
        {"device_type": "cuda", "dtype": DOUBLE},
        {"device_type": "cuda", "dtype": None, "cache_enabled": None},
        {"device_type": "cpu", "dtype": BFLOAT16},
        {"device_type": "cpu", "dtype": Symbol("torch.half")},
        {"device_type": "cpu", "dtype": FLOAT32, "enabled": False},
        {"device_type": "cpu", "dtype": UNKNOWN, "enabled": UNKNOWN, "cache_enabled": UNKNOWN},
        {"device_type": UNKNOWN, "dtype": FLOAT32},
        {"device_type": Symbol("args.DEVICE")},
        {"device_type": "npu", "dtype": FLOAT32},
        {"device_type": "mlu"},
        {"**": UNKNOWN},
        {"*": UNKNOWN, "enabled": UNKNOWN},
    ],
)
def test_autocast_arguments_that_torch_takes(arguments: dict[str, object]) -> None:
    assert autocast_labels("torch.autocast", arguments) == []


@pytest.mark.parametrize(
    ("function", "arguments", "labels"),
    [
        ("torch.cuda.amp.autocast", {}, []),
        ("torch.cuda.amp.autocast", {"enabled": True, "dtype": BFLOAT16}, []),
        ("torch.cuda.amp.autocast", {"dtype": FLOAT32}, []),
        ("torch.cuda.amp.autocast", {"enabled": "cuda"}, ["autocast:device-as-enabled"]),
        ("torch.cuda.amp.autocast", {"enabled": DEVICE}, ["autocast:device-as-enabled"]),
        ("torch.cuda.amp.autocast", {"enabled": FLOAT16}, ["autocast:dtype-as-enabled"]),
        ("torch.cuda.amp.autocast", {"device_type": "cuda"}, ["autocast:unknown-argument"]),
        ("torch.cpu.amp.autocast", {"dtype": FLOAT32}, ["autocast:unsupported-dtype"]),
        ("torch.cpu.amp.autocast", {"dtype": FLOAT16}, []),
    ],
)
def test_the_old_entry_points_take_enabled_first(
    function: str, arguments: dict[str, object], labels: list[str]
) -> None:
    assert autocast_labels(function, arguments) == labels


def test_arguments_that_do_not_bind() -> None:
    assert autocast_labels("torch.autocast", {"device_type": "cuda"}, excess=1) == ["autocast:too-many"]
    assert autocast_labels("torch.cuda.amp.autocast", {}, excess=1) == ["autocast:too-many"]


def test_a_callable_that_the_table_does_not_know_is_not_checked() -> None:
    assert autocast_labels("project.autocast", {"enable": True}) == []


def test_messages_of_autocast_arguments_name_the_value() -> None:
    def message(**arguments: object) -> str:
        [text] = messages("AMP106", events.AutocastNew, callable="torch.autocast", arguments=arguments, excess=0)
        return text

    assert "'gpu'" in message(device_type="gpu")
    assert "pass 'cuda'" in message(device_type="cuda:0")
    assert "`enabled=True`" in message(device_type="cuda", dtype=1)
    assert "given 1 as `enabled`" in message(device_type="cuda", enabled=1)
    assert "given 0 as `cache_enabled`" in message(device_type="cuda", cache_enabled=0)
    assert "so a torch.device lands in" in message(device_type="cuda", enabled=DEVICE)
    assert "`torch.double`, which cpu autocast" in message(device_type="cpu", dtype=DOUBLE)
    assert "device_type, dtype, enabled, cache_enabled" in message(device_type="cuda", enable=True)


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        ({"autocast": "out", "loss_in_region": True}, True),
        ({"autocast": "out", "loss_in_region": False}, False),
        ({"autocast": "in", "loss_in_region": True}, False),
        ({"autocast": "unknown", "loss_in_region": True}, False),
        ({}, False),
    ],
)
def test_a_loss_alone_in_the_region(facts: dict[str, Any], found: bool) -> None:
    scale = scale_of(0, **facts)
    program = scaling_program(scale, enters_autocast=True)
    assert check_whole("AMP110", program) == ([("scale@forward-outside", scale)] if found else [])


def test_the_forward_is_blamed_where_it_is_known() -> None:
    forward = events.Forward(SITE)
    program = scaling_program(scale_of(0, autocast="out", loss_in_region=True, forward=forward), enters_autocast=True)
    assert check_whole("AMP110", program) == [("scale@forward-outside", forward)]


def scale_of(subject: int, **facts: Any) -> Event:
    return events.Scale(SITE, subject=subject, **facts)


def scaling_program(*found: Event, scalers: int = 1, **facts: Any) -> Program:
    program = program_of(*found, **facts)
    program.attributes.scalers.live_scalers = [program.add_object("scaler", f"scaler{n}") for n in range(scalers)]
    return program


def test_a_program_without_autocast_is_found_at_the_forward_that_was_read() -> None:
    hidden, read = scale_of(0, forward_read=False), scale_of(0, forward_read=True)
    program = scaling_program(hidden, read, scale_of(0, forward_read=True), enters_autocast=False)
    assert check_whole("AMP110", program) == [("scale@no-autocast", read)]


def test_a_model_that_was_not_read_may_enter_autocast_itself() -> None:
    scale = scale_of(0, forward_read=False)
    assert check_whole("AMP110", scaling_program(scale, enters_autocast=False)) == [
        ("scale@no-autocast-unknown", scale)
    ]
    assert RULES["AMP110"].violations["scale@no-autocast-unknown"].severity == "info"


def test_each_scaler_without_autocast_is_found_once() -> None:
    first, second = scale_of(0, forward_read=True), scale_of(1, forward_read=True)
    program = scaling_program(first, second, first, scalers=2, enters_autocast=False)
    assert check_whole("AMP110", program) == [("scale@no-autocast", first), ("scale@no-autocast", second)]


def test_programs_without_autocast_that_are_right() -> None:
    scale = scale_of(0, forward_read=True)
    half = events.ModuleCast(SITE, subject=5, dtype="float16")
    assert check_whole("AMP110", scaling_program(scale, enters_autocast=True)) == []
    assert check_whole("AMP110", scaling_program(scale)) == []
    assert check_whole("AMP110", scaling_program(scale, half, enters_autocast=False)) == []
    assert check_whole("AMP110", scaling_program(scale, scalers=0, enters_autocast=False)) == []


@pytest.mark.parametrize(
    ("cast", "subject", "in_another_function", "found"),
    [
        # The model itself, another model, and a model known only by name.
        ({}, "model", False, False),
        ({}, "other", False, True),
        ({}, None, False, False),
        ({"called": ("model", "net")}, None, False, False),
        ({"called": ("net",)}, None, False, True),
        # In an entry point, the cast object may be an argument with any name.
        ({"called": ("net",), "given": True}, None, False, True),
        ({"called": ("net",), "given": True}, None, True, False),
        ({"called": ("net",), "given": False}, None, True, True),
        ({"dtype": "bfloat16"}, "model", False, True),
    ],
)
def test_what_is_float16_by_hand_needs_the_scaler_too(
    cast: dict[str, Any], subject: str | None, in_another_function: bool, found: bool
) -> None:
    forward = events.Forward(SITE)
    program = scaling_program(scale_of(0, autocast="out", loss_in_region=True, forward=forward), enters_autocast=True)
    modules = {name: program.add_object("module", f"self.{name}") for name in ("model", "other")}
    forward.subject = modules["model"].key
    half = events.ModuleCast(SITE, **{"dtype": "float16", **cast})
    half.subject = modules[subject].key if subject is not None else None
    if in_another_function:
        program.graphs.append(Graph("convert"))
    program.graphs[-1].nodes.append(Node(half))
    assert check_whole("AMP110", program) == ([("scale@forward-outside", forward)] if found else [])


@pytest.mark.parametrize(
    ("facts", "label"),
    [
        ({"bare": True, "forward_read": True}, "scale@outside-autocast"),
        ({"bare": True}, "scale@outside-autocast-unknown"),
        ({"bare": True, "forward_read": True, "float32": False}, ""),
        ({"bare": False, "forward_read": True}, ""),
    ],
)
def test_a_loss_outside_of_the_regions_that_there_are(facts: dict[str, Any], label: str) -> None:
    scale = scale_of(0, **facts)
    assert check_whole("AMP110", scaling_program(scale, enters_autocast=True)) == ([(label, scale)] if label else [])


def test_trained_modules_are_not_cast() -> None:
    def cast(subject: int, dtype: str) -> Event:
        return events.ModuleCast(SITE, subject=subject, dtype=dtype)

    half, low, frozen, full = cast(1, "float16"), cast(1, "bfloat16"), cast(2, "bfloat16"), cast(1, "float32")
    program = program_of(half, low, frozen, full, trained_modules={1})
    assert check_whole("AMP501", program) == [("cast:trained", half), ("cast:trained", low)]
    program.attributes.scalers.live_scalers = [program.add_object("scaler", "scaler")]
    assert check_whole("AMP501", program) == [("cast:trained-scaled", half), ("cast:trained", low)]
    assert RULES["AMP501"].violations["cast:trained-scaled"].severity == "error"
    assert check_whole("AMP501", program_of(half)) == []


@pytest.mark.parametrize(
    ("scaled", "dtypes", "alone", "labels"),
    [
        (False, {"float16"}, True, ["backward:no-scaler"]),
        (True, {"float16"}, True, []),
        (False, {"float16"}, False, []),
        (False, {"bfloat16"}, True, []),
        (False, {"float16", "?"}, True, []),
        (False, {"?"}, True, []),
        (False, set(), True, []),
    ],
)
def test_float16_needs_a_scaler(scaled: bool, dtypes: set[str], alone: bool, labels: list[str]) -> None:
    assert (
        labels_of("AMP502", events.Backward, scaling=events.LossScaling(scaled), dtypes=frozenset(dtypes), alone=alone)
        == labels
    )


@pytest.mark.parametrize(
    ("dtypes", "facts", "labels"),
    [
        ({"bfloat16"}, {}, ["scale:bf16"]),
        ({"bfloat16"}, {"enabled": True}, ["scale:bf16"]),
        ({"bfloat16"}, {"enabled": False}, []),
        ({"bfloat16"}, {"enabled": UNKNOWN}, []),
        ({"bfloat16", "float16"}, {}, []),
        ({"bfloat16", BFLOAT16_OR_FLOAT32}, {}, ["scale:bf16"]),
        ({BFLOAT16_OR_FLOAT32}, {}, ["scale:bf16"]),
        ({BFLOAT16_OR_FLOAT32, "float16"}, {}, []),
        ({"?"}, {}, []),
        ({"float16"}, {}, []),
        (set(), {}, []),
    ],
)
def test_bfloat16_needs_no_scaler(dtypes: set[str], facts: dict[str, Any], labels: list[str]) -> None:
    program = Program()
    scaler = program.add_object("scaler", "scaler", **facts)
    assert labels_of("AMP503", events.Scale, program, scaler.key, dtypes=frozenset(dtypes)) == labels


def test_bfloat16_needs_no_scaler_that_is_not_known_either() -> None:
    assert labels_of("AMP503", events.Scale, dtypes=frozenset({"bfloat16"})) == ["scale:bf16"]


@pytest.mark.parametrize(
    ("value", "eligible", "labels"),
    [
        (-1e9, True, ["fill:overflow"]),
        (65505.0, True, ["fill:overflow"]),
        (-1e9, False, []),
        (65504.0, True, []),
        (-1e4, True, []),
        (float("-inf"), True, []),
        (float("nan"), True, []),
    ],
)
def test_constants_beyond_float16(value: float, eligible: bool, labels: list[str]) -> None:
    assert labels_of("AMP506", events.Fill, value=value, eligible=eligible) == labels


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"value": 1e-8}, ("epsilon:add", "")),
        ({"value": 2.0**-25}, ("epsilon:add", "")),
        ({"value": 1e-8, "guessed": True}, ("epsilon:add", "info")),
        ({"value": 1e-8, "dtype": "half"}, ("epsilon:add", "info")),
        ({"value": 1e-7}, None),
        # A quotient with this divisor exceeds the range of float16.
        ({"value": 1e-5, "divides": True}, ("epsilon:small", "")),
        ({"value": 1e-5, "divides": True, "guessed": True}, None),
        ({"value": 1e-5, "divides": True, "dtype": "half"}, None),
        ({"value": 1e-4, "divides": True}, None),
        ({"value": 2e-5, "divides": True}, None),
        ({"value": 1 / 65504, "divides": True}, None),
        ({"value": 1.0000001, "how": "to-one"}, ("epsilon:to-one", "")),
        ({"value": 1.0000001, "how": "to-one", "dtype": "bfloat16"}, ("epsilon:to-one", "")),
        ({"value": 1.0000001, "how": "to-one", "dtype": "half"}, ("epsilon:to-one", "info")),
        ({"value": 1.0000001, "how": "to-one", "guessed": True}, ("epsilon:to-one", "info")),
    ],
)
def test_epsilons_that_low_precision_does_not_hold(facts: dict[str, Any], expected: tuple[str, str] | None) -> None:
    whole = {"guessed": False, "dtype": "float16", "how": "add", "divides": False, **facts}
    verdicts = RULES["AMP505"].event_checks[events.Epsilon](events.Epsilon(SITE, **whole), Program())
    assert [(label, values.get("severity", "")) for label, values in verdicts] == ([expected] if expected else [])


@pytest.mark.parametrize(
    ("facts", "label", "severity", "dtype"),
    [
        ({}, "sum:low", "", "float16"),
        ({"guessed": True}, "sum:low", "info", "float16"),
        ({"dtype": "half"}, "sum:low", "", "low precision"),
        ({"stands": True}, "sum:still", "", "float16"),
        ({"stands": True, "guessed": True}, "sum:still", "", "float16"),
    ],
)
def test_sums_in_low_precision(facts: dict[str, Any], label: str, severity: str, dtype: str) -> None:
    whole = {"guessed": False, "dtype": "float16", **facts}
    verdicts = RULES["AMP508"].event_checks[events.LowSum](events.LowSum(SITE, **whole), Program())
    (reported,) = [(said, values.get("severity", ""), values["dtype"]) for said, values in verdicts]
    assert reported == (label, severity, dtype)


def test_the_limit_that_is_proposed_has_the_sign_of_the_constant() -> None:
    [low] = messages("AMP506", events.Fill, value=-1e9, eligible=True)
    [high] = messages("AMP506", events.Fill, value=1e6, eligible=True)
    assert "-1e+09" in low
    assert "`torch.finfo(<tensor>.dtype).min`" in low
    assert "1e+06" in high
    assert "`torch.finfo(<tensor>.dtype).max`" in high


@pytest.mark.parametrize(
    ("facts", "site", "reported"),
    [
        ({}, SITE, ("fill:overflow", "error")),
        ({"bound": True}, SITE, ("fill:bound", "error")),
        ({"guessed": True}, SITE, ("fill:overflow", "warning")),
        ({"guessed": True}, Site("tests/test_masks.py", 1), None),
        ({}, Site("tests/test_masks.py", 1), ("fill:overflow", "error")),
    ],
)
def test_where_autocast_is_guessed_a_constant_is_doubtful(
    facts: dict[str, Any], site: Site, reported: tuple[str, str] | None
) -> None:
    event = events.Fill(site, **{"value": -1e9, "eligible": True, **facts})
    verdicts = RULES["AMP506"].event_checks[events.Fill](event, Program())
    assert [(label, values["severity"]) for label, values in verdicts] == ([reported] if reported else [])


@pytest.mark.parametrize(
    ("facts", "severity"),
    [
        ({"dtype": "float16", "guessed": False}, ""),
        ({"dtype": "half", "guessed": False}, "info"),
        ({"dtype": "float16", "guessed": True}, "info"),
    ],
)
def test_where_a_dtype_is_guessed_fragile_math_is_doubtful(facts: dict[str, Any], severity: str) -> None:
    event = events.FragileMath(SITE, **{"how": "squares", **facts})
    [(label, values)] = RULES["AMP507"].event_checks[events.FragileMath](event, Program())
    assert (label, values.get("severity", "")) == ("fragile:squares", severity)


@pytest.mark.parametrize(
    ("facts", "known", "reported"),
    [
        ({"dtype": "bfloat16"}, {}, ("cast:trained", "")),
        (
            {"dtype": "bfloat16"},
            {"scaled_modules": {1}},
            ("cast:trained", ", and GradScaler cannot unscale their gradients on CUDA"),
        ),
        ({"dtype": "bfloat16"}, {"scaled_modules": {2}}, ("cast:trained", "")),
        ({"dtype": "float16"}, {"scaled_modules": {2}}, ("cast:trained", "")),
        ({"dtype": "float16"}, {"scaled_modules": {1}}, ("cast:trained-scaled", "")),
        ({"dtype": "bfloat16", "trained": False}, {}, None),
        ({"dtype": "bfloat16", "trained": True, "how": "made"}, {}, ("made:trained", "")),
    ],
)
def test_what_a_cast_of_trained_weights_says(
    facts: dict[str, Any], known: dict[str, Any], reported: tuple[str, str] | None
) -> None:
    cast = events.ModuleCast(SITE, subject=1, **facts)
    (check_of_program,) = RULES["AMP501"].program_checks.values()
    found = [
        (label, values.get("refused", ""))
        for label, _, values, _ in check_of_program(program_of(cast, trained_modules={1}, **known))
    ]
    assert len(found) == bool(reported)
    for label, refused in found:
        assert reported is not None
        assert label == reported[0]
        assert refused.endswith(reported[1])
        assert bool(refused) == bool(reported[1])


@pytest.mark.parametrize(
    ("old", "new", "label", "words"),
    [
        ("torch.cuda.amp.autocast", "torch.amp.autocast('cuda', ...)", "deprecated:autocast", "by name"),
        ("torch.cpu.amp.autocast", "torch.amp.autocast('cpu', ...)", "deprecated:autocast", "by name"),
        (
            "torch.cuda.amp.GradScaler",
            "torch.amp.GradScaler('cuda', ...)",
            "deprecated:scaler",
            "takes the device before",
        ),
        (
            "torch.cpu.amp.GradScaler",
            "torch.amp.GradScaler('cpu', ...)",
            "deprecated:scaler",
            "takes the device before",
        ),
        ("torch.cuda.amp.custom_fwd", "torch.amp.custom_fwd(device_type='cuda')", "deprecated", "use"),
        ("torch.get_autocast_gpu_dtype", "torch.get_autocast_dtype('cuda')", "deprecated", "use"),
        ("torch.nn.utils.clip_grad_norm", "torch.nn.utils.clip_grad_norm_", "deprecated", "use"),
    ],
)
def test_deprecated_entry_points_name_the_new_call(old: str, new: str, label: str, words: str) -> None:
    assert labels_of("AMP901", events.Deprecated, old=old, new=new) == [label]
    [message] = messages("AMP901", events.Deprecated, old=old, new=new)
    assert message.startswith(f"`{old}` is deprecated: use `{new}`")
    assert words in message


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_messages_of_violations_without_a_check_use_common_names(rule: Rule) -> None:
    for label in rule.violations if not rule.event_checks and not rule.program_checks else ():
        assert check_message(rule, label, {})


def test_a_name_that_is_not_known_is_called_as_everybody_calls_it() -> None:
    text = (Path(__file__).parents[2] / "fixtures" / "scaling" / "zero_grad_misplaced_never_bad.py").read_text(
        encoding="utf-8"
    )
    (finding,) = [f for f in check_source(text) if f.code == "AMP215"]
    assert "write `optimizer.zero_grad()` after the step" in finding.message
