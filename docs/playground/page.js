// The playground: an editor, the findings beside it, and the examples of the rules.

const HERE = import.meta.url;
const WAIT = 300; // milliseconds without a key before the code is checked
const root = document.getElementById("amp-playground");

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

const examples = make("select", { id: "amp-example" });
const all = make("input", { type: "checkbox", id: "amp-all" });
const share = make("button", { type: "button" }, "Copy link");
const status = make("p", { role: "status", class: "amp-status" }, "Loading Python and the analyzer...");
const numbers = make("pre", { "aria-hidden": "true", class: "amp-numbers" });
const editor = make("textarea", {
  "aria-label": "Python code", spellcheck: "false", autocapitalize: "off", autocomplete: "off", wrap: "off",
});
const list = make("ol", { class: "amp-findings", "aria-label": "Findings" });

root.replaceChildren(
  make("div", { class: "amp-bar" }, make("label", { for: "amp-example" }, "Example"), examples, make("label", {}, all, " All rules"), share),
  status,
  make("div", { class: "amp-panes" }, make("div", { class: "amp-editor" }, numbers, editor), list),
);
document.head.append(make("link", { rel: "stylesheet", href: new URL("page.css", HERE).href }));

// The link carries the code in its fragment, which browsers do not send to a server.

function encode(text) {
  const bytes = new TextEncoder().encode(text);
  return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""))
    .replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

function decode(text) {
  const bytes = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  return new TextDecoder().decode(Uint8Array.from(bytes, (character) => character.charCodeAt(0)));
}

function codeOfLink() {
  const found = /^#code=([\w-]*)$/.exec(location.hash);
  if (!found) return null;
  try {
    return decode(found[1]);
  } catch {
    return null;
  }
}

share.addEventListener("click", async () => {
  history.replaceState(null, "", `#code=${encode(editor.value)}`);
  try {
    await navigator.clipboard.writeText(location.href);
    status.textContent = "The link is copied.";
  } catch {
    status.textContent = "The address of this page is the link.";
  }
});

// Findings.

function show(text) {
  // Messages have code between backticks.
  return text.split("`").map((part, index) => (index % 2 ? make("code", {}, part) : part));
}

function offsetOf(lines, { row, column }) {
  // Rows and columns count from 1, columns in characters and not in units of UTF-16.
  const before = lines.slice(0, row - 1).reduce((sum, line) => sum + line.length + 1, 0);
  return before + Array.from(lines[row - 1] ?? "").slice(0, column - 1).join("").length;
}

function select(finding) {
  const lines = editor.value.split("\n");
  editor.focus();
  editor.setSelectionRange(offsetOf(lines, finding.location), offsetOf(lines, finding.end_location));
  const height = editor.scrollHeight / lines.length;
  editor.scrollTop = Math.max(0, (finding.location.row - 4) * height);
}

function apply(fix) {
  const lines = editor.value.split("\n");
  const edits = fix.edits.map((edit) => ({
    start: offsetOf(lines, edit.location), end: offsetOf(lines, edit.end_location), content: edit.content,
  }));
  edits.sort((a, b) => b.start - a.start);
  editor.value = edits.reduce((text, { start, end, content }) => text.slice(0, start) + content + text.slice(end), editor.value);
  examples.value = "";
  check();
}

function render(finding) {
  const rule = new URL(`../rules/${finding.code}/`, HERE).href;
  const item = make(
    "li", { class: `amp-${finding.severity}`, "data-code": finding.code, "data-row": finding.location.row },
    make("button", { type: "button", class: "amp-line", onclick: () => select(finding) }, `Line ${finding.location.row}`),
    " ", make("a", { href: rule }, `${finding.code} ${finding.name}`), ` (${finding.severity})`,
    make("p", {}, ...show(finding.message)),
  );
  if (!finding.certain) item.append(make("p", { class: "amp-some" }, ...show(`${finding.uncertainty[0].toUpperCase()}${finding.uncertainty.slice(1)}.`)));
  if (finding.fix) {
    const unsafe = finding.fix.applicability === "safe" ? "" : " (may change the training)";
    item.append(make("button", { type: "button", class: "amp-fix", onclick: () => apply(finding.fix) }, ...show(`Fix: ${finding.fix.message}${unsafe}`)));
  }
  return item;
}

function describe(count) {
  return count ? `${count} finding${count === 1 ? "" : "s"}.` : "No findings.";
}

// Checks.

let number = 0;
let timer = null;
const worker = new Worker(new URL("worker.js", HERE), { type: "module" });

function check() {
  number += 1;
  numbers.textContent = editor.value.split("\n").map((_, index) => index + 1).join("\n");
  root.dataset.state = "checking";
  worker.postMessage({ id: number, source: editor.value, all: all.checked });
}

worker.onmessage = ({ data }) => {
  if (data.kind === "failed") {
    root.dataset.state = "failed";
    status.textContent = `The analyzer cannot run: ${data.text}`;
  } else if (data.id === number) {
    list.replaceChildren(...data.findings.map(render));
    status.textContent = describe(data.findings.length);
    root.dataset.state = data.kind;
  }
};
worker.onerror = () => {
  root.dataset.state = "failed";
  status.textContent = "The analyzer cannot run: this site was built without it, see the end of this page.";
};

editor.addEventListener("input", () => {
  clearTimeout(timer);
  examples.value = "";
  timer = setTimeout(check, WAIT);
});
editor.addEventListener("scroll", () => { numbers.scrollTop = editor.scrollTop; });
all.addEventListener("change", check);
examples.addEventListener("change", () => {
  const [code, kind] = examples.value.split(" ");
  if (!code) return;
  editor.value = rules.get(code)[kind];
  all.checked = !rules.get(code).is_default;
  editor.scrollTop = 0;
  check();
});

const rules = new Map();

async function begin() {
  const answer = await fetch(new URL("runtime/examples.json", HERE));
  examples.append(make("option", { value: "" }, "your own code"));
  for (const rule of answer.ok ? await answer.json() : []) {
    rules.set(rule.code, rule);
    examples.append(make(
      "optgroup", { label: `${rule.code} ${rule.name}` },
      make("option", { value: `${rule.code} bad` }, `${rule.code}: mistake`),
      make("option", { value: `${rule.code} good` }, `${rule.code}: correct`),
    ));
  }
  const linked = codeOfLink();
  if (linked === null && rules.has("AMP201")) examples.value = "AMP201 bad";
  editor.value = linked ?? rules.get("AMP201")?.bad ?? "";
  check();
}

begin();
