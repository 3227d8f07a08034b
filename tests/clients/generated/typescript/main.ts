import { Configuration, InferenceApi, NativeApi, ResponseError } from "./generated-typescript/index.js";

const configuration = new Configuration({ basePath: process.argv[2]! });
const native = new NativeApi(configuration);
const inference = new InferenceApi(configuration);
const answer = await native.dispatch({
  anyDispatchRequest: {
    operator: {
      type: "ACTIVATION_CELU",
      inputTensor: { dataType: "FLOAT32", sizes: [2, 3], flags: ["OWNED_BY_DML"] },
      alpha: 2,
    },
    inputs: { InputTensor: "AACAwAAAAMAAAAAAAACAPwAAAEAAAIBA" },
  },
});
const output = answer.outputs["OutputTensor"]!;
if (Array.isArray(output)) throw new Error("not an array of tensors");
console.log(output.data);
console.log((await native.getCapabilities()).devices[0]!.kind);
console.log((await inference.getModelMetadata({ name: "activation_celu" })).inputs[0]!.parameters.datatypes);
console.log((await inference.getModelStatistics({ name: "activation_celu" })).modelStats[0]!.inferenceStats.success.count);
console.log((await inference.getRepositoryIndex()).length);
try {
  await inference.modelInfer({ name: "activation_celu", inferRequest: { inputs: [] } });
} catch (error) {
  if (error instanceof ResponseError) console.log(error.response.status, await error.response.json());
}
