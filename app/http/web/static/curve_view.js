/** The curve of an operator of one variable, computed by the service with the attributes in the form. */

import { field, h, later, options, setError } from "./dom.js";
import { decode, encode, isFloat, shortType, toBase64 } from "./types.js";
import { samples, shownRange } from "./curves.js";
import { elementsOfOutput, outputsOf, plotView } from "./result_view.js";
import { sentence } from "./api.js";

const SAMPLES = 721;

/** Whole numbers between which a curve of integers is drawn as dots. */
const MOST_DOTS = 64;

/** The descriptor for the curve: the form's, its input a line of `count` numbers of `type`. */
export function curveOperator(operator, input, outputs, type, count) {
  const Sizes = [1, 1, 1, count];
  const made = { ...operator, [input]: { DataType: type, Sizes } };
  for (const name of outputs) {
    const given = operator[name];
    if (given === undefined || given === null) continue;
    made[name] = { DataType: shortType(given.DataType) === shortType(operator[input].DataType) ? type : given.DataType, Sizes };
  }
  return made;
}

/** Where the curve is computed, as the type has it, and where it is drawn: with rounded numbers a line has steps. */
export function curvePoints([low, high], type) {
  if (isFloat(type)) {
    const drawn = samples(low, high, SAMPLES);
    return { drawn, given: decode(encode(drawn, type), type), dots: false };
  }
  const first = Math.ceil(low);
  const count = Math.min(Math.floor(high) - first + 1, SAMPLES);
  const drawn = Array.from({ length: Math.max(count, 1) }, (_, index) => first + index);
  return { drawn, given: drawn, dots: count <= MOST_DOTS };
}

/**
 * `info` says over which input; `state()` is what is in the form; `types` are those of the input. `refresh` of the result
 * draws anew, shortly after the last call.
 */
export function curveView(name, info, { api, state, types, outputs, remember, shown }) {
  const { input } = info;
  let settings = { type: shortType(state().operator[input].DataType), low: info.range[0], high: info.range[1], ...shown };
  if (!types.includes(settings.type)) [settings.type] = types;
  const picture = h("div");
  const caption = h("figcaption", { class: "hint" });
  const type = h("select", { value: settings.type, onchange: () => change({ type: type.value }) }, options(types));
  const end = (member, label) => {
    const control = h("input", {
      type: "number", step: "any", value: String(Number(settings[member].toPrecision(6))),
      oninput: () => Number.isFinite(control.valueAsNumber) && change({ [member]: control.valueAsNumber }),
    });
    return [control, field(label, control)];
  };
  const [low, lowField] = end("low", "x from");
  const [high, highField] = end("high", "to");
  const zoom = (factor) => {
    const middle = (settings.low + settings.high) / 2;
    const half = ((settings.high - settings.low) / 2) * factor;
    low.value = String(Number((middle - half).toPrecision(6)));
    high.value = String(Number((middle + half).toPrecision(6)));
    change({ low: low.valueAsNumber, high: high.valueAsNumber });
  };
  let running = null;

  function change(given) {
    settings = { ...settings, ...given };
    remember(settings);
    refresh();
  }

  async function compute(of, { low: first, high: last }) {
    const { drawn, given, dots } = curvePoints([first, last], of);
    const { level, device, operator } = state();
    const values = encode(given.map((each) => (of.endsWith("INT64") ? BigInt(each) : each)), of);
    const body = { operator: curveOperator(operator, input, outputs, of, drawn.length), inputs: { [input]: toBase64(values) } };
    if (level) body.feature_level = level;
    if (device) body.device = device;
    const answer = await api.dispatch(body, running.signal);
    return { drawn, dots, ys: elementsOfOutput(outputsOf(answer)[0][1]).map(Number) };
  }

  async function draw() {
    running?.abort();
    const mine = (running = new AbortController());
    const asked = settings; // they may change meanwhile
    if (!(asked.high > asked.low)) {
      setError(high, "It must be greater than where x begins.");
      return;
    }
    setError(high, "");
    try {
      const isCoarse = asked.type === "FLOAT16" && types.includes("FLOAT32");
      const [curve, exact] = await Promise.all([compute(asked.type, asked), isCoarse ? compute("FLOAT32", asked) : null]);
      if (mine !== running) return;
      const range = shownRange(curve.ys, asked.high - asked.low);
      const lines = exact ? [{ ys: exact.ys, kind: "reference" }] : [];
      lines.push({ ys: curve.ys, kind: "curve" });
      const isStepped = asked.type !== "FLOAT32" && asked.type !== "FLOAT64";
      picture.replaceChildren(plotView(`Curve of ${name} on ${asked.type}`, curve.drawn, lines, [asked.low, asked.high], range, isStepped, curve.dots));
      caption.textContent = `Computed by the service on ${asked.type}${exact ? "; dashed, on FLOAT32. Zoom in to see the steps" : ""}.`;
    } catch (error) {
      if (mine !== running || error.name === "AbortError") return;
      caption.textContent = `The curve as it was: ${sentence(error)}`;
    }
  }

  const refresh = later(draw, 60);
  refresh();
  const view = h("section", { "aria-label": "Curve" }, h("h3", {}, "Curve"),
    h("div", { class: "fields" }, field("Computed on", type), lowField, highField,
      h("button", { type: "button", class: "narrow", onclick: () => zoom(0.25) }, "Zoom in"),
      h("button", { type: "button", class: "narrow", onclick: () => zoom(4) }, "Zoom out")),
    h("figure", {}, picture, caption));
  return { view, refresh, stop: () => running?.abort() };
}
