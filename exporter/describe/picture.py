"""A picture of a model's graphs as SVG: layers, the state that they read and write, and the bytes of weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from pathlib import Path

from trigraph.exporter.describe.description import model_of
from trigraph.exporter.describe.svg import BOX_HEIGHT, COLUMN_WIDTH, LINE_HEIGHT, MARGIN, Canvas, column_x
from trigraph.exporter.describe.words import printable, readable_size
from trigraph.exporter.export import DRAFT_VOCAB
from trigraph.exporter.package.reader import read_manifest
from trigraph.exporter.package.state_tensors import MAX_PENDING, PAGE_SIZE, StateTensor, state_tensors
from trigraph.models.errors import TrigraphError, file_errors
from trigraph.models.gguf_file import Tensor
from trigraph.models.model import Model, open_model


def write_picture(path: Path, out: Path, context: int | None = None) -> None:
    """Draw the graphs of a GGUF file or a package to a .svg file, with state for `context` positions (default: all).

    Raises TrigraphError for a path that is neither, and when the picture cannot be written.
    """
    if out.suffix != ".svg":
        raise TrigraphError(f"{out}: the picture is SVG; name a file that ends with .svg")
    svg = picture(path, context)
    with file_errors(out, "written", "; choose another file"):
        out.write_text(svg, encoding="utf-8")


def picture(path: Path, context: int | None = None) -> str:
    """The SVG of `write_picture`."""
    if path.is_dir():
        manifest = read_manifest(path)
        model = model_of(path, manifest)
        return draw(model, manifest.state, context or manifest.max_context, manifest.draft_vocab or 0)
    model = open_model(path)
    config = model.config
    state = state_tensors(config, "f16")
    return draw(model, state, context or config.context_length, min(DRAFT_VOCAB, config.vocab))


def draw(model: Model, state: Iterable[StateTensor], context: int, draft_vocab: int) -> str:
    """The graphs of `model` with state for a sequence of `context` tokens. A model without an MTP head has no draft."""
    config, canvas = model.config, Canvas()
    title = f"{printable(config.name[:80])} ({config.architecture})"  # what is unprintable is not XML
    canvas.text(MARGIN, 34, title, "title", canvas.width - 2 * MARGIN)
    verify, states, prefill, pages, draft = 116, 246, 396, 526, 646  # upper edges of boxes
    canvas.lane(
        verify, "verify.onnx", f"up to {MAX_PENDING} tokens per sequence; commits", "the accepted ones of the last step"
    )
    _trunk(canvas, model, verify, "of each token")
    canvas.box(
        6,
        verify,
        "host",
        ["sampler of the host", "keeps the drafts that it", "agrees with: accepted of", "the next verify"],
    )
    canvas.lane(prefill, "prefill.onnx", "a prompt, or the next piece of it;", "commits all of its tokens")
    _trunk(canvas, model, prefill, "of the last token")
    state = tuple(state)
    for column, kind in ((1, "gdn"), (3, "kv")):
        if lines := _state_lines(state, kind, context):
            canvas.box(column, states, "state", lines)
            canvas.both(column, verify + BOX_HEIGHT, states)
            canvas.both(column, states + BOX_HEIGHT, prefill)
    canvas.right(5, verify)
    drafts = any(tensor.name.startswith("draft.") for tensor in state)
    if not config.mtp_layers:
        block = "No MTP head: block.onnx is a block drafter's; its keys and values come from the trunk's layers."
        none = "No draft.onnx: the model has no MTP head; its drafts are n-grams alone."
        canvas.text(MARGIN, pages, block if drafts else none, "soft")
        return canvas.svg(title)
    if drafts:
        canvas.text(MARGIN, pages, "block.onnx: a block drafter", "soft")
    canvas.right(5, prefill)
    canvas.box(6, prefill, "mtp", ["MTP keys and values", "from each token and the", "hidden row before it"])
    canvas.box(3, pages, "state", _state_lines(state, "mtp", context), columns=4, height=3 * LINE_HEIGHT)
    canvas.down(6, prefill + BOX_HEIGHT, pages)
    canvas.both(3, pages + 3 * LINE_HEIGHT, draft)
    _draft(canvas, model, draft, draft_vocab)
    return canvas.svg(title)


def fold(recurrent: Sequence[bool]) -> str:
    """Layers in words, a pattern that repeats only once: "16 x (3 GDN + 1 attention)"."""
    runs = [(kind, len(list(same))) for kind, same in groupby(recurrent)]
    unit = runs[:2]
    times = next((i // 2 for i in range(0, len(runs), 2) if runs[i : i + 2] != unit), -(-len(runs) // 2))
    rest = runs[2 * times :]
    if len(unit) < 2 or len(rest) > 2:
        counts = [(kind, sum(n for k, n in runs if k == kind)) for kind in (True, False)]
        return ", ".join(_words(kind, n) for kind, n in counts if n) + (
            " in an order of its own" if len(runs) > 2 else ""
        )
    repeated = f"{times} x ({' + '.join(_words(*run) for run in unit)})"
    return ", then ".join((repeated, *(_words(*run) for run in rest)))


def _words(recurrent: bool, count: int) -> str:
    return f"{count} {'GDN' if recurrent else 'attention'}"


def _trunk(canvas: Canvas, model: Model, top: float, rows: str) -> None:
    """The boxes of verify or prefill: embedding, layers, output."""
    config = model.config
    boxes = {0: ("io", _lines("embedding", f"{config.vocab} tokens", _named(model, "token_embd")))}
    for column, recurrent in ((1, True), (3, False)):
        if not (layers := [i for i, is_recurrent in enumerate(config.recurrent) if is_recurrent == recurrent]):
            continue
        if recurrent:
            name, heads = "Gated DeltaNet", f"{config.gdn_k_heads}/{config.gdn_v_heads} heads k/v"
        else:
            name, heads = "attention", f"{config.heads}/{config.kv_heads} heads q/kv"
        lines = _lines(f"{len(layers)} {name}", heads, _mixer(model, layers))
        boxes |= {column: ("gdn" if recurrent else "attention", lines), column + 1: ("ffn", _ffn(model, layers))}
    layers_at = [column for column in boxes if column]
    left, right = column_x(layers_at[0]) - 9, column_x(layers_at[-1]) + COLUMN_WIDTH + 9
    canvas.rect(left, top - 9, right - left, BOX_HEIGHT + 18, "group")
    canvas.text(right, top - 15, fold(config.recurrent), "soft", 2 * COLUMN_WIDTH, "end")
    head = _named(model, "output.") or _named(model, "token_embd")
    boxes[5] = (
        "io",
        [*_lines("output, tied" if config.tied else "output", "", head), "logits, hidden row", rows],
    )
    for column, (kind, lines) in boxes.items():
        canvas.box(column, top, kind, lines)
    for start, end in pairwise(boxes):
        canvas.right(start, top, end)


def _draft(canvas: Canvas, model: Model, top: float, draft_vocab: int) -> None:
    """The lane of draft, with its way back to the next draft of a chain."""
    config, block = model.config, model.config.trunk_layers
    canvas.lane(top, "draft.onnx", "predicts the token after", "the last one of a sequence")
    head = sum(tensor.nbytes for tensor in _named(model, "output.") or _named(model, "token_embd"))
    ids = f"first {draft_vocab} ids" if draft_vocab < config.vocab else "all ids"
    canvas.box(0, top, "io", ["token, hidden row", "of the trunk, or", "of the draft before"])
    canvas.box(
        1, top, "mtp", _lines("eh_proj", "embedding | hidden row", _named(model, f"blk.{block}.nextn.")), columns=2
    )
    canvas.box(3, top, "attention", _lines("attention", "", _mixer(model, [block])))
    canvas.box(4, top, "ffn", _ffn(model, [block]))
    size = readable_size(head * draft_vocab // config.vocab)
    canvas.box(5, top, "io", ["output", f"{ids}: {size}", "token, probability,", "hidden row"])
    canvas.box(6, top, "host", ["drafts", "for the next verify, after", "the token before them"])
    for start, end in ((0, 1), (2, 3), (3, 4), (4, 5), (5, 6)):
        canvas.right(start, top, end)
    first, last, below = column_x(0) + COLUMN_WIDTH / 2, column_x(5) + COLUMN_WIDTH / 2, top + BOX_HEIGHT + 22
    canvas.path(f"M{last:g} {top + BOX_HEIGHT:g}V{below:g}H{first:g}V{top + BOX_HEIGHT:g}")
    chain = "a chain: token and hidden row of a draft make the next one"
    canvas.text((first + last) / 2, below + 16, chain, "soft", 0, "middle")


def _lines(name: str, detail: str, tensors: Sequence[Tensor]) -> list[str]:
    """Lines of a box: its name, what it is, types of its weights with their shares, and their bytes."""
    sizes = Counter[str]()
    for tensor in tensors:
        sizes[tensor.type] += tensor.nbytes
    total = sum(sizes.values())
    shares = [f"{kind} {size / total:.0%}" for kind, size in sizes.most_common(2) if size > 0.005 * total]
    weights = (
        [", ".join(shares), readable_size(total)]
        if len(shares) > 1
        else [f"{sizes.most_common(1)[0][0]}, {readable_size(total)}"]
    )
    return [name, *([detail] if detail else []), *weights]


def _ffn(model: Model, layers: Sequence[int]) -> list[str]:
    config = model.config
    name, width = "feed-forward", f"width {config.ffn}"
    if config.experts:
        name, width = "mixture of experts", f"{config.experts_used} of {config.experts} experts"
    return _lines(name, width, _of_layers(model, layers, ("ffn_", "post_attention_norm")))


def _mixer(model: Model, layers: Sequence[int]) -> list[Tensor]:
    return _of_layers(model, layers, ("attn_", "ssm_"))


def _of_layers(model: Model, layers: Iterable[int], kinds: tuple[str, ...]) -> list[Tensor]:
    prefixes = tuple(f"blk.{layer}.{kind}" for layer in layers for kind in kinds)
    return [tensor for name, tensor in model.tensors.items() if name.startswith(prefixes)]


def _named(model: Model, prefix: str) -> list[Tensor]:
    return [tensor for name, tensor in model.tensors.items() if name.startswith(prefix)]


def _state_lines(state: Iterable[StateTensor], kind: str, context: int) -> list[str]:
    """Lines of a box for the state of a kind of layer ("gdn", "kv", "mtp"); none where the model has no such layer."""
    sizes, dtype = Counter[str](), ""
    for tensor in state:
        if tensor.name.startswith(f"{kind}."):
            sizes[tensor.name.rsplit(".", 1)[1]] += tensor.item_bytes
            dtype = tensor.dtype
    if not sizes:
        return []
    if kind == "gdn":
        return ["recurrent state", *(f"{part} {readable_size(size)}" for part, size in sizes.items())]
    page = sizes.total()
    each, whole = f"{readable_size(page // PAGE_SIZE)} a token", readable_size(-(-context // PAGE_SIZE) * page)
    if kind == "mtp":
        return [f"KV pages of the MTP head, {dtype}", f"{each}, {whole} for {context} tokens"]
    return [f"KV pages, {dtype}", each, f"{whole} for", f"{context} tokens"]
