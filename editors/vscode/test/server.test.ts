/** A round trip with the server itself. AMP_CHECK holds its command as a JSON list; without it there is no test. */

import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { pathToFileURL } from "node:url";
import {
  CodeActionRequest,
  createProtocolConnection,
  type Diagnostic,
  DidChangeTextDocumentNotification,
  DidOpenNotebookDocumentNotification,
  DidOpenTextDocumentNotification,
  DocumentDiagnosticRequest,
  ExitNotification,
  HoverRequest,
  InitializedNotification,
  InitializeRequest,
  type InitializeResult,
  NotebookCellKind,
  type ProtocolConnection,
  ShutdownRequest,
  StreamMessageReader,
  StreamMessageWriter,
} from "vscode-languageserver-protocol/node";

const command = JSON.parse(process.env["AMP_CHECK"] ?? "[]") as string[];
const skip = command.length === 0 ? "AMP_CHECK is not set" : false;

const WRONG = `import torch

scaler = torch.amp.GradScaler("cuda")


def train(model, optimizer, batches):
    for batch, target in batches:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = torch.nn.functional.cross_entropy(model(batch), target)
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
`;
const RIGHT = WRONG.replace("        torch.nn.utils", "        scaler.unscale_(optimizer)\n        torch.nn.utils");

let folder = "";
let child: ChildProcess;
let connection: ProtocolConnection;
let initialized: InitializeResult;

before(async () => {
  if (skip !== false) {
    return;
  }
  folder = mkdtempSync(join(tmpdir(), "amp-check-"));
  const [program = "", ...words] = command;
  child = spawn(program, [...words, "server"], { cwd: folder, stdio: ["pipe", "pipe", "inherit"] });
  connection = createProtocolConnection(new StreamMessageReader(child.stdout!), new StreamMessageWriter(child.stdin!));
  connection.listen();
  initialized = await connection.sendRequest(InitializeRequest.type, {
    processId: process.pid,
    rootUri: pathToFileURL(folder).href,
    workspaceFolders: [{ uri: pathToFileURL(folder).href, name: "work" }],
    // What the client of VS Code offers, as far as the server asks for it.
    capabilities: {
      textDocument: { diagnostic: {}, hover: { contentFormat: ["markdown", "plaintext"] } },
      notebookDocument: { synchronization: {} },
      workspace: { diagnostics: { refreshSupport: false } },
    },
  });
  await connection.sendNotification(InitializedNotification.type, {});
});

after(async () => {
  if (skip !== false) {
    return;
  }
  await connection.sendRequest(ShutdownRequest.type);
  await connection.sendNotification(ExitNotification.type);
  await new Promise((resolve) => child.once("exit", resolve));
  connection.dispose();
  rmSync(folder, { recursive: true, force: true });
});

async function diagnose(uri: string): Promise<Diagnostic[]> {
  const report = await connection.sendRequest(DocumentDiagnosticRequest.type, { textDocument: { uri } });
  assert.equal(report.kind, "full");
  return report.kind === "full" ? report.items : [];
}

test("the server takes texts and notebooks of Python", { skip }, () => {
  const { capabilities } = initialized;
  assert.equal(initialized.serverInfo?.name, "amp-check");
  assert.ok(capabilities.diagnosticProvider);
  const manifest = JSON.parse(readFileSync("package.json", "utf8")) as { version: string };
  assert.equal(initialized.serverInfo?.version, manifest.version);
  const sync = capabilities.notebookDocumentSync as { notebookSelector: { cells: { language: string }[] }[] };
  assert.deepEqual(sync.notebookSelector[0]?.cells, [{ language: "python" }]);
});

test("a mistake is found, explained, fixed and gone", { skip }, async () => {
  const path = join(folder, "train.py");
  writeFileSync(path, WRONG);
  const uri = pathToFileURL(path).href;
  await connection.sendNotification(DidOpenTextDocumentNotification.type, {
    textDocument: { uri, languageId: "python", version: 1, text: WRONG },
  });
  const [finding, ...others] = await diagnose(uri);
  assert.deepEqual(others, []);
  assert.equal(finding?.code, "AMP201");
  assert.equal(finding?.source, "amp-check");
  assert.equal(finding?.range.start.line, 11);

  const hover = await connection.sendRequest(HoverRequest.type, {
    textDocument: { uri },
    position: { line: 11, character: 12 },
  });
  assert.match(JSON.stringify(hover?.contents), /AMP201/);

  const actions = await connection.sendRequest(CodeActionRequest.type, {
    textDocument: { uri },
    range: finding.range,
    context: { diagnostics: [finding] },
  });
  assert.match(JSON.stringify(actions), /unscale_\(optimizer\)/);

  await connection.sendNotification(DidChangeTextDocumentNotification.type, {
    textDocument: { uri, version: 2 },
    contentChanges: [{ text: RIGHT }],
  });
  assert.deepEqual(await diagnose(uri), []);
});

test("a mistake over two cells of a notebook is found in its cell", { skip }, async () => {
  const lines = WRONG.split("\n");
  const notebook = pathToFileURL(join(folder, "train.ipynb")).href;
  const cells = [lines.slice(0, 4).join("\n"), lines.slice(4).join("\n")].map((text, index) => ({
    uri: `vscode-notebook-cell:${notebook.slice("file:".length)}#cell${index}`,
    languageId: "python",
    version: 1,
    text,
  }));
  await connection.sendNotification(DidOpenNotebookDocumentNotification.type, {
    notebookDocument: {
      uri: notebook,
      notebookType: "jupyter-notebook",
      version: 1,
      cells: cells.map((cell) => ({ kind: NotebookCellKind.Code, document: cell.uri })),
    },
    cellTextDocuments: cells,
  });
  assert.deepEqual(await diagnose(cells[0]!.uri), []);
  const found = await diagnose(cells[1]!.uri);
  assert.deepEqual(
    found.map((each) => [each.code, each.range.start.line]),
    [["AMP201", 7]],
  );
});
