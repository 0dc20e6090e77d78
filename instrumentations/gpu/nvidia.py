# SPDX-License-Identifier: Apache-2.0
"""Finds the GPUs of NVIDIA."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from grademl_otel.convert.spans import Attributes
from grademl_otel.instrumentations.gpu import nvml
from grademl_otel.instrumentations.gpu.device import Device, pci_id
from grademl_otel.instrumentations.gpu.nvidia_gpu import NvidiaGpu, raw, text, within_count
from grademl_otel.instrumentations.gpu.probes import Verdict, tell
from grademl_otel.sampling.source import Reading, Source, SourceGone

_PATIENCE_S: Final = 2.0
"""For GPUs to say who they are; those that take longer are found by a later scan."""
_DRIVER: Final = "/proc/driver/nvidia/version"


class Unidentified:
    """A GPU that does not say who it is: lost before it was found, or hanging."""

    def __init__(self, index: int, error: Exception) -> None:
        self.name = f"gpu {index}"
        self.error: Exception = error
        self.gone = False

    def read(self) -> Sequence[Reading]:
        """Raise what it answered."""
        if self.gone:
            raise SourceGone(self.name)
        raise self.error.with_traceback(None)  # that of the last time would stay, and grow

    def close(self) -> None:
        """Nothing is held."""


class NvidiaProvider:
    """The GPUs that the driver shows to this process; CUDA_VISIBLE_DEVICES does not matter."""

    name = "nvidia"

    def __init__(self, library: nvml.Library | None = None) -> None:
        self._library = library or nvml.Library()
        self._known: dict[str, NvidiaGpu] = {}
        self._unidentified: dict[int, Unidentified] = {}
        self._asked: dict[int, _Identification] = {}

    def sources(self) -> Sequence[Source]:
        """Return the GPUs that there are; none where there is no driver or no nvidia-ml-py.

        Raises NVMLError for a driver that is there and does not work.
        """
        library = self._library
        try:
            library.open()
        except nvml.Missing as missing:
            if _has_driver():
                tell(f"GPUs are not read: {missing}")
            return []
        except Exception as error:
            if nvml.code(error) in nvml.NONE:
                return list(self._known.values())  # who was there before says the same, and is counted
            raise
        generation = library.generation
        try:
            with library.call():
                count = within_count(library.api.nvmlDeviceGetCount())
        except Exception as error:
            library.failed(generation, error)
            raise
        identified = self._identified(count, generation)
        return self._keep(identified)

    def close(self) -> None:
        """Let go of the library."""
        self._library.close()

    def _identified(self, count: int, generation: int) -> list[_Identification]:
        """Ask each GPU who it is, side by side: one that hangs does not keep the others."""
        for index in range(count):
            asked = self._asked.get(index)
            if asked is None or not asked.is_alive():
                self._asked[index] = _Identification(self._library, index)
                self._asked[index].start()
        until = time.monotonic() + _PATIENCE_S
        for index in range(count):
            self._asked[index].join(max(0.0, until - time.monotonic()))
        return [self._asked[index] for index in range(count)]

    def _keep(self, identified: list[_Identification]) -> list[Source]:
        found: set[str] = set()
        trouble: dict[int, Exception] = {}
        for each in identified:
            if each.device is None:
                trouble[each.index] = each.error or TimeoutError("it does not say who it is")
                continue
            found.add(each.device.id)
            known = self._known.get(each.device.id)
            if known is None or known.gone:
                self._known[each.device.id] = NvidiaGpu(self._library, each.device, each.uuid)
        if not trouble:
            # Each has said who it is: what is not among them was taken out, else it may be one of the silent.
            for id in [id for id in self._known if id not in found]:
                self._known.pop(id).gone = True
        self._doubt(trouble, len(identified))
        return [*self._known.values(), *self._unidentified.values()]

    def _doubt(self, trouble: dict[int, Exception], count: int) -> None:
        """Show GPUs that say nothing as sources of their own, as far as they are not known from before."""
        spare = count - len(self._known)
        wanted = dict(sorted(trouble.items())[: max(0, spare)])
        for index in [index for index in self._unidentified if index not in wanted]:
            self._unidentified.pop(index).gone = True
        for index, error in wanted.items():
            known = self._unidentified.get(index)
            if known is None:
                self._unidentified[index] = Unidentified(index, error)
            else:
                known.error = error


class _Identification(threading.Thread):
    """Asks a GPU who it is."""

    def __init__(self, library: nvml.Library, index: int) -> None:
        super().__init__(name=f"grademl gpu {index}", daemon=True)
        self.index = index
        self.device: Device | None = None
        self.uuid = b""
        self.error: Exception | None = None
        self._library = library

    def run(self) -> None:
        try:
            with self._library.call():
                uuid, device = self._ask()
            self.uuid, self.device = uuid, device
        except Exception as error:
            self.error = error

    def _ask(self) -> tuple[bytes, Device]:
        api = self._library.api
        handle = api.nvmlDeviceGetHandleByIndex(self.index)
        uuid = raw(api.nvmlDeviceGetUUID, handle)
        attributes: Attributes = {
            "hw.name": f"GPU {self.index}",
            "hw.vendor": "NVIDIA",
            "grademl.gpu.index": self.index,
        }
        facts: tuple[tuple[str, Callable[[], str]], ...] = (
            ("hw.model", lambda: text(api.nvmlDeviceGetName, handle)),
            ("hw.driver_version", lambda: text(api.nvmlSystemGetDriverVersion)),
            ("grademl.gpu.pci.id", lambda: pci_id(str(api.nvmlDeviceGetPciInfo(handle).busId))),
        )
        for key, call in facts:
            try:
                attributes[key] = call()
            except Exception as error:  # one that does not say its model is read all the same
                if nvml.verdict(error) is Verdict.DEVICE:
                    raise
        return uuid, Device(uuid.decode("utf-8", "replace"), attributes)


def _has_driver() -> bool:
    try:
        with open(_DRIVER):
            return True
    except OSError:
        return False
