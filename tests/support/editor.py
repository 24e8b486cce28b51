"""An editor as seen by a language server: a client of pygls that talks to ``amp-check server`` over stdio."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from lsprotocol import types
from pygls.lsp.client import LanguageClient
from warm import SERVER, warm_python

Result = TypeVar("Result")
#: Seconds to wait for an answer: many times the time of the slowest answer.
PATIENCE = 120.0
EVERYTHING = types.Range(types.Position(0, 0), types.Position(10_000, 0))


class Editor:
    """A client with some folders open, used as a context manager. With ``asks``, the client requests diagnostics."""

    def __init__(
        self, *folders: Path, versioned: bool = False, asks: bool = False, command: Sequence[str] = ()
    ) -> None:
        self._command = command or (warm_python(SERVER), "-m", "pytest_amp_check")
        self._folders = folders
        self._versioned = versioned
        self._asks = asks
        self._loop = asyncio.new_event_loop()
        self.client = LanguageClient("editor", "1")
        #: The latest published diagnostics by URI, and every message that was shown or logged.
        self.published: dict[str, types.PublishDiagnosticsParams] = {}
        self.said: list[str] = []
        #: Number of requests of the server to fetch diagnostics again.
        self.refreshed = 0
        self._came = asyncio.Event()
        self.texts: dict[str, str] = {}
        self.versions: dict[str, int] = {}

        def published(params: types.PublishDiagnosticsParams) -> None:
            self.published[params.uri] = params
            self._came.set()

        def shown(params: types.ShowMessageParams) -> None:
            self.said.append(params.message)

        def logged(params: types.LogMessageParams) -> None:
            self.said.append(params.message)

        def refresh(params: None) -> None:
            self.refreshed += 1
            self._came.set()

        self.client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)(published)
        self.client.feature(types.WORKSPACE_DIAGNOSTIC_REFRESH)(refresh)
        self.client.feature(types.WINDOW_SHOW_MESSAGE)(shown)
        self.client.feature(types.WINDOW_LOG_MESSAGE)(logged)

    def __enter__(self) -> Editor:  # noqa: PYI034 - typing has Self from Python 3.11 on
        self.run(self._begin())
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self._end())
        self._loop.close()

    async def _begin(self) -> None:
        await self.client.start_io(*self._command, "server")
        edit = types.WorkspaceEditClientCapabilities(document_changes=self._versioned)
        folders = [types.WorkspaceFolder(uri(folder), folder.name) for folder in self._folders]
        asked = types.InitializeParams(
            capabilities=types.ClientCapabilities(
                workspace=types.WorkspaceClientCapabilities(
                    workspace_edit=edit,
                    diagnostics=types.DiagnosticWorkspaceClientCapabilities(self._asks) if self._asks else None,
                ),
                text_document=types.TextDocumentClientCapabilities(
                    diagnostic=types.DiagnosticClientCapabilities() if self._asks else None
                ),
                # The encodings that Helix and Neovim offer. Every editor supports the last encoding.
                general=types.GeneralClientCapabilities(
                    position_encodings=[
                        types.PositionEncodingKind.Utf8,
                        types.PositionEncodingKind.Utf32,
                        types.PositionEncodingKind.Utf16,
                    ]
                ),
            ),
            process_id=os.getpid(),
            workspace_folders=folders,
            root_uri=folders[0].uri if folders else None,
        )
        answer = await self.client.initialize_async(asked)
        self.capabilities, self.server_info = answer.capabilities, answer.server_info
        self.client.initialized(types.InitializedParams())

    async def _end(self) -> None:
        await self.client.shutdown_async(None)
        self.client.exit(None)
        await self.client.stop()  # type: ignore[no-untyped-call]

    def run(self, act: Coroutine[Any, Any, Result]) -> Result:
        return self._loop.run_until_complete(asyncio.wait_for(act, PATIENCE))

    def worked(self) -> float:
        """Return the CPU seconds of the server process, or NaN on systems without /proc."""
        server = self.client._server
        status = Path(f"/proc/{server.pid}/stat") if server is not None else None
        if status is None or not status.is_file():
            return float("nan")
        fields = status.read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    # Actions of the user.

    def open(self, where: Path | str, text: str) -> str:
        """Open a file or a document that has only a URI. Return the URI."""
        address = where if isinstance(where, str) else uri(where)
        self.texts[address], self.versions[address] = text, 1
        self.client.text_document_did_open(
            types.DidOpenTextDocumentParams(types.TextDocumentItem(address, "python", 1, text))
        )
        return address

    def type(self, address: str, text: str) -> int:
        """Replace the whole text of a document. Return the new version."""
        self.texts[address] = text
        version = self.versions[address] = self.versions[address] + 1
        self.client.text_document_did_change(
            types.DidChangeTextDocumentParams(
                types.VersionedTextDocumentIdentifier(version, address),
                [types.TextDocumentContentChangeWholeDocument(text)],
            )
        )
        return version

    def edit(self, address: str, *edits: tuple[types.Range, str]) -> int:
        """Send edits of parts of a text in sequence. Return the new version."""
        for where, new in edits:
            self.texts[address] = applied(self.texts[address], [types.TextEdit(where, new)])
        version = self.versions[address] = self.versions[address] + 1
        self.client.text_document_did_change(
            types.DidChangeTextDocumentParams(
                types.VersionedTextDocumentIdentifier(version, address),
                [types.TextDocumentContentChangePartial(where, new) for where, new in edits],
            )
        )
        return version

    def close(self, address: str) -> None:
        self.client.text_document_did_close(types.DidCloseTextDocumentParams(types.TextDocumentIdentifier(address)))

    # Results.

    def actions(
        self, address: str, where: types.Range = EVERYTHING, only: Sequence[str] | None = None
    ) -> list[types.CodeAction]:
        context = types.CodeActionContext([], only=list(only) if only is not None else None)
        asked = types.CodeActionParams(types.TextDocumentIdentifier(address), where, context)
        found = self.run(self.client.text_document_code_action_async(asked))
        return [each for each in found or () if isinstance(each, types.CodeAction)]

    def found(self, address: str) -> list[types.Diagnostic]:
        """Return the diagnostics after all open documents were checked.

        The request sent here is answered after the checks.
        """
        self.actions(address, only=["nothing"])
        return list(self.published[address].diagnostics) if address in self.published else []

    def places(self, address: str) -> list[tuple[str, int]]:
        """Return the codes of the diagnostics, with their lines from 1."""
        return [(str(each.code), each.range.start.line + 1) for each in self.found(address)]

    def ask(self, address: str, known: str | None = None) -> types.DocumentDiagnosticReport:
        """Request the diagnostics of a document. ``known`` is the result id of an earlier report."""
        asked = types.DocumentDiagnosticParams(types.TextDocumentIdentifier(address), previous_result_id=known)
        return self.run(self.client.text_document_diagnostic_async(asked))

    def wait_for_refresh(self, number: int) -> None:
        """Wait until the server has asked this number of times to fetch diagnostics again."""

        async def wait() -> None:
            while self.refreshed < number:
                self._came.clear()
                await self._came.wait()

        self.run(wait())

    def answer(self, address: str, version: int) -> None:
        """Wait until diagnostics for a version of a document are published."""

        async def wait() -> None:
            while address not in self.published or self.published[address].version != version:
                self._came.clear()
                await self._came.wait()

        self.run(wait())

    def hover(self, address: str, line: int, character: int) -> str:
        """Return the Markdown shown at a position (line from 1), or an empty string."""
        asked = types.HoverParams(types.TextDocumentIdentifier(address), types.Position(line - 1, character))
        found = self.run(self.client.text_document_hover_async(asked))
        if found is None:
            return ""
        assert isinstance(found.contents, types.MarkupContent)
        assert found.contents.kind is types.MarkupKind.Markdown
        return found.contents.value


def uri(path: Path) -> str:
    return path.resolve().as_uri()


def applied(text: str, edits: Sequence[types.TextEdit | types.AnnotatedTextEdit | types.SnippetTextEdit]) -> str:
    """Apply edits to a text as the protocol defines. The text may only have line feeds as line ends."""
    data = text.encode("utf-16-le")
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len((line + "\n").encode("utf-16-le")))

    def at(place: types.Position) -> int:
        return starts[place.line] + 2 * place.character

    for edit in sorted(edits, key=lambda edit: at(edit.range.start), reverse=True):
        assert isinstance(edit, types.TextEdit)
        data = data[: at(edit.range.start)] + edit.new_text.encode("utf-16-le") + data[at(edit.range.end) :]
    return data.decode("utf-16-le")
