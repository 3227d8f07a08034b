/** A request in the languages that people call the service from. `isKeyed` says whether it asks for API keys. */

import { TYPES, decode, formatValue, fromBase64, isFloat, shortType } from "./types.js";

/** Numbers that are written out; more of them are given as base64. */
const MOST_NUMBERS = 64;

const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

export function curl(url, body, isKeyed) {
  const key = isKeyed ? ` -H "authorization: Bearer $DMLSERVE_KEY"` : "";
  const { document, fill } = withInputs(body, (values, type) => `[${values.map((value) => jsonNumber(value, type)).join(", ")}]`);
  return `curl -s ${quoted(`${url}/v1/dispatch`)}${key} -H 'content-type: application/json' -d ${quoted(fill(pretty(document)))}`;
}

/** JSON to read: lists of numbers on one line each. */
export function pretty(document) {
  return JSON.stringify(document, null, 2).replace(/\[[\s\d.,eE+-]+\]/g, (list) => list.replace(/\s+/g, " ").replace("[ ", "[").replace(" ]", "]"));
}

/** The elements of an input if they are few and packed, as they are written out for people; else null. */
function fewValues(desc, base64) {
  const type = shortType(desc.DataType);
  if (!TYPES[type].numpy || desc.Strides != null) return null;
  const values = decode(fromBase64(base64), type);
  return values.length <= MOST_NUMBERS ? values : null;
}

/** `body` with a mark for each input whose elements are few, and what puts `write(values, type)` in the marks' places. */
function withInputs(body, write) {
  const texts = [];
  const marked = (desc, base64) => {
    const values = fewValues(desc, base64);
    const text = values && write(values, shortType(desc.DataType));
    return text ? `\u0000${texts.push(text) - 1}` : base64;
  };
  const inputs = Object.fromEntries(Object.entries(body.inputs).map(([field, data]) => [field, Array.isArray(data)
    ? data.map((each, index) => marked(body.operator[field][index], each)) : marked(body.operator[field], data)]));
  return { document: { ...body, inputs }, fill: (text) => text.replace(/"\\u0000(\d+)"/g, (_, index) => texts[index]) };
}

/** An element in JSON, where the sign of -0 needs a fraction, and what is no number is a string. */
function jsonNumber(value, type) {
  const text = formatValue(value, type);
  return isFloat(type) && !Number.isFinite(value) ? `"${text}"` : text === "-0" ? "-0.0" : text;
}

/** Arrays of JavaScript's by data type; there is none of FLOAT16 everywhere. */
const ARRAYS = Object.fromEntries(["Float32", "Float64", "Uint32", "Uint16", "Uint8", "Int32", "Int16", "Int8"]
  .map((name) => [name.toUpperCase(), `${name}Array`]).concat([["UINT64", "BigUint64Array"], ["INT64", "BigInt64Array"]]));

function typedArray(values, type) {
  const texts = values.map((value) => `${formatValue(value, type)}${typeof value === "bigint" ? "n" : ""}`);
  return ARRAYS[type] ? `base64(new ${ARRAYS[type]}([${texts.join(", ")}]))` : null;
}

/** A JSON document as Python writes it. */
export function toPython(document, indent = 0) {
  if (document === null) return "None";
  if (typeof document === "boolean") return document ? "True" : "False";
  if (typeof document !== "object") return JSON.stringify(document);
  const inner = " ".repeat(indent + 4);
  const outer = " ".repeat(indent);
  const isList = Array.isArray(document);
  if (isList && document.every((each) => typeof each !== "object" || each === null))
    return `[${document.map((each) => toPython(each)).join(", ")}]`;
  const members = isList
    ? document.map((each) => toPython(each, indent + 4))
    : Object.entries(document).map(([name, each]) => `${JSON.stringify(name)}: ${toPython(each, indent + 4)}`);
  if (!members.length) return isList ? "[]" : "{}";
  const [open, close] = isList ? "[]" : "{}";
  return `${open}\n${members.map((each) => `${inner}${each},\n`).join("")}${outer}${close}`;
}

/** An array of NumPy's with a tensor's buffer in it. */
function numpyArray(desc, base64) {
  const type = shortType(desc.DataType);
  const { numpy } = TYPES[type];
  if (!numpy) return `base64.b64decode(${JSON.stringify(base64)})`;
  const values = decode(fromBase64(base64), type);
  if (values.length > MOST_NUMBERS) return `np.frombuffer(base64.b64decode(${JSON.stringify(base64)}), np.${numpy})`;
  const word = (value) => {
    const text = formatValue(value, type);
    return { NaN: "np.nan", Infinity: "np.inf", "-Infinity": "-np.inf", "-0": "-0.0" }[text] ?? text;
  };
  return `np.array([${values.map(word).join(", ")}], np.${numpy})`;
}

function eachInput(body) {
  return Object.entries(body.inputs).flatMap(([field, data]) =>
    Array.isArray(data)
      ? data.map((each, index) => [field, index, body.operator[field][index], each])
      : [[field, null, body.operator[field], data]]);
}

export function python(url, body, isKeyed) {
  const inputs = Object.entries(body.inputs).map(([field, data]) => {
    const arrays = [data].flat().map((each, index) =>
      numpyArray(Array.isArray(data) ? body.operator[field][index] : body.operator[field], each));
    const bytes = arrays.map((array) => (array.startsWith("np") ? `${array}.tobytes()` : array));
    return `        ${JSON.stringify(field)}: ${Array.isArray(data) ? `[${bytes.join(", ")}]` : bytes[0]},\n`;
  }).join("");
  const others = Object.entries(body).filter(([name]) => !["operator", "inputs"].includes(name))
    .map(([name, value]) => `    ${JSON.stringify(name)}: ${toPython(value)},\n`).join("");
  const types = Object.entries(TYPES).filter(([, each]) => each.numpy).map(([name, each]) => `${name}=np.${each.numpy}`);
  return `${inputs.includes("b64decode") ? "import base64\n" : ""}${isKeyed ? "import os\n" : ""}
import httpx, msgpack, numpy as np

request = {
    "operator": ${toPython(body.operator, 4)},
    "inputs": {
${inputs}    },
${others}}
headers = {"content-type": "application/msgpack", "accept": "application/msgpack"}
${isKeyed ? 'headers["authorization"] = f"Bearer {os.environ[\'DMLSERVE_KEY\']}"\n' : ""}answer = httpx.post(${JSON.stringify(`${url}/v1/dispatch`)}, content=msgpack.packb(request), headers=headers)
types = dict(
    ${types.join(",\n    ")},
)
for name, output in msgpack.unpackb(answer.raise_for_status().content)["outputs"].items():
    for each in output if isinstance(output, list) else [output]:
        print(name, each["Sizes"], np.frombuffer(each["data"], types[each["DataType"]]))
`.replace(/^\n/, "");
}

export function typescript(url, body, isKeyed) {
  const key = isKeyed ? ', authorization: `Bearer ${process.env.DMLSERVE_KEY}`' : "";
  const { document, fill } = withInputs(body, typedArray);
  const request = fill(pretty(document));
  const base64 = "const base64 = (array: ArrayBufferView) => btoa(String.fromCharCode(...new Uint8Array(array.buffer)));\n";
  const arrays = Object.entries(ARRAYS).map(([type, array]) => `  ${type}: ${array},\n`).join("");
  return `${request.includes("base64(new") ? base64 : ""}const request = ${request};
const response = await fetch(${JSON.stringify(`${url}/v1/dispatch`)}, {
  method: "POST",
  headers: { "content-type": "application/json"${key} },
  body: JSON.stringify(request),
});
const answer = await response.json();
if (!response.ok) throw new Error(answer.detail);
const arrays: Record<string, any> = {
${arrays}  FLOAT16: Reflect.get(globalThis, "Float16Array") ?? Uint16Array, // newer browsers and Node.js have it
};
for (const [name, output] of Object.entries<any>(answer.outputs)) {
  for (const { DataType, Sizes, data } of [output].flat()) {
    const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
    console.log(name, Sizes, new (arrays[DataType] ?? Uint8Array)(bytes.buffer));
  }
}
export {};
`;
}

/** Why the Open Inference Protocol cannot say the request, or null. */
export function withoutTriton(body) {
  for (const [field, index, desc] of eachInput(body)) {
    const name = index === null ? field : `${field}[${index}]`;
    if (desc.Strides != null) return `The Open Inference Protocol has no strides, which ${name} has.`;
    if (!TYPES[shortType(desc.DataType)].triton) return `The Open Inference Protocol has no ${shortType(desc.DataType)}, which ${name} is of.`;
    if (desc.Flags?.length) return `The Open Inference Protocol has no flags, which ${name} has.`;
  }
  return null;
}

export function tritonclient(url, body, isKeyed) {
  const inputs = eachInput(body).map(([field, index, desc, data]) => {
    const name = JSON.stringify(index === null ? field : `${field}[${index}]`);
    const type = shortType(desc.DataType);
    return `tensor = triton.InferInput(${name}, [${desc.Sizes.join(", ")}], "${TYPES[type].triton}")
tensor.set_data_from_numpy(${numpyArray(desc, data)}.reshape(${desc.Sizes.join(", ")}))
inputs.append(tensor)
`;
  }).join("");
  const model = body.operator.Type.replace(/^DML_OPERATOR_/, "").toLowerCase();
  const host = url.replace(/^https?:\/\//, "");
  const isPlain = !url.startsWith("https:");
  const given = Object.entries(parameters(body)).map(([name, value]) => `    ${JSON.stringify(name)}: ${toPython(value)},\n`);
  return `${inputs.includes("b64decode") ? "import base64\n" : ""}${isKeyed ? "import os\n" : ""}
import numpy as np
import tritonclient.http as triton

inputs = []
${inputs}parameters = {
${given.join("")}}
client = triton.InferenceServerClient(${JSON.stringify(host)}${isPlain ? "" : ", ssl=True"})
result = client.infer(${JSON.stringify(model)}, inputs, parameters=parameters${isKeyed ? ', headers={"authorization": f"Bearer {os.environ[\'DMLSERVE_KEY\']}"}' : ""})
for output in result.get_response()["outputs"]:
    print(output["name"], output["shape"], result.as_numpy(output["name"]))
client.close()
`.replace(/^\n/, "");
}

/** Parameters of the model that the operator is: attributes, those in structures dotted, and sizes and types of outputs. */
export function parameters(body) {
  const made = {};
  function put(name, value) {
    if (value === null) return;
    if (typeof value === "object" && !Array.isArray(value)) for (const [member, each] of Object.entries(value)) put(`${name}.${member}`, each);
    else made[name] = value;
  }
  for (const [name, value] of Object.entries(body.operator)) {
    if (name === "Type" || name in body.inputs) continue;
    const isTensor = (each) => each !== null && typeof each === "object" && "DataType" in each && "Sizes" in each;
    if (isTensor(value)) putTensor(name, value);
    else if (Array.isArray(value) && value.some(isTensor)) value.forEach((each, index) => putTensor(`${name}[${index}]`, each));
    else put(name, value);
  }
  function putTensor(name, { DataType, Sizes }) {
    made[`${name}.DataType`] = TYPES[shortType(DataType)].triton ?? DataType;
    made[`${name}.Sizes`] = Sizes;
  }
  if (body.feature_level) made.feature_level = body.feature_level;
  if (body.device) made.device = body.device;
  return made;
}
