"""NVIDIA's own binding (`pynvml` of nvidia-ml-py): loads the driver's library, and says how its records are laid out.

What is asked each round is called through the binding's pointers with records that are made once. Two records are
written out here, because older bindings that fit as well have none of them.
"""

from __future__ import annotations

import ctypes
import importlib
from typing import Any

from gpuwatch.errors import ProbeError
from gpuwatch.sdk.nvml_answers import FUNCTION_NOT_FOUND, SUCCESS, UNKNOWN

SONAME = "libnvidia-ml.so.1"
TEXT_BYTES = 96  # NVML_DEVICE_UUID_V2_BUFFER_SIZE, the largest of the names asked for
LINKS = 36  # more than any chip has (18 on Blackwell)


class Margin(ctypes.Structure):
    """nvmlMarginTemperature_v1_t, in °C to the slowdown."""

    _fields_ = (("version", ctypes.c_uint), ("marginTemperature", ctypes.c_int))

    @classmethod
    def made(cls) -> Margin:
        """Ready to be filled."""
        return cls(version=version_of(ctypes.sizeof(cls), 1))


class Temperature(ctypes.Structure):
    """nvmlTemperature_v1_t, in °C; sensor 0 is the GPU's."""

    _fields_ = (("version", ctypes.c_uint), ("sensorType", ctypes.c_uint), ("temperature", ctypes.c_int))

    @classmethod
    def made(cls) -> Temperature:
        """Ready to be filled."""
        return cls(version=version_of(ctypes.sizeof(cls), 1))


class Fabric(ctypes.Structure):
    """nvmlGpuFabricInfo_v3_t; version 2 is the same without its last field."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("clusterUuid", ctypes.c_ubyte * 16),
        ("status", ctypes.c_uint),
        ("cliqueId", ctypes.c_uint),
        ("state", ctypes.c_ubyte),
        ("healthMask", ctypes.c_uint),
        ("healthSummary", ctypes.c_ubyte),
    )

    @classmethod
    def newest(cls) -> Fabric:
        """Ready to be filled by a driver that knows all of it."""
        return cls(version=version_of(ctypes.sizeof(cls), 3))

    @classmethod
    def second(cls) -> Fabric:
        """… by one that does not know its last field."""
        return cls(version=version_of(FABRIC_2_BYTES, 2))


FABRIC_2_BYTES = Fabric.healthSummary.offset


def version_of(size: int, number: int) -> int:
    """NVML_STRUCT_VERSION: size and number of a record in one word."""
    return size | number << 24


class Binding:
    """The binding, imported. Raises `ProbeError` where it is not NVIDIA's."""

    def __init__(self) -> None:
        try:
            self._binding = importlib.import_module("pynvml")
        except ImportError as error:
            raise ProbeError(
                "the Python module pynvml cannot be imported", why=str(error), next_step="pip install nvidia-ml-py"
            ) from error
        if not hasattr(self._binding, "nvmlInitWithFlags"):
            raise ProbeError(
                f"{self._binding.__file__} is not NVIDIA's binding",
                why="another package installs a module of the same name",
                next_step="pip uninstall pynvml; pip install --force-reinstall nvidia-ml-py",
            )
        self.utilization = self._binding.c_nvmlUtilization_t
        self.memory = self._binding.c_nvmlMemory_t
        self.memory2 = self._binding.c_nvmlMemory_v2_t
        self.pci = self._binding.nvmlPciInfo_t
        self.process = self._binding.c_nvmlProcessInfo_t
        self.field = self._binding.c_nvmlFieldValue_t
        self.banks = self._binding.c_nvmlRowRemapperHistogramValues
        self.fabric_first = self._binding.c_nvmlGpuFabricInfo_t
        self.handle = self._binding.c_nvmlDevice_t

    def start(self) -> int:
        """Load the library and initialise it. The library stays loaded: another one takes another process."""
        return self._code(self._binding.nvmlInit)

    def stop(self) -> int:
        """Let go of every GPU."""
        return self._code(self._binding.nvmlShutdown)

    def pointer(self, function: str) -> Any:
        """The library's own function; None where this driver has none of that name, or nothing is loaded."""
        try:
            return self._binding._nvmlGetFunctionPointer(function)
        except self._binding.NVMLError:
            return None

    def _code(self, function: Any) -> int:
        try:
            function()
        except self._binding.NVMLError as error:
            code = error.value  # compared by value: the class is unhashable and cannot be compared with None
            return code if isinstance(code, int) else UNKNOWN
        except AttributeError:  # a library that lacks what the binding takes for granted
            return FUNCTION_NOT_FOUND
        return SUCCESS
