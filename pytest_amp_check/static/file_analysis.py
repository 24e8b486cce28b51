"""Analysis of one file: code blocks, programs, and results for code that cannot be analyzed."""

from __future__ import annotations

import sys
import warnings
from functools import partial

from ..protocol.event_graph import Program
from ..protocol.finding import Finding
from ..protocol.message_templates import fill_message
from ..protocol.rules import LABELS
from ..protocol.sites import Site
from ..protocol.suppressions import Suppressions
from . import evidence
from .deep_stack import with_deep_stack
from .evidence import collect_graph_calls
from .final_findings import suppress_findings, uncovered_call_findings
from .processes import shared_arguments
from .project.project import Project, without_other_files
from .results import AnalysisResult, FileResult
from .settings import Settings
from .sources import code_blocks, configurations, source_files
from .sources.block import Block
from .sources.newer_syntax import Rejection, explain_rejection
from .sources.patterns.code import Code
from .sources.patterns.low_precision import makes_values_low

#: The rule that lists unanalyzed calls. The rule costs a record of every call.
UNANALYZED_CALL_CODE = "AMP904"
#: The rules about models that are low, compute in float16 or are sharded, whatever the file that trains them says, and
#: about what becomes of their outputs.
WEIGHT_CODES = frozenset({"AMP501", "AMP502", "AMP505", "AMP507", "AMP508", "AMP509", "AMP608"})


def analyze_path(path: str) -> FileResult:
    settings: Settings
    tree: Project
    settings, tree = shared_arguments()
    try:
        text = code_blocks.decode_source(path, code_blocks.load_source(path, settings.largest))
    except source_files.Unreadable as error:
        return FileResult(path, [_unreadable_result(path, error.line, str(error))], is_cacheable=False)
    return with_deep_stack(lambda: analyze_text(text, path, settings, tree))


def analyze_text(text: str, path: str, settings: Settings, project: Project) -> FileResult:
    """Return the results for the code blocks of one file.

    Findings of documents are final here, because no other file calls code in a document.
    """
    if configurations.is_configuration(path):
        return FileResult(path, [_analyze_configuration(text, path, settings)])
    project.begin_file()
    try:
        blocks = code_blocks.split_blocks(path, text, settings.largest)
    except source_files.Unreadable as error:
        return FileResult(path, [_unreadable_result(path, error.line, str(error))])
    answer = FileResult(path, [])
    block_project, may_be_in_region = project, False
    if code_blocks.is_markdown(path):
        # A code block in a document is a fragment, and no part of the programs of this project.
        block_project, may_be_in_region = settings.configure_project(Project(settings.largest)), True
        block_project.add_prescan(path, Code(text.encode("utf-8", "replace")))
    elif len(blocks) > 1:
        # One block may enter another block.
        may_be_in_region = "autocast" in text
    for number, block in enumerate(blocks):
        if block.parse_error:
            reading = _rejected_result(path, block.parse_error, block.text)
        else:
            try:
                reading = analyze(
                    block.text,
                    path,
                    block_project,
                    may_be_in_region=may_be_in_region,
                    collects_calls=UNANALYZED_CALL_CODE in settings.for_file(path).select,
                )
            except (RecursionError, MemoryError):
                reading = _unreadable_result(path, 1, "its code is nested too deeply to be analysed", text=block.text)
                answer.is_cacheable = False
        if block.line_positions is not None:
            reading = _finish_block(reading, block, f"{path}:{number}", settings)
        answer.results.append(reading)
    answer.dependencies, answer.import_targets, answer.depends_on_all = (
        project.dependencies,
        project.import_targets,
        project.depends_on_all,
    )
    if answer.depends_on_all:
        # The dependencies are then most of the files, and a list of them adds nothing.
        answer.dependencies, answer.import_targets = set(), {}
    return answer


def _analyze_configuration(text: str, path: str, settings: Settings) -> AnalysisResult:
    """Return the result for a configuration file. Its findings are final here: no code calls a setting."""
    from ..protocol.graph_checker import check
    from .configuration.events import make_program

    try:
        program = make_program(path, text)
    except source_files.Unreadable as error:
        findings = [unreadable_finding(path, error.line, str(error))]
    else:
        findings = check(program)
    result = AnalysisResult(path, [], {})
    result.finished_findings = suppress_findings(findings, configurations.keep_comments(text), path, settings)
    return result


def _finish_block(result: AnalysisResult, block: Block, name: str, settings: Settings) -> AnalysisResult:
    """Return the result of a code block with finished findings; ``name`` stands for the block as a file name."""
    path = result.path
    selected = evidence.select_findings([result], result.reached_functions)
    own_findings = suppress_findings(
        [f for f in (*selected, *uncovered_call_findings([result])) if f.site.path == path], block.text, path, settings
    )
    others = [f for f in selected if f.site.path != path]
    for finding in others:
        entries = finding.discovery.entries.items()
        finding.discovery.entries = {
            (name if entry_path == path else entry_path, line): calls for (entry_path, line), calls in entries
        }
    reached = {
        (name, line): {function for function in functions if function[0] != path}
        for (_, line), functions in result.reached_functions.items()
    }
    made = AnalysisResult(path, block.move_findings(others, path), reached)
    made.graph_calls = {(name, line): calls for (_, line), calls in result.graph_calls.items()}
    made.finished_findings = block.move_findings(own_findings, path)
    return made


def _unreadable_result(path: str, line: int, reason: str, *, text: str = "") -> AnalysisResult:
    """Return the result for a text that cannot be analyzed."""
    return AnalysisResult(
        path, [unreadable_finding(path, line, reason)], {}, has_own_comments=Suppressions.has_own_comment(text)
    )


def _rejected_result(path: str, rejection: Rejection, text: str) -> AnalysisResult:
    """Return the result for a text that Python's parser rejects."""
    found = unreadable_finding(path, rejection.line, rejection.reason)
    if rejection.python_version:
        running = f"{sys.version_info[0]}.{sys.version_info[1]}"
        rule, violation = LABELS["source:newer-python"]
        message, remedy = fill_message(violation.message, {"python": rejection.python_version, "running": running})
        severity = violation.severity or rule.severity
        found = Finding(rule.code, rule.name, severity, message, found.site, label="source:newer-python", remedy=remedy)
    return AnalysisResult(path, [found], {}, has_own_comments=Suppressions.has_own_comment(text))


def unreadable_finding(path: str, line: int, reason: str) -> Finding:
    rule, violation = LABELS["source:unreadable"]
    message, remedy = fill_message(violation.message, {"reason": reason})
    return Finding(
        rule.code, rule.name, rule.severity, message, Site(path, line), label="source:unreadable", remedy=remedy
    )


def analyze(
    text: str, path: str, project: Project, *, may_be_in_region: bool = False, collects_calls: bool = False
) -> AnalysisResult:
    """Return all findings in one text, before selection and suppression.

    ``may_be_in_region`` says that other code may run the text in an autocast region. ``collects_calls`` records the
    calls for the report of unanalyzed calls.

    Raise RecursionError or MemoryError for code that is nested too deeply.
    """
    import ast

    from ..protocol.graph_checker import check, check_without_callers
    from .assumed_precision import find_assumed_effects, may_have_assumed_effects
    from .coordinate_products import find_coordinate_products
    from .entry_points import analyze_functions, analyze_module
    from .interpreter.branch_runs import RunsByEntry
    from .interpreter.visited_calls import VisitedCalls
    from .program_summary import mark_bare_scales, summarize_program
    from .project import import_reach
    from .project.import_kinds import casting_imports, rounding_imports
    from .project.marimo import as_one_program
    from .project.name_index import build_module
    from .project.relevance import mark_relevant
    from .resume_places import add_resume_places
    from .turned_off_code import find_turned_off_code
    from .unanalyzed_calls import collect_calls, find_joined_functions

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            parsed = as_one_program(ast.parse(text), text)
        except (SyntaxError, ValueError) as error:
            return _rejected_result(path, explain_rejection(text, error), text)
    program = Program()
    module = build_module(path, text, parsed)
    matches = partial(project.is_relevant_import, importer=path)
    gives_low = partial(matches, exports=project.casting_exports)
    casting = casting_imports(module, gives_low, is_imported=False)
    module.makes_low = bool(casting) or makes_values_low(text.encode())
    rounds = partial(matches, exports=project.rounding_exports)
    rounding = rounding_imports(module, rounds) if module.makes_low else frozenset[str]()
    mark_relevant(module, project.relevant_imports(module, path), casting, rounding)
    program.attributes.enters_autocast = may_be_in_region or any("autocast" in name for name in module.identifiers)
    program.attributes.fragment = code_blocks.is_markdown(path)
    program.attributes.lightning16 = project.has_lightning16
    program.attributes.resumes = project.may_resume
    visited_calls = VisitedCalls() if collects_calls else None
    calls = collect_calls(module) if collects_calls else []
    try:
        runs = RunsByEntry()
        is_read = path not in project.assumed_files
        reached = analyze_module(module, program, project, visited_calls, runs) if is_read else {}
        near_float16 = partial(import_reach.is_near_float16, project, path, parsed)
        near_region = partial(import_reach.is_near_region, project, path, parsed)
        summarize_program(program, near_float16, near_region)
        if not may_be_in_region:
            mark_bare_scales(program, lambda: import_reach.iterate_autocast_entries(project, path, parsed))
        findings = check(program)
        joined_functions = find_joined_functions(program)
        joined = [graph.entry_point for graph in program.graphs if graph.was_widened]
        # A function without parameters is the same program as the script that calls it, and as large.
        same = {(path, each.node.lineno) for each in module.functions.values() if not each.parameters()}
        inside = {
            function
            for entry in joined
            for function in reached[entry] - (same if entry == (path, 0) else set())
            if function[0] == path and function != entry
        }
        if inside:
            # The joined states of the caller may hide a violation in a function, also in one analyzed before.
            separate_program = Program()
            separate_program.attributes = program.attributes.copy()
            own_reached = analyze_functions(module, separate_program, project, inside)
            summarize_program(separate_program, near_float16, near_region)
            again = own_reached.keys() & reached.keys()
            findings = [
                finding
                for finding in findings
                if not finding.discovery.entries or finding.discovery.entries.keys() - again
            ]
            findings += check_without_callers(separate_program)
            joined_functions += find_joined_functions(separate_program)
            for entry in joined:
                reached[entry] -= own_reached.keys()
            reached.update(own_reached)
        large = {entry for entry in joined if entry[0] == path and entry[1] > 0}
        if large:
            # Code of other files may be what makes a function too large to check each state.
            alone = Program()
            alone.attributes = program.attributes.copy()
            analyze_functions(module, alone, without_other_files(project), large)
            summarize_program(alone, near_float16, near_region)
            findings += check_without_callers(alone)
        turned_off = find_turned_off_code(module, runs, frozenset(evidence.find_top_entry_points(reached)))
        if turned_off is not None:
            opened_program = Program()
            opened_program.attributes = program.attributes.copy()
            analyze_functions(module, opened_program, project, turned_off.functions)
            summarize_program(opened_program, near_float16, near_region)
            findings += turned_off.select_findings(check_without_callers(opened_program), path, reached)
        if not program.attributes.fragment and may_have_assumed_effects(project, Code(text.encode())):
            findings += find_assumed_effects(
                module, project, findings, lambda: import_reach.is_package_near_float16(project, path)
            )
        if not program.attributes.fragment and Code(text.encode()).multiplies_coordinates:
            findings += find_coordinate_products(module, project, findings)
        add_resume_places(findings, module)
        for_weights = {(path, each.node.lineno) for each in module.functions.values() if each.is_weight_entry_point}
        findings = [
            each
            for each in findings
            if each.code in WEIGHT_CODES
            or not each.discovery.entries
            or not for_weights.issuperset(each.discovery.entries)
        ]
    finally:
        # Release here, on the deep stack: from Python 3.13 on, freeing a deep tree needs as much stack as parsing the
        # tree.
        module.release_references()
    enters_itself = program.attributes.enters_autocast
    # The region may be in another file that the analysis read.
    program.attributes.enters_autocast = enters_itself or any(
        tracked_object.role == "autocast" for tracked_object in program.objects
    )
    reading = AnalysisResult(path, findings, reached, has_own_comments=Suppressions.has_own_comment(text))
    reading.graph_calls = collect_graph_calls(program)
    if visited_calls is not None:
        reading.protocol_calls, reading.visited_calls = calls, visited_calls.calls
        reading.joined_functions = joined_functions
        reading.unfollowed_calls = visited_calls.unfollowed
    return reading
