/**
 * Formulas as the operators state them ("f(x) = max(0, x) + 1 / x"), in mathematical notation. What begins with words is
 * not touched, and words that follow stay what they are.
 *
 * A tree of elements is [tag, ...children], whose children are trees or texts.
 */

const TOKEN = /\s*(?:(\d+(?:\.\d+)?)|([A-Za-z]\w*(?:\.[A-Za-z]\w*)*'?)|(==|!=|>=|<=|&&|\|\||<<|>>|\.\.\.|\.\.|[-+*/^=<>!~&|(),;:[\]]))/y;

const BINARY = [
  ["||", "&&"], ["==", "!=", ">=", "<=", "<", ">"], ["|", "xor"], ["&"], ["<<", ">>"], ["+", "-"], ["*", "/", "mod"],
];
/** Operators that bind more and more. */

const SIGNS = {
  "*": "⋅", "-": "−", "==": "=", "!=": "≠", ">=": "≥", "<=": "≤", "&&": "∧", "||": "∨", "!": "¬", "~": "∼", xor: "⊕",
  "<<": "≪", ">>": "≫", mod: "mod", "..": "…", "...": "…",
};

const APPLY = "\u2061"; // between a function and its arguments, for those who listen

class NotAFormula extends Error {}

/** How words begin that follow a formula and leave it whole; "sum over k of (...)" is part of one. */
const FOLLOWS = /^(?:[,;:]| over (?!.* of \())/;

/**
 * {tree, rest}: a tree of MathML for the equations that the text begins with, and the words that follow; null where there
 * are none, or where words are part of an equation.
 */
export function toMathML(text) {
  const parser = new Parser(text);
  const statements = parser.statements();
  const rest = text.slice(parser.end);
  return statements.length && (rest === "" || FOLLOWS.test(rest)) ? { tree: ["math", ...rows(statements)], rest } : null;
}

/** Statements, one below the other if there are several. */
function rows(statements) {
  if (statements.length === 1) return statements;
  return [["mtable", ...statements.map((each) => ["mtr", ["mtd", each]])]];
}

class Parser {
  constructor(text) {
    this.tokens = [];
    TOKEN.lastIndex = 0;
    while (TOKEN.lastIndex < text.length) {
      const start = TOKEN.lastIndex;
      const found = TOKEN.exec(text);
      const [whole, number, name, sign] = found ?? [];
      // "x^2" is a power, and "a ^ b" the bits that differ. Magnitudes, "|x|", are no operators.
      if (!found || (sign === "|" && !/^\s/.test(whole))) {
        this.tokens.push({ sign: "?", start });
        break;
      }
      const isXor = sign === "^" && /\s/.test(text[start]);
      this.tokens.push({ ...(number ? { number } : name ? { name } : { sign: isXor ? "xor" : sign }), start });
    }
    this.at = 0;
    this.length = text.length;
  }

  /** Where in the text the next token begins, with the blanks before it. */
  get end() { return this.tokens[this.at]?.start ?? this.length; }

  get next() { return this.tokens[this.at] ?? {}; }
  isName(...names) { return names.includes(this.next.name); }
  isSign(...signs) { return signs.includes(this.next.sign); }

  take(sign) {
    if (!this.isSign(sign)) throw new NotAFormula();
    this.at++;
  }

  word(name) {
    if (!this.isName(name)) throw new NotAFormula();
    this.at++;
  }

  /** The equations of "f(x) = ..., g(x) = ...", up to where something else begins. */
  statements() {
    const made = [];
    let { at } = this;
    try {
      do {
        made.push(this.equation());
        ({ at } = this);
      } while (this.isSign(",", ";") && ++this.at);
    } catch (error) {
      if (!(error instanceof NotAFormula)) throw error;
    }
    this.at = at;
    return made;
  }

  equation() {
    const left = this.expression();
    this.take("=");
    return ["mrow", left, ["mo", "="], this.cases()];
  }

  /** "A", "A if C, else B", "A if C; B if D; else E" or "E otherwise", or "A with Field, else f(x) = B". */
  cases() {
    let value = this.expression();
    if (this.isName("with")) return this.alternatives(value);
    if (!this.isName("if")) return value;
    const made = [];
    for (;;) {
      if (this.isName("otherwise")) {
        this.at++;
        made.push([value, ["mtext", "otherwise"]]);
        break;
      }
      this.word("if");
      made.push([value, ["mrow", ["mtext", "if "], this.condition()]]);
      if (!this.isSign(",", ";")) throw new NotAFormula();
      this.at++;
      const isElse = this.isName("else");
      if (isElse) this.at++;
      value = this.expression();
      if (isElse) {
        made.push([value, ["mtext", "else"]]);
        break;
      }
    }
    return braced(made);
  }

  /** "x is NaN" is no condition that is known here. */
  condition() {
    let made = this.expression();
    if (this.isSign("=")) {
      this.at++;
      made = ["mrow", made, ["mo", "="], this.expression()];
    }
    if (!this.isName("or")) return made;
    this.at++;
    return ["mrow", made, ["mtext", " or "], this.condition()];
  }

  alternatives(value) {
    this.word("with");
    const field = this.next.name;
    if (!field) throw new NotAFormula();
    this.at++;
    this.take(",");
    this.word("else");
    this.expression();
    this.take("=");
    return braced([[value, ["mtext", `with ${field}`]], [this.expression(), ["mtext", "else"]]]);
  }

  expression(level = 0) {
    if (level === BINARY.length) return this.prefixed();
    let left = this.expression(level + 1);
    for (;;) {
      const sign = this.isName("mod") ? "mod" : this.next.sign;
      if (!BINARY[level].includes(sign)) return left;
      this.at++;
      const right = this.expression(level + 1);
      left = sign === "/"
        ? ["mfrac", bare(left), bare(right)]
        : ["mrow", ...flat(left), ["mo", SIGNS[sign] ?? sign], ...flat(right)];
    }
  }

  prefixed() {
    if (!this.isSign("-", "!", "~")) return this.power();
    const { sign } = this.next;
    this.at++;
    return ["mrow", ["mo", SIGNS[sign]], this.prefixed()];
  }

  power() {
    const base = this.postfixed();
    if (!this.isSign("^")) return base;
    this.at++;
    return ["msup", base, bare(this.prefixed())];
  }

  /** Something with indices, "x[i, j]", or with dots, "i...". */
  postfixed() {
    let made = this.primary();
    for (;;) {
      if (this.isSign("[")) {
        this.at++;
        made = ["mrow", made, ["mrow", ["mo", "["], ...this.list("]"), ["mo", "]"]]];
      } else if (this.isSign("...")) {
        this.at++;
        made = ["mrow", made, ["mi", "…"]];
      } else {
        return made;
      }
    }
  }

  primary() {
    const { number, name, sign } = this.next;
    this.at++;
    if (number) return ["mn", number];
    if (sign === "(") {
      const made = this.expression();
      this.take(")");
      return ["mrow", ["mo", "("], made, ["mo", ")"]];
    }
    if (sign === ".." || sign === "...") return ["mi", "…"];
    if (!name || ["if", "else", "with", "otherwise", "or", "mod"].includes(name)) throw new NotAFormula();
    return this.isSign("(") ? this.call(name) : identifier(name);
  }

  call(name) {
    this.take("(");
    const parts = this.list(")");
    const argument = parts.length === 1 ? parts[0] : null;
    if (argument && name === "sqrt") return ["msqrt", argument];
    if (argument && name === "exp") return ["msup", ["mi", "e"], argument];
    if (argument && name === "abs") return ["mrow", ["mo", "|"], argument, ["mo", "|"]];
    if (argument && name === "floor") return ["mrow", ["mo", "⌊"], argument, ["mo", "⌋"]];
    if (argument && name === "ceil") return ["mrow", ["mo", "⌈"], argument, ["mo", "⌉"]];
    if (parts.length === 3 && name === "pow") return ["msup", ["mrow", parts[0]], parts[2]];
    return ["mrow", identifier(name), ["mo", APPLY], ["mrow", ["mo", "("], ...parts, ["mo", ")"]]];
  }

  /** What stands between brackets, commas between. */
  list(end) {
    const made = [];
    while (!this.isSign(end)) {
      if (made.length) {
        this.take(",");
        made.push(["mo", ","]);
      }
      made.push(this.expression());
    }
    this.at++;
    return made;
  }
}

function braced(cases) {
  return ["mrow", ["mo", "{"], ["mtable", ...cases.map((each) => ["mtr", ...each.map((cell) => ["mtd", cell])])]];
}

/** "x_k" has an index. */
function identifier(name) {
  const [first, ...rest] = name.split("_");
  return rest.length ? ["msub", ["mi", first], ["mi", rest.join("_")]] : ["mi", name];
}

/** The parts of a row. What brackets begin stays a row of its own, to whose height they are drawn. */
const flat = (tree) => (tree[0] === "mrow" && tree[1][0] !== "mo" ? tree.slice(1) : [tree]);

/** Without the brackets that a fraction or a power makes superfluous. */
function bare(tree) {
  const isBracketed = tree[0] === "mrow" && tree.length === 4 && tree[1][1] === "(" && tree[3][1] === ")";
  return isBracketed ? tree[2] : tree;
}
