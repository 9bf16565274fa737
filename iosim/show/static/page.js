"use strict";
// Draws the panels when they are seen, hides and shows series, opens and folds, prepares for paper, and hands out
// tables as CSV. Uses nothing but this page.
const iosimPage = (() => {
  const data = JSON.parse(document.getElementById("page-data").textContent);
  const root = document.documentElement;
  const mostRowsOnPaper = 24;
  const config = {
    displaylogo: false,
    displayModeBar: matchMedia("(hover: hover)").matches ? "hover" : false,
    modeBarButtonsToRemove: ["select2d", "lasso2d"],
  };
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];

  const themed = (layout) => {
    const style = getComputedStyle(root);
    const paint = (name) => style.getPropertyValue(name).trim();
    const axis = { gridcolor: paint("--grid"), linecolor: paint("--rule"), tickcolor: paint("--rule") };
    return {
      ...layout,
      autosize: true,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, sans-serif", size: 11.5, color: paint("--ink") },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: paint("--soft"), activecolor: paint("--ink") },
      xaxis: { ...layout.xaxis, ...axis },
      yaxis: { ...layout.yaxis, ...axis },
    };
  };

  const size = (place) => ({ width: place.clientWidth, height: place.clientHeight });
  const draw = (place) => {
    const panel = data.panels[place.id];
    place.replaceChildren();
    return Plotly.newPlot(place, panel.data, { ...themed(panel.layout), ...size(place), autosize: false }, config);
  };
  const redraw = (place) => Plotly.relayout(place, { ...themed(place.layout), ...size(place), autosize: false });

  const plots = all(".plot");
  const seen = (place) => !place.closest("details:not([open])");
  const drawn = (place) => place.classList.contains("js-plotly-plot");
  const fresh = () => plots.filter((place) => seen(place) && !drawn(place));

  // One panel after the other, so that the page stays responsive while they appear.
  const drawSeen = async () => {
    for (let next = fresh(); next.length; next = fresh()) {
      await draw(next[0]);
      await new Promise((done) => setTimeout(done));
    }
    root.dataset.drawn = "true";
  };

  // What is open decides what is drawn; what is drawn follows the width.
  for (const fold of all("details")) fold.addEventListener("toggle", () => drawSeen());
  const widths = new ResizeObserver((entries) => {
    if (root.classList.contains("paper")) return;
    for (const { target } of entries) {
      if (drawn(target) && target.clientWidth && target.clientWidth !== target.layout.width) redraw(target);
    }
  });
  plots.forEach((place) => widths.observe(place));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    plots.filter(drawn).forEach(redraw);
  });

  // A link or an address that names something folded opens it.
  const reveal = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (let fold = target.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
    all(":scope > details.fold", target).forEach((fold) => { fold.open = true; });
    target.scrollIntoView();
  };
  addEventListener("hashchange", reveal);

  const everything = document.querySelector("button.all");
  everything?.addEventListener("click", () => {
    const open = everything.getAttribute("aria-expanded") !== "true";
    all("details.fold").forEach((fold) => { fold.open = open; });
    everything.setAttribute("aria-expanded", String(open));
    everything.textContent = open ? "Fold all" : "Open all";
  });

  // Paper: all sections open, tables of moderate length too, and every plot in the width that it has there.
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = all("details:not([open])").filter((d) => !(Number(d.dataset.rows) > mostRowsOnPaper));
    opened.forEach((fold) => { fold.open = true; });
    root.classList.add("paper");
    plots.forEach((place) => (drawn(place) ? redraw(place) : draw(place)));
  });
  addEventListener("afterprint", () => {
    root.classList.remove("paper");
    opened.forEach((fold) => { fold.open = false; });
    plots.filter((place) => drawn(place) && seen(place)).forEach(redraw);
  });

  const field = (value) => {
    const text = value === null ? "" : String(value);
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };

  // A table as CSV; ids of command lines become the command lines.
  const csv = (name) => {
    const { columns, rows } = data.tables[name];
    const commands = columns.indexOf("commands");
    const lines = rows.map((row) =>
      row.map((v, n) => field(n === commands ? v.split(" ").map((id) => data.commands[id]).join(" ; ") : v)).join(","),
    );
    return [columns.join(","), ...lines, ""].join("\n");
  };

  const download = (name) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([csv(name)], { type: "text/csv" }));
    link.download = `${name}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };

  const toggle = (button) => {
    const shown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(shown));
    for (const plot of all(".js-plotly-plot", button.closest("section"))) {
      const hit = plot.data.flatMap((trace, n) => (trace.name === button.dataset.series ? [n] : []));
      if (hit.length) Plotly.restyle(plot, { visible: shown }, hit);
    }
  };

  for (const button of all("button.download")) button.addEventListener("click", () => download(button.dataset.table));
  for (const button of all("button.series")) button.addEventListener("click", () => toggle(button));
  reveal();
  return { csv, draw: drawSeen, done: drawSeen() };
})();
