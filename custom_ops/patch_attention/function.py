"""PatchAttention in standard ONNX operators; shapes and places as in reference.py."""

from trigraph.custom_ops.scripting import DOUBLE, FLOAT, INT64, Tensor, body, op


@body
def turned(x: Tensor, angle: Tensor) -> Tensor:
    """Pairs (i, i + W / 2) of x [H, N, W] turned by angles [N, W / 2]."""
    cosine, sine = op.Cast(op.Cos(angle), to=FLOAT), op.Cast(op.Sin(angle), to=FLOAT)
    a, b = op.Split(x, num_outputs=2, axis=-1)
    return op.Concat(a * cosine - b * sine, b * cosine + a * sine, axis=-1)


@body
def angles(places: Tensor, width: Tensor, rope_theta: float) -> Tensor:
    """Of patches at places [2, N], for heads of a width [1]: float64 [N, W / 2]."""
    exponent = op.Cast(op.Range(0, op.Squeeze(width / 2), 2), to=DOUBLE) / op.Cast(width / -2, to=DOUBLE)
    frequency = op.Pow(op.Cast(rope_theta, to=DOUBLE), exponent)
    row, column = op.Split(op.Cast(op.Unsqueeze(places, [2]), to=DOUBLE) * frequency, num_outputs=2, axis=0)
    return op.Squeeze(op.Concat(row, column, axis=2), [0])


@body
def patch_attention(qkv: Tensor, places: Tensor, cu_seqlens: Tensor, heads: int, rope_theta: float) -> Tensor:
    count, cu = op.Shape(qkv, end=1), op.Cast(cu_seqlens, to=INT64)
    shape = op.Concat(count, [3], op.Reshape(heads, [1]), [-1], axis=0)
    q, k, v = op.Split(op.Transpose(op.Reshape(qkv, shape), perm=[1, 2, 0, 3]), num_outputs=3, axis=0)
    width = op.Shape(q, start=3)
    angle = angles(places, width, rope_theta)
    keys = op.Transpose(turned(op.Squeeze(k, [0]), angle), perm=[0, 2, 1])
    scores = op.MatMul(turned(op.Squeeze(q, [0]), angle), keys) / op.Sqrt(op.Cast(width, to=FLOAT))
    begun = op.Cast(op.Unsqueeze(cu[1:], 1) <= op.Range(0, op.Squeeze(count), 1), to=INT64)
    image = op.ReduceSum(begun, [0], keepdims=0)  # how many images end before each patch
    seen = op.Equal(op.Unsqueeze(image, [1]), image)
    weights = op.Softmax(op.Where(seen, scores, -1e30), axis=-1)
    mixed = op.Transpose(op.MatMul(weights, op.Squeeze(v, [0])), perm=[1, 0, 2])
    return op.Reshape(mixed, op.Concat(count, [-1], axis=0))
