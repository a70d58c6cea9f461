"""Finds a model's rotary embedding in its configuration, in any of the styles in use."""

from __future__ import annotations

from typing import Any

from tokenmill.layers.rope import RopeKind, RopeSpec
from tokenmill.models.hf_config import ConfigReader

KINDS: dict[str, RopeKind] = {
    "default": "default",
    "linear": "linear",
    "dynamic": "dynamic",
    "llama3": "llama3",
    "yarn": "yarn",
    "longrope": "longrope",
    "su": "longrope",  # the name that the first Phi-3 checkpoints gave it
}


def read_rope(
    config: ConfigReader,
    *,
    head_dim: int,
    max_position: int,
    layer_type: str | None = None,
    default_theta: float = 10000.0,
) -> RopeSpec:
    """The rotary embedding of all layers, or of layers of ``layer_type``.

    Two styles are read: ``rope_theta``, ``partial_rotary_factor`` and ``rope_scaling`` at the top
    level, and the ``rope_parameters`` object of transformers 5, perhaps with one for each layer type.

    Raises CheckpointError for unknown kinds and for absent or absurd values.
    """
    scaling = ConfigReader({}, "the model's configuration")
    for key in ("rope_parameters", "rope_scaling"):
        if config.has(key):
            scaling = config.section(key)
            if layer_type is not None and scaling.has(layer_type):
                scaling = scaling.section(layer_type)
            break
    theta = config.number("rope_theta", default_theta, minimum=1.0)
    theta = scaling.number("rope_theta", theta, minimum=1.0)
    share = scaling.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0))
    rotary_dim = int(head_dim * share)
    if share > 1 or rotary_dim < 2 or rotary_dim % 2:
        raise config.error(
            "partial_rotary_factor", f"is {share}, which rotates {rotary_dim} of {head_dim} coordinates"
        )
    name = scaling.text("rope_type", scaling.text("type", "default"))
    if name not in KINDS:
        raise scaling.error("rope_type", f"is {name!r}, not one of {', '.join(KINDS)}")
    kind = KINDS[name]
    return RopeSpec(
        kind=kind,
        theta=theta,
        rotary_dim=rotary_dim,
        max_position=max_position,
        **_scaling_values(kind, config, scaling, rotary_dim, max_position),
    )


def _scaling_values(
    kind: RopeKind, config: ConfigReader, scaling: ConfigReader, rotary_dim: int, max_position: int
) -> dict[str, Any]:
    """The fields of RopeSpec that only some kinds have."""
    if kind == "default":
        return {}
    if kind in ("linear", "dynamic"):
        if kind == "dynamic" and rotary_dim < 4:
            raise config.error("rope_scaling", "of kind dynamic needs at least 4 rotated coordinates")
        return {"factor": scaling.number("factor")}
    # Where both levels hold it (Phi-3), the outer one counts.
    key = "original_max_position_embeddings"
    original = config.integer(key, scaling.integer(key, max_position, minimum=2), minimum=2)
    values: dict[str, Any] = {"original_max_position": original}
    if kind == "llama3":
        low, high = scaling.number("low_freq_factor", 1.0), scaling.number("high_freq_factor", 4.0)
        if high <= low:
            raise scaling.error(
                "high_freq_factor", f"is {high}, but must exceed low_freq_factor, {low}"
            )
        return values | {
            "factor": scaling.number("factor"),
            "low_freq_factor": low,
            "high_freq_factor": high,
        }
    if scaling.has("attention_factor"):
        values["attention_factor"] = scaling.number("attention_factor")
    values["factor"] = scaling.number("factor", max_position / original)
    if kind == "longrope":
        for key in ("short_factor", "long_factor"):
            values[key] = scaling.numbers(key, rotary_dim // 2)
        return values
    for key in ("beta_fast", "beta_slow", "mscale", "mscale_all_dim"):
        if scaling.has(key):
            values[key] = scaling.number(key)
    values["truncate"] = scaling.flag("truncate", True)
    return values
