"""The fixes, by the rules whose findings they put right."""

from __future__ import annotations

import ast
import re

from ..protocol.finding import Finding
from ..protocol.fix import Edit
from ..protocol.words import chain
from . import reorder
from .edits import shrunk
from .layout import FUNCTIONS, Layout, Unfit
from .reorder import Fixer, Mended, method

#: The methods that fill where a mask or an index says, and the place of the value among their arguments.
FILLS = {"masked_fill": 1, "masked_fill_": 1, "index_fill": 2, "index_fill_": 2}
#: The smallest number that float16 holds.
SMALLEST = -65504


# AMP106.


def device_type(layout: Layout, finding: Finding) -> Mended:
    from . import rewrite
    from .migrate import means_one_thing

    call = layout.at(finding.site, ast.Call)
    line, column = layout.span(call)[:2]
    source = layout.source(call)
    called = chain(call.func) or ""
    # What has the name by an import alone is autocast on every path.
    if called.rpartition(".")[2] != "autocast" or not means_one_thing(layout, called.partition(".")[0]):
        raise Unfit
    if finding.label == "autocast:device-object":
        given = next((k.value for k in call.keywords if k.arg == "device_type"), None) or next(iter(call.args), None)
        if given is None or (chain(given) is None and not isinstance(given, ast.Call)):
            raise Unfit
        value = f"{layout.source(given)}.type"
        changed = rewrite.argument(source, 0, "device_type", value)
        return f"Pass the type of the device: `{value}`", [shrunk(line, column, source, changed)]
    if finding.label == "autocast:no-device" and not call.args:
        devices = _devices(layout)
        if len(devices) != 1:
            raise Unfit
        changed = rewrite.call(source, first=[f'device_type="{devices.pop()}"'])
        return "Pass the device type", [shrunk(line, column, source, changed)]
    raise Unfit


def _devices(layout: Layout) -> set[str]:
    """The types of device that a file speaks of."""
    found = {"cuda"} if re.search(r"\.cuda\b", layout.text) else set()
    for node in layout.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            match = re.match(r"(cuda|cpu|xpu|mps|hpu|npu)(?::\d*)?$", node.value)
            if match:
                found.add(match.group(1))
    return found


# AMP213.


def drop_error(layout: Layout, finding: Finding) -> Mended:
    from . import rewrite

    call = layout.at(finding.site, ast.Call)
    line, column = layout.span(call)[:2]
    source = layout.source(call)
    if all(keyword.arg != "error_if_nonfinite" for keyword in call.keywords):
        raise Unfit
    changed = rewrite.call(source, drop="error_if_nonfinite")
    return "Drop `error_if_nonfinite`", [shrunk(line, column, source, changed)]


# AMP401.


def save_scaler(layout: Layout, finding: Finding) -> Mended:
    """Puts the scaler's state beside the optimizer's, and where that is loaded in the same file loads it again."""
    from . import rewrite

    scaler = finding.names.get("scaler", "")
    state = layout.at(finding.site, ast.Call)
    saved = method(state, "state_dict")
    if saved is None or not _is_name(scaler):
        raise Unfit
    optimizer = reorder.named(layout, saved)
    mapping, key = _entry(layout, state)
    scope = layout.scope(state)
    _there(layout, scope, scaler, state.lineno)
    name = _key_of_scaler(key)
    if f'"{name}"' in layout.text or f"'{name}'" in layout.text:
        raise Unfit
    source = layout.source(mapping)
    quoted = name
    if isinstance(mapping, ast.Dict):
        at = next(number for number, value in enumerate(mapping.values) if value is state)
        written = layout.source(mapping.keys[at] or state)
        quoted = f"{written[0]}{name}{written[0]}"
        if written[0] not in "'\"":
            raise Unfit
    changed = rewrite.item(source, quoted, f"{scaler}.state_dict()")
    edits = [shrunk(*layout.span(mapping)[:2], source, changed)]
    for load in layout.calls(layout.tree, "load_state_dict"):
        on = method(load, "load_state_dict")
        if on is None or layout.source(on) != optimizer:
            continue
        edits.append(_loaded(layout, load, key, name, scaler))
    if edits[1:]:
        return "Save the scaler's state with the optimizer's, and load it where that is loaded", edits
    if any(chain(load.func) == "torch.load" for load in layout.calls(layout.tree, "load")) or any(
        isinstance(node, ast.Call)
        and re.search("load|resume|restore", (chain(node.func) or "").rpartition(".")[2])
        and any(chain(given) == optimizer for given in [*node.args, *(k.value for k in node.keywords)])
        for node in layout.nodes
    ):
        # Somebody is given the checkpoint who would not load it: then the finding would be gone, and the mistake not.
        raise Unfit
    return "Save the scaler's state with the optimizer's; load it where a run is resumed", edits


def _is_name(text: str) -> bool:
    return bool(re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", text))


def _entry(layout: Layout, state: ast.Call) -> tuple[ast.Dict | ast.Call, str]:
    """The literal dictionary whose value a state is, and its key there."""
    parent = layout.parents[state]
    if isinstance(parent, ast.Dict):
        for key, value in zip(parent.keys, parent.values, strict=True):
            if value is state and isinstance(key, ast.Constant) and isinstance(key.value, str):
                return parent, key.value
    if isinstance(parent, ast.keyword):
        call = layout.parents[parent]
        if isinstance(call, ast.Call) and chain(call.func) == "dict" and parent.arg:
            return call, parent.arg
    raise Unfit


def _key_of_scaler(key: str) -> str:
    for word in ("optimizer", "optim", "opt"):
        if re.fullmatch(rf"{word}(_state(_dict)?)?", key):
            return key.replace(word, "scaler", 1)
    return "scaler"


def _there(layout: Layout, scope: ast.AST, scaler: str, line: int) -> None:
    """Raises where the scaler need not exist, or not under this name."""
    if reorder.may_be_none(layout, scope, scaler):
        raise Unfit
    top, _, attribute = scaler.partition(".")
    if attribute:
        # An attribute is there if the class, or whoever made the object, has put a scaler in.
        owner = next((each for each in layout.around(scope) if isinstance(each, ast.ClassDef)), None)
        if top != "self" or not isinstance(scope, FUNCTIONS) or owner is None:
            raise Unfit
        made = [n for n in ast.walk(owner) if isinstance(n, ast.Assign) and any(chain(t) == scaler for t in n.targets)]
        if not made or not all(isinstance(n.value, ast.Call) for n in made):
            raise Unfit
        return
    if isinstance(scope, FUNCTIONS):
        arguments = scope.args
        given = {a.arg for a in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]}
        if top in given:
            return
    stored = [
        n
        for n in ast.walk(scope)
        if isinstance(n, ast.Assign) and any(chain(t) == scaler for t in n.targets) and layout.scope(n) is scope
    ]
    if not stored and isinstance(scope, FUNCTIONS):
        # A global one, made before anything is called.
        stored = [
            n for n in layout.tree.body if isinstance(n, ast.Assign) and any(chain(t) == scaler for t in n.targets)
        ]
        if len(stored) == 1 and isinstance(stored[0].value, ast.Call):
            return
        raise Unfit
    if not stored or stored[0].lineno > line or not all(isinstance(n.value, ast.Call) for n in stored):
        raise Unfit
    if len(stored) > 1 or any(
        not isinstance(g, (ast.Module, *FUNCTIONS)) for g, _ in reorder.guards(layout, stored[0])
    ):
        raise Unfit


def _loaded(layout: Layout, load: ast.Call, key: str, name: str, scaler: str) -> Edit:
    """Loads the scaler's state after the optimizer's, from checkpoints that have one."""
    statement = layout.statement(load)
    given = load.args[0] if len(load.args) == 1 and not load.keywords else None
    if not isinstance(given, ast.Subscript) or not isinstance(statement, ast.Expr) or statement.value is not load:
        raise Unfit
    if not isinstance(given.slice, ast.Constant) or given.slice.value != key or chain(given.value) is None:
        raise Unfit
    _there(layout, layout.scope(load), scaler, load.lineno)
    quote = layout.source(given.slice)[0]
    checkpoint = layout.source(given.value)
    step = "\t" if layout.indent(statement).startswith("\t") else "    "
    entry = f"{quote}{name}{quote}"
    return layout.after(
        statement,
        # A scaler that was disabled has saved nothing, which one that is enabled refuses.
        f"if {checkpoint}.get({entry}):\n{step}{scaler}.load_state_dict({checkpoint}[{entry}])",
    )


# AMP506.


def smallest_of_dtype(layout: Layout, finding: Finding) -> Mended:
    from . import rewrite

    call = layout.at(finding.site, ast.Call)
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in FILLS:
        raise Unfit
    tensor, at = call.func.value, FILLS[call.func.attr]
    name = reorder.named(layout, tensor)
    if name == "torch":
        if not call.args:
            raise Unfit
        name, at = reorder.named(layout, call.args[0]), at + 1
    value = next((k.value for k in call.keywords if k.arg == "value"), None)
    if value is None:
        if len(call.args) <= at:
            raise Unfit
        value = call.args[at]
    number = _number(value)
    if number is None or number >= SMALLEST or number == float("-inf") or "torch" not in _global_names(layout):
        raise Unfit
    source = layout.source(call)
    changed = rewrite.argument(source, at, "value", f"torch.finfo({name}.dtype).min")
    return f"Write `torch.finfo({name}.dtype).min`", [shrunk(*layout.span(call)[:2], source, changed)]


def _number(node: ast.expr) -> float | None:
    sign = 1.0
    while isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        sign, node = -sign, node.operand
    if isinstance(node, ast.Call) and chain(node.func) == "float" and len(node.args) == 1:
        node = node.args[0]
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float, str)):
        try:
            return sign * float(node.value)
        except (ValueError, OverflowError):
            return None
    return None


def _global_names(layout: Layout) -> set[str]:
    return {
        alias.asname or alias.name.partition(".")[0]
        for node in layout.tree.body
        if isinstance(node, ast.Import)
        for alias in node.names
    }


# AMP901.


def replace_deprecated(layout: Layout, finding: Finding) -> Mended:
    # Few findings need this much of a fix.
    from . import migrate

    return migrate.replace_deprecated(layout, finding)


# AMP902.


def remove_suppression(layout: Layout, finding: Finding) -> Mended:
    """Takes out the words that silence nothing, and the comment where none is left."""
    site = finding.site
    row = layout.lines[site.line - 1]
    said = row[site.column : site.end_column]
    idle = {reason.partition(" ")[0].rstrip(",") for reason in finding.names.get("reason", "").split("; ")}
    listed = re.search(r"\[([^\]]*)\]|:\s*([A-Z]+[0-9]+(?:[,\s]+[A-Z]+[0-9]+)*)\s*$", said, re.IGNORECASE)
    if listed is not None:
        group = 1 if listed.group(1) is not None else 2
        words = re.findall(r"[^,\s]+", listed.group(group))
        kept = [word for word in words if word not in idle and word.upper() not in idle]
        if kept:
            start, end = site.column + listed.start(group), site.column + listed.end(group)
            return "Remove what silences nothing", [Edit(site.line, start, site.line, end, ", ".join(kept))]
    # What else stands behind a sign of its own stays.
    other = re.search(r"\s#", row[site.end_column :])
    if other is not None:
        return "Remove this comment", [Edit(site.line, site.column, site.line, site.end_column + other.end() - 1, "")]
    before = row[: site.column].rstrip()
    if not before:
        return "Remove this comment", [layout.without(site.line, site.line)]
    return "Remove this comment", [Edit(site.line, len(before), site.line, len(row), "")]


#: Code of a rule -> what puts a finding of it right. Whether that is safe, the rule says.
FIXERS: dict[str, Fixer] = {
    "AMP103": reorder.leave_region,
    "AMP106": device_type,
    "AMP201": reorder.unscale_before_clip,
    "AMP203": reorder.scale_loss,
    "AMP204": reorder.step_by_scaler,
    "AMP206": reorder.update_after_step,
    "AMP208": reorder.construct_before_loop,
    "AMP213": drop_error,
    "AMP301": reorder.divide_loss,
    "AMP303": reorder.move_to_step,
    "AMP401": save_scaler,
    "AMP506": smallest_of_dtype,
    "AMP901": replace_deprecated,
    "AMP902": remove_suppression,
}
