"use strict";
// Figures as SVG, drawn at the width that their place has.
const iosimDraw = (() => {
  const SVG = "http://www.w3.org/2000/svg", COLOURS = 8;
  const UNITS = ["", "k", "M", "G", "T", "P"];
  const digits = (value, most = 4) => (value === 0 ? "0" : String(Number(value.toPrecision(most))));
  const scaled = (value, unit) => {
    const n = value < 1 ? 0 : Math.min(UNITS.length - 1, Math.floor(Math.log10(value * 1.00005) / 3));
    return `${digits(value / 1000 ** n)} ${UNITS[n]}${unit}`;
  };
  const bytes = (value) => scaled(value, "B");
  const seconds = (s) => (s >= 1 ? `${digits(s)} s` : s >= 1e-3 ? `${digits(s * 1e3)} ms` : `${digits(s * 1e6)} µs`);
  const colour = (n) => (n < COLOURS ? `var(--t${n})` : `color-mix(in oklab, var(--t${n % COLOURS}), var(--panel) 50%)`);

  const node = (name, attributes = {}, ...inside) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...inside);
    return made;
  };
  const text = (x, y, words, kind = "") => node("text", { x, y, class: kind }, words);
  const line = (x1, y1, x2, y2, kind) => node("line", { x1, y1, x2, y2, class: kind });
  const rect = (x, y, width, height, fill) => node("rect", { x, y, width: Math.max(0, width), height, fill });
  const onto = (place, height, alt, parts) => {
    const width = Math.max(280, place.clientWidth || 640);
    const drawn = node("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": alt }, node("title", {}, alt));
    drawn.append(...parts(width).flat(9).filter(Boolean));
    place.replaceChildren(drawn);
    return drawn;
  };
  const powers = (low, high, room) => {
    const out = [], first = Math.ceil(Math.log10(low)), last = Math.floor(Math.log10(high));
    const step = Math.max(1, Math.ceil((last - first + 1) / Math.max(1, Math.floor(room / 64))));
    for (let n = first; n <= last; n += step) out.push(10 ** n);
    return out;
  };
  const rounds = (high, most = 5) => {
    const raw = high / most, size = 10 ** Math.floor(Math.log10(raw)), step = [1, 2, 2.5, 5, 10].map((f) => f * size).find((s) => s >= raw);
    return Array.from({ length: Math.floor(high / step + 1e-9) + 1 }, (_, n) => n * step);
  };

  // Room for names at the left of bars: some of it always, as much as they need up to less than half.
  const margin = (width, names) => Math.min(Math.max(Math.min(128, width * 0.31), 10 + 6.9 * Math.max(...names.map((name) => name.length))), width * 0.45);

  // Bars on a logarithmic axis: of each level its rows [who, bytes, how].
  const levels = (place, groups) => {
    const rows = groups.flatMap((group) => group.rows), top = Math.max(...rows.map((row) => row.bytes), 10);
    const least = Math.min(...rows.filter((row) => row.bytes).map((row) => row.bytes)), low = 10 ** Math.floor(Math.log10(least) - 0.3);
    const height = 30 + groups.length * 22 + rows.length * 22;
    const alt = groups.map((group) => `${group.name}: ${group.rows.map((row) => `${row.who} ${bytes(row.bytes)}`).join(", ")}`).join(". ");
    onto(place, height, alt, (width) => {
      const left = margin(width, rows.map((row) => row.who)), room = width - left - 82, at = (v) => left + (room * Math.log(v / low)) / Math.log(top / low);
      let y = 4;
      const ticks = powers(low, top, room).map((v) => [line(at(v), 8, at(v), height - 24, "grid"), text(at(v), height - 8, bytes(v), "soft middle")]);
      const bars = groups.map((group) => [
        text(0, (y += 14), group.name, "strong"), void (y += 8),
        group.rows.map((row) => {
          const bar = [text(left - 8, y + 12, row.who, "soft end"), row.bytes ? rect(left, y, at(row.bytes) - left, 16, row.colour) : null,
            text((row.bytes ? at(row.bytes) : left) + 6, y + 12, bytes(row.bytes))];
          y += 22;
          return bar;
        }),
      ]);
      return [ticks, bars];
    });
  };

  // Stacked areas over time; `moment` is where the cursor stands. Series: [name, colour, values].
  const held = (place, { series, span, most, moment, mark }) => {
    const rowsOf = (width) => Math.ceil((series.reduce((all, s) => all + 26 + 7.2 * s.name.length, 58) - 58) / (width - 70));
    const height = 277 + 18 * rowsOf(Math.max(280, place.clientWidth)), alt = `Bytes in the L2 over ${seconds(span)}: ${series.map((s) => `${s.name} up to ${bytes(Math.max(...s.values))}`).join(", ")}`;
    onto(place, height, alt, (width) => {
      const left = 58, right = 12, base = 242, n = series[0]?.values.length || 1, sums = new Float64Array(n);
      const x = (b) => left + ((width - left - right) * b) / Math.max(1, n - 1), y = (v) => base - (base - 12) * (v / most);
      const areas = series.map((s) => {
        const below = Array.from(sums, (v, b) => `${x(b).toFixed(1)},${y(v).toFixed(1)}`).reverse();
        s.values.forEach((v, b) => { sums[b] += v; });
        return node("polygon", { points: [...Array.from(sums, (v, b) => `${x(b).toFixed(1)},${y(v).toFixed(1)}`), ...below].join(" "), fill: s.colour },
          node("title", {}, s.name));
      });
      const ticks = rounds(most, 4).map((v) => [line(left, y(v), width - right, y(v), "grid"), text(left - 6, y(v) + 4, bytes(v), "soft end")]);
      const times = rounds(span, 4).map((t) => text(left + ((width - left - right) * t) / span, base + 19, seconds(t), "soft middle"));
      let at = left, under = base + 31;
      const legend = series.map((s) => {
        const room = 26 + 7.2 * s.name.length;
        if (at + room > width && at > left) { at = left; under += 18; }
        at += room;
        return [rect(at - room, under, 10, 10, s.colour), text(at - room + 14, under + 9, s.name)];
      });
      const now = left + (width - left - right) * moment;
      return [ticks, areas, times, legend, line(left, y(mark), width - right, y(mark), "line dash"), line(now, 8, now, base, "now")];
    });
  };

  // The work tiles of one head. Rows: [block, first, count, order]; `now`: of each row where its CTA stands, or -1.
  const map = (place, { rows, columns, blocks, axes, now, shares, head }) => {
    const alt = `${rows.length} work tiles of head ${head} over ${blocks} ${axes[0]} blocks and ${columns} ${axes[1]} blocks`;
    const high = 252, height = high + 40;
    onto(place, height, alt, (width) => {
      const left = 34, side = (width - left - 10) / columns, tall = high / blocks, mark = Math.min(12, Math.max(4, side));
      const hue = (share) => `color-mix(in oklab, var(--t0), var(--t1) ${Math.round(100 * share)}%)`;
      return [
        node("rect", { x: left, y: 20, width: side * columns, height: high, class: "void" }),
        rows.map(([block, first, count], n) => rect(left + first * side, 20 + block * tall, count * side, tall > 3 ? tall - 0.7 : tall, hue(shares[n]))),
        rows.map(([block], n) => (now[n] < 0 ? null
          : node("rect", { x: left + (now[n] + 0.5) * side - mark / 2, y: 20 + block * tall, width: mark, height: Math.max(2, tall - 0.7), class: "mark" }))),
        text(left, 13, `${axes[1]} blocks: ${columns} →`, "soft"),
        node("text", { x: 0, y: 0, class: "soft end", transform: "translate(24 22) rotate(-90)" }, `← ${axes[0]} blocks: ${blocks}`),
        [0, 1, 2, 3, 4, 5].map((n) => rect(left + 68 + n * 12, height - 15, 12, 10, hue(n / 5))),
        text(left, height - 6, "starts first", "soft"), text(left + 146, height - 6, "last", "soft"),
      ];
    });
  };

  // Points [name, operations a byte, operations a second, colour] under a roof of two rates.
  const roof = (place, { points, peaks: [flops, rate] }) => {
    const height = 270, ridge = flops / rate, alt = points.map((p) => `${p.name}: ${digits(p.x, 3)} operations a byte, ${scaled(p.y, "FLOP/s")}`).join("; ");
    onto(place, height, `${alt}; the ridge is at ${digits(ridge, 3)}`, (width) => {
      const xs = points.map((p) => p.x), low = Math.min(ridge / 8, ...xs.map((x) => x / 1.6)), high = Math.max(ridge * 8, ...xs.map((x) => x * 1.8));
      const top = flops * 1.7, bottom = Math.min(low * rate, ...points.map((p) => p.y)) / 1.3, left = 74, base = height - 40;
      const x = (v) => left + ((width - left - 14) * Math.log(v / low)) / Math.log(high / low), y = (v) => base - ((base - 10) * Math.log(v / bottom)) / Math.log(top / bottom);
      const taken = [[x(ridge), y(flops) - 6, 80]]; // labels: left end, line, width
      const beside = ({ name, on_roof }, at, across) => {
        const room = 7 * name.length, start = at > width * 0.6 ? at - 10 - room : at + 10;
        const free = (over) => taken.every(([other, line, own]) => Math.abs(line - over) > 13 || start > other + own || other > start + room);
        const over = [on_roof ? 19 : 4, 20, -14, 36, -30].map((down) => across + down).find(free) ?? across + 4;
        taken.push([start, over, room]);
        return text(at > width * 0.6 ? at - 10 : at + 10, over, name, at > width * 0.6 ? "end" : "");
      };
      return [
        powers(low, high, width - left).map((v) => [line(x(v), 10, x(v), base, "grid"), text(x(v), base + 16, digits(v), "soft middle")]),
        powers(bottom, top, 6 * 64).map((v) => [line(left, y(v), width - 14, y(v), "grid"), text(left - 6, y(v) + 4, scaled(v, "FLOP/s").replace("FLOP/s", ""), "soft end")]),
        text(width - 14, height - 6, "FLOP per byte of HBM", "soft end"), text(0, height - 6, "FLOP/s", "soft"),
        node("polyline", { points: `${x(low)},${y(low * rate)} ${x(ridge)},${y(flops)} ${x(high)},${y(flops)}`, class: "line" }),
        text(x(ridge), y(flops) - 6, scaled(flops, "FLOP/s"), "soft"),
        points.map((p) => [node("circle", { cx: x(p.x), cy: y(p.y), r: 5.5, fill: p.colour }), beside(p, x(p.x), y(p.y))]),
      ];
    });
  };
  // A bar a row, of parts of a time: [{who, total, parts: [{part, time_s}]}]; all on one axis.
  const shares = (place, rows) => {
    const names = [...new Set(rows.flatMap((row) => row.parts.map((part) => part.part)))], most = Math.max(...rows.map((row) => row.total));
    const alt = rows.map((row) => `${row.who}: ${seconds(row.total)}, of it ${row.parts.map((part) => `${part.part} ${seconds(part.time_s)}`).join(", ")}`).join(". ");
    const room = (name) => 30 + 7.2 * name.length, across = Math.max(280, place.clientWidth || 640);
    let at = 0, down = 0;
    const places = names.map((name) => {
      if (at && at + room(name) > across) { at = 0; down += 18; }
      at += room(name);
      return [at - room(name), down];
    });
    const top = rows.length * 26 + 34;
    onto(place, top + down + 18, alt, (width) => {
      const left = margin(width, rows.map((row) => row.who)), end = width - 72, x = (s) => left + ((end - left) * s) / most;
      return [
        rounds(most, Math.max(2, Math.floor((end - left) / 90))).map((s) => [line(x(s), 4, x(s), rows.length * 26, "grid"), text(x(s), rows.length * 26 + 16, seconds(s), "soft middle")]),
        rows.map((row, n) => {
          let sum = 0;
          const bars = row.parts.map((part) => {
            const bar = rect(x(sum), 4 + n * 26, x(sum + part.time_s) - x(sum), 18, colour(names.indexOf(part.part)));
            bar.append(node("title", {}, `${part.part}: ${seconds(part.time_s)}`));
            sum += part.time_s;
            return bar;
          });
          return [text(left - 8, 17 + n * 26, row.who, "soft end"), bars, text(x(sum) + 6, 17 + n * 26, seconds(row.total))];
        }),
        names.map((name, n) => [rect(places[n][0], top + places[n][1], 10, 10, colour(n)), text(places[n][0] + 14, top + places[n][1] + 9, name)]),
      ];
    });
  };
  return { bytes, seconds, scaled, digits, colour, levels, held, map, roof, shares };
})();
