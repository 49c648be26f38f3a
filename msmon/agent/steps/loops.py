"""Which calls of which optimizers end a loop of the training.

A job with one optimizer makes one call per loop. One with several may call each once per loop, or
in any rhythm. The calls alone tell the loops apart by one rule: *a loop has ended once every
optimizer in use was called in it; calls of the same optimizer in a row are one.* Examples, with
the calls that end a loop in brackets:

* One optimizer: ``[A] [A] [A]``.
* A GAN, or layers with optimizers of their own: ``A [B] A [B]``.
* A critic four times and an actor twice: ``C C C C [A] A  C C C C [A] A``.
* Delayed updates of an actor: ``C C [A]  C C [A]``. These calls look like those of a critic that
  is trained twice per loop, so two updates of the critic count as one step.
* A second optimizer that is never called, or once in a hundred loops: it is not in use.

An optimizer is in use when its calls come again within ``REACH`` calls. So the rule needs two loops
to learn which are in use. Until then each call counts, except the first one after another
optimizer's, which may belong to the same loop. What was counted too much by then is made up for:
the next loops don't count. What was counted too little counts at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

REACH = 16
"""Most calls of a loop of several optimizers, and two per known optimizer more."""

MAX_IN_USE = 64
"""Where there is an optimizer for each parameter, these suffice to tell the loops apart."""


class LoopCounter:
    """Counts loops from calls of optimizers. Used on the thread that trains.

    ``advance`` is called with the number of steps that have just ended. That is 1, except where
    earlier calls turn out to have been loops as well.
    """

    def __init__(self, advance: Callable[[int], None]) -> None:
        self._advance = advance
        self._number = 0
        """Number of the current call."""
        self._calls: deque[_Call] = deque()
        """The latest calls, at least those of two loops."""
        self._began: dict[int, int] = {}
        """Serial → number of the call that began its latest run; the oldest run first."""
        self._members: set[int] = set()
        """Those of ``_began`` that are in use: one loop has a call of each."""
        self._seen: set[int] = set()
        """Members that were called in this loop."""
        self._run_calls = self._run_loops = 0
        """Calls of the current run, and how many loops they were counted as."""
        self._owed = 0
        """Loops that were counted too much and are still to be made up for."""

    @property
    def optimizers_per_loop(self) -> int:
        """How many optimizers make up a loop, as far as is known."""
        return len(self._members) or 1

    def constructed(self) -> None:
        """Note a new optimizer: the loop may be another one from now on."""
        self._calls.clear()

    def called(self, serial: int, known: int, others_expected: bool) -> None:
        """Take a call. ``known``: how many optimizers there are.

        ``others_expected``: some were never called yet, so this may be the first call of a loop
        of several.
        """
        is_first = not self._calls
        call = _Call(serial, is_first or self._calls[-1].serial != serial)
        reach = REACH + 2 * known
        self._note(call, 2 * reach)
        changed = self._members_changed(call, self._number - reach)
        if not self._members:
            if call.begins_run:
                self._count(int(is_first and not others_expected))
            else:
                self._count(self._run_calls - self._run_loops)
        elif changed:
            self._settle()
        else:
            self._count(int(self._completes(call)))

    # --- which are in use ----------------------------------------------------------------

    def _note(self, call: _Call, kept: int) -> None:
        self._number += 1
        self._calls.append(call)
        while len(self._calls) > kept:
            self._calls.popleft()
        if call.begins_run:
            self._run_calls = self._run_loops = 0
        self._run_calls += 1

    def _members_changed(self, call: _Call, oldest: int) -> bool:
        """Note who is in use: whose latest run began after ``oldest``, and the one before too."""
        before = len(self._members)
        while self._began:
            serial, number = next(iter(self._began.items()))
            if number > oldest:
                break
            del self._began[serial]
            self._members.discard(serial)
        left = len(self._members)
        if call.begins_run:
            if self._began.pop(call.serial, 0) and left < MAX_IN_USE:
                self._members.add(call.serial)
            self._began[call.serial] = self._number
        return left < before or len(self._members) > left

    def _completes(self, call: _Call) -> bool:
        """Note a call in this loop; True when all members were called, and the loop has ended."""
        if call.begins_run and call.serial in self._members:
            self._seen.add(call.serial)
        if not self._seen >= self._members:
            return False
        self._seen.clear()
        return True

    # --- counting ------------------------------------------------------------------------

    def _settle(self) -> None:
        """Compare what was counted with the loops that the members make of the latest calls."""
        counted = sum(call.loops for call in self._calls)
        self._seen.clear()
        for call in self._calls:
            call.loops = int(self._completes(call))
        more = sum(call.loops for call in self._calls) - counted
        if more < 0:
            self._owed -= more
        else:
            self._pay(more)

    def _count(self, loops: int) -> None:
        self._calls[-1].loops = loops
        self._run_loops += loops
        self._pay(loops)

    def _pay(self, loops: int) -> None:
        kept_back = min(self._owed, loops)
        self._owed -= kept_back
        if loops > kept_back:
            self._advance(loops - kept_back)


class _Call:
    """One call of an optimizer. ``loops``: how many it was counted as."""

    __slots__ = ("begins_run", "loops", "serial")

    def __init__(self, serial: int, begins_run: bool) -> None:
        self.serial = serial
        self.begins_run = begins_run
        self.loops = 0
