/** A dispatch as the page keeps it, as the service takes it, and as a link. */

import { TYPES, byteLength, encode, shortType, toBase64 } from "./types.js";
import { elementsOf } from "./numbers.js";
import { elementCount, isLayout, reach } from "./layout.js";

/**
 * What is kept: `operator` is the descriptor; `data` has for each input tensor, by its name ("InputTensors[1]" in a list),
 * where its elements come from; `level` and `device` are null where the service chooses.
 *
 * A source is {kind: "text", text}, {kind: "range", from, to}, {kind: "random", from, to, seed}, {kind: "special"} or, in
 * the page's memory alone, {kind: "file", name, type, sizes, bytes}.
 */

/** Input tensors of a descriptor: [name, description, field, index] each; no index of those that are in no list. */
export function inputTensors(operator, inputs) {
  return inputs.flatMap((name) => {
    const given = operator[name];
    if (Array.isArray(given)) return given.map((desc, index) => [`${name}[${index}]`, desc, name, index]);
    return given == null ? [] : [[name, given, name, null]];
  });
}

/** Elements that the tensor's buffer has room for, or 0 if its description cannot be used. */
export function placesOf(desc) {
  const { Sizes, Strides } = desc;
  if (!isLayout(Sizes, Strides)) return 0;
  return Strides == null ? elementCount(Sizes) : reach(Sizes, Strides);
}

/** More than a page should make by itself. */
export const MOST_ELEMENTS = 1 << 22;

/** Characters of numbers that are read, and of a request that are shown: more of them, and the page stands still. */
const MOST_TEXT = 1 << 20;
export const MOST_COPIED = 1 << 16;

/** Tensors of a list, as of JOIN, that there are fields for. */
export const MOST_LISTED = 64;

/** The elements of a source for a tensor, and the sizes that they say. Throws an Error. */
export function dataOf(source, desc) {
  if (source.kind === "text" && source.text.length > MOST_TEXT)
    throw new Error(`These are ${source.text.length} characters, of which this page reads ${MOST_TEXT}; drop a .npy file instead.`);
  const count = placesOf(desc);
  if (count > MOST_ELEMENTS) throw new Error(`The tensor has ${count} elements; this page makes at most ${MOST_ELEMENTS}.`);
  return elementsOf(source, shortType(desc.DataType), count);
}

/** The body of POST /v1/dispatch. Throws an Error with `tensor`, the name of the one whose data cannot be read. */
export function dispatchBody(state, inputs) {
  const data = {};
  for (const [name, desc, field, index] of inputTensors(state.operator, inputs)) {
    try {
      const text = toBase64(encode(dataOf(state.data[name], desc).values, shortType(desc.DataType)));
      if (index === null) data[field] = text;
      else (data[field] ??= [])[index] = text;
    } catch (error) {
      throw Object.assign(error, { tensor: name });
    }
  }
  const body = { operator: state.operator, inputs: data };
  if (state.level) body.feature_level = state.level;
  if (state.device) body.device = state.device;
  return body;
}

/** Bytes of all inputs together. */
export const inputBytes = (state, inputs) =>
  inputTensors(state.operator, inputs).reduce(
    (sum, [, desc]) => sum + byteLength(shortType(desc.DataType), placesOf(desc)), 0);

/** The operator with `value` where the pointer (a list of names and indices) leads; undefined takes it away. */
export function withValue(document, pointer, value) {
  const [first, ...rest] = pointer;
  const copy = Array.isArray(document) ? [...document] : { ...document };
  const given = rest.length ? withValue(copy[first] ?? {}, rest, value) : value;
  if (given === undefined) delete copy[first];
  else copy[first] = given;
  return copy;
}

export const valueAt = (document, pointer) => pointer.reduce((part, name) => part?.[name], document);

/** JSON pointer (RFC 6901) to a list of names. */
export const pointerParts = (pointer) =>
  pointer.split("/").slice(1).map((part) => part.replaceAll("~1", "/").replaceAll("~0", "~"));

/** Characters that a link may have. What is longer, mail programs and chats break. */
export const LONGEST_LINK = 16384;

/** What comes after # in a link: the view, and all of what is in it. Data that are too long for a link are left out. */
export function toFragment(view, state) {
  if (!state?.data) return { text: fragment(view, state), isWhole: true };
  const without = (isLong) => Object.fromEntries(Object.entries(state.data).map(([name, source]) =>
    [name, isLong(source) ? { kind: "range", from: -4, to: 4 } : source]));
  const longer = (most) => (source) => source.kind === "file" || (source.kind === "text" && source.text.length > most);
  const isLongest = longer(LONGEST_LINK);
  const whole = fragment(view, { ...state, data: without(isLongest) });
  if (whole.length <= LONGEST_LINK) return { text: whole, isWhole: !Object.values(state.data).some(isLongest) };
  const isLong = longer(256);
  return { text: fragment(view, { ...state, data: without(isLong) }), isWhole: false };
}

function fragment(view, state) {
  if (state == null) return view;
  const json = new TextEncoder().encode(JSON.stringify(state));
  return `${view}/${toBase64(json).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "")}`;
}

/** The view and its state in a fragment; `state` is null where there is none, or none that can be read. */
export function fromFragment(text) {
  const graph = /^graph=([\w.-]{1,128})$/.exec(text);
  if (graph) return { view: "graph", state: { id: graph[1] } };
  const operator = /^operator=(\w{1,80})$/.exec(text);
  if (operator) return { view: "operator", state: { type: operator[1] } };
  const [view, packed] = text.split("/");
  if (!packed) return { view, state: null };
  try {
    const json = atob(packed.replaceAll("-", "+").replaceAll("_", "/"));
    const state = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(Uint8Array.from(json, (letter) => letter.charCodeAt(0))));
    return { view, state: isState(state) ? state : null };
  } catch {
    return { view, state: null };
  }
}

/**
 * Whether the state is one of the operator with these `fields`: its tensors are described as such, in lists where it takes
 * lists. What the numbers in it are, the service judges.
 */
export function isOfOperator(state, fields) {
  const isNumbers = (list) => Array.isArray(list) && list.every((each) => ["number", "string"].includes(typeof each));
  const isTensor = (desc) => desc !== null && typeof desc === "object" && shortType(desc.DataType) in TYPES &&
    isNumbers(desc.Sizes) && (desc.Strides == null || isNumbers(desc.Strides)) && (desc.Flags == null || Array.isArray(desc.Flags));
  const { curve } = state;
  const isCurve = curve === undefined || (curve !== null && Number.isFinite(curve.low) && Number.isFinite(curve.high));
  return isCurve && fields.filter((each) => each.kind !== "attribute").every(({ name, type, required }) => {
    const given = state.operator[name];
    if (given === undefined || given === null) return !required;
    return type.endsWith("[]") ? Array.isArray(given) && given.length > 0 && given.length <= MOST_LISTED && given.every(isTensor) : isTensor(given);
  });
}

/** Links come from anywhere: nothing of them is taken that has not the form of what this page makes. */
function isState(state) {
  const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
  if (!isObject(state)) return false;
  if ("text" in state) return typeof state.text === "string" && (state.data === undefined || isObject(state.data));
  return isObject(state.operator) && typeof state.operator.Type === "string" && isObject(state.data) &&
    Object.values(state.data).every(isSource);
}

/** Whether that is a source of data, as links have them. */
export function isSource(source) {
  if (source === null || typeof source !== "object") return false;
  if (source.kind === "text") return typeof source.text === "string";
  if (source.kind === "special") return true;
  return ["range", "random"].includes(source.kind) && Number.isFinite(source.from) && Number.isFinite(source.to) &&
    (source.kind === "range" || Number.isInteger(source.seed));
}
