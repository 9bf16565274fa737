"use strict";
// Draws the panels, hides and shows series, and hands out tables as CSV. Uses nothing but this page.
const iosimPage = (() => {
  const data = JSON.parse(document.getElementById("page-data").textContent);
  const hovers = matchMedia("(hover: hover)").matches;
  const config = {
    displaylogo: false,
    displayModeBar: hovers ? "hover" : false,
    modeBarButtonsToRemove: ["select2d", "lasso2d"],
    responsive: true,
  };

  const themed = (layout) => {
    const style = getComputedStyle(document.documentElement);
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

  const draw = async (id) => {
    const place = document.getElementById(id);
    const panel = data.panels[id];
    place.replaceChildren();
    await Plotly.newPlot(place, panel.data, themed(panel.layout), config);
  };

  // One panel after the other, so that the page stays responsive while they appear.
  const drawAll = async () => {
    for (const id of Object.keys(data.panels)) {
      await draw(id);
      await new Promise((next) => setTimeout(next));
    }
    document.documentElement.dataset.drawn = "true";
  };

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
    for (const plot of button.closest("section").querySelectorAll(".js-plotly-plot")) {
      const hit = plot.data.flatMap((trace, n) => (trace.name === button.dataset.series ? [n] : []));
      if (hit.length) Plotly.restyle(plot, { visible: shown }, hit);
    }
  };

  for (const button of document.querySelectorAll("button.download")) {
    button.addEventListener("click", () => download(button.dataset.table));
  }
  for (const button of document.querySelectorAll("button.series")) {
    button.addEventListener("click", () => toggle(button));
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const plot of document.querySelectorAll(".js-plotly-plot")) Plotly.relayout(plot, themed(plot.layout));
  });
  return { csv, done: drawAll() };
})();
