"""Goal: every wrong input gets one clear error with its remedy, and the daemon lives. Method: the
real programs, each given one thing that is wrong.
"""

import os
import random
import struct
import unittest

import harness


class WrongInputsTest(harness.Case):
    def refused(self, binary, *arguments, says, code=None):
        """One error line that holds every text of `says`; nothing else that looks like a crash."""
        got, out, err = harness.run(binary, *arguments)
        text = out + err
        self.assertNotEqual(got, 0, text)
        self.assertGreater(got, 0, f"died by a signal: {text}")
        if code is not None:
            self.assertEqual(got, code, text)
        for part in says:
            self.assertIn(part, text)
        return text

    def test_unknown_flags_and_commands(self):
        for binary in ("pagodad", "pagoda", "pagoda-worker"):
            self.refused(binary, "--no-such-flag", says=["--no-such-flag"], code=2)
        self.refused("pagoda", "no-such-command", says=["no-such-command"], code=2)

    def test_help_and_version_work(self):
        for binary in ("pagodad", "pagoda", "pagoda-worker"):
            for flag in ("--help", "--version"):
                code, out, _ = harness.run(binary, flag)
                self.assertEqual(code, 0)
                self.assertIn("pagoda", out)

    def test_daemon_config(self):
        config = self.folder / "config.yaml"
        cases = [("hosst: {capacity: 1GiB}\n", ["hosst", "host"]),
                 ("host: {capacity: 12 parsecs}\n", ["host.capacity", "12 parsecs"]),
                 ("ladder: q5\n", ["ladder", "q5", "q8"]),
                 ("listen: [1, 2]\n", ["listen"]),
                 ("watermarks: {start: 0.5, stop: 0.9}\n", ["watermarks"]),
                 ("page_tokens: 65\n", ["page_tokens", "65"]),
                 (": : :\n", ["config.yaml"])]
        for text, says in cases:
            config.write_text(text)
            with self.subTest(text=text):
                self.refused("pagodad", "--data-dir", self.folder / "d", "--config", config,
                             says=says)
        self.refused("pagodad", "--data-dir", self.folder / "d", "--config", self.folder / "none",
                     says=["none"])

    def test_daemon_start(self):
        self.refused("pagodad", says=["--data-dir"])
        blocked = self.folder / "file"
        blocked.write_text("not a folder")
        self.refused("pagodad", "--data-dir", blocked / "sub", "--listen",
                     f"unix:{self.folder}/x.sock", "--metrics-listen", "127.0.0.1:0",
                     says=[str(blocked)])
        self.refused("pagodad", "--data-dir", self.folder / "d", "--listen", "0.0.0.0:0",
                     says=["0.0.0.0", "token"])
        self.refused("pagodad", "--data-dir", self.folder / "d", "--listen", "nonsense",
                     says=["nonsense"])

    def test_port_and_folder_in_use(self):
        daemon = self.daemon(start=False)
        daemon.target = "127.0.0.1:0"
        daemon.start()
        address = daemon.log().split("listen=")[1].split()[0]
        self.refused("pagodad", "--data-dir", self.folder / "other", "--listen", address,
                     "--metrics-listen", "127.0.0.1:0", says=[address, "in use"], code=1)
        self.refused("pagodad", "--data-dir", self.folder / "third", "--listen", "127.0.0.1:0",
                     "--metrics-listen", daemon.metrics_address, says=[daemon.metrics_address],
                     code=1)
        self.refused("pagodad", "--data-dir", daemon.data, "--listen", "127.0.0.1:0",
                     "--metrics-listen", "127.0.0.1:0", says=[str(daemon.data)], code=1)
        code, _, _ = harness.run("pagoda", "status", "--daemon", address)
        self.assertEqual(code, 0)

    def test_token_file(self):
        tokens = self.folder / "tokens.yaml"
        tokens.write_text("tokens: [{token: sixteen-characters-long, tenant: t}]\n")
        os.chmod(tokens, 0o644)
        self.refused("pagodad", "--data-dir", self.folder / "d", "--token-file", tokens,
                     says=["tokens.yaml", "600"])
        os.chmod(tokens, 0o600)
        tokens.write_text("tokens: [{token: sixteen-characters-long}]\n")
        self.refused("pagodad", "--data-dir", self.folder / "d", "--token-file", tokens,
                     says=["tenant"])

    def test_model_files(self):
        model = self.tiny_model()
        data = model.read_bytes()
        bad = self.folder / "bad.gguf"

        def refused(content, *says):
            bad.write_bytes(content)
            self.refused("pagoda-worker", "--model", bad, "--prompt", "x", "--quiet", says=says,
                         code=1)

        refused(data[:len(data) // 2], "bad.gguf")
        refused(data[:10], "bad.gguf")
        refused(b"", "bad.gguf")
        refused(b"NOTGGUF!" + data[8:], "GGUF")
        refused(data[:8] + struct.pack("<Q", 1 << 60) + data[16:], "tensors")
        refused(data[:16] + struct.pack("<Q", 1 << 60) + data[24:], "metadata")
        self.refused("pagoda-worker", "--model", self.folder / "missing.gguf", "--prompt", "x",
                     says=["missing.gguf"], code=1)

    def test_damaged_ssd_files_are_misses(self):
        model = self.tiny_model()
        text = "one two three four five six seven " * 30
        daemon = self.daemon(flags=["--ladder", "raw16"])
        first = self.worker(model, daemon, precision="raw16").ask(prompt=text, max_tokens=4)
        self.eventually(lambda: harness.settled(daemon), "pages on SSD")
        daemon.kill()
        rng = random.Random(5)
        damaged = 0
        for path in sorted((daemon.data / "ssd").rglob("*.extents")):
            content = bytearray(path.read_bytes())
            used = len(content.rstrip(b"\0"))  # the files are larger than what is in them
            if used < 1000:
                continue
            for _ in range(max(8, used // 20000)):
                content[rng.randrange(200, used - 200)] ^= 1 << rng.randrange(8)
            path.write_bytes(content)
            damaged += 1
        self.assertGreater(damaged, 0)
        daemon.start()
        answer = self.worker(model, daemon, precision="raw16").ask(prompt=text, max_tokens=4)
        self.assertEqual(answer["logits_digest"], first["logits_digest"])
        self.assertLess(answer["hit_tokens"], first["prompt_tokens"])
        self.assertGreater(daemon.metric_sum("pagoda_integrity_failures_total"), 0)
        self.assertEqual(daemon.terminate(), 0)

    def test_cli_without_a_daemon(self):
        self.refused("pagoda", "status", "--daemon", "127.0.0.1:1", says=["127.0.0.1:1"], code=1)
        self.refused("pagoda", "status", "--daemon", "127.0.0.1:1", "--json", "/nonexistent/x",
                     says=[], code=1)
        # One line, whatever gRPC thinks of it; and nothing is sent.
        for daemon, flags, says in (
                ("127.0.0.1:1", ["--tls-ca", "/nonexistent/ca"], ["tls.ca", "/nonexistent/ca"]),
                ("192.0.2.1:70", ["--token", "secret"], ["192.0.2.1:70", "plain text"])):
            text = self.refused("pagoda", "status", "--daemon", daemon, *flags, says=says, code=1)
            self.assertEqual(text.count("\n"), 1, text)


if __name__ == "__main__":
    harness.main()
