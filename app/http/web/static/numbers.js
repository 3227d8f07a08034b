/** Numbers that were typed, pasted or made, as elements of a tensor. */

import { convert, decode, isFloat, limits, parseValue } from "./types.js";

/**
 * The elements in `text`: numbers with commas, semicolons, blanks or line breaks between them (CSV), or lists of lists.
 * `sizes` are what brackets or lines say of their shape. Throws an Error.
 */
export function parseNumbers(text, type) {
  const tokens = text.match(/[[\]]|[^\s,;[\]]+/g) ?? [];
  return tokens.includes("[") || tokens.includes("]") ? nested(tokens, type) : lines(text, type);
}

const unquoted = (token) => token.replace(/^"(.*)"$/, "$1");

function lines(text, type) {
  const rows = text.split(/\r?\n/).map((line) => line.match(/[^\s,;]+/g) ?? []).filter((row) => row.length);
  const values = rows.flat().map((token) => parseValue(unquoted(token), type));
  const isTable = rows.length > 1 && rows.every((row) => row.length === rows[0].length);
  return { values, sizes: isTable ? [rows.length, rows[0].length] : values.length ? [values.length] : null };
}

function nested(tokens, type) {
  const values = [];
  let position = 0;

  /** Sizes of the list or number that begins at `position`. */
  function read() {
    if (tokens[position] === "]" || position >= tokens.length) throw new Error("A list has no end, or one too many.");
    if (tokens[position] !== "[") {
      values.push(parseValue(unquoted(tokens[position++]), type));
      return [];
    }
    position++;
    let inner = null;
    let count = 0;
    while (tokens[position] !== "]") {
      const sizes = read();
      if (inner && String(inner) !== String(sizes)) throw new Error("Lists side by side are of different lengths.");
      inner = sizes;
      count++;
    }
    position++;
    if (!count) throw new Error("A list is empty.");
    return [count, ...inner];
  }

  const sizes = read();
  if (position < tokens.length) throw new Error("There is more after the list's end.");
  return { values, sizes };
}

/** `count` elements from `first` to `last` in equal steps. */
export function range(first, last, count, type) {
  const step = count > 1 ? (last - first) / (count - 1) : 0;
  return Array.from({ length: count }, (_, index) =>
    convert(isFloat(type) ? first + index * step : Math.round(first + index * step), type));
}

/** `count` elements from `low` to `high`, the same ones for the same `seed` (mulberry32). */
export function random(low, high, seed, count, type) {
  let state = seed >>> 0;
  const next = () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
  return Array.from({ length: count }, () => {
    const value = low + next() * (high - low);
    return convert(isFloat(type) ? value : Math.floor(low + ((value - low) * (high - low + 1)) / (high - low || 1)), type);
  });
}

/** Elements for which computing is hard: zeros, ends of the type, subnormal numbers, infinities and NaN. */
export function specialValues(type) {
  if (!isFloat(type)) {
    const [least, most] = limits(type);
    const all = [...new Set([least, least + 1n, -1n, 0n, 1n, most / 2n, most - 1n, most])];
    return all.filter((each) => each >= least).map((each) => convert(each, type));
  }
  const [fraction, lowest] = { FLOAT16: [10, -14], FLOAT32: [23, -126], FLOAT64: [52, -1022] }[type];
  const greatest = (2 - 2 ** -fraction) * 2 ** (1 - lowest);
  const normal = 2 ** lowest;
  const subnormal = 2 ** (lowest - fraction);
  const sizes = [0, subnormal, normal, 1, 1 + 2 ** -fraction, greatest, Infinity];
  return [...sizes, ...sizes.map((each) => -each), NaN];
}

/** What a `source` of data gives, in so many elements as it says or, if it can make any number, in `count`. */
export function elementsOf(source, type, count) {
  switch (source.kind) {
    case "range": return { values: range(source.from, source.to, count, type), sizes: null };
    case "random": return { values: random(source.from, source.to, source.seed, count, type), sizes: null };
    case "special": {
      const values = specialValues(type);
      return { values: Array.from({ length: count }, (_, index) => values[index % values.length]), sizes: null };
    }
    case "file": {
      const values = decode(source.bytes, source.type);
      return { values: source.type === type ? values : values.map((value) => convert(value, type)), sizes: source.sizes };
    }
    default: return parseNumbers(source.text, type);
  }
}
