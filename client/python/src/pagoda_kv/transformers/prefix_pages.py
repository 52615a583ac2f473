"""Pages of one request at the daemon: the prefix that is there, and pushing what was computed.

Nothing here raises, and nothing waits beyond the client's timeouts: whatever goes wrong is a miss,
or a page that is not pushed; `problem` says what was first.

Threads  one at a time
"""

from collections.abc import Sequence

from pagoda_kv import Client, FetchedPage, PagodaError, key_chain, kernels

from .config import PagodaConfig
from .page_sequence import PageSequence


class PrefixPages:
    """A running request in one scope."""

    def __init__(self, client: Client, config: PagodaConfig, shape: kernels.PageShape) -> None:
        self.config, self.shape = config, shape
        self.problem: PagodaError | None = None
        self.pushed = 0
        self.closed = False
        self._client, self._scope, self._pusher = client, None, None
        self._sequence_id, self._announced = b"", 0
        self._known: set[bytes] = set()  # keys that the daemon has, or is being sent
        self._cut = False  # a push failed: pages behind it have no parent there
        try:
            self._scope = client.scope(config.scope) if client.connected else None
            if self._scope is None:
                reason = "no session with the daemon"
                if client.connected:
                    reason = f"the daemon offers no scope {config.scope} to this caller"
                raise PagodaError(reason)
        except PagodaError as error:
            self._note(error)

    def open(self, prompt_tokens: int) -> None:
        """Announces the request, so that pages in its window stay exact at the daemon."""
        self._announced = prompt_tokens
        if self._scope is None:
            return
        try:
            self._sequence_id = self._client.open_sequence(
                prompt_tokens, self.config.window, self.config.precision
            )
        except PagodaError as error:
            self._note(error)

    def load(self, prompt: Sequence[int]) -> list[tuple[kernels.Page, str]]:
        """Pages of the longest prefix that may be used, and their fidelities."""
        if self._scope is None:
            return []
        try:
            # The last token is always computed: its logits are the answer's first.
            keys = self.keys(prompt[:-1])[: self._client.server_info.batch_pages_max]
            return self._fetch(keys, len(prompt)) if keys else []
        except PagodaError as error:
            self._note(error)
            return []

    def wants(self, key: bytes) -> bool:
        """Whether store() would push it."""
        may_push = self._scope is not None and self._scope.may_push and self.config.push
        return may_push and not self._cut and key not in self._known

    def keys(self, tokens: Sequence[int], known: Sequence[bytes] = ()) -> list[bytes]:
        """Of the full pages of `tokens`, whose first ones have the keys `known`."""
        if self._scope is None:
            return []
        parent = known[-1] if known else self._scope.root
        rest = list(tokens[len(known) * self.shape.page_tokens :])
        return [*known, *key_chain(parent, rest, self.shape.page_tokens)]

    def store(
        self, keys: Sequence[bytes], tokens: Sequence[int], page: kernels.Page, fidelity: str
    ) -> None:
        """The complete page of these tokens, the last of `keys`."""
        if not self.wants(keys[-1]):
            return
        try:
            if self._pusher is None:
                self._pusher = self._client.pusher(self._sequence_id)
            self._pusher.push(
                self._scope,
                keys[-1],
                keys[-2] if len(keys) > 1 else self._scope.root,
                page.segments,
                parent_is_root=len(keys) == 1,
                token_ids=list(tokens),
                base_position=(len(keys) - 1) * self.shape.page_tokens,
                fidelity=fidelity,
            )
            self._known.add(keys[-1])
            self.pushed += 1
        except PagodaError as error:
            self._cut = True
            self._note(error)

    def advance(self, length: int) -> None:
        if not self._sequence_id or length <= self._announced:
            return
        self._announced = length
        try:
            self._client.advance_sequence(self._sequence_id, length)
        except PagodaError as error:
            self._note(error)

    def close(self) -> None:
        """The request is over; nothing is pushed any more."""
        self.closed = True
        try:
            if self._pusher is not None:
                self._pusher.flush(self.config.flush_timeout)
        except PagodaError as error:
            self._note(error)
        self._pusher = None
        try:
            if self._sequence_id:
                self._client.close_sequence(self._sequence_id)
        except PagodaError as error:
            self._note(error)
        self._sequence_id = b""

    def _fetch(self, keys: list[bytes], prompt_tokens: int) -> list[tuple[kernels.Page, str]]:
        config, loaded = self.config, []
        sequence = PageSequence(self.shape, config)  # its rules alone
        hit = self._client.lookup(
            self._scope,
            keys,
            precision_min=config.precision,
            fidelity_min=config.precision,
            sequence_id=self._sequence_id,
        )
        try:
            self._known.update(keys[: len(hit)])
            usable = sequence.usable_pages([page.precision for page in hit.pages], prompt_tokens)
            if not usable:
                return []
            aged = config.aged_count(prompt_tokens // self.shape.page_tokens)
            # Behind the window pages are read at the sequence's precision: do not move more.
            for begin, end in ((0, min(aged, usable)), (min(aged, usable), usable)):
                if begin == end:
                    continue
                fetched = self._client.fetch(
                    hit,
                    keys,
                    begin=begin,
                    count=end - begin,
                    precision_max=config.precision if end <= aged and config.encodes else None,
                )
                for page in fetched.pages:
                    loaded.append((self._page_of(page, len(loaded)), page.header.fidelity))
                if fetched.error is not None:
                    self._note(fetched.error)
                    break
        except PagodaError as error:
            self._note(error)
        finally:
            self._client.release(hit)
        # What was found at q8 may have lost bits since.
        return loaded[: sequence.usable_pages([one.precision for one, _ in loaded], prompt_tokens)]

    def _page_of(self, fetched: FetchedPage, index: int) -> kernels.Page:
        """PagodaError where it is not what the sequence can read."""
        header, size = fetched.header, self.shape.page_tokens
        if header.base_position != index * size:
            raise PagodaError(f"page {index} came for position {header.base_position}")
        # Pages of a layer profile have planes that plain q4 has not.
        k_lo_layers = self.config.k_lo_layers if header.precision == "q4" else ()
        page = kernels.Page(
            self.shape,
            header.precision,
            fetched.segments,
            base_position=index * size,
            k_lo_layers=k_lo_layers,
        )
        if page.precision != "raw16":
            page.read_at(self.config.precision, self.config.k_lo_layers)
        return page

    def _note(self, error: PagodaError) -> None:
        if self.problem is None:
            self.problem = error
