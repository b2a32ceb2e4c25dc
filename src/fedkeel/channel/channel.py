"""The channel of a run: all uploads of an exchange pass it on their way from the clients to the server's step.

In this order: attackers replace their uploads, the uplink compresses, privacy clips, and the server's step sees sums that a
robust rule makes or that carry noise. A server step that needs only sums gets nothing else.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkeel.channel import privacy as private
from fedkeel.channel.accounting import Accountant, Sampling, noise_for
from fedkeel.channel.aggregation import Aggregation, Mean, inner_products
from fedkeel.channel.attacks import Attack, flipped
from fedkeel.channel.draws import generator
from fedkeel.channel.feedback import draws, nothing_kept
from fedkeel.channel.link import Link
from fedkeel.channel.links_of import downlink_of, uplink_of
from fedkeel.channel.privacy import Privacy
from fedkeel.channel.sizes import Links, record_bytes, upload_bytes
from fedkeel.channel.validity import never_negative
from fedkeel.channel.words import conditions
from fedkeel.core.algorithm import Algorithm
from fedkeel.core.flat import Layers
from fedkeel.core.records import exchanges_of
from fedkeel.core.round import Round, weighted_sum
from fedkeel.core.sums import Sum, SumsOnlyRound, sealed

COUNT_NOISE = 20  # a clip that follows a quantile: the noise on the count of clipped uploads is the cohort divided by this


@dataclass(frozen=True)
class Conditions:
    """What a run has in its channel. None: nothing of that kind."""

    privacy: Privacy | None
    uplink: Link | None
    downlink: Link | None
    aggregation: Aggregation | None
    attack: Attack | None

    @classmethod
    def read(cls, texts: dict[str, str | None], algo: Algorithm, layers: Layers) -> Conditions | None:
        """The conditions that the settings name. None if they change nothing."""
        made: dict[str, Any] = {name: next(iter(conditions(name, texts[name])), None) for name in ("privacy", "attack")}
        rule: Any = next(iter(conditions("aggregation", texts["aggregation"])), Mean())
        uplink = uplink_of(texts["uplink"], algo, layers)
        downlink = downlink_of(texts["downlink"], algo, layers)
        found = cls(
            made["privacy"],
            uplink,
            downlink,
            None if rule.neutral else rule,
            None if made["attack"] is None or made["attack"].neutral else made["attack"],
        )
        return None if found == cls(None, None, None, None, None) else found

    @property
    def links(self) -> Links:
        return Links(self.uplink, self.downlink)


@dataclass
class Received:
    """The uploads of an exchange behind the channel."""

    given: Any  # what the server's step gets: a record of [S, ...], or sealed fields
    facts: Round
    kept: dict[int, Any]  # client -> the record of what it could not send
    mean: Callable[[Tensor], Tensor] | None = None  # of what travels beside the uploads, [S, ...]; None: the ordinary mean


class Channel:
    def __init__(
        self,
        what: Conditions,
        algo: Algorithm,
        layers: Layers,
        dtype: torch.dtype,
        seed: int,
        sampling: Sampling,
        schedule: Callable[[], Sequence[Sequence[int]]],
        samples: Sequence[int] | np.ndarray,
        remote: bool = False,
    ) -> None:
        """sampling: how the clients of a round are chosen.  schedule: the clients of all rounds, if they must be counted.
        samples: of every client.  remote: clients are on other machines, so they compress and add noise themselves."""
        self.remote = remote
        # Clients on other machines know the seed of the run, so the noise needs one that they do not know.
        self.noise_seed = secrets.randbits(56) if remote else seed
        self.weights = private.capped(samples, what.privacy)  # [N]
        self.what, self.algo, self.seed, self.d, self.sampling = what, algo, seed, sum(layers.sizes), sampling
        self.attackers = set(what.attack.attackers(seed, sampling.N)) if what.attack else set()
        self.not_negative = {stage: never_negative(algo, stage) for stage in exchanges_of(algo)}
        self.residual: Any = None if what.uplink is None else nothing_kept(what.uplink, algo, dtype)
        self.residuals: dict[int, Any] = {}  # client -> the record of what it could not send
        self.clips: dict[str, float] = {}  # exchange -> the clip, if it follows a quantile
        if what.privacy is not None:
            self._plan_noise(what.privacy, schedule)

    # Privacy --------------------------------------------------------------------------------------------------------

    def _plan_noise(self, privacy: Privacy, schedule: Callable[[], Sequence[Sequence[int]]]) -> None:
        self.accountant = Accountant(self.sampling, privacy.noise or 0.0, privacy.delta)
        if privacy.noise is None:
            planned = Accountant(self.sampling, 0.0, privacy.delta)
            planned.warmup = int(self.algo.warms_up())
            for t, ids in enumerate(schedule()):
                planned.spend(ids, self.releases(t))
            assert privacy.epsilon is not None
            self.accountant.noise = noise_for(privacy.epsilon, planned)
        self.noise = self.accountant.noise  # on sums; a part of it goes to the count if the clip follows a quantile

    def releases(self, t: int) -> int:
        """In how many exchanges of round t clients send something."""
        return 1 + self.algo.surveys(t)

    def spent_after(self, t: int, ids: Sequence[int]) -> bool:
        """Would round t with these clients spend more than the budget?"""
        privacy = self.what.privacy
        if privacy is None or privacy.epsilon is None:
            return False
        return self.accountant.after(ids, self.releases(t)) > privacy.epsilon

    def count(self, stage: str, t: int, ids: Sequence[int]) -> None:
        """Accounts for an exchange. ids: the clients that were to take part."""
        if self.what.privacy is None:
            return
        if stage == "warmup":
            self.accountant.warmup = 1  # its parts reach each client once
        elif stage == "client":
            self.accountant.spend(ids, self.releases(t))

    def commit(self, stage: str, t: int, planned: Sequence[int], received: Received) -> None:
        """The server's step has succeeded: what clients could not send becomes their record."""
        self.residuals |= received.kept
        self.count(stage, t, planned)

    def columns(self) -> dict[str, float | None]:
        """What the history says about privacy."""
        if self.what.privacy is None:
            return {}
        epsilon = self.accountant.epsilon()
        clip = {"clip_norm": self.clips["client"]} if "client" in self.clips else {}
        return {"epsilon": epsilon if math.isfinite(epsilon) else None, **clip}

    def attacked(self, fed: Any) -> Any:
        """The federation with wrong labels at the attackers, if the attack flips labels."""
        attack = self.what.attack
        return flipped(fed, sorted(self.attackers)) if attack is not None and attack.flips_labels else fed

    # What travels ---------------------------------------------------------------------------------------------------

    def sent(self, down: Any) -> Any:
        """What clients get of the record that the server sends. Those on other machines unpack it themselves."""
        return down if self.what.downlink is None or self.remote else self.what.downlink.record(down)

    def down_bytes(self, down: Any) -> int:
        """The bytes of that record as it travels."""
        return record_bytes(down, self.what.downlink)

    def mean_bytes(self, stage: str, up: Any, r: Round) -> float:
        """The mean bytes of an upload as it travels. up: record of [S, ...]."""
        return upload_bytes(self.algo, up, r, None if stage == "warmup" else self.what.uplink)

    # Uploads --------------------------------------------------------------------------------------------------------

    def receive(self, stage: str, planned: Sequence[int], up: Any, r: Round) -> Received:
        """Passes the uploads of an exchange. It changes `up`, a record of [S, ...].

        planned: the clients that were to take part.
        """
        changed = self._attacked(stage, up, r)
        packed = self.what.uplink is not None and stage != "warmup"
        kept = self._compressed(stage, up, r) if packed and not self.remote else {}
        if changed or packed:
            for name in self.not_negative[stage] & set(self._vectors(up)):
                getattr(up, name).clamp_(min=0)
        privacy, rule = self.what.privacy, self.what.aggregation
        if privacy is not None and privacy.where == "client":
            if not self.remote:
                self._noisy_uploads(privacy, stage, up, r)
            privacy = None
        if privacy is not None:
            total = self._noisy_sums(privacy, stage, planned, up, r)
        elif rule is not None:
            total = self._robust(rule, up, r)
        else:
            return Received(up, r, kept)
        facts = SumsOnlyRound(**vars(r), total=lambda wanted: total(wanted.weights, wanted.term.of(up), wanted))
        return Received(sealed(up), facts, kept, lambda z: total("avg", z, None))

    def _vectors(self, up: Any) -> list[str]:
        """The fields that are as long as the model."""
        return [name for name, z in up._asdict().items() if z.shape[1:] == (self.d,)]

    def _attacked(self, stage: str, up: Any, r: Round) -> bool:
        attack = self.what.attack
        bad = torch.tensor([client in self.attackers for client in r.ids.tolist()], dtype=torch.bool)
        if attack is None or not bool(bad.any()):
            return False
        for name in self._vectors(up):
            z = getattr(up, name)
            sent = attack.upload(z, bad.to(z.device), generator(self.seed, "attack", r.t, stage, name))
            if sent is not None:
                z[bad.to(z.device)] = sent
        return True

    # Compression ----------------------------------------------------------------------------------------------------

    def _compressed(self, stage: str, up: Any, r: Round) -> dict[int, Any]:
        """Replaces vectors by what arrives. Returns what each client could not send."""
        ids, uplink = r.ids.tolist(), self.what.uplink
        assert uplink is not None
        if self.residual is None or not ids:
            return {}
        kept = {client: self.residuals.get(client, self.residual) for client in ids}
        for name in [name for name in self._vectors(up) if name not in uplink.plain]:
            z, key, rows = getattr(up, name), f"{stage}_{name}", self._senders(name, r)
            mine = [ids[row] for row in rows]
            whole = z if len(rows) == len(ids) else z[rows]
            for v, client in zip(whole, mine, strict=True):
                v += getattr(kept[client], key).to(z.device)
            arrived = uplink.send(whole, [draws(self.seed, r.t, stage, name, client) for client in mine])
            for client, v, came in zip(mine, whole, arrived, strict=True):
                kept[client] = kept[client]._replace(**{key: (v - came).cpu()})
            if whole is z:
                z.copy_(arrived)
            else:
                z[rows] = arrived
        return kept

    def _senders(self, field: str, r: Round) -> list[int]:
        """The rows of the clients that send a field. Only clients with the role `tracks` send tracked fields."""
        if field not in self.algo.facts.tracked:
            return list(range(r.S))
        return [row for row, tracks in enumerate(r.drawn.tracks.tolist()) if tracks]

    # Sums -----------------------------------------------------------------------------------------------------------

    def _robust(self, rule: Aggregation, up: Any, r: Round) -> Callable[[str, Tensor, Sum | None], Tensor]:
        """Sums by a robust rule. The part of all clients that took part keeps its weight in `share`."""
        p = rule.weights(inner_products(up), r.p.cpu()).to(r.p.device) if rule.whole and r.S else r.p
        part = {"avg": 1.0, "share": math.fsum(r.weight.tolist())}

        def total(weights: str, z: Tensor, wanted: Sum | None) -> Tensor:
            if not len(z):
                return weighted_sum(r.p, z)
            mean = weighted_sum(p, z) if rule.whole else rule.mean(r.p, z)
            return mean if weights == "avg" else mean * part[weights]

        return total

    def _clip(self, privacy: Privacy, stage: str) -> float:
        return self.clips.get(stage, privacy.clip)

    def _noisy_sums(
        self, privacy: Privacy, stage: str, planned: Sequence[int], up: Any, r: Round
    ) -> Callable[[str, Tensor, Sum | None], Tensor]:
        """Sums of clipped uploads with noise. All sums of a field have the same noise.

        The sum is divided by the number of clients that were to take part: who failed may depend on data. With a cap on
        the samples that count, it is divided by the weight that this number of clients has in the mean.
        """
        lengths = private.norms(up._asdict(), privacy)
        clip, count = self._clip(privacy, stage), self.sampling.q * self.sampling.N or len(planned)
        all_weights = float(self.weights.sum())
        scale = private.factors(lengths, clip)
        noise, purpose = self.noise, (r.t, stage, planned[0] if planned else -1)
        if privacy.quantile is not None:
            of_count = count / COUNT_NOISE
            noise = private.noise_of_updates(noise, of_count) if noise else 0.0
            drawn = private.normal(
                torch.zeros(1, dtype=torch.float64), of_count if noise else 0.0, self.noise_seed, *purpose, "count"
            )
            self.clips[stage] = private.next_clip(clip, lengths <= clip, int(count), float(drawn), privacy)
        one = {"avg": self.sampling.N / (count * all_weights), "share": 1 / all_weights}
        scale = scale * self.weights[r.ids.cpu()]

        def total(kind: str, z: Tensor, wanted: Sum | None) -> Tensor:
            assert wanted is not None  # a model whose clients send something beside the upload was refused
            field = wanted.term.field
            found = weighted_sum((scale * one[kind]).to(z.device), z)
            if noise:
                deviation = noise * clip * privacy.scale_of(field)
                found.add_(private.normal(found, deviation, self.noise_seed, *purpose, field), alpha=one[kind])
                if field in self.not_negative[stage]:  # methods divide by their roots
                    found.clamp_(min=deviation * one[kind])
            return found

        return total

    def _noisy_uploads(self, privacy: Privacy, stage: str, up: Any, r: Round) -> None:
        """Every client clips its upload and adds noise to it."""
        sent = {name: set(self._senders(name, r)) for name in up._fields}
        for row, client in enumerate(r.ids.tolist()):
            mine = {name: z[row] for name, z in up._asdict().items() if row in sent[name]}
            private.protect(mine, privacy, self.noise, self.not_negative[stage], (self.seed, r.t, stage, client))

    # State ----------------------------------------------------------------------------------------------------------

    def saved(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        state: dict[str, Any] = {}
        if self.what.privacy is not None:
            state |= {"noise": self.noise, "clips": self.clips, "spent": self.accountant.state()}
            state |= {"noise_seed": self.noise_seed} if self.remote else {}
        if self.residuals:
            state["clients"] = list(self.residuals)
            rows = zip(*self.residuals.values(), strict=True)
            state |= {f"residual {name}": torch.stack(z) for name, z in zip(self.residual._fields, rows, strict=True)}
        return state

    def restore(self, saved: dict[str, Any]) -> None:
        """Goes back to the state that `saved` returned."""
        if "clients" in saved:
            fields = [saved[f"residual {name}"] for name in self.residual._fields]
            rows = zip(*fields, strict=True)
            self.residuals = {client: type(self.residual)(*row) for client, row in zip(saved["clients"], rows, strict=True)}
        if self.what.privacy is None:
            return
        if saved["noise"] != self.noise:
            raise ValueError(
                f"resume: the noise of privacy is {self.noise:g} now, but {saved['noise']:g} in the checkpoint; with "
                "epsilon it follows from rounds, which must stay as they were"
            )
        self.noise_seed = saved.get("noise_seed", self.noise_seed)
        self.clips = saved["clips"]
        self.accountant.restore(saved["spent"])
