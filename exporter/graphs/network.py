"""What every layer is made of: norms, projections and embeddings of one model, as nodes of one graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from trigraph.custom_ops import DOMAIN
from trigraph.exporter.graphs.builder import FLOAT, GraphBuilder, shape
from trigraph.exporter.graphs.weights import Matrix, Weights
from trigraph.exporter.package.state_tensors import StateTensor
from trigraph.models import names
from trigraph.models.config import ModelConfig
from trigraph.models.rope_positions import Sections


@dataclass(frozen=True)
class Network:
    """A graph in the making and the model that it computes. `name` of a method is the new node's name."""

    graph: GraphBuilder
    config: ModelConfig
    weights: Weights
    state: Mapping[str, StateTensor]
    activations: str
    """How block matrix products hold activations: "float32" or "int8"."""
    sections: Sections | None = None
    """Rotary pairs that turn by each axis of positions, in graphs for images."""
    prefix: str = ""
    """Before the names of weights, in the layers of a drafter."""

    @property
    def output_matrix(self) -> str:
        """The trunk's output matrix, which may be its embedding."""
        return names.TOKEN_EMBD if self.config.tied else names.OUTPUT

    def norm(self, x: ir.Value, weight: str, name: str, addend: ir.Value | None = None) -> tuple[ir.Value, ir.Value]:
        """Root-mean-square norm of each row of x [rows, D], or of x + addend: the normed rows, and the rows before."""
        inputs, outputs = [x, self.vector(weight)], [self.graph.value(name, FLOAT, shape(x))]
        if addend is not None:
            inputs.append(addend)
            outputs.append(self.graph.value(f"{name}.sum", FLOAT, shape(x)))
        self.graph.multi_node("RMSNorm", inputs, name, outputs, DOMAIN, eps=self.config.rms_eps)
        return outputs[0], x if addend is None else outputs[1]

    def joined_norms(self, rows: Sequence[ir.Value], weights: Sequence[str], name: str) -> ir.Value:
        """Norms of the rows of two values, side by side."""
        return self.graph.node(
            "JoinedRMSNorm",
            [value for pair in zip(rows, map(self.vector, weights), strict=True) for value in pair],
            name,
            [shape(rows[0])[0], 2 * self.config.hidden],
            domain=DOMAIN,
            eps=self.config.rms_eps,
        )

    def linear(self, x: ir.Value, weight: str, name: str, rows: int | None = None) -> ir.Value:
        """x [rows, D] times the transpose of a weight matrix [N, D], or of its first `rows` rows."""
        return self.linears(x, name, {name: weight}, rows)[0]

    def linears(self, x: ir.Value, name: str, weights: Mapping[str, str], rows: int | None = None) -> list[ir.Value]:
        """The products of x with several matrices, in one node: `weights` maps names of results to those of weights."""
        matrices = {result: self.weights.matrix(self.prefix + weight, rows) for result, weight in weights.items()}
        outputs = [
            self.graph.value(self._unscaled(weights[result], result), FLOAT, [shape(x)[0], matrix.rows])
            for result, matrix in matrices.items()
        ]
        self.graph.multi_node(
            "BlockMatMul",
            [x, *(self.graph.initializer(matrix.tensor) for matrix in matrices.values())],
            name,
            outputs,
            DOMAIN,
            types=",".join(matrix.type for matrix in matrices.values()),
            activations=self.activations,
        )
        pairs = zip(outputs, weights.items(), strict=True)
        return [self._scaled(output, weight, result) for output, (result, weight) in pairs]

    def gated_linear(
        self, gate: ir.Value, up: ir.Value | None, weight: str, name: str, scale: float | None = None
    ) -> ir.Value:
        """silu(gate) * up, both [rows, D], or silu(scale * gate), times the transpose of a weight matrix [N, D]."""
        tensor, matrix = self.stack(weight)
        product = self.graph.node(
            "GatedBlockMatMul",
            [gate, up, tensor],
            self._unscaled(weight, name),
            [shape(gate)[0], matrix.rows],
            domain=DOMAIN,
            type=matrix.type,
            activations=self.activations,
            scale=scale,
        )
        return self._scaled(product, weight, name)

    def _unscaled(self, weight: str, name: str) -> str:
        return f"{name}.unscaled" if self.weights.factor(self.prefix + weight) else name

    def _scaled(self, value: ir.Value, weight: str, name: str) -> ir.Value:
        """What a weight matrix made, named `_unscaled`, times the matrix's factor if it has one."""
        if (factor := self.weights.factor(self.prefix + weight)) is None:
            return value
        product = self.graph.value(name, FLOAT, shape(value))
        self.graph.multi_node(
            "Mul", [value, self.graph.initializer(self.weights.float32(factor))], f"{name}.scaled", [product]
        )
        return product

    def embed(self, ids: ir.Value, table: str, name: str, width: int | None = None) -> ir.Value:
        """Rows of an embedding table: float32 [rows, width], of the model's hidden size unless given."""
        matrix = self.weights.matrix(self.prefix + table)
        rows = self.graph.node(
            "BlockGather",
            [ids, self.graph.initializer(matrix.tensor)],
            self._unscaled(table, name),
            [shape(ids)[0], width or self.config.hidden],
            FLOAT,
            domain=DOMAIN,
            type=matrix.type,
        )
        return self._scaled(rows, table, name)

    def vector(self, name: str) -> ir.Value:
        """A float32 weight that is no matrix."""
        return self.graph.initializer(self.weights.float32(self.prefix + name))

    def stack(self, name: str) -> tuple[ir.Value, Matrix]:
        """A weight matrix, or a stack of one for each expert, with its type."""
        matrix = self.weights.matrix(self.prefix + name)
        return self.graph.initializer(matrix.tensor), matrix

    def past(self, name: str) -> ir.Value:
        """A state tensor as the step finds it."""
        tensor = self.state[name]
        return self.graph.input(f"past.{name}", _dtype(tensor), tensor.dims)

    def present(self, name: str) -> ir.Value:
        """A state tensor as the step leaves it; some node must make it."""
        tensor = self.state[name]
        value = self.graph.value(f"{name}.written", _dtype(tensor), tensor.dims)
        self.graph.output(value, f"present.{name}", state=True)
        return value


def _dtype(tensor: StateTensor) -> ir.DataType:
    types = {"float16": ir.DataType.FLOAT16, "float32": ir.DataType.FLOAT, "uint8": ir.DataType.UINT8}
    return types[tensor.dtype]
