"""ONNX models as graphs of DirectML operators, mapped as onnxruntime's DirectML provider does."""
