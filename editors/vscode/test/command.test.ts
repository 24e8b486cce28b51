import assert from "node:assert/strict";
import { test } from "node:test";
import { type Choice, findCommand, type Host } from "../src/command";

function makeHost(programs: readonly string[], changes: Partial<Host> = {}): Host {
  return {
    platform: "linux",
    home: "/home/ada",
    searchPath: "/usr/local/bin:/usr/bin",
    isProgram: (path) => programs.includes(path),
    ...changes,
  };
}

const nothing: Choice = { path: "", folders: ["/home/ann/net"], environment: undefined };

test("the setting comes before the environment and PATH", () => {
  const host = makeHost(["/opt/amp/amp-check", "/venv/bin/amp-check", "/usr/bin/amp-check"]);
  const found = findCommand({ ...nothing, path: "/opt/amp/amp-check", environment: "/venv/bin/python" }, host);
  assert.deepEqual(found, { kind: "found", command: "/opt/amp/amp-check", origin: "setting" });
});

test("a setting that names nothing is not replaced by another command", () => {
  const found = findCommand({ ...nothing, path: "/gone/amp-check" }, makeHost(["/usr/bin/amp-check"]));
  assert.deepEqual(found, { kind: "wrong-setting", path: "/gone/amp-check" });
});

for (const [path, command] of [
  ["~/bin/amp-check", "/home/ada/bin/amp-check"],
  ["${workspaceFolder}/.venv/bin/amp-check", "/home/ann/net/.venv/bin/amp-check"],
  [".venv/bin/amp-check", "/home/ann/net/.venv/bin/amp-check"],
  ["amp-check-2", "/usr/bin/amp-check-2"],
  ["  /usr/bin/amp-check-2 ", "/usr/bin/amp-check-2"],
] as const) {
  test(`the setting ${path} is ${command}`, () => {
    const found = findCommand({ ...nothing, path }, makeHost([command]));
    assert.deepEqual(found, { kind: "found", command, origin: "setting" });
  });
}

test("a variable without an open folder stays in the message", () => {
  const path = "${workspaceFolder}/amp-check";
  assert.deepEqual(findCommand({ ...nothing, folders: [], path }, makeHost([])), { kind: "wrong-setting", path });
});

for (const [name, platform, environment, command] of [
  ["interpreter", "linux", "/venv/bin/python3", "/venv/bin/amp-check"],
  ["folder", "darwin", "/venv", "/venv/bin/amp-check"],
  ["interpreter on Windows", "win32", "C:\\venv\\Scripts\\python.exe", "C:\\venv\\Scripts\\amp-check.exe"],
  ["interpreter of conda on Windows", "win32", "C:\\conda\\python.exe", "C:\\conda\\Scripts\\amp-check.exe"],
  ["folder on Windows", "win32", "C:\\venv", "C:\\venv\\Scripts\\amp-check.exe"],
] as const) {
  test(`the selected environment comes before PATH: ${name}`, () => {
    const host = makeHost([command, "/usr/bin/amp-check"], { platform });
    const found = findCommand({ ...nothing, environment }, host);
    assert.deepEqual(found, { kind: "found", command, origin: "environment" });
  });
}

test("a command beside the folder of an environment belongs to another environment", () => {
  const host = makeHost(["/home/ada/bin/amp-check"]);
  assert.equal(findCommand({ ...nothing, environment: "/home/ada/venv" }, host).kind, "missing");
});

test("PATH is searched in its order", () => {
  const host = makeHost(["/usr/bin/amp-check", "/usr/local/bin/amp-check"]);
  const found = findCommand({ ...nothing, environment: "/venv/bin/python" }, host);
  assert.deepEqual(found, { kind: "found", command: "/usr/local/bin/amp-check", origin: "PATH" });
});

test("relative folders of PATH are left out: they are part of the opened project", () => {
  const host = makeHost(["amp-check", "bin/amp-check", "./amp-check"], { searchPath: ".:bin::/usr/bin" });
  assert.equal(findCommand(nothing, host).kind, "missing");
});

test("Windows starts an .exe, and nothing of the current folder", () => {
  const host = makeHost(["C:\\tools\\amp-check.exe", "amp-check.exe"], {
    platform: "win32",
    searchPath: ".;C:\\tools",
  });
  assert.deepEqual(findCommand(nothing, host), {
    kind: "found",
    command: "C:\\tools\\amp-check.exe",
    origin: "PATH",
  });
});

test("the environment that was searched is part of the answer", () => {
  const found = findCommand({ ...nothing, environment: "/venv/bin/python" }, makeHost([]));
  assert.deepEqual(found, { kind: "missing", environment: "/venv/bin/python" });
});
