// Plays packed calls with engine.wasm, as the explorer's page does: `node replays.js ENGINE.js ENGINE.wasm < CALLS.json`.
const { readFileSync } = require("node:fs");
const [, , engine, wasm] = process.argv;
const { play } = require(engine);
const { layouts, calls } = JSON.parse(readFileSync(0, "utf-8"));
(async () => {
  const module = new WebAssembly.Module(readFileSync(wasm)), played = [];
  const plain = (record) => Object.fromEntries(Object.entries(record).map(([name, values]) => [name, Array.from(values)]));
  for (const { chain, streams, gpu } of calls) {
    const shares = [];
    const call = { chain: { ...chain, streams: streams.map((text) => Buffer.from(text, "base64")) }, gpu };
    const result = await play(module, layouts, call, (share) => shares.push(share));
    const [kept, hit, miss] = [result.kept, result.hit, result.miss].map(plain);
    const launches = result.launches.map(({ name, begin, end, ...arrays }) => ({ name, begin, end, ...plain({ sm: arrays.sm, starts: arrays.starts, ends: arrays.ends }) }));
    played.push({ rows: result.rows, end: result.end, bin_ps: result.bin_ps, bins: result.bins, kept_bins: result.kept_bins, kept, hit, miss, launches, shares });
  }
  process.stdout.write(JSON.stringify(played));
})();
