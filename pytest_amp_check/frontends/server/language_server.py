"""The language server ``amp-check server``: notifications and requests of an editor."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any, NamedTuple, TypeVar

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.protocol.language_server import LanguageServerProtocol, lsp_method
from pygls.uris import from_fs_path, to_fs_path

from ... import __version__
from ...protocol.finding import Finding
from ...protocol.fix import SAFE
from ...protocol.rules import RULES
from ...protocol.severities import ERROR, INFO, WARNING
from ...static.sources.source_files import UnsavedFiles
from .. import options as table
from ..rule_text import rule_summary_markdown
from ..source_lines import SourceLines, open_standard_input
from . import actions
from .checking import CheckedDocument, DocumentChecker, DocumentText, StaleCheck
from .documents import Document, Notebook, TextBuffer, count_units, find_range
from .pages import RulePages

Result = TypeVar("Result")
Report = types.RelatedFullDocumentDiagnosticReport | types.RelatedUnchangedDocumentDiagnosticReport
#: Seconds without further edits before a check starts.
PAUSE = 0.05
SEVERITIES = {
    ERROR: types.DiagnosticSeverity.Error,
    WARNING: types.DiagnosticSeverity.Warning,
    INFO: types.DiagnosticSeverity.Information,
}
TAGS = {"AMP901": types.DiagnosticTag.Deprecated, "AMP902": types.DiagnosticTag.Unnecessary}
WATCHED = tuple(f"**/{name}" for name in ("*.py", "*.ipynb", "*.md", *table.FILES))


class PublishedDiagnostics(NamedTuple):
    """The diagnostics of a text. ``result_number`` differs after every change."""

    result_number: int
    version: int | None
    diagnostics: list[types.Diagnostic]


class CheckServer:
    """Open documents, their findings, and the single running check."""

    def __init__(self, editor: LanguageServer) -> None:
        self._editor = editor
        #: Documents by address; the address of a cell maps to the notebook.
        self.documents: dict[str, Document] = {}
        self.checked_documents: dict[str, CheckedDocument] = {}
        self.checker = DocumentChecker()
        self._executor = ThreadPoolExecutor(1, "amp-check")
        self._generation = 0
        self._check_task: asyncio.Task[None] | None = None
        self._published_diagnostics: dict[str, PublishedDiagnostics] = {}
        self._shown_messages: set[str] = set()
        self._pages = RulePages()
        #: Number of diagnostic requests that wait for the running check, by address.
        self._waiting_requests: Counter[str] = Counter()
        #: Result number of the last answered diagnostic request, by address.
        self._answered_numbers: dict[str, int] = {}
        self._result_numbers = count(1)

    # Document changes.

    def open_document(self, document: Document) -> None:
        self.documents[document.uri] = document
        for uri, _ in document.list_addresses():
            self.documents[uri] = document
        self.schedule_check(files_moved=True)

    def close_document(self, uri: str) -> None:
        document = self.documents.pop(uri, None)
        if document is None:
            return
        self.checked_documents.pop(document.name, None)
        for shown, _ in document.list_addresses():
            self.documents.pop(shown, None)
            self.clear_diagnostics(shown)
        self.schedule_check(files_moved=True)

    def clear_diagnostics(self, uri: str) -> None:
        self._publish_diagnostics(uri, None, [])
        self._published_diagnostics.pop(uri, None)
        self._answered_numbers.pop(uri, None)

    def schedule_check(self, *, files_moved: bool = False) -> None:
        """Schedule a check of all open documents, and cancel the running check.

        ``files_moved`` means that files may have been created or deleted.
        """
        self._generation += 1
        if self._check_task is not None:
            self._check_task.cancel()
        self._check_task = asyncio.get_running_loop().create_task(self._check_documents(files_moved=files_moved))

    def shut_down(self) -> None:
        """Remove the temporary files."""
        self._pages.remove_files()

    async def wait_until_checked(self) -> None:
        """Wait until the current content of all open documents is checked."""
        while self._check_task is not None and not self._check_task.done():
            await asyncio.wait([self._check_task])

    # Findings.

    async def _check_documents(self, *, files_moved: bool) -> None:
        await asyncio.sleep(PAUSE)
        generation = self._generation
        loop = asyncio.get_running_loop()
        documents = {document.name: document for document in self.documents.values()}
        texts = [DocumentText(name, document.path, document.encode_text()) for name, document in documents.items()]

        def show_results(found: dict[str, CheckedDocument]) -> None:
            if generation == self._generation:
                self.checked_documents.update(found)
                for name, checked in found.items():
                    self._show_document(documents[name], checked)

        def check_texts() -> None:
            if files_moved:
                self.checker.note_moved_files()
            try:
                for found in self.checker.check_documents(texts, lambda: generation != self._generation):
                    loop.call_soon_threadsafe(show_results, found)
            except StaleCheck:
                return

        await self._run_in_worker(check_texts)
        self._show_messages(self.checker.errors.values())
        self._refresh_diagnostics()

    async def _run_in_worker(self, act: Callable[[], Result]) -> Result | None:
        """Run a function in the worker thread that analyzes source.

        An exception is only logged; the result is then None.
        """
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, act)
        except Exception as error:  # noqa: BLE001 - an editor goes on, whatever it has typed
            said = f"internal error: {type(error).__name__}: {error}"
            self._editor.window_log_message(types.LogMessageParams(types.MessageType.Error, f"amp-check: {said}"))
            return None

    def _show_messages(self, sentences: Iterable[str]) -> None:
        """Show configuration errors, each once until resolved."""
        now = set(sentences)
        for sentence in sorted(now - self._shown_messages):
            self._editor.window_show_message(types.ShowMessageParams(types.MessageType.Error, f"amp-check: {sentence}"))
        self._shown_messages = now

    def _show_document(self, document: Document, checked: CheckedDocument) -> None:
        diagnostics: dict[str, list[types.Diagnostic]] = {uri: [] for uri, _ in document.list_addresses()}
        sources = SourceLines({document.name: document.read_text()})
        for finding in checked.findings:
            located = document.find_location(finding.site)
            if located is not None:
                uri, where = located
                diagnostics[uri].append(self._make_diagnostic(finding, where, document, sources))
        versions = dict(document.list_addresses())
        for uri, found in diagnostics.items():
            self._publish_diagnostics(uri, versions[uri], found)

    def _publish_diagnostics(self, uri: str, version: int | None, diagnostics: list[types.Diagnostic]) -> None:
        shown = self._published_diagnostics.get(uri)
        if shown is not None and (shown.version, shown.diagnostics) == (version, diagnostics):
            return
        same = shown is not None and shown.diagnostics == diagnostics
        number = shown.result_number if shown is not None and same else next(self._result_numbers)
        self._published_diagnostics[uri] = PublishedDiagnostics(number, version, diagnostics)
        # An editor that pulls diagnostics would show pushed diagnostics twice.
        if not self._pulls_diagnostics():
            self._editor.text_document_publish_diagnostics(
                types.PublishDiagnosticsParams(uri=uri, diagnostics=diagnostics, version=version)
            )

    def _pulls_diagnostics(self) -> bool:
        """Return True if the editor requests diagnostics (3.17, ``textDocument/diagnostic``)."""
        text_document = self._editor.client_capabilities.text_document
        return text_document is not None and text_document.diagnostic is not None

    def _refresh_diagnostics(self) -> None:
        """Ask the editor to request diagnostics again if an edit of another file made them outdated."""
        workspace = self._editor.client_capabilities.workspace
        able = workspace is not None and workspace.diagnostics is not None and workspace.diagnostics.refresh_support
        outdated = any(
            shown.result_number != self._answered_numbers.get(uri, shown.result_number)
            and not self._waiting_requests[uri]
            for uri, shown in self._published_diagnostics.items()
        )
        if able and outdated:
            self._editor.workspace_diagnostic_refresh(None)

    async def report_diagnostics(self, uri: str, known: str | None) -> Report:
        """Return the current diagnostics of a text, or a report that the editor's diagnostics are unchanged."""
        self._waiting_requests[uri] += 1
        try:
            await self.wait_until_checked()
        finally:
            self._waiting_requests[uri] -= 1
        shown = self._published_diagnostics.get(uri, PublishedDiagnostics(0, None, []))
        self._answered_numbers[uri] = shown.result_number
        if known == str(shown.result_number):
            return types.RelatedUnchangedDocumentDiagnosticReport(result_id=known)
        return types.RelatedFullDocumentDiagnosticReport(items=shown.diagnostics, result_id=str(shown.result_number))

    def _make_diagnostic(
        self, finding: Finding, where: types.Range, document: Document, sources: SourceLines
    ) -> types.Diagnostic:
        message = finding.message
        if not finding.certain:
            message += f" ({finding.uncertainty})"
        related = []
        for step in (*finding.trace, *finding.edit_places):
            if step.site.path == document.name:
                located = document.find_location(step.site)
            else:
                row = sources.find_line_at(step.site, step.site.line) or ""
                lines = [""] * (step.site.line - 1) + [row]
                located = from_fs_path(os.path.abspath(step.site.path)) or "", find_range(step.site, lines)
            if located is not None:
                related.append(types.DiagnosticRelatedInformation(types.Location(*located), step.text))
        address = self._pages.find_address(finding.code)
        return types.Diagnostic(
            range=where,
            message=f"{finding.name}: {message}",
            severity=SEVERITIES[finding.severity],
            code=finding.code,
            code_description=types.CodeDescription(address) if address else None,
            source="amp-check",
            related_information=related or None,
            tags=[TAGS[finding.code]] if finding.code in TAGS else None,
        )

    # Requests.

    def find_hover(self, uri: str, position: types.Position) -> tuple[str, types.Range] | None:
        """Return a short text about the rules at a position, and the range. None if there is none.

        A rule is included if a finding of the rule covers the position, or if the text there contains the code.
        """
        document = self.documents.get(uri)
        if document is None:
            return None
        here = types.Range(position, position)
        checked = self.checked_documents.get(document.name)
        codes: dict[str, types.Range] = {}
        effects: dict[str, str] = {}
        for finding in checked.findings if checked is not None else ():
            located = document.find_location(finding.site)
            if located is not None and located[0] == uri and actions.do_overlap(located[1], here):
                codes.setdefault(finding.code, located[1])
                effects.setdefault(finding.code, finding.effect)
        rows = [row for buffer in document.buffers.values() if buffer.uri == uri for row in buffer.split_lines()]
        row = rows[position.line] if position.line < len(rows) else ""
        for match in re.finditer(r"\bAMP\d{3}\b", row):
            start, end = (types.Position(position.line, count_units(row, column)) for column in match.span())
            if match.group() in RULES and start.character <= position.character <= end.character:
                codes.setdefault(match.group(), types.Range(start, end))
        if not codes:
            return None
        shown = (
            rule_summary_markdown(RULES[code], self._pages.find_address(code), effects.get(code, "")) for code in codes
        )
        return "\n---\n\n".join(shown), next(iter(codes.values()))

    async def find_code_actions(self, params: types.CodeActionParams) -> list[types.CodeAction]:
        await self.wait_until_checked()
        uri, only = params.text_document.uri, params.context.only
        document = self.documents.get(uri)
        checked = self.checked_documents.get(document.name) if document is not None else None
        if document is None or checked is None:
            return []
        made: list[types.CodeAction] = []
        for finding in checked.findings:
            located = document.find_location(finding.site)
            if located is None or located[0] != uri or not actions.do_overlap(located[1], params.range):
                continue
            diagnostics = [
                each
                for each in self._published_diagnostics.get(uri, PublishedDiagnostics(0, None, [])).diagnostics
                if each.code == finding.code and each.range == located[1]
            ]
            if actions.is_requested(only, "quickfix"):
                made += await self._make_fix_actions(document, checked, finding, diagnostics)
                made += self._make_ignore_actions(document, finding, diagnostics)
        if only is not None and actions.is_requested(only, actions.FIX_ALL):
            offered = [finding for finding in checked.findings if finding.fix is not None]
            edit = await self._compute_fix_edit(document, checked, offered, unsafe=False)
            if edit is not None:
                made.append(types.CodeAction("Fix all that amp-check can fix safely", actions.FIX_ALL, edit=edit))
        return made

    async def _make_fix_actions(
        self, document: Document, checked: CheckedDocument, finding: Finding, diagnostics: list[types.Diagnostic]
    ) -> list[types.CodeAction]:
        if finding.fix is None:
            return []
        edit = await self._compute_fix_edit(document, checked, [finding], unsafe=True)
        if edit is None:
            return []
        kind = types.CodeActionKind.QuickFix
        preferred = finding.fix.applicability == SAFE
        return [
            types.CodeAction(
                actions.make_fix_title(finding), kind, diagnostics, is_preferred=preferred or None, edit=edit
            )
        ]

    def _make_ignore_actions(
        self, document: Document, finding: Finding, diagnostics: list[types.Diagnostic]
    ) -> list[types.CodeAction]:
        buffer = document.find_buffer(finding.site)
        edit = actions.make_ignore_edit(finding, buffer.split_lines()) if buffer is not None else None
        if buffer is None or edit is None:
            return []
        title = f"Silence {finding.code} on this line"
        change = self._make_workspace_edit({buffer.uri: (buffer, [edit])})
        return [types.CodeAction(title, types.CodeActionKind.QuickFix, diagnostics, edit=change)]

    async def _compute_fix_edit(
        self, document: Document, checked: CheckedDocument, findings: list[Finding], *, unsafe: bool
    ) -> types.WorkspaceEdit | None:
        text = DocumentText(document.name, document.path, document.encode_text())
        edited = {other.path: other.encode_text() for other in self.documents.values() if other.path}

        def compute_edits() -> actions.Edits | None:
            with UnsavedFiles(edited):
                return actions.make_fix_edits(text, checked, findings, unsafe=unsafe)

        edits = await self._run_in_worker(compute_edits)
        if not edits or any(part not in document.buffers for part in edits):
            return None
        return self._make_workspace_edit(
            {document.buffers[part].uri: (document.buffers[part], found) for part, found in edits.items()}
        )

    def _make_workspace_edit(self, changes: dict[str, tuple[TextBuffer, list[types.TextEdit]]]) -> types.WorkspaceEdit:
        """Return an edit with document versions if the editor supports versions.

        An editor with another version then rejects the edit.
        """
        capabilities = self._editor.client_capabilities.workspace
        edit = capabilities.workspace_edit if capabilities is not None else None
        if edit is not None and edit.document_changes:
            return types.WorkspaceEdit(
                document_changes=[
                    types.TextDocumentEdit(
                        types.OptionalVersionedTextDocumentIdentifier(uri=uri, version=buffer.version), list(found)
                    )
                    for uri, (buffer, found) in changes.items()
                ]
            )
        return types.WorkspaceEdit(changes={uri: found for uri, (_, found) in changes.items()})


def serve_editor() -> None:
    """Serve an editor over standard input and output until the editor exits."""
    stdin, stdout = open_standard_input().buffer, sys.stdout.buffer
    # Printed output would corrupt the protocol stream.
    sys.stdout = sys.stderr
    make_server().start_io(stdin, stdout)


class _Utf16Protocol(LanguageServerProtocol):
    """Language server protocol with columns in UTF-16 code units.

    Every client supports UTF-16 code units (3.17, PositionEncodingKind). pygls would accept the client's preference:
    Helix and Neovim since 0.11 prefer bytes of UTF-8. Edits go only to the texts of :class:`CheckServer`. pygls fails
    with a KeyError, which editors show, on an edit of a text that was never opened.
    """

    @lsp_method(types.INITIALIZE)
    def lsp_initialize(self, params: types.InitializeParams) -> Generator[Any, Any, types.InitializeResult]:
        if params.capabilities.general is not None:
            params.capabilities.general.position_encodings = None
        return (yield from super().lsp_initialize(params))

    @lsp_method(types.TEXT_DOCUMENT_DID_CHANGE)
    def lsp_text_document__did_change(self, params: types.DidChangeTextDocumentParams) -> Generator[Any, Any, None]:
        yield self.fm.features[types.TEXT_DOCUMENT_DID_CHANGE], (params,), None

    @lsp_method(types.NOTEBOOK_DOCUMENT_DID_CHANGE)
    def lsp_notebook_document__did_change(
        self, params: types.DidChangeNotebookDocumentParams
    ) -> Generator[Any, Any, None]:
        yield self.fm.features[types.NOTEBOOK_DOCUMENT_DID_CHANGE], (params,), None


def make_server() -> LanguageServer:
    """Return the language server with all request handlers."""
    selector = [types.NotebookDocumentFilterWithCells(notebook="*", cells=[types.NotebookCellLanguage("python")])]
    editor = LanguageServer(
        "amp-check",
        __version__,
        text_document_sync_kind=types.TextDocumentSyncKind.Incremental,
        notebook_document_sync=types.NotebookDocumentSyncOptions(notebook_selector=selector, save=True),
        protocol_cls=_Utf16Protocol,
    )
    server = CheckServer(editor)
    _register_texts(editor, server)
    _register_notebooks(editor, server)
    _register_folders(editor, server)
    _register_requests(editor, server)
    return editor


def _register_texts(editor: LanguageServer, server: CheckServer) -> None:
    @editor.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def on_opened(params: types.DidOpenTextDocumentParams) -> None:
        item = params.text_document
        server.open_document(Document(item.uri, item.version, {None: TextBuffer(item.uri, item.version, item.text)}))

    @editor.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    def on_changed(params: types.DidChangeTextDocumentParams) -> None:
        document = server.documents.get(params.text_document.uri)
        if document is not None and None in document.buffers:
            document.buffers[None].apply_changes(params.content_changes, params.text_document.version)
            server.schedule_check()

    @editor.feature(types.TEXT_DOCUMENT_DID_SAVE)
    def on_saved(params: types.DidSaveTextDocumentParams) -> None:
        server.schedule_check(files_moved=True)

    @editor.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def on_closed(params: types.DidCloseTextDocumentParams) -> None:
        server.close_document(params.text_document.uri)


def _register_notebooks(editor: LanguageServer, server: CheckServer) -> None:
    @editor.feature(types.NOTEBOOK_DOCUMENT_DID_OPEN)
    def on_opened(params: types.DidOpenNotebookDocumentParams) -> None:
        server.open_document(Notebook(params.notebook_document, params.cell_text_documents))

    @editor.feature(types.NOTEBOOK_DOCUMENT_DID_CHANGE)
    def on_changed(params: types.DidChangeNotebookDocumentParams) -> None:
        notebook = server.documents.get(params.notebook_document.uri)
        if isinstance(notebook, Notebook):
            for uri in notebook.apply_change(params.change, params.notebook_document.version):
                server.documents.pop(uri, None)
                server.clear_diagnostics(uri)
            server.documents.update((uri, notebook) for uri, _ in notebook.list_addresses())
            server.schedule_check()

    @editor.feature(types.NOTEBOOK_DOCUMENT_DID_SAVE)
    def on_saved(params: types.DidSaveNotebookDocumentParams) -> None:
        server.schedule_check(files_moved=True)

    @editor.feature(types.NOTEBOOK_DOCUMENT_DID_CLOSE)
    def on_closed(params: types.DidCloseNotebookDocumentParams) -> None:
        server.close_document(params.notebook_document.uri)


def _register_folders(editor: LanguageServer, server: CheckServer) -> None:
    def update_folders() -> None:
        found = (to_fs_path(folder.uri) for folder in editor.workspace.folders.values())
        known = [os.path.abspath(path) for path in found if path]
        if not known and editor.workspace.root_path:
            known = [os.path.abspath(editor.workspace.root_path)]
        server.checker.folders = known

    @editor.feature(types.INITIALIZED)
    async def on_initialized(params: types.InitializedParams) -> None:
        update_folders()
        workspace = editor.client_capabilities.workspace
        watching = workspace.did_change_watched_files if workspace is not None else None
        if watching is not None and watching.dynamic_registration:
            options = types.DidChangeWatchedFilesRegistrationOptions(
                [types.FileSystemWatcher(glob) for glob in WATCHED]
            )
            asked = types.Registration("amp-check-files", types.WORKSPACE_DID_CHANGE_WATCHED_FILES, options)
            await editor.client_register_capability_async(types.RegistrationParams([asked]))

    @editor.feature(types.SHUTDOWN)
    def on_shut_down(params: None) -> None:
        server.shut_down()

    @editor.feature(types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS)
    def on_folders_changed(params: types.DidChangeWorkspaceFoldersParams) -> None:
        update_folders()
        server.schedule_check(files_moved=True)

    @editor.feature(types.WORKSPACE_DID_CHANGE_WATCHED_FILES)
    def on_files_changed(params: types.DidChangeWatchedFilesParams) -> None:
        server.schedule_check(files_moved=True)


def _register_requests(editor: LanguageServer, server: CheckServer) -> None:
    @editor.feature(types.TEXT_DOCUMENT_HOVER)
    def on_hover(params: types.HoverParams) -> types.Hover | None:
        found = server.find_hover(params.text_document.uri, params.position)
        if found is None:
            return None
        page, where = found
        asked = editor.client_capabilities.text_document
        formats = asked.hover.content_format if asked is not None and asked.hover is not None else None
        # Markdown text is also readable as plain text.
        plain = formats is not None and types.MarkupKind.Markdown not in formats
        kind = types.MarkupKind.PlainText if plain else types.MarkupKind.Markdown
        return types.Hover(types.MarkupContent(kind, page), where)

    @editor.feature(
        types.TEXT_DOCUMENT_DIAGNOSTIC,
        types.DiagnosticOptions(identifier="amp-check", inter_file_dependencies=True, workspace_diagnostics=False),
    )
    async def on_diagnostic(params: types.DocumentDiagnosticParams) -> Report:
        return await server.report_diagnostics(params.text_document.uri, params.previous_result_id)

    kinds = [types.CodeActionKind.QuickFix, actions.FIX_ALL]

    @editor.feature(types.TEXT_DOCUMENT_CODE_ACTION, types.CodeActionOptions(code_action_kinds=kinds))
    async def on_code_action(params: types.CodeActionParams) -> list[types.CodeAction]:
        return await server.find_code_actions(params)
