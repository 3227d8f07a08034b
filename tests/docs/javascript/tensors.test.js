import assert from "node:assert/strict";
import { test } from "node:test";
import { gather, isLayout, memoryMap, packedStrides, reach } from "../static/layout.js";
import { elementsOf, parseNumbers, random, range, specialValues } from "../static/numbers.js";
import { compare, ulpsBetween } from "../static/ulp.js";
import { fromHalf } from "../static/types.js";
import { pixelsToElements } from "../static/files.js";

test("strides say where elements lie", () => {
  assert.deepEqual(packedStrides([2, 3, 4]), [12, 4, 1]);
  assert.equal(reach([2, 3], [4, 1]), 7);
  assert.deepEqual(gather([1, 2, 3, 9, 4, 5, 6], [2, 3], [4, 1]), [1, 2, 3, 4, 5, 6]);
  assert.deepEqual(gather([1, 2, 3], [2, 3], [0, 1]), [1, 2, 3, 1, 2, 3]);
  assert.deepEqual(gather([1, 2, 3, 4, 5, 6], [3, 2], [1, 3]), [1, 4, 2, 5, 3, 6]);
});

test("memory has gaps, and places that are read more than once", () => {
  const gaps = memoryMap([2, 3], [4, 1]);
  assert.deepEqual([gaps.length, gaps.elements, gaps.gaps, gaps.shared], [7, 6, 1, 0]);
  assert.deepEqual(gaps.cells[3], { place: 3, readers: [], count: 0 });
  assert.deepEqual(gaps.cells[4].readers, [[1, 0]]);
  const broadcast = memoryMap([2, 3], [0, 1]);
  assert.deepEqual(broadcast.cells.map((cell) => cell.count), [2, 2, 2]);
  assert.deepEqual(broadcast.cells[1].readers, [[0, 1], [1, 1]]);
  const large = memoryMap([65536, 65536]);
  assert.deepEqual([large.cells.length, large.isWhole], [256, false]);
});

test("what is no layout", () => {
  for (const [sizes, strides] of [[[], null], [[0], null], [[2.5], null], [["a"], null], [[2], [1, 1]], [[2], [-1]], [null, null], [[2], "1"]])
    assert.equal(isLayout(sizes, strides), false, JSON.stringify([sizes, strides]));
  assert.ok(isLayout([2, 3], [0, 1]) && isLayout([1], null));
});

test("numbers in lists, lines and CSV", () => {
  assert.deepEqual(parseNumbers("[[1, 2, 3], [4, 5, 6]]", "FLOAT32"), { values: [1, 2, 3, 4, 5, 6], sizes: [2, 3] });
  assert.deepEqual(parseNumbers("1;2\r\n3;4\n", "INT8"), { values: [1, 2, 3, 4], sizes: [2, 2] });
  assert.deepEqual(parseNumbers('"1.5"\t2', "FLOAT64"), { values: [1.5, 2], sizes: [2] });
  assert.deepEqual(parseNumbers("1 2 3\n4", "UINT8").sizes, [4]);
  assert.deepEqual(parseNumbers("", "UINT8"), { values: [], sizes: null });
  for (const text of ["[[1, 2], [3]]", "[1", "1]", "[1] 2", "[]", "[[1], 2]"]) assert.throws(() => parseNumbers(text, "INT8"), Error, text);
});

test("elements that are made", () => {
  assert.deepEqual(range(-4, 4, 5, "FLOAT32"), [-4, -2, 0, 2, 4]);
  assert.deepEqual(range(0, 3, 4, "INT64"), [0n, 1n, 2n, 3n]);
  assert.deepEqual(range(7, 9, 1, "INT8"), [7]);
  const made = random(-2, 2, 5, 1000, "FLOAT32");
  assert.deepEqual(made, random(-2, 2, 5, 1000, "FLOAT32"));
  assert.notDeepEqual(made, random(-2, 2, 6, 1000, "FLOAT32"));
  assert.ok(made.every((each) => each >= -2 && each <= 2) && new Set(made).size > 990);
  assert.deepEqual([...new Set(random(0, 3, 1, 500, "UINT8"))].sort(), [0, 1, 2, 3]);
  assert.deepEqual(elementsOf({ kind: "special" }, "INT8", 9).values, [-128, -127, -1, 0, 1, 63, 126, 127, -128]);
  assert.deepEqual(specialValues("UINT4"), [0, 1, 7, 14, 15]);
  const halves = specialValues("FLOAT16");
  for (const bits of [0x0001, 0x0400, 0x3c01, 0x7bff, 0x7c00]) assert.ok(halves.includes(fromHalf(bits)), bits.toString(16));
  assert.ok(specialValues("FLOAT64").includes(Number.MAX_VALUE) && specialValues("FLOAT64").includes(5e-324));
  const bytes = new Uint8Array(new Float32Array([1.5, -300]).buffer);
  assert.deepEqual(elementsOf({ kind: "file", type: "FLOAT32", sizes: [2], bytes }, "INT8", 2).values, [1, -128]);
});

test("units of the last place", () => {
  assert.equal(ulpsBetween(1, Math.fround(1 + 2 ** -23), "FLOAT32"), 1n);
  assert.equal(ulpsBetween(1, 1 + 2 ** -52, "FLOAT64"), 1n);
  assert.equal(ulpsBetween(-0, 0, "FLOAT16"), 0n);
  assert.equal(ulpsBetween(fromHalf(0x8001), fromHalf(1), "FLOAT16"), 2n);
  assert.equal(ulpsBetween(65504, Infinity, "FLOAT16"), 1n);
  assert.equal(ulpsBetween(NaN, NaN, "FLOAT32"), 0n);
  assert.equal(ulpsBetween(NaN, 1, "FLOAT32"), null);
  assert.equal(ulpsBetween(-(2n ** 63n), 2n ** 63n - 1n, "INT64"), 2n ** 64n - 1n);
  assert.deepEqual(compare([1, 2, 3], [1, 4, 3], "INT8"), { ulps: [0n, 2n, 0n], equal: 2, worst: 1, most: 2n });
  assert.deepEqual(compare([1, 9, NaN, 2], [2, 1, 1, 2], "FLOAT32").worst, 2);
  assert.deepEqual(compare([1], [1], "FLOAT32"), { ulps: [0n], equal: 1, worst: -1, most: 0n });
});

test("pixels become channels", () => {
  const pixels = new Uint8ClampedArray([255, 0, 51, 255, 0, 102, 255, 255]);
  assert.deepEqual(pixelsToElements(pixels, 2, 1, 3, false), [255, 0, 0, 102, 51, 255]);
  assert.deepEqual(pixelsToElements(pixels, 2, 1, 3, true)[4], Math.fround(0.2));
  assert.deepEqual(pixelsToElements(pixels, 2, 1, 1, false), [Math.round(0.2126 * 255 + 0.0722 * 51), Math.round(0.7152 * 102 + 0.0722 * 255)]);
});
