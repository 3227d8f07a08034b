/** The matrix of operators and data types: from which feature level on each takes each, and what a level added. */

import { field, h, later, options } from "./dom.js";
import { addedAt, introducedTypes, select } from "./support.js";

export async function mount(container, context) {
  const { catalog } = context;
  const chosen = { words: "", family: "", level: "" };
  const inside = h("div");
  const families = [...new Set(catalog.operators.map((each) => each.family))];
  const count = h("p", { role: "status" });
  let shown = "";

  function show() {
    if (shown === JSON.stringify(chosen)) return; // as after a choice that was made while words were waited for
    shown = JSON.stringify(chosen);
    const found = select(catalog.operators, { words: chosen.words, family: chosen.family })
      .filter((operator) => !chosen.level || addedAt(operator, chosen.level).length);
    count.textContent = chosen.level
      ? `Feature level ${chosen.level} added something to ${found.length} of ${catalog.operators.length} operators.`
      : `${found.length} of ${catalog.operators.length} operators.`;
    inside.replaceChildren(h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Matrix" }, h("table", { class: "matrix" },
      h("thead", {}, h("tr", {}, ["Operator", ...(chosen.level ? [`Added at ${chosen.level}`] : []), ...catalog.data_types].map((each) => h("th", { scope: "col" }, each)))),
      h("tbody", {}, found.map(row)))));
  }

  function row(operator) {
    const introduced = introducedTypes(operator);
    return h("tr", {},
      h("th", { scope: "row" }, h("a", { href: `#operator=${operator.name}` }, operator.name)),
      chosen.level ? h("td", {}, addedAt(operator, chosen.level).join(", ")) : null,
      catalog.data_types.map((type) => h("td", { class: introduced[type] === chosen.level ? "new" : "" }, introduced[type]
        ? h("a", { href: `#operator=${operator.name}`, "aria-label": `${operator.name} on ${type}, from ${introduced[type]}` }, introduced[type])
        : null)));
  }

  const soon = later(show, 100);
  const words = h("input", { type: "search", autocomplete: "off", oninput: () => ((chosen.words = words.value), soon()) });
  const family = h("select", { onchange: () => ((chosen.family = family.value), show()) }, options(["", ...families], ["any", ...families]));
  const level = h("select", { onchange: () => ((chosen.level = level.value), show()) }, options(["", ...catalog.levels], ["all", ...catalog.levels]));
  container.replaceChildren(
    h("h2", { tabindex: "-1" }, "What operators take, and since when"),
    h("p", { class: "hint" }, "Each cell is the feature level from which on some tensor of the operator may be of the type. It leads to the operator."),
    h("div", { class: "fields" }, field("Search", words), field("Family", family), field("Added by feature level", level)),
    count, inside);
  show();
  return { title: "Matrix" };
}
