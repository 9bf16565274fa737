"use strict";
// Plays a packed call (iosim/readers/replay/packed.py) with engine.wasm: in a worker of the page, or in Node.
const iosimEngine = (() => {
  const BINS = 1024;
  const inflated = async (bytes) => {
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  };

  // A chain with its arrays, from their differences, which lie plane by plane in its streams.
  const unpacked = async (packed) => {
    const streams = await Promise.all(packed.streams.map(inflated)), chain = { ...packed };
    chain.arrays = chain.arrays.map(([stream, first, length]) => {
      const planes = streams[stream], n = length - 1, out = new Int32Array(length);
      if (length) out[0] = first;
      for (let i = 0; i < n; i++) {
        const step = planes[i] | (planes[n + i] << 8) | (planes[2 * n + i] << 16) | (planes[3 * n + i] << 24);
        out[i + 1] = out[i] + step;
      }
      return out;
    });
    return chain;
  };

  // The memory of one replay: it is never freed, but given up with its instance.
  class Memory {
    constructor(module, layouts, tick) {
      this.layouts = layouts;
      this.engine = new WebAssembly.Instance(module, { env: { iosim_tick: tick } }).exports;
      this.engine._initialize();
    }
    room(bytes, fill = 0) {
      const at = this.engine.malloc(bytes + 8) >>> 0;
      if (!at) throw new Error("the replay does not fit in this browser's memory");
      new Uint8Array(this.engine.memory.buffer, at, bytes).fill(fill);
      return at;
    }
    put(values, kind) {
      const at = this.room(values.length * kind.BYTES_PER_ELEMENT);
      new kind(this.engine.memory.buffer, at, values.length).set(values);
      return at;
    }
    get(at, length, kind) {
      return new kind(this.engine.memory.buffer, at, length);
    }
    numbers(at, length) {
      return Float64Array.from(this.get(at, length, BigInt64Array), Number);
    }
    structure(name, values, at = this.room(this.layouts[name].bytes)) {
      const view = new DataView(this.engine.memory.buffer);
      for (const [field, value] of Object.entries(values)) {
        const [offset, bytes] = this.layouts[name].fields[field];
        if (bytes === 8) view.setBigInt64(at + offset, BigInt(value), true);
        else view.setInt32(at + offset, value, true);
      }
      return at;
    }
    field(name, at, field) {
      const [offset, bytes, length] = this.layouts[name].fields[field];
      if (bytes === 8) return [...this.numbers(at + offset, length)];
      return [...this.get(at + offset, length, Int32Array)];
    }
  }

  // An empty L2 with the chain's objects, and behind them others' dirty lines.
  const emptyL2 = (memory, chain, gpu) => {
    const own = chain.arrays[chain.size], n = own.length + gpu.foreign, { engine, layouts } = memory;
    const size = new Int32Array(n).fill(gpu.foreign_bytes), tensor = new Uint8Array(n).fill(chain.tensors.length);
    size.set(own);
    tensor.set(chain.arrays[chain.owner]);
    const { line_bytes: line, page, stride, twins, placements } = gpu.sampler;
    const lines = size.reduce((sum, bytes) => sum + Math.ceil(bytes / line), 0);
    const most = Math.ceil(lines / page) * placements * twins * Math.ceil(page / twins / stride);
    const [first, owner, place] = [n + 1, most, most].map((length) => memory.room(4 * length));
    const sampler = memory.structure("Sampler", gpu.sampler);
    const sizes = memory.put(size, Int32Array);
    const taken = Number(engine.iosim_sample(sampler, sizes, BigInt(n), BigInt(most), first, owner, place));
    if (taken < 0) throw new Error("the lines of the L2 do not fit in this browser's memory");
    const { bytes, fields } = layouts.Object, object = memory.room(n * bytes);
    const view = new DataView(engine.memory.buffer), firsts = memory.get(first, n + 1, Int32Array);
    for (let i = 0, at = object; i < n; i++, at += bytes) {
      view.setInt32(at + fields.size[0], size[i], true);
      view.setInt32(at + fields.first[0], firsts[i], true);
      view.setInt32(at + fields.samples[0], firsts[i + 1] - firsts[i], true);
      view.setUint8(at + fields.tensor[0], tensor[i]);
    }
    const { partitions, sets, ways } = gpu.config;
    const tags = memory.room(4 * partitions * sets * Math.ceil(ways / 4) * 4, 255), lost = memory.room(8 * sets);
    const config = memory.structure("L2Config", gpu.config);
    const state = memory.structure("L2State", { objects: n, stands: 1, whole: 1, object, object_of: owner, place, tags, lost });
    engine.iosim_place(state, config, BigInt(own.length), BigInt(gpu.foreign), 1);
    return { config, state, object };
  };

  const give = (memory, l2, owned) => {
    const { bytes, fields } = memory.layouts.Object, view = new DataView(memory.engine.memory.buffer);
    for (const [first, count, tensor] of owned)
      for (let i = first; i < first + count; i++) view.setUint8(l2.object + i * bytes + fields.tensor[0], tensor);
  };

  const launchPlan = (memory, chain, low, of) => {
    const placed = new Map();
    const array = (number, kind = Int32Array) => {
      if (number === null || number === undefined) return 0;
      if (!placed.has(number)) placed.set(number, memory.put(chain.arrays[number], kind));
      return placed.get(number);
    };
    const sides = of.sides.flatMap((count, side) => Array(count).fill(side % 2));
    const plan = memory.structure("LaunchPlan", {
      ...of.plan, first: array(low.first), count: array(low.count), down: memory.put(chain.arrays[low.down], Uint8Array),
      side: memory.put(sides, Uint8Array), share_ppm: memory.put(of.shares, Int32Array),
      slow_ppm: memory.put(of.slow.map(BigInt), BigInt64Array),
      ...(low.indices === null ? {} : { list: array(low.indices), listed: chain.arrays[low.indices].length }),
    });
    const { fields } = memory.layouts.LaunchPlan;
    for (const [place, name] of [["prologue", "pro"], ["loop", "loop"], ["epilogue", "epi"]])
      low[place].forEach(({ tensor, base, skips, block, ...scalars }, n) => {
        const skipped = skips === undefined ? 0 : chain.arrays[skips].length;
        const values = { ...scalars, base: array(base), skips: array(skips), block: array(block), skipped };
        memory.structure("Template", values, plan + fields[name][0] + n * memory.layouts.Template.bytes);
      });
    return plan;
  };

  // Picoseconds that the launches take at most, about: each loads all it asks for from HBM, or waits for every step.
  const longest = (chain, { config, launches }) =>
    chain.launches.reduce((sum, low, n) => {
      const { plan, slow, asked, ready_ps } = launches[n], count = chain.arrays[low.count];
      const waits = config.l2_latency_ps + (config.far_latency_ps || 0) + config.dram_latency_ps;
      const each = Math.max((1.2 * (plan.step_ps || 0) * (slow.at(-1) || 1e6)) / 1e6, waits) + (plan.waits || 0) * config.dram_latency_ps;
      const rest = (plan.start_ps || 0) + (plan.open_ps || 0) + 3 * waits, turns = count.length / plan.slots + low.group;
      const steps = count.reduce((a, b) => a + b, 0) / plan.slots + low.group * count.reduce((a, b) => Math.max(a, b), 0);
      const moved = (Object.values(asked).reduce((a, b) => a + b, 0) * config.dram_ps_per_kib) / 1024;
      return sum + ready_ps + turns * rest + Math.max(steps * each, 1.2 * moved);
    }, 0);

  // HBM rows of a launch, no more than is possible: see `_possible` in replay.py. `room`: bytes that may yet be written.
  const rowsOf = (name, of, code, { tensors, own }, before, after, room) => {
    const moved = (way, t) => Math.round((after[way][t] - before[way][t]) * (own[t] ?? 1));
    const written = tensors.reduce((sum, _, t) => sum + moved(1, t), 0);
    const most = room + of.stored, share = Math.min(written, most);
    const part = (bytes) => Number((BigInt(bytes) * BigInt(share)) / BigInt(written));
    const rows = tensors.map((tensor, t) => [name, tensor, "read", Math.min(moved(0, t), of.asked[tensor] || 0)]);
    if (written) tensors.forEach((tensor, t) => rows.push([name, tensor, "write", part(moved(1, t))]));
    rows.push([name, "foreign", "write", moved(1, tensors.length)], [name, "code", "read", code]);
    return { rows: rows.filter((row) => row[3]), room: most - share };
  };

  const play = async (module, layouts, { chain: squeezed, gpu }, told = () => {}) => {
    const chain = await unpacked(squeezed);
    const tiles = chain.launches.map((low) => chain.arrays[low.first].length);
    const all = tiles.reduce((a, b) => a + b, 0);
    let past = 0;
    const memory = new Memory(module, layouts, (started) => told((past + Math.min(started, tiles[0])) / all));
    const l2 = emptyL2(memory, chain, gpu), { engine } = memory;
    const bin_ps = Math.max(1, Math.ceil(longest(chain, gpu) / BINS));
    const [bin_hit, bin_miss, bin_kept] = [0, 1, 2].map(() => memory.room(8 * 64 * BINS));
    const counts = () => ["hbm_read", "hbm_write"].map((name) => memory.field("L2State", l2.state, name));
    const rows = [], launches = [];
    let end = 0, room = 0, kept = 0;
    chain.launches.forEach((low, n) => {
      const of = gpu.launches[n], before = counts();
      give(memory, l2, low.owned);
      const plan = launchPlan(memory, chain, low, of);
      const [sm, start, stop] = [4, 8, 8].map((size) => memory.room(size * tiles[n]));
      const trace = memory.structure("Trace", {
        bin_ps, bins: BINS, ctas: tiles[n], bin_hit, bin_miss, bin_kept, kept, cta_sm: sm, cta_start: start, cta_end: stop,
      });
      const begin = end;
      end = Number(engine.iosim_replay(l2.state, l2.config, plan, BigInt(begin + of.ready_ps), trace, 0, 0, 0));
      if (end < 0) throw new Error(end === -1 ? "the replay does not fit in this browser's memory" : "the engine refused the launch");
      [kept] = memory.field("Trace", trace, "kept");
      const made = rowsOf(low.name, of, gpu.code, chain, before, counts(), room);
      rows.push(...made.rows);
      room = made.room;
      past += tiles[n];
      const times = { sm: memory.get(sm, tiles[n], Int32Array).slice(), starts: memory.numbers(start, tiles[n]), ends: memory.numbers(stop, tiles[n]) };
      const of_tile = Object.fromEntries(["head", "block", "first", "count", "down"].map((name) => [name, chain.arrays[low[name]]]));
      launches.push({ name: low.name, begin, end, slots: of.plan.slots, listed: low.indices !== null, ...of_tile, ...times });
    });
    const bins = Math.min(BINS, Math.floor(end / bin_ps) + 1), names = [...chain.tensors, "others"];
    const byTensor = (at) => {
      const values = memory.numbers(at, 64 * bins);
      return Object.fromEntries(names.map((name, t) => [name, Float64Array.from({ length: bins }, (_, b) => values[64 * b + t])]));
    };
    const l2_bytes = gpu.config.partitions * gpu.config.sets * gpu.config.ways * gpu.config.sample_bytes;
    return { rows, end, bin_ps, bins, kept_bins: kept, kept: byTensor(bin_kept), miss: byTensor(bin_miss), hit: byTensor(bin_hit), l2_bytes, launches };
  };
  return { inflated, unpacked, play };
})();
if (typeof module !== "undefined") module.exports = iosimEngine;
