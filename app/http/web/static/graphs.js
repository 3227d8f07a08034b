/** Graphs of operators: whose edges lead where, by name or by index, and where each node goes in a picture. */

const short = (name) => String(name ?? "").replace(/^DML_(OPERATOR|GRAPH_NODE_TYPE)_/, "");

/**
 * The nodes and edges of a DML_GRAPH_DESC in JSON. Nodes of the result are those of the graph, in their order, with `id`
 * their index, then one for each input ("in:x") and output ("out:y"). Edges are {from, to, label}. What an edge names
 * that is not there is left out: the service says what is wrong with it.
 */
export function readGraph(graph) {
  const given = Array.isArray(graph?.Nodes) ? graph.Nodes : [];
  const nodes = given.map((node, index) => ({
    id: index,
    kind: short(node?.Type) === "CONSTANT" ? "constant" : "operator",
    title: short(node?.Type) === "CONSTANT" ? "CONSTANT" : short(node?.Desc?.Type) || "?",
    name: node?.Name ?? `#${index}`,
  }));
  const ends = new Map();
  function end(kind, name) {
    const id = `${kind === "input" ? "in" : "out"}:${name}`;
    if (!ends.has(id)) ends.set(id, { id, kind, title: String(name), name: kind });
    return id;
  }
  const nodeAt = (name, index) => {
    const found = name !== undefined ? given.findIndex((node) => node?.Name === name) : index;
    return Number.isInteger(found) && found >= 0 && found < nodes.length ? found : null;
  };
  const edges = [];
  const link = (from, to, label) => {
    if (from !== null && to !== null) edges.push({ from, to, label: String(label ?? "") });
  };
  const list = (name) => (Array.isArray(graph?.[name]) ? graph[name].filter((each) => each && typeof each === "object") : []);
  for (const each of list("InputEdges"))
    link(end("input", each.GraphInput ?? each.GraphInputIndex), nodeAt(each.ToNode, each.ToNodeIndex), each.ToNodeInput ?? each.ToNodeInputIndex);
  for (const each of list("IntermediateEdges"))
    link(nodeAt(each.FromNode, each.FromNodeIndex), nodeAt(each.ToNode, each.ToNodeIndex), each.ToNodeInput ?? each.ToNodeInputIndex);
  for (const each of list("OutputEdges"))
    link(nodeAt(each.FromNode, each.FromNodeIndex), end("output", each.GraphOutput ?? each.GraphOutputIndex), each.FromNodeOutput ?? each.FromNodeOutputIndex);
  return { nodes: [...nodes, ...ends.values()], edges };
}

export const NODE = { width: 190, height: 46, across: 28, down: 58, margin: 24 };

/**
 * Where each node goes: layers from top to bottom, each node below all that it reads, those of a layer in the order that
 * crosses few edges (means of the neighbours' places, Sugiyama). `groups` are lists of node ids that are drawn as one box,
 * as those of one kernel are; its nodes stand side by side in each layer. Also of graphs that have cycles.
 */
export function layOut({ nodes, edges }, groups = []) {
  const layer = layers(nodes, edges);
  const groupOf = new Map(groups.flatMap((group, index) => group.map((id) => [id, index])));
  // An edge over several layers gets a place in each of them, so that no node lies upon it.
  const byLayer = [];
  const put = (item) => (byLayer[item.layer] ??= []).push(item);
  const items = new Map();
  for (const node of nodes) {
    const item = { id: node.id, layer: layer.get(node.id), node, above: [], below: [], group: groupOf.get(node.id) ?? null };
    items.set(node.id, item);
    put(item);
  }
  const routes = edges.map((edge) => {
    const route = [items.get(edge.from)];
    const last = items.get(edge.to);
    for (let at = route[0].layer + 1; at < last.layer; at++) {
      const bend = { id: null, layer: at, node: null, above: [], below: [], group: null };
      put(bend);
      route.push(bend);
    }
    route.push(last);
    for (let each = 1; each < route.length; each++) {
      route[each].above.push(route[each - 1]);
      route[each - 1].below.push(route[each]);
    }
    return { edge, route };
  });
  for (const row of byLayer) row.forEach((item, index) => (item.place = index));
  for (let round = 0; round < 8; round++) {
    const isDown = round % 2 === 0;
    for (const row of isDown ? byLayer : [...byLayer].reverse()) order(row, isDown ? "above" : "below");
  }
  place(byLayer);
  const width = Math.max(0, ...[...items.values()].map((item) => item.x + NODE.width / 2)) + NODE.margin;
  const height = byLayer.length * (NODE.height + NODE.down) - NODE.down + 2 * NODE.margin;
  const top = (item) => NODE.margin + item.layer * (NODE.height + NODE.down);
  return {
    width, height: Math.max(height, 0),
    nodes: [...items.values()].map((item) => ({ ...item.node, x: item.x - NODE.width / 2, y: top(item), group: item.group })),
    edges: routes.map(({ edge, route }) => ({ ...edge, points: points(route, top) })),
    groups: groups.map((group, index) => ({ index, ...box(group, items, top) })),
  };
}

/** Each node's longest way from a node that reads nothing; edges that close a cycle do not count. */
function layers(nodes, edges) {
  const readers = new Map(nodes.map((node) => [node.id, []]));
  for (const { from, to } of edges) readers.get(from)?.push(to);
  const state = new Map();
  const order = [];
  const forward = new Set();
  for (const { id } of nodes) {
    // Without recursion: a chain may be as long as the service lets it.
    const stack = [[id, 0]];
    while (stack.length) {
      const top = stack.at(-1);
      const [node, next] = top;
      if (next === 0 && state.has(node)) {
        stack.pop();
        continue;
      }
      state.set(node, "open");
      const to = readers.get(node)[next];
      top[1]++;
      if (to === undefined) {
        state.set(node, "done");
        order.push(node);
        stack.pop();
      } else if (state.get(to) !== "open") {
        forward.add(`${node} ${to}`);
        stack.push([to, 0]);
      }
    }
  }
  const layer = new Map(nodes.map((node) => [node.id, 0]));
  for (const node of order.reverse())
    for (const to of readers.get(node)) if (forward.has(`${node} ${to}`)) layer.set(to, Math.max(layer.get(to), layer.get(node) + 1));
  // What reads nothing, as constants do, stands right above its first reader.
  const read = new Set(edges.map(({ to }) => to));
  for (const { id } of nodes) {
    const below = readers.get(id).map((to) => layer.get(to)).filter((each) => each > layer.get(id));
    if (!read.has(id) && below.length) layer.set(id, Math.min(...below) - 1);
  }
  return layer;
}

function order(row, side) {
  const mean = (item) => (item[side].length ? item[side].reduce((sum, each) => sum + each.place, 0) / item[side].length : item.place);
  const means = new Map(row.map((item) => [item, mean(item)]));
  const ofGroups = new Map();
  for (const item of row) if (item.group !== null) ofGroups.set(item.group, [...(ofGroups.get(item.group) ?? []), means.get(item)]);
  const key = (item) => {
    const group = ofGroups.get(item.group);
    return group ? group.reduce((sum, each) => sum + each, 0) / group.length : means.get(item);
  };
  const keys = new Map(row.map((item) => [item, key(item)]));
  row.sort((one, other) =>
    keys.get(one) - keys.get(other) || (one.group ?? -1) - (other.group ?? -1) || means.get(one) - means.get(other) || one.place - other.place);
  row.forEach((item, index) => (item.place = index));
}

/** Centres, each near the mean of those it is linked to, none upon another. */
function place(byLayer) {
  const space = (one, other) => ((one.node ? NODE.width : 20) + (other.node ? NODE.width : 20)) / 2 + NODE.across;
  for (const row of byLayer) {
    let x = 0;
    row.forEach((item, index) => {
      x = index ? x + space(row[index - 1], item) : 0;
      item.x = x;
    });
    row.forEach((item) => (item.x -= x / 2));
  }
  for (let round = 0; round < 6; round++) {
    for (const row of round % 2 ? [...byLayer].reverse() : byLayer) {
      const wanted = row.map((item) => {
        const linked = round % 2 ? item.below : item.above;
        return linked.length ? linked.reduce((sum, each) => sum + each.x, 0) / linked.length : item.x;
      });
      const pushed = [...wanted];
      for (let each = 1; each < row.length; each++) pushed[each] = Math.max(pushed[each], pushed[each - 1] + space(row[each - 1], row[each]));
      const shift = pushed.reduce((sum, x, index) => sum + x - wanted[index], 0) / (row.length || 1);
      row.forEach((item, index) => (item.x = pushed[index] - shift));
    }
  }
  const least = Math.min(...byLayer.flat().map((item) => item.x - (item.node ? NODE.width / 2 : 10)));
  for (const item of byLayer.flat()) item.x += NODE.margin - least;
}

function points(route, top) {
  const made = [];
  route.forEach((item, index) => {
    if (index) made.push([item.x, top(item)]);
    if (index < route.length - 1) made.push([item.x, top(item) + NODE.height]);
  });
  return made;
}

/** The box around a group; `isClear` says whether no node of others lies in it. */
function box(group, items, top) {
  const own = group.map((id) => items.get(id)).filter(Boolean);
  if (!own.length) return { x: 0, y: 0, width: 0, height: 0, isClear: false };
  const pad = 12;
  const left = Math.min(...own.map((item) => item.x)) - NODE.width / 2 - pad;
  const right = Math.max(...own.map((item) => item.x)) + NODE.width / 2 + pad;
  const first = Math.min(...own.map(top)) - pad;
  const last = Math.max(...own.map(top)) + NODE.height + pad;
  const isClear = [...items.values()].every((item) => own.includes(item) ||
    item.x + NODE.width / 2 <= left || item.x - NODE.width / 2 >= right || top(item) + NODE.height <= first || top(item) >= last);
  return { x: left, y: first, width: right - left, height: last - first, isClear };
}

/** A smooth path through an edge's points. */
export function edgePath(edge) {
  const [[x, y], ...rest] = edge.points;
  let made = `M${round(x)} ${round(y)}`;
  let last = [x, y];
  for (const [right, down] of rest) {
    const middle = (last[1] + down) / 2;
    made += right === last[0] ? `V${round(down)}` : `C${round(last[0])} ${round(middle)} ${round(right)} ${round(middle)} ${round(right)} ${round(down)}`;
    last = [right, down];
  }
  return made;
}

const round = (value) => Math.round(value * 10) / 10;

/** The graph with one more node, that of an operator, under a name that no other has. */
export function withOperator(graph, descriptor) {
  const nodes = graph.Nodes ?? [];
  const base = short(descriptor.Type).toLowerCase().replace(/^(activation|element_wise)_/, "");
  let name = base;
  for (let count = 2; nodes.some((node) => node.Name === name); count++) name = `${base}_${count}`;
  return { ...graph, Nodes: [...nodes, { Type: "OPERATOR", Name: name, Desc: descriptor }] };
}

/** Where an edge can begin and end: texts such as "input x", "add.OutputTensor" and "relu.InputTensor". */
export function ports(graph, tensorsOf) {
  const named = (graph.Nodes ?? []).filter((node) => node?.Name);
  const each = (wanted) => named.flatMap((node) =>
    (short(node.Type) === "CONSTANT" ? (wanted === "outputs" ? ["Data"] : []) : tensorsOf(short(node.Desc?.Type))[wanted])
      .map((tensor) => ({ node: node.Name, tensor })));
  return { outputs: each("outputs"), inputs: each("inputs") };
}

/** The graph with one more edge. `from` is a port or {input: name}, `to` a port or {output: name}. */
export function withEdge(graph, from, to) {
  const target = { ToNode: to.node, ToNodeInput: to.tensor };
  const source = { FromNode: from.node, FromNodeOutput: from.tensor };
  const add = (list, edge) => ({ ...graph, [list]: [...(graph[list] ?? []), edge] });
  if (from.input !== undefined) return add("InputEdges", { GraphInput: from.input, ...target });
  if (to.output !== undefined) return add("OutputEdges", { ...source, GraphOutput: to.output });
  return add("IntermediateEdges", { ...source, ...target });
}
