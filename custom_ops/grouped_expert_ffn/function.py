"""GroupedExpertFFN in standard ONNX operators: each chosen expert in turn, for the rows that chose it.

Only chosen experts are unpacked, and anew in each step: in float32 a whole stack may not fit in memory.
"""

from functools import cache

from trigraph.custom_ops.blocks.formats.function import UNPACK
from trigraph.custom_ops.scripting import Function, Tensor, body, op


@body
def slots_of(expert: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Where ids [T, k] names an expert: indices of slots, in 0 .. T * k - 1, and their rows, in 0 .. T - 1."""
    slots = op.Squeeze(op.NonZero(op.Reshape(ids, [-1]) == expert), [0])
    return slots, slots / op.Shape(ids, start=1)


@body
def gated_mlp(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    gates = op.Gemm(x, gate, transB=1)
    return op.Gemm(gates * op.Sigmoid(gates) * op.Gemm(x, up, transB=1), down, transB=1)


@body
def no_products(x: Tensor, ids: Tensor) -> Tensor:
    """Zeros [T * k, E] for x [T, E] and ids [T, k]."""
    return op.Expand(0.0, op.Concat(op.Reshape(op.Size(ids), [1]), op.Shape(x, start=1), axis=0))


@body
def sum_of_slots(products: Tensor, weights: Tensor) -> Tensor:
    """The weighted sum over slots of products [T * k, E], by weights [T, k]."""
    slots = op.Reshape(products, op.Concat(op.Shape(weights), op.Shape(products, start=1), axis=0))
    return op.Squeeze(op.MatMul(op.Unsqueeze(weights, [1]), slots), [1])


@body
def with_shared(routed: Tensor, shared: Tensor, shared_gate: Tensor) -> Tensor:
    return routed + op.Sigmoid(shared_gate) * shared


@cache
def separate(gate_type: str, up_type: str, down_type: str) -> Function:
    """The body for gate and up matrices in two stacks; it takes activations as they are."""
    unpack_gate, unpack_up, unpack_down = UNPACK[gate_type], UNPACK[up_type], UNPACK[down_type]

    @body
    def separate(
        x: Tensor, ids: Tensor, weights: Tensor, gate: Tensor, down: Tensor, up: Tensor,
        gate_type: str, up_type: str, down_type: str, activations: str,
    ) -> Tensor:  # fmt: skip
        experts = op.Unique(ids)
        products = no_products(x, ids)
        for index in range(op.Size(experts)):
            expert = op.Gather(experts, index)
            slots, rows = slots_of(expert, ids)
            result = gated_mlp(
                op.Gather(x, rows),
                unpack_gate(op.Gather(gate, expert)),
                unpack_up(op.Gather(up, expert)),
                unpack_down(op.Gather(down, expert)),
            )
            products = op.ScatterND(products, op.Unsqueeze(slots, [1]), result)
        return sum_of_slots(products, weights)

    return separate


@cache
def fused(gate_type: str, down_type: str) -> Function:
    """The body for a stack whose matrices hold gate rows, then up rows; it takes activations as they are."""
    unpack_both, unpack_down = UNPACK[gate_type], UNPACK[down_type]

    @body
    def fused(
        x: Tensor, ids: Tensor, weights: Tensor, gate: Tensor, down: Tensor,
        gate_type: str, down_type: str, activations: str,
    ) -> Tensor:  # fmt: skip
        experts = op.Unique(ids)
        products = no_products(x, ids)
        for index in range(op.Size(experts)):
            expert = op.Gather(experts, index)
            slots, rows = slots_of(expert, ids)
            gates, ups = op.Split(unpack_both(op.Gather(gate, expert)), num_outputs=2, axis=0)
            result = gated_mlp(op.Gather(x, rows), gates, ups, unpack_down(op.Gather(down, expert)))
            products = op.ScatterND(products, op.Unsqueeze(slots, [1]), result)
        return sum_of_slots(products, weights)

    return fused


@cache
def separate_and_shared(gate_type: str, up_type: str, down_type: str) -> Function:
    """As `separate`, and a shared expert."""
    routed = separate(gate_type, up_type, down_type)

    @body
    def separate_and_shared(
        x: Tensor, ids: Tensor, weights: Tensor, gate: Tensor, down: Tensor, up: Tensor, shared: Tensor,
        shared_gate: Tensor, gate_type: str, up_type: str, down_type: str, activations: str,
    ) -> Tensor:  # fmt: skip
        y = routed(
            x, ids, weights, gate, down, up,
            gate_type=gate_type, up_type=up_type, down_type=down_type, activations=activations,
        )  # fmt: skip
        return with_shared(y, shared, shared_gate)

    return separate_and_shared


@cache
def fused_and_shared(gate_type: str, down_type: str) -> Function:
    """As `fused`, and a shared expert; `up` is absent."""
    routed = fused(gate_type, down_type)

    @body
    def fused_and_shared(
        x: Tensor, ids: Tensor, weights: Tensor, gate: Tensor, down: Tensor, up: Tensor, shared: Tensor,
        shared_gate: Tensor, gate_type: str, down_type: str, activations: str,
    ) -> Tensor:  # fmt: skip
        y = routed(x, ids, weights, gate, down, gate_type=gate_type, down_type=down_type, activations=activations)
        return with_shared(y, shared, shared_gate)

    return fused_and_shared
