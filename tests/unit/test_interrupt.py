from __future__ import annotations

import signal

import pytest

from fedexp.component import Component
from fedexp.loops import FabricLoop, TrainerLoop
from fedexp.testing import play


class Interrupting(Component):
    """Presses Ctrl-C in the middle of a client's training."""

    def loss(self, step):
        raise KeyboardInterrupt


@pytest.mark.parametrize("loop", [TrainerLoop, FabricLoop])
def test_ctrl_c_is_a_keyboard_interrupt_and_works_a_second_time(loop):
    before = signal.getsignal(signal.SIGINT)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            play({"stop": Interrupting()}, loop=loop)
        assert signal.getsignal(signal.SIGINT) is before
