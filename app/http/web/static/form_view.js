/** Controls for the fields of a descriptor. */

import { field, h, options } from "./dom.js";
import { initialValue, operatorValue, readText } from "./forms.js";

/**
 * What a person fills in for a field. `pointer` is where its value is in the request, `value` what it is at first, and
 * `set` is called with what it becomes; undefined means that it is left out.
 */
export function controlView(name, control, schema, { pointer, value, set, hint = "" }) {
  if (control.optional && !["number", "flag"].includes(control.kind))
    return optional(name, control, schema, { pointer, value, set, hint });
  return plain(name, control, schema, { pointer, value, set, hint });
}

function plain(name, control, schema, about) {
  const { pointer, value, set, hint } = about;
  const described = { hint, pointer: path(pointer) };
  switch (control.kind) {
    case "choice": {
      const select = h("select", { value: withoutPrefix(value, control.values), onchange: () => set(select.value) }, options(control.values));
      return field(name, select, described);
    }
    case "flag": {
      const box = h("input", { type: "checkbox", checked: Boolean(value), onchange: () => set(box.checked) });
      return field(name, box, described);
    }
    case "number": return number(name, control, about);
    case "group": return group(name, control.members, about);
    case "operator": return operator(name, control, about);
    default: {
      const input = h("input", {
        type: "text", spellcheck: "false", autocomplete: "off", class: "mono",
        value: value === undefined || value === null ? "" : JSON.stringify(value),
        oninput: () => set(readText(input.value, control)),
      });
      return field(name, input, described);
    }
  }
}

const path = (pointer) => `/${pointer.join("/")}`;

/** The constant among those without prefix. */
const withoutPrefix = (value, values) => values.find((each) => value === each || String(value).endsWith(`_${each}`)) ?? values[0];

function number(name, control, { pointer, value, set, hint }) {
  const input = h("input", {
    type: "text", inputmode: control.integer ? "numeric" : "decimal", autocomplete: "off", spellcheck: "false",
    value: value === undefined || value === null ? "" : String(value),
    oninput() {
      const read = readText(input.value, control);
      if (slider && typeof read === "number") slider.value = read;
      set(control.optional && read === null ? null : read);
    },
  });
  let slider = null;
  if (control.slider) {
    const [least, most] = control.slider;
    slider = h("input", {
      type: "range", min: least, max: most, step: (most - least) / 400, "aria-label": `${name}, slider`,
      oninput() {
        input.value = String(Number(Number(slider.value).toPrecision(4)));
        set(Number(input.value));
      },
    });
    slider.value = Number(value) || 0;
  }
  return field(name, input, { hint, pointer: path(pointer), after: slider });
}

/** A box to tick, and what there is to fill in if it is. */
function optional(name, control, schema, { pointer, value, set, hint }) {
  const inside = h("div");
  const required = { ...control, optional: false };
  function show(given) {
    inside.replaceChildren(given === null || given === undefined ? "" : plain(name, required, schema, { pointer, value: given, set, hint: "" }));
  }
  const box = h("input", {
    type: "checkbox", checked: value !== null && value !== undefined,
    onchange() {
      const given = box.checked ? initialValue(control, schema) : undefined;
      set(given);
      show(given);
    },
  });
  show(value);
  return h("div", {}, field(`Give ${name}`, box, { hint, pointer: path(pointer) }), inside);
}

function group(name, members, { pointer, value, set }) {
  let current = { ...value };
  return h("fieldset", {}, h("legend", {}, name), members.map(([member, control, schema]) => controlView(member, control, schema, {
    pointer: [...pointer, member],
    value: current[member],
    hint: schema.description ?? "",
    set(given) {
      current = { ...current, [member]: given };
      if (given === undefined) delete current[member];
      set(current);
    },
  })));
}

function operator(name, control, { pointer, value, set }) {
  const names = Object.keys(control.choices);
  const inside = h("div");
  const chosen = () => withoutPrefix(value?.Type, names);
  function show() {
    inside.replaceChildren(control.choices[chosen()].length
      ? group(chosen(), control.choices[chosen()], { pointer, value, set: (given) => set((value = { ...given, Type: chosen() })) })
      : "");
  }
  const select = h("select", {
    value: chosen(),
    onchange() {
      value = operatorValue(control, select.value);
      set(value);
      show();
    },
  }, options(names));
  show();
  return h("div", {}, field(name, select, { pointer: path(pointer) }), inside);
}
