"""Goal: a cache changes no bit of an answer. Method: the same prompts without a cache, cold, warm,
after kill -9 and restart, and after a q4 worker filled the cache first; logits compared by digest.

PAGODA_PROMPTS and PAGODA_TOKENS set the amount for the real model (10 and 128 in full).
"""

import os
import unittest

import harness

LICENCE = "/usr/share/common-licenses/GPL-3"


def prompts(count, length):
    """Different pieces of a licence text, the second half of them sharing their beginning."""
    with open(LICENCE, encoding="utf-8") as file:
        text = file.read()
    shared = text[:length]
    return [text[i * 700:i * 700 + length] if i < (count + 1) // 2 else
            shared + text[i * 900:i * 900 + length // 4] for i in range(count)]


class DeterminismTest(harness.Case):
    def check(self, model, texts, tokens):
        def answers(worker):
            return [worker.ask(prompt=text, max_tokens=tokens) for text in texts]

        expected = answers(self.worker(model, precision="raw16"))

        def compare(got, what):
            for i, (want, have) in enumerate(zip(expected, got)):
                self.assertEqual(want["token_ids"], have["token_ids"], f"{what}: prompt {i}")
                self.assertEqual(want["logits_digest"], have["logits_digest"], f"{what}: prompt {i}")

        daemon = self.daemon(flags=["--ladder", "raw16"])
        compare(answers(self.worker(model, daemon, precision="raw16")), "cold")
        warm = answers(self.worker(model, daemon, precision="raw16"))
        compare(warm, "warm")
        for answer in warm:
            self.assertGreater(answer["hit_tokens"], 0)
            self.assertEqual(answer["hit_tier"], "host")

        self.eventually(lambda: harness.settled(daemon), "pages on SSD")
        worker = self.worker(model, daemon, precision="raw16")
        daemon.kill()
        daemon.start()
        self.eventually(lambda: daemon.status()["sessions"] >= 1, "the worker comes back")
        restarted = answers(worker)
        compare(restarted, "after kill -9 and restart")
        self.assertEqual(restarted[0]["hit_tokens"], warm[0]["hit_tokens"])
        self.assertEqual(restarted[0]["hit_tier"], "ssd")

        # Pages that were computed over q4 pages must never reach a raw16 worker.
        coarse = self.daemon("coarse", flags=["--ladder", "q4"])
        answers(self.worker(model, coarse, precision="q4"))
        compare(answers(self.worker(model, coarse, precision="raw16")), "after a q4 worker")

    def test_tiny_model(self):
        self.check(self.tiny_model(), prompts(4, 700), 80)

    def test_real_model(self):
        count = int(os.environ.get("PAGODA_PROMPTS", "3"))
        tokens = int(os.environ.get("PAGODA_TOKENS", "24"))
        self.check(harness.real_model(), prompts(count, 2600), tokens)


if __name__ == "__main__":
    harness.main()
