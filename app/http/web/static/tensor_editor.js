/** What a person fills in for a tensor: its description, where its elements come from, and how they lie in memory. */

import { field, h, options, pasteQuickly, setError, svg } from "./dom.js";
import { convert, decode, formatValue, isFloat, shortType } from "./types.js";
import { isLayout, memoryMap } from "./layout.js";
import { MOST_ELEMENTS, dataOf } from "./requests.js";
import { pixelsToElements, readTensors } from "./files.js";
import { readList } from "./forms.js";

const KINDS = { text: "Numbers", range: "A range", random: "Random", special: "Special values", file: "A file" };

/** Elements of a file that are written out as numbers, which can be changed and put into a link. */
const MOST_WRITTEN = 1024;

/** Pixels of a picture's longer side; larger ones are made smaller. */
const MOST_PIXELS = 256;

const list = (values) => (values ?? []).join(", ");

/**
 * Fields for the description `desc` of a tensor. `set` is called with what it becomes. `types` are those that it may be of.
 * Controls carry the pointers of the request's members.
 */
export function descriptionView(desc, { pointer, types, isInput, set }) {
  const change = (member, value) => {
    desc = { ...desc, [member]: value };
    if (value === null) delete desc[member];
    set(desc);
  };
  const type = h("select", { value: shortType(desc.DataType), onchange: () => change("DataType", type.value) }, options(types));
  const sizes = h("input", {
    type: "text", value: list(desc.Sizes), inputmode: "numeric", autocomplete: "off",
    oninput: () => change("Sizes", readList(sizes.value) ?? []),
  });
  const strides = h("input", {
    type: "text", value: list(desc.Strides), placeholder: "packed", inputmode: "numeric", autocomplete: "off",
    oninput: () => change("Strides", readList(strides.value)),
  });
  const owned = h("input", {
    type: "checkbox", checked: (desc.Flags ?? []).length > 0,
    onchange: () => change("Flags", owned.checked ? ["OWNED_BY_DML"] : null),
  });
  const view = h("div", {},
    h("div", { class: "fields" },
      field("Data type", type, { pointer: `${pointer}/DataType` }),
      field("Sizes", sizes, { pointer: `${pointer}/Sizes` }),
      field("Strides", strides, { pointer: `${pointer}/Strides` })),
    isInput ? field("OWNED_BY_DML", owned, { pointer: `${pointer}/Flags` }) : null);
  return {
    view,
    /** Take a tensor's type and sizes over, as those of a file. */
    take(given) {
      desc = { ...desc, ...given };
      if (given.Sizes) delete desc.Strides;
      type.value = shortType(desc.DataType);
      sizes.value = list(desc.Sizes);
      strides.value = list(desc.Strides);
      set(desc);
    },
  };
}

/** A tensor to be sent: `desc` and `source`, of which `set(desc, source)` tells changes. */
export function tensorEditor(name, { desc, source, pointer, dataPointer, types, hint, set, announce, isFixed = false }) {
  let number = 0;
  const changed = () => {
    refresh();
    set(desc, source);
  };
  const description = isFixed ? null : descriptionView(desc, {
    pointer, types, isInput: true,
    set(given) {
      desc = given;
      changed();
    },
  });
  const inside = h("div");
  const kind = h("select", { value: source.kind, onchange: () => choose(kind.value) }, options(Object.keys(KINDS).filter((each) => each !== "file"), Object.values(KINDS)));
  const memory = h("details", { ontoggle: refresh }, h("summary", {}, "Memory: which element lies where"), h("div"));
  const anchor = kind;

  function choose(given) {
    if (given === "text") source = { kind: "text", text: written() };
    else if (given === "special") source = { kind: "special" };
    else if (given === "range") source = { kind: "range", from: source.from ?? -4, to: source.to ?? 4 };
    else source = { kind: "random", from: source.from ?? -1, to: source.to ?? 1, seed: source.seed ?? 1 };
    show();
    changed();
  }

  /** The present elements as text, if there are not too many. */
  function written() {
    try {
      const { values } = dataOf(source, desc);
      return values.slice(0, MOST_WRITTEN).map((value) => formatValue(value, shortType(desc.DataType))).join(", ");
    } catch {
      return source.text ?? "0";
    }
  }

  function show() {
    kind.value = source.kind;
    const real = (member, label) => {
      const input = h("input", {
        type: "number", step: "any", value: String(source[member]),
        oninput() {
          if (Number.isFinite(input.valueAsNumber)) source = { ...source, [member]: member === "seed" ? Math.trunc(input.valueAsNumber) : input.valueAsNumber };
          changed();
        },
      });
      return field(label, input);
    };
    if (source.kind === "text") {
      const area = h("textarea", {
        spellcheck: "false", value: source.text, "aria-label": `Numbers of ${name}`,
        oninput() {
          source = { kind: "text", text: area.value };
          changed();
        },
        onpaste: pasteQuickly,
      });
      inside.replaceChildren(field("Numbers, as they lie in memory; lists, lines or CSV", area));
    } else if (source.kind === "range") inside.replaceChildren(h("div", { class: "fields" }, real("from", "From"), real("to", "To")));
    else if (source.kind === "random") inside.replaceChildren(h("div", { class: "fields" }, real("from", "From"), real("to", "To"), real("seed", "Seed")));
    else if (source.kind === "file") inside.replaceChildren(h("p", {}, `${source.name}: ${source.type}, [${list(source.sizes)}]`));
    else inside.replaceChildren(h("p", { class: "hint" }, "Zeros, the type's ends, subnormal numbers, infinities and NaN, again and again."));
  }

  const useSizes = h("button", { type: "button", hidden: true });

  function refresh() {
    let text = "";
    useSizes.hidden = true;
    try {
      const made = dataOf(source, desc);
      const isOther = made.sizes && isLayout(desc.Sizes, desc.Strides) && made.values.length !== dataCount();
      if (isOther && description) {
        useSizes.hidden = false;
        useSizes.textContent = `Use the sizes [${list(made.sizes)}]`;
        useSizes.onclick = () => description.take({ Sizes: made.sizes });
      }
    } catch (error) {
      text = error.message;
    }
    setError(anchor, text);
    if (memory.open) memory.lastChild.replaceChildren(memoryPicture(name, desc, source));
  }

  function dataCount() {
    return memoryMap(desc.Sizes, desc.Strides, 1).length;
  }

  async function take(files) {
    const [file] = files;
    if (!file) return;
    const mine = ++number;
    try {
      const tensor = file.type.startsWith("image/") ? await readImage(file, desc) : await readFile(file, name);
      if (mine !== number) return; // another file came meanwhile
      source = { kind: "file", ...tensor };
      const count = decode(tensor.bytes, tensor.type).length;
      if (count > MOST_ELEMENTS) throw new Error(`${file.name} has ${count} elements; this page sends at most ${MOST_ELEMENTS}.`);
      const type = types.includes(tensor.type) ? tensor.type : shortType(desc.DataType);
      if (count <= MOST_WRITTEN) {
        const values = decode(tensor.bytes, tensor.type).map((value) => formatValue(convert(value, type), type));
        source = { kind: "text", text: values.join(", ") };
      }
      show();
      if (description) description.take({ DataType: type, Sizes: tensor.sizes });
      else changed();
      announce(`${file.name} was read: ${tensor.type}, sizes ${list(tensor.sizes)}.`);
    } catch (error) {
      setError(anchor, error.message);
    }
  }

  const chosen = h("input", { type: "file", "aria-label": `File for ${name}`, accept: ".npy,.npz,.safetensors,image/*", onchange: () => take(chosen.files) });
  const drop = h("div", {
    class: "drop",
    ondragover(event) {
      event.preventDefault();
      drop.classList.add("over");
    },
    ondragleave: () => drop.classList.remove("over"),
    ondrop(event) {
      event.preventDefault();
      drop.classList.remove("over");
      take(event.dataTransfer.files);
    },
  }, h("span", { class: "hint" }, ".npy, .npz, .safetensors or an image, dropped here or chosen: "), chosen);

  show();
  const view = h("div", {},
    hint ? h("p", { class: "hint" }, hint) : null, description?.view,
    field("Elements", kind, { pointer: dataPointer }), inside, useSizes, drop, memory);
  // Errors are shown by id, which must be in the page first.
  queueMicrotask(refresh);
  return view;
}

async function readFile(file, name) {
  const tensors = readTensors(file.name, new Uint8Array(await file.arrayBuffer()));
  // Of several the one that is called as the tensor here, if there is one.
  return tensors.find((each) => each.name === name) ?? tensors[0];
}

/** A picture as a tensor [1, channels, height, width]; of one channel if it is grey. */
async function readImage(file, desc) {
  const bitmap = await createImageBitmap(file);
  const factor = Math.min(1, MOST_PIXELS / Math.max(bitmap.width, bitmap.height));
  const [width, height] = [bitmap.width, bitmap.height].map((each) => Math.max(1, Math.round(each * factor)));
  const canvas = h("canvas", { width, height });
  const context = canvas.getContext("2d");
  context.drawImage(bitmap, 0, 0, width, height);
  const pixels = context.getImageData(0, 0, width, height).data;
  const channels = pixels.every((each, index) => index % 4 === 3 || each === pixels[index - (index % 4)]) ? 1 : 3;
  const type = shortType(desc.DataType);
  const isReal = isFloat(type);
  const values = pixelsToElements(pixels, width, height, channels, isReal);
  const kept = isReal ? "FLOAT32" : "UINT8";
  const bytes = isReal ? new Uint8Array(Float32Array.from(values).buffer) : Uint8Array.from(values);
  return { name: file.name, type: kept, sizes: [1, channels, height, width], bytes };
}

const CELL = { width: 58, height: 40, across: 8 };

/** Memory as cells, one an element: its number, and the coordinates that lead there. */
function memoryPicture(name, desc, source) {
  if (!isLayout(desc.Sizes, desc.Strides)) return h("p", { class: "hint" }, "The sizes and strides are none that memory could have.");
  const map = memoryMap(desc.Sizes, desc.Strides ?? null, 128);
  let values = [];
  try {
    ({ values } = dataOf(source, desc));
  } catch {
    // What is wrong with them is said elsewhere.
  }
  const type = shortType(desc.DataType);
  const rows = Math.ceil(map.cells.length / CELL.across);
  const text = `${map.elements} elements in ${map.length} places${map.gaps ? `, ${map.gaps} of them gaps` : ""}` +
    `${map.shared ? `, ${map.shared} read more than once` : ""}${map.isWhole ? "" : ` (the first ${map.cells.length} are shown)`}.`;
  const picture = svg("svg", {
    class: "memory", role: "img", "aria-label": text,
    viewBox: `0 0 ${CELL.across * CELL.width + 2} ${rows * (CELL.height + 14) + 2}`, width: CELL.across * CELL.width,
  }, map.cells.map((cell) => {
    const x = 1 + (cell.place % CELL.across) * CELL.width;
    const y = 1 + Math.floor(cell.place / CELL.across) * (CELL.height + 14);
    const [reader] = cell.readers;
    const value = values[cell.place] === undefined ? "" : formatValue(values[cell.place], type);
    return svg("g", {},
      svg("title", {}, `Place ${cell.place}: ${cell.count ? cell.readers.map((each) => `[${each}]`).join(" ") : "gap"}${cell.count > cell.readers.length ? ` and ${cell.count - cell.readers.length} more` : ""}`),
      svg("rect", { x, y, width: CELL.width - 3, height: CELL.height, class: cell.count ? (cell.count > 1 ? "shared" : "") : "gap" }),
      svg("text", { x: x + CELL.width / 2 - 1, y: y + 17 }, value.slice(0, 8)),
      svg("text", { x: x + CELL.width / 2 - 1, y: y + 32, class: "place" }, reader ? `[${reader}]${cell.count > 1 ? ` ×${cell.count}` : ""}`.slice(0, 14) : "gap"),
      svg("text", { x: x + CELL.width / 2 - 1, y: y + CELL.height + 9, class: "place" }, String(cell.place)));
  }));
  return h("div", {}, h("p", { class: "hint" }, text), h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Memory of ${name}` }, picture));
}
