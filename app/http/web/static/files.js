/** Tensors in files: NumPy's .npy and .npz (stored, as np.savez does), safetensors. Nothing in them is executed. */

import { TYPES, byteLength } from "./types.js";
import { elementCount } from "./layout.js";

const BY_NPY = Object.fromEntries(Object.entries(TYPES).filter(([, each]) => each.npy).map(([name, each]) => [each.npy.slice(1), name]));
BY_NPY.b1 = "UINT8";

const BY_SAFETENSORS = {
  F64: "FLOAT64", F32: "FLOAT32", F16: "FLOAT16", I64: "INT64", I32: "INT32", I16: "INT16", I8: "INT8", U64: "UINT64",
  U32: "UINT32", U16: "UINT16", U8: "UINT8", BOOL: "UINT8",
};

const ascii = (bytes) => String.fromCharCode(...bytes);
const isSizes = (sizes) => Array.isArray(sizes) && sizes.every((each) => Number.isSafeInteger(each) && each >= 0);

/** The tensors in the file `name`: each with `name`, `type`, `sizes` and packed `bytes`. Throws an Error. */
export function readTensors(name, bytes) {
  if (ascii(bytes.subarray(0, 6)) === "\x93NUMPY") return [{ name: name.replace(/\.npy$/, ""), ...readNpy(bytes) }];
  if (ascii(bytes.subarray(0, 4)) === "PK\x03\x04") {
    return unzip(bytes).map((file) => ({ name: file.name.replace(/\.npy$/, ""), ...readNpy(file.bytes) }));
  }
  if (/\.safetensors$/.test(name)) return readSafetensors(bytes);
  throw new Error(`${name} is no .npy, .npz or .safetensors file, and no image.`);
}

/** An array of NumPy's, row-major. */
export function readNpy(bytes) {
  if (bytes.length < 10 || ascii(bytes.subarray(0, 6)) !== "\x93NUMPY") throw new Error("This is no .npy file.");
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const start = bytes[6] === 1 ? 10 : 12;
  const length = bytes[6] === 1 ? view.getUint16(8, true) : view.getUint32(8, true);
  const header = ascii(bytes.subarray(start, start + Math.min(length, 4096)));
  const descr = /'descr':\s*'([<>|=])([a-z]\d+)'/.exec(header);
  const shape = /'shape':\s*\(([\d\s,L]*)\)/.exec(header);
  if (!shape || !descr) throw new Error("The .npy file holds something else than numbers.");
  const type = BY_NPY[descr[2]];
  if (!type) throw new Error(`The .npy file is of type ${descr[2]}, which no tensor is.`);
  const sizes = (shape[1].match(/\d+/g) ?? []).map(Number);
  const count = elementCount(sizes);
  const step = TYPES[type].bits / 8;
  let data = bytes.slice(start + length, start + length + count * step);
  if (data.length !== count * step) throw new Error("The .npy file ends too early.");
  if (descr[1] === ">" && step > 1) data = reversed(data, step);
  if (/'fortran_order':\s*True/.test(header) && sizes.length > 1) data = rowMajor(data, sizes, step);
  return { type, sizes: sizes.length ? sizes : [1], bytes: data };
}

/** Each element's bytes in the other order. */
function reversed(bytes, step) {
  const result = new Uint8Array(bytes.length);
  for (let start = 0; start < bytes.length; start += step)
    for (let each = 0; each < step; each++) result[start + each] = bytes[start + step - 1 - each];
  return result;
}

/** From the first dimension's elements side by side to the last's. */
function rowMajor(bytes, sizes, step) {
  const result = new Uint8Array(bytes.length);
  const at = sizes.map(() => 0);
  const strides = sizes.map((_, dimension) => elementCount(sizes.slice(0, dimension)));
  let from = 0;
  for (let to = 0; to < bytes.length; to += step) {
    result.set(bytes.subarray(from * step, (from + 1) * step), to);
    for (let dimension = sizes.length - 1; dimension >= 0; dimension--) {
      from += strides[dimension];
      if (++at[dimension] < sizes[dimension]) break;
      from -= strides[dimension] * sizes[dimension];
      at[dimension] = 0;
    }
  }
  return result;
}

/** A .npy file of packed elements. */
export function writeNpy(type, sizes, bytes) {
  const { npy } = TYPES[type];
  if (!npy) throw new Error(`NumPy has no ${type}.`);
  const shape = sizes.length === 1 ? `(${sizes[0]},)` : `(${sizes.join(", ")})`;
  const text = `{'descr': '${npy}', 'fortran_order': False, 'shape': ${shape}, }`;
  const padded = text.padEnd(Math.ceil((text.length + 11) / 64) * 64 - 11) + "\n";
  const data = bytes.subarray(0, byteLength(type, elementCount(sizes)));
  const result = new Uint8Array(10 + padded.length + data.length);
  result.set([0x93, ...[..."NUMPY"].map((letter) => letter.charCodeAt(0)), 1, 0, padded.length & 255, padded.length >> 8]);
  result.set([...padded].map((letter) => letter.charCodeAt(0)), 10);
  result.set(data, 10 + padded.length);
  return result;
}

/** The files in a ZIP archive, which must not be compressed. */
export function unzip(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let end = bytes.length - 22;
  while (end >= 0 && view.getUint32(end, true) !== 0x06054b50) end--;
  if (end < 0) throw new Error("The .npz file ends too early.");
  const files = [];
  let entry = view.getUint32(end + 16, true);
  for (let left = view.getUint16(end + 10, true); left > 0; left--) {
    if (entry + 46 > bytes.length || view.getUint32(entry, true) !== 0x02014b50) throw new Error("The .npz file is broken.");
    const [nameLength, extra, comment] = [28, 30, 32].map((at) => view.getUint16(entry + at, true));
    const name = ascii(bytes.subarray(entry + 46, entry + 46 + nameLength));
    const size = view.getUint32(entry + 20, true);
    const local = view.getUint32(entry + 42, true);
    if (view.getUint16(entry + 10, true)) throw new Error(`${name} is compressed; np.savez stores, np.savez_compressed does not.`);
    if (size === 0xffffffff || local + 30 > bytes.length) throw new Error("The .npz file is too large, or broken.");
    const start = local + 30 + view.getUint16(local + 26, true) + view.getUint16(local + 28, true);
    if (start + size > bytes.length) throw new Error("The .npz file ends too early.");
    files.push({ name, bytes: bytes.subarray(start, start + size) });
    entry += 46 + nameLength + extra + comment;
  }
  return files;
}

export function readSafetensors(bytes) {
  if (bytes.length < 8) throw new Error("The safetensors file ends too early.");
  const length = Number(new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(0, true));
  if (length > bytes.length - 8) throw new Error("The safetensors file ends too early.");
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + length)));
  const tensors = [];
  for (const [name, about] of Object.entries(header)) {
    const type = BY_SAFETENSORS[about?.dtype];
    if (name === "__metadata__" || !type) continue;
    const { shape, data_offsets: [from, to] } = about;
    const data = bytes.slice(8 + length + from, 8 + length + to);
    if (!isSizes(shape) || data.length !== byteLength(type, elementCount(shape)))
      throw new Error(`${name} has not the bytes that its shape needs.`);
    tensors.push({ name, type, sizes: shape.length ? shape : [1], bytes: data });
  }
  if (!tensors.length) throw new Error("The safetensors file has no tensor of a type that is known here.");
  return tensors;
}

/**
 * A picture's pixels, which are RGBA in `pixels`, as elements of [1, channels, height, width]: from 0 to 255 for
 * integers, from 0 to 1 otherwise.
 */
export function pixelsToElements(pixels, width, height, channels, isReal) {
  const values = new Array(channels * height * width);
  const plane = width * height;
  for (let pixel = 0; pixel < plane; pixel++) {
    const [red, green, blue] = pixels.subarray(pixel * 4, pixel * 4 + 3);
    const parts = channels === 1 ? [Math.round(0.2126 * red + 0.7152 * green + 0.0722 * blue)] : [red, green, blue];
    parts.forEach((part, channel) => (values[channel * plane + pixel] = isReal ? Math.fround(part / 255) : part));
  }
  return values;
}
