"""An interrupt ends the demo, also where a shell ignored it, and never cuts the ending off."""

import os
import signal

import pytest

from fleet.demo.interrupts import Interrupted, interruptible


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_raises_until_the_ending_has_begun(number: signal.Signals):
    """Then it is only remarked; afterwards all is as before."""
    remarks: list[str] = []
    before = signal.signal(number, signal.SIG_IGN)  # as in a background job of a script
    try:
        with interruptible(lambda: remarks.append("one moment")) as ending:
            with pytest.raises(Interrupted, match=number.name):
                os.kill(os.getpid(), number)
            ending.start()
            os.kill(os.getpid(), number)
        assert remarks == ["one moment"]
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)
