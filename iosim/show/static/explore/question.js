"use strict";
// The whole question: a model on GPUs side by side. What is chosen stands in the link; each part of the answer is asked
// for by itself and shown as it arrives.
const iosimQuestion = (() => {
  const $ = (id) => document.getElementById(id);
  const setup = JSON.parse($("setup").textContent);
  const { bytes, seconds, digits, colour } = iosimDraw;
  const FIRST = { model: "llama-3-8b", dtype: "", weights: "", cache: "", context: "4096", batch: "1", kernel: "default", price: "", gpus: ["h100-sxm", "a100-sxm-80gb"], config: null };
  let chosen = { ...FIRST }, asked = 0, told = "", kept = new Map();
  const answers = new Map(); // GPU -> part -> answer

  // ---- the link that holds the question ----
  const written = () => {
    const { config, gpus, ...rest } = chosen, held = Object.entries(rest).filter(([, value]) => value !== "");
    return new URLSearchParams([...held, ["gpu", gpus.join(",")], ...(config ? [["config", JSON.stringify(config)]] : [])]).toString();
  };
  const read = () => {
    const hash = new URLSearchParams(location.hash.slice(1)), known = setup.gpus.map((gpu) => gpu.name);
    chosen = { ...FIRST };
    for (const name of ["model", "dtype", "weights", "cache", "context", "batch", "kernel", "price"]) if (hash.has(name)) chosen[name] = hash.get(name);
    const gpus = (hash.get("gpu") || "").split(",").filter((name) => known.includes(name));
    if (gpus.length) chosen.gpus = [...new Set(gpus)];
    try { chosen.config = hash.has("config") ? JSON.parse(hash.get("config")) : null; } catch { chosen.config = null; }
  };

  // ---- asking ----
  const question = (gpu, part) => {
    const { gpus, price, config, ...rest } = chosen, dollars = Number(price);
    return JSON.stringify({ ...rest, gpu, part, ...(config ? { config } : {}), ...(dollars > 0 ? { price: dollars } : {}) });
  };
  const ask = async () => {
    const mine = (asked += 1);
    iosimAsk.stop();
    answers.clear();
    told = "";
    for (const gpu of chosen.gpus) answers.set(gpu, {});
    document.body.classList.add("old");
    const tasks = setup.parts.flatMap((part) => chosen.gpus.map((gpu) => [gpu, part]));
    for (const [n, [gpu, part]] of tasks.entries()) {
      const line = question(gpu, part);
      if (!kept.has(line)) {
        tell(n / tasks.length, `${part === "memory" ? "what fits" : part === "prompt" ? "first token" : part} on ${gpu}`);
        const answer = await iosimAsk("question", line);
        if (mine !== asked) return;
        kept.set(line, answer);
      }
      answers.get(gpu)[part] = kept.get(line);
      show();
    }
    tell(1, "");
    show();
    document.body.classList.remove("old");
    performance.mark("answered");
  };
  const tell = (share, words) => {
    told = words;
    $("progress").hidden = share >= 1;
    $("progress").value = share;
    $("told").textContent = words ? `working out ${words}` : "";
  };
  iosimAsk.onState((state) => { $("told").textContent = state || (told && `working out ${told}`); });

  // ---- showing ----
  const node = (tag, textContent, className = "") => Object.assign(document.createElement(tag), { textContent, className });
  const row = (cells, className = "", tag = "td") => {
    const made = Object.assign(document.createElement("tr"), { className });
    made.append(...cells.map((cell) => (cell instanceof Node ? cell : node(tag, cell))));
    return made;
  };
  const fill = (id, head, rows) => {
    const [top, body] = ["thead", "tbody"].map((tag) => document.createElement(tag));
    top.append(row(head, "", "th"));
    body.append(...rows);
    $(id).replaceChildren(top, body);
  };
  const count = (n) => Number(n).toLocaleString("en");
  const perS = (n) => (n >= 1e4 ? count(Math.round(n)) : digits(n, 4));
  const percent = (share) => `${Math.round(100 * share)} %`;
  const dollars = (n) => `$${digits(n, 3)}`;
  const UNITS = { hbm: "HBM", tensor: "matrix units" };
  const unitShares = (shares) => Object.entries(shares).sort((a, b) => b[1] - a[1]).map(([unit, share]) => `${UNITS[unit]} ${percent(share)}`).join(", ");
  const bound = ({ by, shares }) => (by ? `${UNITS[by]}, ${percent(shares[by])} of it` : `no unit alone: ${unitShares(shares)}`);
  const BACKED = { measured: "Checked against counters and times of this GPU.", "public counters": "Backed by public counters.", "public times": "Backed by public times.", nothing: "Backed by nothing measured on this GPU." };
  const tile = (plan) => `${plan.tile}${plan.splits > 1 ? `, ${plan.splits} splits` : ""}`;
  const planOf = (a, phase) => a?.plans?.find((plan) => plan.phase === phase);
  const ROWS = [
    ["Memory"],
    ["fits", "memory", (a) => (a.fits === null ? "not known" : a.fits ? "yes" : "no")],
    ["activations", "memory", (a) => a.dtype],
    ["weights", "memory", (a) => (a.weight_bytes === null ? "not known" : bytes(a.weight_bytes))],
    ["cache", "memory", (a) => bytes(a.cache_bytes)],
    ["memory of the GPU", "memory", (a) => (a.memory_bytes === null ? "not known" : bytes(a.memory_bytes))],
    ["longest context that fits", "memory", (a) => (a.longest_context === null ? "not known" : `${count(a.longest_context)} tokens`)],
    ["A step of decoding"],
    ["tokens per second", "step", (a) => perS(a.tokens_per_s)],
    ["time", "step", (a) => seconds(a.time_s)],
    ["bound by", "step", (a) => bound(a.bound)],
    ["read from HBM", "step", (a) => bytes(a.hbm_read)],
    ["written to HBM", "step", (a) => bytes(a.hbm_write)],
    ["SM<->L2", "step", (a) => bytes(a.l2_bytes)],
    ["attention alone", "memory", (a) => `${seconds(a.attention.step_s)}, ${a.attention.bound_by}`],
    ["cost of a million tokens", "step", (a) => (a.dollars_per_million === null ? "" : dollars(a.dollars_per_million))],
    ["The first token"],
    ["after", "prompt", (a) => seconds(a.time_s)],
    ["bound by", "prompt", (a) => bound(a.bound)],
    ["read from HBM", "prompt", (a) => bytes(a.hbm_read)],
    ["written to HBM", "prompt", (a) => bytes(a.hbm_write)],
    ["SM<->L2", "prompt", (a) => bytes(a.l2_bytes)],
    ["cost of a million tokens of prompt", "prompt", (a) => (a.dollars_per_million === null ? "" : dollars(a.dollars_per_million))],
    ["Kernel"],
    ["of the prompt", "kernels", (a) => planOf(a, "prefill")?.kernel],
    ["tile", "kernels", (a) => tile(planOf(a, "prefill"))],
    ["order, keys", "kernels", (a) => `${planOf(a, "prefill").order}, ${planOf(a, "prefill").direction}`],
    ["of a step", "kernels", (a) => planOf(a, "decode")?.kernel],
    ["tile", "kernels", (a) => tile(planOf(a, "decode"))],
    ["order, keys", "kernels", (a) => `${planOf(a, "decode").order}, ${planOf(a, "decode").direction}`],
  ];
  const cell = (gpu, part, text) => {
    const answer = answers.get(gpu)?.[part];
    if (!answer) return node("td", "…", "waits");
    if (answer.error || (part === "kernels" && !answer.plans.length)) return Object.assign(node("td", "cannot run", "wrong"), { title: answer.error || answer.why });
    return node("td", text(answer) ?? "");
  };
  const gpuOf = () => (chosen.gpus.includes($("of").value) ? $("of").value : chosen.gpus[0]);
  const firstError = () => {
    for (const gpu of chosen.gpus) for (const part of setup.parts) if (answers.get(gpu)?.[part]?.error) return `${gpu}: ${answers.get(gpu)[part].error}`;
    return "";
  };
  const showVerdict = () => {
    const [gpu] = chosen.gpus, a = answers.get(gpu) || {}, { memory, step, prompt } = a, model = modelName(), said = [];
    if (memory?.error) said.push("cannot run");
    else if (memory) said.push(memory.fits === null ? "memory not known" : memory.fits ? "fits" : "does not fit");
    if (step && !step.error) said.push(`${perS(step.tokens_per_s)} tokens per second`);
    if (prompt && !prompt.error) said.push(`the first after ${seconds(prompt.time_s)}`);
    $("verdict").textContent = said.length ? `${model} on ${gpu}: ${said.join(", ")}.` : `${model} on ${gpu}`;
    document.title = `${model} on ${gpu}: iosim explore`;
    const form = [chosen.weights ? `Weights in ${chosen.weights}` : "Weights as the config says", chosen.cache ? `cache in ${chosen.cache}` : "cache in the activations' type"];
    const bounds = step?.bound?.by ? ` A step is bound by ${UNITS[step.bound.by]}.` : "";
    const wrong = firstError();
    $("subject").textContent = `${form.join(", ")}; context ${chosen.context}, batch ${chosen.batch}.${bounds}${memory && !memory.error ? ` ${BACKED[memory.backed_by]}` : ""}`;
    $("state").classList.toggle("wrong", Boolean(wrong) && !told);
    if (wrong && !told) $("told").textContent = wrong;
  };
  const showNumbers = () => fill("numbers", ["", ...chosen.gpus], ROWS.map(([title, part, text]) =>
    (part ? row([title, ...chosen.gpus.map((gpu) => cell(gpu, part, text))]) : row([title, ...chosen.gpus.map(() => "")], "group"))));
  const showFigures = () => {
    const some = (part) => chosen.gpus.filter((gpu) => answers.get(gpu)?.[part] && !answers.get(gpu)[part].error);
    const bars = (part, key) => some(part).map((gpu) => ({ who: gpu, bytes: key(answers.get(gpu)[part]), colour: colour(chosen.gpus.indexOf(gpu)) }));
    const groups = [
      ["A step: HBM", "step", (a) => a.hbm_read + a.hbm_write], ["A step: SM<->L2", "step", (a) => a.l2_bytes],
      ["The prompt: HBM", "prompt", (a) => a.hbm_read + a.hbm_write], ["The prompt: SM<->L2", "prompt", (a) => a.l2_bytes],
    ].map(([name, part, key]) => ({ name, rows: bars(part, key) })).filter(({ rows }) => rows.length);
    if (groups.length) iosimDraw.levels($("levels"), groups); else $("levels").replaceChildren();
    const steps = some("step").map((gpu) => ({ who: gpu, parts: answers.get(gpu).step.parts, total: answers.get(gpu).step.time_s }));
    if (steps.length) iosimDraw.shares($("shares"), steps); else $("shares").replaceChildren();
  };
  const showKernels = () => {
    const gpu = gpuOf(), a = answers.get(gpu)?.kernels;
    $("of").replaceChildren(...chosen.gpus.map((name) => new Option(name, name, false, name === gpu)));
    $("replay").hidden = true;
    if (!a || a.error) { fill("plans", [a?.error || "…"], []); fill("kernels", ["…"], []); return; }
    fill("plans", ["phase", "layers", "kernel", "tile", "order", "keys", "scheduler", "splits"], a.plans.length
      ? a.plans.map((p) => row([p.phase, `${p.layers} ${p.layer}`, p.kernel, p.tile, p.order, p.direction, p.scheduler, String(p.splits)])) : [row([a.why])]);
    const running = a.kernels.filter((k) => k.runs), refused = a.kernels.filter((k) => !k.runs);
    fill("kernels", ["kernel", "what it is", "tile of a step", "runs here", "checked"], [...running, ...refused].map((k) =>
      row([k.name, k.title, k.runs ? tile(k) : "", k.runs ? "yes" : k.why, k.checked], `${k.runs ? "" : "off"} ${a.plans.some((p) => p.kernel === k.name) ? "here" : ""}`)));
    for (const option of $("kernel").options) {
      const found = a.kernels.find((k) => k.name === option.value);
      option.disabled = Boolean(found && !found.runs && option.value !== chosen.kernel);
      option.title = found?.why || "";
    }
    const plan = planOf(a, "prefill"), at = setup.gpus.find((one) => one.name === gpu);
    if (plan && at.replays) {
      $("replay").hidden = false;
      $("replay").href = `attention.html#${new URLSearchParams([["gpu", gpu], ["kernel", plan.kernel], ["mask", "none"], ["more", plan.options]])}`;
    }
  };
  const showChecked = () => {
    fill("checked", ["GPU", "bytes at HBM", "times", "made by"], setup.checked.map((c) =>
      row([c.gpu, c.bytes, c.times, c.by], c.profiles.some((name) => chosen.gpus.includes(name)) ? "here" : "")));
    $("evidence").replaceChildren(...chosen.gpus.map((gpu) => {
      const memory = answers.get(gpu)?.memory, at = setup.gpus.find((one) => one.name === gpu);
      return node("li", `${gpu}: ${BACKED[at.backed_by]}${memory?.evidence ? ` Its profile: ${memory.evidence}.` : ""}`);
    }));
  };
  const showCommands = () => {
    const lines = chosen.gpus.flatMap((gpu) => setup.parts.map((part) => answers.get(gpu)?.[part]?.command).filter(Boolean));
    $("commands").textContent = lines.join("\n");
  };
  const show = () => { showVerdict(); showNumbers(); showFigures(); showKernels(); showChecked(); showCommands(); };

  // ---- controls ----
  const modelName = () => (chosen.config ? chosen.model : setup.models.find(([name]) => name === chosen.model)?.[1] || chosen.model);
  const put = () => {
    const models = setup.models.map(([name, title]) => new Option(title, name));
    if (chosen.config) models.unshift(new Option(chosen.model, chosen.model));
    $("model").replaceChildren(...models);
    for (const name of ["model", "dtype", "weights", "cache", "context", "batch", "kernel", "price"]) $(name).value = chosen[name];
    $("gpus").replaceChildren(...chosen.gpus.map((gpu) => {
      const made = document.createElement("li"), button = node("button", gpu);
      Object.assign(button, { type: "button", title: `leave out ${gpu}`, disabled: chosen.gpus.length === 1 });
      button.addEventListener("click", () => { chosen.gpus = chosen.gpus.filter((one) => one !== gpu); changed(); });
      made.append(button);
      return made;
    }));
    const groups = [["NVIDIA", false], ["AMD", true]].map(([label, amd]) => {
      const group = Object.assign(document.createElement("optgroup"), { label });
      group.append(...setup.gpus.filter((gpu) => gpu.amd === amd && !chosen.gpus.includes(gpu.name)).map((gpu) => new Option(`${gpu.name}, ${gpu.memory_bytes ? bytes(gpu.memory_bytes) : "memory not known"}`, gpu.name)));
      return group;
    });
    $("add").replaceChildren(new Option("choose", ""), ...groups);
  };
  const changed = () => { history.replaceState(null, "", `#${written()}`); put(); return ask(); };
  const options = (id, first, values) => $(id).replaceChildren(new Option(first, ""), ...values.map((value) => new Option(value, value)));
  options("weights", "the config's", setup.weights);
  options("cache", "as activations", setup.caches);
  options("dtype", "the config's", setup.types);
  $("kernel").replaceChildren(...setup.kernels.map((name) => new Option(name === "default" ? "the GPU's own" : name, name)));
  for (const name of ["model", "dtype", "weights", "cache", "context", "batch", "kernel", "price"]) {
    $(name).addEventListener("change", () => {
      chosen[name] = $(name).value.trim();
      if (name === "model") chosen.config = null;
      changed();
    });
  }
  $("add").addEventListener("change", () => { if ($("add").value) { chosen.gpus = [...chosen.gpus, $("add").value]; changed(); } });
  $("of").addEventListener("change", showKernels);
  $("controls").addEventListener("submit", (event) => event.preventDefault());
  const take = async (file) => {
    if (!file) return;
    try {
      chosen.config = JSON.parse(await file.text());
      chosen.model = file.name;
      changed();
    } catch { $("told").textContent = `${file.name} is no JSON`; }
  };
  $("file").addEventListener("change", () => take($("file").files[0]));
  for (const kind of ["dragover", "dragleave", "drop"]) {
    $("controls").addEventListener(kind, (event) => {
      event.preventDefault();
      $("drop").classList.toggle("over", kind === "dragover");
      if (kind === "drop") take(event.dataTransfer.files[0]);
    });
  }
  addEventListener("hashchange", () => { read(); put(); ask(); });
  let width = 0;
  new ResizeObserver(() => { if (innerWidth !== width) { width = innerWidth; showFigures(); } }).observe(document.body);
  $("version").textContent = `iosim ${setup.version}`;
  read();
  put();
  show();
  iosimAsk.starts();
  return { done: ask(), answers: () => Object.fromEntries(answers), take, chosen: () => chosen };
})();
