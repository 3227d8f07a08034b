/** Curves as lines of an SVG: scales, ticks, steps and gaps. */

/** Round numbers from `low` to `high`, some six of them. */
export function ticks(low, high, most = 7) {
  if (!(high > low)) return [low];
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough * 0.999999);
  const made = [];
  for (let count = Math.ceil(low / step - 1e-9); count * step <= high + step * 1e-9; count++) made.push(Number((count * step).toPrecision(12)));
  return made;
}

/** Positions from `low` to `high`, both among them. */
export const samples = (low, high, count) =>
  Array.from({ length: count }, (_, index) => low + ((high - low) * index) / (count - 1));

/** The least and greatest of y worth showing: all, or where it rises without end so much as of x. */
export function shownRange(ys, width) {
  const finite = ys.filter(Number.isFinite);
  if (!finite.length) return [-1, 1];
  const near = finite.filter((y) => Math.abs(y) <= Math.max(width, 4));
  const seen = near.length > finite.length / 4 ? near : finite;
  const [low, high] = [seen.reduce((a, b) => Math.min(a, b)), seen.reduce((a, b) => Math.max(a, b))];
  const margin = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  return [low - margin, high + margin];
}

/** A function from numbers in `from` to those in `to`. */
export const scale = ([low, high], [first, last]) => (value) => first + ((value - low) / (high - low)) * (last - first);

/**
 * The path through points, interrupted where y is not finite. With `isStepped`, y stays until the next x: so a coarse
 * type is seen as it is.
 */
export function path(xs, ys, x, y, isStepped) {
  let made = "";
  let isOpen = false;
  let last = null;
  for (let index = 0; index < xs.length; index++) {
    if (!Number.isFinite(ys[index])) {
      isOpen = false;
      continue;
    }
    const [left, top] = [round(x(xs[index])), round(clamp(y(ys[index])))];
    if (!isOpen) made += `M${left} ${top}`;
    else if (!isStepped) made += `L${left} ${top}`;
    else if (top !== last) made += `H${left}V${top}`;
    else if (index === xs.length - 1 || !Number.isFinite(ys[index + 1])) made += `H${left}`;
    isOpen = true;
    last = top;
  }
  return made;
}

const round = (value) => Math.round(value * 10) / 10;
const clamp = (value) => Math.max(-1e4, Math.min(1e4, value));

/** A short text for a tick. */
export const label = (value) => String(Number(value.toPrecision(6)));

/** A colour for a number between 0 and 1: from dark blue by green to yellow, in equal steps to the eye. */
export function colour(part) {
  const stops = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
  const place = Math.min(Math.max(part, 0), 1) * (stops.length - 1);
  const first = Math.min(Math.floor(place), stops.length - 2);
  return stops[first].map((low, index) => Math.round(low + (stops[first + 1][index] - low) * (place - first)));
}
