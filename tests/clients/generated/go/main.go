package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"

	dmlserve "github.com/GIT_USER_ID/GIT_REPO_ID"
)

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	configuration := dmlserve.NewConfiguration()
	configuration.Servers = dmlserve.ServerConfigurations{{URL: os.Args[1]}}
	client := dmlserve.NewAPIClient(configuration)
	all := context.Background()

	desc := dmlserve.NewTensorDesc(dmlserve.DATATYPE_FLOAT32, []int64{2, 3})
	desc.SetFlags([]dmlserve.TensorFlag{dmlserve.TENSORFLAG_OWNED_BY_DML})
	celu := dmlserve.NewActivationCelu("ACTIVATION_CELU", *desc)
	celu.SetAlpha(2)
	x := "AACAwAAAAMAAAAAAAACAPwAAAEAAAIBA"
	inputs := map[string]dmlserve.DispatchRequestInputsValue{
		"InputTensor": dmlserve.StringAsDispatchRequestInputsValue(&x),
	}
	request := dmlserve.NewDispatchRequest(dmlserve.ActivationCeluAsAnyOperator(celu), inputs)
	answer, _, err := client.NativeAPI.Dispatch(all).AnyDispatchRequest(dmlserve.DispatchRequestAsAnyDispatchRequest(request)).Execute()
	check(err)
	fmt.Println(*answer.Outputs["OutputTensor"].OutputTensor.Data.String)

	capabilities, _, err := client.NativeAPI.GetCapabilities(all).Execute()
	check(err)
	fmt.Println(capabilities.Devices[0].Kind)
	metadata, _, err := client.InferenceAPI.GetModelMetadata(all, "activation_celu").Execute()
	check(err)
	fmt.Println(metadata.Inputs[0].Parameters.Datatypes)
	statistics, _, err := client.InferenceAPI.GetModelStatistics(all, "activation_celu").Execute()
	check(err)
	fmt.Println(statistics.ModelStats[0].InferenceStats.Success.Count)
	models, _, err := client.InferenceAPI.GetRepositoryIndex(all).Execute()
	check(err)
	fmt.Println(len(models))
	_, refused, _ := client.InferenceAPI.ModelInfer(all, "activation_celu").InferRequest(*dmlserve.NewInferRequest(nil)).Execute()
	body, err := io.ReadAll(refused.Body)
	check(err)
	fmt.Println(refused.StatusCode, string(body))
}
