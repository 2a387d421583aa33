"""A graph in parts, each of which computes some layers on a device of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trigraph.runtime.device.exchange import NO_DEVICE_INPUTS, Array, DeviceInputs, Exchange, Memory
from trigraph.runtime.execution.sessions import Binding, SessionGraph


class LayeredGraph:
    """The parts of a graph, each with its state where it is computed. Steps see one graph, on the last one's device."""

    def __init__(self, parts: Sequence[SessionGraph], pieces: int) -> None:
        self.parts, self.pieces = parts, pieces

    def bind(self, tokens: int, sequences: int, images: int = 0) -> Binding:
        """The binding for a shape: the parts before the last one run when inputs are sent."""
        parts = [part.bind(tokens, sequences, images) for part in self.parts]
        return Binding(LayeredExchange(parts), parts[-1].enqueue)


class LayeredExchange(Exchange):
    """The last part's side of a step, before which the others run.

    Rows go from part to part with the next one's inputs, or straight to the next GPU. Only the CPU's parts have the
    host wait for those before.
    """

    def __init__(self, parts: Sequence[Binding]) -> None:
        super().__init__({}, parts[-1].outputs)
        self._parts, self._exchanges = parts, [part.exchange for part in parts]
        self._last = self._exchanges[-1]
        self._rows = {name for part in parts[:-1] for name in part.outputs}

    @property
    def inputs(self) -> Mapping[str, Array]:
        """Arrays to fill in, of all parts: for an input of several of them the last one's."""
        return {name: array for exchange in self._exchanges for name, array in exchange.inputs.items()}

    @property
    def sent(self) -> Mapping[str, Array]:
        return {name: array for exchange in self._exchanges for name, array in exchange.sent.items()}

    def send(self, device_inputs: DeviceInputs = NO_DEVICE_INPUTS) -> None:
        """Runs the parts before the last one, and sends the rows that they made with all other inputs."""
        given, inputs = self.inputs, [exchange.inputs for exchange in self._exchanges]
        for taken in inputs:
            for name, array in taken.items():
                if name not in self._rows and array is not given[name]:
                    array[...] = given[name]
        for number, (part, taken) in enumerate(zip(self._parts[:-1], inputs[:-1], strict=True)):
            if drafted := taken.keys() & device_inputs.keys():
                for name in drafted:
                    self._last.fetch(taken[name], device_inputs[name])
                part.exchange.follow(self._last)
            part.exchange.send()
            part.enqueue()
            for distance, reader in enumerate(self._exchanges[number + 1 :], 1):
                _hand_over(part.exchange, reader, inputs[number + distance], straight=distance == 1)
        self._last.send({name: sources for name, sources in device_inputs.items() if name in inputs[-1]})

    def receive(self) -> None:
        """Waits for the last part; by then, the others are done."""
        self._last.receive()
        for exchange in self._exchanges[:-1]:
            exchange.wait()

    def result(self, name: str) -> Memory:
        return self._last.result(name)

    def hand_over(self, name: str, array: Array) -> None:
        self._last.hand_over(name, array)


def _hand_over(maker: Exchange, reader: Exchange, taken: Mapping[str, Array], *, straight: bool) -> None:
    """Fills the inputs of a part that an earlier one has just made.

    `straight`: from GPU to GPU, if that can be. A maker then waits for the reader's copy before its next step, so a
    reader further on gets them by way of the host: the maker need not wait for those between.
    """
    if rows := taken.keys() & maker.outputs.keys():
        for name in rows:
            if not (straight and reader.takes(name, maker)):
                maker.hand_over(name, taken[name])
        reader.follow(maker)
