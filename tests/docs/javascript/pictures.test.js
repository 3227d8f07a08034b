import assert from "node:assert/strict";
import { test } from "node:test";
import { colour, path, scale, shownRange, ticks } from "../static/curves.js";
import { NODE, edgePath, layOut, ports, readGraph, withEdge, withOperator } from "../static/graphs.js";
import { bytes, duration, histogram, parseMetrics, quantile, summary } from "../static/metrics.js";
import { addedAt, introducedTypes, ranked, rowAt, select } from "../static/support.js";

test("ticks are round, and lie within", () => {
  assert.deepEqual(ticks(-6, 6), [-6, -4, -2, 0, 2, 4, 6]);
  assert.deepEqual(ticks(0, 1), [0, 0.2, 0.4, 0.6, 0.8, 1]);
  assert.deepEqual(ticks(1, 1), [1]);
  for (const [low, high] of [[1e-9, 3e-9], [-7e30, 5], [0.999, 1.001]])
    assert.ok(ticks(low, high).every((each) => each >= low - 1e-9 * Math.abs(low) && each <= high * (1 + 1e-9)), `${low}`);
});

test("a path has gaps where the function is not finite, and steps", () => {
  const same = (value) => value;
  assert.equal(path([0, 1, 2, 3], [0, 1, NaN, 2], same, same, false), "M0 0L1 1M3 2");
  assert.equal(path([0, 1, 2, 3], [5, 5, 6, 6], same, same, true), "M0 5H2V6H3");
  assert.equal(scale([0, 10], [0, 100])(5), 50);
  assert.deepEqual(shownRange([NaN, Infinity], 4), [-1, 1]);
  const [low, high] = shownRange([-1, 0, 1, 2, 3, 1e30], 12);
  assert.ok(low < -1 && high < 4);
  assert.deepEqual([colour(0), colour(1), colour(9)], [[68, 1, 84], [253, 231, 37], [253, 231, 37]]);
});

const GRAPH = {
  Nodes: [
    { Type: "CONSTANT", Name: "bias", Data: "" },
    { Type: "DML_GRAPH_NODE_TYPE_OPERATOR", Name: "add", Desc: { Type: "DML_OPERATOR_ELEMENT_WISE_ADD" } },
    { Type: "OPERATOR", Desc: { Type: "ACTIVATION_RELU" } },
  ],
  InputEdges: [{ GraphInputIndex: 0, ToNodeIndex: 1, ToNodeInputIndex: 0 }],
  IntermediateEdges: [{ FromNode: "bias", ToNode: "add", ToNodeInput: "BTensor" }, { FromNodeIndex: 1, ToNodeIndex: 2, ToNodeInputIndex: 0 }],
  OutputEdges: [{ FromNodeIndex: 2, FromNodeOutputIndex: 0, GraphOutput: "y" }],
};

test("a graph is read by names and by indices", () => {
  const { nodes, edges } = readGraph(GRAPH);
  assert.deepEqual(nodes.map((each) => each.title), ["CONSTANT", "ELEMENT_WISE_ADD", "ACTIVATION_RELU", "0", "y"]);
  assert.deepEqual(edges.map(({ from, to }) => [from, to]), [["in:0", 1], [0, 1], [1, 2], [2, "out:y"]]);
});

test("what is no graph is drawn as far as it is one", () => {
  for (const graph of [null, 1, [], {}, { Nodes: 3 }, { Nodes: [null, 1], InputEdges: [null, { ToNodeIndex: 9 }], OutputEdges: "x" }]) {
    const laid = layOut(readGraph(graph));
    assert.ok(Number.isFinite(laid.width) && Number.isFinite(laid.height), JSON.stringify(graph));
  }
});

/** A graph of `count` nodes, edges between them as a seed says. */
function randomGraph(count, seed) {
  const next = () => (seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0) / 2 ** 32;
  const nodes = Array.from({ length: count }, (_, id) => ({ id, kind: "operator", title: "x", name: String(id) }));
  const edges = [];
  for (let to = 1; to < count; to++) for (let each = 0; each < 1 + next() * 2; each++) edges.push({ from: Math.floor(next() * to), to, label: "" });
  return { nodes, edges };
}

test("every node lies below what it reads, and none upon another", () => {
  for (let seed = 1; seed <= 40; seed++) {
    const graph = randomGraph(2 + (seed % 30), seed);
    const laid = layOut(graph);
    const at = new Map(laid.nodes.map((each) => [each.id, each]));
    for (const { from, to } of graph.edges) assert.ok(at.get(to).y >= at.get(from).y + NODE.height, `${seed}: ${from} ${to}`);
    for (const one of laid.nodes) {
      assert.ok(one.x >= 0 && one.x + NODE.width <= laid.width && one.y >= 0 && one.y + NODE.height <= laid.height, `${seed}: outside`);
      for (const other of laid.nodes)
        assert.ok(one === other || Math.abs(one.x - other.x) >= NODE.width || Math.abs(one.y - other.y) >= NODE.height, `${seed}: ${one.id} ${other.id}`);
    }
    for (const edge of laid.edges) assert.match(edgePath(edge), /^M-?[\d.]+ [\d.]+[VC]/);
  }
});

test("a box is around its group and nobody else, or says that it is not", () => {
  const chain = { nodes: randomGraph(4, 1).nodes, edges: [[0, 1], [1, 2], [2, 3]].map(([from, to]) => ({ from, to, label: "" })) };
  const { nodes, groups } = layOut(chain, [[0, 1], [2, 3]]);
  assert.deepEqual(groups.map((each) => each.isClear), [true, true]);
  for (const [index, members] of [[0, [0, 1]], [1, [2, 3]]])
    for (const node of nodes) {
      const box = groups[index];
      const isInside = node.y >= box.y && node.y + NODE.height <= box.y + box.height;
      assert.equal(isInside, members.includes(node.id));
    }
  assert.equal(layOut(chain, [[0, 3]]).groups[0].isClear, false);
});

test("circles and long chains end", () => {
  const circle = { nodes: randomGraph(3, 1).nodes, edges: [[0, 1], [1, 2], [2, 0], [1, 1]].map(([from, to]) => ({ from, to, label: "" })) };
  assert.equal(layOut(circle).nodes.length, 3);
  const long = { nodes: Array.from({ length: 400 }, (_, id) => ({ id, kind: "operator", title: "", name: "" })), edges: Array.from({ length: 399 }, (_, from) => ({ from, to: from + 1, label: "" })) };
  assert.equal(layOut(long).height, 400 * (NODE.height + NODE.down) - NODE.down + 2 * NODE.margin);
});

test("a graph is built", () => {
  let graph = withOperator({}, { Type: "ACTIVATION_RELU" });
  graph = withOperator(graph, { Type: "DML_OPERATOR_ACTIVATION_RELU" });
  assert.deepEqual(graph.Nodes.map((each) => each.Name), ["relu", "relu_2"]);
  const { inputs, outputs } = ports(graph, () => ({ inputs: ["InputTensor"], outputs: ["OutputTensor"] }));
  graph = withEdge(graph, { input: "x" }, inputs[0]);
  graph = withEdge(graph, outputs[0], inputs[1]);
  graph = withEdge(graph, outputs[1], { output: "y" });
  assert.deepEqual(readGraph(graph).edges.map(({ from, to }) => [from, to]), [["in:x", 0], [0, 1], [1, "out:y"]]);
  assert.deepEqual(graph.IntermediateEdges, [{ FromNode: "relu", FromNodeOutput: "OutputTensor", ToNode: "relu_2", ToNodeInput: "InputTensor" }]);
});

test("metrics", () => {
  const text = (count, slow) => `# HELP dmlserve_http_requests_total Requests answered.
dmlserve_http_requests_total{method="POST",route="/v1/dispatch",status="200"} ${count}.0
dmlserve_http_requests_total{method="GET",route="/metrics",status="200"} 999.0
dmlserve_http_request_duration_seconds_bucket{le="0.001",route="/v1/dispatch"} ${count - slow}.0
dmlserve_http_request_duration_seconds_bucket{le="0.01",route="/v1/dispatch"} ${count}.0
dmlserve_http_request_duration_seconds_bucket{le="+Inf",route="/v1/dispatch"} ${count}.0
dmlserve_queue_depth 3.0
dmlserve_odd{name="a\\"b,}",other="c"} 1e3
`;
  const before = { at: 100, families: parseMetrics(text(10, 0)) };
  const now = { at: 102, families: parseMetrics(text(110, 50)) };
  assert.deepEqual(now.families.dmlserve_odd, [{ labels: { name: 'a"b,}', other: "c" }, value: 1000 }]);
  const told = summary(now, before);
  assert.deepEqual([told.requestsPerSecond, told.queue, told.median], [50, 3, 0.001]);
  assert.ok(told.p99 > 0.009 && told.p99 <= 0.01);
  assert.equal(summary(before, now).requestsPerSecond, null); // started anew
  assert.equal(quantile([], 0.5), null);
  assert.equal(quantile([[1, 0], [2, 4], [Infinity, 4]], 0.5), 1.5);
  assert.deepEqual(histogram(now.families, "dmlserve_http_request_duration_seconds").at(-1), [Infinity, 110]);
  assert.deepEqual([bytes(512), bytes(1536), bytes(3 * 2 ** 30)], ["512 B", "1.5 KiB", "3.0 GiB"]);
  assert.deepEqual([duration(2e-5), duration(0.0123), duration(null)], ["20 µs", "12.3 ms", "–"]);
});

test("what operators take", () => {
  const operators = [
    { name: "ACTIVATION_RELU", family: "ACTIVATION", summary: "Rectified.", formula: "max(0, x)", support: [
      { level: "1_0", groups: [["all", ["FLOAT32"], [4]]] }, { level: "2_0", groups: [["all", ["FLOAT32"], [4, 5]]] }, { level: "3_0", groups: [["all", ["FLOAT32", "INT8"], [4, 5]]] }] },
    { name: "ACTIVATION_CELU", family: "ACTIVATION", summary: "Exponential, like relu.", formula: "", support: [{ level: "3_0", groups: [["all", ["FLOAT16"], [1]]] }] },
  ];
  assert.deepEqual(introducedTypes(operators[0]), { FLOAT32: "1_0", INT8: "3_0" });
  assert.equal(rowAt(operators[1], "2_1"), null);
  assert.deepEqual([addedAt(operators[0], "1_0"), addedAt(operators[0], "2_0"), addedAt(operators[0], "3_0"), addedAt(operators[0], "4_0")], [["new"], ["4 to 5 dimensions"], ["INT8"], []]);
  const names = (wanted) => select(operators, wanted).map((each) => each.name);
  assert.deepEqual(names({ level: "2_0" }), ["ACTIVATION_RELU"]);
  assert.deepEqual(names({ type: "INT8", level: "2_0" }), []);
  assert.deepEqual(names({ words: "exponential RELU" }), ["ACTIVATION_CELU"]);
  assert.deepEqual([names({ words: "int8" }), names({ words: "relu 2_0" }), names({ words: "int" })], [["ACTIVATION_RELU"], ["ACTIVATION_RELU"], []]);
  assert.deepEqual(ranked([...operators].reverse(), "relu").map((each) => each.name), ["ACTIVATION_RELU", "ACTIVATION_CELU"]);
});
