/** The page: which view is shown, what the address says of it, and the key that the service may ask for. */

import { Api, sentence } from "./api.js";
import { h, later } from "./dom.js";
import { fromFragment, toFragment } from "./requests.js";

const VIEWS = {
  operator: () => import("./operator_view.js"),
  graph: () => import("./graph_view.js"),
  matrix: () => import("./matrix_view.js"),
  live: () => import("./live_view.js"),
};

const main = document.getElementById("main");
const announcement = document.getElementById("announcement");
const dialog = document.getElementById("key-dialog");
const keyInput = document.getElementById("key-input");

/** Resolves to the key that a person gives, or to null. */
function askForKey(refusal) {
  document.getElementById("key-refusal").textContent = refusal;
  keyInput.value = "";
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      resolve(dialog.returnValue === "given" ? keyInput.value.trim() || null : null);
      keyInput.value = "";
    }, { once: true });
  });
}

dialog.querySelector("form").addEventListener("submit", (event) => {
  event.preventDefault();
  dialog.close("given");
});
document.getElementById("key-cancel").addEventListener("click", () => dialog.close(""));

const api = new Api(askForKey);
document.getElementById("key").addEventListener("click", async () => {
  const key = await askForKey("");
  if (key) {
    api.key = key;
    show();
  }
});

let shown = null;
let number = 0;
let address = ""; // of what is shown

const context = {
  api,
  catalog: null,
  devices: [],
  /** Have a screen reader say something. */
  announce(text) {
    announcement.textContent = text;
  },
  /** Go to a view; the way back leads here. */
  open(view, state) {
    location.hash = state?.type && !state.level ? `operator=${state.type}` : state?.id ? `graph=${state.id}` : toFragment(view, state).text;
  },
};

/** The address says what is on the page, so that it can be copied, and a reload shows the same. */
const write = later((mine, view, state) => {
  if (mine !== number || location.hash !== address) return; // it may lead elsewhere already, which is told in a moment
  history.replaceState(null, "", `#${toFragment(view, state).text}`);
  address = location.hash;
}, 300);

async function show() {
  const mine = ++number;
  address = location.hash;
  const { view, state } = fromFragment(address.slice(1));
  const name = Object.hasOwn(VIEWS, view) ? view : "operator";
  for (const link of document.querySelectorAll("nav [data-view]")) {
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  try {
    const [{ mount }] = await Promise.all([VIEWS[name](), context.catalog ?? loadCatalog(), devicesKnown]);
    if (mine !== number) return;
    shown?.stop?.();
    shown = null;
    const container = h("div");
    const remember = (...given) => write(mine, ...given);
    const mounted = await mount(container, { ...context, remember }, state);
    if (mine !== number) {
      mounted.stop?.();
      return;
    }
    shown = mounted;
    const isFirst = main.querySelector("p")?.textContent === "Loading…";
    main.replaceChildren(container);
    document.title = `${mounted.title} · dmlserve`;
    // Who comes from elsewhere on the page reads on at the new view's heading.
    if (!isFirst) (container.querySelector("h2") ?? main).focus();
  } catch (error) {
    if (mine === number) main.replaceChildren(h("p", { class: "error", role: "alert" }, sentence(error)));
  }
}

async function loadCatalog() {
  context.catalog = await api.json("operators.json");
}

/** Devices are known to those alone who may ask for them: without a key nobody is asked for one until a dispatch is. */
async function loadDevices() {
  const response = await fetch("v1/capabilities").catch(() => null);
  if (response?.ok) context.devices = (await response.json()).devices.map((each) => each.name);
}

addEventListener("hashchange", show);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address says what is shown
  main.focus();
});
const devicesKnown = loadDevices();
show();
