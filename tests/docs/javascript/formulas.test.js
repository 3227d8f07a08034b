/** FORMULAS is a file with each operator's formula, by name. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { toMathML } from "../static/formulas.js";

const formulas = JSON.parse(readFileSync(process.env.FORMULAS, "utf8"));
const treeOf = (text) => toMathML(text)?.tree ?? null;
const linear = (tree) => (typeof tree === "string" ? tree : tree.slice(1).map(linear).join(" "));

test("a formula in mathematical notation", () => {
  const x = ["mi", "x"];
  assert.deepEqual(treeOf("f(x) = x^2 / (1 + abs(x))"), ["math", ["mrow",
    ["mrow", ["mi", "f"], ["mo", "\u2061"], ["mrow", ["mo", "("], x, ["mo", ")"]]], ["mo", "="],
    ["mfrac", ["msup", x, ["mn", "2"]], ["mrow", ["mn", "1"], ["mo", "+"], ["mrow", ["mo", "|"], x, ["mo", "|"]]]]]]);
  assert.match(JSON.stringify(treeOf("f(x) = sqrt(x) * exp(-x)")), /"msqrt".*"msup",\["mi","e"\]/);
  assert.match(JSON.stringify(treeOf("f(x) = x if x > 0, else 0")), /"mo","\{".*"if ".*"else"/);
  assert.match(JSON.stringify(treeOf("f(a, b) = a ^ b")), /⊕/);
});

test("operators bind as they do", () => {
  const text = (formula) => linear(treeOf(formula)).replaceAll("\u2061 ", "");
  assert.match(JSON.stringify(treeOf("y = a / b / c")), /"mfrac",\["mfrac"/);
  assert.match(JSON.stringify(treeOf("y = a + b / c")), /"\+"\],\["mfrac"/);
  assert.match(JSON.stringify(treeOf("y = -x^2")), /"−"\],\["msup"/);
  assert.equal(text("y = a - (b - c)"), "y = a − ( b − c )");
});

test("words are not taken for formulas", () => {
  for (const text of ["", "x", "f(x) = sum of x", "f(x) = x where y", "f(x) = |x|", "f(x) = (x", "f(x) = x)", "f(x) = 1 if x is NaN, else 0", "f(x) = a = b",
    "f(x) = <script>", "f(x) = 0 everywhere", "f(x) = x * (sum of y)", "y = a x b", "y = x, z = sum of y", "y = sum over k of (a + k)", "f(x) = x[1"])
    assert.equal(toMathML(text), null, text);
});

test("words that follow stay words", () => {
  for (const [text, rest] of [["f(x) = a / b; of integers, truncated", "; of integers, truncated"], ["f(x) = x over the row", " over the row"],
    ["f(x) = x, g(y) = y, each repeated", ", each repeated"], ["f(x) = x + 1", ""]])
    assert.equal(toMathML(text).rest, rest, text);
});

test("of all operators, what is drawn has each number and name of the formula, in their order", () => {
  const functions = new Set(["sqrt", "exp", "abs", "floor", "ceil", "pow", "e", "else"]); // "else" is drawn last
  const words = (text) => (text.match(/\d+(?:\.\d+)?|[A-Za-z]\w*/g) ?? []).flatMap((word) => word.split("_")).filter((word) => !functions.has(word));
  let drawn = 0;
  for (const [name, formula] of Object.entries(formulas)) {
    const made = toMathML(formula);
    if (!made) continue;
    drawn++;
    assert.ok(formula.endsWith(made.rest));
    // "with ScaleBias, else g(x) = x": the second left side is the first again, and is drawn once.
    const expected = words(formula.slice(0, formula.length - made.rest.length).replace(/, else \w+\([^)]*\) =/g, ""));
    assert.deepEqual(words(linear(made.tree)), expected, name);
  }
  assert.ok(drawn >= 105, String(drawn));
});

test("what anyone writes makes no error", () => {
  let seed = 7;
  const parts = ["f(x)", "=", "x", "+", "-", "(", ")", "[", "]", ",", "if", "else", "1.5", "^", "|", "!", "exp(", "...", "with"];
  for (let count = 0; count < 5000; count++) {
    let text = "";
    for (let each = 0; each < 8; each++) {
      seed = (Math.imul(seed, 1103515245) + 12345) >>> 0;
      text += `${parts[(seed >>> 8) % parts.length]} `;
    }
    toMathML(text);
  }
});
