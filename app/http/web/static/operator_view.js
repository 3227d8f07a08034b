/** The view of one operator: its formula, its curve, its fields, its tensors, what comes back, and the request to copy. */

import { copyButton, field, h, later, math, options, setError } from "./dom.js";
import { TYPES, convert, decode, encode, formatValue, fromBase64, isFloat, shortType, toBase64 } from "./types.js";
import { MOST_COPIED, MOST_LISTED, dataOf, dispatchBody, inputBytes, inputTensors, isOfOperator, toFragment, valueAt, withValue } from "./requests.js";
import { controlFor } from "./forms.js";
import { controlView } from "./form_view.js";
import { descriptionView, tensorEditor } from "./tensor_editor.js";
import { curveView } from "./curve_view.js";
import { operatorPicker } from "./picker.js";
import { outputsOf, resultView } from "./result_view.js";
import { curl, python, tritonclient, typescript, withoutTriton } from "./snippets.js";
import { toMathML } from "./formulas.js";
import { sentence } from "./api.js";
import { duration } from "./metrics.js";

export const FIRST = "ACTIVATION_CELU";

/** Bytes up to which each change is dispatched by itself. */
const LIVE_BYTES = 1 << 18;

const LANGUAGES = { curl: "curl", python: "Python", typescript: "TypeScript", triton: "tritonclient" };

/** The state of an operator that nothing was changed of: its example. */
export function exampleState(described) {
  const { operator, inputs } = described.example;
  const data = {};
  for (const [name, given] of Object.entries(inputs)) {
    const each = (element, desc, base64) => {
      const type = shortType(desc.DataType);
      const count = desc.Sizes.reduce((product, size) => product * size, 1);
      const values = decode(fromBase64(base64), type, count);
      data[element] = { kind: "text", text: values.map((value) => formatValue(value, type)).join(", ") };
    };
    if (Array.isArray(given)) given.forEach((one, index) => each(`${name}[${index}]`, operator[name][index], one));
    else each(name, operator[name], given);
  }
  return { operator: { ...operator, Type: operator.Type.replace(/^DML_OPERATOR_/, "") }, data, level: null, device: null };
}

/** The request with all tensors of one type of another, their elements converted. */
export function bodyOnType(state, inputs, from, to) {
  const change = (desc) => (desc && shortType(desc.DataType) === from ? { ...desc, DataType: to } : desc);
  const changed = { ...state.operator };
  for (const [name, value] of Object.entries(changed)) {
    if (Array.isArray(value) && value.some((each) => each?.DataType)) changed[name] = value.map(change);
    else if (value?.DataType) changed[name] = change(value);
  }
  const body = dispatchBody(state, inputs);
  for (const [name, desc, fieldName, index] of inputTensors(state.operator, inputs)) {
    if (shortType(desc.DataType) !== from) continue;
    const values = dataOf(state.data[name], desc).values.map((value) => convert(value, to));
    if (index === null) body.inputs[fieldName] = toBase64(encode(values, to));
    else body.inputs[fieldName][index] = toBase64(encode(values, to));
  }
  return { ...body, operator: changed };
}

/** Shows operators in `container`. `given` is a state, or {type} for its example. */
export async function mount(container, context, given) {
  const { api, catalog, announce } = context;
  const name = String(given?.type ?? given?.operator?.Type ?? FIRST).replace(/^DML_OPERATOR_/, "");
  const document = await api.json(`operators/${encodeURIComponent(name)}.json`);
  const { description, schema, curve } = document;
  const ofKind = (kind) => description.fields.filter((each) => each.kind === kind);
  const inputs = ofKind("input_tensor").map((each) => each.name);
  const outputs = ofKind("output_tensor").map((each) => each.name);
  const isUsable = given?.operator && isOfOperator(given, description.fields);
  let state = isUsable ? { level: null, device: null, ...given } : exampleState(description);
  if (given?.operator && !isUsable) announce("The link is none of this operator's; here is its example.");
  if (given?.level && !given.operator) state = { ...state, level: given.level };
  state.data = { ...state.data };
  for (const [tensor] of inputTensors(state.operator, inputs)) state.data[tensor] ??= { kind: "range", from: -4, to: 4 };
  const typesOf = (tensor) => {
    const rows = description.support.map((row) => row.tensors[tensor]?.data_types ?? []);
    const all = new Set(rows.flat());
    return all.size ? [...all] : Object.keys(TYPES);
  };
  let running = null;
  let last = null; // the newest answer, and what it is compared with
  const form = h("div");
  const results = h("div", { "aria-live": "off" });
  const problems = h("div", { role: "alert" });
  const code = h("pre", { tabindex: "0", role: "region", "aria-label": "The request" });

  const changed = (next) => {
    state = next;
    context.remember("operator", state);
    showCode();
    drawn?.refresh();
    live();
  };
  const setAt = (pointer, value) => changed({ ...state, operator: withValue(state.operator, pointer, value) });

  // Attributes

  function attribute(each) {
    const control = controlFor(schema.properties[each.name], schema.$defs ?? {});
    return controlView(each.name, control, schema.properties[each.name], {
      pointer: ["operator", each.name], value: state.operator[each.name] ?? each.default, hint: each.description,
      set: (value) => setAt([each.name], value),
    });
  }

  // Tensors

  function tensor(each) {
    const isInput = each.kind === "input_tensor";
    const present = state.operator[each.name] !== undefined && state.operator[each.name] !== null;
    const isList = each.type.endsWith("[]");
    const toggle = each.required ? null : field(isInput ? `Give ${each.name}` : `Describe ${each.name}`, h("input", {
      type: "checkbox", checked: present,
      onchange(event) {
        const desc = newDescription(each.name);
        setAt([each.name], event.target.checked ? (isList ? [desc] : desc) : undefined);
        if (isInput && event.target.checked) state.data[isList ? `${each.name}[0]` : each.name] ??= { kind: "range", from: -4, to: 4 };
        showForm(each.name);
      },
    }), { pointer: `/operator/${each.name}` });
    const content = !present ? null : isList ? listOf(each) : one(each, each.name, [each.name]);
    return h("fieldset", { "data-tensor": each.name, "data-pointer": `/operator/${each.name}` }, h("legend", {}, each.name),
      h("p", { class: "hint" }, each.description), toggle, content);
  }

  /** A description like that of the first input. */
  function newDescription(tensorName) {
    const [, first] = inputTensors(state.operator, inputs)[0] ?? [];
    const types = typesOf(tensorName);
    const DataType = first && types.includes(shortType(first.DataType)) ? first.DataType : types[0];
    return { DataType, Sizes: first?.Sizes ?? [1, 1, 2, 3] };
  }

  function one(each, element, path) {
    const desc = valueAt(state.operator, path);
    const pointer = `/operator/${path.join("/")}`;
    if (each.kind === "output_tensor")
      return descriptionView(desc, { pointer, types: typesOf(each.name), isInput: false, set: (next) => setAt(path, next) }).view;
    return tensorEditor(element, {
      desc, source: state.data[element], pointer, dataPointer: `/inputs/${path.join("/")}`, types: typesOf(each.name), announce,
      set: (next, source) => changed({ ...state, operator: withValue(state.operator, path, next), data: { ...state.data, [element]: source } }),
    });
  }

  function listOf(each) {
    const count = state.operator[each.name].length;
    const resize = (next) => {
      const list = state.operator[each.name];
      const longer = [...list, { ...(list.at(-1) ?? newDescription(each.name)) }];
      setAt([each.name], next > count ? longer : list.slice(0, next));
      if (next > count) state.data[`${each.name}[${count}]`] ??= { ...(state.data[`${each.name}[${count - 1}]`] ?? { kind: "range", from: -4, to: 4 }) };
      showForm(each.name);
    };
    return h("div", {}, state.operator[each.name].map((_, index) => h("fieldset", {}, h("legend", {}, `${each.name}[${index}]`),
      one(each, `${each.name}[${index}]`, [each.name, index]))),
      h("p", { class: "bar" }, count < MOST_LISTED ? h("button", { type: "button", onclick: () => resize(count + 1) }, "One more") : null,
        count > 1 ? h("button", { type: "button", onclick: () => resize(count - 1) }, "One less") : null));
  }

  /** All fields anew; the box of `focused` keeps the focus. */
  function showForm(focused = null) {
    form.replaceChildren(...[...ofKind("attribute").map(attribute), ...ofKind("input_tensor").map(tensor), ...ofKind("output_tensor").map(tensor)]);
    if (focused) form.querySelector(`[data-tensor="${focused}"] input`)?.focus();
  }

  // Refusals

  /** What is wrong, each beside the field that it is about, and the rest above the result. */
  function showErrors(errors, whole) {
    for (const control of container.querySelectorAll("[aria-invalid]")) if (control.dataset.pointer) setError(control, "");
    const controls = [...container.querySelectorAll("[data-pointer]")].filter((each) => each.id);
    const rest = [];
    const texts = new Map();
    for (const { pointer = "", message, allowed } of errors) {
      const control = controls.filter((each) => pointer === each.dataset.pointer || pointer.startsWith(`${each.dataset.pointer}/`))
        .sort((one, other) => other.dataset.pointer.length - one.dataset.pointer.length)[0] ??
        controls.find((each) => each.dataset.pointer.startsWith(`${pointer}/`));
      const isSaid = allowed === undefined || allowed === null || [allowed].flat().every((each) => message.includes(String(each)));
      const text = isSaid ? message : `${message} Allowed: ${[allowed].flat().join(", ")}.`;
      if (control) texts.set(control, [...(texts.get(control) ?? []), text]);
      else rest.push(text);
    }
    for (const [control, said] of texts) setError(control, said.join(" "));
    if (!errors.length && whole) rest.push(whole);
    const count = texts.size;
    problems.replaceChildren(...rest.map((text) => h("p", { class: "error" }, text)),
      count ? h("p", { class: "error" }, `${count === 1 ? "A field is" : `${count} fields are`} not as the operator wants: what is wrong stands beside ${count === 1 ? "it" : "each"}.`) : "");
  }

  // Dispatch

  const compareWith = h("select", { onchange: () => (keep({ compare: compareWith.value || undefined }), dispatch()) });

  /** What a link holds besides the request. */
  function keep(shown) {
    state = { ...state, ...shown };
    context.remember("operator", state);
  }

  function comparisons() {
    const [, first] = inputTensors(state.operator, inputs)[0] ?? [];
    const from = first ? shortType(first.DataType) : null;
    const chosen = compareWith.value || state.compare;
    const types = from && isFloat(from) ? typesOf(inputs[0]).filter((each) => each !== from && isFloat(each)) : [];
    const devices = (context.devices ?? []).filter((each) => each !== (last?.answer.execution.device ?? null));
    const values = ["", ...types.map((each) => `type ${each}`), ...devices.map((each) => `device ${each}`)];
    compareWith.replaceChildren(...options(values, ["nothing", ...types, ...devices]));
    if (values.includes(chosen)) compareWith.value = chosen;
    compareWith.parentElement.hidden = values.length === 1;
  }

  async function other(signal) {
    const [kind, wanted] = compareWith.value.split(" ");
    if (!kind) return null;
    const [, first] = inputTensors(state.operator, inputs)[0];
    const body = kind === "type" ? bodyOnType(state, inputs, shortType(first.DataType), wanted) : { ...dispatchBody(state, inputs), device: wanted };
    try {
      return { answer: await api.dispatch(body, signal), name: kind === "type" ? `${wanted}, rounded` : wanted };
    } catch (error) {
      if (error.name === "AbortError") throw error;
      problems.append(h("p", { class: "error" }, `Nothing to compare with: ${sentence(error)}`));
      return null;
    }
  }

  async function dispatch() {
    running?.abort();
    const mine = (running = new AbortController());
    results.classList.add("busy");
    try {
      const body = dispatchBody(state, inputs);
      const answer = await api.dispatch(body, mine.signal);
      if (mine !== running) return;
      showErrors([], "");
      showCode(); // a key may have been asked for
      const beside = await other(mine.signal);
      if (mine !== running) return;
      last = { answer, beside };
      comparisons();
      showResults();
      announce(`Computed on ${answer.execution.device}.`);
    } catch (error) {
      if (mine !== running || error.name === "AbortError") return;
      // What cannot be read as numbers is said at the tensor already.
      showErrors(error.errors ?? [], error.tensor ? `${error.tensor}: ${error.message}` : sentence(error));
    } finally {
      if (mine === running) results.classList.remove("busy");
    }
  }

  const waiting = later(dispatch, 180);

  function live() {
    const isSmall = inputBytes(state, inputs) <= LIVE_BYTES;
    large.hidden = isSmall;
    if (isSmall) waiting();
    else showErrors([], ""); // those of what was asked before
  }

  const views = new Map(Object.entries(state.views ?? {}));

  function showResults() {
    const { answer, beside } = last;
    const others = new Map(beside ? outputsOf(beside.answer) : []);
    const { device, kind, fallback_reason: reason, compute_seconds: seconds } = answer.execution;
    results.replaceChildren(
      h("p", { class: "faint" }, `On ${device} (${kind}), in ${duration(seconds)}.${reason ? ` Not where it should: ${reason}` : ""}`),
      ...outputsOf(answer).map(([output, made]) => resultView(output, made, {
        other: others.get(output), otherName: beside?.name, view: views.get(output) ?? "table", onview: (each) => {
          views.set(output, each);
          keep({ views: Object.fromEntries(views) });
        },
      })));
  }

  // The request to copy

  let language = "curl";
  const languages = h("select", { "aria-label": "Language", onchange: () => ((language = languages.value), showCode()) }, options(Object.keys(LANGUAGES), Object.values(LANGUAGES)));

  const showCode = later(() => {
    let text = "";
    try {
      const body = dispatchBody(state, inputs);
      const long = JSON.stringify(body).length > MOST_COPIED;
      const why = long ? "The tensors are too long to be copied; send them as files." : language === "triton" ? withoutTriton(body) : null;
      text = why ?? { curl, python, typescript, triton: tritonclient }[language](api.url, body, api.isKeyed);
    } catch (error) {
      text = `${error.tensor ?? "The request"}: ${error.message}`;
    }
    code.textContent = text;
  }, 80);

  function link() {
    const { text, isWhole } = toFragment("operator", state);
    linkHint.textContent = isWhole ? "" : "The link does not hold the tensors that are too long for it.";
    return `${location.href.split("#")[0]}#${text}`;
  }

  const linkHint = h("span", { class: "hint", role: "status" });

  // All of it

  const made = toMathML(description.formula);
  const formula = h("div", { class: "formula", tabindex: "0", role: "region", "aria-label": "Formula" },
    made ? [math(made.tree), made.rest] : h("code", {}, description.formula));
  const levels = h("select", {
    value: state.level ?? "",
    onchange: () => changed({ ...state, level: levels.value || null }),
    "data-pointer": "/feature_level",
  }, options(["", ...catalog.levels], ["the newest", ...catalog.levels]));
  const devices = h("select", {
    value: state.device ?? "",
    onchange: () => changed({ ...state, device: devices.value || null }),
    "data-pointer": "/device",
  }, options(["", ...new Set([...(context.devices ?? []), ...(state.device ? [state.device] : [])])], ["auto", ...new Set([...(context.devices ?? []), ...(state.device ? [state.device] : [])])]));
  const large = h("p", { class: "hint", hidden: true }, "The tensors are large: press Dispatch.");
  const filter = {};
  const filterSelect = (label, member, values) => field(label, h("select", { onchange: (event) => (filter[member] = event.target.value) }, options(["", ...values], ["any", ...values])));
  const drawn = curve && inputs.every((each) => state.operator[each])
    ? curveView(name, curve, {
      api, state: () => state, types: typesOf(curve.input), outputs, shown: state.curve,
      remember(settings) {
        state = { ...state, curve: settings };
        context.remember("operator", state);
      },
    })
    : null;

  showForm();
  container.replaceChildren(
    operatorPicker(catalog.operators, { choose: (chosen) => context.open("operator", { type: chosen }), announce, filter: () => filter }),
    h("details", {}, h("summary", {}, "Only some operators"), h("div", { class: "fields" },
      filterSelect("Family", "family", [...new Set(catalog.operators.map((each) => each.family))]),
      filterSelect("Data type", "type", catalog.data_types),
      filterSelect("Feature level", "level", catalog.levels))),
    h("h2", { tabindex: "-1" }, name),
    h("p", {}, `${description.summary} `, h("a", { href: `operators#${name}` }, "In the reference")),
    formula,
    description.notes.length ? h("details", {}, h("summary", {}, "Notes"), h("ul", {}, description.notes.map((note) => h("li", {}, note)))) : null,
    h("div", { class: "columns" },
      h("section", { "aria-label": "Request" }, h("h3", {}, "Request"),
        h("div", { class: "fields" }, field("Feature level", levels, { pointer: "/feature_level" }), field("Device", devices, { pointer: "/device" })),
        form),
      h("div", {}, drawn?.view ?? "",
        h("section", { "aria-label": "Result" }, h("h3", {}, "Result"),
          h("div", { class: "bar" }, h("button", { type: "button", onclick: dispatch }, "Dispatch"), h("label", { class: "field narrow" }, h("span", { class: "name" }, "Compare with"), compareWith)),
          large, problems, results),
        h("section", { "aria-label": "The same request elsewhere" }, h("h3", {}, "The same request"),
          h("div", { class: "bar" }, languages, copyButton("Copy", () => code.textContent, announce), copyButton("Copy a link to this page", link, announce), linkHint),
          code))));
  comparisons();
  showCode();
  live();
  return {
    title: name,
    stop() {
      running?.abort();
      drawn?.stop();
    },
  };
}
