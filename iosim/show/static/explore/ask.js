"use strict";
// Who answers a page: the server it comes from, or a Python in a worker beside it. A kind of question and its line in, an
// object out, which has `error` where there is no answer.
const iosimAsk = (() => {
  const { answers } = JSON.parse(document.getElementById("setup").textContent);
  const LONG_MS = 3000;
  let worker = null, asked = 0, begun = 0, told = () => {};
  const waiting = new Map();
  const start = () => {
    worker = new Worker("worker.js");
    worker.onmessage = ({ data: { n, state, text } }) => {
      if (state !== undefined) return told(state);
      waiting.get(n)?.(JSON.parse(text));
      return waiting.delete(n);
    };
    worker.onerror = () => {
      for (const done of waiting.values()) done({ error: "Python did not start here: a server must serve this folder, and the browser be of 2023 or later" });
      waiting.clear();
      worker = null;
    };
  };
  const ofServer = (kind, line) => fetch(`${kind}?${new URLSearchParams([["line", line]])}`).then((response) => response.json())
    .catch(() => ({ error: "iosim explore gave no answer: is it still running?" }));
  const ofPython = (kind, line) => new Promise((done) => {
    if (!worker) start();
    if (!waiting.size) begun = performance.now();
    waiting.set(asked += 1, done);
    worker.postMessage({ n: asked, kind, line });
  });
  // What nobody waits for any more is ended where it has taken long: to start Python again takes less.
  const stop = () => {
    if (!waiting.size || performance.now() - begun < LONG_MS) return;
    worker.terminate();
    for (const done of waiting.values()) done({ error: "something else was asked for" });
    waiting.clear();
    worker = null;
  };
  return Object.assign(answers === "server" ? ofServer : ofPython, { stop, onState: (tell) => { told = tell; }, starts: () => { if (answers === "python" && !worker) start(); } });
})();
