/** A field that finds an operator as one types: a combobox with a list box (WAI-ARIA's pattern of that name). */

import { h, newId } from "./dom.js";
import { ranked, select } from "./support.js";

const MOST_SHOWN = 40;

/** `choose` is called with an operator's name. `filter` gives what it must be of. */
export function operatorPicker(operators, { choose, announce, label = "Find an operator", filter = () => ({}) }) {
  const listId = newId("options");
  let found = [];
  let active = -1;
  const list = h("ul", { role: "listbox", id: listId, "aria-label": "Operators", hidden: true });
  const input = h("input", {
    type: "search", role: "combobox", id: newId("search"), autocomplete: "off", spellcheck: "false", "aria-expanded": "false",
    "aria-controls": listId, "aria-autocomplete": "list", placeholder: "name, family, type, level or what it does",
    oninput: () => open(),
    onfocus: () => open(),
    onblur: () => setTimeout(close, 150), // after a click into the list
    onkeydown: key,
  });

  function open() {
    found = ranked(select(operators, { words: input.value, ...filter() }), input.value);
    active = found.length && input.value ? 0 : -1;
    list.replaceChildren(...found.slice(0, MOST_SHOWN).map((each, index) =>
      h("li", { role: "option", id: `${listId}-${index}`, "aria-selected": "false", onmousedown: (event) => (event.preventDefault(), pick(index)) },
        each.name, h("small", {}, each.summary))));
    list.hidden = !found.length;
    input.setAttribute("aria-expanded", String(!list.hidden));
    mark();
    if (input.value) announce(`${found.length} of ${operators.length} operators`);
  }

  function close() {
    list.hidden = true;
    active = -1;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  }

  function mark() {
    [...list.children].forEach((each, index) => each.setAttribute("aria-selected", String(index === active)));
    if (active < 0) return input.removeAttribute("aria-activedescendant");
    input.setAttribute("aria-activedescendant", `${listId}-${active}`);
    list.children[active].scrollIntoView({ block: "nearest" });
  }

  function pick(index) {
    const { name } = found[index];
    input.value = "";
    close();
    choose(name);
  }

  function key(event) {
    const last = list.children.length - 1;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      if (list.hidden) open();
      const step = event.key === "ArrowDown" ? 1 : -1;
      active = active < 0 ? (step > 0 ? 0 : last) : (active + step + last + 1) % (last + 1);
      mark();
    } else if (event.key === "Enter" && active >= 0) pick(active);
    else if (event.key === "Escape") close();
    else return;
    event.preventDefault();
  }

  return h("div", { class: "picker" }, h("label", { for: input.id, class: "name" }, label), input, list);
}
