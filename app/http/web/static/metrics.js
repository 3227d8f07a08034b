/** What /metrics tells: Prometheus' text format, and what changes from one reading to the next. */

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/;
const LABEL = /([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g;

/** Samples by the name of their metric: {labels, value} each. */
export function parseMetrics(text) {
  const families = {};
  for (const line of text.split("\n")) {
    const found = line.startsWith("#") ? null : LINE.exec(line);
    if (!found) continue;
    const labels = {};
    for (const [, name, value] of (found[2] ?? "").matchAll(LABEL)) labels[name] = value.replace(/\\n/g, "\n").replace(/\\(["\\])/g, "$1");
    (families[found[1]] ??= []).push({ labels, value: number(found[3]) });
  }
  return families;
}

const number = (text) => ({ "+Inf": Infinity, "-Inf": -Infinity })[text] ?? Number(text);

/** All samples of a metric together, or those for whose labels `isWanted` holds. */
export const total = (families, name, isWanted = () => true) =>
  (families[name] ?? []).filter(({ labels }) => isWanted(labels)).reduce((sum, { value }) => sum + value, 0);

/** A histogram's cumulative buckets, [upper end, count], the samples of all label sets together. */
export function histogram(families, name, isWanted) {
  const counts = new Map();
  for (const { labels, value } of families[`${name}_bucket`] ?? []) {
    if (isWanted && !isWanted(labels)) continue;
    const end = number(labels.le);
    counts.set(end, (counts.get(end) ?? 0) + value);
  }
  return [...counts].sort(([one], [other]) => one - other);
}

/** What came to `after` since `before`, which may be empty. */
export function difference(after, before) {
  const earlier = new Map(before);
  return after.map(([end, count]) => [end, count - (earlier.get(end) ?? 0)]);
}

/** The value below which a `part` of a histogram lies, evenly spread in its bucket; null of an empty one. */
export function quantile(buckets, part) {
  const all = buckets.at(-1)?.[1] ?? 0;
  if (!(all > 0)) return null;
  const rank = part * all;
  let [low, below] = [0, 0];
  for (const [end, count] of buckets) {
    if (count >= rank) return end === Infinity ? low : low + ((end - low) * (rank - below)) / (count - below || 1);
    [low, below] = [end, count];
  }
  return low;
}

/** Routes that people and programs work with, and not those that watch: they would only see themselves. */
export const isWork = ({ route }) => /^\/v[12]/.test(route ?? "") && !/health/.test(route);

/** What is shown of two readings, each {at, families}: seconds of time and what parseMetrics made. */
export function summary(now, before) {
  const seconds = before ? now.at - before.at : 0;
  const requests = total(now.families, "dmlserve_http_requests_total", isWork);
  const earlier = before ? total(before.families, "dmlserve_http_requests_total", isWork) : requests;
  const buckets = (reading) => histogram(reading.families, "dmlserve_http_request_duration_seconds", isWork);
  const recent = before ? difference(buckets(now), buckets(before)) : [];
  const gauge = (name) => total(now.families, `dmlserve_${name}`);
  return {
    // A service that was started anew counts from 0 again.
    requestsPerSecond: seconds > 0 && requests >= earlier ? (requests - earlier) / seconds : null,
    median: quantile(recent, 0.5),
    p99: quantile(recent, 0.99),
    queue: gauge("queue_depth"),
    running: gauge("running_dispatches"),
    memory: gauge("memory_bytes"),
    idle: gauge("idle_buffer_bytes"),
    connections: gauge("connections"),
    graphs: gauge("graphs"),
    graphBytes: gauge("graph_bytes"),
    workers: gauge("workers"),
    uptime: now.at - gauge("start_time_seconds"),
  };
}

/** Bytes in words. */
export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) [count, unit] = [count / 1024, unit + 1];
  return `${count < 10 && unit ? count.toFixed(1) : Math.round(count)} ${units[unit]}`;
}

/** Seconds in words. */
export function duration(seconds) {
  if (seconds === null) return "–";
  if (seconds < 1e-3) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toPrecision(3)} ms`;
  if (seconds < 120) return `${seconds.toPrecision(3)} s`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}
