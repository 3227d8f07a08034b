/** Where the elements of a tensor lie in memory. Offsets and strides are in elements. */

export const elementCount = (sizes) => sizes.reduce((product, size) => product * size, 1);

/** Strides of a tensor whose elements lie one after the other, the last dimension's closest. */
export function packedStrides(sizes) {
  const strides = new Array(sizes.length);
  let step = 1;
  for (let dimension = sizes.length - 1; dimension >= 0; dimension--) {
    strides[dimension] = step;
    step *= sizes[dimension];
  }
  return strides;
}

/** Whether these can be sizes, and strides of them. What is wrong with them otherwise, the service says. */
export const isLayout = (sizes, strides) =>
  isCounts(sizes, 1) && sizes.length > 0 && (strides == null || (isCounts(strides, 0) && strides.length === sizes.length));

const isCounts = (list, least) =>
  Array.isArray(list) && list.every((each) => Number.isInteger(each) && each >= least && each < 2 ** 32);

/** Elements from the first that the tensor reaches to the last. */
export function reach(sizes, strides) {
  return 1 + sizes.reduce((sum, size, dimension) => sum + (size - 1) * strides[dimension], 0);
}

/** The coordinates of the element that is at `index` in row-major order. */
export function coordinates(index, sizes) {
  const result = new Array(sizes.length);
  for (let dimension = sizes.length - 1; dimension >= 0; dimension--) {
    result[dimension] = index % sizes[dimension];
    index = Math.floor(index / sizes[dimension]);
  }
  return result;
}

export const offset = (coordinate, strides) =>
  coordinate.reduce((sum, each, dimension) => sum + each * strides[dimension], 0);

/** The tensor's elements in row-major order, of `memory`. */
export function gather(memory, sizes, strides) {
  if (strides == null) return memory.slice(0, elementCount(sizes));
  const count = elementCount(sizes);
  return Array.from({ length: count }, (_, index) => memory[offset(coordinates(index, sizes), strides)]);
}

/**
 * What each of the first `most` places in memory holds: `readers` are the coordinates that lead to it, several where the
 * tensor is broadcast, and none in a gap. `isWhole` says whether that is all of the memory.
 */
export function memoryMap(sizes, strides = null, most = 256) {
  const steps = strides ?? packedStrides(sizes);
  const length = reach(sizes, steps);
  const cells = Array.from({ length: Math.min(length, most) }, (_, place) => ({ place, readers: [], count: 0 }));
  const count = elementCount(sizes);
  for (let index = 0; index < Math.min(count, most * 64); index++) {
    const coordinate = coordinates(index, sizes);
    const cell = cells[offset(coordinate, steps)];
    if (!cell) continue;
    cell.count++;
    if (cell.readers.length < 4) cell.readers.push(coordinate);
  }
  return {
    cells, length, elements: count,
    isWhole: length <= most && count <= most * 64,
    gaps: cells.filter((cell) => !cell.count).length,
    shared: cells.filter((cell) => cell.count > 1).length,
  };
}
