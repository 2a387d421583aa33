"""What a model is: configuration and tensors from GGUF, and a NumPy forward pass that serves as the specification."""

from trigraph.models.config import ModelConfig
from trigraph.models.errors import TrigraphError
from trigraph.models.gguf_file import GGUFFile, Tensor
from trigraph.models.model import Model, open_model

__all__ = ["GGUFFile", "Model", "ModelConfig", "Tensor", "TrigraphError", "open_model"]
