"""A member's lines: what has come to it, what it has begun and ended, and its side of a collective. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from atomr_mp.protocol.codec import MAX_U64
from atomr_mp.protocol.world.page import (
    AWAY,
    BEGUN,
    ENDED,
    FIRST_SIGNATURE,
    MAGIC,
    MAX_STEPPED,
    MET,
    MOST,
    NOTE_WORDS,
    NOTED,
    NOTES_AT,
    OPEN,
    OUTCOME_BITS,
    OUTCOMES,
    OUTCOMES_AT,
    QUIET,
    SIGNATURE_WORDS,
    SIGNATURES,
    STEP_OUTCOMES_AT,
    STEP_WORDS,
    Note,
    NoteKind,
    Outcome,
    Signature,
    WorldPageDamagedError,
    store_twice,
    sum_of,
    twice,
)

_NOTE_KINDS: Final = {int(kind): kind for kind in NoteKind}
_OUTCOMES: Final = {int(each): each for each in Outcome}


class MemberWriter:
    """A member's side. Ends and meetings come from the world's thread, all else with the loop's turn.

    Args:
        words: Its lines, as unsigned 64-bit words.
        epoch: The epoch that it joins; it has left the one before.
    """

    def __init__(self, words: memoryview, epoch: int) -> None:
        self._words = words
        self._notes: Final = (len(words) - NOTES_AT) // NOTE_WORDS
        self._noted = self._met = 0
        self.away = 0
        """The word that says whether a suspect waits or runs in this process."""
        words[OPEN] = 0
        words[ENDED] = words[NOTED] = words[MET] = words[QUIET] = words[AWAY] = 0
        store_twice(words, BEGUN, 0)
        words[0] = MAGIC
        words[OPEN] = epoch

    def note(self, note: Note, taken: int) -> bool:
        """Record that a part has come, or goes again; return False if there is no room before rank 0 has taken more.

        Args:
            note: What to note.
            taken: How many notes rank 0 has taken, by the ring.

        Raises:
            WorldPageDamagedError: It says that it has taken more than there were.
        """
        if taken > self._noted:
            raise WorldPageDamagedError("more notes were taken than written")
        if self._noted - taken >= self._notes:
            return False
        words, at = self._words, NOTES_AT + self._noted % self._notes * NOTE_WORDS
        words[at], words[at + 1], words[at + 2] = note
        words[at + 3] = sum_of(note, self._noted)
        words[NOTED] = self._noted = self._noted + 1
        return True

    def begin(self, sequence: int) -> None:
        """Say that an entry begins. Look at the stop word after this, behind a fence, and before anything is run."""
        store_twice(self._words, BEGUN, sequence)

    def end(self, sequence: int, outcome: Outcome = Outcome.ENDED) -> None:
        """Say that all entries up to this one have ended, and what this one has come to."""
        words = self._words
        words[OUTCOMES_AT + sequence % OUTCOMES] = sequence << OUTCOME_BITS | outcome
        words[ENDED] = sequence

    def end_steps(self, sequence: int, outcomes: Sequence[Outcome]) -> None:
        """Say that all entries up to this one have ended, and what each stream has come to that took its step.

        Args:
            sequence: The entry's number.
            outcomes: The outcomes in the entry's order, at most `MAX_STEPPED`.

        Raises:
            ValueError: There are more.
        """
        if len(outcomes) > MAX_STEPPED:
            raise ValueError(f"{len(outcomes)} streams in a step, more than have room")
        found = 0
        for place, outcome in enumerate(outcomes):
            found |= outcome << OUTCOME_BITS * place
        packed = [found >> shift & 2**64 - 1 for shift in range(0, MAX_STEPPED * OUTCOME_BITS, 64)]
        words, at = self._words, STEP_OUTCOMES_AT + sequence % OUTCOMES * STEP_WORDS
        for place, word in enumerate((sequence, *packed, sum_of(packed, sequence))):
            words[at + place] = word
        self.end(sequence)

    def be_quiet(self, sequence: int) -> None:
        """Say that nothing else runs in this process until an entry ends, which has begun."""
        self._words[QUIET] = sequence

    def be_away(self, away: bool) -> bool:  # noqa: FBT001 - the value of the word
        """Say whether a suspect waits or runs in this process; return whether that is news."""
        if away == bool(self.away & 1):
            return False
        self.away += 1
        self._words[AWAY] = self.away
        return True

    def meet(self, signature: Signature) -> int:
        """Show the signature of the next collective; return its number. All have met the one before that before it."""
        self._met += 1
        self.show_wait(self._met, signature)
        return self._met

    def show_wait(self, number: int, signature: Signature) -> None:
        """Show the collective that the member waits in on its device, by its number there, which others share."""
        words = self._words
        at = FIRST_SIGNATURE + number % SIGNATURES * SIGNATURE_WORDS
        words[at + 1], words[at + 2], words[at + 3], words[at + 4], words[at + 5] = signature
        words[at + 6] = sum_of(signature, number)
        words[at] = number
        words[MET] = number

    def show_no_wait(self) -> None:
        """Show that the member waits in none."""
        self._words[MET] = 0


class MemberReader:
    """A reader of a member's lines. Each method raises `WorldPageDamagedError` for what cannot be.

    Args:
        words: The lines, as unsigned 64-bit words.
        epoch: The epoch that is read of.
    """

    def __init__(self, words: memoryview, epoch: int) -> None:
        self._words = words
        self._epoch = epoch
        self._notes: Final = (len(words) - NOTES_AT) // NOTE_WORDS
        self.taken = 0
        """How many notes were read."""

    @property
    def is_open(self) -> bool:
        """Whether the member has joined the epoch. Nothing is of that epoch before."""
        return self._words[0] == MAGIC and self._words[OPEN] == self._epoch

    def begun(self) -> int:
        """Return the number of the latest entry that it has begun, or is about to begin."""
        return twice(self._words, BEGUN, "what has begun")[1]

    def ended(self) -> int:
        """Return the number up to which it has ended all entries."""
        ended = self._words[ENDED]
        if ended > self.begun():
            raise WorldPageDamagedError("more entries have ended than begun")
        return ended

    def quiet(self) -> int:
        """Return the number of the latest entry for which its process runs nothing else."""
        return self._words[QUIET]

    @property
    def is_away(self) -> bool:
        """Whether a suspect waits or runs in its process."""
        return bool(self.away() & 1)

    def away(self) -> int:
        """Return how often a suspect has begun or ceased to wait or run in its process."""
        return self._words[AWAY]

    def outcome(self, sequence: int) -> Outcome:
        """Return the outcome of an entry. The entry has ended, and is among the latest `OUTCOMES`."""
        word = self._words[OUTCOMES_AT + sequence % OUTCOMES]
        outcome = _OUTCOMES.get(word & 2**OUTCOME_BITS - 1)
        if word >> OUTCOME_BITS != sequence or outcome is None or outcome is Outcome.LEFT:
            raise WorldPageDamagedError("an entry has ended, and does not say with what")
        return outcome

    def step_outcomes(self, sequence: int, count: int) -> list[Outcome]:
        """Return the outcomes of the streams of a step. Its entry has ended, and is among the latest `OUTCOMES`.

        Args:
            sequence: The entry's number.
            count: How many streams took the step; at most `MAX_STEPPED`.
        """
        if self.outcome(sequence) is Outcome.FAILED:
            return [Outcome.LEFT] * count  # it did not run there
        at = STEP_OUTCOMES_AT + sequence % OUTCOMES * STEP_WORDS
        number, *packed, total = self._words[at : at + STEP_WORDS].tolist()
        if number != sequence or total != sum_of(packed, sequence):
            raise WorldPageDamagedError("the outcomes of a step do not match its number and sum")
        found = sum(word << 64 * place for place, word in enumerate(packed))
        return [_OUTCOMES[found >> OUTCOME_BITS * place & 2**OUTCOME_BITS - 1] for place in range(count)]

    def note(self) -> Note | None:
        """Return the next note, None if there is none. Rank 0 says in the ring that it was taken."""
        words, at = self._words, NOTES_AT + self.taken % self._notes * NOTE_WORDS
        noted = words[NOTED]
        if noted == self.taken:
            return None
        if not 0 < noted - self.taken <= self._notes:
            raise WorldPageDamagedError("fewer notes are there than were read, or more than have room")
        kind, session, request_id, total = words[at : at + NOTE_WORDS].tolist()
        if total != sum_of((kind, session, request_id), self.taken):
            raise WorldPageDamagedError("a note does not match its sum")
        if kind not in _NOTE_KINDS:
            raise WorldPageDamagedError(f"a note is of kind {kind}, which does not exist")
        if max(session, request_id) > MAX_U64:
            raise WorldPageDamagedError("a note has a number that no session or request can have")
        self.taken += 1
        return Note(_NOTE_KINDS[kind], session, request_id)

    def met(self) -> int:
        """Return the number of the latest collective that has its signature there."""
        met = self._words[MET]
        if met >= MOST:
            raise WorldPageDamagedError("more collectives were begun than can be")
        return met

    def record(self, number: int) -> memoryview:
        """Return the words in which it shows the signature of a collective: number, signature and sum."""
        at = FIRST_SIGNATURE + number % SIGNATURES * SIGNATURE_WORDS
        return self._words[at : at + SIGNATURE_WORDS - 1]

    def signature(self, number: int) -> Signature:
        """Return the signature of a collective that it has met, the latest or the one before."""
        found, *signature, total = self.record(number).tolist()
        if found != number or total != sum_of(signature, number):
            raise WorldPageDamagedError("the signature of a collective does not match its number and sum")
        return Signature(*signature)
