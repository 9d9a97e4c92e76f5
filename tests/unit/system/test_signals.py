from __future__ import annotations

import signal

import pytest

from fedexp.client.loops import FabricLoop, TrainerLoop
from fedexp.core.component import Component
from fedexp.system import signals
from fedexp.testing import play


class Interrupting(Component):
    """Presses Ctrl-C in the middle of a client's training."""

    def loss(self, step):
        raise KeyboardInterrupt


class Leaving(Component):
    """Is told to end by a scheduler in the middle of a client's training."""

    def loss(self, step):
        raise SystemExit(144)


@pytest.mark.parametrize("loop", [TrainerLoop, FabricLoop])
def test_the_exit_code_for_a_scheduler_survives(loop):
    with pytest.raises(SystemExit) as end:
        play({"leave": Leaving()}, loop=loop)
    assert end.value.code == 144


@pytest.mark.parametrize("loop", [TrainerLoop, FabricLoop])
def test_other_tasks_of_a_slurm_job_do_not_matter(loop, monkeypatch):
    for name, value in {
        "SLURM_NTASKS": "4",
        "SLURM_JOB_NAME": "sweep",
        "SLURM_PROCID": "3",
        "SLURM_LOCALID": "3",
    }.items():
        monkeypatch.setenv(name, value)
    loop()


@pytest.mark.parametrize("loop", [TrainerLoop, FabricLoop])
def test_ctrl_c_is_a_keyboard_interrupt_and_works_a_second_time(loop):
    before = signal.getsignal(signal.SIGINT)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            play({"stop": Interrupting()}, loop=loop)
        assert signal.getsignal(signal.SIGINT) is before


@pytest.fixture
def handlers():
    """What signals did before is what they do afterwards."""
    before = {number: signal.getsignal(number) for number in signals.SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("number", signals.SIGNALS)
def test_a_signal_is_heard_after_what_would_swallow_it(number):
    reached = []

    def imported():
        with signals.defer_signals():
            try:
                signal.raise_signal(number)
            except KeyboardInterrupt:
                reached.append("an except clause of somebody else")
            reached.append("the end")

    with signals.raise_on_signal(), pytest.raises(signals.Stopped) as told:
        imported()
    assert reached == ["the end"]
    assert signals.exit_code(told.value) == 128 + number
