/** Data types of tensors: their elements as bytes, as numbers and as text. Elements of 64-bit integers are BigInt. */

export const TYPES = {
  FLOAT32: { bits: 32, kind: "float", npy: "<f4", numpy: "float32", triton: "FP32" },
  FLOAT16: { bits: 16, kind: "float", npy: "<f2", numpy: "float16", triton: "FP16" },
  UINT32: { bits: 32, kind: "unsigned", npy: "<u4", numpy: "uint32", triton: "UINT32" },
  UINT16: { bits: 16, kind: "unsigned", npy: "<u2", numpy: "uint16", triton: "UINT16" },
  UINT8: { bits: 8, kind: "unsigned", npy: "|u1", numpy: "uint8", triton: "UINT8" },
  INT32: { bits: 32, kind: "signed", npy: "<i4", numpy: "int32", triton: "INT32" },
  INT16: { bits: 16, kind: "signed", npy: "<i2", numpy: "int16", triton: "INT16" },
  INT8: { bits: 8, kind: "signed", npy: "|i1", numpy: "int8", triton: "INT8" },
  FLOAT64: { bits: 64, kind: "float", npy: "<f8", numpy: "float64", triton: "FP64" },
  UINT64: { bits: 64, kind: "unsigned", npy: "<u8", numpy: "uint64", triton: "UINT64" },
  INT64: { bits: 64, kind: "signed", npy: "<i8", numpy: "int64", triton: "INT64" },
  UINT4: { bits: 4, kind: "unsigned" },
  INT4: { bits: 4, kind: "signed" },
};

/** The name without its prefix: FLOAT32 of DML_TENSOR_DATA_TYPE_FLOAT32. */
export const shortType = (name) => String(name).replace(/^DML_TENSOR_DATA_TYPE_/, "");

export const isFloat = (type) => TYPES[type].kind === "float";
export const isWide = (type) => TYPES[type].bits === 64 && !isFloat(type);

/** Bytes that `count` packed elements take. */
export const byteLength = (type, count) => Math.ceil((count * TYPES[type].bits) / 8);

/** Elements that `bytes` hold at most. */
export const countIn = (type, bytes) => Math.floor((bytes * 8) / TYPES[type].bits);

/** Least and greatest of an integer type, as BigInt. */
export function limits(type) {
  const { bits, kind } = TYPES[type];
  const span = 1n << BigInt(bits);
  return kind === "signed" ? [-span / 2n, span / 2n - 1n] : [0n, span - 1n];
}

const scratch = new DataView(new ArrayBuffer(8));

/** The bits of the float16 nearest to `number`, ties to even. */
export function toHalf(number) {
  scratch.setFloat64(0, number);
  const sign = (scratch.getUint8(0) & 0x80) << 8;
  const size = Math.abs(number);
  if (Number.isNaN(number)) return 0x7e00;
  if (size >= 65520) return sign | 0x7c00;
  const exponent = Math.max(((scratch.getUint16(0) >> 4) & 0x7ff) - 1023, -14);
  const steps = size / 2 ** (exponent - 10); // exact: powers of two are
  const below = Math.floor(steps);
  const rest = steps - below;
  const rounded = rest > 0.5 || (rest === 0.5 && below % 2) ? below + 1 : below;
  return sign | ((exponent + 14) * 1024 + rounded);
}

export function fromHalf(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? (1024 + fraction) * 2 ** (exponent - 25) : fraction * 2 ** -24);
}

const METHODS = {
  FLOAT32: "Float32", FLOAT64: "Float64", UINT32: "Uint32", UINT16: "Uint16", UINT8: "Uint8", INT32: "Int32",
  INT16: "Int16", INT8: "Int8", UINT64: "BigUint64", INT64: "BigInt64", FLOAT16: "Uint16",
};

/** Packed little-endian bytes of `values`, which are of the type. */
export function encode(values, type) {
  const bytes = new Uint8Array(byteLength(type, values.length));
  if (TYPES[type].bits === 4) {
    values.forEach((value, index) => (bytes[index >> 1] |= (value & 15) << (index % 2 ? 4 : 0)));
    return bytes;
  }
  const view = new DataView(bytes.buffer);
  const set = view[`set${METHODS[type]}`].bind(view);
  const step = TYPES[type].bits / 8;
  const convert = type === "FLOAT16" ? toHalf : (value) => value;
  for (let index = 0; index < values.length; index++) set(index * step, convert(values[index]), true);
  return bytes;
}

/** The first `count` elements in `bytes`: all that are whole, unless it is given. */
export function decode(bytes, type, count = countIn(type, bytes.length)) {
  const values = new Array(count);
  if (TYPES[type].bits === 4) {
    for (let index = 0; index < count; index++) {
      const half = (bytes[index >> 1] >> (index % 2 ? 4 : 0)) & 15;
      values[index] = type === "INT4" && half > 7 ? half - 16 : half;
    }
    return values;
  }
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const get = view[`get${METHODS[type]}`].bind(view);
  const step = TYPES[type].bits / 8;
  for (let index = 0; index < count; index++) values[index] = get(index * step, true);
  return type === "FLOAT16" ? values.map(fromHalf) : values;
}

/** `value`, of whatever type, as one of `type`: rounded to it, or cut off at its ends. */
export function convert(value, type) {
  if (isFloat(type)) {
    const number = Number(value);
    return type === "FLOAT64" ? number : type === "FLOAT32" ? Math.fround(number) : fromHalf(toHalf(number));
  }
  const [least, most] = limits(type);
  let whole;
  if (typeof value === "bigint") whole = value;
  else if (Number.isNaN(value)) whole = 0n;
  else if (!Number.isFinite(value)) whole = value > 0 ? most : least;
  else whole = BigInt(Math.trunc(value));
  whole = whole < least ? least : whole > most ? most : whole;
  return isWide(type) ? whole : Number(whole);
}

const NAMED = { nan: NaN, "+nan": NaN, "-nan": NaN };
for (const [sign, factor] of [["", 1], ["+", 1], ["-", -1]])
  for (const word of ["inf", "infinity"]) NAMED[sign + word] = factor * Infinity;

/** The element that `text` says. Throws an Error that says what may be there. */
export function parseValue(text, type) {
  const word = text.toLowerCase();
  if (isFloat(type)) {
    const number = word in NAMED ? NAMED[word] : Number(word);
    if (text === "" || (Number.isNaN(number) && !(word in NAMED))) throw new Error(`“${text.slice(0, 30)}” is no number.`);
    return convert(number, type);
  }
  const [least, most] = limits(type);
  let whole = null;
  if (/^[+-]?\d+$/.test(word)) whole = BigInt(word.replace("+", ""));
  else if (/^0x[\da-f]+$/.test(word)) whole = BigInt(word);
  else if (/^[+-]?[\d.]+(e[+-]?\d+)?$/.test(word) && Number.isInteger(Number(word))) whole = BigInt(Number(word));
  else if (word === "true" || word === "false") whole = word === "true" ? 1n : 0n;
  if (whole === null || whole < least || whole > most)
    throw new Error(`“${text.slice(0, 30)}” is no ${type}: whole numbers from ${least} to ${most}.`);
  return isWide(type) ? whole : Number(whole);
}

/** The shortest text that stands for the element and for no other of its type. */
export function formatValue(value, type) {
  if (typeof value === "bigint" || !isFloat(type)) return String(value);
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity";
  if (Object.is(value, -0)) return "-0";
  if (type === "FLOAT64") return String(value);
  for (let digits = 1; digits <= 9; digits++) {
    const short = Number(value.toPrecision(digits));
    if (convert(short, type) === value) return String(short);
  }
  return String(value);
}

/** Base64 with padding (RFC 4648). */
export function toBase64(bytes) {
  let text = "";
  for (let start = 0; start < bytes.length; start += 0x8000)
    text += String.fromCharCode(...bytes.subarray(start, start + 0x8000));
  return btoa(text);
}

export function fromBase64(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let index = 0; index < bytes.length; index++) bytes[index] = binary.charCodeAt(index);
  return bytes;
}
