/** Tensors that came back: as numbers, as a heat map, as an image, as a plot, and beside another result. */

import { download, h, options, svg } from "./dom.js";
import { convert, decode, encode, formatValue, fromBase64, shortType } from "./types.js";
import { coordinates, elementCount, gather } from "./layout.js";
import { colour, label, path, scale, ticks } from "./curves.js";
import { compare } from "./ulp.js";
import { writeNpy } from "./files.js";

const VIEWS = { table: "Table", heat: "Heat map", image: "Image", plot: "Plot" };

/** Cells of a table that are shown. */
const MOST_CELLS = 600;

/** Outputs of an answer by name, those of a list as "Name[0]". */
export const outputsOf = (answer) => Object.entries(answer.outputs).flatMap(([name, output]) =>
  Array.isArray(output) ? output.map((each, index) => [`${name}[${index}]`, each]) : [[name, output]]);

/** The elements of an output in row-major order. */
export function elementsOfOutput(output) {
  const memory = decode(fromBase64(output.data), shortType(output.DataType));
  return gather(memory, output.Sizes, output.Strides);
}

/** A tensor of an answer. `other` is the same one of another answer, and `otherName` what made it. */
export function resultView(name, output, { other = null, otherName = "", view = "table", onview }) {
  const type = shortType(output.DataType);
  const sizes = output.Sizes;
  const values = elementsOfOutput(output);
  const against = other && elementCount(other.Sizes) === values.length ? elementsOfOutput(other).map((each) => convert(each, type)) : null;
  const compared = against && compare(values, against, type);
  const inside = h("div");
  const shown = Object.hasOwn(VIEWS, view) ? view : "table"; // a link may say anything
  const select = h("select", { "aria-label": `View of ${name}`, value: shown, onchange: () => (onview?.(select.value), show(select.value)) }, options(Object.keys(VIEWS), Object.values(VIEWS)));

  function show(kind) {
    const make = { table, heat: heatMap, image, plot }[kind];
    inside.replaceChildren(make(values, sizes, type, { compared, against, name }));
  }

  show(shown);
  const save = h("button", {
    type: "button",
    onclick() {
      download(`${name}.npy`, writeNpy(type, sizes, encode(values, type)));
    },
  }, "Download .npy");
  return h("section", { "aria-label": name },
    h("div", { class: "bar" }, h("strong", {}, name), h("span", { class: "faint" }, `${type} [${sizes.join(", ")}]${output.Strides ? `, strides [${output.Strides.join(", ")}]` : ""}`), select, type.endsWith("INT4") ? null : save),
    compared ? h("p", {}, sentenceOf(compared, values.length, sizes, otherName, type)) : null, inside);
}

function sentenceOf({ equal, worst, most }, count, sizes, otherName, type) {
  if (worst < 0) return `The same as on ${otherName}: all ${count} elements, to the last bit but the sign of zero.`;
  const far = most === null ? "NaN beside a number" : `${most} ULP of ${type}`;
  return `Beside ${otherName}: ${equal} of ${count} elements are equal; the largest difference is ${far}, at [${coordinates(worst, sizes)}].`;
}

/** Rows along the last dimension, one block after the other. */
function table(values, sizes, type, { compared }) {
  const across = sizes.at(-1);
  const columns = Math.min(across, 32);
  const rows = Math.min(values.length / across, Math.max(1, Math.floor(MOST_CELLS / columns)));
  const isCut = columns < across || rows < values.length / across;
  const cell = (index) => h("td", { class: compared?.worst === index ? "worst" : "" }, formatValue(values[index], type),
    compared && compared.ulps[index] !== 0n ? h("small", {}, ` ${compared.ulps[index] === null ? "NaN" : `${compared.ulps[index]} ULP`}`) : null);
  const made = h("table", { class: "numbers" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Row"), Array.from({ length: columns }, (_, column) => h("th", { scope: "col" }, String(column))))),
    h("tbody", {}, Array.from({ length: rows }, (_, row) => h("tr", {},
      h("th", { scope: "row" }, `[${[...coordinates(row, sizes.slice(0, -1)), ""].join(", ").replace(/, $/, ", …")}]`),
      Array.from({ length: columns }, (_, column) => cell(row * across + column))))));
  return scrolled("Numbers", made, isCut ? `The first ${rows} × ${columns} of ${values.length} elements.` : "");
}

const scrolled = (name, content, hint) => h("div", {},
  h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": name }, content), hint ? h("p", { class: "hint" }, hint) : null);

/** Height and width of a tensor as a picture: all dimensions but the last below one another. */
const flatSizes = (sizes) => [elementCount(sizes.slice(0, -1)), sizes.at(-1)];

function finiteRange(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    const number = Number(value);
    if (Number.isFinite(number)) [low, high] = [Math.min(low, number), Math.max(high, number)];
  }
  return low <= high ? [low, high] : [0, 0];
}

/** Pixels, `paint(index)` a [red, green, blue] or null each. */
function canvas(width, height, paint, name) {
  const made = h("canvas", { width, height, class: "heat", role: "img", "aria-label": name });
  const context = made.getContext("2d");
  const pixels = context.createImageData(width, height);
  for (let index = 0; index < width * height; index++) {
    const parts = paint(index);
    pixels.data.set(parts ? [...parts, 255] : [128, 128, 128, 0], index * 4);
  }
  context.putImageData(pixels, 0, 0);
  return made;
}

const MOST_SIDE = 2048;

function heatMap(values, sizes, type, { name, compared }) {
  const [height, width] = flatSizes(sizes);
  if (height > MOST_SIDE || width > MOST_SIDE) return h("p", {}, `A heat map shows at most ${MOST_SIDE} × ${MOST_SIDE} elements.`);
  const [low, high] = finiteRange(values);
  const text = `Heat map of ${name}: ${height} × ${width}, from ${label(low)} (dark) to ${label(high)} (light)`;
  return h("figure", {},
    canvas(width, height, (index) => (Number.isFinite(Number(values[index])) ? colour((Number(values[index]) - low) / (high - low || 1)) : null), text),
    h("figcaption", { class: "hint" }, `${text}.`), compared ? differenceMap(compared.ulps, height, width, name) : null);
}

/** How far elements are from those beside them: by the logarithm, for one ULP is to be seen beside thousands. */
function differenceMap(ulps, height, width, name) {
  const steps = ulps.map((each) => (each === null ? null : Math.log2(1 + Number(each))));
  const most = steps.reduce((one, other) => Math.max(one, other ?? 0), 0);
  const text = `Difference of ${name} in ULP: from 0 (dark) to ${Math.round(2 ** most - 1)} (light)`;
  return [canvas(width, height, (index) => (steps[index] === null ? null : colour(steps[index] / (most || 1))), text),
    h("figcaption", { class: "hint" }, `${text}.`)];
}

function image(values, sizes, type, { name }) {
  const [channels, height, width] = [...Array(3).fill(1), ...sizes].slice(-3);
  if (height > MOST_SIDE || width > MOST_SIDE) return h("p", {}, `An image shows at most ${MOST_SIDE} × ${MOST_SIDE} elements.`);
  const [low, high] = finiteRange(values);
  // From 0 to 1 or to 255, as images are; whatever else is spread between black and white.
  const isUnit = low >= 0 && high <= 1;
  const isBytes = low >= 0 && high <= 255;
  const shade = (value) => {
    const number = Number(value);
    const part = isUnit ? number : isBytes ? number / 255 : (number - low) / (high - low || 1);
    return Math.max(0, Math.min(255, Math.round((Number.isFinite(part) ? part : 0) * 255)));
  };
  const plane = width * height;
  const isColour = channels >= 3;
  const parts = (index) => (isColour ? [0, 1, 2] : [0, 0, 0]).map((channel) => shade(values[channel * plane + index]));
  const text = `${name} as an image: ${width} × ${height}, ${isColour ? "colours from the first three channels" : "the first channel"}`;
  return h("figure", {}, canvas(width, height, parts, text), h("figcaption", { class: "hint" }, `${text}.`));
}

function plot(values, sizes, type, { against, name }) {
  const numbers = values.slice(0, 4096).map(Number);
  const xs = numbers.map((_, index) => index);
  const lines = [{ ys: numbers, kind: "curve" }];
  if (against) lines.unshift({ ys: against.slice(0, 4096).map(Number), kind: "reference" });
  const finite = numbers.filter(Number.isFinite);
  const range = finite.length ? finiteRange(finite) : [-1, 1];
  const margin = (range[1] - range[0]) * 0.06 || 1;
  return plotView(`Plot of ${name}, ${values.length} elements in row-major order`, xs, lines, [0, Math.max(numbers.length - 1, 1)], [range[0] - margin, range[1] + margin], false);
}

const PLOT = { width: 640, height: 380, left: 62, right: 12, top: 10, bottom: 28 };

/** Lines, each {ys, kind}, over xs. */
export function plotView(name, xs, lines, xRange, yRange, isStepped, dots = false) {
  const { width, height, left, right, top, bottom } = PLOT;
  const x = scale(xRange, [left, width - right]);
  const y = scale(yRange, [height - bottom, top]);
  const clip = `clip-${Math.round(Math.random() * 1e9)}`;
  return svg("svg", { class: "plot", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": name },
    svg("clipPath", { id: clip }, svg("rect", { x: left, y: top, width: width - left - right, height: height - top - bottom })),
    ticks(...xRange, 7).map((each) => [
      svg("path", { class: each === 0 ? "axis" : "grid", d: `M${x(each)} ${top}V${height - bottom}` }),
      svg("text", { x: x(each), y: height - bottom + 18, "text-anchor": "middle" }, label(each))]),
    ticks(...yRange, 7).map((each) => [
      svg("path", { class: each === 0 ? "axis" : "grid", d: `M${left} ${y(each)}H${width - right}` }),
      svg("text", { x: left - 6, y: y(each) + 4, "text-anchor": "end" }, label(each))]),
    svg("g", { "clip-path": `url(#${clip})` }, lines.map(({ ys, kind }) => (dots && kind === "curve"
      ? xs.map((each, index) => (Number.isFinite(ys[index]) ? svg("circle", { class: "dot", cx: x(each), cy: y(ys[index]), r: 3 }) : null))
      : svg("path", { class: kind, d: path(xs, ys, x, y, isStepped && kind === "curve") })))));
}
