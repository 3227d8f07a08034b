/** Graphs: their JSON beside a picture of them, what was fused into which kernel, and their dispatches. */

import { copyButton, field, h, later, options, pasteQuickly, svg } from "./dom.js";
import { NODE, edgePath, layOut, ports, readGraph, withEdge, withOperator } from "./graphs.js";
import { dispatchBody, isSource, toFragment } from "./requests.js";
import { outputsOf, resultView } from "./result_view.js";
import { tensorEditor } from "./tensor_editor.js";
import { operatorPicker } from "./picker.js";
import { pretty } from "./snippets.js";
import { sentence } from "./api.js";
import { TYPES, shortType } from "./types.js";
import { bytes, duration } from "./metrics.js";

const EXAMPLE = {
  Nodes: [
    { Type: "CONSTANT", Name: "bias", Data: "AACAPwAAAEAAAEBA" },
    {
      Type: "OPERATOR", Name: "add",
      Desc: {
        Type: "ELEMENT_WISE_ADD", ATensor: { DataType: "FLOAT32", Sizes: [2, 3] },
        BTensor: { DataType: "FLOAT32", Sizes: [2, 3], Strides: [0, 1] },
      },
    },
    { Type: "OPERATOR", Name: "relu", Desc: { Type: "ACTIVATION_RELU", InputTensor: { DataType: "FLOAT32", Sizes: [2, 3] } } },
  ],
  InputEdges: [{ GraphInput: "x", ToNode: "add", ToNodeInput: "ATensor" }],
  IntermediateEdges: [
    { FromNode: "bias", FromNodeOutput: "Data", ToNode: "add", ToNodeInput: "BTensor" },
    { FromNode: "add", FromNodeOutput: "OutputTensor", ToNode: "relu", ToNodeInput: "InputTensor" },
  ],
  OutputEdges: [{ FromNode: "relu", FromNodeOutput: "OutputTensor", GraphOutput: "y" }],
};

/** Nodes up to which a graph is drawn. */
const MOST_DRAWN = 400;

/** A picture of a graph. `kernels` are those of the service, if it has compiled the graph. */
export function graphPicture(graph, kernels = []) {
  const read = readGraph(graph);
  if (!read.nodes.length) return h("p", { class: "hint" }, "There are no nodes yet.");
  if (read.nodes.length > MOST_DRAWN) return h("p", { class: "hint" }, `There are ${read.nodes.length} nodes; up to ${MOST_DRAWN} are drawn.`);
  const laid = layOut(read, kernels.map((each) => each.nodes));
  const kernelOf = new Map(kernels.flatMap((each, index) => each.nodes.map((node) => [node, index])));
  const text = `Graph of ${graph.Nodes.length} nodes and ${read.edges.length} edges` + (kernels.length ? `, in ${kernels.length} kernels` : "");
  return svg("svg", { class: "graph", role: "img", "aria-label": text, viewBox: `0 0 ${laid.width} ${laid.height}`, width: laid.width },
    svg("defs", {}, svg("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, svg("path", { d: "M0 0L8 4L0 8z" }))),
    laid.groups.filter((each) => each.isClear).map((each) => svg("g", { "data-kernel": each.index },
      svg("rect", { class: "group", x: each.x, y: each.y, width: each.width, height: each.height, rx: 10 }))),
    laid.edges.map((each) => svg("path", { d: edgePath(each), "marker-end": "url(#arrow)" }, svg("title", {}, each.label))),
    laid.nodes.map((each) => svg("g", {},
      svg("title", {}, `${each.name}: ${each.title}${kernelOf.has(each.id) ? `, kernel ${kernelOf.get(each.id)}` : ""}`),
      svg("rect", { class: `node ${each.kind}`, x: each.x, y: each.y, width: NODE.width, height: NODE.height, rx: each.kind === "operator" ? 5 : 20 }),
      svg("text", { x: each.x + NODE.width / 2, y: each.y + 20 }, shortened(each.title)),
      svg("text", { class: "sub", x: each.x + NODE.width / 2, y: each.y + 36 }, shortened(each.name) + (kernelOf.has(each.id) ? ` · kernel ${kernelOf.get(each.id)}` : "")))));
}

const shortened = (text) => (text.length > 24 ? `${text.slice(0, 11)}…${text.slice(-12)}` : text);

/** `given` is {id} of a graph that is kept, or {text, data} as in a link. */
export async function mount(container, context, given) {
  const { api, catalog, announce } = context;
  let text = given?.text ?? pretty(EXAMPLE);
  let kept = null; // what the service says of the graph in `text`, once it keeps it
  let measured = null; // how long its kernels take, once that was asked
  let data = Object.fromEntries(Object.entries(given?.data ?? {}).filter(([, source]) => isSource(source)));
  const picture = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Picture of the graph" });
  const area = h("textarea", {
    class: "json", spellcheck: "false", value: text,
    oninput() {
      text = area.value;
      kept = null;
      changed();
    },
    onpaste: pasteQuickly,
  });
  const trouble = h("div", { role: "alert" });
  const about = h("div");
  const form = h("div");
  const results = h("div");
  const building = h("div");
  const list = h("select", { "aria-label": "Graphs that are kept", onchange: () => list.value && context.open("graph", { id: list.value }) });

  function parsed() {
    const graph = JSON.parse(text);
    if (graph === null || typeof graph !== "object" || Array.isArray(graph)) throw new SyntaxError("a graph is an object.");
    return graph;
  }

  function remember() {
    if (!kept) context.remember("graph", { text, data });
  }

  function draw() {
    try {
      picture.replaceChildren(graphPicture(parsed(), kept?.kernels));
      if (!kept) say([]);
    } catch (error) {
      say([`The JSON cannot be read: ${error.message}`]);
    }
  }

  const say = (texts) => trouble.replaceChildren(...texts.map((each) => h("p", { class: "error" }, each)));

  const changed = later(() => {
    draw();
    showBuilding();
    showKept();
    remember();
  }, 150);

  function replace(graph) {
    text = area.value = pretty(graph);
    kept = null;
    changed();
  }

  // Building

  const described = new Map();

  async function known(name) {
    if (!described.has(name)) described.set(name, (await api.json(`operators/${encodeURIComponent(name)}.json`)).description);
    return described.get(name);
  }

  async function showBuilding() {
    let graph;
    try {
      graph = parsed();
      await Promise.all([...new Set(readGraph(graph).nodes.filter((each) => each.kind === "operator" && each.title !== "?").map((each) => each.title))].map((each) => known(each).catch(() => null)));
    } catch {
      return;
    }
    const tensorsOf = (name) => {
      const fields = described.get(name)?.fields ?? [];
      const ofKind = (kind) => fields.filter((each) => each.kind === kind).map((each) => each.name);
      return { inputs: ofKind("input_tensor"), outputs: ofKind("output_tensor") };
    };
    const { inputs, outputs } = ports(graph, tensorsOf);
    const name = (port) => `${port.node}.${port.tensor}`;
    const from = h("select", {}, options(["input", ...outputs.map((_, index) => String(index))], ["an input of the graph, named:", ...outputs.map(name)]));
    const to = h("select", {}, options([...inputs.map((_, index) => String(index)), "output"], [...inputs.map(name), "an output of the graph, named:"]));
    const called = h("input", { type: "text", value: "x", autocomplete: "off", spellcheck: "false" });
    const link = () => {
      const isInput = from.value === "input";
      const isOutput = to.value === "output";
      if (isInput && isOutput) return announce("An edge begins or ends at a node.");
      return replace(withEdge(parsed(), isInput ? { input: called.value } : outputs[from.value], isOutput ? { output: called.value } : inputs[to.value]));
    };
    building.replaceChildren(
      operatorPicker(catalog.operators, {
        label: "Add an operator", announce,
        async choose(chosen) {
          const { example } = await known(chosen);
          replace(withOperator(parsed(), { ...example.operator, Type: chosen }));
          announce(`${chosen} was added.`);
        },
      }),
      h("div", { class: "fields" }, field("Edge from", from), field("to", to), field("Name", called), h("button", { type: "button", class: "narrow", onclick: link }, "Add the edge")));
  }

  // Keeping, and what is said of what is kept

  async function keep() {
    try {
      const made = await api.json("v1/graphs", { method: "POST", body: { graph: parsed() } });
      announce(`Kept as ${made.id}, in ${made.kernels.length} kernels.`);
      await open(made.id, { keepsText: true });
      await showList();
    } catch (error) {
      if (error instanceof SyntaxError) return say([`The JSON cannot be read: ${error.message}`]);
      say(error.errors?.length ? error.errors.map((each) => `${each.pointer}: ${each.message}`) : [sentence(error)]);
    }
  }

  async function open(id, { keepsText = false } = {}) {
    kept = await api.json(`v1/graphs/${encodeURIComponent(id)}`);
    measured = null;
    // The data of constants are not told again: who sent them still has them in the text.
    if (!keepsText) text = area.value = pretty(kept.graph);
    say([]);
    draw();
    showKept();
  }

  async function showList() {
    const all = await api.json("v1/graphs");
    list.replaceChildren(...options(["", ...all.map((each) => each.id)], [all.length ? `Open one of ${all.length}` : "None is kept", ...all.map((each) => `${each.name ?? each.id} (${each.dispatches} dispatches)`)]));
  }

  function showKept() {
    if (!kept) {
      about.replaceChildren(h("p", { class: "hint" }, "Keep the graph to see how it is fused, and to dispatch it."));
      form.replaceChildren();
      results.replaceChildren();
      return;
    }
    about.replaceChildren(
      h("p", {}, `${kept.name ? `${kept.name}, ` : ""}${kept.id}: ${kept.dispatches} dispatches, ${bytes(kept.memory_bytes)} kept, ${bytes(kept.scratch_bytes)} beside inputs and outputs in a dispatch.`),
      h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Kernels" }, h("table", {},
        h("thead", {}, h("tr", {}, ["Kernel", "Nodes", "Runs", "Reads", "Writes", "Takes"].map((each) => h("th", { scope: "col" }, each)))),
        h("tbody", {}, kept.kernels.map((each, index) => h("tr", {}, h("th", { scope: "row" }, String(index)),
          h("td", {}, each.nodes.map((node) => kept.graph.Nodes[node]?.Name ?? `#${node}`).join(", ")),
          h("td", {}, each.at_initialization ? "once" : "each dispatch"), h("td", {}, bytes(each.bytes_read)), h("td", {}, bytes(each.bytes_written)),
          h("td", {}, takes(index))))))),
      measured ? h("p", { class: "hint" }, `Each kernel by itself over zeros, on ${measured.device} (${measured.kind}).`) : null,
      h("div", { class: "bar" }, h("button", { type: "button", onclick: measure }, "Time the kernels"), h("button", { type: "button", onclick: drop }, "Drop it")));
    form.replaceChildren(...Object.entries(kept.inputs).map(([name, desc]) => {
      data[name] ??= { kind: "range", from: -4, to: 4 };
      return h("fieldset", {}, h("legend", {}, name), tensorEditor(name, {
        desc, source: data[name], pointer: `/inputs/${name}`, dataPointer: `/inputs/${name}`, types: Object.keys(TYPES), announce, isFixed: true,
        hint: `${shortType(desc.DataType)} [${desc.Sizes.join(", ")}]${desc.Strides ? `, strides [${desc.Strides.join(", ")}]` : ""}`,
        set: (_, source) => (data = { ...data, [name]: source }),
      }));
    }), h("button", { type: "button", onclick: dispatch }, "Dispatch"));
  }

  /** What is known of how long a kernel takes: of those of the initialization, which come first, nothing. */
  function takes(index) {
    const time = measured?.kernels[index - kept.kernels.filter((each) => each.at_initialization).length];
    return time ? duration(time.seconds) : "";
  }

  async function measure() {
    try {
      measured = await api.json(`v1/graphs/${kept.id}/times`, { method: "POST" });
      showKept();
      say([]);
      announce(`The kernels take ${duration(measured.kernels.reduce((total, each) => total + each.seconds, 0))}.`);
      about.querySelector("button").focus();
    } catch (error) {
      say([sentence(error)]);
    }
  }

  async function drop() {
    try {
      await api.json(`v1/graphs/${kept.id}`, { method: "DELETE" });
      kept = null;
      draw();
      showKept();
      await showList();
      announce("Dropped.");
    } catch (error) {
      say([sentence(error)]);
    }
  }

  async function dispatch() {
    try {
      // Inputs of a graph are described by the service; their data are made as those of an operator are.
      const { inputs } = dispatchBody({ operator: kept.inputs, data }, Object.keys(kept.inputs));
      const answer = await api.json(`v1/graphs/${kept.id}/dispatch`, { method: "POST", body: { inputs } });
      const { device, kind, compute_seconds: seconds } = answer.execution;
      results.replaceChildren(h("h3", {}, "Result"), h("p", { class: "faint" }, `On ${device} (${kind}), all kernels in ${duration(seconds)}.`),
        ...outputsOf(answer).map(([name, output]) => resultView(name, output, {})));
      say([]);
      announce(`Computed on ${device}.`);
    } catch (error) {
      say(error.errors?.length ? error.errors.map((each) => each.message) : [`${error.tensor ? `${error.tensor}: ` : ""}${sentence(error)}`]);
    }
  }

  const link = () => `${location.href.split("#")[0]}#${kept ? `graph=${kept.id}` : toFragment("graph", { text, data }).text}`;

  container.replaceChildren(
    h("h2", { tabindex: "-1" }, "Graph"),
    h("div", { class: "bar" }, h("button", { type: "button", onclick: keep }, "Keep"), list, copyButton("Copy a link to this page", link, announce)),
    trouble,
    h("div", { class: "columns" },
      h("div", {}, field("Graph, as DML_GRAPH_DESC in JSON", area), h("section", { "aria-label": "Build" }, h("h3", {}, "Build"), building)),
      h("div", {}, h("section", { "aria-label": "Picture" }, picture), h("section", { "aria-label": "Kernels" }, about), form, results)));
  if (given?.id) await open(given.id);
  else draw();
  showKept();
  showBuilding();
  showList().catch((error) => list.replaceChildren(...options([""], [sentence(error)])));
  return { title: "Graph" };
}
