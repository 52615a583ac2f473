#!/usr/bin/env python3
"""Asks OpenAI-compatible servers the same questions again and again, and shows what that costs.

The questions are what prefix caches live from: long documents that several people ask about, chats
that grow turn by turn, and tenants that share nothing with each other (`cache_salt`). Every phase
asks the same ones with greedy sampling, so that answers can be compared word for word with those of
the first phase. The table is drawn anew after every answer on a terminal, once a phase elsewhere.

  load.py --texts FOLDER --phase off=http://127.0.0.1:8001 --json load.json
  load.py --texts FOLDER --baseline load.json --phase warm=http://127.0.0.1:8002

first token   median and 95th percentile of the time from a request to its first token
tokens/s      prompt and answer tokens of the phase over its wall time
engine, pagoda  of the prompt tokens: found in the engine's own prefix cache, loaded by its
                connector
equal         answers that are equal to the first phase's

JSON keys: phases[] {name, url, requests, failed, prompt_tokens, answer_tokens, seconds,
  ttft_p50_s, ttft_p95_s, tokens_per_s, engine_hit_share, pagoda_hit_share, equal_share}, answers{}
"""

import argparse
import asyncio
import dataclasses
import json
import pathlib
import re
import statistics
import sys
import time

try:
    import aiohttp
except ImportError:
    raise SystemExit("load.py: aiohttp is missing: run it with the Python of "
                     "tests/engines/setup_vllm.sh, or pip install aiohttp") from None

QUESTIONS = (
    "What is this text about?",
    "Who is it written for?",
    "Name one rule that it states.",
)
TURNS = (
    "My name is Ada and I keep bees. What should I do in spring?",
    "And what if it rains for a week?",
    "Which tools do I need for that?",
    "Put it all into one sentence.",
)


@dataclasses.dataclass(frozen=True)
class Workload:
    documents: int
    document_chars: int
    questions: int
    tenants: int
    chats: int
    turns: int
    answer_tokens: int
    in_flight: int


@dataclasses.dataclass
class Phase:
    name: str
    url: str
    requests: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    answer_tokens: int = 0
    seconds: float = 0.0
    ttft: list[float] = dataclasses.field(default_factory=list)
    equal: int = 0
    compared: int = 0
    engine_hit_share: float | None = None
    pagoda_hit_share: float | None = None

    # Of a phase that an earlier run of this script wrote: what it wrote.
    kept: dict | None = None

    def row(self) -> list[str]:
        def share(value: float | None) -> str:
            return "-" if value is None else f"{100 * value:.0f} %"

        facts = self.to_json()
        failed = f" ({facts['failed']} failed)" if facts["failed"] else ""
        return [
            facts["name"],
            f"{facts['requests']}{failed}",
            f"{facts['prompt_tokens']:,}",
            f"{facts['ttft_p50_s']:.2f} s",
            f"{facts['ttft_p95_s']:.2f} s",
            f"{facts['tokens_per_s']:.0f}",
            share(facts["engine_hit_share"]),
            share(facts["pagoda_hit_share"]),
            share(facts["equal_share"]),
        ]

    def to_json(self) -> dict:
        if self.kept is not None:
            return self.kept
        return {
            "name": self.name, "url": self.url, "requests": self.requests, "failed": self.failed,
            "prompt_tokens": self.prompt_tokens, "answer_tokens": self.answer_tokens,
            "seconds": round(self.seconds, 3),
            "ttft_p50_s": round(quantile(self.ttft, 0.5), 4),
            "ttft_p95_s": round(quantile(self.ttft, 0.95), 4),
            "tokens_per_s": round(
                (self.prompt_tokens + self.answer_tokens) / max(self.seconds, 1e-9), 1),
            "engine_hit_share": self.engine_hit_share, "pagoda_hit_share": self.pagoda_hit_share,
            "equal_share": self.equal / self.compared if self.compared else None,
        }


def quantile(values: list[float], q: float) -> float:
    if not values:
        return 0.0
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[round(q * 100) - 1]


HEADINGS = ["phase", "requests", "prompt tokens", "first token", "95th", "tokens/s", "engine",
            "pagoda", "equal"]


class Table:
    """On a terminal the table stays in place; elsewhere a row is printed once it is final."""

    def __init__(self, headed: bool) -> None:
        self.live = sys.stdout.isatty()
        self.drawn_lines = 0
        self.headed = headed

    def draw(self, phases: list[Phase], final: bool) -> None:
        if not self.live and not final:
            return
        rows = [HEADINGS] + [phase.row() for phase in phases]
        widths = [max(len(row[i]) for row in rows) + 2 for i in range(len(HEADINGS))]
        lines = ["".join(cell.ljust(width) for cell, width in zip(row, widths)) for row in rows]
        if self.live:
            if self.drawn_lines:
                print(f"\x1b[{self.drawn_lines}A\x1b[J", end="")
            self.drawn_lines = len(lines)
            print("\n".join(lines), flush=True)
            return
        if not self.headed:
            print(lines[0])
            self.headed = True
        print(lines[-1], flush=True)


class Client:
    """One server, one phase."""

    def __init__(self, session: aiohttp.ClientSession, phase: Phase, workload: Workload,
                 model: str, answers: dict[str, str], on_change) -> None:
        self.session = session
        self.phase = phase
        self.workload = workload
        self.model = model
        self.answers = answers
        self.on_change = on_change
        self.slots = asyncio.Semaphore(workload.in_flight)

    async def ask(self, name: str, tenant: str, prompt: str) -> str:
        """The answer; empty if the server failed, which is counted."""
        body = {
            "model": self.model, "prompt": prompt, "max_tokens": self.workload.answer_tokens,
            "temperature": 0, "stream": True, "cache_salt": tenant,
            "stream_options": {"include_usage": True},
        }
        async with self.slots:
            try:
                return await self.stream(name, body)
            except (aiohttp.ClientError, asyncio.TimeoutError, ValueError) as error:
                self.phase.failed += 1
                print(f"{self.phase.name}: {name} failed: {error}", file=sys.stderr)
                return ""
            finally:
                self.phase.requests += 1
                self.on_change()

    async def stream(self, name: str, body: dict) -> str:
        started = time.perf_counter()
        first: float | None = None
        words: list[str] = []
        async with self.session.post(f"{self.phase.url}/v1/completions", json=body) as response:
            if response.status != 200:
                raise ValueError(f"status {response.status}: {(await response.text())[:200]}")
            async for line in response.content:
                if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                    continue
                event = json.loads(line[len(b"data: "):])
                if event.get("choices"):
                    first = first or time.perf_counter()
                    words.append(event["choices"][0]["text"])
                if event.get("usage"):
                    self.phase.prompt_tokens += event["usage"]["prompt_tokens"]
                    self.phase.answer_tokens += event["usage"]["completion_tokens"]
        if first is None:
            raise ValueError("the answer is empty")
        self.phase.ttft.append(first - started)
        text = "".join(words)
        known = self.answers.setdefault(name, text)
        self.phase.compared += 1
        self.phase.equal += known == text
        return text

    async def ask_about(self, document: int, text: str, tenant: str) -> None:
        for i, question in enumerate(QUESTIONS[: self.workload.questions]):
            prompt = f"{text}\n\nQuestion: {question}\nAnswer:"
            await self.ask(f"document {document}, {tenant}, question {i}", tenant, prompt)

    async def chat(self, number: int, tenant: str) -> None:
        said = f"A conversation between a visitor and a patient helper, number {number}.\n"
        for i, turn in enumerate(TURNS[: self.workload.turns]):
            said += f"Visitor: {turn}\nHelper:"
            said += await self.ask(f"chat {number}, {tenant}, turn {i}", tenant, said) + "\n"


async def counters(session: aiohttp.ClientSession, url: str) -> dict[str, float]:
    """Sums of vLLM's counters of prefix caches, by name."""
    sums: dict[str, float] = {}
    async with session.get(f"{url}/metrics") as response:
        for line in (await response.text()).splitlines():
            match = re.match(r"vllm:((?:external_)?prefix_cache_(?:queries|hits))_total\S* (\S+)",
                             line)
            if match:
                sums[match[1]] = sums.get(match[1], 0.0) + float(match[2])
    return sums


async def run_phase(session: aiohttp.ClientSession, phase: Phase, workload: Workload,
                    texts: list[str], answers: dict[str, str], on_change) -> None:
    async with session.get(f"{phase.url}/v1/models") as response:
        model = (await response.json())["data"][0]["id"]
    before = await counters(session, phase.url)
    client = Client(session, phase, workload, model, answers, on_change)
    started = time.perf_counter()

    def tick() -> None:
        phase.seconds = time.perf_counter() - started
        on_change()

    client.on_change = tick
    tenants = [f"tenant-{i}" for i in range(workload.tenants)]
    jobs = [client.ask_about(d, text, tenant) for d, text in enumerate(texts)
            for tenant in tenants]
    jobs += [client.chat(c, tenants[c % len(tenants)]) for c in range(workload.chats)]
    await asyncio.gather(*jobs)
    phase.seconds = time.perf_counter() - started
    after = await counters(session, phase.url)
    delta = {name: after[name] - before.get(name, 0.0) for name in after}
    asked = delta.get("prefix_cache_queries", 0.0)
    if asked > 0:
        phase.engine_hit_share = delta.get("prefix_cache_hits", 0.0) / asked
        if "external_prefix_cache_hits" in delta:
            phase.pagoda_hit_share = delta["external_prefix_cache_hits"] / asked


def read_documents(folder: pathlib.Path, workload: Workload) -> list[str]:
    """Pieces of the texts, each from another place."""
    files = sorted(folder.glob("*.txt"))
    if not files:
        raise SystemExit(f"load.py: no *.txt in {folder}; deploy/fetch_texts.sh fetches them")
    pieces = []
    for i in range(workload.documents):
        text = files[i % len(files)].read_text(errors="replace")
        begin = (i // len(files)) * workload.document_chars
        piece = text[begin:begin + workload.document_chars]
        if len(piece) < workload.document_chars:
            raise SystemExit(f"load.py: {files[i % len(files)]} is too short for "
                             f"{workload.documents} documents of {workload.document_chars} "
                             "characters; ask for fewer or shorter ones")
        pieces.append(piece)
    return pieces


async def run(args: argparse.Namespace) -> int:
    workload = Workload(args.documents, args.document_chars, args.questions, args.tenants,
                        args.chats, args.turns, args.answer_tokens, args.in_flight)
    texts = read_documents(args.texts, workload)
    answers: dict[str, str] = {}
    phases: list[Phase] = []
    if args.baseline and args.baseline.exists():
        kept = json.loads(args.baseline.read_text())
        answers = kept["answers"]
        phases = [Phase(facts["name"], facts["url"], kept=facts) for facts in kept["phases"]]
    table = Table(headed=bool(phases))
    timeout = aiohttp.ClientTimeout(total=args.timeout)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        for name, url in args.phase:
            phase = Phase(name, url)
            phases.append(phase)
            await run_phase(session, phase, workload, texts, answers,
                            lambda: table.draw(phases, final=False))
            table.draw(phases, final=True)
    if args.json:
        document = {"phases": [phase.to_json() for phase in phases], "answers": answers}
        args.json.write_text(json.dumps(document, indent=2) + "\n")
    return 1 if any(phase.failed for phase in phases) else 0


def parse_phase(word: str) -> tuple[str, str]:
    name, found, url = word.partition("=")
    if not found or not url.startswith("http"):
        raise argparse.ArgumentTypeError(f"{word!r}, expected NAME=http://HOST:PORT")
    return name, url.rstrip("/")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phase", type=parse_phase, action="append", required=True,
                        metavar="NAME=URL", help="one run of all questions; may be repeated")
    parser.add_argument("--texts", type=pathlib.Path, required=True, help="folder of *.txt")
    parser.add_argument("--documents", type=int, default=2)
    parser.add_argument("--document-chars", type=int, default=3000, help="about 4 a token")
    parser.add_argument("--questions", type=int, default=2, choices=range(1, len(QUESTIONS) + 1),
                        help="about each document, by each tenant")
    parser.add_argument("--tenants", type=int, default=2)
    parser.add_argument("--chats", type=int, default=2)
    parser.add_argument("--turns", type=int, default=3, choices=range(1, len(TURNS) + 1))
    parser.add_argument("--answer-tokens", type=int, default=12)
    parser.add_argument("--in-flight", type=int, default=2, help="requests at a time")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one answer")
    parser.add_argument("--baseline", type=pathlib.Path,
                        help="a JSON file of this script: its answers are compared with, and "
                             "its phases stand above ours")
    parser.add_argument("--json", type=pathlib.Path, help="write everything here")
    try:
        return asyncio.run(run(parser.parse_args()))
    except (aiohttp.ClientError, asyncio.TimeoutError) as error:
        print(f"load.py: no server answers: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
