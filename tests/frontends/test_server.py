"""The language server as seen by an editor: an independent client over stdio."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pygls", reason="the language server is an extra")

from edited import PROJECT, edits
from editor import Editor, applied, uri
from lsprotocol import types
from pygls.uris import to_fs_path
from warm import warm_python

from pytest_amp_check.frontends.rule_text import rule_markdown
from pytest_amp_check.protocol.rules import RULES

#: A program that clips gradients that are still scaled, in line 12. A character of two UTF-16 code units precedes the
#: call.
BAD = """\
import torch
from torch import nn
from torch.amp import GradScaler, autocast

def train(model, loader, optimizer):
    scaler = GradScaler("cuda")
    for x, y in loader:
        with autocast("cuda"):
            loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        told = "\N{WINKING FACE}", nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
"""
GOOD = BAD.replace("        told", "        scaler.unscale_(optimizer)\n        told")
CLIP = ("AMP201", 12)


def edits_of(action: types.CodeAction, address: str) -> list[types.TextEdit]:
    assert action.edit is not None
    assert action.edit.changes is not None
    assert set(action.edit.changes) == {address}
    return list(action.edit.changes[address])


def page_at(address: str) -> str:
    """Return the content of the page that a diagnostic links to."""
    path = to_fs_path(address)
    assert path is not None
    return Path(path).read_text(encoding="utf-8")


def fixes(found: list[types.CodeAction]) -> list[types.CodeAction]:
    return [each for each in found if not each.title.startswith("Silence")]


def silences(found: list[types.CodeAction]) -> list[types.CodeAction]:
    return [each for each in found if each.title.startswith("Silence")]


def project(folder: Path) -> None:
    for name, text in PROJECT.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def test_diagnostics_follow_what_is_typed(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(GOOD, encoding="utf-8")
    # Other files of the folder have findings too, which nobody asks for.
    cell = {"cell_type": "code", "metadata": {}, "outputs": [], "source": BAD}
    (tmp_path / "other.ipynb").write_text(json.dumps({"cells": [cell]}), encoding="utf-8")
    (tmp_path / "broken.py").write_bytes(b"autocast \xff")
    (tmp_path / "notes.md").write_text(f"```python\n{BAD}```\n", encoding="utf-8")
    with Editor(tmp_path) as editor:
        # The open text counts, not the saved text.
        address = editor.open(path, BAD)
        assert editor.places(address) == [CLIP]
        found = editor.found(address)[0]
        assert found.source == "amp-check"
        assert found.severity is types.DiagnosticSeverity.Error
        assert found.message.startswith("clip-before-unscale: `nn.utils.clip_grad_norm_` clips gradients")
        assert editor.capabilities.position_encoding == types.PositionEncodingKind.Utf16
        # In UTF-16 code units: eight blanks, "told = ", a string of four with its quotes, a comma and a blank.
        row = BAD.split("\n")[11]
        assert found.range.start == types.Position(11, 21)
        assert found.range.end == types.Position(11, len(row) + 1)
        assert [each.location.range.start.line + 1 for each in found.related_information or ()] == [11, 12, 13]
        editor.type(address, GOOD)
        assert editor.places(address) == []
        version = editor.type(address, BAD)
        assert editor.places(address) == [CLIP]
        assert editor.published[address].version == version
        editor.close(address)
        other = editor.open(tmp_path / "other.py", "")
        assert editor.places(other) == []
        assert not editor.published[address].diagnostics
        assert set(editor.published) == {address, other}
        assert editor.said == []


@pytest.mark.parametrize(
    ("unscales", "paths"),
    [
        ("if early:\n            {}", "(only on some paths, when `early` is false)"),
        ("try:\n            {}\n        except ValueError:\n            pass", "(only on some paths)"),
    ],
)
def test_a_finding_on_some_paths_says_so(unscales: str, paths: str, tmp_path: Path) -> None:
    text = BAD.replace("        told", f"        {unscales.format('scaler.unscale_(optimizer)')}\n        told")
    with Editor(tmp_path) as editor:
        (found,) = editor.found(editor.open(tmp_path / "train.py", text))
    assert found.message.startswith("clip-before-unscale: `nn.utils.clip_grad_norm_` clips gradients")
    assert found.message.endswith(f" {paths}")


def test_a_broken_text_is_said_and_forgotten_again(tmp_path: Path) -> None:
    with Editor(tmp_path) as editor:
        address = editor.open(tmp_path / "train.py", BAD.replace("def train(", "def train(:"))
        assert editor.places(address) == [("AMP903", 5)]
        editor.type(address, "\0" + BAD)
        assert editor.places(address) == [("AMP903", 1)]
        editor.type(address, BAD)
        assert editor.places(address) == [CLIP]
        assert editor.said == []


def test_buffers_of_imported_files_are_seen(tmp_path: Path) -> None:
    """A mistake of two files together appears and disappears with either file, saved or not."""
    project(tmp_path)
    name = "engine/scaler.py"
    with Editor(tmp_path) as editor:
        trainer = editor.open(tmp_path / "train.py", PROJECT["train.py"])
        helper = editor.open(tmp_path / name, PROJECT[name])
        assert editor.places(helper) == editor.places(trainer) == []
        editor.type(helper, PROJECT[name].replace("        self.scaler.update()\n", ""))
        assert [code for code, _ in editor.places(helper)] == ["AMP206"]
        related = editor.found(helper)[0].related_information or []
        assert {each.location.uri for each in related} == {helper}
        editor.type(helper, PROJECT[name])
        assert editor.places(helper) == []
        before = "        optimizer.zero_grad(set_to_none=True)\n        norm = step("
        assert before in PROJECT["train.py"]
        inside = "".join(f"    {row}\n" for row in before.split("\n"))[:-1]
        # The backward pass in the other file is now inside the region that this file enters.
        editor.type(trainer, PROJECT["train.py"].replace(before, inside))
        assert [code for code, _ in editor.places(trainer)] == ["AMP103"]
        nothing = "    def __call__(self, *given):\n        return 0.0\n"
        editor.type(helper, PROJECT[name].split("    def __call__")[0] + nothing)
        assert "AMP103" not in [code for code, _ in editor.places(trainer)]
        assert editor.said == []


def test_the_page_of_a_rule_is_shown(tmp_path: Path) -> None:
    text = BAD + "# AMP401 is meant\n"
    with Editor(tmp_path) as editor:
        address = editor.open(tmp_path / "train.py", text)
        editor.found(address)
        shown = editor.hover(address, 12, 24)
        assert shown.startswith("**AMP201 clip-before-unscale** (error)\n\nGradients are clipped while they are still ")
        assert "**Fix:** Call `scaler.unscale_(optimizer)` between backward and the clip" in shown
        assert "\n+    scaler.unscale_(optimizer)\n" in shown
        # The text fits a pop-up: whole examples and sources are on the linked page.
        assert len(shown) < 1500
        assert page_at(re.findall(r"\[All about it\]\((.*)\)", shown)[0]) == rule_markdown(RULES["AMP201"])
        assert editor.hover(address, 15, 4).startswith("**AMP401 ")
        assert editor.hover(address, 8, 4) == ""
        assert editor.hover(address, 500, 4) == ""


def test_the_fix_is_the_one_of_the_command(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(BAD, encoding="utf-8")
    with Editor(tmp_path) as editor:
        address = editor.open(path, BAD)
        (fix,) = fixes(editor.actions(address, types.Range(types.Position(11, 24), types.Position(11, 24))))
        assert fix.kind == types.CodeActionKind.QuickFix
        assert fix.is_preferred
        assert fix.title == "Insert `scaler.unscale_(optimizer)` before the clip (AMP201)"
        assert [each.code for each in fix.diagnostics or ()] == ["AMP201"]
        made = applied(BAD, edits_of(fix, address))
        assert made == GOOD
        (all_of_them,) = editor.actions(address, only=["source.fixAll"])
        assert applied(BAD, edits_of(all_of_them, address)) == made
        # Without a finding, no action is offered.
        assert editor.actions(address, types.Range(types.Position(0, 0), types.Position(0, 5))) == []
    command = [warm_python(), "-m", "pytest_amp_check", "check", "--fix", str(path)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    assert path.read_text(encoding="utf-8") == made


def test_edits_name_the_version_that_they_are_of(tmp_path: Path) -> None:
    with Editor(tmp_path, versioned=True) as editor:
        address = editor.open(tmp_path / "train.py", GOOD)
        version = editor.type(address, BAD)
        (fix,) = fixes(editor.actions(address))
        assert fix.edit is not None
        assert fix.edit.changes is None
        (change,) = fix.edit.document_changes or ()
        assert isinstance(change, types.TextDocumentEdit)
        assert (change.text_document.uri, change.text_document.version) == (address, version)


def test_an_unsafe_fix_says_so(tmp_path: Path) -> None:
    text = RULES["AMP301"].bad_example
    with Editor(tmp_path) as editor:
        address = editor.open(tmp_path / "train.py", text)
        assert [code for code, _ in editor.places(address)] == ["AMP301"]
        (fix,) = fixes(editor.actions(address))
        assert "unsafe" in fix.title
        assert not fix.is_preferred
        editor.type(address, applied(text, edits_of(fix, address)))
        assert editor.places(address) == []
        editor.type(address, text)
        # An unsafe fix is only applied on request.
        assert editor.actions(address, only=["source.fixAll"]) == []


@pytest.mark.parametrize(
    ("row", "after"),
    [
        ("", "{clip}  # amp: ignore[AMP201]"),
        ("  # amp: ignore[AMP401]", "{clip}  # amp: ignore[AMP401, AMP201]"),
        ("  # so it was", "{clip}  # so it was  # amp: ignore[AMP201]"),
        # After a backslash or inside a string, there is no room for a comment.
        (", \\\n            0", "# amp: ignore[AMP201]\n        {clip}, \\\n            0"),
        (', """\n"""', '# amp: ignore[AMP201]\n        {clip}, """\n"""'),
    ],
)
def test_a_comment_silences_a_line(row: str, after: str, tmp_path: Path) -> None:
    clip = 'told = "\N{WINKING FACE}", nn.utils.clip_grad_norm_(model.parameters(), 1.0)'
    text = BAD.replace(clip, clip + row)
    with Editor(tmp_path) as editor:
        address = editor.open(tmp_path / "train.py", text)
        (silence,) = [each for each in silences(editor.actions(address)) if "AMP201" in each.title]
        silenced = applied(text, edits_of(silence, address))
        assert silenced == text.replace(clip + row, after.format(clip=clip))
        editor.type(address, silenced)
        assert [each for each in editor.places(address) if each == CLIP] == []


def test_the_cells_of_a_notebook(tmp_path: Path) -> None:
    """The cells of a notebook, each a separate document, are one program while cells are added, removed and edited."""
    first, second = BAD.split("    for x, y in loader:\n")
    first = first.replace("def train(model, loader, optimizer):\n    scaler", "scaler") + "model = nn.Linear(2, 2)\n"
    first += "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    second = "for x, y in loader:\n" + "".join(row[4:] + "\n" for row in second.rstrip("\n").split("\n"))
    book = uri(tmp_path / "train.ipynb")
    cells = {f"{book}#one": first, f"{book}#two": second}
    items = [types.TextDocumentItem(address, "python", 1, text) for address, text in cells.items()]
    code = types.NotebookCellKind.Code
    opened = types.NotebookDocument(book, "jupyter-notebook", 1, [types.NotebookCell(code, each) for each in cells])
    one, two = cells
    with Editor(tmp_path) as editor:
        editor.client.notebook_document_did_open(types.DidOpenNotebookDocumentParams(opened, items))
        assert editor.places(two) == [("AMP201", 6)]
        assert editor.places(one) == []
        (fix,) = fixes(editor.actions(two))
        assert applied(second, edits_of(fix, two)).split("\n")[5] == "    scaler.unscale_(optimizer)"
        assert editor.hover(two, 6, 24).startswith("**AMP201 ")

        def change(event: types.NotebookDocumentChangeEvent) -> None:
            identifier = types.VersionedNotebookDocumentIdentifier(2, book)
            editor.client.notebook_document_did_change(types.DidChangeNotebookDocumentParams(identifier, event))

        place = types.Range(types.Position(5, 0), types.Position(5, 0))
        typed = types.TextDocumentContentChangePartial(place, "    scaler.unscale_(optimizer)\n")
        text = types.NotebookDocumentCellContentChanges(types.VersionedTextDocumentIdentifier(2, two), [typed])
        change(types.NotebookDocumentChangeEvent(cells=types.NotebookDocumentCellChanges(text_content=[text])))
        assert editor.places(two) == []
        # Without the cell before it, only the use shows that the object is a scaler.
        gone = types.NotebookDocumentCellChangeStructure(
            types.NotebookCellArrayChange(0, 1), did_close=[types.TextDocumentIdentifier(one)]
        )
        change(types.NotebookDocumentChangeEvent(cells=types.NotebookDocumentCellChanges(structure=gone)))
        assert editor.places(two) == []
        back = types.TextDocumentContentChangePartial(
            types.Range(types.Position(5, 0), types.Position(6, 0)), "    # \N{WINKING FACE} nothing\n"
        )
        text = types.NotebookDocumentCellContentChanges(types.VersionedTextDocumentIdentifier(3, two), [back])
        change(types.NotebookDocumentChangeEvent(cells=types.NotebookDocumentCellChanges(text_content=[text])))
        assert editor.places(two) == [("AMP201", 7)]
        editor.client.notebook_document_did_close(
            types.DidCloseNotebookDocumentParams(
                types.NotebookDocumentIdentifier(book), [types.TextDocumentIdentifier(two)]
            )
        )
        other = editor.open(tmp_path / "other.py", "")
        assert editor.places(other) == []
        assert not editor.published[two].diagnostics
        assert editor.said == []


def test_a_notebook_as_a_text(tmp_path: Path) -> None:
    """An editor without notebook support shows the JSON, with the finding at the string that holds its line."""
    cell = {"cell_type": "code", "metadata": {}, "outputs": [], "source": BAD.splitlines(keepends=True)}
    book = json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, indent=1)
    row = next(number for number, line in enumerate(book.split("\n"), 1) if "clip_grad" in line)
    with Editor(tmp_path) as editor:
        address = editor.open(tmp_path / "train.ipynb", book)
        assert editor.places(address) == [("AMP201", row)]


def test_the_nearest_configuration_counts(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.amp-check]\n", encoding="utf-8")
    inner = tmp_path / "inner"
    inner.mkdir()
    settings = inner / "pyproject.toml"
    settings.write_text('[tool.amp-check]\nseverity = { AMP201 = "info" }\nexclude = ["old"]\n', encoding="utf-8")
    with Editor(tmp_path) as editor:
        outer = editor.open(tmp_path / "train.py", BAD)
        own = editor.open(inner / "train.py", BAD)
        left_out = editor.open(inner / "old" / "train.py", BAD)
        assert editor.found(outer)[0].severity is types.DiagnosticSeverity.Error
        assert editor.found(own)[0].severity is types.DiagnosticSeverity.Information
        assert editor.places(left_out) == []
        settings.write_text('[tool.amp-check]\nignore = ["AMP201"]\n', encoding="utf-8")
        editor.type(own, BAD + "\n")
        assert editor.places(own) == []
        settings.write_text('[tool.amp-check]\nignroe = ["AMP201"]\n', encoding="utf-8")
        editor.type(own, BAD)
        editor.found(own)
        assert len(editor.said) == 1
        assert "unknown key 'ignroe'" in editor.said[0]
        # The others are still checked.
        editor.type(outer, GOOD)
        assert editor.places(outer) == []


def test_known_findings_are_not_shown(tmp_path: Path) -> None:
    (tmp_path / "amp-check.toml").write_text('baseline = "known.json"\n', encoding="utf-8")
    train = tmp_path / "train.py"
    train.write_text(BAD, encoding="utf-8")
    with Editor(tmp_path) as editor:
        address = editor.open(train, BAD)
        assert editor.places(address) == []
        assert [said for said in editor.said if "known.json cannot be read: no such file or directory" in said]
        command = [warm_python(), "-m", "pytest_amp_check", "check", "--update-baseline", "--no-cache"]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
        # Unsaved lines may move, and new findings in them are shown.
        editor.type(address, "# One line more.\n" + BAD)
        assert editor.places(address) == []
        editor.type(address, BAD + BAD)
        assert editor.places(address) == [(CLIP[0], CLIP[1] + BAD.count("\n"))]


def test_a_finding_leads_to_a_page_of_its_rule_where_no_site_has_one(tmp_path: Path) -> None:
    with Editor(tmp_path) as editor:
        (found,) = editor.found(editor.open(tmp_path / "train.py", BAD))
        assert found.code_description is not None
        assert page_at(found.code_description.href) == rule_markdown(RULES["AMP201"])
        written = Path(to_fs_path(found.code_description.href) or "")
    assert not written.exists()


def test_edits_of_parts_of_a_text_are_followed(tmp_path: Path) -> None:
    """Positions count UTF-16 code units, and each edit applies to the result of the previous edits."""
    with Editor(tmp_path) as editor:
        assert editor.capabilities.text_document_sync is not None
        assert editor.server_info is not None
        assert editor.server_info.name == "amp-check"
        address = editor.open(tmp_path / "train.py", BAD)
        assert editor.places(address) == [CLIP]
        start = BAD.splitlines()[11].index("nn.utils") + 1
        line = types.Position(11, 0)
        editor.edit(
            address,
            (types.Range(types.Position(11, start), types.Position(11, start)), "torch.xx."),
            (types.Range(types.Position(11, start + 6), types.Position(11, start + 9)), ""),
            (types.Range(line, line), "        scaler.unscale_(optimizer)\n"),
        )
        assert editor.places(address) == []
        assert ", torch.nn.utils.clip" in editor.texts[address]
        editor.edit(address, (types.Range(line, types.Position(12, 0)), ""))
        assert editor.places(address) == [CLIP]
        editor.edit(address, (types.Range(types.Position(11, 0), types.Position(14, 0)), ""))
        assert editor.places(address) == []
        assert editor.said == []


def test_a_last_line_without_a_line_end_is_fixed_and_edited_as_any_other(tmp_path: Path) -> None:
    before, _, _ = GOOD.partition("        scaler.step")
    step = "        scaler.step(optimizer)"
    # The last line is longer than the line before it, and has a character of two UTF-16 code units.
    text = f"{before}{step}  # the optimizer skips a step \N{WINKING FACE} after an overflow of the gradients"
    last = text.count("\n")
    with Editor(tmp_path) as editor:
        address = editor.open(tmp_path / "train.py", text)
        assert editor.places(address) == [("AMP206", last + 1)]
        (fix,) = fixes(editor.actions(address))
        assert applied(text, edits_of(fix, address)) == f"{text}\n        scaler.update()"
        behind_call = types.Position(last, len(step))
        editor.edit(address, (types.Range(behind_call, behind_call), "; scaler.update()"))
        assert editor.places(address) == []
        assert editor.said == []


def test_an_editor_that_requests_diagnostics_gets_them_on_request(tmp_path: Path) -> None:
    project(tmp_path)
    name = "engine/scaler.py"
    with Editor(tmp_path, asks=True) as editor:
        provider = editor.capabilities.diagnostic_provider
        assert isinstance(provider, types.DiagnosticOptions)
        assert (provider.identifier, provider.inter_file_dependencies) == ("amp-check", True)
        trainer = editor.open(tmp_path / "train.py", PROJECT["train.py"])
        helper = editor.open(tmp_path / name, PROJECT[name])
        first = editor.ask(helper)
        assert isinstance(first, types.RelatedFullDocumentDiagnosticReport)
        assert (first.kind, list(first.items)) == ("full", [])
        assert isinstance(editor.ask(trainer), types.RelatedFullDocumentDiagnosticReport)
        again = editor.ask(helper, first.result_id)
        assert isinstance(again, types.RelatedUnchangedDocumentDiagnosticReport)
        assert (again.kind, again.result_id) == ("unchanged", first.result_id)
        editor.type(helper, PROJECT[name].replace("        self.scaler.update()\n", ""))
        second = editor.ask(helper, first.result_id)
        assert isinstance(second, types.RelatedFullDocumentDiagnosticReport)
        assert [each.code for each in second.items] == ["AMP206"]
        assert second.result_id != first.result_id
        nowhere = editor.ask("file:///nowhere/at/all.py")
        assert isinstance(nowhere, types.RelatedFullDocumentDiagnosticReport)
        assert list(nowhere.items) == []
        # Published diagnostics would be shown twice, because the editor also requests diagnostics.
        assert editor.published == {}
        assert editor.said == []


def test_an_editor_that_requests_diagnostics_refreshes_after_a_change_of_another_file(tmp_path: Path) -> None:
    project(tmp_path)
    before = "        optimizer.zero_grad(set_to_none=True)\n        norm = step("
    inside = "".join(f"    {row}\n" for row in before.split("\n"))[:-1]
    text = PROJECT["train.py"].replace(before, inside)
    name = "engine/scaler.py"
    with Editor(tmp_path, asks=True) as editor:
        trainer = editor.open(tmp_path / "train.py", text)
        helper = editor.open(tmp_path / name, PROJECT[name])
        first = editor.ask(trainer)
        assert isinstance(first, types.RelatedFullDocumentDiagnosticReport)
        assert [each.code for each in first.items] == ["AMP103"]
        assert editor.refreshed == 0
        nothing = "    def __call__(self, *given):\n        return 0.0\n"
        editor.type(helper, PROJECT[name].split("    def __call__")[0] + nothing)
        editor.ask(helper)
        editor.wait_for_refresh(1)
        second = editor.ask(trainer, first.result_id)
        assert isinstance(second, types.RelatedFullDocumentDiagnosticReport)
        assert "AMP103" not in [each.code for each in second.items]


def test_an_edit_of_what_was_never_opened_is_passed_over_in_silence(tmp_path: Path) -> None:
    """The server ignores such an edit: pygls alone would answer with a KeyError, which editors show to the user."""
    nowhere = "file:///nowhere/at/all.py"
    with Editor(tmp_path) as editor:
        editor.texts[nowhere], editor.versions[nowhere] = BAD, 1
        editor.type(nowhere, BAD)
        editor.edit(nowhere, (types.Range(types.Position(0, 0), types.Position(1, 0)), ""))
        unknown = types.VersionedNotebookDocumentIdentifier(2, "file:///nowhere/at/all.ipynb")
        change = types.NotebookDocumentChangeEvent()
        editor.client.notebook_document_did_change(types.DidChangeNotebookDocumentParams(unknown, change))
        address = editor.open(tmp_path / "train.py", BAD)
        assert editor.places(address) == [CLIP]
        assert editor.said == []


def test_a_finding_leads_to_the_page_of_its_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reported = "Metadata-Version: 2.1\nName: pytest-amp-check\nVersion: 1\n"
    reported += "Project-URL: Documentation, https://example.org/docs\n"
    distribution = tmp_path / "installed" / "pytest_amp_check-1.dist-info"
    distribution.mkdir(parents=True)
    (distribution / "METADATA").write_text(reported, encoding="utf-8")
    around = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(distribution.parent), around])))
    with Editor(tmp_path) as editor:
        (found,) = editor.found(editor.open(tmp_path / "train.py", BAD))
        assert found.code_description == types.CodeDescription("https://example.org/docs/rules/AMP201/")


def test_only_what_may_be_fixed_is_offered(tmp_path: Path) -> None:
    settings = tmp_path / ".amp-check.toml"
    settings.write_text('unfixable = ["AMP201"]\n', encoding="utf-8")
    with Editor(tmp_path) as editor:
        address = editor.open(tmp_path / "train.py", BAD)
        assert editor.places(address) == [CLIP]
        assert fixes(editor.actions(address)) == []
        assert editor.actions(address, only=["source.fixAll"]) == []
        settings.write_text("", encoding="utf-8")
        editor.type(address, BAD + "\n")
        assert len(fixes(editor.actions(address))) == 1
        assert len(editor.actions(address, only=["source.fixAll"])) == 1


def test_what_was_never_saved_and_what_lies_in_no_folder(tmp_path: Path) -> None:
    with Editor() as editor:
        unsaved = editor.open("untitled:Untitled-1", BAD)
        assert editor.places(unsaved) == [CLIP]
        (fix,) = fixes(editor.actions(unsaved))
        assert applied(BAD, edits_of(fix, unsaved)) == GOOD
        loose = editor.open(tmp_path / "train.py", BAD)
        assert editor.places(loose) == [CLIP]
        assert editor.said == []


@pytest.mark.long
@pytest.mark.exhaustive
def test_it_survives_what_is_typed_at_random(tmp_path: Path) -> None:
    """The server answers during random edits, logs no internal error, and has the initial findings at the end."""
    project(tmp_path)
    text = PROJECT["train.py"].replace("            scaler.unscale_(optimizer)\n", "")
    with Editor(tmp_path) as editor:
        address = editor.open(tmp_path / "train.py", text)
        helper = editor.open(tmp_path / "engine/scaler.py", PROJECT["engine/scaler.py"])
        first = editor.places(address)
        assert {code for code, _ in first} == {"AMP201"}
        versions = edits(text, 7), edits(PROJECT["engine/scaler.py"], 8)
        for at in range(25):
            editor.type(address, next(versions[0]))
            editor.type(helper, next(versions[1]))
            if at % 5 == 0:
                editor.actions(address)
                editor.hover(address, at + 1, 4)
        editor.type(address, text)
        editor.type(helper, PROJECT["engine/scaler.py"])
        assert editor.places(address) == first
        assert editor.places(helper) == []
        assert editor.said == []


def test_a_client_that_says_what_makes_no_sense_is_served_on(tmp_path: Path) -> None:
    """The server continues after unopened documents, invalid positions, double closing, and deletions on the disk."""
    nowhere = "file:///nowhere/at/all.py"
    folder = tmp_path / "gone"
    folder.mkdir()
    with Editor(folder) as editor:
        editor.texts[nowhere] = ""
        editor.versions[nowhere] = 0
        editor.type(nowhere, BAD)
        editor.close(nowhere)
        assert editor.hover(nowhere, 1, 0) == ""
        assert editor.actions(nowhere) == []
        address = editor.open(folder / "train.py", BAD)
        folder.rmdir()
        editor.type(address, BAD + "\n")
        assert editor.places(address) == [CLIP]
        assert editor.hover(address, 2**31, 2**31 - 1) == ""
        backwards = types.Range(types.Position(2**31 - 1, 7), types.Position(0, 0))
        assert editor.actions(address, backwards) == []
        editor.close(address)
        editor.close(address)
        odd = [editor.open(each, BAD) for each in ("git:/train.py?ref=HEAD", "file:///tmp/%00.py", "file:", "nonsense")]
        again = editor.open(tmp_path / "again.py", BAD)
        assert editor.places(again) == [CLIP]
        assert [editor.places(each) for each in odd[:1]] == [[CLIP]]


def test_without_the_extra_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "pygls.py").write_text("raise ModuleNotFoundError(name='pygls')\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest_amp_check", "server"]
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "amp-check: error: the language server needs pygls: pip install 'pytest-amp-check[server]'\n"
    )
