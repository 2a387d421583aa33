"""A radix tree of token lists: which of those that have a value begin another one."""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

import numpy as np

V = TypeVar("V")
_ITEM = array("i").itemsize  # bytes of a token in a packed list


class Node(Generic[V]):
    """The end of a token list that has a value, or a fork in the road of several."""

    def __init__(self, edge: bytes, parent: Node[V] | None, length: int) -> None:
        self.edge = edge
        """The packed tokens from the parent to here."""
        self.parent = parent
        self.length = length
        """Tokens from the root to here."""
        self.value: V | None = None
        self.children: dict[bytes, Node[V]] = {}
        """By their first token, packed."""

    @property
    def parent(self) -> Node[V] | None:
        """The node above; the tree keeps it. A reference both ways would keep a dropped tree for the collector."""
        return None if self._parent is None else self._parent()

    @parent.setter
    def parent(self, node: Node[V] | None) -> None:
        self._parent = None if node is None else weakref.ref(node)


class TreeMatch(NamedTuple, Generic[V]):
    """What a tree knows of a token list."""

    nodes: list[Node[V]]
    """Nodes with a value whose tokens begin the list, in ascending order of length."""
    known: int
    """Length of the longest beginning that the tree has, in the middle of an edge too."""


class RadixTree(Generic[V]):
    """Values by token lists. A search looks at each token of a list once, however many lists there are."""

    def __init__(self) -> None:
        self._root: Node[V] = Node(b"", None, 0)

    def match(self, tokens: list[int]) -> TreeMatch[V]:
        """The values that lie on the way of `tokens`, and how far the way goes."""
        packed = array("i", tokens).tobytes()
        node, nodes = self._root, []
        while True:
            if node.value is not None:
                nodes.append(node)
            start = node.length * _ITEM
            child = node.children.get(packed[start : start + _ITEM])
            if child is None:
                return TreeMatch(nodes, node.length)
            if not packed.startswith(child.edge, start):
                return TreeMatch(nodes, node.length + _common(child.edge, packed[start : start + len(child.edge)]))
            node = child

    def put(self, tokens: list[int]) -> Node[V]:
        """The node at the end of `tokens`, made where there is none; the caller gives it its value."""
        packed = array("i", tokens).tobytes()
        node = self._root
        while node.length < len(tokens):
            rest = packed[node.length * _ITEM :]
            child = node.children.get(rest[:_ITEM])
            if child is None:
                child = Node(rest, node, len(tokens))
                node.children[rest[:_ITEM]] = child
            elif not rest.startswith(child.edge):
                child = _split(child, _common(child.edge, rest))
            node = child
        return node

    def drop(self, node: Node[V]) -> None:
        """Takes the value of a node away, and what no value needs any more."""
        node.value = None
        parent = node.parent
        if parent is None:
            return
        if not node.children:
            del parent.children[node.edge[:_ITEM]]
            node = parent
        if node.value is None and node.parent is not None and len(node.children) == 1:
            _join(node)

    def above(self, node: Node[V]) -> Node[V] | None:
        """The nearest node with a value on the way to `node`."""
        found = node.parent
        while found is not None and found.value is None:
            found = found.parent
        return found

    def __iter__(self) -> Iterator[Node[V]]:
        """All nodes with a value, a parent before its children."""
        waiting = [self._root]
        while waiting:
            node = waiting.pop()
            waiting += node.children.values()
            if node.value is not None:
                yield node


def _split(node: Node[V], count: int) -> Node[V]:
    """A new parent of `node`, after the first `count` tokens of its edge."""
    assert node.parent is not None
    head, tail = node.edge[: count * _ITEM], node.edge[count * _ITEM :]
    middle = Node(head, node.parent, node.parent.length + count)
    middle.children[tail[:_ITEM]] = node
    node.parent.children[head[:_ITEM]] = middle
    node.edge, node.parent = tail, middle
    return middle


def _join(node: Node[V]) -> None:
    """Takes a node with one child out."""
    assert node.parent is not None
    (child,) = node.children.values()
    child.edge, child.parent = node.edge + child.edge, node.parent
    node.parent.children[child.edge[:_ITEM]] = child


def _common(a: bytes, b: bytes) -> int:
    """Length of the beginning that two packed lists share, in tokens."""
    count = min(len(a), len(b)) // _ITEM
    different = np.frombuffer(a, np.intc, count) != np.frombuffer(b, np.intc, count)
    first = int(different.argmax()) if count else 0
    return first if count and different[first] else count
