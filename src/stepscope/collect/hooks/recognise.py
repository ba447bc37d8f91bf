"""Recognises which modules of a model are its attention, its MLP and its experts.

It goes by the attribute that holds a module, else by the end of its class name. The names are those
in the sources of Megatron-core (`self_attention`, `mlp`, `experts`), Hugging Face (`self_attn`,
`attn`, `attention`, T5's `SelfAttention`; `mlp`; `experts`), torchtitan (`attention`,
`feed_forward`, `experts`), DeepSpeed-MoE (`experts`) and torch's own layers (`self_attn`);
Lightning wraps any of these. Classes made by FSDP2 keep the end of their names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

ATTENTION, MLP, EXPERTS = "self_attention", "mlp", "moe_experts"
"""Phases, named as in the contract of the job folder."""
BY_NAME = {
    "self_attention": ATTENTION, "self_attn": ATTENTION, "attention": ATTENTION, "attn": ATTENTION,
    "selfattention": ATTENTION, "mlp": MLP, "feed_forward": MLP, "ffn": MLP, "experts": EXPERTS,
}  # fmt: skip
BY_CLASS = (
    ("SelfAttention", ATTENTION), ("MLP", MLP), ("FeedForward", MLP), ("Experts", EXPERTS),
)  # fmt: skip
DEEPEST = 100
"""Maximal nesting of modules, more than in any model, in case modules contain each other."""


def parts_of(modules: Iterable[Any]) -> Iterator[tuple[Any, str]]:
    """Every module that is a part to be timed, and which part it is.

    If parts are nested the outer one counts, so that no time is counted twice. In a mixture of
    experts only the experts count, because tokens are exchanged around them.
    """
    above = {id(child): (parent, name) for parent in modules for name, child in _children(parent)}
    known = {key: part for key in above if (part := _part(above, key)) is not None}
    mixtures = {id(one) for key, part in known.items() if part == EXPERTS
                for one in _ancestors(above, key)}  # fmt: skip
    kept = {key: part for key, part in known.items() if key not in mixtures}
    for key, part in kept.items():
        if not any(id(one) in kept for one in _ancestors(above, key)):
            yield from _called(_module(above, key), part)


def _children(module: Any) -> Iterator[tuple[str, Any]]:
    return ((name, child) for name, child in module._modules.items() if child is not None)


def _module(above: dict[int, tuple[Any, str]], key: int) -> Any:
    parent, name = above[key]
    return parent._modules[name]


def _part(above: dict[int, tuple[Any, str]], key: int) -> str | None:
    by_name = BY_NAME.get(above[key][1].lower())
    if by_name is not None:
        return by_name
    kind = type(_module(above, key)).__name__
    return next((part for ending, part in BY_CLASS if kind.endswith(ending)), None)


def _ancestors(above: dict[int, tuple[Any, str]], key: int) -> Iterator[Any]:
    for _ in range(DEEPEST):
        if key not in above:
            return
        parent = above[key][0]
        yield parent
        key = id(parent)


def _called(module: Any, part: str) -> Iterator[tuple[Any, str]]:
    """The modules that are really called: a list of modules never is, but its elements are."""
    if hasattr(type(module), "forward") and not _is_list(module):
        yield module, part
    else:
        for _, child in _children(module):
            yield child, part


def _is_list(module: Any) -> bool:
    """Whether it has torch's default `forward`, which only raises."""
    return getattr(type(module).forward, "__name__", "") == "_forward_unimplemented"
