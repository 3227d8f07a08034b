// All operations of the service whose address is the argument, with types from its OpenAPI document.

import assert from "node:assert/strict";
import { decode, encode } from "@msgpack/msgpack";
import createClient from "openapi-fetch";
import type { components, paths } from "./dmlserve.js";
import { trials } from "./trials.js";

type Schemas = components["schemas"];
type Operator = Schemas["AnyOperator"];
export interface Trial {
  operator: Operator;
  inputs: Record<string, string>;
  expected: { DataType: Schemas["OutputTensor"]["DataType"]; Sizes: number[]; bytes: 1 | 2 | 4 | 8; data: string };
  ulps: number;
}

const baseUrl = process.argv[2]!;
const client = createClient<paths, "application/json" | "application/problem+json">({ baseUrl });

const x = [-4, -2, 0, 1, 2, 4];
const InputTensor: Schemas["TensorDesc"] = { DataType: "FLOAT32", Sizes: [1, 1, 2, 3], Flags: ["OWNED_BY_DML"] };
const SlopeTensor: Schemas["TensorDesc"] = {
  DataType: "DML_TENSOR_DATA_TYPE_FLOAT32",
  Sizes: [1, 1, 2, 3],
  Strides: [0, 0, 0, 0],
};
const bytesOf = (numbers: number[]) => Buffer.from(new Float32Array(numbers).buffer);
const numbersOf = (bytes: Uint8Array) => [...new Float32Array(new Uint8Array(bytes).buffer)];

function assertClose(given: number[], expected: number[]): void {
  assert.equal(given.length, expected.length);
  given.forEach((each, i) => assert.ok(Math.abs(each - expected[i]!) < 1e-5, `${given} instead of ${expected}`));
}

// Every operator, in JSON.
const cases: [Operator, Record<string, number[]>, (v: number) => number][] = [
  [{ Type: "ACTIVATION_HARD_SIGMOID", InputTensor, Alpha: 0.25 }, {}, (v) => Math.max(0, Math.min(0.25 * v + 0.5, 1))],
  [{ Type: "DML_OPERATOR_ACTIVATION_CELU", InputTensor }, {}, (v) => (v > 0 ? v : Math.expm1(v))],
  [
    { Type: "ACTIVATION_PARAMETERIZED_RELU", InputTensor, SlopeTensor },
    { SlopeTensor: [0.5] },
    (v) => (v >= 0 ? v : v / 2),
  ],
  [
    { Type: "ELEMENT_WISE_CONSTANT_POW", InputTensor, OutputTensor: null, ScaleBias: { Scale: 2, Bias: 1 }, Exponent: 2 },
    {},
    (v) => (2 * v + 1) ** 2,
  ],
];
for (const [operator, more, f] of cases) {
  const numbers = Object.entries({ InputTensor: x, ...more });
  const inputs = Object.fromEntries(numbers.map(([name, each]) => [name, bytesOf(each).toString("base64")]));
  const { data, error, response } = await client.POST("/v1/dispatch", { body: { operator, inputs } });
  if (error) throw new Error(error.detail);
  assert.ok(response.headers.get("x-request-id"));
  assert.ok(data.capability && "operator" in data.capability);
  assert.ok(data.capability.operator.endsWith(operator.Type));
  const output = data.outputs["OutputTensor"]!;
  assert.ok(!Array.isArray(output) && typeof output.data === "string");
  const sizes: number[] = output.Sizes;
  const strides: number[] | null = output.Strides;
  assert.deepEqual([output.DataType, sizes, strides], ["FLOAT32", [1, 1, 2, 3], null]);
  assertClose(numbersOf(Buffer.from(output.data, "base64")), x.map(f));
}

// Operators of all kinds, on several data types. Elements are compared by their bits, as integers.
function integersOf(data: string, bytes: Trial["expected"]["bytes"]): bigint[] {
  const buffer = Buffer.from(data, "base64");
  return Array.from({ length: buffer.length / bytes }, (_, i) =>
    bytes === 8 ? buffer.readBigInt64LE(i * bytes) : BigInt(buffer.readIntLE(i * bytes, bytes)),
  );
}
for (const { operator, inputs, expected, ulps } of trials) {
  const { data, error } = await client.POST("/v1/dispatch", { body: { operator, inputs } });
  if (error) throw new Error(`${operator.Type}: ${error.detail}`);
  const output = data.outputs["OutputTensor"]!;
  assert.ok(!Array.isArray(output) && typeof output.data === "string");
  assert.deepEqual([output.DataType, output.Sizes], [expected.DataType, expected.Sizes]);
  const given = integersOf(output.data, expected.bytes);
  const exact = integersOf(expected.data, expected.bytes);
  assert.equal(given.length, exact.length);
  const isClose = (each: bigint, i: number) => each - exact[i]! <= ulps && exact[i]! - each <= ulps;
  assert.ok(given.every(isClose), `${operator.Type}: ${given} instead of ${exact}`);
}

// The operator's type decides which fields there are.
function exponent(operator: Operator): number | undefined {
  switch (operator.Type) {
    case "ELEMENT_WISE_CONSTANT_POW":
    case "DML_OPERATOR_ELEMENT_WISE_CONSTANT_POW":
      return operator.Exponent;
    default:
      return undefined;
  }
}
assert.equal(exponent(cases[3]![0]), 2);
// @ts-expect-error: there is no such operator
const unknown: Operator = { Type: "ACTIVATION_NOTHING", InputTensor };
// @ts-expect-error: a field of another operator
const foreign: Operator = { Type: "ACTIVATION_CELU", InputTensor, Exponent: 1 };
// @ts-expect-error: Exponent is required
const missing: Operator = { Type: "ELEMENT_WISE_CONSTANT_POW", InputTensor };
// @ts-expect-error: there is no such data type
const untyped: Schemas["TensorDesc"] = { DataType: "FLOAT8", Sizes: [1] };
void [unknown, foreign, missing, untyped];

// A refusal is a typed problem.
{
  const { data, error } = await client.POST("/v1/dispatch", { body: { operator: cases[1]![0], inputs: {} } });
  assert.equal(data, undefined);
  const problem: Schemas["ProblemDetails"] = error!;
  assert.equal(problem.status, 422);
  assert.equal(problem.errors[0]?.pointer, "/inputs/InputTensor");
}

// MessagePack, both ways.
{
  const packed = createClient<paths, "application/msgpack">({ baseUrl });
  const content: Omit<Schemas["DispatchRequestMsgpack"], "inputs"> & { inputs: Record<string, Uint8Array> } = {
    operator: cases[1]![0],
    inputs: { InputTensor: bytesOf(x) },
  };
  const { data, response } = await packed.POST("/v1/dispatch", {
    body: "", // a string to the generator
    bodySerializer: () => encode(content),
    headers: { "Content-Type": "application/msgpack", Accept: "application/msgpack" },
    parseAs: "arrayBuffer",
  });
  assert.equal(response.headers.get("content-type"), "application/msgpack");
  const answer = decode(data!) as { outputs: Record<string, { data: Uint8Array }> };
  assertClose(numbersOf(answer.outputs["OutputTensor"]!.data), x.map(cases[1]![2]));
}

// What the service tells of itself.
{
  const capabilities = (await client.GET("/v1/capabilities")).data!;
  assert.equal(capabilities.limits["max_dimension_count"], 8);
  const summaries = (await client.GET("/v1/operators")).data!;
  assert.deepEqual(summaries.map((each) => each.Type), capabilities.operators);
  const query = { family: "ACTIVATION", data_type: "INT8", feature_level: "5_1" } as const;
  const withInt8 = (await client.GET("/v1/operators", { params: { query } })).data!;
  assert.ok(withInt8.some((each) => each.Type === "DML_OPERATOR_ACTIVATION_PARAMETERIZED_RELU"));
  assert.ok(withInt8.length < summaries.length);
  // @ts-expect-error: there is no such data type
  const refused = await client.GET("/v1/operators", { params: { query: { data_type: "FLOAT8" } } });
  assert.equal(refused.error?.status, 422);
  for (const Type of ["ACTIVATION_CELU", "DML_OPERATOR_ACTIVATION_CELU"]) {
    const described = (await client.GET("/v1/operators/{Type}", { params: { path: { Type } } })).data!;
    assert.deepEqual(described.fields.map((each) => each.name).sort(), ["Alpha", "InputTensor", "OutputTensor"]);
    assert.deepEqual(described.support[0]?.tensors["InputTensor"]?.data_types, ["FLOAT32", "FLOAT16"]);
  }
  const nothing = await client.GET("/v1/operators/{Type}", { params: { path: { Type: "ACTIVATION_NOTHING" } } });
  assert.equal(nothing.error?.status, 404);
}
{
  const RequestedFeatureLevels: Schemas["FeatureLevel"][] = ["1_0", "DML_FEATURE_LEVEL_5_0", "3_1"];
  const levels = await client.POST("/v1/feature-support", { body: { Feature: "FEATURE_LEVELS", RequestedFeatureLevels } });
  if (!levels.data || !("MaxSupportedFeatureLevel" in levels.data)) throw new Error("not an answer about levels");
  assert.equal(levels.data.MaxSupportedFeatureLevel, "DML_FEATURE_LEVEL_5_0");
  const type = await client.POST("/v1/feature-support", {
    body: { Feature: "DML_FEATURE_TENSOR_DATA_TYPE_SUPPORT", DataType: "UINT4" },
  });
  assert.deepEqual(type.data, { IsSupported: true });
}

// Health and metrics.
{
  assert.equal((await client.GET("/health/live")).data?.status, "ready");
  assert.equal((await client.GET("/health/ready")).data?.status, "ready");
  assert.match((await client.GET("/metrics", { parseAs: "text" })).data!, /^dmlserve_ready 1\.0$/m);
}
console.log("done");
