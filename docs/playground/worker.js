// Runs the analyzer in Pyodide, so that the page stays responsive. All files come from the folder runtime beside this file.

const RUNTIME = new URL("runtime/", import.meta.url).href;
const PACKAGES = "/playground";

async function unpack(pyodide, name) {
  const answer = await fetch(RUNTIME + name);
  if (!answer.ok) throw new Error(`${name} is missing`);
  pyodide.unpackArchive(await answer.arrayBuffer(), "zip", { extractDir: PACKAGES });
}

async function start() {
  const { loadPyodide } = await import(`${RUNTIME}pyodide.mjs`);
  const pyodide = await loadPyodide({ indexURL: RUNTIME });
  pyodide.FS.mkdirTree(PACKAGES);
  pyodide.runPython(`import sys; sys.path.insert(0, "${PACKAGES}")`);
  await unpack(pyodide, "analyzer.zip");
  return { pyodide, analyzer: pyodide.pyimport("analyze") };
}

const started = start();
let fixes = null;
let latest = 0;

started.then(
  () => postMessage({ kind: "ready" }),
  (error) => postMessage({ kind: "failed", text: String(error) }),
);

onmessage = async ({ data }) => {
  latest = data.id;
  const { pyodide, analyzer } = await started;
  // Older requests wait here while the user types.
  await new Promise((resolve) => setTimeout(resolve));
  if (data.id !== latest) return;
  try {
    postMessage({ kind: "findings", id: data.id, findings: JSON.parse(analyzer.find(data.source, data.all)) });
    fixes = fixes ?? unpack(pyodide, "fixes.zip");
    await fixes;
    if (data.id !== latest) return;
    postMessage({ kind: "fixes", id: data.id, findings: JSON.parse(analyzer.find_with_fixes(data.source, data.all)) });
  } catch (error) {
    postMessage({ kind: "failed", id: data.id, text: String(error).trim().split("\n").pop() });
  }
};
