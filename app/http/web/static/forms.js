/** Which control a field of a descriptor wants, by its JSON Schema. */

import { parseValue } from "./types.js";

/**
 * A control: {kind, optional, ...}, of which kinds are
 * "choice" with `values`; "flag"; "number" with `integer`, `least`, `most` and, if a slider fits, `slider` (its ends);
 * "numbers" with `integer`, a list of them; "group" with `members`, a list of [name, control, schema]; "operator" with
 * `choices`, {name: members}; and "json".
 */
export function controlFor(schema, definitions) {
  const optional = Boolean(schema.anyOf?.some((each) => each.type === "null"));
  const choices = (schema.anyOf ?? [schema]).filter((each) => each.type !== "null");
  const whole = choices.length === 1 ? resolved(choices[0], definitions) : schema;
  return { ...controlOf(whole, definitions), optional };
}

const resolved = (schema, definitions) => (schema.$ref ? definitions[schema.$ref.split("/").at(-1)] : schema);

function controlOf(schema, definitions) {
  if (schema.enum) return { kind: "choice", values: withoutPrefixed(schema.enum) };
  if (schema.type === "boolean") return { kind: "flag" };
  if (schema.type === "number" || schema.type === "integer") {
    const least = schema.minimum ?? schema.exclusiveMinimum ?? -Infinity;
    const most = schema.maximum ?? schema.exclusiveMaximum ?? Infinity;
    return { kind: "number", integer: schema.type === "integer", least, most, slider: slider(schema, least, most) };
  }
  if (schema.discriminator) {
    const names = withoutPrefixed(Object.keys(schema.discriminator.mapping));
    return {
      kind: "operator",
      choices: Object.fromEntries(names.map((name) =>
        [name, members(resolved({ $ref: schema.discriminator.mapping[name] }, definitions), definitions)])),
    };
  }
  if (schema.type === "object" && schema.properties) return { kind: "group", members: members(schema, definitions) };
  const each = schema.type === "array" ? schema.items?.type : null;
  if (each === "number" || each === "integer") return { kind: "numbers", integer: each === "integer" };
  return { kind: "json" };
}

function members(schema, definitions) {
  return Object.entries(schema.properties).filter(([name]) => name !== "Type")
    .map(([name, each]) => [name, controlFor(each, definitions), each]);
}

/** Of names that are there with and without a prefix, those without. */
function withoutPrefixed(names) {
  return names.filter((name) => !names.some((other) => other !== name && name.startsWith("DML_") && name.endsWith(`_${other}`)));
}

/** Ends of a slider for real numbers, around what is usual; null for whole ones, of which each matters. */
function slider(schema, least, most) {
  if (schema.type === "integer") return null;
  const usual = Math.max(4, 2 * Math.abs(schema.default ?? schema.examples?.[0] ?? 1));
  return [Math.max(least, -usual), Math.min(most, usual)];
}

/** What a new value of the control is: the default, the example, or the plainest that there is. */
export function initialValue(control, schema) {
  const given = schema?.default ?? schema?.examples?.[0];
  if (given !== undefined && given !== null) return given;
  switch (control.kind) {
    case "choice": return control.values[0];
    case "flag": return false;
    case "number": return Math.min(Math.max(1, control.least), control.most);
    case "group": return Object.fromEntries(control.members.filter(([, each]) => !each.optional)
      .map(([name, each, inner]) => [name, initialValue(each, inner)]));
    case "operator": return operatorValue(control, Object.keys(control.choices)[0]);
    default: return [];
  }
}

export function operatorValue(control, name) {
  return { Type: name, ...initialValue({ kind: "group", members: control.choices[name] }, null) };
}

/**
 * What was typed, as the service takes it. What is no number goes there as it is, since the service knows what to say of
 * it.
 */
export function readText(text, control) {
  const trimmed = text.trim();
  if (trimmed === "" && (control.optional || control.kind !== "numbers")) return control.optional ? null : "";
  if (control.kind === "number") return readNumber(trimmed, control);
  if (control.kind === "numbers") return parts(trimmed, /[\s,]+/).map((part) => readNumber(part, control));
  try {
    return JSON.parse(trimmed);
  } catch {
    return trimmed;
  }
}

function readNumber(text, { integer }) {
  const number = Number(text);
  if (integer && /^-?\d+$/.test(text) && !Number.isSafeInteger(number)) return text;
  return Number.isFinite(number) ? number : text;
}

/** Of a list, in brackets or not. */
const parts = (text, separator) => text.replace(/^\[|\]$/g, "").split(separator).filter(Boolean);

/** "2, 3" or "[2, 3]" as a list of numbers; what is none stays text. */
export function readList(text) {
  const trimmed = text.trim();
  if (trimmed === "") return null;
  return parts(trimmed, /[\s,x×]+/).map((part) => {
    try {
      return Number(parseValue(part, "UINT32"));
    } catch {
      return part;
    }
  });
}
