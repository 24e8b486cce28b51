/** Where the command `amp-check` is. Nothing here needs VS Code, so that tests run under node alone. */

import * as path from "node:path";

/** What the search reads from the machine. */
export interface Host {
  readonly platform: NodeJS.Platform;
  readonly home: string;
  /** The variable PATH. */
  readonly searchPath: string;
  /** Return true if the path is a file that may be executed. */
  readonly isProgram: (path: string) => boolean;
}

/** What the user has chosen. */
export interface Choice {
  /** The setting `amp-check.path`. */
  readonly path: string;
  /** Folders that are open in the window. */
  readonly folders: readonly string[];
  /** Interpreter or folder of the selected Python environment, or undefined if nothing is selected. */
  readonly environment: string | undefined;
}

export type Found =
  | { readonly kind: "found"; readonly command: string; readonly origin: "setting" | "environment" | "PATH" }
  | { readonly kind: "wrong-setting"; readonly path: string }
  | { readonly kind: "missing"; readonly environment: string | undefined };

/** Return the absolute path of the command, or the reason why there is none. */
export function findCommand(choice: Choice, host: Host): Found {
  const platform = host.platform === "win32" ? path.win32 : path.posix;
  const first = (folders: readonly string[], names: readonly string[]): string | undefined =>
    folders
      .flatMap((folder) => names.map((name) => platform.join(folder, name)))
      .find((candidate) => host.isProgram(candidate));

  if (choice.path.trim() !== "") {
    const expanded = expand(choice.path.trim(), choice.folders[0], host.home);
    const isName = !expanded.includes("/") && !expanded.includes("\\");
    const names = withSuffixes(expanded, host.platform);
    const absolute = isName
      ? first(searchFolders(host, platform), names)
      : platform.isAbsolute(expanded)
        ? first([""], names)
        : first(choice.folders, names);
    return absolute === undefined
      ? { kind: "wrong-setting", path: choice.path }
      : { kind: "found", command: absolute, origin: "setting" };
  }
  const names = withSuffixes("amp-check", host.platform);
  if (choice.environment !== undefined) {
    // The Python extension gives the interpreter of an environment, or its folder where it has no interpreter.
    const environment = choice.environment;
    const beside = first(
      host.platform === "win32"
        ? [
            platform.join(environment, "Scripts"),
            platform.dirname(environment),
            // conda has the interpreter beside the folder of programs.
            platform.join(platform.dirname(environment), "Scripts"),
          ]
        : [platform.join(environment, "bin"), platform.dirname(environment)],
      names,
    );
    if (beside !== undefined) {
      return { kind: "found", command: beside, origin: "environment" };
    }
  }
  const installed = first(searchFolders(host, platform), names);
  return installed === undefined
    ? { kind: "missing", environment: choice.environment }
    : { kind: "found", command: installed, origin: "PATH" };
}

/** Return the absolute folders of PATH. A relative folder would start a program of the opened project. */
function searchFolders(host: Host, platform: path.PlatformPath): string[] {
  return host.searchPath.split(platform.delimiter).filter((folder) => platform.isAbsolute(folder));
}

function withSuffixes(name: string, platform: NodeJS.Platform): string[] {
  // Node starts no .cmd and no .bat without a shell.
  return platform === "win32" && !name.toLowerCase().endsWith(".exe") ? [`${name}.exe`, name] : [name];
}

function expand(given: string, folder: string | undefined, home: string): string {
  const inHome = given === "~" || given.startsWith("~/") || given.startsWith("~\\") ? home + given.slice(1) : given;
  return inHome.split("${workspaceFolder}").join(folder ?? "${workspaceFolder}");
}
