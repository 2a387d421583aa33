"""AMD, Intel and Apple GPUs, by ONNX Runtime's WebGPU plugin: its operators in place of ours."""
