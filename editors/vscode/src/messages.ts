/** What the user reads if the server does not run: one sentence, each with a next step. */

import type { Found } from "./command";

export const INSTALL = 'pip install "pytest-amp-check[server]"';

export type Step = "copy" | "settings" | "output" | "retry";

export interface Message {
  readonly text: string;
  readonly steps: readonly Step[];
}

/** The label of the button of each step. */
export const LABELS: Readonly<Record<Step, string>> = {
  copy: "Copy the Command",
  settings: "Open the Settings",
  output: "Show the Output",
  retry: "Try Again",
};

/** Return the message for a command that was not found. */
export function describeSearch(found: Exclude<Found, { kind: "found" }>): Message {
  if (found.kind === "wrong-setting") {
    return {
      text: `The setting amp-check.path names ${found.path}, which is no program: correct or clear the setting.`,
      steps: ["settings", "retry"],
    };
  }
  const where =
    found.environment === undefined
      ? "not found in PATH"
      : `found neither in the selected Python environment (${found.environment}) nor in PATH`;
  return {
    text: `amp-check was ${where}: run ${INSTALL} in your Python environment, or set amp-check.path.`,
    steps: ["copy", "settings", "retry"],
  };
}

/** Return the message for a server that ended, from its exit code and the end of its error output. */
export function describeExit(command: string, code: number | null, errors: string): Message {
  if (/needs pygls/.test(errors)) {
    return {
      text: `${command} is installed without its language server: run ${INSTALL} in the same environment.`,
      steps: ["copy", "retry"],
    };
  }
  const last = errors.trimEnd().split(/\r?\n/).pop()?.trim() ?? "";
  const why = last === "" ? (code === null ? "a signal" : `exit code ${code}`) : last;
  return {
    text: `The server ${command} ended (${why}): see the output, or run "amp-check: Restart the Server".`,
    steps: ["output", "retry"],
  };
}
