using System;
using System.Collections.Generic;
using Newtonsoft.Json.Linq;
using Org.OpenAPITools.Api;
using Org.OpenAPITools.Client;
using Org.OpenAPITools.Model;

public static class MainProgram
{
    public static void Main(string[] arguments)
    {
        var native = new NativeApi(arguments[0]);
        var inference = new InferenceApi(arguments[0]);
        var desc = new TensorDesc(DataType.FLOAT32, new List<long> { 2, 3 }, flags: new List<TensorFlag> { TensorFlag.OWNEDBYDML });
        var celu = new AnyOperator(new ActivationCelu(ActivationCelu.TypeEnum.ACTIVATIONCELU, desc, alpha: 2));
        Func<object, JToken> dispatch = data =>
        {
            var request = new DispatchRequest(celu, new Dictionary<string, object> { { "InputTensor", data } });
            return ((JObject)native.Dispatch(new AnyDispatchRequest(request)).Outputs["OutputTensor"])["data"];
        };
        if ((float)dispatch(new[] { new[] { -4, -2, 0 }, new[] { 1, 2, 4 } })[1][2] != 4)
            throw new Exception("numbers");
        Console.WriteLine(dispatch("AACAwAAAAMAAAAAAAACAPwAAAEAAAIBA"));
        Console.WriteLine(native.GetCapabilities().Devices[0].Kind.ToString().ToLower());
        Console.WriteLine(string.Join(" ", inference.GetModelMetadata("activation_celu").Inputs[0].Parameters.Datatypes));
        Console.WriteLine(inference.GetModelStatistics("activation_celu").ModelStats[0].InferenceStats.Success.Count);
        Console.WriteLine(inference.GetRepositoryIndex().Count);
        try
        {
            inference.ModelInfer("activation_celu", new InferRequest(inputs: new List<InferInput>()));
        }
        catch (ApiException error)
        {
            Console.WriteLine(error.ErrorCode + " " + error.ErrorContent);
        }
    }
}
