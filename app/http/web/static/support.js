/** Which operators there are, what they take and from which feature level on. */

/** Types of a row of support, whatever tensor may have them. */
const typesOf = (row) => new Set(row.groups.flatMap(([, types]) => types));

/** The level from which on some tensor of the operator may be of each type: {type: level}. */
export function introducedTypes(operator) {
  const made = {};
  for (const row of operator.support) for (const type of typesOf(row)) made[type] ??= row.level;
  return made;
}

/** The row in force at a level, the last that is not above it; levels compare as their names do. */
export const rowAt = (operator, level) => operator.support.filter((row) => row.level <= level).at(-1) ?? null;

/** What a level added to an operator, in words; an empty list for nothing. */
export function addedAt(operator, level) {
  const index = operator.support.findIndex((row) => row.level === level);
  if (index < 0) return [];
  if (index === 0) return ["new"];
  const [before, row] = [operator.support[index - 1], operator.support[index]];
  const made = [...typesOf(row)].filter((type) => !typesOf(before).has(type));
  const ranks = (each) => each.groups.flatMap(([, , counts]) => counts);
  const [least, most] = [Math.min(...ranks(row)), Math.max(...ranks(row))];
  if (least < Math.min(...ranks(before)) || most > Math.max(...ranks(before))) made.push(`${least} to ${most} dimensions`);
  return made.length ? made : ["more combinations of tensors"];
}

/**
 * The operators that a search means: by words of name, summary and formula, a type that they take and a level that added
 * something to them; and by family, type and level.
 */
export function select(operators, { words = "", family = "", type = "", level = "" }) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  return operators.filter((operator) => {
    const row = level ? rowAt(operator, level) : operator.support.at(-1);
    const text = `${operator.name} ${operator.family} ${operator.summary} ${operator.formula}`.toLowerCase();
    return row && (!family || operator.family === family) && (!type || typesOf(row).has(type)) &&
      wanted.every((word) => text.includes(word) || isTypeOrLevel(operator, row, word));
  });
}

const isTypeOrLevel = (operator, row, word) =>
  typesOf(row).has(word.toUpperCase()) || operator.support.some((each) => each.level === word);

/** `operators` with those first whose name has the words, or begins with them. */
export function ranked(operators, words) {
  const wanted = words.toLowerCase().trim().split(/\s+/).filter(Boolean);
  const last = (name) => name.toLowerCase().replace(/^(activation|element_wise)_/, "");
  const rank = ({ name }) => {
    if (!wanted.length) return 0;
    const lower = name.toLowerCase();
    if (lower === wanted.join("_") || last(name) === wanted.join("_")) return 0;
    if (last(name).startsWith(wanted[0])) return 1;
    return wanted.every((word) => lower.includes(word)) ? 2 : 3;
  };
  return operators.map((each, index) => [rank(each), index, each])
    .sort(([one, first], [other, second]) => one - other || first - second).map(([, , each]) => each);
}
