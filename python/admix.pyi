"""Scores display requests as `admix score` and `admix serve` do, within a Python process."""

from os import PathLike
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

__version__: str

class Decision:
    """The ad to show on a request, with the scores behind the choice."""

    request_id: int
    chosen: Optional[int]
    """The ad that is shown; None where nothing may be shown."""
    is_contract: bool
    scores: Dict[int, float]
    """Ads that may be shown with their scores, in units of eCPM with boosts multiplied on; finite. The highest is chosen."""

class Scorer:
    """A policy that serves a day, request by request, and keeps the state that its scores depend on."""

    def __init__(
        self,
        policy: Union[str, PathLike[str]],
        control: Union[str, PathLike[str]],
        *,
        plan: Optional[Union[str, PathLike[str]]] = None,
        inventory: Optional[Union[str, PathLike[str]]] = None,
        day: Optional[Union[str, PathLike[str]]] = None,
        ts_ms: Optional[int] = None,
        rate_seed: int = 0,
        feedback_delay_s: float = 0.0,
        complete_queues: bool = False,
        stateless: bool = False,
        exposures: bool = False,
        confirm_within_s: Optional[float] = None,
        values: Optional[Union[str, PathLike[str]]] = None,
    ) -> None:
        """Opens a policy at the start of a day.

        policy: a run directory (its best policy), a policy file, or "baseline:NAME", which needs `plan`.
        control, inventory, day: the day's files; without `day`, the UTC day that holds `ts_ms` (Unix milliseconds, default now).
        stateless: every request is scored at the same state.
        exposures: remember choices, so that `confirm` can correct them. confirm_within_s: take back a choice that is not confirmed
        within so many seconds; implies `exposures`.
        values: folder of a value model whose values the policy is told, or "logged" for those of the requests; by default those that it
        was made at, whose model lies beside the policy.

        Raises ValueError where a file, the policy or an option cannot be used.
        """

    def decide(self, request: Mapping[str, Any]) -> Decision:
        """Scores a request, chooses an ad and counts it.

        request: an object of `admix score --format jsonl` as a dictionary: request_id, ts_ms, slot_id, region, gender, age, queue (a list of
        ad_id, type, ecpm, pctr, filter and optionally boost).

        Raises ValueError for a request that breaks a rule; the state does not move then.
        """

    def decide_many(self, requests: Sequence[Mapping[str, Any]]) -> List[Decision]:
        """Decides requests in order. All are checked before the first is decided. Other Python threads run meanwhile."""

    def probe(self, request: Mapping[str, Any]) -> Decision:
        """Scores a request at this moment's state, which does not move."""

    def confirm(self, request_id: int, ad_id: int, ts_ms: int) -> bool:
        """Takes in what was really shown, in any order; whether it was news. A stateless scorer counts nothing and returns False."""

    def begin_with(self, delivered: Mapping[int, int]) -> List[int]:
        """Starts in the middle of the day, with impressions delivered since it began by ad id; returns ads without a contract."""

    def save(self) -> bytes:
        """The state; a scorer of the same day and policy that restores it goes on as this one would."""

    def restore(self, state: bytes) -> bool:
        """Goes on from a saved state, also one of `admix score --save-state` or of an exported dictionary.

        False where another policy saved it or contracts have changed: its counts are taken over, by ad id. Raises ValueError for a damaged state or one of another day.
        """

    def deliveries(self) -> Dict[int, Tuple[float, float]]:
        """Contracts with their true and observed deliveries since the day began."""

    @property
    def version(self) -> str:
        """Tells the policy that serves from others, as `model_version` of a dictionary does."""

    @property
    def date(self) -> str: ...

    @property
    def time_ms(self) -> int:
        """Time of the latest request, Unix milliseconds."""
