/** Files that NumPy and safetensors wrote are in the folder that FILES names, with expected.json beside them. */
import assert from "node:assert/strict";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { readNpy, readTensors, writeNpy } from "../static/files.js";
import { decode, encode } from "../static/types.js";

const FOLDER = process.env.FILES;
const bytesOf = (name) => new Uint8Array(readFileSync(join(FOLDER, name)));
const expected = JSON.parse(readFileSync(join(FOLDER, "expected.json"), "utf8"));

for (const [file, tensors] of Object.entries(expected)) {
  test(`tensors of ${file}`, () => {
    const read = readTensors(file, bytesOf(file));
    assert.deepEqual(read.map((each) => each.name).sort(), Object.keys(tensors).sort());
    for (const { name, type, sizes, bytes } of read) {
      const values = decode(bytes, type).map(Number);
      assert.deepEqual({ type, sizes, values }, tensors[name], name);
    }
  });
}

test("what is refused", () => {
  const refused = readdirSync(FOLDER).filter((name) => name.startsWith("refused"));
  assert.ok(refused.length >= 4);
  for (const name of refused) assert.throws(() => readTensors(name, bytesOf(name)), /compressed|type|else|bytes|no tensor/, name);
});

test("a file that ends too early, wherever it does, and one with any byte changed", () => {
  for (const name of Object.keys(expected)) {
    const whole = bytesOf(name);
    for (let length = 0; length < whole.length; length += 7)
      assert.throws(() => readTensors(name, whole.slice(0, length)), (error) => error instanceof Error && !(error instanceof ReferenceError), `${name} ${length}`);
    for (let at = 0; at < whole.length; at += 3) {
      const changed = whole.slice();
      changed[at] ^= 0x55;
      try {
        readTensors(name, changed);
      } catch (error) {
        assert.ok(error instanceof Error);
      }
    }
  }
});

test("what is written is read again, and by NumPy", () => {
  for (const [type, sizes, values] of [["FLOAT16", [2, 2], [1, -0.5, Infinity, 0]], ["INT64", [3], [1n, -1n, 2n ** 62n]], ["UINT8", [1, 1, 1], [255]]]) {
    const bytes = writeNpy(type, sizes, encode(values, type));
    const again = readNpy(bytes);
    assert.deepEqual([again.type, again.sizes, decode(again.bytes, type)], [type, sizes, values]);
    writeFileSync(join(FOLDER, `written_${type}.npy`), bytes);
  }
  assert.throws(() => writeNpy("INT4", [2], new Uint8Array(1)), /INT4/);
});
