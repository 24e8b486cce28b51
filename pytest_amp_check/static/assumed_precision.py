"""Findings in code whose precision its users choose: a caller, a configuration or a framework decides the dtype.

The functions of a file are analyzed once more as if the tensors that they receive, and the weights of their modules,
were in low precision. With the option ``assume-precision``, all effects of low precision are reported. Without the
option, only overflows and cancellations that spoil the result for ordinary values are reported, as possible.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence

from ..protocol import events as e
from ..protocol import kernels
from ..protocol.event_graph import Program
from ..protocol.finding import Finding
from ..protocol.findings_builder import check_event
from ..protocol.severities import INFO
from ..protocol.sites import is_test_file
from .entry_points import analyze_as_low
from .interpreter.dtypes import HALF
from .project.float32_logits import has_float32_log_probabilities
from .project.import_reach import (
    casts_models,
    chooses_model_dtype,
    chooses_model_dtype_here,
    computes_low_without_region,
    gets_float32,
    is_near_region,
    is_used_by_module,
    may_choose_float16,
    trains_cast_models,
    trains_without_regions,
)
from .project.module import Class, Function, Module
from .project.project import Project
from .sources.patterns.code import Code
from .sources.patterns.fragile_math import fragile_lines, has_epsilons, has_loss_math

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..protocol.sites import Site

#: Kinds of effects that the dtype of inputs decides.
_KINDS = (e.FragileMath, e.Epsilon, e.LowSum, e.LowPositions, e.LowParameter, e.Fill, e.LowOp, e.CustomFunction)
#: Kinds of effects that a region adds to those of low inputs.
_KINDS_OF_REGION = (e.LowPositions, e.DtypeClash, e.LowOp)
#: Kinds of clashes of dtypes that the dtype of inputs decides.
_CLASHES = frozenset(("numpy", "write", "write-wide", "matmul"))
_WORDS = re.compile(r"\w+")
_BEFORE_OPERAND = re.compile(r"(?:log|sqrt)\(\s*$")
_AFTER_OPERAND = re.compile(r"\s*\)\.(?:log|r?sqrt)\(")
#: Effects that are reported without the option. The first look at a file searches for no logarithms of complements.
_COMMON_CANCELLATIONS = e.CANCELLATIONS - {"log-complement"}
#: Violation of code that runs without autocast on purpose.
_ISLAND = "fragile:island"
#: Violations of a buffer that a cast of the model rounds.
_BUFFERS = frozenset({"positions:buffer", "sum:buffer"})
#: Violations of a Function that raises under the autocast of any caller.
_FUNCTIONS = frozenset({"function:undecorated", "function:foreign"})
#: Violations without need of a region in sight: code that switches autocast off is evidence of one around it, and a
#: Function is public code like a layer.
_OF_NO_REGION = _BUFFERS | _FUNCTIONS | {_ISLAND}
#: Violation of integers in a low dtype, whatever they are used for. A violation of their use says more.
_NUMBERS = "positions:numbers"
#: Fourier transforms of real numbers.
_TRANSFORMS = kernels.TRANSFORMS - kernels.INVERSE_TRANSFORMS
#: Violations that only float16 has: its numbers end at 65504, those of bfloat16 where those of float32 do.
_OVERFLOWING = frozenset(
    (
        "epsilon:added",
        "fragile:squares",
        "fragile:logsumexp",
        "fragile:variance",
        "fragile:area",
        "fill:overflow",
        "fill:bound",
    )
)


def may_have_assumed_effects(project: Project, code: Code) -> bool:
    """Return True if a file may hold an effect of low precision that the project gives evidence of."""
    if project.assumed_dtype or code.has_fragile_math:
        return True
    alone = trains_without_regions(project)
    return (alone and has_loss_math(code.data)) or (bool(alone or project.float16_files) and has_epsilons(code.data))


def find_assumed_effects(
    module: Module, project: Project, known: Iterable[Finding], is_evident: Callable[[], bool]
) -> list[Finding]:
    """Return the findings of a file under the assumption that its inputs are in low precision.

    ``known`` are the findings without the assumption. ``is_evident`` returns True if a region in float16 may be around
    the code.
    """
    if is_test_file(module.path):
        return []
    dtype = project.assumed_dtype
    casts = Code(module.text.encode()).casts_model
    in_region = not (dtype or casts or chooses_model_dtype(project, module.path))
    # Only float16 overflows.
    may_overflow = in_region or bool(dtype) or casts or may_choose_float16(project, module.path)
    is_cast = casts or casts_models(project, module.path)
    computes_low = not in_region and computes_low_without_region(project, module.path)
    program = Program()
    alone = trains_without_regions(project)
    lines_around = fragile_lines(module.text.encode(), losses=alone, epsilons=bool(alone or project.float16_files))
    functions = None if dtype else _functions_around(module, lines_around)
    analyze_as_low(module, program, project, dtype or HALF, in_region=in_region, functions=functions)
    first_of_region = len(program.graphs)
    if dtype:
        # A region rounds the angles of float32 positions as well, and its layers and products return low tensors, also
        # to ops without a kernel.
        analyze_as_low(module, program, project, dtype, in_region=True)
    first_of_casts = len(program.graphs)
    if in_region and is_cast and "register_buffer" in module.text:
        # A region leaves buffers as they are; a cast of the model does not.
        analyze_as_low(module, program, project, HALF, in_region=False, functions=functions)
    lines = module.text.split("\n")
    reported = {(finding.code, finding.site.path, finding.site.line) for finding in known}
    found: dict[tuple[str, str, int], Finding] = {}
    for number, graph in enumerate(program.graphs):
        for node in graph.nodes:
            event = node.event
            if number >= first_of_casts and not _is_of_buffer(event):
                continue
            if in_region and event is not None and not _is_of_buffer(event) and _is_in_constructor(event.site):
                continue
            if first_of_region <= number < first_of_casts and not isinstance(event, _KINDS_OF_REGION):
                continue
            if event is None or not _may_depend_on_inputs(event) or not _is_own_code(event.site, module):
                continue
            if isinstance(event, e.CustomFunction):
                # A file that enters autocast shows to what it applies its Functions.
                # Code with the decorators of torch is written for regions.
                is_decorated = "custom_fwd" in module.text
                may_enter = is_decorated if event.how == "foreign" else bool(project.autocast_files)
                is_common = may_enter and "autocast" not in module.text
            else:
                is_common = _is_common_harm(
                    event,
                    lines,
                    may_overflow=may_overflow,
                    casts_models=is_cast,
                    in_region=in_region,
                    computes_low=computes_low,
                )
            if not (dtype or is_common):
                continue
            for finding in check_event(event, program):
                key = (finding.code, finding.site.path, finding.site.line)
                if key not in reported and (key not in found or found[key].label == _NUMBERS):
                    found[key] = finding
    if in_region and any(finding.label not in _OF_NO_REGION for finding in found.values()) and not is_evident():
        # A region in bfloat16 rounds angles and differences as well.
        rounds = any(finding.label not in _OVERFLOWING for finding in found.values()) and is_near_region(
            project, module.path, module.tree
        )
        found = {
            key: finding
            for key, finding in found.items()
            if finding.label in _OF_NO_REGION or (rounds and finding.label not in _OVERFLOWING)
        }
    if not dtype:
        found = {
            key: each
            for key, each in found.items()
            if not _is_of_weak_evidence(each, module, project, in_region=in_region, computes_low=computes_low)
        }
        wide = {
            name for name in {each.site.function for each in found.values()} if gets_float32(project, module.path, name)
        }
        found = {key: finding for key, finding in found.items() if finding.site.function not in wide}
    for finding in found.values():
        finding.certain = False
        finding.condition = _describe_assumption(finding, dtype, in_region=in_region)
        if not dtype:
            finding.severity = INFO
    return list(found.values())


def _is_of_buffer(event: e.Event | None) -> bool:
    """Return True for an effect on a buffer, which a cast of the model makes low."""
    return (isinstance(event, e.LowPositions) and event.how == "buffer") or (
        isinstance(event, e.LowSum) and event.buffer
    )


def _is_in_constructor(site: Site) -> bool:
    """Return True for code of a constructor, which no region surrounds in general."""
    return site.function.rpartition(".")[2] == "__init__"


def _is_of_weak_evidence(
    finding: Finding, module: Module, project: Project, *, in_region: bool, computes_low: bool
) -> bool:
    """Return True for an effect that needs more than a dtype that training in another folder chooses.

    The code of a model computes an epsilon or a transform in low precision, as the code of data does not. Losses count
    where no file casts logits to float32, and differences of log-probabilities in the package that chooses the dtype.
    Training alone updates buffers.
    """
    if finding.label == "epsilon:added":
        return not (in_region or computes_low) or not is_used_by_module(project, module, finding.site.function)
    if finding.label == "op:lengths":
        return not is_used_by_module(project, module, finding.site.function)
    if finding.label == "sum:buffer":
        return not (Code(module.text.encode()).casts_model or trains_cast_models(project, module.path))
    if finding.label == "fragile:loss":
        return has_float32_log_probabilities(project, module.path)
    if finding.label == "fragile:log-ratio":
        return not (computes_low or chooses_model_dtype_here(project, module.path))
    return False


def _describe_assumption(finding: Finding, dtype: str, *, in_region: bool) -> str:
    """Return the assumption under which a finding holds: whose inputs have which dtype, and what makes them low."""
    function = finding.site.function
    whose = f"the inputs of `{function}`" if function else "the inputs"
    overflows = finding.label in _OVERFLOWING
    is_low = dtype or ("float16" if overflows else "float16 or bfloat16")
    if finding.label in _BUFFERS:
        return "if a cast of the model, as `model.half()`, reaches this module"
    if finding.label == "function:foreign":
        return "if it is applied under `torch.autocast`, to tensors of different dtypes"
    if finding.label in _FUNCTIONS:
        return "if it is applied under `torch.autocast`, to weights in float32"
    if dtype:
        return f"if {whose} are {is_low}"
    if in_region and finding.label == "positions:angles":
        called = f"`{function}` is called" if function else "this runs"
        return f"if {called} in a `torch.autocast` region"
    example = "outputs of layers in a `torch.autocast` region are" if in_region else "in a model after `.half()`"
    return f"if {whose} are {is_low}, as {example}, and not float32"


def _functions_around(module: Module, lines: list[int]) -> set[Function]:
    """Return the functions with one of the lines, all methods of their classes, and the code that uses these.

    Code uses a function or a class if it contains the name. Users of users count for functions alone: a class at a
    distance passes tensors of an unknown dtype on, as any other code may.
    """
    groups: dict[object, list[Function]] = {}
    for function in module.functions.values():
        groups.setdefault(function.cls or function, []).append(function)
    found = {group for group, functions in groups.items() if any(_holds_line(each, lines) for each in functions)}
    todo = list(found)
    words = _words_by_group(module, groups) if todo else {}
    while todo:
        group = todo.pop()
        if isinstance(group, (Class, Function)):
            users = [other for other, used in words.items() if group.name in used and other not in found]
            found.update(users)
            todo += [] if isinstance(group, Class) else users
    return {function for group in found for function in groups[group]}


def _holds_line(function: Function, lines: list[int]) -> bool:
    """Return True if one of the sorted lines is in a function."""
    number = bisect_left(lines, _first_line(function))
    return number < len(lines) and lines[number] <= (function.node.end_lineno or function.node.lineno)


def _words_by_group(module: Module, groups: Mapping[object, list[Function]]) -> dict[object, set[str]]:
    """Return the words in the code of each group of functions."""
    text = module.text.split("\n")
    return {
        group: {
            word
            for each in functions
            for row in text[_first_line(each) - 1 : each.node.end_lineno or each.node.lineno]
            for word in _WORDS.findall(row)
        }
        for group, functions in groups.items()
    }


def _first_line(function: Function) -> int:
    """Return the line of the first decorator of a function, or of the function."""
    return min([function.node.lineno, *(each.lineno for each in function.decorators)])


def _is_common_harm(
    event: e.Event,
    lines: Sequence[str],
    *,
    may_overflow: bool,
    casts_models: bool,
    in_region: bool,
    computes_low: bool,
) -> bool:
    """Return True for an effect on ordinary values: a norm of each vector overflows, or a difference cancels.

    Code without autocast that is meant to run in float32 counts for all values.
    """
    if isinstance(event, e.LowSum):
        return event.scattered or (event.average and (casts_models if event.buffer else not in_region))
    if isinstance(event, e.LowOp):
        return in_region and _transforms_features(event)
    if isinstance(event, e.LowPositions):
        return event.how in ("cast", "angles", "table") or (event.how == "buffer" and casts_models)
    if computes_low and isinstance(event, e.FragileMath) and event.how == "loss":
        return True
    if computes_low and isinstance(event, e.Epsilon) and event.how == "normalized":
        return may_overflow
    if isinstance(event, e.Epsilon):
        is_steep = event.divides or _is_operand_of_root(event.site, lines)
        return event.how == "to-one" or (event.how == "added" and may_overflow and is_steep)
    if not isinstance(event, e.FragileMath):
        return False
    if event.how == "exponent":
        return computes_low
    if event.how == "area":
        return may_overflow
    if event.how == "log-sigmoid":
        return in_region
    return (event.of_each and may_overflow) or event.how in _COMMON_CANCELLATIONS or event.how == "island"


def _transforms_features(event: e.LowOp) -> bool:
    """Return True for a Fourier transform of real numbers, as layers return them. ``stft`` transforms a waveform."""
    return str(event.names.get("call") or "").partition("(")[0].rpartition(".")[2] in _TRANSFORMS


def _is_operand_of_root(site: Site, lines: Sequence[str]) -> bool:
    """Return True if an expression is the operand of a root or a logarithm, which are steep at zero."""
    row = lines[site.line - 1] if site.line == site.end_line else ""
    return (
        _BEFORE_OPERAND.search(row[: site.column]) is not None
        or _AFTER_OPERAND.match(row[site.end_column :]) is not None
    )


def _may_depend_on_inputs(event: e.Event) -> bool:
    """Return True for an effect that the dtype of inputs decides."""
    return isinstance(event, _KINDS) or (isinstance(event, e.DtypeClash) and event.how in _CLASHES)


def _is_own_code(site: Site, module: Module) -> bool:
    """Return True for code of the file itself. A test chooses the dtype of its own inputs."""
    return site.path == module.path and not site.is_in_test()
