"use strict";
(() => {
  const form = document.querySelector("form[data-live]");
  const count = form.querySelector("output");
  const operators = [...document.querySelectorAll(".operator")].map((section) => ({
    section,
    entry: document.querySelector(`nav a[href="#${section.id}"]`).parentElement,
    family: section.dataset.family,
    // From which feature level on which data types: "1_0:FLOAT32,FLOAT16 5_1:INT8", the oldest first.
    rows: section.dataset.support.split(" ").map((row) => row.split(":")),
    text: [".summary", ".formula", "h3"].map((part) => section.querySelector(part).textContent).join("\n").toLowerCase(),
  }));

  // The same choice as GET /v1/operators makes, and besides by words. Levels compare as their names do.
  function isWanted(operator, family, dataType, level, words) {
    const row = operator.rows.filter(([from]) => !level || from <= level).at(-1);
    return (
      row !== undefined &&
      (!family || operator.family === family) &&
      (!dataType || row[1].split(",").includes(dataType)) &&
      words.every((word) => operator.text.includes(word))
    );
  }

  function update() {
    const value = (name) => form.elements[name].value;
    const words = value("search").toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const operator of operators) {
      const wanted = isWanted(operator, value("family"), value("data_type"), value("feature_level"), words);
      operator.section.hidden = operator.entry.hidden = !wanted;
      shown += wanted;
    }
    for (const family of document.querySelectorAll("nav > div")) {
      family.hidden = !family.querySelector("li:not([hidden])");
    }
    count.textContent = `${shown} of ${operators.length} operators`;
  }

  // A link to an operator that the filter hides shows it again.
  function reveal() {
    const target = operators.find((operator) => operator.section.id === location.hash.slice(1));
    if (target?.section.hidden) {
      form.reset();
      update();
      target.section.scrollIntoView();
    }
  }

  for (const code of document.querySelectorAll("pre code")) {
    const here = new URL(".", location.href).href.replace(/\/$/, "");
    code.textContent = code.textContent.replace("http://localhost:8000", here);
  }
  form.querySelector("button").hidden = true;
  form.addEventListener("input", update);
  form.addEventListener("submit", (event) => event.preventDefault());
  addEventListener("hashchange", reveal);
  update(); // a browser may have kept what was typed before a reload
})();
