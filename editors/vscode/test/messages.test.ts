import assert from "node:assert/strict";
import { test } from "node:test";
import { describeExit, describeSearch, INSTALL, LABELS } from "../src/messages";
import { RestartLimit } from "../src/restarts";

test("a missing command: where it was searched, and how to install it", () => {
  const message = describeSearch({ kind: "missing", environment: "/venv/bin/python" });
  assert.equal(
    message.text,
    "amp-check was found neither in the selected Python environment (/venv/bin/python) nor in PATH: " +
      'run pip install "pytest-amp-check[server]" in your Python environment, or set amp-check.path.',
  );
  assert.deepEqual(message.steps, ["copy", "settings", "retry"]);
  const alone = describeSearch({ kind: "missing", environment: undefined });
  assert.match(alone.text, /^amp-check was not found in PATH: run /);
});

test("a wrong setting is named", () => {
  const message = describeSearch({ kind: "wrong-setting", path: "~/gone" });
  assert.equal(
    message.text,
    "The setting amp-check.path names ~/gone, which is no program: correct or clear the setting.",
  );
  assert.deepEqual(message.steps, ["settings", "retry"]);
});

test("a command without its language server: what to install", () => {
  const errors = "amp-check: the language server needs pygls: pip install 'pytest-amp-check[server]'\n";
  const message = describeExit("/venv/bin/amp-check", 2, errors);
  assert.ok(message.text.startsWith("/venv/bin/amp-check is installed without its language server: "));
  assert.ok(message.text.includes(INSTALL));
  assert.deepEqual(message.steps, ["copy", "retry"]);
});

for (const [errors, code, reason] of [
  ["Traceback\n  File\nOSError: no space\r\n", 1, "OSError: no space"],
  ["", 3, "exit code 3"],
  ["\n", null, "a signal"],
] as const) {
  test(`a server that ended: ${reason}`, () => {
    const message = describeExit("amp-check", code, errors);
    assert.equal(
      message.text,
      `The server amp-check ended (${reason}): see the output, or run "amp-check: Restart the Server".`,
    );
    assert.deepEqual(message.steps, ["output", "retry"]);
  });
}

test("each button has its own label", () => {
  assert.equal(new Set(Object.values(LABELS)).size, Object.keys(LABELS).length);
});

test("a server is started again four times in three minutes", () => {
  const limit = new RestartLimit();
  const answers = [0, 1, 2, 3, 4].map((second) => limit.mayRestart(second * 1000));
  assert.deepEqual(answers, [true, true, true, true, false]);
  assert.equal(limit.mayRestart(10 * 60 * 1000), true);
});
