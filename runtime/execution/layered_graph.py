"""A graph in parts, each of which computes some layers on a device of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trigraph.runtime.device.exchange import NO_DEVICE_INPUTS, Array, DeviceInputs, Exchange, Memory
from trigraph.runtime.execution.sessions import Binding, SessionGraph


class LayeredGraph:
    """The parts of a graph, each with its state where it is computed. Steps see one graph, on the last one's device."""

    def __init__(self, parts: Sequence[SessionGraph]) -> None:
        self.parts = parts

    def bind(self, tokens: int, sequences: int, images: int = 0) -> Binding:
        """The binding for a shape: the parts before the last one run when inputs are sent."""
        parts = [part.bind(tokens, sequences, images) for part in self.parts]
        return Binding(LayeredExchange(parts), parts[-1].enqueue)


class LayeredExchange(Exchange):
    """The last part's side of a step, before which the others run.

    Rows go from part to part with the next one's inputs. Only the CPU's parts have the host wait for those before.
    """

    def __init__(self, parts: Sequence[Binding]) -> None:
        super().__init__({}, parts[-1].outputs)
        self._parts, self._exchanges = parts, [part.exchange for part in parts]
        self._last = self._exchanges[-1]

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
        for number, (exchange, taken) in enumerate(zip(self._exchanges, inputs, strict=True)):
            made = {name for part in self._parts[:number] for name in part.outputs}
            for name, array in taken.items():
                if name not in made and array is not given[name]:
                    array[...] = given[name]
            if exchange is self._last:
                exchange.send({name: device_inputs[name] for name in taken.keys() & device_inputs.keys()})
                return
            if found := taken.keys() & device_inputs.keys():
                for name in found:
                    self._last.fetch(taken[name], device_inputs[name])
                exchange.follow(self._last)
            exchange.send()
            self._parts[number].enqueue()
            self._hand_over(number, inputs)

    def _hand_over(self, number: int, inputs: Sequence[Mapping[str, Array]]) -> None:
        """Fills the inputs of later parts that one has just made."""
        exchange = self._exchanges[number]
        for reader, taken in zip(self._exchanges[number + 1 :], inputs[number + 1 :], strict=True):
            if rows := taken.keys() & exchange.outputs.keys():
                for name in rows:
                    exchange.hand_over(name, taken[name])
                reader.follow(exchange)

    def receive(self) -> None:
        """Waits for the last part; by then, the others are done."""
        for exchange in reversed(self._exchanges):
            exchange.receive() if exchange is self._last else exchange.wait()

    def result(self, name: str) -> Memory:
        return self._last.result(name)
