import java.util.List;
import java.util.Map;
import org.openapitools.client.ApiClient;
import org.openapitools.client.ApiException;
import org.openapitools.client.api.InferenceApi;
import org.openapitools.client.api.NativeApi;
import org.openapitools.client.model.*;

public class Main {
    public static void main(String[] arguments) throws Exception {
        ApiClient client = new ApiClient();
        client.updateBaseUri(arguments[0]);
        NativeApi nativeApi = new NativeApi(client);
        InferenceApi inference = new InferenceApi(client);
        TensorDesc desc = new TensorDesc().dataType(DataType.FLOAT32).sizes(List.of(2L, 3L)).addFlagsItem(TensorFlag.OWNED_BY_DML);
        ActivationCelu celu = new ActivationCelu().type(ActivationCelu.TypeEnum.ACTIVATION_CELU).inputTensor(desc).alpha(2f);
        DispatchRequest request = new DispatchRequest().operator(new AnyOperator(celu))
            .putInputsItem("InputTensor", "AACAwAAAAMAAAAAAAACAPwAAAEAAAIBA");
        Object output = nativeApi.dispatch(new AnyDispatchRequest(request), null, null).getOutputs().get("OutputTensor");
        System.out.println(((Map<?, ?>) output).get("data"));
        System.out.println(nativeApi.getCapabilities(null).getDevices().get(0).getKind());
        System.out.println(inference.getModelMetadata("activation_celu", null).getInputs().get(0).getParameters().getDatatypes());
        System.out.println(inference.getModelStatistics("activation_celu", null).getModelStats().get(0).getInferenceStats().getSuccess().getCount());
        System.out.println(inference.getRepositoryIndex(null, null).size());
        try {
            inference.modelInfer("activation_celu", new InferRequest(), null, null, null);
        } catch (ApiException error) {
            System.out.println(error.getCode() + " " + error.getResponseBody());
        }
    }
}
