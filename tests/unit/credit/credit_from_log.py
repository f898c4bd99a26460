"""A run's credit, computed from the bytes of its log by a program that shares nothing with Shoal but MessagePack.

    python credit_from_log.py .../logs/RUN.log          a node's copy
    python credit_from_log.py store.sqlite [RUN]        the coordinator's store

Written from `docs/credit.md`, not from the code: it checks no signature and no rule (that is `shoal log verify`), it
only counts. It prints one JSON object: micro-credits by node.
"""

from __future__ import annotations

import json
import sqlite3
import struct
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import blake3
import msgspec

unpack = msgspec.msgpack.decode
BIGGEST, ALL = 10**15, 10**18


def entries_in(path: Path, run: str = "") -> list[bytes]:
    if path.suffix == ".log":
        data, at, found = path.read_bytes(), 0, []
        while at < len(data):
            (length,) = struct.unpack_from("<I", data, at)
            found.append(data[at + 12 : at + 12 + length])
            at += 12 + length
        return found
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as store:
        query = "SELECT entry FROM shoal_entries WHERE run LIKE ? ORDER BY run, position"
        return [row[0] for row in store.execute(query, (run + "%",))]


class Count:
    def __init__(self) -> None:
        self.pay: Counter[str] = Counter()
        self.spent = 0
        self.added = 0
        self.seals: list[tuple[int, int]] = []  # standing: (position, round)
        self.saved = {0}
        self.work: dict[str, dict[int, Any]] = defaultdict(dict)
        self.here: dict[str, bool] = {}
        self.words: dict[int, dict[str, Any]] = defaultdict(dict)
        self.audit = 0
        self.unaudited: int | None = None
        self.over = False
        self.history: dict[str, list[bool]] = defaultdict(list)
        self.last: dict[str, int] = {}
        self.given: dict[int, set[str]] = defaultdict(set)
        self.came: Counter[int] = Counter()
        self.trained: Counter[tuple[str, int]] = Counter()  # by author and seal
        self.accused: dict[tuple[str, int, int], dict[str, bool]] = defaultdict(dict)

    def take(self, encoded: bytes) -> None:
        payload, _ = unpack(encoded)
        entry = unpack(payload)
        body, position = entry["body"], entry["position"]
        due: list[tuple[str, int]] = []
        self.authors: dict[str, list[int]] = defaultdict(list)  # where in what is due a claim is paid for
        match body["type"]:
            case "audits":
                for signed in body["verdicts"]:
                    self.verdict(unpack(signed[0]))
            case "genesis":
                audit = json.loads(body["recipe"]).get("audit", {})
                self.panel = 1 + audit.get("jury", 2) if audit.get("rate") else 10**9
                self.rules = json.loads(body["recipe"])["credit"]
                self.boss = blake3.blake3(body["coordinator"]).hexdigest()[:40]
            case "joined":
                self.here[body["node"]] = True
            case "left":
                self.here[body["node"]] = False
            case "plan":
                for item in body["members"]:
                    self.work[item["node"]][position] = {**item, "round": body["round"]}
                    self.work[item["node"]][position]["measure"] = body.get("weights", "samples")
                    self.given[body["round"]].add(item["node"])
            case "seal":
                due = self.seal(body, position)
            case "attestations":
                for signed in body["items"]:
                    word = unpack(signed[0])
                    self.words[word["at"]["position"]][word["node"]] = word
            case "snapshot":
                self.saved.add(body["at"])
                due = self.finish()
            case "rewind":
                due = self.close_audit()
                self.seals = [one for one in self.seals if one[0] <= body["to"]]
                self.work.clear()
            case "funded":
                self.added += body["add_micro"]
            case "stopped":
                self.over = True
                self.work.clear()
                due = self.finish()
        self.settle(due, position)

    def verdict(self, word: Any) -> None:
        """A claim that two, and most of a panel, accuse loses what it earned, once."""
        words = self.accused[word["author"], word["sequence"], word["at"]["position"]]
        words.setdefault(word["node"], word["outcome"] != "upheld")
        if sum(words.values()) >= 2 and 2 * sum(words.values()) > self.panel:
            self.pay[word["author"]] -= self.trained.pop((word["author"], word["at"]["position"]), 0)

    def settle(self, due: list[tuple[str, int]], position: int) -> None:
        whole = sum(amount for _, amount in due)
        budget = self.rules.get("budget_micro")
        left = (ALL if budget is None else budget + self.added) - self.spent
        for place, (node, amount) in enumerate(due):
            paid = amount if whole <= left else amount * left // whole
            self.pay[node] += paid
            self.spent += paid
            if node in self.authors and place in self.authors[node]:
                self.trained[node, position] += paid

    def finish(self) -> list[tuple[str, int]]:
        at = self.seals[-1][0] if self.seals else 0
        standing = {0, *(position for position, _ in self.seals)} & self.saved
        return self.close_audit() if self.over and max(standing) == at else []

    def close_audit(self) -> list[tuple[str, int]]:
        position, self.unaudited = self.unaudited, None
        if position is None or not self.audit:
            return []
        votes = {n: w["state"] for n, w in self.words[position].items() if w.get("how", "folded") == "folded"}
        for state in set(votes.values()):
            agreeing = sorted(n for n, s in votes.items() if s == state)
            if 2 * len(agreeing) > len(votes):
                pool, self.audit = self.audit, 0
                return deal(pool, agreeing)
        return []

    def seal(self, body: Any, position: int) -> list[tuple[str, int]]:
        due = self.close_audit()
        rules, hubs, boss = self.rules, Counter[str](), 0
        claims = []
        for accepted in body["accepted"]:
            claim = unpack(accepted["claim"][0])
            claims.append(claim)
            work = self.work[claim["node"]][claim["plan"]]
            samples = min(claim["samples"], work["data"]["count"])
            tokens = claim["tokens"] * samples // claim["samples"]
            steps = max(claim["steps"] * samples // claim["samples"], -(-samples // work["batch"]))
            full = min((samples if rules["unit"] == "samples" else tokens) * rules["price_micro"], BIGGEST)
            price = min(full, rules["most_micro"] or BIGGEST)
            shares = [rules[name] for name in ("hubs_percent", "auditors_percent", "coordinator_percent")]
            pay = price * (100 - sum(shares)) // 100
            if rules["rule"] == "quality":
                fair = samples if work["measure"] == "samples" else tokens * tokens // steps
                pay = pay * accepted["weight"] // min(max(fair, 1), 1 << 48)
                past = self.history[claim["node"]][-16:]
                kept, seen = sum(past) + 1, len(past) + 1
                pay = pay * kept // seen if 2 * kept >= seen else pay // 2
            if full:
                self.authors[claim["node"]].append(len(due))
                due.append((claim["node"], pay))
            holders = [unpack(receipt[0])["holder"] for receipt in accepted["receipts"]]
            for holder, part in deal(price * shares[0] // 100, holders):
                hubs[holder] += part
            self.audit += price * shares[1] // 100
            boss += price * shares[2] // 100
        due += sorted(hubs.items())
        due.append((self.boss, boss))
        self.seals.append((position, body["round"]))
        self.unaudited = position
        self.judge(claims, {one["node"] for one in body["rejected"]}, body["round"] + 1)
        return due

    def judge(self, claims: list[Any], refused: set[str], next_round: int) -> None:
        """Who delivered, and who is to blame for a round that closed without a word."""
        for claim in claims:
            node = claim["node"]
            self.last[node] = max(self.last.get(node, -1), claim["round"])
            self.came[claim["round"]] += 1
            self.history[node].append(True)
        closed = []
        for node in sorted(self.work):
            answered = max((c["plan"] for c in claims if c["node"] == node), default=-1)
            gone = not self.here[node]
            keep = {
                plan: work
                for plan, work in self.work[node].items()
                if plan > answered and work["round"] + work.get("staleness", 0) >= next_round and not gone
            }
            rounds = {self.work[node][plan]["round"] for plan in self.work[node].keys() - keep.keys()}
            closed += [(node, round) for round in sorted(rounds) if not gone and node not in refused]
            self.work[node] = keep
        for node, round in closed:
            if round > self.last.get(node, -1) and 2 * self.came[round] >= len(self.given[round]):
                self.history[node].append(False)


def deal(amount: int, among: list[str]) -> list[tuple[str, int]]:
    if not among:
        return []
    part, rest = divmod(amount, len(among))
    return [(node, part + (place < rest)) for place, node in enumerate(among)]


def credit(entries: list[bytes]) -> dict[str, int]:
    count = Count()
    for encoded in entries:
        count.take(encoded)
    return {node: pay for node, pay in sorted(count.pay.items()) if pay}


if __name__ == "__main__":
    found = entries_in(Path(sys.argv[1]), *sys.argv[2:3])
    print(json.dumps({"entries": len(found), "micro": credit(found)}))
