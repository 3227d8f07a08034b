import assert from "node:assert/strict";
import { test } from "node:test";
import { TYPES, byteLength, convert, decode, encode, formatValue, fromBase64, fromHalf, limits, parseValue, toBase64, toHalf } from "../static/types.js";

test("every float16 survives the way to a number and back", () => {
  for (let bits = 0; bits < 65536; bits++) {
    const value = fromHalf(bits);
    if (Number.isNaN(value)) assert.ok(Number.isNaN(fromHalf(toHalf(value))));
    else assert.equal(toHalf(value), bits);
  }
});

test("a float16 is the nearest, ties to even, and infinite from 65520 on", () => {
  for (const [number, expected] of [
    [1 + 2 ** -11, 1], [1 + 3 * 2 ** -11, 1 + 2 ** -9], [1 + 2 ** -11 + 2 ** -40, 1 + 2 ** -10], [65519.999, 65504],
    [65520, Infinity], [-1e9, -Infinity], [2 ** -25, 0], [2 ** -25 + 2 ** -50, 2 ** -24], [3 * 2 ** -25, 2 ** -23],
    [2 ** -14 - 2 ** -26, 2 ** -14],
  ]) assert.equal(fromHalf(toHalf(number)), expected, String(number));
  assert.ok(Object.is(fromHalf(toHalf(-0)), -0));
});

test("elements of every type are packed as they are read, little-endian", () => {
  for (const type of Object.keys(TYPES)) {
    const values = TYPES[type].kind === "float" ? [0, -1.5, 2, Infinity, -0] : limits(type).concat(1n).map((each) => convert(each, type));
    const bytes = encode(values, type);
    assert.equal(bytes.length, byteLength(type, values.length), type);
    assert.deepEqual(decode(bytes, type, values.length), values, type);
  }
  assert.deepEqual([...encode([1, 258], "UINT16")], [1, 0, 2, 1]);
  assert.deepEqual([...encode([1, -2, 3], "INT4")], [0xe1, 0x03]);
});

test("an odd place in memory is read as well", () => {
  assert.deepEqual(decode(new Uint8Array([9, 0, 0, 128, 63]).subarray(1), "FLOAT32"), [1]);
});

test("what was typed is judged by its type", () => {
  assert.equal(parseValue("9223372036854775807", "INT64"), 2n ** 63n - 1n);
  assert.equal(parseValue("0xff", "UINT8"), 255);
  assert.equal(parseValue("1e3", "INT16"), 1000);
  assert.equal(parseValue("0.1", "FLOAT32"), Math.fround(0.1));
  assert.equal(parseValue("-inf", "FLOAT16"), -Infinity);
  assert.ok(Number.isNaN(parseValue("NaN", "FLOAT64")));
  for (const [text, type] of [["256", "UINT8"], ["-1", "UINT64"], ["1.5", "INT32"], ["abc", "FLOAT32"], ["", "FLOAT32"], ["nan", "INT8"]])
    assert.throws(() => parseValue(text, type), /no (number|U?INT)/, `${text} as ${type}`);
});

test("numbers are written shortly, and are the same when read again", () => {
  assert.equal(formatValue(Math.fround(0.1), "FLOAT32"), "0.1");
  assert.equal(formatValue(fromHalf(toHalf(0.1)), "FLOAT16"), "0.1");
  assert.equal(formatValue(-0, "FLOAT32"), "-0");
  let bits = 1;
  for (let count = 0; count < 2000; count++) {
    bits = (Math.imul(bits, 1664525) + 1013904223) >>> 0;
    const value = new Float32Array(new Uint32Array([bits]).buffer)[0];
    assert.ok(Object.is(parseValue(formatValue(value, "FLOAT32"), "FLOAT32"), value), String(value));
  }
});

test("what does not fit is cut off at the ends of its type", () => {
  assert.equal(convert(300, "UINT8"), 255);
  assert.equal(convert(-Infinity, "INT64"), -(2n ** 63n));
  assert.equal(convert(NaN, "INT8"), 0);
  assert.equal(convert(-1n, "UINT64"), 0n);
});

test("base64 of many bytes", () => {
  const bytes = Uint8Array.from({ length: 100001 }, (_, index) => (index * 7) & 255);
  assert.equal(toBase64(bytes), Buffer.from(bytes).toString("base64"));
  assert.deepEqual(fromBase64(toBase64(bytes)), bytes);
});
