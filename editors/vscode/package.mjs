// Packages the built extension as amp-check.vsix, or as the path that is given. Nothing is fetched.
// The address of the repository comes from pyproject.toml and the licence from the top folder, where they are kept.
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { createVSIX } from "@vscode/vsce";

const here = new URL(".", import.meta.url);
const read = (name) => readFileSync(new URL(name, here), "utf8");

const [, url] = read("../../pyproject.toml").match(/^Repository = "(.*)"$/m);
const { scripts: _, devDependencies: __, private: ___, ...manifest } = JSON.parse(read("package.json"));
const repository = { type: "git", url: `${url}.git`, directory: "editors/vscode" };

const folder = mkdtempSync(join(tmpdir(), "amp-check-vsix-"));
try {
  writeFileSync(join(folder, "package.json"), JSON.stringify({ ...manifest, repository, bugs: { url: `${url}/issues` } }));
  for (const name of ["README.md", "CHANGELOG.md", "dist", "../../LICENSE"]) {
    cpSync(new URL(name, here), join(folder, name.split("/").pop()), { recursive: true });
  }
  await createVSIX({ cwd: folder, packagePath: resolve(process.argv[2] ?? "amp-check.vsix"), dependencies: false });
} finally {
  rmSync(folder, { recursive: true, force: true });
}
