// Faults of a page that can be seen: [kind, where, what] each. `paper` says that the page is as it would be printed.
async (paper) => {
  const faults = [];
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const box = (node) => node.getBoundingClientRect();
  const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
  const whole = (node) => (node.textContent || "").trim();
  const say = (node) => whole(node).slice(0, 40); // of a fault, its beginning is enough
  const name = (node) => node.id || `${node.tagName.toLowerCase()} ${say(node)}`;
  if (paper) {
    document.body.style.margin = "0";
    dispatchEvent(new Event("beforeprint"));
  } else {
    all("details").forEach((fold) => { fold.open = true; });
    await new Promise((done) => setTimeout(done));
    await iosimPage.draw();
  }
  const width = paper ? box(document.body).width : innerWidth;

  // Nothing is wider than the page, and what is wider than its frame can be scrolled to.
  if (document.documentElement.scrollWidth > Math.ceil(width)) {
    faults.push(["overflow", "page", `${document.documentElement.scrollWidth} of ${width}`]);
  }
  for (const node of all("body *")) {
    if (node.closest(".plot, script") || (!paper && node.closest(".scroll table"))) continue;
    const { left, right, width: own } = box(node);
    if (own && (right > width + 1 || left < -1)) faults.push(["overflow", name(node), `${left} to ${right}`]);
  }
  for (const node of all("main *, header *")) {
    if (node.closest(".plot") || !node.clientWidth) continue;
    const style = getComputedStyle(node);
    const cut = ["hidden", "clip"].includes(style.overflowX) && node.scrollWidth > node.clientWidth + 1;
    const low = ["hidden", "clip"].includes(style.overflowY) && node.scrollHeight > node.clientHeight + 1;
    if (cut || low) faults.push(["clipped", name(node), `${node.scrollWidth} in ${node.clientWidth}`]);
  }
  for (const cell of all("td, th")) {
    if (cell.scrollWidth > cell.clientWidth + 1) faults.push(["clipped", "cell", say(cell)]);
  }
  for (const frame of all(".scroll")) {
    const style = getComputedStyle(frame);
    const more = frame.scrollWidth > frame.clientWidth + 1 || frame.scrollHeight > frame.clientHeight + 1;
    if (more && (paper || style.overflowX !== "auto")) faults.push(["clipped", "table", frame.ariaLabel]);
    if (more && (!style.backgroundImage.includes("gradient") || frame.tabIndex !== 0)) {
      faults.push(["edge", "table", frame.ariaLabel]);
    }
  }

  // Every panel shows something, in the width it has, and its words are whole and apart.
  for (const plot of all(".plot")) {
    const frame = box(plot);
    const svg = plot.querySelector("svg");
    const marks = all(".mark, .word", plot).filter((m) => box(m).width || box(m).height);
    if (!svg || !marks.length || frame.width < 200 || frame.height < 80) {
      faults.push(["empty", plot.id, `${marks.length} marks, ${frame.width} x ${frame.height}`]);
      continue;
    }
    if (Math.abs(box(svg).width - frame.width) > 2) faults.push(["width", plot.id, `${box(svg).width} of ${frame.width}`]);
    const texts = all(".tick, .title, .note, .word", plot).filter((t) => box(t).width);
    texts.forEach((text, n) => {
      const a = box(text);
      if (a.left < frame.left - 1 || a.right > frame.right + 1 || a.top < frame.top - 1 || a.bottom > frame.bottom + 1) {
        faults.push(["clipped", plot.id, say(text)]);
      }
      texts.slice(n + 1).filter((b) => meet(a, box(b))).forEach((b) => {
        faults.push(["overlap", plot.id, `${say(text)} | ${say(b)}`]);
      });
    });

    // Every line has a name that can be read (a trace's CTAs are told by their place), and none lies exactly on another of its width.
    const words = [...all(".note, .title", plot), ...all("button.series", plot.closest("section"))].map(whole).join("\n");
    const { data } = (await iosimPage.ready).panels[plot.id];
    const lines = data.filter((t) => t.type !== "heatmap" && t.name && !["whole", "between", "CTA"].includes(t.name));
    const said = words.replaceAll("+", "").replaceAll(" and ", "").replaceAll(" ", "").replaceAll("\n", "");
    if (lines.length > 1) {
      for (const line of lines) {
        const plain = line.name.replaceAll(" and ", "").replaceAll(" ", "");
        if (!said.includes(plain)) faults.push(["unnamed", plot.id, line.name]);
      }
    }
    const drawn = lines.filter((t) => t.type === "scatter" && !t.stackgroup && /lines/.test(t.mode));
    drawn.forEach((a, n) => drawn.slice(n + 1).forEach((b) => {
      const same = JSON.stringify([a.x, a.y]) === JSON.stringify([b.x, b.y]);
      if (same && a.line.width === b.line.width) faults.push(["hidden", plot.id, `${a.name} under ${b.name}`]);
    }));
    const bars = data.filter((t) => t.type === "bar");
    if (bars.length && bars.reduce((n, t) => n + t.x.length, 0) < 2) faults.push(["one bar", plot.id, bars[0].name]);
  }

  // Whoever does not see the page, or has no mouse, can use it.
  for (const node of all(".plot, button, summary, .scroll")) {
    if (!(node.ariaLabel || say(node))) faults.push(["nameless", name(node), node.tagName]);
  }
  for (const node of all("button, summary, a[href], .scroll")) {
    if (node.tabIndex < 0) faults.push(["no keyboard", name(node), node.tagName]);
  }
  const least = paper ? 8 : 12;
  for (const node of all("p, li, td, th, code, button, summary, figcaption")) {
    const size = parseFloat(getComputedStyle(node).fontSize);
    if (size < least) faults.push(["small", name(node), `${size} px`]);
  }

  // Words stand out from what is behind them (WCAG AA).
  const channel = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const rgb = (colour) => colour.match(/[\d.]+/g).map(Number);
  const luminance = (colour) => rgb(colour).slice(0, 3).map((v) => channel(v / 255))
    .reduce((sum, v, n) => sum + v * [0.2126, 0.7152, 0.0722][n], 0);
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if ((rgb(colour)[3] ?? 1) > 0) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  for (const node of all("h1, h2, p, li, b, a, th, td, code, button, summary, figcaption")) {
    if (!say(node) || node.closest(".plot")) continue;
    const [low, high] = [luminance(getComputedStyle(node).color), luminance(behind(node))].sort((a, b) => a - b);
    if ((high + 0.05) / (low + 0.05) < 4.5) faults.push(["contrast", name(node), getComputedStyle(node).color]);
  }
  return faults.slice(0, 40);
}
