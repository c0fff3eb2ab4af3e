"""The names users write are there, are what they say, and come without torch until used."""

from __future__ import annotations

import subprocess
import sys
import types

import archgraph as ag


def test_every_public_name_resolves_to_a_function_or_class():
    for name in dir(ag):
        assert not isinstance(getattr(ag, name), types.ModuleType), name
        assert getattr(ag, name).__doc__, name


def test_functions_win_over_submodules_of_the_same_name():
    import archgraph.capture.trace  # noqa: F401 - importing it must not hide the function

    assert callable(ag.trace) and callable(ag.check) and callable(ag.build)


def test_importing_the_package_does_not_import_torch():
    code = "import archgraph, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
