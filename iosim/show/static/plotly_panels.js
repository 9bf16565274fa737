"use strict";
// Draws panels with plotly, in place of plots.js: zoom, selection and export as its toolbar has them. Legends are the
// page's own buttons.
const drawPanel = (place, panel) => {
  place.querySelector(".fallback")?.remove();
  const styles = getComputedStyle(document.documentElement);
  const colour = (name) => styles.getPropertyValue(name).trim();
  const hidden = panel.data.filter((t) => t.visible === false).map((t) => t.name);
  const named = (text) => text.replace(/^<span.*?<\/span> /, "").split("<br>")[0];
  const annotations = (panel.layout.annotations ?? []).filter((a) => !hidden.includes(named(a.text)));
  const axis = (given = {}) => ({ ...given, gridcolor: colour("--grid"), zerolinecolor: colour("--rule"), automargin: true });
  // Names at the ends of lines need room beside the plot.
  const beside = annotations.some((a) => a.xref === "paper" && a.x >= 1);
  const layout = {
    ...panel.layout,
    annotations,
    xaxis: axis(panel.layout.xaxis),
    yaxis: axis(panel.layout.yaxis),
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: colour("--ink"), size: 11.5, family: "system-ui, sans-serif" },
    margin: { l: 60, r: beside ? Math.min(150, place.clientWidth / 3) : 24, t: 28, b: 44 },
    width: place.clientWidth,
    height: place.clientHeight,
    showlegend: false,
  };
  const buttons = ["select2d", "lasso2d", "hoverclosest", "hovercompare"];
  Plotly.react(place, panel.data, layout, { displaylogo: false, modeBarButtonsToAdd: buttons });
  place.width = place.clientWidth;
};
