"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const template = read("template");
  // Named one by one: what else plotly offers may lead to a service.
  const buttons = [["toImage", "zoom2d", "pan2d", "resetScale2d"]];
  const config = { displaylogo: false, responsive: true, modeBarButtons: buttons };
  const narrow = matchMedia("(max-width: 820px)");
  const list = document.querySelector(".side details");
  const sections = [...document.querySelectorAll("main > section")];
  const links = [...document.querySelectorAll(".side a")];
  const title = document.title;
  const drawn = new Set();

  // Plotly wants colours themselves, and those of the style sheet change with the reader's scheme.
  const coloured = (value, style) => {
    if (typeof value === "string") {
      const name = value.startsWith("var(--") && value.slice(4, -1);
      return name ? style.getPropertyValue(name).trim() : value;
    }
    if (Array.isArray(value)) return value.map((each) => coloured(each, style));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, coloured(each, style)]));
  };

  const draw = (chart) => {
    const style = getComputedStyle(document.documentElement);
    const figure = read(chart.dataset.figure);
    const layout = coloured({ ...figure.layout, template }, style);
    const axis = chart.dataset.axis;
    if (axis) {
      layout.yaxis.type = axis;
      if (axis === "linear") {
        for (const key of ["range", "dtick"]) delete layout.yaxis[key];
        layout.yaxis.rangemode = "tozero";
      }
    }
    drawn.add(chart);
    Plotly.react(chart, coloured(figure.data, style), layout, config);
  };

  const show = () => {
    const wanted = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    // Who made a page of one run wants to see that run.
    const section = wanted?.closest("main > section") ?? sections[sections.length === 2 ? 1 : 0];
    for (const each of sections) each.hidden = each !== section;
    for (const link of links) {
      if (link.hash === `#${section.id}`) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    const heading = section.querySelector("h2");
    document.title = section === sections[0] ? title : `${heading.textContent} · ${title}`;
    for (const chart of section.querySelectorAll(".chart")) {
      if (!drawn.has(chart)) draw(chart);
    }
    // On a narrow page the list lies above what was chosen in it.
    if (narrow.matches) list.open = false;
    if (wanted && wanted !== section) wanted.scrollIntoView();
    else if (wanted) {
      heading.focus({ preventScroll: true });
      scrollTo(0, 0);
    }
  };

  for (const button of document.querySelectorAll("button[data-chart]")) {
    button.hidden = false;
    button.addEventListener("click", () => {
      const chart = document.getElementById(button.dataset.chart);
      chart.dataset.axis = chart.dataset.axis === "linear" ? "log" : "linear";
      button.textContent = chart.dataset.axis === "linear" ? "Logarithmic shares" : "Linear shares";
      draw(chart);
    });
  }

  const filter = document.getElementById("filter");
  filter?.addEventListener("input", () => {
    const words = filter.value.toLowerCase();
    for (const item of document.querySelectorAll("#runs > li")) {
      item.hidden = !item.textContent.toLowerCase().includes(words);
    }
  });

  const fold = () => {
    list.open = !narrow.matches;
  };
  narrow.addEventListener("change", fold);
  fold();

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const chart of drawn) draw(chart);
  });
  addEventListener("hashchange", show);
  for (const link of links) {
    // Choosing what is shown already changes no address.
    link.addEventListener("click", (event) => {
      if (link.hash !== location.hash) return;
      event.preventDefault();
      show();
    });
  }
  show();
})();
