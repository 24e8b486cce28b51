// Bundles the extension into dist/extension.js, beside the licences of what it contains, or its tests into out/ (--tests).
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const here = import.meta.dirname;
const shared = { absWorkingDir: here, bundle: true, platform: "node", target: "node20", format: "cjs", logLevel: "warning" };

if (process.argv.includes("--tests")) {
  rmSync(`${here}/out`, { recursive: true, force: true });
  mkdirSync(`${here}/out`);
  const tests = readdirSync(`${here}/test`).filter((name) => name.endsWith(".test.ts"));
  await build({ ...shared, entryPoints: tests.map((name) => `test/${name}`), outdir: "out" });
} else {
  const { metafile } = await build({
    ...shared,
    entryPoints: ["src/extension.ts"],
    outfile: "dist/extension.js",
    external: ["vscode"],
    minify: true,
    metafile: true,
  });
  writeFileSync(`${here}/dist/licenses.txt`, collectLicenses(Object.keys(metafile.inputs)));
}

/** Return the licences of the packages that files of a bundle come from. Fails for a package without a licence. */
function collectLicenses(files) {
  const packages = files.map((file) => file.match(/^(?:.*\/)?node_modules\/(?:@[^/]+\/)?[^/]+/)?.[0]).filter(Boolean);
  return [...new Set(packages)]
    .sort()
    .map((folder) => {
      const { name, version } = JSON.parse(readFileSync(`${here}/${folder}/package.json`, "utf8"));
      const license = readdirSync(`${here}/${folder}`).find((file) => /^licen[cs]e/i.test(file));
      return `${name} ${version}\n\n${readFileSync(`${here}/${folder}/${license}`, "utf8").trim()}\n`;
    })
    .join("\n----\n\n");
}
