"use strict";
// A Python with iosim in it, which answers one question after another. Its files lie beside this one.
importScripts("python/pyodide.js");
const state = (text) => postMessage({ state: text });
const ready = (async () => {
  state("starting Python");
  const python = await loadPyodide({ indexURL: "python/", env: { HOME: "/home/pyodide", IOSIM_CACHE: "off" } });
  state("loading NumPy");
  await python.loadPackage("numpy", { messageCallback() {} });
  state("loading iosim");
  python.unpackArchive(await (await fetch("iosim.zip")).arrayBuffer(), "zip", { extractDir: python.runPython("import sysconfig; sysconfig.get_path('purelib')") });
  const [{ answered }, { parsed }] = ["explore", "cli"].map((name) => python.pyimport(`iosim.commands.${name}`));
  state("");
  return (kind, line) => answered(kind, line, parsed);
})();
onmessage = async ({ data: { n, kind, line } }) => {
  let text;
  try { text = (await ready)(kind, line); }
  catch (error) { text = JSON.stringify({ error: `Python in this page failed: ${String(error.message || error).trim().split("\n").at(-1)}` }); }
  postMessage({ n, text });
};
