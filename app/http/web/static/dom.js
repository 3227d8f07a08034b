/** Elements of the page. Text is only ever put in as text. */

const NAMESPACES = { svg: "http://www.w3.org/2000/svg", math: "http://www.w3.org/1998/Math/MathML" };

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else if (name === "checked") element.checked = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(9).filter((each) => each !== null && each !== undefined && each !== false));
  return element;
}

/** An element of HTML. Attributes named on... are listeners. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  // A select has its value once it has its options.
  const { value, ...others } = attributes;
  fill(element, others, children);
  if (value !== undefined && value !== null) element.value = value;
  return element;
}

export const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS(NAMESPACES.svg, tag), attributes, children);

/** The elements of a tree of formulas.js. */
export function math(tree) {
  if (typeof tree === "string") return tree;
  const [tag, ...children] = tree;
  return fill(document.createElementNS(NAMESPACES.math, tag), {}, children.map(math));
}

let counter = 0;
export const newId = (name = "id") => `${name}-${++counter}`;

const errors = new WeakMap();

/** A control with its name above, and with a place for what is wrong with it. */
export function field(name, control, { hint = "", pointer = null, after = null } = {}) {
  const id = (control.id ||= newId("field"));
  const error = h("p", { class: "error", id: `${id}-error`, hidden: true });
  const described = hint ? h("span", { class: "hint", id: `${id}-hint` }, hint) : null;
  errors.set(control, error);
  control.setAttribute("aria-describedby", [described?.id, error.id].filter(Boolean).join(" "));
  if (pointer) control.dataset.pointer = pointer;
  const isCheckbox = control.type === "checkbox";
  const label = h("label", { for: id, class: isCheckbox ? "" : "name" }, name);
  return h("div", { class: "field" }, isCheckbox ? [control, label] : [label, control], after, described, error);
}

export const options = (values, texts = values) => values.map((value, index) => h("option", { value }, texts[index]));

/** What is wrong with a control, or "" for nothing. */
export function setError(control, text) {
  const error = errors.get(control);
  if (!error) return;
  error.textContent = text;
  error.hidden = !text;
  if (text) control.setAttribute("aria-invalid", "true");
  else control.removeAttribute("aria-invalid");
}

/** Characters from which a paste is put in by us: Chromium's own way takes minutes for some thousand lines. */
const LONG_PASTE = 4096;

/** What a text area does with what is pasted. */
export function pasteQuickly(event) {
  const { currentTarget: area, clipboardData } = event;
  const text = clipboardData.getData("text/plain");
  if (text.length < LONG_PASTE) return;
  event.preventDefault();
  area.setRangeText(text, area.selectionStart, area.selectionEnd, "end");
  area.dispatchEvent(new Event("input"));
}

/** `work`, once nothing called for it for so many milliseconds. */
export function later(work, milliseconds) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...given), milliseconds);
  };
}

/** A button that copies what `text` gives. */
export function copyButton(name, text, announce) {
  return h("button", {
    type: "button",
    async onclick() {
      try {
        await navigator.clipboard.writeText(text());
        announce("Copied.");
      } catch {
        announce("The browser does not let this page copy; select the text instead.");
      }
    },
  }, name);
}

/** Have the browser save a file. */
export function download(name, bytes) {
  const url = URL.createObjectURL(new Blob([bytes]));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
