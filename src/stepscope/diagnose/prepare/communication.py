"""What a phase does, by its name: the contract's names, or common words."""

from __future__ import annotations

import re
import unicodedata

_WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
_WORDS = frozenset((
    "reduce", "allreduce", "gather", "allgather", "scatter", "reducescatter", "alltoall", "a2a",
    "broadcast", "bcast", "barrier", "send", "recv", "receive", "sendrecv", "p2p", "comm",
    "communicate", "communication", "exchange", "wait", "waiting", "sync",
    "synchronize", "nccl", "gloo",
))  # fmt: skip
"""Words of operators and of waiting, in lower case."""
_RECEIVES = frozenset(("recv", "receive", "sendrecv"))
_TRANSFERS = _RECEIVES | {"send", "p2p"}
"""Words of what one rank passes to another, in lower case."""
_INPUT = frozenset(("data", "dataloader", "loader", "load", "batch", "input", "dataset"))
"""Words for loading data: waiting for a batch is not waiting for other ranks."""
_SOURCES = frozenset(("data", "dataloader", "dataloading", "dataset", "dl", "loader"))
_SAMPLES = frozenset(("batch", "batches", "input", "inputs", "sample", "samples"))
_FETCHES = frozenset((
    "fetch", "gen", "generate", "generator", "get", "load", "next", "read", "wait",
))  # fmt: skip
"""Words that say that a phase loads data: one of the first (`dl` is fastai's), one of both others,
or several samples alone (`batch_input` is DeepSpeed's). `input` alone may be a layer's."""
_LOADING = frozenset((
    "chargement", "charger", "laden", "lader", "datenlader", "datenladen", "einlesen", "carga",
    "cargar", "cargador", "caricamento", "caricare", "carregamento", "carregar", "inlezen",
    "загрузка", "загрузки", "чтение",
))  # fmt: skip
_DATA = ("数据", "資料", "データ", "데이터", "batch")
_READ = ("读", "加载", "載", "取", "读取", "入", "ロード", "로드", "로딩", "읽기")
"""Words for loading in French, German, Spanish, Italian, Portuguese, Dutch and Russian; where words
are not set apart, data and what is done with it. Only data is loaded in every step."""
_PARALLEL = frozenset(("parallel", "parallele", "paralelo", "parallelo"))
_KINDS = frozenset(("tp", "cp", "dp", "pp", "ep", "edp", "mp"))
"""Group kinds that begin the name of a phase of communication (`dp-sync`)."""

_SAVES, _EVALUATES = ("save", "checkpoint", "ckpt"), ("eval", "validat")
"""Parts of words for what a job does beside training."""

_COPIES = re.compile(r"(\b|_)(h2d|d2h|htod|dtoh|memcpy|to[-_ ](host|cpu|device|gpu|cuda))(\b|_)")
"""Words for copies between host and device."""

_GRADIENTS = frozenset((
    "grad", "grads", "gradient", "gradients", "gradienten", "gradientes", "gradienti",
))  # fmt: skip
_PARTS = frozenset(("embedding", "embedder", "embed", "layernorm", "norm", "expert", "experts"))
"""Of the model: their gradients are summed over other groups than the replicas of all others."""
_SUMS = frozenset((
    "reduction", "reduccion", "reducao", "riduzione", "moyenne", "synchronisation",
    "sincronizacion", "sincronizacao", "sincronizzazione", "mitteln", "mittelung",
    "synchronisieren", "reduzieren",
))  # fmt: skip
"""Of gradients, in French, Spanish, Portuguese, Italian and German, without accents."""
_GRADIENT, _TOGETHER = (
    ("梯度", "勾配", "градиент"),
    ("同步", "同期", "归约", "规约", "平均", "усредн", "синхр"),
)
"""The same where words are not set apart, or have many endings."""
_REDUCES = _SUMS | {"reduce", "allreduce", "reducescatter", "sync", "synchronize"}
_BACKWARD = frozenset(("backward", "bwd"))


def communicates(phase: str) -> bool:
    """Whether a phase is communication: `<group kind>-<operator>`, or a word for it in its name.

    >>> communicates("ep-alltoall"), communicates("embedding_grads_all_reduce")
    (True, True)
    >>> communicates("réduction des gradients"), communicates("Gradienten mitteln")
    (True, True)
    >>> communicates("forward-backward"), communicates("wait_for_batch")
    (False, False)
    """
    words = _words(phase)
    if not _INPUT.isdisjoint(words):
        return transfers(phase) and not loads(phase)
    named = not _WORDS.isdisjoint(words) or (len(words) > 1 and words[0] in _KINDS)
    return named or _sums_gradients(phase)


def saves(phase: str | None) -> bool:
    """Whether a phase writes what was trained, by its name: work of the host and its storage."""
    return any(part in (phase or "").lower() for part in _SAVES)


def copies(phase: str | None) -> bool:
    """Whether a phase copies between host and device, by its name.

    >>> copies("grads-to-host"), copies("memcpy_h2d"), copies("batch_to_device"), copies("host")
    (True, True, True, False)
    """
    return bool(_COPIES.search((phase or "").lower()))


def is_beside_training(phase: str | None) -> bool:
    """Whether a phase saves or evaluates, by its name."""
    return saves(phase) or any(part in (phase or "").lower() for part in _EVALUATES)


def _sums_gradients(phase: str) -> bool:
    """Whether a phase sums gradients, as other languages than English say it."""
    words, name = _words(phase), phase.lower()
    if any(one in name for one in _GRADIENT):
        return any(one in name for one in _TOGETHER)
    return not (_GRADIENTS.isdisjoint(words) or _SUMS.isdisjoint(words))


def transfers(phase: str) -> bool:
    """Whether a phase passes data between two ranks, as the stages of a pipeline do.

    >>> transfers("forward-recv"), transfers("pipe_recv_input"), transfers("grads-all-reduce")
    (True, True, False)
    """
    return not _TRANSFERS.isdisjoint(_words(phase))


def receives(phase: str) -> bool:
    """Whether a phase waits for what another rank sends.

    >>> receives("backward-recv"), receives("backward-send")
    (True, False)
    """
    return not _RECEIVES.isdisjoint(_words(phase))


def group_kind(phase: str) -> str | None:
    """The kind of the groups that a communication phase is named after; None if the name does not
    say.

    >>> group_kind("tp-allgather"), group_kind("grad_all_reduce")
    ('tp', None)
    """
    first = next(iter(_words(phase)), None)
    return first if first in _KINDS else None


def exchanges_gradients(phase: str) -> bool:
    """Whether replicas exchange gradients in a phase whose name says no kind of group.

    >>> exchanges_gradients("sync_grads"), exchanges_gradients("bwd_allreduce_microstep")
    (True, True)
    >>> exchanges_gradients("réduction des gradients"), exchanges_gradients("梯度同步")
    (True, True)
    >>> exchanges_gradients("embedding-grads-all-reduce"), exchanges_gradients("tp-allreduce")
    (False, False)
    """
    if _sums_gradients(phase):
        return True
    words = set(_words(phase))
    of_pass = not (words.isdisjoint(_GRADIENTS) and words.isdisjoint(_BACKWARD))
    whole = words.isdisjoint(_PARTS | _KINDS)
    return of_pass and whole and not words.isdisjoint(_REDUCES)


def loads(phase: str | None) -> bool:
    """Whether a phase loads data, as frameworks call it.

    >>> loads("data-load"), loads("iter_time/batch_gen"), loads("dataloader_next")
    (True, True, True)
    >>> loads("batch_input"), loads("dl")
    (True, True)
    >>> loads("Chargement des données"), loads("Daten laden"), loads("数据读取")
    (True, True, True)
    >>> loads("batch_norm"), loads("data_parallel_sync"), loads("数据并行同步"), loads(None)
    (False, False, False, False)
    """
    name = (phase or "").lower()
    if any(one in name for one in _DATA) and any(one in name for one in _READ):
        return True
    words = frozenset(_words(phase or ""))
    if not words.isdisjoint(_PARALLEL):
        return False
    if not _LOADING.isdisjoint(name.split()) or not _LOADING.isdisjoint(words):
        return True
    fetched = not (_SAMPLES.isdisjoint(words) or _FETCHES.isdisjoint(words))
    fetched |= len(words) > 1 and words <= _SAMPLES
    return fetched or not _SOURCES.isdisjoint(words)


def is_work(phase: str) -> bool:
    """Whether a phase neither communicates nor loads data, by its name."""
    return not (communicates(phase) or loads(phase))


def _words(phase: str) -> list[str]:
    plain = unicodedata.normalize("NFKD", phase)
    plain = "".join(one for one in plain if not unicodedata.combining(one))
    return [word.lower() for word in _WORD.findall(plain)]
