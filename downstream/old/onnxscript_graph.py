"""onnxscript's TorchScript graph, which asks torch's private ``_type_utils`` for a value's dtype."""

import torch
from onnxscript.function_libs.torch_lib.graph_building import TorchScriptGraph

graph = TorchScriptGraph()
value = graph.add_input("x", (2, 3), torch.float16)
assert value.dtype == torch.float16
assert value.onnx_dtype.name == "FLOAT16", value.onnx_dtype
