"""A graph whose first layers the host computes, and all else a device."""

from __future__ import annotations

from collections.abc import Mapping

from trigraph.runtime.device.exchange import NO_DEVICE_INPUTS, Array, DeviceInputs, Exchange, Memory
from trigraph.runtime.execution.sessions import Binding, SessionGraph


class LayeredGraph:
    """Two parts of a graph, each with its state where it is computed. Steps see one graph, the device's."""

    def __init__(self, host: SessionGraph, rest: SessionGraph) -> None:
        self._host, self._rest = host, rest

    def bind(self, tokens: int, sequences: int, images: int = 0) -> Binding:
        """The binding for a shape: the host's part runs when inputs are sent, and its rows are sent with them."""
        host, rest = (graph.bind(tokens, sequences, images) for graph in (self._host, self._rest))
        return Binding(LayeredExchange(host, rest), rest.enqueue)


class LayeredExchange(Exchange):
    """The device's side of a step, before which the host's part runs."""

    def __init__(self, host: Binding, rest: Binding) -> None:
        super().__init__({}, rest.outputs)
        self._host, self._rest = host, rest

    @property
    def inputs(self) -> Mapping[str, Array]:
        """Arrays to fill in: those of the device, and those that the host alone reads."""
        return {**self._host.inputs, **self._rest.inputs}

    @property
    def sent(self) -> Mapping[str, Array]:
        return {**self._host.exchange.sent, **self._rest.exchange.sent}

    def send(self, device_inputs: DeviceInputs = NO_DEVICE_INPUTS) -> None:
        """Runs the host's part, and sends its rows with all other inputs. What the device made for it is awaited."""
        given, taken = self.inputs, self._host.inputs
        for name in taken.keys() & device_inputs.keys():
            self._rest.exchange.fetch(given[name], device_inputs[name])
        for name, array in taken.items():
            array[...] = given[name]
        self._host.run()
        for name, rows in self._host.outputs.items():
            given[name][...] = rows
        left = {name: sources for name, sources in device_inputs.items() if name not in taken}
        self._rest.exchange.send(left)

    def receive(self) -> None:
        self._rest.exchange.receive()

    def result(self, name: str) -> Memory:
        return self._rest.exchange.result(name)
