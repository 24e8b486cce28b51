/** The extension: a client of the language server `amp-check server`. */

import { type ChildProcess, spawn } from "node:child_process";
import { accessSync, constants, statSync } from "node:fs";
import { homedir } from "node:os";
import * as vscode from "vscode";
import {
  CloseAction,
  ErrorAction,
  LanguageClient,
  type LanguageClientOptions,
  State,
} from "vscode-languageclient/node";
import { type Choice, findCommand } from "./command";
import { describeExit, describeSearch, INSTALL, LABELS, type Message, type Step } from "./messages";
import { RestartLimit } from "./restarts";

/** The part of the API of the extension ms-python.python that is used here. */
interface PythonApi {
  readonly environments?: {
    getActiveEnvironmentPath(resource?: vscode.Uri): { readonly path: string };
    readonly onDidChangeActiveEnvironmentPath: vscode.Event<unknown>;
  };
}

const PYTHON = "ms-python.python";
/** Characters of error output that are kept for the message about a server that ended. */
const KEPT = 4000;

let server: Server | undefined;

export async function activate(context: vscode.ExtensionContext): Promise<void> {
  const output = vscode.window.createOutputChannel("amp-check", { log: true });
  server = new Server(output);
  const started = server;
  context.subscriptions.push(
    output,
    vscode.commands.registerCommand("amp-check.restart", () => started.restart()),
    vscode.commands.registerCommand("amp-check.showOutput", () => output.show()),
    vscode.workspace.onDidChangeConfiguration((event) => {
      if (["enable", "path", "arguments"].some((name) => event.affectsConfiguration(`amp-check.${name}`))) {
        void started.restart();
      }
    }),
    vscode.workspace.onDidGrantWorkspaceTrust(() => void started.restart()),
  );
  await started.restart();
  const python = await findPython(output);
  const changed = python?.environments?.onDidChangeActiveEnvironmentPath(() => void started.restart());
  if (changed !== undefined) {
    context.subscriptions.push(changed);
  }
}

export async function deactivate(): Promise<void> {
  await server?.stop();
}

async function findPython(output: vscode.LogOutputChannel): Promise<PythonApi | undefined> {
  const extension = vscode.extensions.getExtension<PythonApi>(PYTHON);
  try {
    return await extension?.activate();
  } catch (error) {
    output.warn(`The Python extension did not start, so its environment is not searched: ${String(error)}`);
    return undefined;
  }
}

/** A client whose own errors go to the output. The messages of this extension say more, and name a next step. */
class QuietClient extends LanguageClient {
  public override error(message: string, data?: unknown): void {
    super.error(message, data, false);
  }
}

/** The server of this window. Starts and stops follow each other, in the order in which they were asked for. */
class Server {
  private client: LanguageClient | undefined;
  private last: Promise<void> = Promise.resolve();

  public constructor(private readonly output: vscode.LogOutputChannel) {}

  public restart(): Promise<void> {
    return this.queue(async () => {
      await this.stopClient();
      await this.start();
    });
  }

  public stop(): Promise<void> {
    return this.queue(() => this.stopClient());
  }

  private queue(act: () => Promise<void>): Promise<void> {
    this.last = this.last.then(act).catch((error: unknown) => this.output.error(String(error)));
    return this.last;
  }

  private async stopClient(): Promise<void> {
    const client = this.client;
    this.client = undefined;
    // A client that never ran cannot be stopped.
    if (client?.state === State.Running) {
      await client.stop();
    }
    await client?.dispose();
  }

  private async start(): Promise<void> {
    const settings = vscode.workspace.getConfiguration("amp-check");
    if (!settings.get<boolean>("enable", true)) {
      this.output.info("amp-check.enable is off: nothing is checked.");
      return;
    }
    const found = findCommand(await this.readChoice(settings), {
      platform: process.platform,
      home: homedir(),
      searchPath: process.env["PATH"] ?? process.env["Path"] ?? "",
      isProgram,
    });
    if (found.kind !== "found") {
      this.show(describeSearch(found));
      return;
    }
    const given = settings.get<string[]>("arguments", ["server"]);
    this.output.info(`Starting ${found.command} ${given.join(" ")} (from ${found.origin})`);
    await this.run(found.command, given);
  }

  private async run(command: string, given: readonly string[]): Promise<void> {
    let child: ChildProcess | undefined;
    let errors = "";
    const limit = new RestartLimit();
    const open = (): Promise<ChildProcess> => {
      errors = "";
      const cwd = vscode.workspace.workspaceFolders?.[0]?.uri.fsPath;
      const opened = spawn(command, given, { windowsHide: true, ...(cwd === undefined ? {} : { cwd }) });
      child = opened;
      opened.stderr.setEncoding("utf8").on("data", (text: string) => {
        errors = (errors + text).slice(-KEPT);
      });
      return new Promise((resolve, reject) => {
        opened.once("spawn", () => resolve(opened));
        opened.once("error", reject);
      });
    };
    const explain = async (): Promise<void> => this.show(describeExit(command, await exitCode(child), errors));
    const options: LanguageClientOptions = {
      documentSelector: [
        { scheme: "file", language: "python" },
        { scheme: "untitled", language: "python" },
        { notebook: "*", language: "python" },
      ],
      outputChannel: this.output,
      diagnosticCollectionName: "amp-check",
      initializationFailedHandler: () => false,
      errorHandler: {
        error: () => ({ action: ErrorAction.Continue, handled: true }),
        closed: async () => {
          if (client.state === State.Running && limit.mayRestart(Date.now())) {
            return { action: CloseAction.Restart, handled: true };
          }
          if (client.state === State.Running) {
            await explain();
          }
          return { action: CloseAction.DoNotRestart, handled: true };
        },
      },
    };
    const client = new QuietClient("amp-check", "amp-check", open, options);
    this.client = client;
    try {
      await client.start();
    } catch {
      await explain();
    }
  }

  private async readChoice(settings: vscode.WorkspaceConfiguration): Promise<Choice> {
    const folders = (vscode.workspace.workspaceFolders ?? []).map((folder) => folder.uri.fsPath);
    // The environment of a folder that is not trusted may be part of the folder.
    const python = vscode.workspace.isTrusted ? await findPython(this.output) : undefined;
    const resource = vscode.workspace.workspaceFolders?.[0]?.uri;
    return {
      path: settings.get<string>("path", ""),
      folders,
      environment: python?.environments?.getActiveEnvironmentPath(resource).path,
    };
  }

  private show(message: Message): void {
    this.output.error(message.text);
    const labels = message.steps.map((step) => LABELS[step]);
    // Nothing waits for the answer: the user may leave the message open.
    void vscode.window.showErrorMessage(message.text, ...labels).then((label) => {
      const step = message.steps.find((each) => LABELS[each] === label);
      return step === undefined ? undefined : this.take(step);
    });
  }

  private async take(step: Step): Promise<void> {
    if (step === "copy") {
      await vscode.env.clipboard.writeText(INSTALL);
    } else if (step === "settings") {
      await vscode.commands.executeCommand("workbench.action.openSettings", "amp-check");
    } else if (step === "output") {
      this.output.show();
    } else {
      await this.restart();
    }
  }
}

function isProgram(path: string): boolean {
  try {
    accessSync(path, constants.X_OK);
    return statSync(path).isFile();
  } catch {
    return false;
  }
}

/** Return the exit code of a process, or null for a signal, or if the process has not ended after a second. */
async function exitCode(child: ChildProcess | undefined): Promise<number | null> {
  if (child === undefined || child.exitCode !== null || child.signalCode !== null) {
    return child?.exitCode ?? null;
  }
  return new Promise((resolve) => {
    const timer = setTimeout(() => resolve(null), 1000);
    child.once("close", (code) => {
      clearTimeout(timer);
      resolve(code);
    });
  });
}
