"""The radix tree against a dictionary, and beginnings against slices."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from trigraph.runtime.cache.prefix import common_prefix
from trigraph.runtime.cache.radix_tree import RadixTree

TOKENS = st.lists(st.integers(0, 2), max_size=12)


@given(a=TOKENS, b=TOKENS)
def test_common_prefix(a: list[int], b: list[int]) -> None:
    wanted = next(n for n in range(len(a), -1, -1) if a[:n] == b[:n])
    assert common_prefix(a, b) == wanted
    assert common_prefix("".join(map(str, a)), "".join(map(str, b))) == wanted


class Trees(RuleBasedStateMachine):
    """The radix tree against a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.tree: RadixTree[int] = RadixTree()
        self.plain: dict[tuple[int, ...], int] = {}

    @rule(tokens=TOKENS, value=st.integers())
    def put(self, tokens: list[int], value: int) -> None:
        self.tree.put(tokens).value = value
        self.plain[tuple(tokens)] = value

    @precondition(lambda self: self.plain)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        tokens = data.draw(st.sampled_from(sorted(self.plain)))
        self.tree.drop(self.tree.put(list(tokens)))
        del self.plain[tokens]

    @rule(tokens=TOKENS)
    def match(self, tokens: list[int]) -> None:
        nodes, known = self.tree.match(tokens)
        beginnings = [tuple(tokens[:n]) for n in range(len(tokens) + 1)]
        assert [(n.length, n.value) for n in nodes] == [(len(b), self.plain[b]) for b in beginnings if b in self.plain]
        assert known == max((len(b) for b in beginnings if any(k[: len(b)] == b for k in self.plain)), default=0)
        above = self.tree.above(nodes[-1]) if nodes else None
        assert above is (nodes[-2] if len(nodes) > 1 else None)

    @invariant()
    def holds_the_same(self) -> None:
        assert sorted(node.value for node in self.tree if node.value is not None) == sorted(self.plain.values())


TestTrees = Trees.TestCase
TestTrees.settings = settings(max_examples=100, stateful_step_count=30, deadline=None, derandomize=True)
