"""Which device runs the graphs: a registry of execution providers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trigraph.custom_ops import instruction_set, library_path
from trigraph.models.errors import TrigraphError
from trigraph.runtime.device.cuda.device import open_cuda
from trigraph.runtime.device.device import HOST, Device
from trigraph.runtime.device.webgpu.device import open_webgpu

EXPERTS = ("gpu", "cpu")
"""Where routed experts can be computed when the device is a GPU."""

_ACCELERATORS: dict[str, Callable[..., Device]] = {"cuda": open_cuda, "webgpu": open_webgpu}
"""By name, how to open the device of a number, or the best one. Each raises TrigraphError for what is missing."""
_SAME_BITS = ("cuda",)  # in the order in which `auto` tries them: texts are those of the processor

DEVICES = ("auto", "cpu", *_ACCELERATORS)


def open_devices(names: str, portable: bool = False) -> Sequence[Device]:
    """The devices of these names, between commas: the layers of a model are the first one's, then the next one's.

    Several must be GPUs with the processor's bits, of which one may be named twice. Raises TrigraphError as
    `open_device` does.
    """
    found = [open_device(name, portable) for name in names.split(",")]
    if len(found) > 1 and any(device.is_host or device.arithmetic for device in found):
        raise TrigraphError(
            f"device is {names}; only cuda:N can be several, and the CPU computes what does not fit them"
        )
    return found


def open_device(name: str, portable: bool = False) -> Device:
    """The device of that name, one of DEVICES; `auto` is one with the processor's bits where it can be used, else that.

    A colon and a number behind an accelerator's name choose among several, from 0 on: `cuda:1`. Without, it is the one
    with the fastest memory.
    `portable` graphs do without an operator library that is missing. Raises TrigraphError that says what is missing for
    a device that was asked for: no other one is taken in its place.
    """
    name, number = _numbered(name)
    if name not in DEVICES:
        raise TrigraphError(f"device is {name}; it must be one of {', '.join(DEVICES)}")
    if name in _ACCELERATORS:
        return _ACCELERATORS[name](*number)
    reasons = []
    for accelerator in _SAME_BITS if name == "auto" else ():
        try:
            return _ACCELERATORS[accelerator]()
        except TrigraphError as error:
            reasons.append(str(error))
    return _open_cpu(portable, "; ".join(reasons) or None)


def _numbered(name: str) -> tuple[str, Sequence[int]]:
    """The name of a device without its number, and that, if there is one."""
    bare, colon, number = name.partition(":")
    if bare not in _ACCELERATORS or not colon:
        return name, ()
    if not (number.isascii() and number.isdigit() and len(number) < 4):
        raise TrigraphError(f"device is {name}; behind {bare}: comes the number of a GPU, such as {bare}:1")
    return bare, (int(number),)


def _open_cpu(portable: bool, reason: str | None) -> Device:
    try:
        library = library_path("cpu")
    except TrigraphError:
        if not portable:
            raise
        return Device(HOST.library, HOST.kernels, reason)
    return Device(library, instruction_set(), reason)
