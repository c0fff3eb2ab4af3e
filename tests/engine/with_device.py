"""Imported by the fork server of :mod:`tests.engine.on_device`: its processes have the device."""

from tests import device

device.register()
