require "openapi_client"
include OpenapiClient

OpenapiClient.configure { |configuration| configuration.host = ARGV[0].delete_prefix("http://") }
native, inference = NativeApi.new, InferenceApi.new
desc = TensorDesc.new(data_type: "FLOAT32", sizes: [2, 3], flags: ["OWNED_BY_DML"])
celu = ActivationCelu.new(type: "ACTIVATION_CELU", input_tensor: desc, alpha: 2)
dispatch = ->(data) { native.dispatch(DispatchRequest.new(operator: celu, inputs: { InputTensor: data })).outputs["OutputTensor"].data }
raise "numbers" unless dispatch.call([[-4, -2, 0], [1, 2, 4]])[1] == [1, 2, 4]
puts dispatch.call("AACAwAAAAMAAAAAAAACAPwAAAEAAAIBA")
puts native.get_capabilities.devices[0].kind
p inference.get_model_metadata("activation_celu").inputs[0].parameters.datatypes
puts inference.get_model_statistics("activation_celu").model_stats[0].inference_stats.success.count
puts inference.get_repository_index.length
begin
  inference.model_infer("activation_celu", InferRequest.new(inputs: []))
rescue ApiError => e
  puts "#{e.code} #{e.response_body}"
end
