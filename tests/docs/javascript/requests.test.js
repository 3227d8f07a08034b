import assert from "node:assert/strict";
import { test } from "node:test";
import { LONGEST_LINK, dispatchBody, fromFragment, inputTensors, isOfOperator, placesOf, pointerParts, toFragment, withValue } from "../static/requests.js";
import { controlFor, initialValue, readList, readText } from "../static/forms.js";
import { parameters, toPython, withoutTriton } from "../static/snippets.js";

const F32 = { DataType: "FLOAT32", Sizes: [2] };
const CELU = { operator: { Type: "ACTIVATION_CELU", InputTensor: F32, Alpha: 1 }, data: { InputTensor: { kind: "text", text: "1, 2" } }, level: null, device: null };

test("the body of a dispatch", () => {
  assert.deepEqual(dispatchBody(CELU, ["InputTensor"]), { operator: CELU.operator, inputs: { InputTensor: "AACAPwAAAEA=" } });
  const join = {
    operator: { Type: "JOIN", InputTensors: [F32, { DataType: "UINT8", Sizes: [3] }], Axis: 0 }, level: "5_0", device: "numpy",
    data: { "InputTensors[0]": { kind: "range", from: 1, to: 2 }, "InputTensors[1]": { kind: "text", text: "1 2 3" } },
  };
  assert.deepEqual(dispatchBody(join, ["InputTensors"]), { operator: join.operator, inputs: { InputTensors: ["AACAPwAAAEA=", "AQID"] }, feature_level: "5_0", device: "numpy" });
  assert.deepEqual(inputTensors(join.operator, ["InputTensors", "Missing"]).map(([name]) => name), ["InputTensors[0]", "InputTensors[1]"]);
});

test("numbers that cannot be read name their tensor", () => {
  assert.throws(() => dispatchBody({ ...CELU, data: { InputTensor: { kind: "text", text: "1, x" } } }, ["InputTensor"]), { tensor: "InputTensor" });
  const huge = { ...CELU, operator: { ...CELU.operator, InputTensor: { DataType: "FLOAT32", Sizes: [65536, 65535] } }, data: { InputTensor: { kind: "special" } } };
  assert.throws(() => dispatchBody(huge, ["InputTensor"]), /at most/);
  assert.equal(placesOf({ Sizes: [2, 3], Strides: [0, 1] }), 3);
  assert.equal(placesOf({ Sizes: [2, "x"] }), 0);
});

test("a link has all of it", () => {
  const { text, isWhole } = toFragment("operator", { ...CELU, operator: { ...CELU.operator, Alpha: "½ & #" } });
  assert.match(text, /^operator\/[\w-]+$/);
  assert.ok(isWhole);
  assert.equal(fromFragment(text).state.operator.Alpha, "½ & #");
  assert.deepEqual(fromFragment(toFragment("operator", CELU).text), { view: "operator", state: CELU });
  assert.deepEqual(fromFragment("operator=GEMM"), { view: "operator", state: { type: "GEMM" } });
  assert.deepEqual(fromFragment(`graph=${"a".repeat(32)}`), { view: "graph", state: { id: "a".repeat(32) } });
  assert.deepEqual(fromFragment("graph=mine"), { view: "graph", state: { id: "mine" } }, "the service says what it is");
  assert.deepEqual(fromFragment("live"), { view: "live", state: null });
});

test("a link without the tensors that are too long for it says so", () => {
  const long = { ...CELU, data: { InputTensor: { kind: "text", text: "1.25, ".repeat(9999) } } };
  const { text, isWhole } = toFragment("operator", long);
  assert.ok(!isWhole && text.length < LONGEST_LINK);
  assert.deepEqual(fromFragment(text).state.data, { InputTensor: { kind: "range", from: -4, to: 4 } });
  assert.equal(toFragment("operator", { ...CELU, data: { InputTensor: { kind: "file", bytes: new Uint8Array(9) } } }).isWhole, false);
});

test("links from anyone are taken only in the form of this page's", () => {
  const pack = (state) => `operator/${Buffer.from(JSON.stringify(state)).toString("base64url")}`;
  for (const state of [null, 1, [], {}, { operator: {} }, { operator: { Type: 1 }, data: {} }, { ...CELU, data: [] }, { ...CELU, data: { x: null } },
    { ...CELU, data: { x: { kind: "file", bytes: [] } } }, { ...CELU, data: { x: { kind: "random", from: 0, to: 1 } } }, { text: 1 }])
    assert.equal(fromFragment(pack(state)).state, null, JSON.stringify(state));
  for (const text of ["operator/%%%", "operator/AAAA", "operator/_w", "", "operator=../../x", "graph=a/b"]) assert.equal(fromFragment(text).state, null, text);
});

test("a state is of its operator, or is not taken", () => {
  const fields = [{ name: "InputTensor", kind: "input_tensor", type: "DML_TENSOR_DESC", required: true }, { name: "Alpha", kind: "attribute" },
    { name: "Others", kind: "input_tensor", type: "DML_TENSOR_DESC[]", required: false }];
  const state = (changes, others = {}) => ({ ...CELU, ...others, operator: { ...CELU.operator, ...changes } });
  for (const good of [CELU, state({ Alpha: "x" }), state({ Others: [F32] }), state({ InputTensor: { ...F32, Sizes: [2, "x"] } }), state({}, { curve: { low: 1, high: 2 } })])
    assert.ok(isOfOperator(good, fields), JSON.stringify(good));
  for (const bad of [state({ InputTensor: null }), state({ InputTensor: [F32] }), state({ InputTensor: { ...F32, DataType: "X" } }), state({ InputTensor: { ...F32, Sizes: "2" } }),
    state({ InputTensor: { ...F32, Strides: {} } }), state({ Others: F32 }), state({ Others: [] }), state({ Others: Array(65).fill(F32) }), state({}, { curve: { low: "x", high: 2 } }), state({}, { curve: null })])
    assert.ok(!isOfOperator(bad, fields), JSON.stringify(bad));
});

test("numbers that are too many to be read", () => {
  const long = { kind: "text", text: "1,".repeat(1 << 20) };
  assert.throws(() => dispatchBody({ ...CELU, data: { InputTensor: long } }, ["InputTensor"]), /2097152 characters, of which this page reads 1048576/);
  const { text, isWhole } = toFragment("operator", { ...CELU, data: { InputTensor: long } });
  assert.ok(!isWhole && text.length < 1000);
});

test("members of a request", () => {
  assert.deepEqual(withValue({ a: [{ b: 1 }, { b: 2 }] }, ["a", 1, "b"], 3), { a: [{ b: 1 }, { b: 3 }] });
  assert.deepEqual(withValue({ a: 1, b: 2 }, ["a"], undefined), { b: 2 });
  assert.deepEqual(pointerParts("/a~1b/0/~0"), ["a/b", "0", "~"]);
});

test("which control a field wants", () => {
  const definitions = {
    Way: { enum: ["UP", "DOWN", "DML_WAY_UP", "DML_WAY_DOWN"] },
    Pair: { type: "object", properties: { Scale: { type: "number" }, Bias: { type: "number", default: 2 } } },
    Relu: { properties: { Type: {}, Alpha: { type: "number" } } },
  };
  assert.deepEqual(controlFor({ $ref: "#/$defs/Way" }, definitions), { kind: "choice", values: ["UP", "DOWN"], optional: false });
  const pair = controlFor({ anyOf: [{ $ref: "#/$defs/Pair" }, { type: "null" }] }, definitions);
  assert.deepEqual([pair.kind, pair.optional, pair.members.map(([name]) => name)], ["group", true, ["Scale", "Bias"]]);
  assert.deepEqual(initialValue(pair, null), { Scale: 1, Bias: 2 });
  const fused = controlFor({ anyOf: [{ discriminator: { mapping: { RELU: "#/$defs/Relu", DML_OPERATOR_RELU: "#/$defs/Relu" } } }, { type: "null" }] }, definitions);
  assert.deepEqual(Object.keys(fused.choices), ["RELU"]);
  assert.deepEqual(initialValue(fused, null), { Type: "RELU", Alpha: 1 });
  assert.deepEqual(controlFor({ type: "number", default: 3 }, {}).slider, [-6, 6]);
  assert.equal(controlFor({ type: "integer" }, {}).slider, null);
  assert.equal(controlFor({ type: "array", items: { $ref: "#/$defs/Pair" } }, definitions).kind, "json");
  assert.deepEqual(controlFor({ type: "array", items: { type: "integer" } }, {}), { kind: "numbers", integer: true, optional: false });
});

test("what is typed", () => {
  const real = { kind: "number", integer: false };
  assert.equal(readText(" 1.5 ", real), 1.5);
  assert.equal(readText("abc", real), "abc");
  assert.equal(readText("", { ...real, optional: true }), null);
  assert.equal(readText("99999999999999999999", { kind: "number", integer: true }), "99999999999999999999");
  assert.deepEqual(readText("[1, 2]", { kind: "json" }), [1, 2]);
  for (const [text, list] of [["1", [1]], ["1, -2.5", [1, -2.5]], ["[1 2]", [1, 2]], ["[1, ", [1]], ["1, a", [1, "a"]], ["[]", []], ["", []]])
    assert.deepEqual(readText(text, { kind: "numbers", integer: false }), list);
  assert.deepEqual(readText("2, 99999999999999999999", { kind: "numbers", integer: true }), [2, "99999999999999999999"]);
  assert.deepEqual(readList("[1, 2 x 3]"), [1, 2, 3]);
  assert.deepEqual(readList("1, a"), [1, "a"]);
  assert.equal(readList(" "), null);
});

test("Python's words", () => {
  assert.equal(toPython({ a: [true, null, 1.5], b: { c: "x\"y" }, d: [] }), '{\n    "a": [True, None, 1.5],\n    "b": {\n        "c": "x\\"y",\n    },\n    "d": [],\n}');
});

test("parameters of a model", () => {
  const body = {
    operator: { Type: "X", InputTensor: F32, ScaleBias: { Scale: 2, Bias: 1 }, Axes: [1, 2], Other: null, OutputTensor: { DataType: "FLOAT16", Sizes: [2] } },
    inputs: { InputTensor: "" }, feature_level: "5_0",
  };
  assert.deepEqual(parameters(body), {
    "ScaleBias.Scale": 2, "ScaleBias.Bias": 1, Axes: [1, 2], "OutputTensor.DataType": "FP16", "OutputTensor.Sizes": [2], feature_level: "5_0",
  });
  assert.equal(withoutTriton(body), null);
  assert.match(withoutTriton({ ...body, operator: { ...body.operator, InputTensor: { ...F32, Strides: [0] } } }), /strides/);
});
