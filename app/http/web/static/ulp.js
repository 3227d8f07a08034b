/** How far results are apart, in units of the last place: how many numbers of their type lie between, and one. */

import { TYPES, encode, isFloat } from "./types.js";

/** A whole number for each number of the type, in their order; 0 for both zeros. */
function ordinal(value, type) {
  const bytes = encode([value], type);
  let bits = 0n;
  for (let index = bytes.length - 1; index >= 0; index--) bits = (bits << 8n) | BigInt(bytes[index]);
  const sign = 1n << BigInt(TYPES[type].bits - 1);
  return bits & sign ? -(bits ^ sign) : bits;
}

/** BigInt, 0 for equal ones and for two NaN; null where one alone is NaN. */
export function ulpsBetween(one, other, type) {
  if (!isFloat(type)) {
    const difference = BigInt(one) - BigInt(other);
    return difference < 0n ? -difference : difference;
  }
  if (Number.isNaN(one) || Number.isNaN(other)) return Number.isNaN(one) && Number.isNaN(other) ? 0n : null;
  const difference = ordinal(one, type) - ordinal(other, type);
  return difference < 0n ? -difference : difference;
}

/** The differences of two lists of elements, how many are equal, the largest and its place. */
export function compare(ones, others, type) {
  const ulps = ones.map((one, index) => ulpsBetween(one, others[index], type));
  let worst = -1;
  ulps.forEach((each, index) => {
    if (each !== 0n && (worst < 0 || each === null || (ulps[worst] !== null && each > ulps[worst]))) {
      if (worst < 0 || ulps[worst] !== null) worst = index;
    }
  });
  return { ulps, equal: ulps.filter((each) => each === 0n).length, worst, most: worst < 0 ? 0n : ulps[worst] };
}
