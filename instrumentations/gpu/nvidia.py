# SPDX-License-Identifier: Apache-2.0
"""Finds the GPUs of NVIDIA."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from grademl_otel.convert.spans import Attributes
from grademl_otel.instrumentations.gpu import nvml
from grademl_otel.instrumentations.gpu.device import Device, pci_id
from grademl_otel.instrumentations.gpu.finding import Finder
from grademl_otel.instrumentations.gpu.nvidia_gpu import NvidiaGpu, raw, text
from grademl_otel.instrumentations.gpu.probes import Verdict, tell
from grademl_otel.sampling.source import Source

_DRIVER: Final = "/proc/driver/nvidia/version"


class NvidiaProvider:
    """The GPUs that the driver shows to this process; CUDA_VISIBLE_DEVICES does not matter."""

    name = "nvidia"

    def __init__(self, library: nvml.Library | None = None) -> None:
        self._library = library or nvml.Library()
        self._finder = Finder(self._ask, partial(NvidiaGpu, self._library))

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
                return self._finder.known  # who was there before says the same, and is counted
            raise
        generation = library.generation
        try:
            with library.call():
                count = library.api.nvmlDeviceGetCount()
        except Exception as error:
            library.failed(generation, error)
            raise
        return self._finder.find(count)

    def close(self) -> None:
        """Let go of the library."""
        self._library.close()

    def _ask(self, index: int) -> tuple[Device, bytes]:
        """Return a GPU, and its id as the driver spells it."""
        with self._library.call():
            api = self._library.api
            handle = api.nvmlDeviceGetHandleByIndex(index)
            uuid = raw(api.nvmlDeviceGetUUID, handle)
            attributes: Attributes = {
                "hw.name": f"GPU {index}",
                "hw.vendor": "NVIDIA",
                "grademl.gpu.index": index,
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
            return Device(uuid.decode("utf-8", "replace"), attributes), uuid


def _has_driver() -> bool:
    try:
        with open(_DRIVER):
            return True
    except OSError:
        return False
