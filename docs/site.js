// Names and keyboard access that the theme leaves out.
document.querySelector(".md-search")?.setAttribute("aria-label", "Search");

// The theme writes a title's < as &lt; into these labels. A phone shows only an arrow, so the label has to stay.
document.querySelectorAll(".md-footer__link[aria-label]").forEach((link) => {
  link.setAttribute("aria-label", link.textContent.trim().replace(/\s+/g, " "));
});

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
