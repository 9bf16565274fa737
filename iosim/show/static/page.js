"use strict";
// Draws the panels when they are seen, hides and shows series, opens and folds, prepares for paper, and hands out
// tables as CSV. Uses nothing but this page.
const iosimPage = (() => {
  let data = null;
  const unpacked = async () => {
    const packed = Uint8Array.from(atob(document.getElementById("page-data").textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    data = await new Response(stream).json();
    return data;
  };
  const ready = unpacked();
  const root = document.documentElement;
  const mostRowsOnPaper = 24;
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];

  const plots = all(".plot");
  const seen = (place) => !place.closest("details:not([open])");
  const drawn = (place) => place.classList.contains("drawn");
  const draw = (place) => {
    drawPanel(place, data.panels[place.id]);
    place.classList.add("drawn");
  };
  const fresh = () => plots.filter((place) => seen(place) && !drawn(place));

  // One panel after the other, so that the page stays responsive while they appear.
  const drawSeen = async () => {
    await ready;
    for (let next = fresh(); next.length; next = fresh()) {
      draw(next[0]);
      await new Promise((done) => setTimeout(done));
    }
    root.dataset.drawn = "true";
  };

  // What is open decides what is drawn; what is drawn follows the width.
  for (const fold of all("details")) fold.addEventListener("toggle", () => drawSeen());
  const widths = new ResizeObserver((entries) => {
    if (root.classList.contains("paper")) return;
    for (const { target } of entries) {
      if (drawn(target) && target.clientWidth && target.clientWidth !== target.width) draw(target);
    }
  });
  plots.forEach((place) => widths.observe(place));

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
    plots.forEach(draw);
  });
  addEventListener("afterprint", () => {
    root.classList.remove("paper");
    opened.forEach((fold) => { fold.open = false; });
    plots.filter(seen).forEach(draw);
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

  const download = async (name) => {
    await ready;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([csv(name)], { type: "text/csv" }));
    link.download = `${name}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };

  const toggle = async (button) => {
    await ready;
    const shown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(shown));
    const name = button.dataset.series;
    for (const place of all(".plot", button.closest("section"))) {
      const hit = data.panels[place.id].data.filter((t) => [t.name, t.legendgroup].includes(name) || t.name?.endsWith(` ${name}`));
      hit.forEach((trace) => { trace.visible = shown; });
      if (hit.length && drawn(place)) draw(place);
    }
  };

  for (const button of all("button.download")) button.addEventListener("click", () => download(button.dataset.table));
  for (const button of all("button.series")) button.addEventListener("click", () => toggle(button));
  reveal();
  return { csv, ready, draw: drawSeen, done: drawSeen() };
})();
