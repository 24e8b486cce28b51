"use strict";
(() => {
  const SPACE = "http://www.w3.org/2000/svg";
  const narrow = matchMedia("(max-width: 820px)");
  const list = document.querySelector(".side details");
  const sections = [...document.querySelectorAll("main > section")];
  const links = [...document.querySelectorAll(".side a")];
  const title = document.title;

  // Charts: figures of figures.py, drawn as wide as there is room.

  // Pixels: of a title above its panel, below a panel, of the axis below all, and at the right.
  const TITLE = 24;
  const GAP = 14;
  const AXIS = 42;
  const RIGHT = 14;
  const MARKS = {
    cross: "m-4-4l8 8m-8 0l8-8",
    down: "m-5-4h10l-5 9z",
    finding: "m0-6l6 6l-6 6l-6-6z",
  };
  const charts = new Map();

  const make = (name, parent, attributes = {}, style = {}) => {
    const made = document.createElementNS(SPACE, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    Object.assign(made.style, style);
    parent.append(made);
    return made;
  };

  const write = (parent, words, x, y, anchor = "start", colour = "var(--muted)") => {
    const made = make("text", parent, { x, y, "text-anchor": anchor }, { fill: colour });
    made.textContent = words;
    return made;
  };

  const ruler = document.createElement("canvas").getContext("2d");
  ruler.font = `12px ${getComputedStyle(document.body).fontFamily}`;
  const long = (words) => ruler.measureText(words).width;

  const raised = (number) => String(number).replace(/[-0-9]/g, (each) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(each)]);
  const whole = (number) => number.toLocaleString("en-US");
  const digits = (number, count) => String(Number(number.toPrecision(count)));
  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

  // The widest step of 1, 2 or 5 times a power of ten that gives at most so many ticks.
  const stride = (span, most) => {
    const rough = span / Math.max(most, 1);
    const power = 10 ** Math.floor(Math.log10(rough));
    return [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough * 0.999);
  };

  const between = (low, high, step) => {
    const found = [];
    for (let n = Math.ceil(low / step - 1e-9) + 0; n * step <= high + step * 1e-9; n++) found.push(n * step + 0);
    return found;
  };

  // The words of an axis from left to right, none of which is written into another one.
  const ticks = (axis, [low, high], width) => {
    if (axis.kind === "power") {
      const most = width / 46;
      const step = Math.max(Math.ceil(stride(high - low, most)), 1);
      const powers = between(Math.max(low, axis.from), Math.min(high, axis.to), step).map((at) => [at, `2${raised(at)}`]);
      const columns = axis.columns.filter(([at]) => at >= low && at <= high);
      const free = ([at, words]) => columns.every(([other, name]) => (Math.abs(at - other) / (high - low)) * width > (long(words) + long(name)) / 2 + 4);
      return [...powers.filter(free), ...columns];
    }
    const last = Math.min(axis.last, Math.floor(high));
    const room = long(whole(last)) + 16;
    const step = Math.max(Math.ceil(stride(Math.max(last - low, 1), width / room)), 1);
    const places = between(low, last, step);
    // What there is at last is always named.
    while (places.length && last - places.at(-1) < (room / width) * (high - low)) places.pop();
    return [...places, last].map((at) => [at, whole(at)]);
  };

  const rungs = (axis, height) => {
    if (axis.kind === "rows") return axis.rows.map((word, at) => [at, word]);
    if (axis.kind === "power") {
      const step = Math.max(Math.ceil((axis.high - axis.low) / (height / 22)), 1);
      return between(axis.low, axis.high, step).map((at) => [at, `2${raised(at)}`]);
    }
    const unit = axis.unit ?? "";
    if (axis.kind === "log") {
      const low = Math.log10(axis.low);
      const high = Math.log10(axis.high);
      const step = Math.max(Math.ceil((high - low) / (height / 26)), 1);
      const found = between(Math.ceil(low), high, step);
      return found.map((at) => [10 ** at, `${at < -3 ? `10${raised(at)}` : digits(10 ** at, 3)}${unit}`]);
    }
    const { low, high } = spread(axis);
    return between(low, high, stride(high - low, height / 30)).map((at) => [at, `${digits(at, 4)}${unit}`]);
  };

  // A line of one height has room above and below, too.
  const spread = ({ kind, low, high }) => {
    if (kind === "log") return { low: Math.log10(low), high: Math.log10(high) };
    if (high > low) return { low, high };
    const room = Math.abs(low) / 10 || 1;
    return { low: low - room, high: high + room };
  };

  const pathOf = (trace, places, x, y) => {
    let path = "";
    let pen = false;
    for (const [n, value] of trace.y.entries()) {
      if (value === null) {
        pen = false;
        continue;
      }
      const across = x(places[n]).toFixed(1);
      const up = y(value).toFixed(1);
      if (!pen) path += `M${across} ${up}`;
      else if (trace.kind === "line") path += `L${across} ${up}`;
      else path += `H${across}V${up}`;
      pen = true;
    }
    return path;
  };

  const drawStates = (trace, group, x, y, view, unit) => {
    const paths = trace.colours.map(() => "");
    const bar = (row, from, to) => {
      const left = x(from);
      paths[row] += `M${left.toFixed(1)} ${(y(row) - 6).toFixed(1)}h${Math.max(x(to) - left, 1).toFixed(1)}v12H${left.toFixed(1)}z`;
    };
    for (const [first, last, path] of trace.spans) {
      if (last + 1 < view[0] || first > view[1]) continue;
      if (unit / path.length < 1.5) {
        for (const row of new Set(path)) bar(row, first, last + 1);
        continue;
      }
      const part = 1 / path.length;
      const from = Math.max(first, Math.floor(view[0]));
      for (let step = from; step <= Math.min(last, view[1]); step++) {
        for (const [n, row] of path.entries()) bar(row, step + n * part, step + (n + 1) * part);
      }
    }
    for (const [row, path] of paths.entries()) make("path", group, { d: path }, { fill: trace.colours[row] });
  };

  const drawPoints = (trace, group, x, y) => {
    for (const [from, to] of trace.spans ?? []) {
      make("path", group, { d: `M${x(from)} ${y(trace.y[0])}H${x(to)}` }, { stroke: trace.colour, strokeWidth: "2", strokeDasharray: "2 4" });
    }
    const path = trace.x.map((at, n) => `M${x(at).toFixed(1)} ${y(trace.y[n]).toFixed(1)}${MARKS[trace.mark]}`).join("");
    const solid = trace.mark !== "cross";
    make("path", group, { d: path }, { stroke: "var(--background)", strokeWidth: solid ? "3" : "5", fill: "none" });
    make("path", group, { d: path }, solid ? { fill: trace.colour } : { stroke: trace.colour, strokeWidth: "2", fill: "none" });
  };

  const drawStack = (chart, panel, group, x, y) => {
    const places = chart.figure.places ?? [];
    const end = chart.figure.x.high;
    const across = [...places, end].map((at) => x(at).toFixed(1));
    let below = places.map(() => 0);
    for (const trace of panel.data) {
      if (trace.kind === "stack") {
        const above = below.map((value, n) => value + trace.y[n]);
        let path = `M${across[0]} ${y(above[0]).toFixed(1)}`;
        for (const [n, value] of above.entries()) path += `V${y(value).toFixed(1)}H${across[n + 1]}`;
        for (let n = below.length - 1; n >= 0; n--) path += `V${y(below[n]).toFixed(1)}H${across[n]}`;
        make("path", group, { d: `${path}z` }, { fill: trace.colour });
        below = above;
      } else if (trace.kind === "total" && places.length < chart.width / 4) {
        let path = `M${across[0]} ${y(trace.y[0]).toFixed(1)}`;
        for (const [n, value] of trace.y.entries()) path += `V${y(value).toFixed(1)}H${across[n + 1]}`;
        make("path", group, { d: path }, { stroke: trace.colour, strokeWidth: "1", fill: "none" });
      }
    }
  };

  const drawTrace = (trace, panel, group, x, y, view, unit) => {
    if (trace.kind === "states") drawStates(trace, group, x, y, view, unit);
    else if (trace.kind === "points") drawPoints(trace, group, x, y);
    else if (trace.kind === "bars") {
      const floor = y(panel.y.kind === "log" ? panel.y.low : 0);
      for (const [from, to] of trace.spans ?? []) {
      make("path", group, { d: `M${x(from)} ${y(trace.y[0])}H${x(to)}` }, { stroke: trace.colour, strokeWidth: "2", strokeDasharray: "2 4" });
    }
    const path = trace.x.map((at, n) => `M${x(at - 0.5).toFixed(1)} ${floor}V${y(trace.y[n]).toFixed(1)}H${x(at + 0.5).toFixed(1)}V${floor}z`);
      make("path", group, { d: path.join("") }, { fill: trace.colour, opacity: "0.62" });
    } else if (trace.x) {
      let path = pathOf(trace, trace.x, x, y);
      if (trace.x.length === 1) path += "h4";
      make("path", group, { d: path, class: "line" }, { stroke: trace.colour, strokeWidth: "1.8", fill: "none" });
    }
  };

  const drawPanel = (chart, panel, top, left, width, view, number) => {
    const { svg } = chart;
    const x = (value) => left + ((value - view[0]) / (view[1] - view[0])) * width;
    const { low, high } = spread(panel.y);
    const rows = panel.y.kind === "rows";
    const height = (value) => {
      const at = panel.y.kind === "log" ? Math.log10(Math.max(value, panel.y.low)) : value;
      const part = (at - low) / (high - low);
      return top + (rows ? part : 1 - part) * panel.height;
    };
    const room = chart.width + left + RIGHT;
    write(svg, panel.title, clamp(room - long(panel.title), 0, left), top - 8, "start", "var(--text)");
    const clip = `clip-${chart.place.id}-${number}`;
    make("rect", make("clipPath", svg, { id: clip }), { x: left - 6, y: top - 7, width: width + 12, height: panel.height + 14 });
    const inside = make("g", svg, { "clip-path": `url(#${clip})` });
    for (const band of panel.bands ?? []) {
      const from = x(band.from);
      make("rect", inside, { x: from, y: top, width: Math.max(x(band.to) - from, 0), height: panel.height }, { fill: band.colour });
    }
    for (const [at] of chart.ticks) {
      make("path", inside, { d: `M${x(at)} ${top}v${panel.height}` }, { stroke: "var(--grid)" });
    }
    for (const [at, words] of rungs(panel.y, panel.height)) {
      if (height(at) < top - 1 || height(at) > top + panel.height + 1) continue;
      make("path", inside, { d: `M${left} ${height(at)}h${width}` }, { stroke: "var(--grid)" });
      write(svg, words, left - 8, height(at) + 4, "end");
    }
    drawStack(chart, panel, inside, x, height);
    for (const trace of panel.data) drawTrace(trace, panel, inside, x, height, view, width / (view[1] - view[0]));
    for (const line of panel.lines ?? []) {
      make("path", inside, { d: `M${left} ${height(line.y)}h${width}` }, { stroke: "var(--bad)", strokeWidth: "2", strokeDasharray: "7 5" });
      write(svg, line.text, left + width, height(line.y) - 6, "end", "var(--bad)");
    }
    let free = -Infinity;
    for (const [at, words] of panel.marks ?? []) {
      // Where there is no room for all of them, the tooltip says in which band a value is.
      if (x(at) - free < 0) continue;
      write(inside, words, x(at) + 3, top + 13);
      free = x(at) + long(words) + 8;
    }
  };

  const draw = (chart) => {
    const { place, figure, svg } = chart;
    const width = place.clientWidth;
    if (!width) return;
    const axis = figure.x;
    const panels = figure.panels.map((panel) => ({ ...panel, y: chart.linear ? { ...panel.y, kind: "linear", low: 0, high: panel.y.most * 1.1 } : panel.y }));
    const widest = Math.max(...panels.flatMap((panel) => rungs(panel.y, panel.height).map(([, words]) => long(words))));
    chart.left = Math.max(Math.ceil(widest), 24) + 12;
    chart.width = Math.max(width - chart.left - RIGHT, 40);
    chart.ticks = ticks(axis, chart.view, chart.width);
    svg.replaceChildren();
    let top = 0;
    for (const [number, panel] of panels.entries()) {
      top += TITLE;
      drawPanel(chart, panel, top, chart.left, chart.width, chart.view, number);
      top += panel.height + GAP;
    }
    chart.bottom = top - GAP;
    const x = (value) => chart.left + ((value - chart.view[0]) / (chart.view[1] - chart.view[0])) * chart.width;
    make("path", svg, { d: `M${chart.left} ${chart.bottom}h${chart.width}` }, { stroke: "var(--muted)" });
    for (const [at, words] of chart.ticks) {
      make("path", svg, { d: `M${x(at)} ${chart.bottom}v5` }, { stroke: "var(--muted)" });
      const half = long(words) / 2;
      const anchor = x(at) + half > width ? "end" : "middle";
      write(svg, words, anchor === "end" ? width - 1 : x(at), chart.bottom + 18, anchor).setAttribute("class", "tick");
    }
    write(svg, axis.title, chart.left + chart.width / 2, chart.bottom + 36, "middle");
    chart.cursor = make("path", svg, {}, { stroke: "var(--text)", strokeDasharray: "2 3" });
    const full = chart.bottom + AXIS;
    svg.setAttribute("viewBox", `0 0 ${width} ${full}`);
    svg.setAttribute("width", width);
    svg.setAttribute("height", full);
    point(chart, chart.at);
  };

  // What a chart says at a place.

  const at = (places, value) => {
    let low = 0;
    let high = places.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (places[middle] <= value) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  };

  const valued = (trace, panel, n) => {
    const said = trace.words?.[n];
    if (said !== undefined) return trace.said ? trace.said[said] : said;
    const value = trace.y[n];
    if (value === null) return "not finite";
    if (panel.y.kind === "power") return value < 24 && value >= 0 && Number.isInteger(value) ? whole(2 ** value) : `2${raised(value)}`;
    return `${digits(value, 5)}${panel.y.unit ?? ""}`;
  };

  const saying = (trace, panel, places, value) => {
    if (trace.kind === "states") {
      const span = trace.spans.find(([first, last]) => first <= value && value <= last);
      return span ? [trace.name, span[2].map((row) => panel.y.rows[row]).join(" → ")] : null;
    }
    if (trace.kind === "points") {
      const inside = trace.spans?.some(([first, after]) => first <= value && value < after);
      const found = inside ? 0 : trace.x.findIndex((each) => Math.floor(each) === Math.floor(value));
      return found < 0 ? null : ["", valued(trace, panel, found)];
    }
    if (trace.kind === "bars") {
      const found = trace.x.findIndex((each) => Math.abs(each - value) <= 0.5);
      return found < 0 ? null : [trace.name, trace.words[found]];
    }
    const n = at(trace.x ?? places, value);
    if (n < 0) return null;
    if (trace.kind === "line" && trace.x[n] !== value) return null;
    if (trace.kind === "total") return [trace.name, `${digits(trace.y[n], 5)}${panel.y.unit}, after ${trace.said[trace.words[n]]}`];
    return [trace.name, valued(trace, panel, n)];
  };

  const point = (chart, value) => {
    chart.at = value;
    if (value === null) {
      chart.cursor?.setAttribute("d", "");
      return;
    }
    const axis = chart.figure.x;
    const x = chart.left + ((value - chart.view[0]) / (chart.view[1] - chart.view[0])) * chart.width;
    const seen = x >= chart.left - 1 && x <= chart.left + chart.width + 1;
    chart.cursor.setAttribute("d", seen ? `M${x} ${TITLE}V${chart.bottom}` : "");
    const parts = [];
    if (axis.word) parts.push(["", `${axis.word} ${whole(value)}`]);
    for (const panel of chart.figure.panels) {
      for (const trace of panel.data) {
        const said = saying(trace, panel, chart.figure.places, value);
        if (said) parts.push(said);
      }
    }
    chart.reading.replaceChildren(
      ...parts.map(([name, words], n) => {
        const made = document.createElement("span");
        if (name) made.append(`${name} `);
        const strong = document.createElement("strong");
        strong.textContent = words;
        made.append(strong, n < parts.length - 1 ? "; " : "");
        return made;
      }),
    );
  };

  const ends = ({ figure: { x } }) => [x.low, Math.max(x.high, x.low + 1)];

  const look = (chart, low, high) => {
    const [first, last] = ends(chart);
    const least = Math.min(4, last - first);
    const span = clamp(high - low, least, last - first);
    const from = clamp(low, first, last - span);
    chart.view = [from, from + span];
    draw(chart);
  };

  const zoom = (chart, factor, around = chart.at) => {
    const [low, high] = chart.view;
    const middle = around === null || around < low || around > high ? (low + high) / 2 : around;
    look(chart, middle - (middle - low) * factor, middle + (high - middle) * factor);
  };

  const step = (chart, by) => {
    const axis = chart.figure.x;
    const last = axis.last ?? axis.high - 0.5;
    const start = chart.at ?? (by > 0 ? chart.view[0] - 1 : chart.view[1]);
    let value = axis.kind === "power" ? Math.floor(start) + by + 0.5 : Math.round(start) + by;
    value = clamp(value, axis.kind === "power" ? axis.low + 0.5 : axis.low, last);
    const [low, high] = chart.view;
    if (value < low || value > high) look(chart, value - (high - low) / 2, value + (high - low) / 2);
    point(chart, value);
  };

  const KEYS = {
    ArrowRight: (chart, event) => step(chart, event.shiftKey ? 10 : 1),
    ArrowLeft: (chart, event) => step(chart, event.shiftKey ? -10 : -1),
    Home: (chart) => step(chart, -Infinity),
    End: (chart) => step(chart, Infinity),
    "+": (chart) => zoom(chart, 0.5),
    // The same key without Shift, where + needs that.
    "=": (chart) => zoom(chart, 0.5),
    "-": (chart) => zoom(chart, 2),
    Escape: (chart) => look(chart, ...ends(chart)),
  };

  const under = (chart, event) => {
    const across = event.clientX - chart.svg.getBoundingClientRect().left;
    const value = chart.view[0] + ((across - chart.left) / chart.width) * (chart.view[1] - chart.view[0]);
    const axis = chart.figure.x;
    if (axis.kind === "power") return clamp(Math.floor(value) + 0.5, axis.low + 0.5, axis.high - 0.5);
    return clamp(chart.figure.places ? Math.floor(value) : Math.round(value), axis.low, axis.last);
  };

  const save = (chart) => {
    const copy = chart.svg.cloneNode(true);
    const made = [...copy.querySelectorAll("*")];
    for (const [n, each] of [...chart.svg.querySelectorAll("*")].entries()) {
      const style = getComputedStyle(each);
      for (const name of ["fill", "stroke"]) if (each.style[name]) made[n].style[name] = style[name];
    }
    const page = getComputedStyle(document.documentElement);
    copy.style.background = page.backgroundColor;
    copy.setAttribute("font-family", "sans-serif");
    copy.setAttribute("font-size", "12");
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" }));
    link.download = `${chart.place.id}.svg`;
    link.click();
  };

  const button = (parent, words, then) => {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = words;
    made.addEventListener("click", then);
    parent.append(made);
    return made;
  };

  const begin = (place) => {
    const figure = JSON.parse(document.getElementById(place.dataset.figure).textContent);
    const svg = make("svg", place, { role: "img", "aria-label": place.dataset.label });
    const tools = document.createElement("div");
    tools.className = "tools";
    const reading = document.createElement("p");
    reading.className = "reading";
    reading.setAttribute("aria-live", "polite");
    reading.textContent = "Point at the chart, or move with the arrow keys, to read what there is at a place.";
    const chart = { place, figure, svg, reading, view: null, at: null, linear: false };
    chart.view = ends(chart);
    place.tabIndex = 0;
    place.setAttribute("role", "group");
    place.setAttribute("aria-label", place.dataset.label);
    place.setAttribute("aria-describedby", "keys");
    place.addEventListener("keydown", (event) => {
      const act = KEYS[event.key];
      if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      act(chart, event);
    });
    let from = null;
    svg.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "mouse") from = under(chart, event);
      point(chart, under(chart, event));
    });
    svg.addEventListener("pointermove", (event) => point(chart, under(chart, event)));
    svg.addEventListener("pointerup", (event) => {
      const to = under(chart, event);
      if (from !== null && Math.abs(to - from) > (chart.view[1] - chart.view[0]) / 50) look(chart, Math.min(from, to), Math.max(from, to) + 1);
      from = null;
    });
    svg.addEventListener("dblclick", () => look(chart, ...ends(chart)));
    button(tools, "Zoom in", () => zoom(chart, 0.5));
    button(tools, "Zoom out", () => zoom(chart, 2));
    button(tools, "Show all", () => look(chart, ...ends(chart)));
    if (figure.panels.some((panel) => panel.y.most !== undefined)) {
      const linear = button(tools, "Linear shares", () => {
        chart.linear = !chart.linear;
        linear.textContent = chart.linear ? "Logarithmic shares" : "Linear shares";
        draw(chart);
      });
    }
    button(tools, "Save as SVG", () => save(chart));
    place.after(reading, tools);
    charts.set(place, chart);
    draw(chart);
    let width = place.clientWidth;
    new ResizeObserver(() => {
      if (place.clientWidth === width) return;
      width = place.clientWidth;
      draw(chart);
    }).observe(place);
  };

  // What is shown of the page.

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
      if (!charts.has(chart)) begin(chart);
    }
    // On a narrow page the list lies above what was chosen in it.
    if (narrow.matches) list.open = false;
    if (wanted && wanted !== section) {
      if (wanted.tagName === "DETAILS") wanted.open = true;
      wanted.scrollIntoView();
    } else if (wanted) {
      heading.focus({ preventScroll: true });
      scrollTo(0, 0);
    }
  };

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
