"use strict";
// The explorer: what is chosen, asked of the grid that the page carries or of the server, replayed in a worker, shown.
const iosimPage = (() => {
  const $ = (id) => document.getElementById(id);
  const setup = JSON.parse($("setup").textContent), { lists } = setup;
  const { bytes, seconds, digits, colour } = iosimDraw;
  const decoded = (id) => Uint8Array.from(atob($(id).textContent.trim()), (c) => c.charCodeAt(0));
  const wasm = decoded("wasm"), isGrid = setup.answers === "grid", grid = isGrid ? decoded("grid") : null;
  let chosen = Object.fromEntries(lists.map((list) => [list.name, list.usual])), more = "", shown = null, asked = 0;

  // ---- the state, and the link that holds it ----
  const kernelName = () => lists.find((list) => list.name === "kernel").choices[chosen.kernel][0];
  const applies = (list) => !list.only || list.only === kernelName();
  const words = () => {
    const own = more.split(/\s+(?=--)/).filter(Boolean), names = own.map((word) => word.split(/[\s=]/)[0]);
    const theirs = lists.filter(applies).flatMap((list) => list.choices[chosen[list.name]][1].split(/ (?=--)/)).filter(Boolean);
    return [...theirs.filter((word) => !names.includes(word.split(" ")[0])), ...own];
  };
  const command = () => ["iosim predict", ...words(), ...(isGrid ? ["--method replay"] : [])].join(" ");
  const written = () => new URLSearchParams([...lists.filter(applies).map((list) => [list.name, list.choices[chosen[list.name]][0]]), ...(more ? [["more", more]] : [])]);
  const read = () => {
    const hash = new URLSearchParams(location.hash.slice(1));
    for (const list of lists) {
      const at = list.choices.findIndex(([text]) => text === hash.get(list.name));
      if (at >= 0) chosen[list.name] = at;
    }
    more = isGrid ? "" : hash.get("more") || "";
  };

  // ---- asking: a record, and the streams of its launches ----
  const offsets = setup.grid ? setup.grid.lengths.reduce((all, length) => [...all.slice(-1e9), all.at(-1) + length], [0]) : [];
  const part = (n) => grid.subarray(offsets[n], offsets[n + 1]);
  const chunks = new Map();
  const chunk = (name) => {
    if (!chunks.has(name)) chunks.set(name, iosimEngine.inflated(part(setup.grid.chunks[name])).then((plain) => JSON.parse(new TextDecoder().decode(plain))));
    return chunks.get(name);
  };
  const ofGrid = async () => {
    const [gpu, kernel] = ["gpu", "kernel"].map((name) => lists.find((list) => list.name === name).choices[chosen[name]][0]);
    const key = lists.slice(2).map((list) => (applies(list) ? chosen[list.name] : 0)), plain = [...key.slice(0, 4), 0, 0].join(".");
    const record = (await chunk(`${gpu} ${kernel}`))[key.join(".")], naive = (await chunk(`${gpu} naive`))[plain];
    if (typeof record === "string") throw new Error(record);
    return { ...record, naive, streams: record.streams.map(part) };
  };
  const ofPython = async () => {
    const answer = await iosimAsk("answer", words().join(" "));
    if (answer.error) throw new Error(answer.error);
    const { record } = answer;
    return { ...record, streams: record.streams.map((text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0))), prediction: answer.predictions[0] };
  };

  // ---- replaying: in a worker, which is ended where something else is asked for meanwhile ----
  const source = `${$("engine").textContent}
    onmessage = async ({ data: { wasm, layouts, call } }) => {
      let last = 0;
      const told = (share) => { if (Date.now() - last > 80) { last = Date.now(); postMessage({ share }); } };
      try { postMessage({ result: await iosimEngine.play(await WebAssembly.compile(wasm), layouts, call, told) }); }
      catch (error) { postMessage({ error: String(error.message || error) }); }
    };`;
  const address = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  let worker = null, busy = null;
  const stop = () => {
    if (!busy) return;
    worker.terminate();
    busy(new Error("something else was asked for"));
    worker = busy = null;
  };
  const replay = (call, told = () => {}) => new Promise((done, failed) => {
    stop();
    worker ||= new Worker(address);
    busy = failed;
    worker.onmessage = ({ data }) => {
      if (data.share !== undefined) return told(data.share);
      busy = null;
      return data.error ? failed(new Error(data.error)) : done(data.result);
    };
    worker.onerror = (event) => { busy = null; failed(new Error(event.message)); };
    worker.postMessage({ wasm, layouts: setup.layouts, call });
  });

  // ---- what follows from the bytes ----
  const sum = (rows) => rows.reduce((total, row) => total + row.at(-1), 0);
  const of = (rows, way) => sum(rows.filter((row) => row[2] === way));
  const named = (names) => (names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`);
  const timeOf = ({ prediction, times: launches }, hbm) => {
    if (prediction) return prediction.time_s;
    return launches.reduce((total, { launch, start, norm, hbm: [read_s, write_s, both_s], computing }) => {
      const mine = hbm.filter((row) => row[0] === launch), [read, written] = [of(mine, "read"), of(mine, "write")];
      const beside = read * read_s + written * write_s + Math.min(read, written) * both_s;
      const n = computing.findLastIndex(([bytes]) => bytes <= read), [low, high] = [computing[n], computing[n + 1]];
      const own = high ? low[1] + ((high[1] - low[1]) * (read - low[0])) / (high[0] - low[0]) : low[1];
      return total + start + Math.max(own, beside) * (1 + (Math.min(own, beside) / Math.max(own, beside)) ** norm) ** (1 / norm);
    }, 0);
  };
  const times = (n) => (n >= 1000 ? Math.round(n).toLocaleString("en") : digits(n, 3));
  const regime = ({ all, loaded, in_step, outgrows, limits: [, , once, missing, nearly] }, got) => {
    if (loaded <= once * all || got <= once * all) return "fits";
    if (got > missing * loaded) return "thrashing";
    return outgrows && in_step !== null && got <= nearly * in_step ? "wave-bound" : "drift";
  };
  // As answer.py says it: the tensors that are read again, how often, and why.
  const whyOf = ({ why, why_text, compulsory, l2_bytes }, hbm) => {
    if (why_text !== undefined) return why_text;
    const reads = hbm.filter((row) => row[2] === "read"), { limits } = why, kinds = {};
    if (sum(reads) <= limits[0] * Math.max(1, compulsory[0])) return why.once;
    const read = (name) => sum(reads.filter((row) => row[1] === name)), above = (name) => read(name) - (why.inputs[name] || 0);
    for (const name of [...new Set(reads.map((row) => row[1]))].sort((a, b) => above(b) - above(a))) (kinds[why.roles[name] || name] ||= []).push(name);
    const total = (names, each) => names.reduce((all, name) => all + each(name), 0);
    const [kind, all] = Object.entries(kinds).reduce((a, b) => (total(b[1], above) > total(a[1], above) ? b : a));
    const names = all.filter((name) => above(name) >= limits[1] * above(all[0])), many = names.length > 1, together = bytes(total(names, read));
    const told = () => {
      if (kind === "input") {
        const again = `${named(names)} ${many ? "are" : "is"} read ${times(total(names, read) / total(names, (name) => why.inputs[name]))} times over`;
        const got = total(why.tensors, read), users = why.users[names[0]];
        if (names.every((name) => why.looped.includes(name))) return again + (why.clauses[regime(why, got)] || "");
        return users > 1 ? `${again}, by ${users} launches` : again;
      }
      if (kind === "temp") {
        const sizes = names.map((name) => why.temps[name]), most = Math.max(...sizes), s = many ? "" : "s";
        const beside = most > l2_bytes ? ` and exceed${s} the ${bytes(l2_bytes)} L2` : "";
        return `${named(names)}, ${new Set(sizes).size > 1 ? "up to " : ""}${bytes(most)}${many ? " each" : ""}, live${s} between launches${beside}: ${together} are read back`;
      }
      if (kind === "output") return `${named(names)} ${many ? "are" : "is"} added up in memory: ${together} are read back`;
      return kind === "spill" ? `${together} of spilled registers are read back` : `${together} are read beside the tensors (${named(names)})`;
    };
    return told() + why.spills;
  };
  const ofPrediction = (p) => p.traffic.filter((row) => row.level === "hbm").map((row) => [row.launch, row.tensor, row.direction, row.bytes]);

  // ---- showing ----
  const view = (record, result) => {
    const hbm = record.prediction ? ofPrediction(record.prediction) : result.rows;
    const moved = { read: of(hbm, "read"), write: of(hbm, "write") };
    const known = record.prediction ? hbm.length > 0 : true;
    return { record, result, hbm, moved, known, time: timeOf(record, hbm), why: whyOf(record, hbm) };
  };
  const level = (record, name) => record.traffic.filter((row) => row[3] === name);
  const drawLevels = ({ record, moved }) => {
    const both = (rows) => [of(rows, "read"), of(rows, "write")], { naive } = record;
    const own = colour(0), theirs = colour(1), least = "var(--shade)";
    const rows = (mine, others, compulsory) => ["read", "written"].flatMap((way, n) => [
      ...(compulsory ? [{ who: `least ${way}`, bytes: compulsory[n], colour: least }] : []),
      { who: `${record.kernel} ${way}`, bytes: mine[n], colour: own }, ...(others ? [{ who: `naive ${way}`, bytes: others[n], colour: theirs }] : []),
    ]);
    const smem = level(record, "smem");
    iosimDraw.levels($("levels"), [
      { name: "HBM", rows: rows([moved.read, moved.write], naive?.hbm, record.compulsory) },
      { name: "L2 to and from SMs", rows: rows(both(level(record, "l2")), naive?.l2) },
      ...(smem.length ? [{ name: "Shared memory", rows: rows(both(smem)) }] : []),
    ]);
  };
  const drawMoment = () => {
    const result = shown?.result, moment = $("moment").value / 1000;
    if (!result) { for (const id of ["held", "map"]) $(id).replaceChildren(); $("at").textContent = ""; return; }
    const ps = moment * result.end, step = Math.max(1, Math.ceil(result.kept_bins / 240)), series = [];
    Object.entries(result.kept).forEach(([name, values], n) => {
      const some = values.filter((_, b) => b % step === 0 && b < result.kept_bins);
      if (some.some(Boolean)) series.push({ name, colour: colour(n), values: some });
    });
    iosimDraw.held($("held"), { series, span: result.end / 1e12, most: result.l2_bytes * 1.08, mark: result.l2_bytes, moment });
    const one = result.launches.find(({ name }) => name === shown.record.drawn) || result.launches[0];
    $("at").textContent = seconds(ps / 1e12);
    const axes = shown.record.loops[one.name];
    if (!axes?.length || one.listed) return $("map").replaceChildren(Object.assign(document.createElement("p"), { className: "fallback", textContent: `${one.name} has no tiles of two axes to draw.` }));
    const heads = new Map(); // that of which most CTAs run is drawn
    one.head.forEach((head, tile) => { if (one.starts[tile] <= ps && ps < one.ends[tile] && one.count[tile]) heads.set(head, (heads.get(head) || 0) + 1); });
    const head = [...heads].reduce((a, b) => (b[1] > a[1] ? b : a), [one.head[ps < one.begin + 1 ? 0 : one.head.length - 1], 0])[0];
    const mine = [...one.head.keys()].filter((tile) => one.head[tile] === head);
    $("head").textContent = `Tiles of head ${head + 1} of ${one.head.reduce((a, b) => Math.max(a, b), 0) + 1}`;
    const starts = mine.map((tile) => one.starts[tile]), from = Math.min(...starts), span = Math.max(...starts) - from || 1;
    const now = mine.map((tile) => {
      if (ps < one.starts[tile] || ps >= one.ends[tile] || !one.count[tile]) return -1;
      const at = Math.min(one.count[tile] - 1, Math.floor(((ps - one.starts[tile]) / (one.ends[tile] - one.starts[tile])) * one.count[tile]));
      return one.first[tile] + (one.down[tile] ? one.count[tile] - 1 - at : at);
    });
    const [, , blocks, columns] = axes; // where keys are split, a block of queries has a tile for each split
    return iosimDraw.map($("map"), { head: head + 1, axes, blocks, columns, now,
      rows: mine.map((tile) => [one.block[tile] % blocks, one.first[tile], one.count[tile]]),
      shares: starts.map((start) => (start - from) / span),
    });
  };
  const drawRoof = ({ record, moved, time }) => {
    const { naive, flops, peaks, compulsory } = record, all = compulsory[0] + compulsory[1], speed = flops / time;
    if (!peaks[0] || !peaks[1]) return $("roof").replaceChildren();
    const points = [{ name: `${record.kernel}: ${iosimDraw.scaled(speed, "FLOP/s")}`, x: flops / Math.max(1, moved.read + moved.write), y: speed, colour: colour(0) }];
    if (naive) points.push({ name: "naive", x: flops / (naive.hbm[0] + naive.hbm[1]), y: flops / naive.time, colour: colour(1) });
    points.push({ name: "least bytes", x: flops / all, y: Math.min(peaks[0], (flops / all) * peaks[1]), colour: "var(--edge)", on_roof: true });
    return iosimDraw.roof($("roof"), { points, peaks });
  };
  const drawTable = ({ record, hbm }) => {
    const rows = new Map();
    const put = (launch, tensor, way, name, n) => {
      const key = `${launch} ${tensor} ${way}`;
      if (!rows.has(key)) rows.set(key, { launch, tensor, way });
      rows.get(key)[name] = n;
    };
    for (const [launch, tensor, way, n] of hbm) put(launch, tensor, way, "hbm", n);
    for (const [launch, tensor, way, name, n] of record.traffic) put(launch, tensor, way, name, n);
    const head = ["launch", "tensor", "", "HBM", "L2 to and from SMs", "shared memory"];
    const cells = (tag, values) => values.map((value, n) => Object.assign(document.createElement(tag), { textContent: value, className: n > 2 ? "n" : "" }));
    const row = (tag, values) => { const made = document.createElement("tr"); made.append(...cells(tag, values)); return made; };
    const [top, body] = ["thead", "tbody"].map((name) => document.createElement(name));
    top.append(row("th", head));
    body.append(...[...rows.values()].map((r) => row("td", [r.launch, r.tensor, r.way, ...["hbm", "l2", "smem"].map((name) => (r[name] === undefined ? "" : r[name].toLocaleString("en")))])));
    $("table").replaceChildren(top, body);
  };
  const draw = () => { if (shown) { drawLevels(shown); drawMoment(); drawRoof(shown); } };
  const show = (made, took) => {
    shown = made;
    const { record, moved, time, known } = made, ratio = moved.read / Math.max(1, record.compulsory[0]);
    const factor = ratio <= 1.005 ? "all of it compulsory" : ratio <= record.why.limits[0] ? "nearly all of it compulsory" : `${times(ratio)}x the least`;
    $("verdict").textContent = known ? `${record.kernel} on ${record.gpu}${record.in_dtype} reads ${moved.read ? bytes(moved.read) : "nothing"} from HBM, ${factor}${record.naive ? `; naive ${bytes(record.naive.hbm[0])}` : ""}.`
      : `${record.kernel} on ${record.gpu}${record.in_dtype} reads ${bytes(record.compulsory[0])} to ${bytes(record.no_l2[0])} from HBM.`;
    document.title = `${record.kernel} on ${record.gpu}: iosim explore`;
    $("subject").textContent = `${record.problem}; ${record.how}. ${seconds(time)}, ${iosimDraw.scaled(record.flops / time, "FLOP/s")}.`;
    $("why").textContent = made.why ? `Why: ${made.why}.` : "";
    tell(made.result ? `Replayed ${record.accesses.toLocaleString("en")} tile accesses here in ${Math.round(took)} ms.`
      : `${record.accesses.toLocaleString("en")} tile accesses are too many to replay here: no pictures of the L2.`);
    document.body.classList.remove("old");
    drawTable(made);
    draw();
  };
  const tell = (words, wrong = false) => { $("told").textContent = words; $("state").classList.toggle("wrong", wrong); $("progress").hidden = true; };
  const progress = (share) => { $("progress").hidden = false; $("progress").value = share; $("told").textContent = `replaying, ${Math.round(100 * share)} %`; };

  const answer = async (told) => {
    const record = await (isGrid ? ofGrid() : ofPython());
    const result = record.replay ? await replay({ chain: { ...record.chain, streams: record.streams }, gpu: record.replay }, told) : null;
    return view(record, result);
  };
  const ask = async () => {
    const mine = ++asked, begun = performance.now();
    stop();
    document.body.classList.add("old");
    $("command").textContent = command();
    for (const list of lists) $(list.name).disabled = !applies(list);
    try {
      const made = await answer(progress);
      if (mine === asked) { show(made, performance.now() - begun); performance.mark("answered"); }
    } catch (error) {
      if (mine !== asked) return;
      $("verdict").textContent = "No answer"; $("subject").textContent = ""; $("why").textContent = "";
      tell(error.message, true);
    }
  };
  const changed = () => { history.replaceState(null, "", `#${written()}`); return ask(); };

  // ---- controls ----
  const control = (list) => {
    const place = document.createElement("div"), label = Object.assign(document.createElement("label"), { htmlFor: list.name, textContent: list.title });
    const slides = list.name === "seq" && list.choices.length > 2;
    const input = document.createElement(slides ? "input" : "select");
    input.id = list.name;
    const value = document.createElement("output");
    if (slides) { Object.assign(input, { type: "range", min: 0, max: list.choices.length - 1, step: 1 }); label.append(value); }
    else input.append(...list.choices.map(([text], n) => new Option(text === "own" ? "its own" : text, n)));
    const put = () => { input.value = chosen[list.name]; value.textContent = list.choices[chosen[list.name]][0]; input.setAttribute("aria-valuetext", value.textContent); };
    input.addEventListener("input", () => { chosen[list.name] = Number(input.value); put(); changed(); });
    place.append(label, input);
    return { place, put };
  };
  const controls = lists.map(control);
  $("controls").append(...controls.map((one) => one.place));
  $("controls").addEventListener("submit", (event) => event.preventDefault());
  if (!isGrid) {
    const place = Object.assign(document.createElement("div"), { className: "wide" });
    place.innerHTML = '<label for="more">More options of iosim predict, in place of those above</label><input type="text" id="more" spellcheck="false" placeholder="--window 1024 --pass bwd --batch 4">';
    $("controls").append(place);
    $("more").addEventListener("change", () => { more = $("more").value.trim(); changed(); });
  }
  const restore = () => { read(); controls.forEach((one) => one.put()); if (!isGrid) $("more").value = more; };
  $("moment").addEventListener("input", drawMoment);
  let running = 0;
  $("run").addEventListener("click", () => {
    const on = $("run").getAttribute("aria-pressed") !== "true";
    $("run").setAttribute("aria-pressed", String(on));
    $("run").textContent = on ? "Stop" : "Play";
    clearInterval(running);
    if (on) running = setInterval(() => { $("moment").value = (Number($("moment").value) + 5) % 1001; drawMoment(); }, 50);
  });
  addEventListener("hashchange", () => { restore(); ask(); });
  let width = 0;
  new ResizeObserver(() => { if (innerWidth !== width) { width = innerWidth; draw(); } }).observe(document.body);
  for (const fold of document.querySelectorAll("details")) fold.addEventListener("toggle", draw);
  addEventListener("beforeprint", () => {
    for (const fold of document.querySelectorAll("details")) fold.open = true;
    document.documentElement.classList.add("paper");
    draw();
  });
  addEventListener("afterprint", () => { document.documentElement.classList.remove("paper"); draw(); });
  $("version").textContent = `iosim ${setup.version}`;
  restore();
  const done = ask();

  // For tests: the answers of other states, as data.
  const answers = async (states) => {
    const out = [];
    for (const state of states) {
      history.replaceState(null, "", `#${state}`);
      restore();
      asked++;
      const made = await answer(() => {}).catch((error) => ({ error: error.message }));
      out.push(made.error ? made : { command: command(), hbm: made.hbm, time: made.time, why: made.why });
    }
    return out;
  };
  return { answers, done };
})();
