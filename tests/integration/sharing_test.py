"""Goal: who may share does, pages are stored once, and nobody else ever hits. Method: several real
workers at the same time on one daemon, with tokens of three tenants.
"""

import os
import unittest

import harness

TOKENS = """tokens:
  - {token: secret-token-of-acme, tenant: acme, groups: [legal], publish: true, admin: true}
  - {token: secret-token-of-globex, tenant: globex, groups: [legal]}
  - {token: secret-token-of-initech, tenant: initech}
"""
DOCUMENT = open("/usr/share/common-licenses/Apache-2.0", encoding="utf-8").read()[:1400]


class SharingTest(harness.Case):
    def with_tokens(self):
        path = self.folder / "tokens.yaml"
        path.write_text(TOKENS)
        os.chmod(path, 0o600)
        return self.daemon(flags=["--ladder", "raw16", "--token-file", path])

    def pages(self, daemon):
        return daemon.metric_sum("pagoda_put_pages_total", 'result="stored"')

    def test_two_workers_at_once_store_each_page_once(self):
        model = self.tiny_model()
        daemon = self.daemon(flags=["--ladder", "raw16"])
        workers = [self.worker(model, daemon, precision="raw16") for _ in range(2)]
        for worker in workers:
            worker.send(prompt=DOCUMENT, max_tokens=8)
        answers = [worker.receive() for worker in workers]
        self.assertEqual(answers[0]["logits_digest"], answers[1]["logits_digest"])
        full_pages = (answers[0]["prompt_tokens"] + 7) // 64
        self.assertEqual(self.pages(daemon), full_pages)
        self.assertEqual(daemon.status()["pages"], full_pages)

    def test_models_never_hit_each_other(self):
        daemon = self.daemon(flags=["--ladder", "raw16"])
        for model in (self.tiny_model(1), self.tiny_model(2), self.tiny_model(1, layers=3)):
            answer = self.worker(model, daemon, precision="raw16").ask(prompt=DOCUMENT, max_tokens=2)
            self.assertEqual(answer["hit_tokens"], 0)
            self.assertEqual(answer["cache_problem"], "")
        again = self.worker(self.tiny_model(2), daemon, precision="raw16")
        self.assertGreater(again.ask(prompt=DOCUMENT, max_tokens=2)["hit_tokens"], 0)

    def test_scopes(self):
        model = self.tiny_model()
        daemon = self.with_tokens()

        def hit(tenant, scope):
            worker = self.worker(model, daemon, precision="raw16", scope=scope,
                                 token=f"secret-token-of-{tenant}")
            answer = worker.ask(prompt=DOCUMENT, max_tokens=2)
            return answer["hit_tokens"] > 0, answer["cache_problem"]

        self.assertEqual(hit("acme", "private"), (False, ""))
        self.assertEqual(hit("acme", "private"), (True, ""))
        self.assertEqual(hit("globex", "private"), (False, ""))  # private is private
        self.assertEqual(hit("globex", "public"), (False, ""))   # may read, may not publish
        self.assertEqual(hit("initech", "public"), (False, ""))
        self.assertEqual(hit("acme", "public"), (False, ""))     # publishes
        self.assertEqual(hit("initech", "public"), (True, ""))
        self.assertEqual(hit("acme", "group:legal"), (False, ""))
        self.assertEqual(hit("globex", "group:legal"), (True, ""))
        shared, problem = hit("initech", "group:legal")          # not a member
        self.assertFalse(shared)
        self.assertIn("group:legal", problem)

    def test_a_wrong_token_is_refused_in_words(self):
        daemon = self.with_tokens()
        code, _, err = harness.run("pagoda-worker", "--model", self.tiny_model(), "--daemon",
                                   daemon.target, "--token", "guess", "--prompt", "x", "--quiet")
        self.assertEqual(code, 1)
        self.assertIn("token", err)

    def test_worker_without_its_daemon_computes(self):
        model = self.tiny_model()
        alone = self.worker(model, precision="raw16").ask(prompt=DOCUMENT, max_tokens=8)
        away = self.worker(model, "127.0.0.1:1", precision="raw16").ask(prompt=DOCUMENT,
                                                                        max_tokens=8)
        self.assertEqual(alone["logits_digest"], away["logits_digest"])
        self.assertIn("UNAVAILABLE", away["cache_problem"])

    def test_worker_outlives_its_daemon_and_finds_it_again(self):
        model = self.tiny_model()
        daemon = self.daemon(flags=["--ladder", "raw16"])
        worker = self.worker(model, daemon, precision="raw16")
        first = worker.ask(prompt=DOCUMENT, max_tokens=8)
        daemon.kill()
        alone = worker.ask(prompt=DOCUMENT, max_tokens=8)
        self.assertEqual(first["logits_digest"], alone["logits_digest"])
        self.assertEqual(alone["hit_tokens"], 0)
        daemon.start()
        self.eventually(lambda: daemon.status()["sessions"] == 1, "the worker comes back")
        worker.ask(prompt=DOCUMENT, max_tokens=8)
        self.assertGreater(worker.ask(prompt=DOCUMENT, max_tokens=8)["hit_tokens"], 0)

    def test_worker_killed_in_the_middle_leaves_nothing(self):
        model = self.tiny_model(layers=24)
        daemon = self.daemon(flags=["--ladder", "raw16"])
        worker = self.worker(model, daemon, precision="raw16")
        worker.send(prompt=DOCUMENT, max_tokens=200)
        self.eventually(lambda: daemon.status()["pages"] > 0, "the first page is stored")
        worker.kill()

        def idle():
            status = daemon.status()
            return all(status[key] == 0 for key in
                       ("sessions", "sequences", "leases", "leased_pages", "staged_pages",
                        "staged_bytes"))
        self.eventually(idle, "sessions, leases and staged pages are gone")
        answer = self.worker(model, daemon, precision="raw16").ask(prompt=DOCUMENT, max_tokens=2)
        self.assertGreater(answer["hit_tokens"], 0)


if __name__ == "__main__":
    harness.main()
