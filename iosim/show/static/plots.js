"use strict";
// Draws panels as SVG from traces and a layout in plotly's JSON form, as far as iosim's pages use it: scatter, bar and
// heatmap on linear, logarithmic and category axes, with line shapes, annotations and hover texts.
const drawPanel = (() => {
  const SIZE = 11.5;
  const LINE = 14;
  const DASHES = { dash: "7 5", dot: "2 4" };
  const SHAPES = {
    circle: (r) => `M${-r} 0a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`,
    square: (r) => `M${-r} ${-r}h${2 * r}v${2 * r}h${-2 * r}z`,
    diamond: (r) => `M0 ${-1.3 * r}L${1.3 * r} 0L0 ${1.3 * r}L${-1.3 * r} 0z`,
    "triangle-up": (r) => `M0 ${-1.1 * r}L${1.1 * r} ${0.9 * r}H${-1.1 * r}z`,
    "triangle-down": (r) => `M0 ${1.1 * r}L${1.1 * r} ${-0.9 * r}H${-1.1 * r}z`,
    "x-thin": (r) => `M${-r} ${-r}L${r} ${r}M${-r} ${r}L${r} ${-r}`,
    x: (r) => `M${-r} ${-r / 2}L${-r / 2} ${-r}L0 ${-r / 2}L${r / 2} ${-r}L${r} ${-r / 2}L${r / 2} 0L${r} ${r / 2}`
      + `L${r / 2} ${r}L0 ${r / 2}L${-r / 2} ${r}L${-r} ${r / 2}L${-r / 2} 0z`,
    star: (r) => `M${[...Array(10)].map((_, n) => [(n % 2 ? 0.6 : 1.4) * r * Math.sin((n * Math.PI) / 5),
      -(n % 2 ? 0.6 : 1.4) * r * Math.cos((n * Math.PI) / 5)].map((v) => v.toFixed(2)).join(" ")).join("L")}z`,
    hexagon: (r) => `M${-r} ${-r / 2}L0 ${-r * 1.1}L${r} ${-r / 2}V${r / 2}L0 ${r * 1.1}L${-r} ${r / 2}z`,
  };
  const at = (value, n) => (Array.isArray(value) ? value[n] : value);
  const number = (v) => String(Number(v.toPrecision(6)));
  const escaped = (text) => String(text).replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);
  const canvas = document.createElement("canvas").getContext("2d");
  const wide = (text, size = SIZE) => {
    canvas.font = `${size}px system-ui, sans-serif`;
    return canvas.measureText(text).width;
  };

  // Words with line breaks; the first character of a line may be a coloured mark. `anchor` is start, middle or end.
  const words = (text, x, y, { anchor = "start", size = SIZE, kind, middle = true, colour = "" }) => {
    const lines = text.split("<br>");
    const first = y - ((lines.length - 1) * LINE) / 2 + (middle ? size * 0.36 : 0);
    const spans = lines.map((line, n) => {
      const [, fill, mark, rest] = /^<span style="color:([^"]+)">(.)<\/span>(.*)$/u.exec(line) ?? [null, null, "", line];
      const key = fill ? `<tspan style="fill:${escaped(fill)}">${escaped(mark)}</tspan>` : "";
      return `<tspan x="${x.toFixed(1)}" y="${(first + n * LINE).toFixed(1)}">${key}${escaped(rest)}</tspan>`;
    });
    const style = colour ? ` style="fill:${colour}"` : "";
    return `<text class="${kind}" text-anchor="${anchor}" font-size="${size}"${style}>${spans.join("")}</text>`;
  };

  const steps = (low, high, most) => {
    const unit = 10 ** Math.floor(Math.log10((high - low) / most));
    const step = [1, 2, 5, 10].map((f) => f * unit).find((s) => (high - low) / s <= most);
    const first = Math.ceil(low / step - 1e-9);
    return [...Array(Math.max(0, Math.floor(high / step + 1e-9) - first + 1))].map((_, n) => (first + n) * step);
  };

  // An axis: its ends, its ticks and where a value stands between 0 and 1.
  const axisOf = (asked, traces, key, most) => {
    const values = traces.flatMap((t) => t[key] ?? []).filter((v) => v !== null);
    const words = asked.type === "category" || (asked.type === undefined && typeof values[0] === "string");
    if (words) {
      const names = [...new Set([...(asked.categoryarray ?? []), ...values])];
      const place = asked.autorange === "reversed" ? (n) => 1 - (n + 0.5) / names.length : (n) => (n + 0.5) / names.length;
      return { names, ticks: names.map((name) => [place(names.indexOf(name)), name]), grid: asked.showgrid !== false,
        of: (v) => place(names.indexOf(v)), by: (n) => place(n), unit: 1 / names.length, title: asked.title?.text ?? "" };
    }
    const log = asked.type === "log";
    const scale = log ? Math.log10 : (v) => v;
    let ends = asked.range;
    if (!ends) {
      const own = traces.flatMap((t) => (t.type === "bar" && t.orientation === "h" && key === "y"
        ? t.y.flatMap((v) => [v - 0.5, v + 0.5]) : (t[key] ?? []).filter((v) => v !== null && (!log || v > 0)).map(scale)));
      const barred = traces.some((t) => t.type === "bar");
      if (barred && !log) own.push(0);
      const margin = barred ? 0 : 0.05 * (Math.max(...own) - Math.min(...own)) || 0.5;
      ends = own.length ? [Math.min(...own) - margin, Math.max(...own) + margin] : [0, 1];
    }
    const [low, high] = ends[0] < ends[1] ? ends : [ends[0] - 1, ends[0] + 1];
    const turned = asked.autorange === "reversed";
    const by = (v) => (turned ? (high - v) / (high - low) : (v - low) / (high - low));
    const step = asked.dtick;
    const vals = asked.tickvals ?? (log ? steps(low, high, most).filter(Number.isInteger).map((e) => 10 ** e)
      : step ? steps(low, high, 99).filter((v) => v % step === 0) : steps(low, high, most));
    const told = (v, n) => asked.ticktext?.[n] ?? (asked.tickformat?.endsWith("%") ? `${v > 0 ? "+" : ""}${number(100 * v)}%` : number(v));
    const inside = (p) => p >= -0.001 && p <= 1.001;
    const ticks = vals.map((v, n) => [by(scale(v)), told(v, n)]).filter(([p]) => inside(p));
    // Small ticks at 1 to 9 times every power of ten tell that an axis is logarithmic.
    const decimal = log && vals.every((v) => Number(v.toPrecision(1)) === v || Number(v.toPrecision(2)) === v) && high - low < 7;
    const small = decimal ? steps(Math.floor(low), Math.ceil(high), 99).filter(Number.isInteger)
      .flatMap((e) => [1, 2, 3, 4, 5, 6, 7, 8, 9].map((f) => by(scale(f * 10 ** e)))).filter(inside) : [];
    return { ticks, small, grid: asked.showgrid !== false, of: (v) => by(scale(v)), by, zero: log ? 0 : by(0),
      unit: 1 / (high - low), title: asked.title?.text ?? "" };
  };

  const mix = (scale, share) => {
    const n = Math.max(1, scale.findIndex(([p]) => p >= share));
    const [[from, a], [to, b]] = [scale[n - 1], scale[n]];
    const rgb = (c) => [1, 3, 5].map((i) => parseInt(c.slice(i, i + 2), 16));
    const part = to === from ? 1 : (share - from) / (to - from);
    return rgb(a).map((v, i) => Math.round(v + part * (rgb(b)[i] - v)));
  };

  return (place, { data, layout }) => {
    const [width, height] = [place.clientWidth, place.clientHeight];
    const traces = data.filter((t) => t.visible !== false);
    const heat = data.find((t) => t.type === "heatmap");
    const x = axisOf(layout.xaxis ?? {}, data, "x", 9);
    const y = axisOf(layout.yaxis ?? {}, data, "y", 7);
    const margin = layout.margin ?? { l: 8, r: 12, t: 10, b: 8 };
    const left = margin.l + Math.max(0, ...y.ticks.map(([, t]) => wide(t))) + 6 + (y.title ? 19 : 0);
    const right = Math.max(margin.r, 6 + (x.names ? 0 : wide(x.ticks.at(-1)?.[1] ?? "") / 2)) + (heat?.colorbar ? 26 + Math.max(...heat.colorbar.ticktext.map((t) => wide(t))) : 0);
    const top = margin.t;
    const w = Math.max(10, width - left - right);

    // Ticks: of those that would meet, every second, third, ... stays; names stand in two rows before any goes.
    const apart = (ticks) => ticks.every(([p, t], i, all) =>
      i === 0 || (p - all[i - 1][0]) * w > (wide(t) + wide(all[i - 1][1])) / 2 + 6);
    const nth = (n, first = 0) => x.ticks.filter((_, i) => i % n === first);
    const rows = x.names && !apart(x.ticks) && apart(nth(2)) && apart(nth(2, 1)) ? 2 : 1;
    let every = 1;
    while (rows === 1 && every < x.ticks.length && !apart(nth(every))) every += 1;
    const bottom = height - margin.b - 17 - LINE * (rows - 1) - (x.title ? 19 : 0);
    const h = Math.max(10, bottom - top);
    const px = (v) => left + w * x.of(v);
    const py = (v) => bottom - h * y.of(v);
    const svg = [];
    const hits = [];

    for (const [n, [p, text]] of x.ticks.entries()) {
      const to = left + w * p;
      if (x.grid && !x.names) svg.push(`<path class="grid" d="M${to.toFixed(1)} ${top}V${bottom}"/>`);
      if (n % every === 0) svg.push(words(text, to, bottom + 12 + LINE * (n % rows), { anchor: "middle", kind: "tick" }));
    }
    for (const [p, text] of y.ticks) {
      const to = bottom - h * p;
      if (y.grid) svg.push(`<path class="grid" d="M${left} ${to.toFixed(1)}H${left + w}"/>`);
      svg.push(words(text, left - 6, to, { anchor: "end", kind: "tick" }));
    }
    const marks = [...(x.small ?? []).map((p) => `M${(left + w * p).toFixed(1)} ${bottom}v3`),
      ...(y.small ?? []).map((p) => `M${left} ${(bottom - h * p).toFixed(1)}h-3`)].join("");
    svg.push(`<path class="axis" d="M${left} ${top}V${bottom}H${left + w}${marks}"/>`);
    if (x.title) svg.push(words(x.title, left + w / 2, bottom + 31 + LINE * (rows - 1), { anchor: "middle", kind: "title", size: 12.5 }));
    if (y.title) {
      svg.push(`<g transform="translate(${margin.l + 6} ${top + h / 2}) rotate(-90)">`
        + `${words(y.title, 0, 0, { anchor: "middle", kind: "title", size: 12.5 })}</g>`);
    }

    const inside = [];
    const outside = [];
    const stacks = new Map();
    const below = new Map();
    for (const t of traces) {
      const told = t.hoverinfo === "skip" ? null : t.hovertext ?? t.text;
      if (t.type === "heatmap") {
        const flat = t.z.flat().filter((v) => v !== null);
        const [least, most] = [t.zmin ?? Math.min(...flat), t.zmax ?? Math.max(...flat)];
        t.z.forEach((row, j) => row.forEach((z, i) => {
          const [cw, ch] = [w * x.unit, h * y.unit];
          const [cx, cy] = [px(t.x[i]), py(t.y[j])];
          const box = { x: cx - cw / 2, y: cy - ch / 2, w: cw, h: ch };
          if (z !== null) {
            const colour = mix(t.colorscale, Math.min(1, Math.max(0, (z - least) / (most - least || 1))));
            inside.push(`<rect class="mark" x="${box.x + 0.5}" y="${box.y + 0.5}" width="${cw - 1}" height="${ch - 1}" fill="rgb(${colour})"/>`);
            const ink = colour[0] * 0.3 + colour[1] * 0.59 + colour[2] * 0.11 > 140 ? "#111" : "#fff";
            const label = t.texttemplate && t.text[j][i];
            const size = t.textfont?.size ?? SIZE;
            if (label && wide(label, size) + 3 < cw) inside.push(words(label, cx, cy, { anchor: "middle", kind: "cell", size, colour: ink }));
          }
          const over = (t.hovertext ?? t.text)?.[j][i];
          if (over) hits.push({ box, text: over });
        }));
        const bar = t.colorbar;
        if (bar) {
          const bx = left + w + 10;
          for (let n = 0; n < 40; n += 1) {
            outside.push(`<rect x="${bx}" y="${bottom - (h * (n + 1)) / 40}" width="8" height="${h / 40 + 0.5}" fill="rgb(${mix(t.colorscale, n / 39)})"/>`);
          }
          bar.tickvals.forEach((v, n) => outside.push(words(bar.ticktext[n], bx + 12,
            Math.min(bottom - 5, Math.max(top + 5, bottom - (h * (v - least)) / (most - least))), { kind: "tick" })));
        }
      } else if (t.type === "bar") {
        const flat = t.orientation === "h";
        const [along, across] = flat ? [t.x, t.y] : [t.y, t.x];
        const [a, c] = flat ? [x, y] : [y, x];
        const gaps = across.slice(1).map((v, n) => v - across[n]).filter((v) => v > 0);
        const thick = c.names ? 1 : t.width ?? (gaps.length ? Math.min(...gaps) : 1);
        const share = c.names ? 1 - (layout.bargap ?? 0.2) : t.width ? 1 : 1 - (layout.bargap ?? 0.1);
        along.forEach((v, n) => {
          if (v === null) return;
          const base = t.base?.[n] ?? (layout.barmode === "stack" ? below.get(across[n]) ?? 0 : 0);
          if (layout.barmode === "stack") below.set(across[n], base + v);
          const [from, to] = [a.of(base), a.of(base + v)];
          const mid = c.names ? c.of(across[n]) : c.of(across[n] + (t.offset === undefined ? 0 : t.offset + thick / 2));
          const half = (c.unit * thick * share) / 2;
          const box = flat
            ? { x: left + w * Math.min(from, to), y: bottom - h * (mid + half), w: w * Math.abs(to - from), h: 2 * h * half }
            : { x: left + w * (mid - half), y: bottom - h * Math.max(from, to), w: 2 * w * half, h: h * Math.abs(to - from) };
          if (v === 0) return;
          if (flat) box.w = Math.max(box.w, 0.5);
          else [box.y, box.h] = [Math.min(box.y, bottom - 0.5), Math.max(box.h, 0.5)];
          inside.push(`<rect class="mark" x="${box.x.toFixed(2)}" y="${box.y.toFixed(2)}" width="${box.w.toFixed(2)}"`
            + ` height="${box.h.toFixed(2)}" fill="${at(t.marker?.color, n) ?? "#7a7a7a"}"/>`);
          if (told?.[n]) hits.push({ box, text: told[n] });
        });
      } else {
        const mode = t.mode ?? "lines+markers";
        const colour = t.line?.color ?? t.marker?.color;
        const sums = t.stackgroup && (stacks.get(t.stackgroup) ?? t.x.map(() => 0));
        const ys = sums ? t.y.map((v, n) => sums[n] + (v ?? 0)) : t.y;
        const points = t.x.map((v, n) => (v === null || ys[n] === null ? null : [px(v), py(ys[n])]));
        if (mode.includes("lines")) {
          let path = "";
          let pen = "M";
          points.forEach((p, n) => {
            if (!p || !p.every(Number.isFinite)) { pen = "M"; return; }
            const turn = pen === "L" && t.line?.shape === "vh" ? `V${p[1].toFixed(1)}` : "";
            path += `${turn}${pen}${p[0].toFixed(1)} ${p[1].toFixed(1)}`;
            pen = "L";
          });
          if (sums) {
            const back = t.x.map((v, n) => [px(v), py(sums[n])]).reverse();
            const under = back.map(([bx, by], n) => `L${bx.toFixed(1)} ${by.toFixed(1)}`
              + (t.line?.shape === "vh" && n + 1 < back.length ? `L${bx.toFixed(1)} ${by.toFixed(1)}H${back[n + 1][0].toFixed(1)}` : "")).join("");
            inside.push(`<path class="mark" fill="${t.fillcolor}" d="${path}${under}z"/>`);
            stacks.set(t.stackgroup, ys);
          } else {
            const dash = DASHES[t.line?.dash] ? ` stroke-dasharray="${DASHES[t.line.dash]}"` : "";
            inside.push(`<path class="mark" fill="none" stroke="${colour}" stroke-width="${t.line?.width ?? 2}"${dash} d="${path}"/>`);
          }
        }
        points.forEach((p, n) => {
          if (!p) return;
          if (mode.includes("markers")) {
            const [shape, open] = String(at(t.marker?.symbol, n) ?? "circle").split(/-(?=open$)/);
            const paint = at(t.marker?.color, n) ?? t.marker?.line?.color ?? "#7a7a7a";
            const edge = open || shape === "x-thin" ? `fill="${open ? "var(--panel)" : "none"}" stroke="${t.marker?.line?.color ?? paint}"`
              + ` stroke-width="${t.marker?.line?.width ?? 1.5}"` : `fill="${paint}"`;
            const hollow = open && (t.marker?.size ?? 6) > 18 ? edge.replace("var(--panel)", "none") : edge;
            inside.push(`<path class="mark" transform="translate(${p[0].toFixed(1)} ${p[1].toFixed(1)})" ${hollow} d="${SHAPES[shape]((t.marker?.size ?? 6) / 2)}"/>`);
          }
          if (mode.includes("text") && at(t.text, n)) {
            const side = at(t.textposition, n) ?? "";
            const gap = mode.includes("markers") ? 5 + (t.marker?.size ?? 6) / 2 : 6;
            const [shift, anchor] = side.endsWith("right") ? [gap, "start"] : side.endsWith("left") ? [-gap, "end"] : [0, "middle"];
            outside.push(words(at(t.text, n).trim(), p[0] + shift, p[1], { anchor, kind: "word" }));
          }
          const text = told && at(told, n);
          if (text) hits.push({ point: p, text });
        });
      }
    }
    for (const s of layout.shapes ?? []) {
      const [ax, bx] = [s.x0, s.x1].map((v) => (s.xref === "paper" ? left + w * v : px(v)));
      const [ay, by] = [s.y0, s.y1].map((v) => (s.yref === "paper" ? bottom - h * v : py(v)));
      inside.push(`<path fill="none" stroke="${s.line.color}" stroke-width="${s.line.width}" stroke-dasharray="${DASHES[s.line.dash] ?? ""}" d="M${ax} ${ay}L${bx} ${by}"/>`);
    }
    const hidden = data.filter((t) => t.visible === false).map((t) => t.name);
    for (const a of layout.annotations ?? []) {
      if (hidden.includes(a.text.replace(/^<span.*?<\/span> /, "").split("<br>")[0])) continue;
      const to = (a.xref === "paper" ? left + w * a.x : left + w * x.by(a.x)) + (a.xshift ?? 0);
      const level = a.yref === "paper" ? bottom - h * a.y : bottom - h * y.by(a.y);
      const shift = { bottom: -8, top: 8 }[a.yanchor] ?? 0;
      const anchor = { left: "start", right: "end" }[a.xanchor] ?? "middle";
      outside.push(words(a.text, to, level + shift, { anchor, kind: "note", size: a.font?.size ?? SIZE }));
    }

    const clip = `clip-${place.id}`;
    place.innerHTML = `<svg width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" aria-hidden="true">`
      + `<clipPath id="${clip}"><rect x="${left - 6}" y="${top - 6}" width="${w + 12}" height="${h + 6.5}"/></clipPath>`
      + `${svg.join("")}<g clip-path="url(#${clip})">${inside.join("")}</g>${outside.join("")}</svg>`;
    place.width = width;

    // The text of what lies under the pointer, or of the nearest point; arrow keys go from one to the next.
    if (place.nextElementSibling?.className !== "tip") place.insertAdjacentHTML("afterend", '<div class="tip" role="status" hidden></div>');
    const tip = place.nextElementSibling;
    tip.hidden = true;
    const tell = (hit, mx, my) => {
      tip.hidden = !hit;
      if (!hit) return;
      tip.replaceChildren(...hit.text.split("<br>").flatMap((line, n) => [...(n ? [document.createElement("br")] : []), line]));
      const to = my + 16 + tip.offsetHeight < height ? my + 16 : Math.max(0, my - tip.offsetHeight - 10);
      tip.style.left = `${place.offsetLeft + Math.max(0, Math.min(mx + 12, width - tip.offsetWidth - 2))}px`;
      tip.style.top = `${place.offsetTop + to}px`;
    };
    const stops = hits.filter((hit, n) => hit.text !== hits[n - 1]?.text);
    let chosen = -1;
    place.onkeydown = (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") tip.hidden = true;
      if (!step || !stops.length) return;
      event.preventDefault();
      chosen = chosen < 0 && step < 0 ? stops.length - 1 : (chosen + step + stops.length) % stops.length;
      const { box, point } = stops[chosen];
      tell(stops[chosen], ...(point ?? [box.x + box.w / 2, box.y + box.h / 2]));
    };
    place.onblur = () => { tip.hidden = true; };
    place.onpointerleave = (event) => { tip.hidden ||= event.pointerType !== "touch"; };
    place.onpointermove = place.onpointerdown = (event) => {
      const frame = place.getBoundingClientRect();
      const [mx, my] = [event.clientX - frame.left, event.clientY - frame.top];
      let best = null;
      let least = 24;
      for (const hit of hits) {
        const b = hit.box;
        if (b && mx >= b.x && mx <= b.x + b.w && my >= b.y && my <= b.y + b.h) best ??= hit;
        if (!hit.point) continue;
        const far = Math.hypot(hit.point[0] - mx, hit.point[1] - my);
        if (far < least) [best, least] = [hit, far];
      }
      tell(best, mx, my);
    };
  };
})();
