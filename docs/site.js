// Names and keyboard access that the theme leaves out.
document.querySelector(".md-search")?.setAttribute("aria-label", "Search");

// A region that scrolls must be reachable by keyboard. The theme takes the index away where it has not measured yet.
const keepFocusable = (code) => {
  if (code.getAttribute("tabindex") !== "0") {
    code.setAttribute("tabindex", "0");
  }
};
const observer = new MutationObserver((changes) => changes.forEach(({ target }) => keepFocusable(target)));
document.querySelectorAll(".md-typeset pre > code").forEach((code) => {
  keepFocusable(code);
  observer.observe(code, { attributes: true, attributeFilter: ["tabindex"] });
});
