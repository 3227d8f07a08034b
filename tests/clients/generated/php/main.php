<?php
require "generated-php/vendor/autoload.php";
use OpenAPI\Client\{ApiException, Configuration, Model};
use OpenAPI\Client\Api\{InferenceApi, NativeApi};

$configuration = (new Configuration())->setHost($argv[1]);
$native = new NativeApi(null, $configuration);
$inference = new InferenceApi(null, $configuration);
$desc = new Model\TensorDesc(["data_type" => "FLOAT32", "sizes" => [2, 3], "flags" => ["OWNED_BY_DML"]]);
$celu = new Model\ActivationCelu(["type" => "ACTIVATION_CELU", "input_tensor" => $desc, "alpha" => 2]);
foreach ([[[-4, -2, 0], [1, 2, 4]], "AACAwAAAAMAAAAAAAACAPwAAAEAAAIBA"] as $data) {
    $request = new Model\DispatchRequest(["operator" => $celu, "inputs" => ["InputTensor" => $data]]);
    $answers[] = $native->dispatch($request)->getOutputs()["OutputTensor"]->getData();
}
if ($answers[0][1] != [1, 2, 4]) {
    throw new Exception("numbers");
}
echo $answers[1], "\n";
echo $native->getCapabilities()->getDevices()[0]->getKind(), "\n";
echo json_encode($inference->getModelMetadata("activation_celu")->getInputs()[0]->getParameters()->getDatatypes()), "\n";
echo $inference->getModelStatistics("activation_celu")->getModelStats()[0]->getInferenceStats()->getSuccess()->getCount(), "\n";
echo count($inference->getRepositoryIndex()), "\n";
try {
    $inference->modelInfer("activation_celu", new Model\InferRequest(["inputs" => []]));
} catch (ApiException $error) {
    echo $error->getCode(), " ", $error->getResponseBody(), "\n";
}
