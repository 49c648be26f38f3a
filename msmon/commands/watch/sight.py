"""What can't be seen, told when it begins, changes and is over, and never again in between."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from msmon.insight.wording import ranks_text
from msmon.live.job_watch import JobWatch

SETTLED_WINDOWS = 3
"""So many windows in a row must show it: what comes and goes is not worth a line."""


@dataclass
class _Topic:
    """``told`` is what was told last, empty if nothing stands; ``latest`` was seen ``looks`` times
    in a row."""

    told: str = ""
    latest: str = ""
    looks: int = 0


class Changes:
    """Texts by topic, told once they have stayed for some looks. Belongs to one thread."""

    def __init__(self, settled: int = 1) -> None:
        self._settled = settled
        self._topics: dict[str, _Topic] = {}

    def take(self, now: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """Take what holds; yield (topic, text) of what is new. An empty text: it is over."""
        for name in [*now, *(name for name in self._topics if name not in now)]:
            topic, text = self._topics.setdefault(name, _Topic()), now.get(name, "")
            topic.looks = topic.looks + 1 if text == topic.latest else 1
            topic.latest = text
            if topic.looks >= self._settled:
                if text != topic.told:
                    topic.told = text
                    yield name, text
                if not text:
                    del self._topics[name]


class JobSight:
    """What can't be judged of one job. Belongs to one thread."""

    def __init__(self) -> None:
        self._changes = Changes(SETTLED_WINDOWS)
        self._windows = 0

    def take(self, watch: JobWatch) -> Iterator[str]:
        """Yield sentences on what has changed; between two windows nothing does."""
        if watch.windows == self._windows:
            return
        self._windows = watch.windows
        now = {one.reason: ranks_text(one.ranks) for one in watch.abstained}
        now.update(dict.fromkeys(watch.problems, "all"))
        for reason, ranks in self._changes.take({key: text or "all" for key, text in now.items()}):
            if not ranks:
                yield f"no longer so: {reason}"
            elif ranks == "all":
                yield reason
            else:
                yield f"can't judge rank {ranks}: {reason}"


def first_words(watch: JobWatch) -> Iterator[str]:
    """Yield sentences on what can't be judged now, for one look only."""
    for one in watch.abstained:
        ranks = ranks_text(one.ranks)
        yield f"can't judge rank {ranks}: {one.reason}" if ranks else one.reason
    yield from watch.problems
