/** What the service does now: devices from /v1/capabilities, the rest from /metrics, read every two seconds. */

import { h } from "./dom.js";
import { bytes, duration, parseMetrics, summary } from "./metrics.js";
import { plotView } from "./result_view.js";
import { sentence } from "./api.js";

const SECONDS = 2;
const MOST_READINGS = 90;

export async function mount(container, context) {
  const { api } = context;
  let before = null;
  let timer = 0;
  let isStopped = false;
  const rates = [];
  const figures = h("dl", { class: "figures" });
  const picture = h("div");
  const devices = h("div");
  const trouble = h("p", { class: "error", role: "alert" });

  function tell(now) {
    const told = summary(now, before);
    if (told.requestsPerSecond !== null) rates.push(told.requestsPerSecond);
    if (rates.length > MOST_READINGS) rates.shift();
    const rows = [
      ["Requests/s", told.requestsPerSecond === null ? "–" : told.requestsPerSecond.toPrecision(3)],
      ["Median latency", duration(told.median)],
      ["99th percentile", duration(told.p99)],
      ["Waiting", told.queue],
      ["Running", told.running],
      ["Memory of requests", bytes(told.memory)],
      ["Kept buffers", bytes(told.idle)],
      ["Connections", told.connections],
      ["Graphs", `${told.graphs} (${bytes(told.graphBytes)})`],
      ["Workers", told.workers],
      ["Up", duration(told.uptime)],
    ];
    figures.replaceChildren(...rows.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, String(value)))));
    const xs = rates.map((_, index) => (index - rates.length + 1) * SECONDS);
    if (rates.length > 1)
      picture.replaceChildren(plotView(`Requests per second in the last ${-xs[0]} seconds`, xs, [{ ys: rates, kind: "curve" }], [xs[0], 0], [0, Math.max(1, ...rates) * 1.1], false));
  }

  function tellDevices({ devices: all, device_troubles: troubles, state, version }) {
    devices.replaceChildren(
      h("p", {}, `dmlserve ${version}, ${state}.`),
      h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Devices" }, h("table", {},
        h("thead", {}, h("tr", {}, ["Device", "Kind", "What it is", "Free memory", "Kernels", "State"].map((each) => h("th", { scope: "col" }, each)))),
        h("tbody", {}, all.map((each) => h("tr", {}, h("th", { scope: "row" }, each.name), h("td", {}, each.kind), h("td", {}, each.description),
          h("td", {}, `${bytes(each.memory_available_bytes)} of ${bytes(each.memory_total_bytes)}`), h("td", {}, String(each.kernels_cached)),
          h("td", {}, each.out_of_service ?? "in service")))))),
      ...troubles.map((each) => h("p", { class: "hint" }, each)));
  }

  async function read(count) {
    if (isStopped) return;
    try {
      if (!document.hidden) {
        const families = parseMetrics(await api.text("metrics"));
        const now = { at: Date.now() / 1000, families };
        tell(now);
        before = now;
        if (count % 5 === 0) tellDevices(await api.json("v1/capabilities"));
        trouble.textContent = "";
      }
    } catch (error) {
      trouble.textContent = sentence(error);
      if (error.status === 401) return; // who gives no key is not asked again and again
    }
    if (!isStopped) timer = setTimeout(read, SECONDS * 1000, count + 1);
  }

  container.replaceChildren(h("h2", { tabindex: "-1" }, "Live"),
    h("p", { class: "hint" }, "Requests under /v1 and /v2 of this process or, with several workers, of all. Read every two seconds while this page is seen."),
    trouble, figures, picture, h("h3", {}, "Devices"), devices);
  read(0);
  return {
    title: "Live",
    stop() {
      isStopped = true;
      clearTimeout(timer);
    },
  };
}
